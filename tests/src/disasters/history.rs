//! History of everything that the server has promised and devices have received, to be checked against the
//! durable state.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_aggregator::durable_engine::DurableEngine;
use fedspan_aggregator::journal::{self, Committed, JournalEntry, JournalPhase, Outcome};
use fedspan_engine::{DeviceId, RoundBroadcast, Update};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::{Ack, AckOutcome, RoundId};

use super::plan::Plan;
use super::reference::{FaultFreeDevices, Round, compare};
use super::violation::Violation;

/// Number of later commits after which a round is checked for the last time and dropped.
const RECENT: u32 = 16;

fn lost_update_violation(device: DeviceId, round: u32) -> Violation {
    Violation::new(format!("device {device} was acknowledged in round {round}, but its update is lost"))
}

/// All messages observed since the start of the world.
#[derive(Debug, Default)]
pub struct History {
    /// Id of each round by number, and CRC of the tensors sent with it.
    opened: BTreeMap<u32, (RoundId, u32)>,
    /// Updates that the server acknowledged as counted.
    acked: BTreeSet<(DeviceId, u32)>,
    /// Updates that the server acknowledged as duplicates of counted ones.
    acked_again: BTreeSet<(DeviceId, u32)>,
    /// Acknowledgements that devices have received.
    observed: BTreeSet<(DeviceId, u32)>,
    /// Committed rounds.
    committed: BTreeSet<u32>,
    /// CRC of each device's first update for each round.
    digests: BTreeMap<(DeviceId, u32), u32>,
    /// With privacy, each device's first update for each round; it cannot be reproduced because of its noise.
    updates: BTreeMap<(DeviceId, u32), Update>,
    /// Participants of each committed round that has not been dropped.
    participants: BTreeMap<u32, BTreeSet<DeviceId>>,
    /// Revoked devices, with the journal length at the revocation.
    revoked: BTreeMap<DeviceId, u64>,
}

