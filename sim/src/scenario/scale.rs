//! `[data] scale`: that of the fleet, which a campaign's first stage finds.

use fedspan_aggregator::algorithm::ScaleSource;
use fedspan_aggregator::config::{Problem, Section};

/// Reads the key.
pub fn read_scale(section: &Section<'_>) -> Result<ScaleSource, Problem> {
    section.choice("scale", Some("none"), &[("none", ScaleSource::None), ("fleet", ScaleSource::Fleet)])
}
