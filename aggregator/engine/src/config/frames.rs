//! Check that frames can carry the tensors of all rounds of a campaign.

use fedspan_protocol::limits::{FRAME_LIMIT_MAX, TENSORS_MAX};
use fedspan_protocol::message::Descriptors;

use crate::admission::least_frame_limit;
use crate::rounds::Engine;
use crate::types::Request;

/// Checks the tensors of all kinds of rounds, in both directions. Sections are checked before, with messages that name a key; this finds
/// tensors that only fit one by one.
///
/// # Errors
/// A sentence with the number of values of the round with the largest tensors.
pub fn check_frames(engine: &Engine) -> Result<(), String> {
    let mut most_values = 0;
    for Request { tensors, encoding, expects, .. } in engine.requests() {
        let down: Descriptors =
            tensors.iter().map(|tensor| tensor.descriptor(encoding)).take(TENSORS_MAX).collect();
        let up: Descriptors = expects.iter().copied().take(TENSORS_MAX).collect();
        for tensors in [down, up] {
            if least_frame_limit(&tensors) > FRAME_LIMIT_MAX {
                most_values = most_values.max(tensors.iter().map(|tensor| tensor.elements()).sum::<usize>());
            }
        }
    }
    if most_values == 0 {
        return Ok(());
    }
    Err(format!(
        "{most_values} values of a round do not fit 256 chunks of the largest frame; use smaller layers"
    ))
}