impl History {
    /// Records that a round was sent to a device. A round number must always have the same id and tensors.
    pub fn record_opening(&mut self, opening: &RoundBroadcast) -> Result<(), Violation> {
        let values = opening.request.tensors.iter().flat_map(|tensor| &tensor.values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        let current = (opening.id, crc32c(&bytes));
        let known = *self.opened.entry(opening.id.round).or_insert(current);
        if known == current {
            return Ok(());
        }
        Err(Violation::new(format!("round {} was opened as {known:?} and as {current:?}", opening.id.round)))
    }

    /// Records an update that the server received. All updates of a device for a round must be equal.
    pub fn record_update(
        &mut self,
        device: DeviceId,
        update: Update,
        is_private: bool,
    ) -> Result<(), Violation> {
        let values = update.tensors.iter().flat_map(|tensor| &tensor.values);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        let (key, digest) = ((device, update.id.round), crc32c(&bytes));
        if *self.digests.entry(key).or_insert(digest) != digest {
            return Err(Violation::new(format!(
                "device {device} sent two different updates for round {}",
                key.1
            )));
        }
        if is_private {
            self.updates.entry(key).or_insert(update);
        }
        Ok(())
    }

    /// Records the server's answer to an update. Only the first answer may be `Counted`.
    pub fn record_ack(&mut self, device: DeviceId, ack: Ack) -> Result<(), Violation> {
        let key = (device, ack.id.round);
        match ack.outcome {
            AckOutcome::Counted if !self.acked.insert(key) => Err(Violation::new(format!(
                "device {device} was acknowledged twice with Counted in round {}",
                key.1
            ))),
            AckOutcome::Duplicate => {
                self.acked_again.insert(key);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records that a device received the acknowledgement of a counted update.
    pub fn record_observed_ack(&mut self, device: DeviceId, round: u32) {
        self.observed.insert((device, round));
    }

    /// Records a commit. Round numbers must increase.
    pub fn record_commit(&mut self, record: &Committed) -> Result<(), Violation> {
        let round = record.round;
        if self.committed.last().is_some_and(|last| *last >= round) {
            return Err(Violation::new(format!(
                "round {round} was committed after {:?}",
                self.committed.last()
            )));
        }
        self.committed.insert(round);
        self.participants.insert(round, record.participants.iter().copied().collect());
        self.check_old_rounds(round)
    }

    /// Checks the acknowledgements of rounds that are more than [`RECENT`] behind, then drops their records.
    fn check_old_rounds(&mut self, round: u32) -> Result<(), Violation> {
        while let Some(entry) = self.participants.first_entry().filter(|entry| *entry.key() + RECENT < round)
        {
            let (old_round, counted) = entry.remove_entry();
            let find_lost = |acks: &BTreeSet<(DeviceId, u32)>| {
                acks.iter().find(|(device, round)| *round == old_round && !counted.contains(device)).copied()
            };
            if let Some((device, _)) =
                [&self.acked, &self.acked_again, &self.observed].into_iter().find_map(find_lost)
            {
                return Err(lost_update_violation(device, old_round));
            }
            for acks in [&mut self.acked, &mut self.acked_again, &mut self.observed] {
                acks.retain(|(_, round)| *round != old_round);
            }
            self.digests.retain(|(_, round), _| *round != old_round);
            self.opened.remove(&old_round);
        }
        Ok(())
    }

    /// Returns the number of committed rounds.
    pub fn rounds(&self) -> usize {
        self.committed.len()
    }

    /// Records that a device's key was revoked when the journal had `lines` entries.
    pub fn record_revocation(&mut self, device: DeviceId, lines: u64) {
        self.revoked.entry(device).or_insert(lines);
    }

    /// Returns true if the device's key was revoked.
    pub fn is_revoked(&self, device: DeviceId) -> bool {
        self.revoked.contains_key(&device)
    }

    /// Checks the journal and the stored rounds against the records, and recomputes every round in a run
    /// without faults. Returns the number of rounds and of counted updates.
    pub fn verify(&self, plan: &Plan, coordinator: &DurableEngine) -> Result<(usize, usize), Violation> {
        let violation = |problem: String| Err(Violation::new(problem));
        let text = coordinator.store().journal(0).map_err(|error| Violation::new(error.to_string()))?;
        let lines: Result<Vec<JournalEntry>, _> =
            text.iter().map(|line| serde_json::from_str(line)).collect();
        let lines = lines.map_err(|error| Violation::new(format!("the journal: {error}")))?;
        let mut counted = BTreeSet::new();
        let mut open: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let mut rounds = Vec::new();
        // Number and phase of the round that was opened last.
        let mut last_opened = 0;
        let mut phase = None;
        for (number, line) in (0..).zip(&lines) {
            match line {
                JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted => {
                    if !counted.insert((answer.device, answer.round)) {
                        return violation(format!(
                            "device {} counted twice in round {}",
                            answer.device, answer.round
                        ));
                    }
                    if self.revoked.get(&answer.device).is_some_and(|revoked| number >= *revoked) {
                        return violation(format!(
                            "device {} counted after its key was revoked",
                            answer.device
                        ));
                    }
                    if open.insert(answer.device, answer.round).is_some() {
                        return violation(format!(
                            "device {} counted under two numbers of round {}",
                            answer.device, answer.round
                        ));
                    }
                }
                JournalEntry::Opened(opened) => {
                    // Rounds that fit heads end without a commit.
                    if opened.continues.is_none() && !open.is_empty() && phase != Some(JournalPhase::Heads) {
                        return violation(format!(
                            "round {last_opened} had counted {open:?}, and then round {} was opened",
                            opened.round
                        ));
                    }
                    phase = Some(opened.phase);
                    if opened.round <= last_opened {
                        return violation(format!(
                            "round {} was opened after round {last_opened}",
                            opened.round
                        ));
                    }
                    match opened.continues {
                        None => open.clear(),
                        Some(continued) if continued == last_opened => {}
                        Some(continued) => {
                            return violation(format!(
                                "round {} continues round {continued}, not {last_opened}",
                                opened.round
                            ));
                        }
                    }
                    last_opened = opened.round;
                }
                JournalEntry::Committed(committed) => {
                    let participants: BTreeSet<DeviceId> = committed.participants.iter().copied().collect();
                    if !participants.iter().eq(open.keys()) || committed.participants.len() != open.len() {
                        return violation(format!(
                            "round {} was committed with {participants:?} and had counted {open:?}",
                            committed.round
                        ));
                    }
                    rounds.push(Round {
                        number: committed.round,
                        counted: std::mem::take(&mut open),
                        representation: committed.representation.clone(),
                        sha256: String::new(),
                    });
                }
                _ => {}
            }
        }
        if !self.committed.iter().eq(rounds.iter().map(|round| &round.number)) {
            return violation(format!(
                "rounds {:?} were committed, but the journal has other commits",
                self.committed
            ));
        }
        let mut stored: Vec<journal::CommittedRound> = Vec::new();
        let read = coordinator.store().read_snapshot().and_then(|snapshot| {
            snapshot.rounds(|line| {
                stored.extend(serde_json::from_str::<journal::CommittedRound>(line).ok());
                true
            })
        });
        read.map_err(|error| Violation::new(error.to_string()))?;
        let is_same = |(stored, round): (&journal::CommittedRound, &Round)| {
            let participants: BTreeSet<DeviceId> = stored.participants.iter().copied().collect();
            stored.exchange == round.number && participants.iter().eq(round.counted.keys())
        };
        if stored.len() != rounds.len() || !stored.iter().zip(&rounds).all(is_same) {
            return violation("the stored rounds differ from the journal".to_owned());
        }
        for (round, stored) in rounds.iter_mut().zip(stored) {
            round.sha256 = stored.representation;
        }
        for (device, round) in self.acked.iter().chain(&self.acked_again).chain(&self.observed) {
            if !counted.contains(&(*device, *round)) {
                return Err(lost_update_violation(*device, *round));
            }
        }
        for (device, round) in &self.observed {
            if !self.acked.contains(&(*device, *round)) && !self.acked_again.contains(&(*device, *round)) {
                return violation(format!(
                    "device {device} received an acknowledgement for round {round} that the server never sent"
                ));
            }
        }
        // Updates with noise cannot be recomputed, so the recorded ones are used.
        let comparison = match plan.is_private {
            true => compare(plan, &rounds, &mut self.updates.clone()),
            false => compare(plan, &rounds, &mut FaultFreeDevices::new(plan)?),
        };
        comparison?;
        Ok((rounds.len(), counted.len()))
    }
}
