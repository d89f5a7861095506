//! Queue of expected answers. Each device that was asked for an update has a virtual time at which its answer
//! arrives; these times order the events of the engine.

use fedspan_engine::{OpenRound, RoundBroadcast};
use fedspan_protocol::message::RoundId;

use super::energy_meter::EnergyMeter;
use super::expected_answers::ExpectedAnswers;
use super::times::{Availability, Dropouts, Link, Times, Transmission};
use crate::data::Dataset;
use crate::scenario::Scenario;

/// Answer that is expected from a device in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PendingAnswer {
    /// Round to which the device answers.
    pub id: RoundId,
    /// Time at which the answer arrives or the dropout is detected; infinite if neither happens.
    pub at: f64,
    /// Rank among answers that arrive at the same time.
    pub rank: usize,
    /// True if the device drops out without receiving the round. The server is notified of a failed device,
    /// or, if rounds have a deadline, receives no answer.
    pub dropped_out: bool,
}

/// Expected answers of all devices.
pub struct ArrivalQueue {
    times: Times,
    link: Option<Link>,
    /// Energy of the devices; `None` if the scenario does not ask for it.
    pub energy: Option<EnergyMeter>,
    dropouts: Dropouts,
    availability: Availability,
    /// True if the server is not notified of dropouts and relies on the deadline of the round.
    dropouts_are_silent: bool,
    /// Communication time that is added to the answer time in every round.
    communication: f64,
    /// Largest number of samples that a client declares.
    max_samples: u64,
    expected: ExpectedAnswers,
}

impl ArrivalQueue {
    /// Creates an empty queue.
    pub fn new(scenario: &Scenario, dataset: &Dataset, seed: u64, frame_limit: u16, times: Times) -> Self {
        let honest = dataset.clients.iter().map(|client| client.train.len() as u64).max().unwrap_or(0);
        let declared = scenario.attack.and_then(|attack| attack.samples).unwrap_or(0);
        Self {
            times,
            link: scenario.fleet.link.map(|link| Link::new(link, seed, frame_limit)),
            energy: EnergyMeter::new(scenario, dataset),
            dropouts: Dropouts::new(&scenario.fleet, dataset.clients.len(), seed),
            availability: Availability::new(&scenario.fleet, dataset.clients.len(), seed),
            dropouts_are_silent: scenario.deadline.is_some(),
            communication: scenario.fleet.communication,
            max_samples: honest.max(declared.into()),
            expected: ExpectedAnswers::default(),
        }
    }

    /// Computes the answer of a device that is asked at `now`. `period` counts rounds and their extensions;
    /// it is `None` after training, when answers take no time and devices do not drop out.
    pub fn schedule(
        &mut self,
        index: usize,
        opening: &RoundBroadcast,
        now: f64,
        period: Option<u32>,
    ) -> PendingAnswer {
        let id = opening.id;
        let Some(period) = period else {
            return PendingAnswer { id, at: now, rank: index, dropped_out: false };
        };
        let dropped_out = self.dropouts.drops_out(index, period);
        if dropped_out && self.dropouts_are_silent {
            return PendingAnswer { id, at: f64::INFINITY, rank: index, dropped_out };
        }
        let transmission =
            self.link.as_mut().map_or_else(Transmission::default, |link| link.transmission(index, opening));
        if let Some(energy) = self.energy.as_mut().filter(|_| !dropped_out) {
            energy.add_round(index, &opening.request.task, &transmission);
        }
        PendingAnswer {
            id,
            at: self.availability.next(index, now)
                + self.communication
                + self.times.time(index, id.round, &opening.request.task)
                + transmission.time,
            rank: index,
            dropped_out,
        }
    }

    /// Adds the expected answer of a device.
    pub fn insert(&mut self, index: usize, pending_answer: PendingAnswer) {
        self.expected.insert(index, pending_answer);
    }

    /// Removes the expected answer of a device. Returns false if no answer was expected.
    pub fn remove(&mut self, index: usize) -> bool {
        self.expected.remove(index)
    }

    /// Removes all expected answers.
    pub fn clear(&mut self) {
        self.expected.clear();
    }

    /// Expected answer of a device.
    pub fn pending(&self, index: usize) -> Option<&PendingAnswer> {
        self.expected.get(index)
    }

    /// Devices that dropped out without a notification of the server.
    pub fn silent_devices(&self) -> Vec<usize> {
        self.expected.silent()
    }

    /// Removes and returns the next answers in the order of their times. Returns as many of the answers
    /// accepted by `in_time` as the round certainly still needs, and at least one. `in_time` must refuse every answer that comes after a
    /// refused one.
    pub fn next(
        &mut self,
        round: Option<&OpenRound>,
        in_time: impl Fn(&PendingAnswer) -> bool,
    ) -> Vec<(usize, PendingAnswer)> {
        let needed = round.map_or(1, |round| {
            let answers = round.target.saturating_sub(round.participants.len());
            // Lower bound on the number of answers that are still needed. Further answers are requested after
            // these answers have been processed.
            let fewest = round.sample_target.map_or(answers, |sample_target| {
                let samples = match round.has_absolute_cap() {
                    true => {
                        sample_target.samples.saturating_sub(round.counted_samples) / self.max_samples.max(1)
                    }
                    // A later answer may raise the weight of earlier answers, so samples give no lower bound.
                    false => 0,
                };
                let missing_answers = sample_target.answers.saturating_sub(round.participants.len());
                usize::try_from(samples).unwrap_or(usize::MAX).max(missing_answers)
            });
            fewest.min(answers)
        });
        self.expected.take(needed.max(1), in_time)
    }
}
