//! Round engine: a pure state machine that takes events and the time and returns actions.
//!
//! ```text
//! Waiting --> Start rounds --> Training rounds --> (RidgeScores) --> FitHead --> Finished
//!                  |                |
//!                  +----------------+--> Failed
//! ```
//!
//! The start rounds compute the initial representation, and the scale of the samples if the fleet determines
//! it. The campaign leaves `Waiting` when the fleet is complete, and `FitHead` when all heads are fitted or
//! the deadline has passed. It fails if a round cannot get enough updates and is not retried.
//!
//! In each round the engine opens the round for the cohort, validates updates as they arrive, and closes the
//! round when the target of the participation policy is met. With fewer updates, but at least the minimum
//! count, it closes the round at the deadline or when every invited device has answered. It then computes the
//! next model, commits the round, and opens the next round.
//!
//! `updates` handles events and decides whether an update counts; `start` decides which round opens next and
//! which devices are invited; `finish` ends rounds; `open_round` is the state of one round; `patience`
//! counts missed deadlines; `checkpoint` saves and restores the state of a server, `snapshot` that of a simulation; `effects` contains the actions and records that result from events.

mod broadcast;
mod campaign;
mod checkpoint;
mod effects;
mod finish;
mod open_round;
mod patience;
mod rehearsal;
mod ridge;
mod saved_state;
mod snapshot;
mod start;
mod updates;

use std::cell::Cell;
use std::collections::BTreeMap;

use fedspan_protocol::message::{HeadSolve, Privacy, RoundId};
use fedspan_protocol::tensor::Role;

pub use broadcast::{RoundBroadcast, SharedFrame};
pub use campaign::{Action, Counters, Event, Failure, NotCounted, Phase, RoundRecord, Settings};
pub use effects::{CountedUpdate, Effects, MissedDeadlines, Record, RecordedEffects, RoundOpening};
pub use open_round::{OpenRound, RoundSizes};
pub use rehearsal::Rehearsal;
pub use ridge::{ChosenRidge, DEFAULT_RIDGE, GRID, Grid, RidgeScores};
pub use saved_state::{Checkpoint, DeadlineState, OpenRoundCheckpoint};
pub use snapshot::{NotExtended, Snapshot};

use self::patience::Patience;
use crate::aggregate::MAGNITUDE_MAX;
use crate::algorithm::scale::{FleetScale, Scale, ScaleSource, Scaled};
use crate::algorithm::{Algorithm, ChosenPrior, HeadPrior};
use crate::linalg::Matrix;
use crate::participation::Participation;
use crate::privacy::{Account, Ledger};
use crate::types::{DeviceId, Millis, Request, Tensor};

/// Connection state of a device: connected, disconnected since a time, or removed until it joins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Connected,
    Disconnected(Millis),
    Removed,
}

/// State machine of one campaign.
pub struct Engine {
    settings: Settings,
    /// Algorithm of the start rounds; `None` after its representation has been handed to `algorithm`.
    start: Option<Box<dyn Algorithm>>,
    algorithm: Box<dyn Algorithm>,
    participation: Box<dyn Participation>,
    phase: Phase,
    /// Every device that has ever joined.
    fleet: BTreeMap<DeviceId, Presence>,
    /// Number of connected devices.
    connected: usize,
    last_id: RoundId,
    /// Number of the round of the last update that each device has sent since it connected. The device still
    /// has the tensors of that round.
    last_answered: BTreeMap<DeviceId, u32>,
    /// Roles of the tensors that devices train in the last opened round.
    trained_roles: Vec<Role>,
    /// The same for the round before.
    trained_roles_before: Vec<Role>,
    /// Whether a round has opened since the engine was created or restored. True also if the wait for all
    /// devices after a restart has timed out.
    has_opened: bool,
    open: Option<OpenRound>,
    /// Number of updates rejected since the last round opened.
    rejected_in_round: u32,
    /// Number of attempts in a row without a new counted update.
    failed_attempts: u32,
    /// Number of rank-deficient rounds in a row.
    rank_deficient_rounds: u32,
    /// Time at which the next round may open, if one has opened and rounds have a shortest interval
    /// ([`Settings::every`]); `None` from this time on.
    opens_at: Option<Millis>,
    /// Time at which a round with too few updates is retried. If no round is open, the round is opened under
    /// a new id; otherwise the devices that declined or were rejected are invited again.
    retry_at: Option<Millis>,
    counters: Counters,
    /// Ridge scores for the final heads, if the fleet chooses the ridge.
    ridge: Option<RidgeScores>,
    /// Privacy spending of the devices.
    ledger: Ledger,
    /// Deadlines that devices have missed.
    patience: Patience,
    /// All ids of the last closed round, and the number of noisy releases in an update for that round.
    closed: Option<(Vec<RoundId>, u32)>,
    /// Sizes of the last closed training round.
    last_sizes: Option<RoundSizes>,
    /// Cached result of [`Self::next_absence`]; `None` after a change that could affect the result.
    next_absence_cache: Cell<Option<Option<Millis>>>,
}

