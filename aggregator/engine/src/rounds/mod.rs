//! The round engine: a pure state machine. Events and time go in, actions come out; it never sleeps,
//! reads a clock, draws entropy or touches a socket. The server, the simulator and the tests drive the same
//! one.
//!
//! ```text
//!  Waiting --(fleet is there)--> Start rounds --> Training rounds --> (RidgeScores) --> FitHead --> Finished
//!                                     |                 |                                   |
//!                                     +-- no update can count, and no patience: Failed      +-- all heads are fitted,
//!                                                                                               or the deadline passed
//! ```
//!
//! Within a round: open for the cohort, judge updates as they come, close when the participation rule says
//! so (or at the deadline, or when nobody else can answer, with at least the minimum count), finish the
//! algorithm, commit, open the next.
//!
//! The rules stand in `opening` (which round comes next, and who is asked), `answers` (what an answer leads
//! to, and what is done where answers are wanting) and `closing`; what a restart goes on from in `checkpoint`.

mod campaign;
mod checkpoint;
mod finish;
mod open_round;
mod ridge;
mod start;
mod updates;

use std::cell::Cell;
use std::collections::BTreeMap;

use fedspan_protocol::message::{HeadSolve, Privacy, RoundId};
use fedspan_protocol::tensor::Role;

pub use campaign::{Action, Counters, Event, Failure, NotCounted, Phase, RoundRecord, Settings};
pub use checkpoint::{Checkpoint, Underway, Waits};
pub use open_round::{OpenRound, Opening};
pub use ridge::{ChosenRidge, DEFAULT_RIDGE, GRID, Grid, RidgeScores};

use crate::aggregate::MAGNITUDE_MAX;
use crate::algorithm::Algorithm;
use crate::algorithm::scale::{FleetScale, Scale, ScaleSource, Scaled};
use crate::linalg::Matrix;
use crate::participation::Participation;
use crate::privacy::{Account, Ledger};
use crate::types::{DeviceId, Millis, Request, Tensor};

/// Whether a device can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Connected,
    Gone(Millis),
}

/// One campaign's rounds.
pub struct Engine {
    settings: Settings,
    /// Until its representation has been handed to the algorithm.
    start: Option<Box<dyn Algorithm>>,
    algorithm: Box<dyn Algorithm>,
    participation: Box<dyn Participation>,
    phase: Phase,
    /// Every device that ever joined.
    fleet: BTreeMap<DeviceId, Presence>,
    /// How many of them are connected.
    connected: usize,
    last_id: RoundId,
    /// The last exchange of which each device has sent an update since it connected: it has what came in it.
    answered: BTreeMap<DeviceId, u32>,
    /// What devices were to train in the exchange that was opened last.
    trained: Vec<Role>,
    /// A round has been opened since this engine was made, or after a restart it was waited for everybody in vain.
    opened: bool,
    open: Option<OpenRound>,
    rejected_in_round: u32,
    /// Times in a row that a round was tried again for want of answers, and no answer counted.
    barren: u32,
    /// Rounds in a row of which no model could be made.
    ruins: u32,
    /// When a round is tried again that nobody else can answer: under a new number where nothing counted (it
    /// is not open then), or by those again who declined or were rejected.
    retry_at: Option<Millis>,
    counters: Counters,
    /// The ridge of final heads, where the fleet chooses it.
    ridge: Option<RidgeScores>,
    /// What devices have spent of their privacy budgets.
    ledger: Ledger,
    /// What the round that closed last was called, and the noisy releases in an update for it.
    closed: Option<(Vec<RoundId>, u32)>,
    /// [`Self::next_absence`], where it has been looked up and nothing has happened since that could change it.
    absence: Cell<Option<Option<Millis>>>,
}

/// What an answer of a connected device may change of that on which [`Engine::next_absence`] depends.
#[derive(Clone, Copy, PartialEq)]
struct Waited {
    phase: Phase,
    last_id: RoundId,
    open: bool,
    cohort: usize,
    absent: usize,
}

