//! Who was asked and when each answers: the order in which the engine hears devices.

use fedspan_aggregator::engine::{OpenRound, Opening};
use fedspan_protocol::message::RoundId;

use super::times::{Link, Times, drops_out};
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
    /// It drops out: the server is told of a device that failed, and the device has never heard of the round.
    pub lost: bool,
}

/// What the devices of a fleet were asked and have not been heard on, by device.
pub struct Arrivals {
    times: Times,
    link: Option<Link>,
    dropout: f64,
    /// What every round takes besides.
    communication: f64,
    seed: u64,
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
            dropout: scenario.fleet.dropout,
            communication: scenario.fleet.communication,
            seed,
            largest: honest.max(declared.into()),
            due: Vec::new(),
        }
    }

    /// When a device answers that is asked `now`. What comes after training (it no longer `trains`) takes no time, and
    /// nobody drops out of it.
    pub fn foresee(&mut self, index: usize, opening: &Opening, now: f64, trains: bool) -> Asked {
        let id = opening.id;
        if !trains {
            return Asked { id, at: now, place: index, lost: false };
        }
        let sending = self.link.as_mut().map_or(0.0, |link| link.time(index, opening));
        Asked {
            id,
            at: now + self.communication + self.times.time(index, id.round, &opening.request.task) + sending,
            place: index,
            lost: drops_out(self.dropout, self.seed, index, id.round),
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

    /// Takes those who answer next, by time: of those who ever answer as many as the round surely still waits for, and
    /// at least one.
    pub fn next(&mut self, round: Option<&OpenRound>) -> Vec<(usize, Asked)> {
        let asked = self.due.iter().enumerate().filter_map(|(index, due)| Some((index, (*due)?)));
        let mut asked: Vec<(usize, Asked)> = asked.filter(|(_, asked)| asked.at.is_finite()).collect();
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
