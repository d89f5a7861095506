//! Reader of the key `data.scale`, by which the first stage of a campaign finds a fleet-wide scale. For
//! tables, the other values of the key are checked by the readers of `csv` and `npz` data.

use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::{Problem, Section};

/// Reads the key `scale`. Returns [`ScaleSource::Fleet`] if the campaign finds the scale.
pub fn read_scale(section: &Section<'_>) -> Result<ScaleSource, Problem> {
    if matches!(section.peek_str("kind"), Some("csv" | "npz")) {
        let fleet = section.peek_str("scale") == Some("fleet");
        return Ok(if fleet { ScaleSource::Fleet } else { ScaleSource::None });
    }
    section.choice("scale", Some("none"), &[("none", ScaleSource::None), ("fleet", ScaleSource::Fleet)])
}
