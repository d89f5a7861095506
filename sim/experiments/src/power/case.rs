//! Setting of FedPower, and a run of FedPower with this setting that measures the distance after each
//! exchange.

use fedspan_client::privacy::{NoiseMultiplier, PrivacySettings, Seed, Variance, noise};
use fedspan_engine::aggregate::{Rule, UpdateWeight};
use fedspan_engine::algorithm::{Algorithm, FedPower, FedPowerParameters, random_start};
use fedspan_engine::linalg::{Matrix, from_f32, orthonormal, principal_angle_distance, to_f32};
use fedspan_engine::participation::{Cohort, WithReplacement};
use fedspan_engine::privacy::fedpower::{Calibration, Products};
use fedspan_engine::privacy::{Delta, Epsilon, ParameterError, Releases};
use fedspan_engine::{DeviceId, Participation};
use fedspan_engine::{Tensor, Weighting};
use fedspan_protocol::message::{PowerRows, PowerUpload, Task};
use fedspan_protocol::tensor::{Encoding, Role};
use serde::Serialize;

use super::grams::Grams;
use fedspan_sim_core::noise::{SLOT, noise_seed};

/// Number of grid points per unit in the product of one record if the grid of the device's noise mechanism
/// cannot be used. This is the finest grid that a device supports.
const GRID: f64 = 32_768.0;

/// Setting of FedPower.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Case {
    /// Number of columns of the iteration, r.
    pub rank: usize,
    /// Number of power iterations, T.
    pub iterations: u16,
    /// Number of local iterations between two exchanges, p.
    pub local_steps: u16,
    /// True if the number of local iterations decreases by one with each exchange.
    pub decay: bool,
    /// True if the devices' bases are aligned by Procrustes rotations.
    pub procrustes: bool,
    /// Participation K / m: number of draws with replacement divided by the number of devices. At 1 there are
    /// no draws, and every device participates once.
    pub participation: f64,
    /// Privacy guarantee of each record, or `None` for a run without noise.
    pub privacy: Option<PrivacyTarget>,
    /// True for the one-shot variant: every device computes the eigenspace of its data, and the server
    /// averages the projectors of these eigenspaces.
    pub one_shot: bool,
}

/// Privacy guarantee of each record.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrivacyTarget {
    /// Epsilon of the differential privacy guarantee.
    pub epsilon: f64,
    /// Delta of the differential privacy guarantee.
    pub delta: f64,
    /// Method that computes the noise from epsilon and delta.
    #[serde(serialize_with = "serialize_calibration")]
    pub calibration: Calibration,
}

fn serialize_calibration<S: serde::Serializer>(
    calibration: &Calibration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(calibration.as_str())
}

