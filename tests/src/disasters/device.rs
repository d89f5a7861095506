//! A device: the client's own session over flash that loses its power in the middle of anything.

use fedspan_client::session::{Config, Counters, Protection};
use fedspan_client::store::FlashStore;
use fedspan_client::{Event, Session};
use fedspan_protocol::frame::{Decoder, Fed};
use fedspan_sim_core::data::ClientSource;
use fedspan_sim_core::fleet::SimTask;
use fedspan_sim_core::network::Joins;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::Millis;
use super::history::Violation;
use super::nor::{Nor, PAGE};
use super::plan::{Plan, RECORD};

type Own = Session<SimTask, ClientSource, FlashStore<Nor, RECORD>, ChaCha8Rng>;

/// Pages of a device's flash.
const PAGES: usize = 4;

/// What a device does besides changing: bytes for its link, and when it wants to be woken.
#[derive(Debug, Default)]
pub struct Said {
    /// Frames.
    pub frames: Vec<Vec<u8>>,
    /// It closes its link.
    pub closes: bool,
    /// When it is to be woken.
    pub wake: Option<Millis>,
    /// The power has gone in the middle of a write: nothing else of this happened.
    pub died: bool,
    /// Rounds that it was told to count in.
    pub counted: u32,
}

/// One device.
#[derive(Debug)]
pub struct Device {
    id: u64,
    protection: Protection,
    flash: Nor,
    /// None while it has no power.
    running: Option<Running>,
    boots: u64,
    /// What it had spent when something last left it.
    spent: u64,
}

struct Running {
    session: Own,
    decoder: Decoder<Vec<u8>>,
    transmit: Vec<u8>,
    /// Its clock is ahead of the world's by this.
    ahead: Millis,
    is_linked: bool,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl Device {
    /// One that has never been switched on.
    pub fn new(id: u64, protection: Protection) -> Self {
        Self { id, protection, flash: Nor::new(PAGES), running: None, boots: 0, spent: 0 }
    }

    /// Whether it has power.
    pub fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// What it has spent of its privacy budget.
    pub fn spent(&self) -> Option<u64> {
        use fedspan_protocol::message::Privacy;
        match self.running.as_ref()?.session.privacy() {
            Privacy::Gaussian { spent, .. } => Some(spent),
            _ => None,
        }
    }

    /// What it says of itself.
    pub fn counters(&self) -> Option<Counters> {
        self.running.as_ref().map(|running| running.session.counters())
    }

    /// It is switched on, with what its flash holds.
    pub fn boot(&mut self, plan: &Plan, seed: u64, ahead: Millis) -> Result<(), Violation> {
        self.flash.0.borrow_mut().power = usize::MAX;
        let end = u32::try_from(PAGES * PAGE).unwrap_or(u32::MAX);
        let wrong = |what: String| Violation::new(format!("device {}: {what}", self.id));
        let store =
            FlashStore::new(self.flash.clone(), 0..end).map_err(|error| wrong(format!("{error:?}")))?;
        let index = usize::try_from(self.id).unwrap_or(usize::MAX);
        let client = plan.dataset.clients.get(index).ok_or_else(|| wrong("no client".to_owned()))?;
        self.boots += 1;
        let random = ChaCha8Rng::seed_from_u64(seed ^ self.id << 32 ^ self.boots << 48);
        let config = Config { frame_limit: 256, ..Config::new(self.id) };
        let session = plan
            .build
            .session_over(config, self.protection.clone(), client, Joins::First, store, random)
            .map_err(|error| wrong(error.to_string()))?;
        let receive = vec![0; usize::from(config.frame_limit)];
        let transmit = vec![0; config.transmit_capacity()];
        self.running =
            Some(Running { session, decoder: Decoder::new(receive), transmit, ahead, is_linked: false });
        let (spent, counters) = (self.spent(), self.counters().unwrap_or_default());
        if spent.is_some_and(|spent| spent < self.spent) || counters.ledger_lost > 0 {
            return Err(wrong(format!("its ledger says {spent:?} after it had said {}", self.spent)));
        }
        Ok(())
    }

    /// Its power goes.
    pub fn die(&mut self) {
        self.running = None;
    }

    /// Its power goes after so many bytes more are written to its flash, or erased.
    pub fn die_after(&mut self, bytes: usize) {
        if self.is_on() {
            self.flash.0.borrow_mut().power = bytes;
        }
    }

    /// Its clock jumps.
    pub fn jump(&mut self, by: Millis) {
        if let Some(running) = &mut self.running {
            running.ahead += by;
        }
    }

    /// Its link stands.
    pub fn link_up(&mut self, now: Millis) -> Result<Said, Violation> {
        if let Some(running) = &mut self.running {
            running.is_linked = true;
            running.decoder.reset();
        }
        self.event(now, Event::LinkUp)
    }

    /// Its link is gone, or could not be made.
    pub fn link_down(&mut self, now: Millis) -> Result<Said, Violation> {
        if let Some(running) = &mut self.running {
            running.is_linked = false;
        }
        self.event(now, Event::LinkDown)
    }

    /// Whether it has a link.
    pub fn is_linked(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.is_linked)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Millis) -> Result<Said, Violation> {
        self.event(now, Event::Tick)
    }

