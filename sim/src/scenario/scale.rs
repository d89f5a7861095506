//! `[data] scale`: that of the fleet, which a campaign's first stage finds. The words of tables are read with their kinds.

use fedspan_aggregator::algorithm::ScaleSource;
use fedspan_aggregator::config::{Problem, Section};

/// Reads the key where it asks for the fleet's scale, or for none; other words are left to the kind of data.
pub fn read_scale(section: &Section<'_>) -> Result<ScaleSource, Problem> {
    let words = [("none", ScaleSource::None), ("fleet", ScaleSource::Fleet)];
    match section.word("scale") {
        Some("none" | "fleet") => section.choice("scale", Some("none"), &words),
        _ => Ok(ScaleSource::None),
    }
}