impl Engine {
    /// Creates a campaign of `algorithm` under the policy `participation`. The campaign begins with `start`,
    /// if the initial representation is computed from data. The engine hands the start's representation to
    /// the algorithm by [`Algorithm::restore`].
    #[must_use]
    pub fn new(
        settings: Settings,
        start: Option<Box<dyn Algorithm>>,
        algorithm: Box<dyn Algorithm>,
        participation: Box<dyn Participation>,
    ) -> Self {
        let settings = Settings { norm_bound: settings.norm_bound.min(MAGNITUDE_MAX), ..settings };
        Self {
            settings,
            start,
            algorithm,
            participation,
            phase: Phase::Waiting,
            fleet: BTreeMap::new(),
            connected: 0,
            last_id: RoundId::default(),
            last_answered: BTreeMap::new(),
            trained_roles: Vec::new(),
            trained_roles_before: Vec::new(),
            has_opened: false,
            open: None,
            rejected_in_round: 0,
            failed_attempts: 0,
            rank_deficient_rounds: 0,
            opens_at: None,
            retry_at: None,
            counters: Counters::default(),
            ridge: None,
            ledger: Ledger::default(),
            patience: Patience::new(settings.patience.filter(|_| settings.deadline.is_some())),
            closed: None,
            last_sizes: None,
            next_absence_cache: Cell::new(None),
        }
    }

    /// Adds a scale of the devices' samples, which have `features` features. The scale of the fleet is
    /// computed in a first stage, before the start.
    #[must_use]
    pub fn with_scale(self, source: &ScaleSource, features: usize) -> Self {
        let scale = match source {
            ScaleSource::None => return self,
            ScaleSource::Fleet => Scale::identity(features),
            ScaleSource::Given(scale) => scale.clone(),
        };
        let start: Option<Box<dyn Algorithm>> = match source {
            ScaleSource::Fleet => {
                Some(Box::new(FleetScale::new(features, self.settings.samples.max_samples, self.start)))
            }
            ScaleSource::None | ScaleSource::Given(_) => {
                self.start.map(|start| Box::new(Scaled::new(start, scale.clone())) as Box<dyn Algorithm>)
            }
        };
        Self { start, algorithm: Box::new(Scaled::new(self.algorithm, scale)), ..self }
    }

    /// Replaces the head solver of the final heads.
    #[must_use]
    pub fn with_final_head(self, final_head: HeadSolve) -> Self {
        Self { settings: Settings { final_head, ..self.settings }, ..self }
    }

    /// Adds a round after training in which devices score ridges for final heads fitted on `labels_per_class`
    /// samples of each class. Without this round (`None`), [`HeadSolve::LeaveOneOut`] keeps its configured
    /// ridge.
    #[must_use]
    pub fn with_ridge_scores(self, labels_per_class: Option<u16>) -> Self {
        Self { ridge: labels_per_class.map(RidgeScores::new), ..self }
    }

    /// Omits the round of ridge scores, for campaigns in which devices must not send scores. A campaign that
    /// is restored after the round keeps the scores.
    #[must_use]
    pub fn without_ridge_scores(self) -> Self {
        Self { ridge: self.ridge.map(RidgeScores::without_asking), ..self }
    }

    /// Whether the campaign has a round of ridge scores, or had one before a restart.
    fn scores_ridges(&self) -> bool {
        self.ridge.as_ref().is_some_and(|ridge| ridge.is_requested)
    }

    /// Head solver of the final heads. It contains the ridge chosen by the fleet, as soon as that ridge is
    /// known.
    #[must_use]
    pub fn final_head(&self) -> HeadSolve {
        let head = self.settings.final_head;
        self.ridge.as_ref().map_or(head, |ridge| ridge.published(head))
    }

    /// Prior of heads that the fleet has chosen; `None` before that, and for an algorithm without one.
    #[must_use]
    pub fn chosen_prior(&self) -> Option<ChosenPrior> {
        self.algorithm.chosen_prior()
    }

    /// Matrices of the prior of heads that the fleet has chosen, for samples in its scale; `None` as for [`Self::chosen_prior`].
    #[must_use]
    pub fn head_prior(&self) -> Option<HeadPrior> {
        self.algorithm.head_prior()
    }

    /// Ridge that the fleet has chosen for the final heads; `None` before the round of ridge scores has
    /// closed.
    #[must_use]
    pub fn chosen_ridge(&self) -> Option<ChosenRidge> {
        let is_chosen = match self.phase {
            Phase::RidgeScores => self.open.is_none(),
            Phase::FitHead | Phase::Finished => true,
            Phase::Waiting | Phase::Start(_) | Phase::Train(_) | Phase::Failed => false,
        };
        let HeadSolve::LeaveOneOut { fallback_ridge } = self.settings.final_head else {
            return None;
        };
        self.ridge
            .as_ref()
            .filter(|ridge| is_chosen && ridge.is_requested)
            .map(|ridge| ridge.chosen(fallback_ridge))
    }

    /// Current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Current representation, d x k.
    #[must_use]
    pub fn representation(&self) -> &Matrix {
        self.displayed().representation()
    }

