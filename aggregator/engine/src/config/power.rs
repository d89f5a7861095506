//! Keys of power methods in `[algorithm]`.

use fedspan_protocol::message::PowerRows;

use crate::algorithm::synchronisations;
use crate::reader::Problem;
use crate::reader::Section;
use crate::types::DeviceId;

/// Values of the key `rows`.
pub const ROWS: [(&str, PowerRows); 2] =
    [("features", PowerRows::Features), ("weighted", PowerRows::Weighted)];

/// Settings of FedPower (Guo et al. 2024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerSection {
    /// Number of power iterations in all (T); the number of rounds follows from it.
    pub iterations: u16,
    /// Iterations from one exchange to the next (p).
    pub local_steps: u16,
    /// Whether p decreases by one after every exchange, down to 1.
    pub decay: bool,
    /// Whether devices are aligned before they are averaged.
    pub procrustes: bool,
    /// Device with which the others are aligned, as long as it answers; otherwise the participant with the
    /// lowest number.
    pub reference: DeviceId,
    /// Contents of a row of a device's matrix.
    pub rows: PowerRows,
}

impl PowerSection {
    /// Number of exchanges between devices and server.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        synchronisations(self.iterations, self.local_steps, self.decay).0.len() as u64
    }
}

/// Reads the keys of power methods.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub(super) fn read_power(section: &Section<'_>) -> Result<PowerSection, Problem> {
    let to_u16 = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
    let iterations = to_u16(section.integer("iterations", Some(10), 1..=65_535)?);
    let local_steps = to_u16(section.integer("local_steps", Some(1), 1..=65_535)?);
    if local_steps > iterations {
        let message = format!("found {local_steps}, allowed: at most the {iterations} of \"iterations\"");
        return Err(section.problem("local_steps", message));
    }
    Ok(PowerSection {
        iterations,
        local_steps,
        decay: section.boolean("decay", false)?,
        procrustes: section.boolean("procrustes", true)?,
        reference: section.integer("reference", Some(0), 0..=i64::MAX as u64)?,
        rows: section.choice("rows", Some("features"), &ROWS)?,
    })
}
