//! The round engine: a pure state machine. Events and time go in, actions come out; it never sleeps,
//! reads a clock, draws entropy or touches a socket. The server, the simulator and the tests drive the same
//! one.
//!
//! ```text
//!  Waiting --(fleet is there)--> Start rounds --> Training rounds --> FitHead --> Finished
//!                                     |                 |                |
//!                                     +-- no update can count, and no patience: Failed    +-- all heads are fitted,
//!                                                                            or the deadline passed
//! ```
//!
//! Within a round: open for the cohort, judge updates as they come, close when the participation rule says
//! so (or at the deadline with at least the minimum count), finish the algorithm, commit, open the next.

mod campaign;
pub mod participation;
mod round;

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_protocol::message::{Ack, AckOutcome, Decline, Rejection, RoundId};

pub use campaign::{Action, Counters, Event, Failure, NotCounted, Phase, RoundRecord, Settings};
pub use participation::{Cohort, DeviceId, Participation};
pub use round::{OpenRound, Opening, Update};

use crate::aggregate::MAGNITUDE_MAX;
use crate::algorithm::{Algorithm, Request};
use crate::linalg::Matrix;

/// Milliseconds on the caller's clock.
pub type Millis = u64;

/// Whether a device can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Connected,
    Gone(Millis),
}

/// Rounds in a row that nobody could answer after which a campaign gives up.
const BARREN_MAX: u32 = 3;

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
    /// A round has been opened since this engine was made.
    opened: bool,
    open: Option<OpenRound>,
    rejected_in_round: u32,
    /// Rounds in a row that nobody could answer.
    barren: u32,
    /// When such a round is repeated.
    repeat_at: Option<Millis>,
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
            connected: 0,
            last_id: RoundId::default(),
            opened: false,
            open: None,
            rejected_in_round: 0,
            barren: 0,
            repeat_at: None,
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
                if let Some(presence) = self.fleet.get_mut(&device)
                    && *presence == Presence::Connected
                {
                    *presence = Presence::Gone(now);
                    self.connected -= 1;
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
        self.open.as_ref().map_or(self.repeat_at, |round| round.deadline)
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
        if self.fleet.insert(device, Presence::Connected) != Some(Presence::Connected) {
            self.connected += 1;
        }
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
            // A round that nobody could answer waits for its time.
            (None, _) if self.repeat_at.is_some() => {}
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
        self.repeat_at = None;
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
        let why = match outcome {
            AckOutcome::Rejected(rejection) => rejection,
            _ => Rejection::WrongRound,
        };
        self.maybe_close(now, device, NotCounted::Rejected(why), actions);
    }

    fn declined(&mut self, now: Millis, device: DeviceId, decline: Decline, actions: &mut Vec<Action>) {
        self.counters.declined += 1;
        if let Some(round) = &mut self.open
            && round.opening.id == decline.id
            && round.awaits(device)
        {
            round.out.insert(device);
        }
        self.maybe_close(now, device, NotCounted::Declined(decline.reason), actions);
    }

    fn maybe_close(&mut self, now: Millis, device: DeviceId, why: NotCounted, actions: &mut Vec<Action>) {
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
                    self.barren += 1;
                    if let Some(patience) = self.settings.patience {
                        self.repeat_at = Some(now.saturating_add(patience));
                        self.step_back();
                    } else if self.barren < BARREN_MAX {
                        self.repeat(now, actions);
                    } else {
                        self.fail(Failure::NoUpdates { round: round_number, device, reason: why }, actions);
                    }
                }
            }
            _ => {}
        }
    }

    /// Opens the round that nobody could answer once more, under a new number: a device that declined
    /// because it had lost an acknowledgement can answer that.
    fn repeat(&mut self, now: Millis, actions: &mut Vec<Action>) {
        self.step_back();
        self.next_round(now, actions);
    }

    /// Gives up the open round; what opens next is the same again.
    fn step_back(&mut self) {
        self.open = None;
        self.counters.repeated += 1;
        self.phase = match self.phase {
            Phase::Start(number) => Phase::Start(number - 1),
            Phase::Train(number) => Phase::Train(number - 1),
            other => other,
        };
    }

    fn deadline(&mut self, now: Millis, actions: &mut Vec<Action>) {
        if self.repeat_at.is_some_and(|at| now >= at) {
            self.next_round(now, actions);
            return;
        }
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
        self.barren = 0;
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