    /// It computes in private, and reads nothing.
    pub fn is_quiet(&self, now: Millis) -> bool {
        self.running.as_ref().is_some_and(|running| running.session.is_quiet(now + running.ahead))
    }

    /// Bytes have come.
    pub fn hear(&mut self, now: Millis, bytes: &[u8]) -> Result<Said, Violation> {
        let mut said = Said::default();
        let mut input = bytes;
        loop {
            let Some(running) = &mut self.running else { return Ok(said) };
            let own = now + running.ahead;
            let before = running.session.counters();
            let progress = match running.decoder.feed(&mut input) {
                Fed::NeedMore => return Ok(said),
                Fed::Dropped(_) => continue,
                Fed::Message(message) => {
                    running.session.handle(own, Event::Message(message), &mut running.transmit)
                }
                Fed::Sealed(frame) => {
                    running.session.handle(own, Event::Sealed(frame), &mut running.transmit)
                }
            };
            self.follow(now, before, progress, &mut said)?;
            if said.died {
                return Ok(said);
            }
        }
    }

    fn event(&mut self, now: Millis, event: Event<'_>) -> Result<Said, Violation> {
        let mut said = Said::default();
        let Some(running) = &mut self.running else { return Ok(said) };
        let before = running.session.counters();
        let progress = running.session.handle(now + running.ahead, event, &mut running.transmit);
        self.follow(now, before, progress, &mut said)?;
        Ok(said)
    }

    /// What follows from an event at once.
    fn follow(
        &mut self,
        now: Millis,
        before: Counters,
        progress: fedspan_client::session::Progress,
        said: &mut Said,
    ) -> Result<(), Violation> {
        let mut progress = progress;
        for _ in 0..10_000 {
            let Some(running) = &mut self.running else { return Ok(()) };
            // Not exhausted to the last byte: the write after that fails.
            if self.flash.0.borrow().power == 0 {
                self.die();
                *said = Said { died: true, ..Said::default() };
                return Ok(());
            }
            if progress.sent > 0 {
                said.frames.push(running.transmit.get(..progress.sent).unwrap_or_default().to_vec());
            }
            let (ahead, counted) = (running.ahead, running.session.counters().counted);
            let own = now + ahead;
            said.closes |= progress.close;
            said.wake = Some(progress.wake.saturating_sub(ahead).max(now));
            said.counted = counted.saturating_sub(before.counted);
            if !progress.again {
                break;
            }
            progress = running.session.handle(own, Event::Tick, &mut running.transmit);
        }
        if !said.frames.is_empty() {
            let spent = self.spent().unwrap_or(0);
            if spent < self.spent {
                return Err(Violation::new(format!("device {} has spent less than before", self.id)));
            }
            self.spent = spent;
        }
        Ok(())
    }

    /// The last round that it has finished.
    pub fn last_round(&self) -> u32 {
        self.running.as_ref().map_or(0, |running| running.session.last_round())
    }
}