impl Engine {
    /// A campaign of `algorithm` under `participation`, after `start` if the start needs data. The engine
    /// hands the start's representation to the algorithm by [`Algorithm::restore`].
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
            answered: BTreeMap::new(),
            trained: Vec::new(),
            opened: false,
            open: None,
            rejected_in_round: 0,
            barren: 0,
            ruins: 0,
            retry_at: None,
            counters: Counters::default(),
            ridge: None,
            ledger: Ledger::default(),
            closed: None,
            absence: Cell::new(None),
        }
    }

    /// The same campaign, whose devices have `features` features and scale them. A fleet's scale is found first.
    #[must_use]
    pub fn with_scale(self, source: &ScaleSource, features: usize) -> Self {
        let scale = match source {
            ScaleSource::None => return self,
            ScaleSource::Fleet => Scale::identity(features),
            ScaleSource::Given(scale) => scale.clone(),
        };
        let start: Option<Box<dyn Algorithm>> = match source {
            ScaleSource::Fleet => {
                Some(Box::new(FleetScale::new(features, self.settings.samples.most, self.start)))
            }
            _ => self.start.map(|start| Box::new(Scaled::new(start, scale.clone())) as Box<dyn Algorithm>),
        };
        Self { start, algorithm: Box::new(Scaled::new(self.algorithm, scale)), ..self }
    }

    /// The same with final heads that are fitted so.
    #[must_use]
    pub fn with_final_head(self, final_head: HeadSolve) -> Self {
        Self { settings: Settings { final_head, ..self.settings }, ..self }
    }

    /// The same, with a round after training in which devices score ridges for final heads that are fitted on so many
    /// samples of each class. Without it [`HeadSolve::LeaveOneOut`] keeps the ridge that it has.
    #[must_use]
    pub fn scoring_ridges(self, labels_per_class: Option<u16>) -> Self {
        Self { ridge: labels_per_class.map(RidgeScores::new), ..self }
    }

    /// The same without that round, where scores may not leave a device. A campaign that is resumed behind it keeps its ridge.
    #[must_use]
    pub fn hiding_scores(self) -> Self {
        Self { ridge: self.ridge.map(RidgeScores::unasked), ..self }
    }

    /// Whether devices score ridges for final heads, or have done so.
    fn scores_ridges(&self) -> bool {
        self.ridge.as_ref().is_some_and(|ridge| ridge.asked)
    }

    /// How devices fit their final heads, as far as that is known by now.
    #[must_use]
    pub fn final_head(&self) -> HeadSolve {
        let head = self.settings.final_head;
        self.ridge.as_ref().map_or(head, |ridge| ridge.published(head))
    }

    /// The ridge that the fleet has chosen for final heads, once it has.
    #[must_use]
    pub fn chosen_ridge(&self) -> Option<ChosenRidge> {
        let over = match self.phase {
            Phase::RidgeScores => self.open.is_none(),
            Phase::FitHead | Phase::Finished => true,
            _ => false,
        };
        let HeadSolve::LeaveOneOut { fallback_ridge: otherwise } = self.settings.final_head else {
            return None;
        };
        self.ridge.as_ref().filter(|ridge| over && ridge.asked).map(|ridge| ridge.chosen(otherwise))
    }

    /// Where the campaign is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The representation as it is now, d x k.
    #[must_use]
    pub fn representation(&self) -> &Matrix {
        self.shown().representation()
    }

    /// The scale of the devices' samples, where they have one and it is known.
    #[must_use]
    pub fn scale(&self) -> Option<Scale> {
        self.current().scale()
    }

    /// What devices fit their heads on, as it is now: the representation, or the layers of a network that travel.
    /// Without the scale.
    #[must_use]
    pub fn tensors(&self) -> Vec<Tensor> {
        let tensors = self.shown().fit_request(self.final_head()).tensors;
        tensors.into_iter().filter(|tensor| tensor.role != Role::Scale).collect()
    }

    /// The shared head, where there is one.
    #[must_use]
    pub fn shared_head(&self) -> Option<&Matrix> {
        self.algorithm.shared_head()
    }

    /// Everything that was counted, dropped or declined.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Notes what a device says of its noise, before it joins.
    pub fn heard_privacy(&mut self, device: DeviceId, said: Privacy) {
        self.ledger.heard(device, said);
    }

    /// What devices have spent of their privacy budgets.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Puts a device's account back that was kept over a restart: before what was counted since.
    pub fn restore_account(&mut self, device: DeviceId, account: Account) {
        self.ledger.restore(device, account);
    }

    /// The round that is open.
    #[must_use]
    pub fn open_round(&self) -> Option<&OpenRound> {
        self.open.as_ref()
    }

    /// Devices that ever joined, and how many of them are connected.
    #[must_use]
    pub fn fleet(&self) -> (usize, usize) {
        (self.fleet.len(), self.connected)
    }

    fn is_connected(&self, device: DeviceId) -> bool {
        self.fleet.get(&device) == Some(&Presence::Connected)
    }

    /// Devices that may be asked: connected, or gone for so short that they are expected back.
    fn present(&self, now: Millis) -> Vec<DeviceId> {
        let here = |presence: &Presence| match *presence {
            Presence::Connected => true,
            Presence::Gone(since) => now.saturating_sub(since) < self.settings.absence,
        };
        self.fleet.iter().filter(|(_, presence)| here(presence)).map(|(device, _)| *device).collect()
    }

    /// One request of each kind of round that this campaign may open: what devices must be able to do.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        let start = self.start.as_ref().map(|start| start.requests());
        let train = (self.settings.rounds > 0).then(|| self.algorithm.requests());
        let fit = self.algorithm.fit_request(self.final_head());
        start.into_iter().chain(train).flatten().chain([fit]).collect()
    }

    /// Takes one event and appends what is to be done.
    pub fn handle(&mut self, now: Millis, event: Event, actions: &mut Vec<Action>) {
        let before = match &event {
            Event::Update(device, _) if self.is_connected(*device) => Some(self.waited()),
            _ => None,
        };
        match event {
            Event::Joined(device) => self.joined(now, device, actions),
            Event::Left(device) => {
                if let Some(presence) = self.fleet.get_mut(&device)
                    && *presence == Presence::Connected
                {
                    *presence = Presence::Gone(now);
                    self.connected -= 1;
                    if self.settings.absence == 0 {
                        self.give_up_absent(now, actions);
                    }
                }
            }
            Event::Update(device, update) => self.update(now, device, &update, actions),
            Event::Unread(device, id) => self.unread(device, id, actions),
            Event::Declined(device, decline) => self.declined(now, device, decline, actions),
            Event::Tick => self.tick(now, actions),
            Event::Resumed => self.resumed(now, actions),
        }
        if before != Some(self.waited()) {
            self.absence.set(None);
        }
    }

    fn waited(&self) -> Waited {
        let (cohort, absent) =
            self.open.as_ref().map_or((0, 0), |round| (round.cohort.len(), round.absent.len()));
        Waited { phase: self.phase, last_id: self.last_id, open: self.open.is_some(), cohort, absent }
    }

    /// When a [`Event::Tick`] is due, if nothing else happens.
    #[must_use]
    pub fn wake(&self) -> Option<Millis> {
        let deadline = self.open.as_ref().and_then(|round| round.deadline);
        // It is asked after every event, and a fleet is large.
        let absence = self.absence.get().unwrap_or_else(|| self.next_absence());
        debug_assert_eq!(absence, self.next_absence(), "an absence that was looked up before");
        self.absence.set(Some(absence));
        deadline.into_iter().chain(self.retry_at).chain(absence).min()
    }

    /// When the first of those that the open round waits for has been gone for too long.
    fn next_absence(&self) -> Option<Millis> {
        let round = self.open.as_ref().filter(|_| self.phase != Phase::Finished)?;
        if self.connected == self.fleet.len() {
            return None;
        }
        let gone = self.fleet.iter().filter_map(|(device, presence)| match *presence {
            Presence::Gone(since) if round.awaits(*device) => Some(since),
            _ => None,
        });
        gone.min().map(|since| since.saturating_add(self.settings.absence))
    }

    /// What has the representation: the start, unless it finds none.
    fn shown(&self) -> &dyn Algorithm {
        self.start.as_ref().filter(|start| start.basis().is_some()).unwrap_or(&self.algorithm).as_ref()
    }

    fn current(&self) -> &dyn Algorithm {
        self.start.as_ref().unwrap_or(&self.algorithm).as_ref()
    }
}
