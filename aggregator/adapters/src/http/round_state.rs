//! State machine of the adapter server's rounds: the open round, the admission of updates, and the time at
//! which the round closes.
//!
//! The state machine has no clock, files or sockets. A participation policy of `fedspan-engine` chooses the
//! clients of each round. The engine of that crate is not used, for three reasons: it stores updates as
//! tensors in memory, its `finish` cannot report a lack of disk space, and after a restart it repeats the
//! open round under a new number. In this server updates are files, which a restart keeps.

use std::collections::{BTreeMap, BTreeSet};

use super::LoraMethod;
use super::client_registry::ClientIndex;
use crate::files::RoundKind;
use fedspan_engine::{DeviceId, Millis, Participation};

/// Number of samples and digest of an update. Updates with equal summaries are treated as the same update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateSummary {
    /// Number of samples that the client trained with. An update with 0 samples has no weight in the mean.
    pub samples: u32,
    /// SHA-256 of the request body.
    pub digest: [u8; 32],
}

/// Accepted updates of one round, by client.
pub type AcceptedUpdates = BTreeMap<ClientIndex, UpdateSummary>;

/// Settings of the rounds, which are fixed while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundRules {
    /// Schedule of trained factors.
    pub method: LoraMethod,
    /// Number of rounds.
    pub rounds: u32,
    /// Time after the opening of a round at which the round closes with at least `minimum` updates. `None` if
    /// a round waits for its target.
    pub deadline: Option<Millis>,
    /// Smallest number of updates with which a round closes at its deadline.
    pub minimum: usize,
}

/// Round that accepts updates, or whose mean is being computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRound {
    /// Round number, counted from 1.
    pub number: u32,
    /// Factors that clients train.
    pub kind: RoundKind,
    /// Clients that are asked for an update.
    pub cohort: BTreeSet<ClientIndex>,
    /// Number of updates that completes the round.
    pub target: usize,
    /// Updates accepted so far.
    pub updates: AcceptedUpdates,
    /// Time from which on the round closes with fewer updates than its target; `None` without a deadline.
    pub deadline: Option<Millis>,
    /// True while the mean is computed; the round then accepts no updates.
    closing: bool,
}

/// Decision about an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The round accepts the update if the file is valid.
    Accepted(RoundKind),
    /// The same update was accepted before.
    Duplicate,
    /// The round has accepted an update of this client. The digest of the body will show whether the new one
    /// is a duplicate.
    NeedsDigest,
    /// The round does not accept the update.
    Refused(Refusal),
}

/// Reason why a round does not accept an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The round has closed.
    #[error("round {round} is closed")]
    Closed {
        /// Round of the update.
        round: u32,
    },
    /// The round has not opened, or does not exist.
    #[error("round {round} is not open")]
    NotOpen {
        /// Round of the update.
        round: u32,
    },
    /// The client is not in the round's cohort.
    #[error("this client is not asked for an update in round {round}")]
    NotAsked {
        /// Round of the update.
        round: u32,
    },
    /// The round has accepted an update of this client with another body or number of samples.
    #[error("another update of this client was accepted in round {round}")]
    DifferentUpdate {
        /// Round of the update.
        round: u32,
    },
}

/// State machine of all rounds.
pub struct RoundState {
    rules: RoundRules,
    policy: Box<dyn Participation>,
    clients: usize,
    /// Number of committed rounds.
    committed: u32,
    /// Updates of the last committed round, which are needed to answer retries.
    last_updates: AcceptedUpdates,
    open: Option<OpenRound>,
}

impl RoundState {
    /// Creates the state after `committed` rounds, the last of which accepted the updates `last_updates`.
    /// [`Self::open`] must be called next.
    #[must_use]
    pub fn new(
        rules: RoundRules,
        policy: Box<dyn Participation>,
        clients: usize,
        committed: u32,
        last_updates: AcceptedUpdates,
    ) -> Self {
        Self { rules, policy, clients, committed, last_updates, open: None }
    }

