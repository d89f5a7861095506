//! Journal recorder: describes the effects of an engine event as journal entries.

use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::{AckOutcome, RoundId};

use super::{Answered, Committed, JournalEntry, JournalPhase, Opened, Outcome};
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{Action, Engine, Event, Millis};

/// Recorder of an engine's decisions.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalRecorder {
    /// Id of the last round whose opening was recorded.
    opened: u32,
}

impl JournalRecorder {
    /// Makes a recorder for a restarted engine; the opening of its open round is already recorded.
    #[must_use]
    pub fn resume_after(open: Option<RoundId>) -> Self {
        Self { opened: open.map_or(0, |id| id.round) }
    }

    /// Applies one event to the engine, like [`Engine::handle`], and appends journal entries for its effects.
    pub fn handle(
        &mut self,
        engine: &mut Engine,
        now: Millis,
        event: Event,
        actions: &mut Vec<Action>,
        lines: &mut Vec<JournalEntry>,
    ) {
        // Only the first decline of an awaited device has an effect; a device may send any number of them.
        if let Event::Declined(device, decline) = &event
            && let Some(round) = engine.open_round()
            && round.id_for(*device) == decline.id
            && round.awaits(*device)
        {
            lines.push(JournalEntry::Answered(Answered {
                at: now,
                round: decline.id.round,
                device: *device,
                outcome: Outcome::Declined,
                reason: Some(decline.reason.to_string()),
            }));
        }
        let before = actions.len();
        engine.handle(now, event, actions);
        for action in actions.iter().skip(before) {
            match action {
                Action::Acknowledge(device, ack) => {
                    let (outcome, reason) = match ack.outcome {
                        AckOutcome::Counted => (Outcome::Counted, None),
                        AckOutcome::Duplicate => (Outcome::Duplicate, None),
                        AckOutcome::Late => (Outcome::Late, None),
                        AckOutcome::Rejected(rejection) => (Outcome::Rejected, Some(rejection.to_string())),
                        _ => (Outcome::Rejected, None),
                    };
                    let (round, device) = (ack.id.round, *device);
                    lines.push(JournalEntry::Answered(Answered { at: now, round, device, outcome, reason }));
                }
                Action::Commit(record) => lines.push(JournalEntry::Committed(Committed {
                    at: now,
                    round: record.id.round,
                    participants: record.participants.clone(),
                    representation: digest(engine.representation()),
                })),
                _ => {}
            }
        }
        lines.extend(self.opening(engine));
    }

    /// Returns an entry for the open round, if its opening is not yet recorded.
    fn opening(&mut self, engine: &Engine) -> Option<JournalEntry> {
        let round = engine.open_round().filter(|round| round.broadcast.id.round > self.opened)?;
        let id = round.broadcast.id;
        self.opened = id.round;
        let (phase, number) = JournalPhase::of(engine.phase());
        Some(JournalEntry::Opened(Opened {
            at: round.opened_at,
            round: id.round,
            continues: round.previous_ids.last().map(|id| id.round),
            phase,
            number,
            stage: id.stage,
            target: round.target.min(round.cohort.len()),
            samples: round.sample_target.map(|target| target.samples),
            cohort: round.cohort.iter().copied().collect(),
        }))
    }
}

/// Returns the digest stored in [`Committed::representation`](super::Committed).
pub(crate) fn digest(representation: &Matrix) -> String {
    let bytes: Vec<u8> = representation.iter().flat_map(|value| value.to_le_bytes()).collect();
    format!("{:08x}", crc32c(&bytes))
}
