//! Identification of a release: one noisy upload of one device. The seed of its noise is derived from it.

use fedspan_protocol::message::RoundId;

/// Identification of one release among all releases of the fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Identity of the device ([`Config::device`](crate::session::Config::device)).
    pub device: u64,
    /// Campaign of the round.
    pub campaign: u64,
    /// Identifier of the round.
    pub round: RoundId,
    /// Cost of all earlier releases in the device's ledger, which grows with each release.
    pub spent: u64,
}
