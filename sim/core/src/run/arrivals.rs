//! Who was asked and when each answers: the order in which the engine hears devices.

use fedspan_engine::{OpenRound, Opening};
use fedspan_protocol::message::RoundId;

use super::times::{Dropouts, Link, Times};
use crate::data::Dataset;
use crate::scenario::Scenario;

/// A round that a device was asked and has not answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Which.
    pub id: RoundId,
    /// When it answers, or is found to have dropped out; infinite if never.
    pub at: f64,
    /// Its place among those of the same time.
    pub place: usize,
    /// It drops out, and has never heard of the round: the server is told of a device that failed or, where rounds have a
    /// deadline, of nothing.
    pub lost: bool,
}

/// What the devices of a fleet were asked and have not been heard on, by device.
pub struct Arrivals {
    times: Times,
    link: Option<Link>,
    dropouts: Dropouts,
    /// Nobody tells the server of a device that drops out.
    silent: bool,
    /// What every round takes besides.
    communication: f64,
    /// Samples of the client that says that it has most.
    largest: u64,
    due: Vec<Option<Asked>>,
}

impl Arrivals {
    /// Nobody has been asked.
    pub fn new(scenario: &Scenario, dataset: &Dataset, seed: u64, frame_limit: u16, times: Times) -> Self {
        let honest = dataset.clients.iter().map(|client| client.train.len() as u64).max().unwrap_or(0);
        let declared = scenario.attack.and_then(|attack| attack.samples).unwrap_or(0);
        Self {
            times,
            link: scenario.fleet.link.map(|link| Link::new(link, seed, frame_limit)),
            dropouts: Dropouts::new(&scenario.fleet, dataset.clients.len(), seed),
            silent: scenario.deadline.is_some(),
            communication: scenario.fleet.communication,
            largest: honest.max(declared.into()),
            due: Vec::new(),
        }
    }

    /// When a device answers that is asked `now`, in a period that is the exchange or what it was extended by. What comes
    /// after training has no period: it takes no time, and nobody drops out of it.
    pub fn foresee(&mut self, index: usize, opening: &Opening, now: f64, period: Option<u32>) -> Asked {
        let id = opening.id;
        let Some(period) = period else { return Asked { id, at: now, place: index, lost: false } };
        let lost = self.dropouts.lost(index, period);
        if lost && self.silent {
            return Asked { id, at: f64::INFINITY, place: index, lost };
        }
        let sending = self.link.as_mut().map_or(0.0, |link| link.time(index, opening));
        Asked {
            id,
            at: now + self.communication + self.times.time(index, id.round, &opening.request.task) + sending,
            place: index,
            lost,
        }
    }

    /// A device has been asked.
    pub fn ask(&mut self, index: usize, asked: Asked) {
        if self.due.len() <= index {
            self.due.resize(index + 1, None);
        }
        if let Some(due) = self.due.get_mut(index) {
            *due = Some(asked);
        }
    }

    /// Nothing is expected of a device any more. False if nothing was.
    pub fn forget(&mut self, index: usize) -> bool {
        self.due.get_mut(index).and_then(Option::take).is_some()
    }

    /// Nothing is expected of anybody any more.
    pub fn forget_all(&mut self) {
        self.due.fill(None);
    }

    /// What a device was asked and has not been heard on.
    pub fn due(&self, index: usize) -> Option<&Asked> {
        self.due.get(index).and_then(Option::as_ref)
    }

    /// Devices that nothing will be heard of, as they have dropped out and nobody tells.
    pub fn silent(&self) -> Vec<usize> {
        let never = |due: &Option<Asked>| due.is_some_and(|asked| asked.lost && asked.at.is_infinite());
        let silent = self.due.iter().enumerate().filter(|(_, due)| never(due));
        silent.map(|(index, _)| index).collect()
    }

    /// Takes those who answer next, by time: of those who ever answer, and `in_time`, as many as the round surely still
    /// waits for, and at least one.
    pub fn next(&mut self, round: Option<&OpenRound>, in_time: impl Fn(f64) -> bool) -> Vec<(usize, Asked)> {
        let asked = self.due.iter().enumerate().filter_map(|(index, due)| Some((index, (*due)?)));
        let mut asked: Vec<(usize, Asked)> =
            asked.filter(|(_, asked)| asked.at.is_finite() && in_time(asked.at)).collect();
        asked.sort_by(|(_, a), (_, b)| a.at.total_cmp(&b.at).then(a.place.cmp(&b.place)));
        let wanted = round.map_or(1, |round| {
            let answers = round.target.saturating_sub(round.participants.len());
            // No fewer than these are enough; whether more are needed shows when they are here.
            let fewest = round.enough.map_or(answers, |enough| {
                let samples = match round.counts_alone() {
                    true => enough.samples.saturating_sub(round.counted_samples) / self.largest.max(1),
                    // One answer may make those before it count more.
                    false => 0,
                };
                let others = enough.answers.saturating_sub(round.participants.len());
                usize::try_from(samples).unwrap_or(usize::MAX).max(others)
            });
            fewest.min(answers)
        });
        asked.truncate(wanted.max(1));
        for (index, _) in &asked {
            self.forget(*index);
        }
        asked
    }
}