    /// Opens the next round, unless all rounds are committed. `pending` contains the updates of that round
    /// that were accepted before a restart.
    pub fn open(&mut self, now: Millis, pending: AcceptedUpdates) {
        if self.committed >= self.rules.rounds {
            return;
        }
        let number = self.committed + 1;
        let fleet: Vec<DeviceId> = (0..self.clients).map(|client| DeviceId(client as u64)).collect();
        let cohort = self.policy.cohort(number, &fleet);
        let invited = cohort
            .devices
            .iter()
            .filter_map(|device| usize::try_from(device.0).ok())
            .map(ClientIndex)
            .collect();
        self.open = Some(OpenRound {
            number,
            kind: self.rules.method.round_kind(number),
            cohort: invited,
            target: cohort.target.max(1),
            updates: pending,
            deadline: self.rules.deadline.map(|duration| now + duration),
            closing: false,
        });
    }

    /// Round that is open, or whose mean is being computed. `None` after the last round.
    #[must_use]
    pub fn current(&self) -> Option<&OpenRound> {
        self.open.as_ref()
    }

    /// Number of committed rounds.
    #[must_use]
    pub fn committed(&self) -> u32 {
        self.committed
    }

    /// Settings of the rounds.
    #[must_use]
    pub fn rules(&self) -> &RoundRules {
        &self.rules
    }

    /// Decides whether an update for `round` is accepted. `update` is `None` before the body has been read.
    #[must_use]
    pub fn admit(&self, client: ClientIndex, round: u32, update: Option<&UpdateSummary>) -> Admission {
        let previous = |updates: &AcceptedUpdates| {
            updates.get(&client).map(|accepted| match update {
                None => Admission::NeedsDigest,
                Some(update) if update == accepted => Admission::Duplicate,
                Some(_) => Admission::Refused(Refusal::DifferentUpdate { round }),
            })
        };
        if round == self.committed && round > 0 {
            return previous(&self.last_updates).unwrap_or(Admission::Refused(Refusal::Closed { round }));
        }
        if round <= self.committed {
            let refusal = if round == 0 { Refusal::NotOpen { round } } else { Refusal::Closed { round } };
            return Admission::Refused(refusal);
        }
        match &self.open {
            Some(open) if open.number == round => previous(&open.updates).unwrap_or(match () {
                () if open.closing || self.is_complete(open) => Admission::Refused(Refusal::Closed { round }),
                () if !open.cohort.contains(&client) => Admission::Refused(Refusal::NotAsked { round }),
                () => Admission::Accepted(open.kind),
            }),
            _ => Admission::Refused(Refusal::NotOpen { round }),
        }
    }

    /// Adds an update that [`Self::admit`] has accepted and that is synced to disk.
    pub fn accept(&mut self, client: ClientIndex, update: UpdateSummary) {
        if let Some(open) = &mut self.open {
            open.updates.insert(client, update);
        }
    }

    /// True if the round has as many updates as its target.
    fn is_complete(&self, open: &OpenRound) -> bool {
        open.updates.len() >= open.target
    }

    /// True if the open round has reached its target, or its deadline has passed with at least `minimum`
    /// updates.
    #[must_use]
    pub fn is_due(&self, now: Millis) -> bool {
        self.open.as_ref().filter(|open| !open.closing).is_some_and(|open| {
            let is_late = open.deadline.is_some_and(|deadline| now >= deadline);
            self.is_complete(open) || is_late && open.updates.len() >= self.rules.minimum.max(1)
        })
    }

    /// Closes the open round if it is due. Returns the round with the updates to average.
    pub fn close(&mut self, now: Millis) -> Option<OpenRound> {
        if !self.is_due(now) {
            return None;
        }
        let open = self.open.as_mut()?;
        open.closing = true;
        Some(open.clone())
    }

    /// Opens a closed round again, without the updates of some clients, which may then send them again. The deadline
    /// starts again.
    pub fn reopen(&mut self, now: Millis, without: &[ClientIndex]) {
        if let Some(open) = &mut self.open {
            open.closing = false;
            open.updates.retain(|client, _| !without.contains(client));
            open.deadline = self.rules.deadline.map(|duration| now + duration);
        }
    }

    /// Time at which [`Self::close`] should be called if no update arrives before. `None` if the round cannot
    /// become due without an update.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        let open = self.open.as_ref().filter(|open| !open.closing)?;
        open.deadline.filter(|_| open.updates.len() >= self.rules.minimum.max(1))
    }

    /// Commits the closed round, whose mean is synced to disk, and opens the next one.
    pub fn commit(&mut self, now: Millis) {
        if let Some(open) = self.open.take() {
            self.committed = open.number;
            self.last_updates = open.updates;
            self.open(now, AcceptedUpdates::new());
        }
    }
}
