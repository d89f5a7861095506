//! The round engine: a pure state machine. Events and time go in, actions come out; it never sleeps,
//! reads a clock, draws entropy or touches a socket. The server, the simulator and the tests drive the same
//! one.
//!
//! ```text
//!  Waiting --(fleet is there)--> Start rounds --> Training rounds --> FitHead --> Finished
//!                                     |                 |                |
//!                                     +-- no update can count: Failed    +-- all heads are fitted,
//!                                                                            or the deadline passed
//! ```
//!
//! Within a round: open for the cohort, judge updates as they come, close when the participation rule says
//! so (or at the deadline with at least the minimum count), finish the algorithm, commit, open the next.

pub mod participation;
mod round;

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_protocol::message::{Ack, AckOutcome, Decline, DeclineReason, HeadSolve, Rejection, RoundId};

pub use participation::{Cohort, DeviceId, Participation};
pub use round::{OpenRound, Opening, Update};

use crate::aggregate::MAGNITUDE_MAX;
use crate::algorithm::{Algorithm, Request};
use crate::linalg::{Matrix, RankDeficient};

/// Milliseconds on the caller's clock.
pub type Millis = u64;

/// How a campaign is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The first round opens when this many devices have joined.
    pub fleet_size: usize,
    /// Training rounds.
    pub rounds: u32,
    /// How devices fit their head at the end.
    pub final_head: HeadSolve,
    /// A round closes after this long even if answers are missing.
    pub deadline: Option<Millis>,
    /// Fewest answers that a deadline may close a round with; otherwise it is extended.
    pub min_count: usize,
    /// Largest Frobenius norm of an update.
    pub norm_bound: f32,
    /// A device that has been gone for longer is not asked until it is back.
    pub absence: Millis,
}

/// Whether a device can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Connected,
    Gone(Millis),
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A device said hello (again).
    Joined(DeviceId),
    /// A device's connection is gone.
    Left(DeviceId),
    /// A device answered.
    Update(DeviceId, Update),
    /// A device will not answer.
    Declined(DeviceId, Decline),
    /// The wake-up time has come.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open a round on a device.
    Open(DeviceId, Arc<Opening>),
    /// Acknowledge an update.
    Acknowledge(DeviceId, Ack),
    /// Tell a device that a round is over.
    Close(DeviceId, RoundId),
    /// Make a finished round durable before anything that follows is done.
    Commit(Box<RoundRecord>),
    /// All rounds are done and the known devices have fitted their heads.
    Finished,
    /// The campaign cannot go on.
    Failed(Failure),
}

/// Why a campaign cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// Nobody can answer a round.
    #[error("no update could be counted in round {round}; device {device} said: {reason}")]
    NoUpdates {
        /// Which exchange.
        round: u32,
        /// The last device that declined or was rejected.
        device: DeviceId,
        /// What it said.
        reason: DeclineReason,
    },
    /// No representation of full width is left.
    #[error("round {round}: {error}")]
    Representation {
        /// Which exchange.
        round: u32,
        /// The factorisation's own words.
        error: RankDeficient,
    },
}

/// What part of the campaign a round belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Devices are still joining.
    Waiting,
    /// The start learns from data; the exchange number within it, from 1.
    Start(u32),
    /// Training; the round number, from 1.
    Train(u32),
    /// All devices fit their heads on the final representation.
    FitHead,
    /// Done; new devices may still fit theirs.
    Finished,
    /// Stopped.
    Failed,
}

/// A finished round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRecord {
    /// Its identity on the wire.
    pub id: RoundId,
    /// Start or training, and the number within that.
    pub phase: Phase,
    /// Who was asked, ascending.
    pub cohort: Vec<DeviceId>,
    /// Who counted, in order of arrival.
    pub participants: Vec<DeviceId>,
    /// Updates rejected while it was open.
    pub rejected: u32,
    /// When it opened and closed.
    pub opened_at: Millis,
    /// When it closed.
    pub closed_at: Millis,
}

/// Every drop has a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Updates that counted.
    pub counted: u64,
    /// Updates sent again.
    pub duplicate: u64,
    /// Updates for rounds that were over.
    pub late: u64,
    /// From devices that were not asked.
    pub not_asked: u64,
    /// For rounds that do not exist.
    pub wrong_round: u64,
    /// Of other shapes, roles or encodings.
    pub wrong_tensors: u64,
    /// Not finite.
    pub non_finite: u64,
    /// Over the norm bound.
    pub norm_over_bound: u64,
    /// Other content than what counted already.
    pub content_changed: u64,
    /// Without a sample.
    pub no_samples: u64,
    /// Rounds that devices declined.
    pub declined: u64,
    /// Deadlines that were extended for want of answers.
    pub extended: u64,
    /// Samples that devices skipped, as they say.
    pub skipped_samples: u64,
}

