//! The rounds of an exchange: a state machine without clock, files or sockets. Who is asked is a participation policy's
//! matter, the engine's own ones.
//!
//! The engine itself is not used: its updates are tensors in memory, its `finish` cannot fail for want of space, and after a
//! restart it repeats the open round under a new number, where the updates of this one are files and stay.

use std::collections::{BTreeMap, BTreeSet};

use super::LoraMethod;
use crate::files::RoundKind;
use fedspan_engine::{DeviceId, Millis, Participation};

/// Which client: its place among the names.
pub type ClientIndex = usize;

/// An update that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateSummary {
    /// Number of samples that it was trained with; without any it has no weight in the mean.
    pub samples: u32,
    /// SHA-256 of what the client sent.
    pub digest: [u8; 32],
}

/// Updates of one round.
pub type AcceptedUpdates = BTreeMap<ClientIndex, UpdateSummary>;

/// What is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundRules {
    /// How factors are trained.
    pub method: LoraMethod,
    /// How many rounds.
    pub rounds: u32,
    /// How long a round waits for more than the least number of updates; without it, for all.
    pub deadline: Option<Millis>,
    /// That number.
    pub minimum: usize,
}

/// The round that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRound {
    /// From 1 on.
    pub number: u32,
    /// What it trains.
    pub kind: RoundKind,
    /// Who is asked.
    pub cohort: BTreeSet<ClientIndex>,
    /// How many updates close it.
    pub target: usize,
    /// What counts by now.
    pub updates: AcceptedUpdates,
    /// When fewer do.
    pub deadline: Option<Millis>,
    /// No more are taken: the mean is being made.
    closing: bool,
}

/// What becomes of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is welcome, if it is sound.
    Accepted(RoundKind),
    /// It has been counted before.
    Duplicate,
    /// This client has one in this round; what it sends now has to be compared with it.
    NeedsDigest,
    /// It is not.
    Refused(Refusal),
}

/// Why an update is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its round is over.
    #[error("round {round} is closed")]
    Closed {
        /// Which.
        round: u32,
    },
    /// Its round has not begun, or never will.
    #[error("round {round} is not open")]
    NotOpen {
        /// Which.
        round: u32,
    },
    /// Somebody else was drawn.
    #[error("this client is not asked in round {round}")]
    NotAsked {
        /// Which round.
        round: u32,
    },
    /// A client counts once a round.
    #[error("another update of this client counts in round {round}")]
    DifferentUpdate {
        /// Which round.
        round: u32,
    },
}

/// All rounds.
pub struct RoundState {
    rules: RoundRules,
    policy: Box<dyn Participation>,
    clients: usize,
    /// Rounds that are committed.
    committed: u32,
    /// The updates of the last one: who asks again has an answer.
    last: AcceptedUpdates,
    open: Option<OpenRound>,
}

impl RoundState {
    /// After `done` rounds, the last of which counted `last`; [`Self::open`] it.
    #[must_use]
    pub fn new(
        rules: RoundRules,
        policy: Box<dyn Participation>,
        clients: usize,
        committed: u32,
        last: AcceptedUpdates,
    ) -> Self {
        Self { rules, policy, clients, committed, last, open: None }
    }

    /// Opens the next round, if there is one. `kept` are updates of it that a restart has found.
    pub fn open(&mut self, now: Millis, kept: AcceptedUpdates) {
        if self.committed >= self.rules.rounds {
            return;
        }
        let number = self.committed + 1;
        let fleet: Vec<DeviceId> = (0..self.clients).map(|client| client as DeviceId).collect();
        let cohort = self.policy.cohort(number, &fleet);
        let invited = cohort.devices.iter().filter_map(|device| usize::try_from(*device).ok()).collect();
        self.open = Some(OpenRound {
            number,
            kind: self.rules.method.round_kind(number),
            cohort: invited,
            target: cohort.target.max(1),
            updates: kept,
            deadline: self.rules.deadline.map(|patience| now.saturating_add(patience)),
            closing: false,
        });
    }

    /// The round that is open, or whose mean is being made.
    #[must_use]
    pub fn current(&self) -> Option<&OpenRound> {
        self.open.as_ref()
    }

    /// Rounds that are committed.
    #[must_use]
    pub fn committed(&self) -> u32 {
        self.committed
    }

    /// What is fixed.
    #[must_use]
    pub fn rules(&self) -> &RoundRules {
        &self.rules
    }

    /// What becomes of an update of `round`; without `update`, before it has been read.
    #[must_use]
    pub fn admit(&self, client: ClientIndex, round: u32, update: Option<&UpdateSummary>) -> Admission {
        let known = |updates: &AcceptedUpdates| {
            updates.get(&client).map(|counted| match update {
                None => Admission::NeedsDigest,
                Some(update) if update == counted => Admission::Duplicate,
                Some(_) => Admission::Refused(Refusal::DifferentUpdate { round }),
            })
        };
        if round == self.committed && round > 0 {
            return known(&self.last).unwrap_or(Admission::Refused(Refusal::Closed { round }));
        }
        if round <= self.committed {
            let refusal = if round == 0 { Refusal::NotOpen { round } } else { Refusal::Closed { round } };
            return Admission::Refused(refusal);
        }
        match &self.open {
            Some(open) if open.number == round => known(&open.updates).unwrap_or(match () {
                () if open.closing || self.is_complete(open) => Admission::Refused(Refusal::Closed { round }),
                () if !open.cohort.contains(&client) => Admission::Refused(Refusal::NotAsked { round }),
                () => Admission::Accepted(open.kind),
            }),
            _ => Admission::Refused(Refusal::NotOpen { round }),
        }
    }

    /// Counts an update that [`Self::admit`] has called welcome, and that is safe on disk.
    pub fn count(&mut self, client: ClientIndex, update: UpdateSummary) {
        if let Some(open) = &mut self.open {
            open.updates.insert(client, update);
        }
    }

    fn is_complete(&self, open: &OpenRound) -> bool {
        open.updates.len() >= open.target
    }

    /// Whether it is time to close the round.
    #[must_use]
    pub fn is_due(&self, now: Millis) -> bool {
        self.open.as_ref().filter(|open| !open.closing).is_some_and(|open| {
            let late = open.deadline.is_some_and(|deadline| now >= deadline);
            self.is_complete(open) || late && open.updates.len() >= self.rules.minimum.max(1)
        })
    }

    /// Closes the round if it is time: its updates are what the mean is made of.
    pub fn close(&mut self, now: Millis) -> Option<OpenRound> {
        if !self.is_due(now) {
            return None;
        }
        let open = self.open.as_mut()?;
        open.closing = true;
        Some(open.clone())
    }

    /// When [`Self::close`] is to be tried again, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        let open = self.open.as_ref().filter(|open| !open.closing)?;
        open.deadline.filter(|_| open.updates.len() >= self.rules.minimum.max(1))
    }

    /// The mean of the closed round is safe: the next one opens.
    pub fn commit(&mut self, now: Millis) {
        if let Some(open) = self.open.take() {
            self.committed = open.number;
            self.last = open.updates;
            self.open(now, AcceptedUpdates::new());
        }
    }
}
