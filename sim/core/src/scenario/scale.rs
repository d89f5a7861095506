//! `[data] scale`: that of the fleet, which a campaign's first stage finds. The words of tables are read with their kinds.

use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::{Problem, Section};

/// Reads the key: whether the campaign finds a scale.
pub fn read_scale(section: &Section<'_>) -> Result<ScaleSource, Problem> {
    if matches!(section.word("kind"), Some("csv" | "npz")) {
        let fleet = section.word("scale") == Some("fleet");
        return Ok(if fleet { ScaleSource::Fleet } else { ScaleSource::None });
    }
    section.choice("scale", Some("none"), &[("none", ScaleSource::None), ("fleet", ScaleSource::Fleet)])
}
