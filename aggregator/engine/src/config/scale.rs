//! Key `scale` in the section `[data]` of a server: no scale, the scale of the fleet, or given numbers.

use fedspan_protocol::limits::TENSORS_MAX;
use toml_edit::Value;

use crate::aggregate::Rule;
use crate::algorithm::{Scale, ScaleSource};
use crate::reader::Problem;
use crate::reader::Section;
use crate::rounds::Engine;

/// Reads the key `scale` from `[data]`. A given scale is a table of two lists of `features` numbers each.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_scale(section: &Section<'_>, features: usize) -> Result<ScaleSource, Problem> {
    if !section.has_table("scale") {
        let choices = [("none", ScaleSource::None), ("fleet", ScaleSource::Fleet)];
        return section.choice("scale", Some("none"), &choices);
    }
    let table = section.section("scale")?;
    let shift = read_row(&table, "shift", features)?;
    let factor = read_row(&table, "factor", features)?;
    table.finish()?;
    if let Some(feature) = factor.iter().position(|factor| *factor == 0.0) {
        let message =
            format!("found 0 for feature {feature} (from 0), allowed: any other number that f32 holds");
        return Err(table.problem("factor", message));
    }
    let scale = Scale::new(shift, factor);
    scale.map(ScaleSource::Given).ok_or_else(|| table.problem("shift", "allowed: finite numbers"))
}

/// Reads a list of one finite f32 for each feature.
fn read_row(table: &Section<'_>, key: &str, features: usize) -> Result<Vec<f32>, Problem> {
    let allowed = format!("a list of {features} numbers that f32 holds, one for each feature");
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a scale travels as f32")]
    let number = |value: &Value| {
        let wide = value.as_float().or_else(|| value.as_integer().map(|value| value as f64))?;
        Some(wide as f32).filter(|value| value.is_finite())
    };
    let Some(row) = table.list(key, &allowed, number)? else {
        return Err(table.problem(key, format!("missing, allowed: {allowed}")));
    };
    if row.len() != features {
        return Err(table.problem(key, format!("found {} numbers, allowed: {allowed}", row.len())));
    }
    Ok(row)
}

/// Rejects the scale of the fleet in two cases: if devices must add noise, because the sums reveal their
/// means; and under a robust rule, because one device can move the mean.
///
/// # Errors
/// [`Problem`] in either case.
pub fn check_scale(
    source: &ScaleSource,
    rule: Rule,
    private: bool,
    section: &Section<'_>,
) -> Result<(), Problem> {
    let instead = "allowed: \"none\", or numbers: scale = { shift = [...], factor = [...] }";
    if *source != ScaleSource::Fleet {
        return Ok(());
    }
    if private {
        let message = format!("\"fleet\" reveals every device's means, which [privacy] forbids; {instead}");
        return Err(section.problem("scale", message));
    }
    if rule != Rule::MEAN {
        let message = format!(
            "\"fleet\" is a mean that one device can move at will, which aggregation.rule = {:?} must prevent; {instead}",
            rule.as_str()
        );
        return Err(section.problem("scale", message));
    }
    Ok(())
}

/// Checks that a round has room for the scale, which is one more tensor, within the protocol's limit.
///
/// # Errors
/// Returns a sentence with the numbers of tensors if they exceed the limit.
pub fn check_scaled_tensors(source: &ScaleSource, engine: &Engine) -> Result<(), String> {
    let max_tensors = engine.requests().iter().map(|request| request.tensors.len()).max().unwrap_or(0);
    if *source == ScaleSource::None || max_tensors <= TENSORS_MAX {
        return Ok(());
    }
    Err(format!(
        "a scale and {} layers of a network do not fit a round, which carries at most {TENSORS_MAX} tensors; allowed: \"none\"",
        max_tensors - 1
    ))
}
