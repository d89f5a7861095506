//! Conversion of the engine's records into journal entries.

use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::AckOutcome;

use super::{Answered, Awaited, Committed, DeadlinePassed, JournalEntry, JournalPhase, Opened, Outcome};
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{Millis, Record, RoundOpening};

impl JournalEntry {
    /// Returns the journal entry of a record; `None` if the journal has no entries for that kind of record.
    /// `at` is the time of the event, and `representation` is the engine's representation after the event.
    #[must_use]
    pub fn of(at: Millis, record: &Record, representation: &Matrix) -> Option<Self> {
        match record {
            Record::Answered(device, ack) => {
                let (outcome, reason) = match ack.outcome {
                    AckOutcome::Counted => (Outcome::Counted, None),
                    AckOutcome::Duplicate => (Outcome::Duplicate, None),
                    AckOutcome::Late => (Outcome::Late, None),
                    AckOutcome::Rejected(rejection) => (Outcome::Rejected, Some(rejection.to_string())),
                    _ => (Outcome::Rejected, None),
                };
                Some(Self::Answered(Answered { at, round: ack.id.round, device: *device, outcome, reason }))
            }
            Record::Declined(device, decline) => Some(Self::Answered(Answered {
                at,
                round: decline.id.round,
                device: *device,
                outcome: Outcome::Declined,
                reason: Some(decline.reason.to_string()),
            })),
            Record::Committed(round) => Some(Self::Committed(Committed {
                at,
                round: round.id.round,
                participants: round.participants.clone(),
                representation: digest(representation),
            })),
            Record::Opened(opening) | Record::Renumbered(opening) => {
                Some(Self::Opened(opening_entry(opening)))
            }
            Record::Missed(missed) => missed.awaited.map(|awaited| {
                let entry = Awaited { at, round: missed.round.round, device: missed.device };
                if awaited { Self::Awaited(entry) } else { Self::NotAwaited(entry) }
            }),
            Record::DeadlinePassed(id) => Some(Self::Deadline(DeadlinePassed { at, round: id.round })),
            Record::Counted(..)
            | Record::Excluded(_)
            | Record::Reinvited(_)
            | Record::Deadline(_)
            | Record::Account(..)
            | Record::Checkpoint(_)
            | Record::Failed(_) => None,
        }
    }
}

/// Creates the entry of an opened round.
fn opening_entry(opening: &RoundOpening) -> Opened {
    let (phase, number) = JournalPhase::of(opening.phase);
    Opened {
        at: opening.opened_at,
        round: opening.id.round,
        continues: opening.continues.map(|id| id.round),
        phase,
        number,
        stage: opening.id.stage,
        target: opening.target,
        samples: opening.sample_target,
        cohort: opening.cohort.clone(),
    }
}

/// Returns the digest stored in [`Committed::representation`](super::Committed).
pub(crate) fn digest(representation: &Matrix) -> String {
    let bytes: Vec<u8> = representation.iter().flat_map(|value| value.to_le_bytes()).collect();
    format!("{:08x}", crc32c(&bytes))
}