impl Counters {
    fn count(&mut self, outcome: AckOutcome) {
        let counter = match outcome {
            AckOutcome::Counted => &mut self.counted,
            AckOutcome::Duplicate => &mut self.duplicate,
            AckOutcome::Late => &mut self.late,
            AckOutcome::Rejected(rejection) => match rejection {
                Rejection::NotAsked => &mut self.not_asked,
                Rejection::WrongRound => &mut self.wrong_round,
                Rejection::NonFinite => &mut self.non_finite,
                Rejection::NormOverBound { .. } => &mut self.norm_over_bound,
                Rejection::ContentChanged => &mut self.content_changed,
                Rejection::NoSamples => &mut self.no_samples,
                _ => &mut self.wrong_tensors,
            },
            _ => &mut self.wrong_tensors,
        };
        *counter += 1;
    }

    /// Updates that were rejected, whatever the reason.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.not_asked
            + self.wrong_round
            + self.wrong_tensors
            + self.non_finite
            + self.norm_over_bound
            + self.content_changed
            + self.no_samples
    }
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
    last_id: RoundId,
    /// A round has been opened since this engine was made.
    opened: bool,
    open: Option<OpenRound>,
    rejected_in_round: u32,
    counters: Counters,
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
            last_id: RoundId::default(),
            opened: false,
            open: None,
            rejected_in_round: 0,
            counters: Counters::default(),
        }
    }

    /// Where the campaign is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The representation as it is now, d x k.
    #[must_use]
    pub fn representation(&self) -> &Matrix {
        self.current().representation()
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

    /// The round that is open.
    #[must_use]
    pub fn open_round(&self) -> Option<&OpenRound> {
        self.open.as_ref()
    }

    /// Devices that ever joined, and how many of them are connected.
    #[must_use]
    pub fn fleet(&self) -> (usize, usize) {
        (self.fleet.len(), self.fleet.values().filter(|device| **device == Presence::Connected).count())
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

    /// The last exchange that was opened, the phase it belongs to, and the state of the algorithm (or of the
    /// start). The state is that after the last commit; what [`Self::resume`] continues after is the
    /// committed round's identity and phase, as its [`RoundRecord`] has them.
    #[must_use]
    pub fn snapshot(&self) -> (RoundId, Phase, Vec<f64>) {
        (self.last_id, self.phase, self.current().state())
    }

    /// Continues after the last committed round ([`Phase::Waiting`]: after none). False, with nothing
    /// changed, if the state does not fit.
    ///
    /// The exchange that was open when the server stopped may have been acknowledged to some devices: it is
    /// repeated under a number that no device has seen. For that to hold after a second restart, too, make
    /// [`Self::snapshot`] durable right after this.
    pub fn resume(&mut self, id: RoundId, phase: Phase, state: &[f64]) -> bool {
        let start_goes_on = match (phase, &self.start) {
            (Phase::Start(_), None) => return false,
            (Phase::Start(done), Some(start)) => done < start.rounds_needed(),
            (Phase::Waiting, start) => start.is_some(),
            _ => false,
        };
        let target = match &mut self.start {
            Some(start) if start_goes_on => start,
            _ => &mut self.algorithm,
        };
        if !target.restore(state) {
            return false;
        }
        if !start_goes_on {
            self.start = None;
        }
        self.last_id = RoundId { round: id.round + 1, ..id };
        self.phase = match phase {
            Phase::FitHead | Phase::Finished => Phase::Train(self.settings.rounds),
            other => other,
        };
        true
    }

    /// One request of each kind of round that this campaign may open: what devices must be able to do.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        let start = self.start.as_ref().map(|start| start.request());
        let train = (self.settings.rounds > 0).then(|| self.algorithm.request());
        let fit = self.algorithm.fit_request(self.settings.final_head);
        start.into_iter().chain(train).chain([fit]).collect()
    }

    /// Takes one event and appends what is to be done.
    pub fn handle(&mut self, now: Millis, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Joined(device) => self.joined(now, device, actions),
            Event::Left(device) => {
                if let Some(presence) = self.fleet.get_mut(&device) {
                    *presence = Presence::Gone(now);
                }
            }
            Event::Update(device, update) => self.update(now, device, &update, actions),
            Event::Declined(device, decline) => self.declined(now, device, decline, actions),
            Event::Tick => self.deadline(now, actions),
        }
    }

    /// When a [`Event::Tick`] is due, if nothing else happens.
    #[must_use]
    pub fn wake(&self) -> Option<Millis> {
        self.open.as_ref().and_then(|round| round.deadline)
    }

    /// Ends training now, because a target was reached: what is open is closed, unfinished, and the final
    /// heads are fitted.
    pub fn finish_training(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Train(_)) {
            return;
        }
        if let Some(round) = self.open.take() {
            self.close_on_devices(&round, actions);
        }
        self.phase = Phase::Train(self.settings.rounds);
        self.next_round(now, actions);
    }

    fn close_on_devices(&self, round: &OpenRound, actions: &mut Vec<Action>) {
        let late = round.cohort.iter().filter(|device| round.awaits(**device) && self.is_connected(**device));
        actions.extend(late.map(|device| Action::Close(*device, round.opening.id)));
    }

    fn current(&self) -> &dyn Algorithm {
        self.start.as_ref().unwrap_or(&self.algorithm).as_ref()
    }

    fn joined(&mut self, now: Millis, device: DeviceId, actions: &mut Vec<Action>) {
        self.fleet.insert(device, Presence::Connected);
        match (&mut self.open, self.phase) {
            // Who has answered is asked again, too: its acknowledgement may have been lost with the
            // connection. It repeats its update, or declines the round as finished.
            (Some(round), Phase::FitHead | Phase::Finished) => {
                round.cohort.insert(device);
                actions.push(Action::Open(device, Arc::clone(&round.opening)));
            }
            (Some(round), _) => {
                if round.cohort.contains(&device) && !round.out.contains(&device) {
                    actions.push(Action::Open(device, Arc::clone(&round.opening)));
                }
            }
            (None, Phase::Failed) => {}
            (None, _) => {
                if self.fleet().1 >= self.needed() {
                    self.next_round(now, actions);
                }
            }
        }
    }

    /// Connected devices with which a round opens where none is open.
    fn needed(&self) -> usize {
        match self.phase {
            // Everyone fits a head alone.
            Phase::Train(done) if done >= self.settings.rounds => 1,
            // Once it runs, a campaign that everybody left goes on with the fewest that make a round.
            _ if self.opened => self.settings.min_count.min(self.settings.fleet_size),
            _ => self.settings.fleet_size,
        }
    }

    /// Asks everybody who is there and was not asked. False if there is nobody.
    fn widen(&mut self, now: Millis, actions: &mut Vec<Action>) -> bool {
        let mut more = self.present(now);
        let Some(round) = &mut self.open else { return false };
        more.retain(|device| round.cohort.insert(*device));
        let opening = Arc::clone(&round.opening);
        for device in more.iter().filter(|device| self.is_connected(**device)) {
            actions.push(Action::Open(*device, Arc::clone(&opening)));
        }
        !more.is_empty()
    }

    /// Opens whatever comes after the last finished round.
    fn next_round(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let fleet = self.present(now);
        if fleet.is_empty() {
            // The next device to join opens the round.
            return;
        }
        self.opened = true;
        let start_needs = self.start.as_ref().map_or(0, |start| start.rounds_needed());
        let next = match self.phase {
            Phase::Waiting if start_needs > 0 => Phase::Start(1),
            Phase::Start(done) if done < start_needs => Phase::Start(done + 1),
            Phase::Train(done) if done < self.settings.rounds => Phase::Train(done + 1),
            Phase::Waiting | Phase::Start(_) if self.settings.rounds > 0 => Phase::Train(1),
            _ => Phase::FitHead,
        };
        if !matches!(next, Phase::Start(_)) {
            self.hand_over();
        }
        self.phase = next;
        let round = self.last_id.round + 1;
        let (cohort, request) = match next {
            Phase::FitHead => {
                let cohort = Cohort { target: usize::MAX, devices: fleet, stage: self.last_id.stage };
                (cohort, self.algorithm.fit_request(self.settings.final_head))
            }
            // A start is computed once, by everyone, whatever the policy.
            Phase::Start(_) => {
                let cohort = Cohort { target: fleet.len(), devices: fleet, stage: 0 };
                (cohort, self.current().request())
            }
            Phase::Train(number) => (self.participation.cohort(number, &fleet), self.current().request()),
            _ => return,
        };
        let id = RoundId { round, stage: cohort.stage };
        self.last_id = id;
        self.rejected_in_round = 0;
        let opening = Arc::new(Opening::new(id, request));
        let open = OpenRound::new(Arc::clone(&opening), cohort, now, self.settings.deadline);
        for device in open.cohort.iter().filter(|device| self.is_connected(**device)) {
            actions.push(Action::Open(*device, Arc::clone(&opening)));
        }
        self.open = Some(open);
    }

    /// The representation of a finished start becomes the algorithm's.
    fn hand_over(&mut self) {
        if let Some(start) = self.start.take() {
            let mut state = self.algorithm.state();
            let basis = start.representation();
            for (place, value) in state.iter_mut().zip(basis.iter()) {
                *place = *value;
            }
            self.algorithm.restore(&state);
        }
    }

    fn update(&mut self, now: Millis, device: DeviceId, update: &Update, actions: &mut Vec<Action>) {
        let outcome = match &mut self.open {
            Some(round) if update.id == round.opening.id => {
                round.judge(device, update, self.settings.norm_bound)
            }
            _ if update.id.round <= self.last_id.round && update.id.round > 0 => AckOutcome::Late,
            _ => AckOutcome::Rejected(Rejection::WrongRound),
        };
        self.counters.count(outcome);
        actions.push(Action::Acknowledge(device, Ack { id: update.id, outcome }));
        match outcome {
            AckOutcome::Counted => {
                self.counters.skipped_samples += u64::from(update.skipped);
                match self.phase {
                    Phase::FitHead | Phase::Finished => {}
                    Phase::Start(_) => {
                        if let Some(start) = &mut self.start {
                            start.absorb(update.samples, &update.tensors);
                        }
                    }
                    _ => self.algorithm.absorb(update.samples, &update.tensors),
                }
            }
            AckOutcome::Rejected(_) => self.rejected_in_round += 1,
            _ => {}
        }
        self.maybe_close(now, device, DeclineReason::UpdateNonFinite, actions);
    }

    fn declined(&mut self, now: Millis, device: DeviceId, decline: Decline, actions: &mut Vec<Action>) {
        self.counters.declined += 1;
        if let Some(round) = &mut self.open
            && round.opening.id == decline.id
            && round.awaits(device)
        {
            round.out.insert(device);
        }
        self.maybe_close(now, device, decline.reason, actions);
    }

    fn maybe_close(&mut self, now: Millis, device: DeviceId, why: DeclineReason, actions: &mut Vec<Action>) {
        let Some(round) = &self.open else { return };
        // After a restart devices come one by one, so that the first could seem to be all.
        let everyone = round.outstanding() == 0 && self.fleet.len() >= self.settings.fleet_size;
        match self.phase {
            Phase::FitHead if everyone => {
                self.phase = Phase::Finished;
                actions.push(Action::Finished);
            }
            Phase::FitHead | Phase::Finished => {}
            _ if round.is_complete() => {
                let round_number = round.opening.id.round;
                if !round.participants.is_empty() {
                    self.close_round(now, actions);
                } else if !self.widen(now, actions) {
                    self.fail(Failure::NoUpdates { round: round_number, device, reason: why }, actions);
                }
            }
            _ => {}
        }
    }

    fn deadline(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(round) = &mut self.open else { return };
        if round.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            Phase::FitHead => {
                round.deadline = None;
                self.phase = Phase::Finished;
                actions.push(Action::Finished);
            }
            Phase::Finished => round.deadline = None,
            _ if round.participants.len() >= self.settings.min_count.max(1) => self.close_round(now, actions),
            _ => {
                round.deadline = self.settings.deadline.map(|limit| now.saturating_add(limit));
                self.counters.extended += 1;
                // Those who were asked may never come back.
                self.widen(now, actions);
            }
        }
    }

    fn close_round(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(round) = self.open.take() else { return };
        let id = round.opening.id;
        self.close_on_devices(&round, actions);
        let finished = match (&mut self.start, self.phase) {
            (Some(start), Phase::Start(_)) => start.finish(),
            _ => self.algorithm.finish(),
        };
        if let Err(error) = finished {
            return self.fail(Failure::Representation { round: id.round, error }, actions);
        }
        // What is committed after the last round of a start is the algorithm's state already, whether or
        // not the next round opens at once.
        if let (Some(start), Phase::Start(done)) = (&self.start, self.phase)
            && done >= start.rounds_needed()
        {
            self.hand_over();
        }
        actions.push(Action::Commit(Box::new(RoundRecord {
            id,
            phase: self.phase,
            cohort: round.cohort.iter().copied().collect(),
            participants: round.participants,
            rejected: self.rejected_in_round,
            opened_at: round.opened_at,
            closed_at: now,
        })));
        self.next_round(now, actions);
    }

    fn fail(&mut self, failure: Failure, actions: &mut Vec<Action>) {
        self.open = None;
        self.phase = Phase::Failed;
        actions.push(Action::Failed(failure));
    }
}
