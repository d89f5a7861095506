//! Watches an engine at work: what it does with an event, in the journal's words.

use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::{AckOutcome, RoundId};

use super::{Answered, Committed, JournalEntry, JournalPhase, Opened, Outcome};
use fedspan_engine::linalg::Matrix;
use fedspan_engine::{Action, Engine, Event, Millis};

/// Remembers what has been told.
#[derive(Clone, Copy, Debug, Default)]
pub struct JournalRecorder {
    /// The last exchange whose opening was told.
    opened: u32,
}

impl JournalRecorder {
    /// For an engine that was restarted with this round open: its opening has been told.
    #[must_use]
    pub fn after(open: Option<RoundId>) -> Self {
        Self { opened: open.map_or(0, |id| id.round) }
    }

    /// Gives the engine one event, like [`Engine::handle`], and appends what there is to tell of it.
    pub fn handle(
        &mut self,
        engine: &mut Engine,
        now: Millis,
        event: Event,
        actions: &mut Vec<Action>,
        lines: &mut Vec<JournalEntry>,
    ) {
        // Once: what a device declines again, or what nobody asks, changes nothing, and there is no end to it.
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

    /// The round that is open, if that has not been told yet.
    fn opening(&mut self, engine: &Engine) -> Option<JournalEntry> {
        let round = engine.open_round().filter(|round| round.opening.id.round > self.opened)?;
        let id = round.opening.id;
        self.opened = id.round;
        let (phase, number) = JournalPhase::of(engine.phase());
        Some(JournalEntry::Opened(Opened {
            at: round.opened_at,
            round: id.round,
            continues: round.former.last().map(|id| id.round),
            phase,
            number,
            stage: id.stage,
            target: round.target.min(round.cohort.len()),
            samples: round.enough.map(|enough| enough.samples),
            cohort: round.cohort.iter().copied().collect(),
        }))
    }
}

/// What [`Committed::representation`](super::Committed) says of one.
pub(crate) fn digest(representation: &Matrix) -> String {
    let bytes: Vec<u8> = representation.iter().flat_map(|value| value.to_le_bytes()).collect();
    format!("{:08x}", crc32c(&bytes))
}
