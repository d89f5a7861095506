//! Tables of the privacy account of several releases, and of the noise for a privacy budget.

use fedspan_engine::privacy::calibration::noise_multiplier;
use fedspan_engine::privacy::fedpower::{Calibration, Products, paper_multiplier};
use fedspan_engine::privacy::{
    Composition, Delta, Epsilon, NoiseMultiplier, ParameterError, Releases, renyi,
};

/// Returns the table of epsilon at delta = 1e-5, computed by three accountants.
pub fn releases_table() -> Result<String, String> {
    let row = |(count, multiplier): (u32, f64)| -> Result<String, ParameterError> {
        let (delta, releases) = (Delta::new(1e-5)?, Releases::new(count)?);
        let composition = Composition::repeated(NoiseMultiplier::new(multiplier)?, releases);
        let (exact, renyi) = (composition.epsilon(delta), renyi::epsilon(composition, delta).epsilon);
        // Mironov 2017, Proposition 3.
        let mu = composition.mu();
        let classical = 0.5 * mu * mu + mu * (-2.0 * delta.get().ln()).sqrt();
        Ok(format!("| {count} | {multiplier} | **{exact:.4}** | {renyi:.4} | {classical:.4} |\n"))
    };
    let rows = [(1, 4.0), (100, 20.0), (50, 10.0)].map(row);
    join_rows(
        "| releases | multiplier | exact | Renyi | classical |\n| --- | --- | --- | --- | --- |\n",
        rows,
    )
}

/// Returns the table of FedPower's noise in the paper's Model I: calibrated by the paper's theorem, and by
/// the tight sensitivity.
pub fn noise_table() -> Result<String, String> {
    let row = |value: f64| -> Result<String, ParameterError> {
        let epsilon = Epsilon::new(value)?;
        let delta = Delta::new(1e-4)?;
        let releases = Releases::new(10)?;
        let products = Products::new(5, 20.0 / 2e6)?;
        let (paper, tight) =
            (paper_multiplier(epsilon, delta, releases), noise_multiplier(epsilon, delta, releases)?.get());
        let [of_paper, of_tight] = [Calibration::Paper, Calibration::Tight].map(|c| products.sensitivity(c));
        let nu = |calibration| products.noise(calibration, epsilon, delta, releases);
        Ok(format!(
            "| {value} | {paper:.4} | {tight:.4} | {:.3} | {:.3} | **{:.1}** |\n",
            paper / tight,
            of_paper / of_tight,
            nu(Calibration::Paper)? / nu(Calibration::Tight)?,
        ))
    };
    join_rows(
        "| epsilon | multiplier, paper | multiplier, tight | of multipliers | of sensitivities | `nu` paper / tight |\n\
         | --- | --- | --- | --- | --- | --- |\n",
        [0.5, 1.0, 10.0].map(row),
    )
}

fn join_rows(head: &str, rows: [Result<String, ParameterError>; 3]) -> Result<String, String> {
    let rows = rows.into_iter().collect::<Result<String, _>>().map_err(|error| error.to_string())?;
    Ok(format!("{head}{rows}"))
}
