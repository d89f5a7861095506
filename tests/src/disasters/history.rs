//! What was promised, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use fedspan_aggregator::durable_engine::DurableEngine;
use fedspan_aggregator::journal::{self, Committed, JournalEntry, JournalPhase, Outcome};
use fedspan_engine::{DeviceId, Opening, Update};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::{Ack, AckOutcome, RoundId};

use super::plan::Plan;
use super::reference::{Calm, Round, compare};

/// Something that must never be.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation(String);

impl Violation {
    /// In a sentence.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Rounds after which nobody says anything more of one.
const RECENT: u32 = 16;

fn lost(device: DeviceId, round: u32) -> Violation {
    Violation::new(format!("device {device} was told that it counts in round {round}, and that is lost"))
}

/// Everything that somebody was told.
#[derive(Debug, Default)]
pub struct History {
    /// What a round's number means: its stage, and what was sent with it.
    opened: BTreeMap<u32, (RoundId, u32)>,
    /// That an update counts: told for the first time, and as a repetition.
    told: BTreeSet<(DeviceId, u32)>,
    again: BTreeSet<(DeviceId, u32)>,
    /// The same as devices have heard it.
    heard: BTreeSet<(DeviceId, u32)>,
    committed: BTreeSet<u32>,
    /// What was heard of each device for each round first: its digest, and all of it where nobody could make it again.
    digests: BTreeMap<(DeviceId, u32), u32>,
    updates: BTreeMap<(DeviceId, u32), Update>,
    /// Who counted in rounds of which the server has said that they are over: what was promised there has been kept.
    kept: BTreeMap<u32, BTreeSet<DeviceId>>,
    /// Devices whose keys count no more, and how many lines the journal had then.
    revoked: BTreeMap<DeviceId, u64>,
}

impl History {
    /// A device is asked.
    pub fn opened(&mut self, opening: &Opening) -> Result<(), Violation> {
        let values = opening.request.tensors.iter().flat_map(|tensor| &tensor.values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        let this = (opening.id, crc32c(&bytes));
        let known = *self.opened.entry(opening.id.round).or_insert(this);
        if known == this {
            return Ok(());
        }
        Err(Violation::new(format!("round {} was opened as {known:?} and as {this:?}", opening.id.round)))
    }

    /// An update has come.
    pub fn sent(&mut self, device: DeviceId, update: Update, is_private: bool) -> Result<(), Violation> {
        let values = update.tensors.iter().flat_map(|tensor| &tensor.values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        let (this, digest) = ((device, update.id.round), crc32c(&bytes));
        if *self.digests.entry(this).or_insert(digest) != digest {
            return Err(Violation::new(format!("device {device} has sent two updates for round {}", this.1)));
        }
        if is_private {
            self.updates.entry(this).or_insert(update);
        }
        Ok(())
    }

    /// A device is told what became of its update.
    pub fn told(&mut self, device: DeviceId, ack: Ack) -> Result<(), Violation> {
        let this = (device, ack.id.round);
        match ack.outcome {
            AckOutcome::Counted if !self.told.insert(this) => Err(Violation::new(format!(
                "device {device} was told twice that it counts in round {}",
                this.1
            ))),
            AckOutcome::Duplicate => {
                self.again.insert(this);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A device has heard that it counts.
    pub fn heard(&mut self, device: DeviceId, round: u32) {
        self.heard.insert((device, round));
    }

    /// A round is over.
    pub fn committed(&mut self, record: &Committed) -> Result<(), Violation> {
        let round = record.round;
        if self.committed.last().is_some_and(|last| *last >= round) {
            return Err(Violation::new(format!(
                "round {round} was committed after {:?}",
                self.committed.last()
            )));
        }
        self.committed.insert(round);
        self.kept.insert(round, record.participants.iter().copied().collect());
        self.forget(round)
    }

    /// Compares what was promised in rounds that are long over, and forgets it.
    fn forget(&mut self, round: u32) -> Result<(), Violation> {
        while let Some(entry) = self.kept.first_entry().filter(|entry| *entry.key() + RECENT < round) {
            let (old, counted) = entry.remove_entry();
            let others = |told: &BTreeSet<(DeviceId, u32)>| {
                told.iter().find(|(device, round)| *round == old && !counted.contains(device)).copied()
            };
            if let Some((device, _)) = [&self.told, &self.again, &self.heard].into_iter().find_map(others) {
                return Err(lost(device, old));
            }
            for told in [&mut self.told, &mut self.again, &mut self.heard] {
                told.retain(|(_, round)| *round != old);
            }
            self.digests.retain(|(_, round), _| *round != old);
            self.opened.remove(&old);
        }
        Ok(())
    }

    /// Rounds that are over.
    pub fn rounds(&self) -> usize {
        self.committed.len()
    }

    /// A device's key counts no more; the journal has so many lines.
    pub fn revoked(&mut self, device: DeviceId, lines: u64) {
        self.revoked.entry(device).or_insert(lines);
    }

    /// Devices whose keys count no more.
    pub fn is_revoked(&self, device: DeviceId) -> bool {
        self.revoked.contains_key(&device)
    }

    /// Holds what is durable against what was said. Rounds, and updates that count.
    pub fn verify(&self, plan: &Plan, coordinator: &DurableEngine) -> Result<(usize, usize), Violation> {
        let wrong = |what: String| Err(Violation::new(what));
        let text = coordinator.store().journal(0).map_err(|error| Violation::new(error.to_string()))?;
        let lines: Result<Vec<JournalEntry>, _> =
            text.iter().map(|line| serde_json::from_str(line)).collect();
        let lines = lines.map_err(|error| Violation::new(format!("the journal: {error}")))?;
        let mut counted = BTreeSet::new();
        let mut open: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let (mut rounds, mut last, mut phase) = (Vec::new(), 0, None);
        for (number, line) in (0..).zip(&lines) {
            match line {
                JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted => {
                    if !counted.insert((answer.device, answer.round)) {
                        return wrong(format!(
                            "device {} counted twice in round {}",
                            answer.device, answer.round
                        ));
                    }
                    if self.revoked.get(&answer.device).is_some_and(|revoked| number >= *revoked) {
                        return wrong(format!("device {} counted after its key was revoked", answer.device));
                    }
                    if open.insert(answer.device, answer.round).is_some() {
                        return wrong(format!(
                            "device {} counted under two numbers of round {}",
                            answer.device, answer.round
                        ));
                    }
                }
                JournalEntry::Opened(opened) => {
                    // Where heads are fitted rounds have no end.
                    if opened.continues.is_none() && !open.is_empty() && phase != Some(JournalPhase::Heads) {
                        return wrong(format!(
                            "round {last} had counted {open:?}, and then round {} was opened",
                            opened.round
                        ));
                    }
                    phase = Some(opened.phase);
                    if opened.round <= last {
                        return wrong(format!("round {} was opened after round {last}", opened.round));
                    }
                    match opened.continues {
                        None => open.clear(),
                        Some(before) if before == last => {}
                        Some(before) => {
                            return wrong(format!(
                                "round {} continues round {before}, not {last}",
                                opened.round
                            ));
                        }
                    }
                    last = opened.round;
                }
                JournalEntry::Committed(committed) => {
                    let participants: BTreeSet<DeviceId> = committed.participants.iter().copied().collect();
                    if !participants.iter().eq(open.keys()) || committed.participants.len() != open.len() {
                        return wrong(format!(
                            "round {} was committed with {participants:?} and had counted {open:?}",
                            committed.round
                        ));
                    }
                    rounds.push(Round {
                        number: committed.round,
                        counted: std::mem::take(&mut open),
                        representation: committed.representation.clone(),
                        told: String::new(),
                    });
                }
                _ => {}
            }
        }
        if !self.committed.iter().eq(rounds.iter().map(|round| &round.number)) {
            return wrong(format!(
                "rounds {:?} were committed, and the journal does not say so",
                self.committed
            ));
        }
        let mut kept: Vec<journal::CommittedRound> = Vec::new();
        let past = coordinator.store().read_snapshot().and_then(|past| {
            past.rounds(|line| {
                kept.extend(serde_json::from_str::<journal::CommittedRound>(line).ok());
                true
            })
        });
        past.map_err(|error| Violation::new(error.to_string()))?;
        let same = |(kept, round): (&journal::CommittedRound, &Round)| {
            let participants: BTreeSet<DeviceId> = kept.participants.iter().copied().collect();
            kept.exchange == round.number && participants.iter().eq(round.counted.keys())
        };
        if kept.len() != rounds.len() || !kept.iter().zip(&rounds).all(same) {
            return wrong("what is kept of the rounds is not what the journal says".to_owned());
        }
        for (round, kept) in rounds.iter_mut().zip(kept) {
            round.told = kept.representation;
        }
        for (device, round) in self.told.iter().chain(&self.again).chain(&self.heard) {
            if !counted.contains(&(*device, *round)) {
                return Err(lost(*device, *round));
            }
        }
        for (device, round) in &self.heard {
            if !self.told.contains(&(*device, *round)) && !self.again.contains(&(*device, *round)) {
                return wrong(format!(
                    "device {device} believes that it counts in round {round}; nobody said so"
                ));
            }
        }
        // Updates of noise cannot be made again by devices that know nothing of the noise.
        let same = match plan.is_private {
            true => compare(plan, &rounds, &mut self.updates.clone()),
            false => compare(plan, &rounds, &mut Calm::new(plan)?),
        };
        same?;
        Ok((rounds.len(), counted.len()))
    }
}
