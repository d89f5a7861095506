//! Simulated device: the client's own session with flash that can lose its power in the middle of a write.

use fedspan_client::Event;
use fedspan_client::session::{Config, Counters, Protection};
use fedspan_client::store::FlashStore;
use fedspan_engine::Millis;
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_sim_core::fleet::SimSession;
use fedspan_sim_core::network::JoinTime;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use super::nor_flash::{Nor, PAGE};
use super::plan::{Plan, RECORD};
use super::violation::Violation;

type DeviceSession = SimSession<FlashStore<Nor, RECORD>>;

/// Number of flash pages of each device.
const PAGES: usize = 4;

/// Effects of an event on a device. The world applies them.
#[derive(Debug, Default)]
pub struct DeviceOutput {
    /// Frames to send.
    pub frames: Vec<Vec<u8>>,
    /// Whether the device closes its link.
    pub closes: bool,
    /// World time of the next tick, if the device has asked for one.
    pub wake: Option<Millis>,
    /// Whether the power failed in the middle of a flash write; all other fields are then empty.
    pub lost_power: bool,
    /// Number of acknowledgements of counted updates that the device received during the event.
    pub counted: u32,
}

/// A device that can be switched on and off.
#[derive(Debug)]
pub struct Device {
    id: u64,
    protection: Protection,
    flash: Nor,
    /// Running session; `None` while the device has no power.
    powered: Option<Powered>,
    boots: u64,
    /// Privacy budget spent when the device last sent a frame. The ledger must never be below this value.
    spent: u64,
}

/// State of a device that is lost with its power.
struct Powered {
    session: DeviceSession,
    decoder: Decoder<Vec<u8>>,
    transmit: Vec<u8>,
    /// Offset of the device's clock from the world's clock, in ms.
    clock_offset: Millis,
    is_linked: bool,
}

impl std::fmt::Debug for Powered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Powered")
    }
}

impl Device {
    /// Creates a device that has never been switched on.
    pub fn new(id: u64, protection: Protection) -> Self {
        Self { id, protection, flash: Nor::new(PAGES), powered: None, boots: 0, spent: 0 }
    }

    /// Returns true while the device has power.
    pub fn is_on(&self) -> bool {
        self.powered.is_some()
    }

    /// Returns the privacy budget spent, in the units of the ledger; `None` without power or without privacy.
    pub fn spent(&self) -> Option<u64> {
        use fedspan_protocol::message::Privacy;
        match self.powered.as_ref()?.session.privacy() {
            Privacy::Gaussian { spent, .. } => Some(spent),
            _ => None,
        }
    }

    /// Returns the counters of the running session.
    pub fn counters(&self) -> Option<Counters> {
        self.powered.as_ref().map(|powered| powered.session.counters())
    }

    /// Switches the device on with the current contents of its flash.
    ///
    /// # Errors
    /// If the session cannot start, or its ledger records less than was spent before.
    pub fn boot(&mut self, plan: &Plan, seed: u64, clock_offset: Millis) -> Result<(), Violation> {
        self.flash.0.borrow_mut().power = usize::MAX;
        let capacity = u32::try_from(PAGES * PAGE).unwrap_or(u32::MAX);
        let violation = |problem: String| Violation::new(format!("device {}: {problem}", self.id));
        let store = FlashStore::new(self.flash.clone(), 0..capacity)
            .map_err(|error| violation(format!("{error:?}")))?;
        let index = usize::try_from(self.id).unwrap_or(usize::MAX);
        let client = plan.dataset.clients.get(index).ok_or_else(|| violation("no client".to_owned()))?;
        self.boots += 1;
        let random = ChaCha8Rng::seed_from_u64(seed ^ self.id << 32 ^ self.boots << 48);
        let config = Config { frame_limit: 256, sleep: plan.sleep, ..Config::new(self.id) };
        let session = plan
            .build
            .session_with_store(
                config,
                self.protection.clone(),
                client,
                JoinTime::BeforeTraining,
                store,
                random,
            )
            .map_err(|error| violation(error.to_string()))?;
        let receive = vec![0; usize::from(config.frame_limit)];
        let transmit = vec![0; config.transmit_capacity()];
        self.powered = Some(Powered {
            session,
            decoder: Decoder::new(receive),
            transmit,
            clock_offset,
            is_linked: false,
        });
        let (spent, counters) = (self.spent(), self.counters().unwrap_or_default());
        if spent.is_some_and(|spent| spent < self.spent) || counters.ledger_lost > 0 {
            return Err(violation(format!(
                "its ledger has {spent:?} spent, but it had {} before the restart",
                self.spent
            )));
        }
        Ok(())
    }

    /// Cuts the power.
    pub fn power_off(&mut self) {
        self.powered = None;
    }