    /// Scale of the devices' samples, if the campaign has a scale and it is known.
    #[must_use]
    pub fn scale(&self) -> Option<Scale> {
        self.current().scale()
    }

    /// Tensors on which devices fit their heads: the representation, or the shared layers of a network. The
    /// scale is not included.
    #[must_use]
    pub fn tensors(&self) -> Vec<Tensor> {
        let tensors = self.displayed().fit_request(self.final_head()).tensors;
        tensors.into_iter().filter(|tensor| !matches!(tensor.role, Role::Scale | Role::HeadPrior)).collect()
    }

    /// Round in which a device that joins would fit its head if training ended now. `None` during the start, or if the
    /// round cannot be sent.
    #[must_use]
    pub fn fit_broadcast(&self) -> Option<RoundBroadcast> {
        let request = self.start.is_none().then(|| self.algorithm.fit_request(self.final_head()))?;
        RoundBroadcast::new(self.last_id, request).ok()
    }

    /// Shared head, if the algorithm has one.
    #[must_use]
    pub fn shared_head(&self) -> Option<&Matrix> {
        self.algorithm.shared_head()
    }

    /// Counters since this engine was created; a restart resets them.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sizes of the last training round that was closed since the engine was created.
    #[must_use]
    pub fn last_sizes(&self) -> Option<RoundSizes> {
        self.last_sizes
    }

    /// Records the privacy parameters of a device's hello. Must be called before [`Event::Joined`] is
    /// handled.
    pub fn record_privacy(&mut self, device: DeviceId, reported: Privacy, effects: &mut impl Effects) {
        if let Some(account) = self.ledger.record_hello(device, reported)
            && effects.keeps_records()
        {
            effects.record(Record::Account(device, account));
        }
    }

    /// Privacy spending of the devices.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Restores the privacy account of a device after a restart. Must be called before updates are replayed.
    pub fn restore_account(&mut self, device: DeviceId, account: Account) {
        self.ledger.restore(device, account);
    }

    /// The open round, if one is open.
    #[must_use]
    pub fn open_round(&self) -> Option<&OpenRound> {
        self.open.as_ref()
    }

    /// Number of devices that have ever joined, and number of connected devices.
    #[must_use]
    pub fn fleet(&self) -> (usize, usize) {
        (self.fleet.len(), self.connected)
    }

    fn is_connected(&self, device: DeviceId) -> bool {
        self.fleet.get(&device) == Some(&Presence::Connected)
    }

    /// Devices that may be invited: connected, or disconnected for less than [`Settings::absence`].
    fn present(&self, now: Millis) -> Vec<DeviceId> {
        let is_present = |presence: &Presence| match *presence {
            Presence::Connected => true,
            Presence::Disconnected(since) => now - since < self.settings.absence,
            Presence::Removed => false,
        };
        self.fleet.iter().filter(|(_, presence)| is_present(presence)).map(|(device, _)| *device).collect()
    }

    /// Returns one request for each kind of round that this campaign may open. The required capabilities of
    /// devices follow from these.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        let start = self.start.as_ref().map(|start| start.requests());
        let train = (self.settings.rounds > 0).then(|| self.algorithm.requests());
        let fit = self.algorithm.fit_request(self.final_head());
        start.into_iter().chain(train).flatten().chain([fit]).collect()
    }

    /// Time at which an [`Event::Tick`] is due if no other event comes first.
    #[must_use]
    pub fn wake(&self) -> Option<Millis> {
        let deadline = self.open.as_ref().and_then(|round| round.deadline);
        // The result is cached, since this is called after every event and the fleet may be large.
        let absence = self.next_absence_cache.get().unwrap_or_else(|| self.next_absence());
        debug_assert_eq!(absence, self.next_absence(), "cached absence is stale");
        self.next_absence_cache.set(Some(absence));
        let opening = self.opens_at.filter(|_| self.open.is_none());
        deadline.into_iter().chain(self.retry_at).chain(absence).chain(opening).min()
    }

    /// Earliest time at which a device that may still answer the open round will count as absent.
    fn next_absence(&self) -> Option<Millis> {
        let round = self.open.as_ref().filter(|_| self.phase != Phase::Finished)?;
        if self.connected == self.fleet.len() {
            return None;
        }
        let disconnection_times = self.fleet.iter().filter_map(|(device, presence)| match *presence {
            Presence::Disconnected(since) if round.may_answer(*device) => Some(since),
            _ => None,
        });
        disconnection_times.min().map(|since| since + self.settings.absence)
    }

    /// Algorithm whose representation is current: the start if it is running and computes a representation,
    /// otherwise the training algorithm.
    fn displayed(&self) -> &dyn Algorithm {
        self.start.as_ref().filter(|start| start.basis().is_some()).unwrap_or(&self.algorithm).as_ref()
    }

    /// Algorithm of the present round: the start if it is running, otherwise the training algorithm.
    fn current(&self) -> &dyn Algorithm {
        self.start.as_ref().unwrap_or(&self.algorithm).as_ref()
    }
}