/// Error of a case that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// No amount of noise gives the requested guarantee.
    #[error(transparent)]
    PrivacyTarget(#[from] ParameterError),
    /// The noise mechanism of the device does not support the required noise.
    #[error(transparent)]
    Settings(#[from] fedspan_client::privacy::PrivacySettingsError),
    /// The required variance cannot be sampled.
    #[error(transparent)]
    Variance(#[from] fedspan_client::privacy::VarianceError),
    /// The averaged basis does not have full rank.
    #[error(transparent)]
    Rank(#[from] fedspan_engine::linalg::RankDeficient),
}

impl Case {
    /// Standard deviation of the noise in the product of one record, which does not depend on the number of
    /// records; `None` for a run without noise.
    ///
    /// # Errors
    /// [`ParameterError`] if no amount of noise gives the requested guarantee.
    pub fn noise(&self) -> Result<Option<f64>, ParameterError> {
        let Some(PrivacyTarget { epsilon, delta, calibration }) = self.privacy else { return Ok(None) };
        let products = Products::new(u32::try_from(self.rank).unwrap_or(u32::MAX), 1.0)?;
        let releases = Releases::new(self.iterations.into())?;
        products.noise(calibration, Epsilon::new(epsilon)?, Delta::new(delta)?, releases).map(Some)
    }

    /// Total number of iterations after each exchange.
    #[must_use]
    pub fn at(&self) -> Vec<u16> {
        let sum = |sum: &mut u16, (steps, _): &(u16, PowerUpload)| {
            *sum += steps;
            Some(*sum)
        };
        self.parameters().exchanges().iter().scan(0, sum).collect()
    }

    /// Variance of a device's noise in squared grid spacings, and the number of grid spacings per unit. Both
    /// values come from the noise mechanism of the client crate, which accounts for the sensitivity that
    /// rounding adds. If the mechanism does not support the required noise, the finest grid is used without
    /// this correction.
    fn variance(&self, fleet: &Grams) -> Result<Option<(Variance, f64)>, CaseError> {
        let Some(nu) = self.noise()? else { return Ok(None) };
        let side = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let rows = fleet.samples.iter().max().map_or(1, |rows| u32::try_from(*rows).unwrap_or(u32::MAX));
        let sensitivity = if self.rank == 1 { 1.0 } else { 2.0 };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates, and is refused"
        )]
        let round_up = |square: f64| square.ceil() as u64;
        let multiplier = NoiseMultiplier::from_square(round_up(nu * nu / sensitivity * 65_536.0));
        let settings =
            multiplier.ok().and_then(|multiplier| PrivacySettings::new(multiplier, 0, rows, SLOT).ok());
        Ok(Some(match settings {
            Some(settings) => {
                let grid = f64::from(1u32 << settings.grid());
                (settings.variance(side(fleet.truth.nrows()), side(self.rank))?, grid)
            }
            None => (Variance::new(round_up(nu * nu * GRID * GRID), 1)?, GRID),
        }))
    }

    /// Parameters of the server for this setting.
    fn parameters(&self) -> FedPowerParameters {
        FedPowerParameters {
            iterations: self.iterations,
            local_steps: if self.one_shot { self.iterations } else { self.local_steps },
            decay: self.decay,
            procrustes: self.procrustes,
            reference: None,
            rows: PowerRows::Features,
            download_encoding: Encoding::F32,
            upload_encoding: Encoding::F32,
            weighting: Weighting::Samples,
            rule: if self.one_shot { Rule::PROJECTOR_MEAN } else { Rule::MEAN },
        }
    }

    /// Runs FedPower and returns the distance at the start and after each exchange. The distance is the sine
    /// of the largest angle between the true eigenspace and the span of the basis. The seed determines the
    /// noise, the draws of devices, and the initial basis.
    ///
    /// # Errors
    /// [`CaseError`] if the noise cannot be computed or sampled, or if a basis does not have full rank.
    pub fn run(&self, fleet: &Grams, seed: u64) -> Result<Vec<f64>, CaseError> {
        let variance = self.variance(fleet)?;
        let start = random_start(fleet.truth.nrows(), self.rank, seed);
        let mut server = FedPower::new(start, self.parameters());
        let devices: Vec<DeviceId> = (0..fleet.grams.len() as u64).map(DeviceId).collect();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the fleet")]
        let draws = (self.participation * devices.len() as f64).round().max(1.0) as usize;
        let mut policy = WithReplacement { draws, seed };
        let mut distances = vec![principal_angle_distance(server.representation(), &fleet.truth)];
        for round in 1..=server.rounds_needed() {
            let mut cohort = Cohort::new(devices.clone());
            if self.participation < 1.0 {
                cohort = policy.cohort(round, &devices);
                if let Some(reference) = server.reference(&devices) {
                    cohort.add_reference(reference);
                }
            }
            let request = server.request();
            for device in cohort.devices {
                let private = variance
                    .map(|(variance, grid)| (variance, 1.0 / grid, noise_seed(seed, round, device.0)));
                let tensors = device_update(fleet, device, &request, private)?;
                let draws = cohort.draws.get(&device).copied().unwrap_or(1);
                server.absorb(device, UpdateWeight { samples: fleet.declared(device.0), draws }, &tensors);
            }
            server.finish()?;
            distances.push(principal_angle_distance(server.representation(), &fleet.truth));
        }
        Ok(distances)
    }
}

/// Computes the update of a device: performs the requested iterations and adds noise to every product.
fn device_update(
    fleet: &Grams,
    device: DeviceId,
    request: &fedspan_engine::Request,
    private: Option<(Variance, f64, Seed)>,
) -> Result<Vec<Tensor>, CaseError> {
    let (Task::FedPower { iterations, upload, .. }, [downloaded]) =
        (request.task, request.tensors.as_slice())
    else {
        return Ok(Vec::new());
    };
    let mut z = from_f32(downloaded.rows.into(), downloaded.cols.into(), &downloaded.values);
    let index = usize::try_from(device.0).unwrap_or(usize::MAX);
    let samples = fleet.samples.get(index).copied().unwrap_or(1);
    let product = |z: &Matrix, iteration: u64| {
        let mut y = fleet.product(index, z).unwrap_or_else(|| z.clone());
        if let Some((variance, unit, seed)) = &private {
            let (d, r) = y.shape();
            for (row, column) in (0..d).flat_map(|row| (0..r).map(move |column| (row, column))) {
                let coordinate = iteration * (d * r) as u64 + (row * r + column) as u64;
                y[(row, column)] += noise(seed, coordinate, variance) as f64 * unit / samples as f64;
            }
        }
        y
    };
    let mut y = product(&z, 0);
    for iteration in 1..iterations.into() {
        z = orthonormal(&y)?;
        y = product(&z, iteration);
    }
    let tensor = |matrix: &Matrix| Tensor {
        role: Role::Subspace,
        rows: downloaded.rows,
        cols: downloaded.cols,
        values: to_f32(matrix),
    };
    Ok(match upload {
        PowerUpload::Product => vec![tensor(&y)],
        PowerUpload::ProductAndBasis => vec![tensor(&y), tensor(&z)],
        _ => vec![tensor(&orthonormal(&y)?)],
    })
}