    /// Cuts the power after `bytes` more bytes have been written to flash or erased.
    pub fn power_off_after(&mut self, bytes: usize) {
        if self.is_on() {
            self.flash.0.borrow_mut().power = bytes;
        }
    }

    /// Moves the device's clock forward.
    pub fn jump_clock(&mut self, by: Millis) {
        if let Some(powered) = &mut self.powered {
            powered.clock_offset += by;
        }
    }

    /// Reports to the device that its link is up.
    pub fn link_up(&mut self, now: Millis) -> Result<DeviceOutput, Violation> {
        if let Some(powered) = &mut self.powered {
            powered.is_linked = true;
            powered.decoder.reset();
        }
        self.handle_event(now, Event::LinkUp)
    }

    /// Reports to the device that its link is down, or could not be opened.
    pub fn link_down(&mut self, now: Millis) -> Result<DeviceOutput, Violation> {
        if let Some(powered) = &mut self.powered {
            powered.is_linked = false;
        }
        self.handle_event(now, Event::LinkDown)
    }

    /// Returns true while the session has a link.
    pub fn is_linked(&self) -> bool {
        self.powered.as_ref().is_some_and(|powered| powered.is_linked)
    }

    /// Delivers a tick.
    pub fn tick(&mut self, now: Millis) -> Result<DeviceOutput, Violation> {
        self.handle_event(now, Event::Tick)
    }

    /// Returns true while the device computes silently (for privacy) and reads no input.
    pub fn is_quiet(&self, now: Millis) -> bool {
        self.powered.as_ref().is_some_and(|powered| powered.session.is_silent(now + powered.clock_offset))
    }

    /// Delivers received bytes.
    pub fn receive(&mut self, now: Millis, bytes: &[u8]) -> Result<DeviceOutput, Violation> {
        let mut output = DeviceOutput::default();
        let mut input = bytes;
        loop {
            let Some(powered) = &mut self.powered else { return Ok(output) };
            let device_time = now + powered.clock_offset;
            let counters_before = powered.session.counters();
            let progress = match powered.decoder.feed(&mut input) {
                FeedResult::NeedMore => return Ok(output),
                FeedResult::Dropped(_) => continue,
                FeedResult::Message(message) => {
                    powered.session.handle(device_time, Event::Message(message), &mut powered.transmit)
                }
                FeedResult::Sealed(frame) => {
                    powered.session.handle(device_time, Event::Sealed(frame), &mut powered.transmit)
                }
            };
            self.collect_output(now, counters_before, progress, &mut output)?;
            if output.lost_power {
                return Ok(output);
            }
        }
    }

    fn handle_event(&mut self, now: Millis, event: Event<'_>) -> Result<DeviceOutput, Violation> {
        let mut output = DeviceOutput::default();
        let Some(powered) = &mut self.powered else { return Ok(output) };
        let counters_before = powered.session.counters();
        let progress = powered.session.handle(now + powered.clock_offset, event, &mut powered.transmit);
        self.collect_output(now, counters_before, progress, &mut output)?;
        Ok(output)
    }

    /// Repeats ticks until the session has nothing more to do at this time, and collects the effects of all
    /// ticks.
    fn collect_output(
        &mut self,
        now: Millis,
        counters_before: Counters,
        progress: fedspan_client::session::Progress,
        output: &mut DeviceOutput,
    ) -> Result<(), Violation> {
        let mut progress = progress;
        for _ in 0..10_000 {
            let Some(powered) = &mut self.powered else { return Ok(()) };
            // A write that ends exactly at the limit succeeds, and only the next one fails. It counts as a
            // power failure, too.
            if self.flash.0.borrow().power == 0 {
                self.power_off();
                *output = DeviceOutput { lost_power: true, ..DeviceOutput::default() };
                return Ok(());
            }
            if progress.sent > 0 {
                output.frames.push(powered.transmit.get(..progress.sent).unwrap_or_default().to_vec());
            }
            let (clock_offset, counted) = (powered.clock_offset, powered.session.counters().counted);
            let device_time = now + clock_offset;
            output.closes |= progress.close;
            output.wake = Some(Millis::new(
                progress.wake.as_u64().saturating_sub(clock_offset.as_u64()).max(now.as_u64()),
            ));
            output.counted = counted.saturating_sub(counters_before.counted);
            if !progress.again {
                break;
            }
            progress = powered.session.handle(device_time, Event::Tick, &mut powered.transmit);
        }
        if !output.frames.is_empty() {
            let spent = self.spent().unwrap_or(0);
            if spent < self.spent {
                return Err(Violation::new(format!(
                    "device {} has less spent than when it last sent a frame",
                    self.id
                )));
            }
            self.spent = spent;
        }
        Ok(())
    }

    /// Returns the last round that the device has finished.
    pub fn last_round(&self) -> u32 {
        self.powered.as_ref().map_or(0, |powered| powered.session.last_round())
    }
}
