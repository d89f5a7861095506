//! Client of a real board: takes part in campaigns over a serial line, and reconnects when a connection ends.

use core::ops::Range;

use chacha20::ChaCha8Rng;
use embassy_time::{Duration, Instant, Timer};
use embedded_io_async::{Read, Write};
use embedded_storage::nor_flash::NorFlash;
use fedspan_client::Millis;
use fedspan_client::link::{Buffers, Driver, Step};
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::pace::Paced;
use fedspan_client::session::{Config, Sampling};
use fedspan_client::source::NoRecording;
use fedspan_client::store::{FlashStore, record_len};
use fedspan_client::{Linear, Session};
use rand_core::SeedableRng;

pub use fedspan_client::firmware;
pub use fedspan_client::session::About;

use crate::identity::{PLAINTEXT, StartError, identity};
use crate::line::Line;
use crate::sensor::{C, D, K, SAMPLES, Sensor};
use crate::unique::SEED;
use crate::watchdog::{Guard, Watched};

/// Session settings; the device number is filled in from the provisioning record, and the facts for reports by the board.
const CONFIG: Config =
    Config { sampling: Sampling::Stream { samples: SAMPLES }, receives_keys: true, ..Config::new(0) };

/// Largest length of a frame in bytes. A driver's receive buffer needs at least this length, because the core
/// does not read while it computes a round or writes to flash.
pub const FRAME: usize = CONFIG.frame_limit as usize;

/// Length of a record in bytes, rounded up to flash words, which have at most eight bytes on these boards.
const RECORD: usize = record_len(K, C).next_multiple_of(8);

/// Warning that a bench build prints at its start. A server treats the text as one invalid frame, because its
/// first zero ends an earlier incomplete frame and its last zero ends the text.
const NOTICE: &str =
    "\0fedspan: PLAINTEXT, for the bench: anyone with access to this line can read and change messages\r\n\0";

/// Interval at which a device that cannot join repeats the reason.
const REPEAT: Duration = Duration::from_secs(5);

/// Addresses in a board's flash, as its flash driver counts them.
#[derive(Clone, Debug)]
pub struct FlashLayout {
    /// Address of the page with the provisioning record.
    pub provision: u32,
    /// Address range of the session's store: the record and the handshake counter.
    pub record: Range<u32>,
}

#[cfg(target_os = "none")]
impl FlashLayout {
    /// Returns the addresses in the board's `memory.x`.
    #[must_use]
    pub fn of_memory_map() -> Self {
        Self { provision: fedspan_memory_map::provision(), record: fedspan_memory_map::record() }
    }
}

/// Complete device: model, session, sensor, store, and buffers for one frame in each direction.
pub struct Client<'a, F: NorFlash, W> {
    device: Result<Device<'a, F>, StartError>,
    guard: &'a Guard<'a, W>,
    notice: bool,
    receive: [u8; FRAME],
    transmit: [u8; CONFIG.transmit_capacity()],
}

/// Session and sensor of a device that has an identity and usable flash.
struct Device<'a, F: NorFlash> {
    session: Session<
        Linear<Paced<'a, StreamingWorkspace<D, K, C>>>,
        NoRecording,
        FlashStore<F, RECORD>,
        ChaCha8Rng,
    >,
    sensor: Sensor,
}

impl<'a, F: NorFlash, W: Fn()> Client<'a, F, W> {
    /// Creates the client of the device named in the provisioning record, and restores its stored record.
    /// `seed` determines handshake nonces and random reconnect delays. A repeated seed does not repeat the
    /// keys, because handshakes are numbered in flash. `number` is the device's number in a bench build. The
    /// device reports `about` to its server, with its counters. `guard` feeds the watchdog.
    ///
    /// If the device has no key or no usable flash, it does not join, and [`take_part`](Self::take_part)
    /// reports the reason.
    pub fn new(
        mut flash: F,
        layout: FlashLayout,
        number: u64,
        seed: [u8; SEED],
        about: About,
        guard: &'a Guard<'a, W>,
    ) -> Self {
        let device = identity(&mut flash, layout.provision, number).and_then(|(device, protection)| {
            let store = FlashStore::new(flash, layout.record).map_err(|_| StartError::Pages)?;
            let model = Linear::new(Paced::new(StreamingWorkspace::new(), guard.pacer()));
            let config = Config { device, about: Some(about), ..CONFIG };
            let random = ChaCha8Rng::from_seed(seed);
            let session = Session::new(config, protection, model, NoRecording, store, random);
            Ok(Device { session, sensor: Sensor::new(device) })
        });
        Self {
            device,
            guard,
            notice: PLAINTEXT,
            receive: [0; FRAME],
            transmit: [0; CONFIG.transmit_capacity()],
        }
    }

    /// Runs the session over a newly opened link until the link is lost, then waits until the next connection
    /// is due. A device that cannot join instead writes the reason, as text for a terminal on the port.
    pub async fn take_part<IO: Read + Write>(&mut self, io: &mut IO) {
        let guard = self.guard;
        guard.expect_bytes();
        guard.watch(self.serve(&mut Watched { inner: &mut Line(io), guard })).await;
    }

    async fn serve<IO: Read + Write>(&mut self, io: &mut IO) {
        let Device { session, sensor } = match &mut self.device {
            Ok(device) => device,
            Err(error) => {
                write_text(io, error.text()).await;
                return Timer::after(REPEAT).await;
            }
        };
        if core::mem::take(&mut self.notice) {
            write_text(io, NOTICE).await;
        }
        let mut sensor = Watched { inner: sensor, guard: self.guard };
        let mut driver = Driver::new(Buffers { receive: &mut self.receive, transmit: &mut self.transmit });
        let clock = &mut || Millis::new(Instant::now().as_millis());
        let sleep_until = &mut |time: Millis| Timer::at(Instant::from_millis(time.as_u64()));
        let closed = loop {
            match driver.step_async(session, io, clock, sleep_until, &mut sensor).await {
                Step::Closed(closed) => break closed,
                Step::Again | Step::Wait(_) => self.guard.expect_samples(session.is_collecting()),
            }
        };
        self.guard.expect_samples(false);
        Timer::at(Instant::from_millis(closed.retry_at.as_u64())).await;
    }
}

/// Writes text, and ignores errors, because a terminal may not be attached.
async fn write_text<IO: Write>(io: &mut IO, text: &str) {
    if io.write_all(text.as_bytes()).await.is_ok() {
        let _ = io.flush().await;
    }
}

#[cfg(test)]
mod tests {
    use fedspan_protocol::frame::{Decoder, FeedResult, encode};
    use fedspan_protocol::limits::HELLO_FRAME_MAX;
    use fedspan_protocol::message::ToServer;

    use super::*;

    /// Returns the numbers of frames in `bytes` that a server accepts and drops.
    fn count_frames(bytes: &[u8]) -> (u32, u32) {
        let mut decoder = Decoder::new([0; HELLO_FRAME_MAX]);
        let (mut accepted, mut dropped) = (0, 0);
        let mut remaining = bytes;
        loop {
            match decoder.feed(&mut remaining) {
                FeedResult::NeedMore => return (accepted, dropped),
                FeedResult::Dropped(_) => dropped += 1,
                FeedResult::Message(_) | FeedResult::Sealed(_) => accepted += 1,
            }
        }
    }

    #[test]
    fn text_is_no_frame_and_hides_none() {
        let mut frame = [0; 64];
        let length = encode(&ToServer::Alive, 0, |_| (), &mut frame).unwrap_or(0);
        let frame = &frame[..length];
        assert_eq!(count_frames(frame), (1, 0));
        // The second case starts with half a frame that was sent before a reset.
        for before in [&[][..], &frame[..4]] {
            let line = [before, NOTICE.as_bytes(), frame].concat();
            assert_eq!(count_frames(&line), (1, 1 + u32::from(!before.is_empty())), "{line:?}");
        }
        for error in [
            StartError::Unreadable,
            StartError::Unprovisioned,
            StartError::NoRecord,
            StartError::TooNew,
            StartError::Damaged,
            StartError::Noise,
            StartError::Pages,
        ] {
            let text = error.text();
            assert!(text.ends_with("\r\n") && text.is_ascii(), "{text}");
            assert_eq!(count_frames(&[text.repeat(9).as_bytes(), &[0], frame].concat()), (1, 1));
        }
    }
}

/// Tests of a device that reads its provisioning record.
#[cfg(all(test, not(feature = "plaintext")))]
mod provisioned_tests {
    use core::cell::Cell;
    use core::future::pending;

    use embassy_futures::block_on;
    use embassy_futures::select::select;
    use embedded_io_async::{ErrorKind, ErrorType};
    use embedded_storage::nor_flash::{ErrorType as FlashErrorType, NorFlashErrorKind, ReadNorFlash};

    use super::*;
    use crate::watchdog::Limits;

    /// Flash that fails, so that the device reports an error and does not join.
    struct BrokenFlash;

    impl FlashErrorType for BrokenFlash {
        type Error = NorFlashErrorKind;
    }

    impl ReadNorFlash for BrokenFlash {
        const READ_SIZE: usize = 4;

        fn read(&mut self, _: u32, _: &mut [u8]) -> Result<(), NorFlashErrorKind> {
            Err(NorFlashErrorKind::Other)
        }

        fn capacity(&self) -> usize {
            8192
        }
    }

    impl NorFlash for BrokenFlash {
        const WRITE_SIZE: usize = 4;
        const ERASE_SIZE: usize = 4096;

        fn erase(&mut self, _: u32, _: u32) -> Result<(), NorFlashErrorKind> {
            Err(NorFlashErrorKind::Other)
        }

        fn write(&mut self, _: u32, _: &[u8]) -> Result<(), NorFlashErrorKind> {
            Err(NorFlashErrorKind::Other)
        }
    }

    /// Port that delivers nothing, and accepts text or hangs.
    struct Port {
        hangs: bool,
        written: Vec<u8>,
    }

    impl ErrorType for Port {
        type Error = ErrorKind;
    }

    impl Read for Port {
        async fn read(&mut self, _: &mut [u8]) -> Result<usize, ErrorKind> {
            pending().await
        }
    }

    impl Write for Port {
        async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
            if self.hangs {
                pending::<()>().await;
            }
            self.written.extend(bytes);
            Ok(bytes.len())
        }

        async fn flush(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }
    }

    /// The client feeds the watchdog while it waits, but not while its port hangs.
    #[test]
    fn client_with_a_hung_port_is_not_fed() {
        let limit = Duration::from_millis(50);
        for hangs in [true, false] {
            let (start, last) = (Instant::now(), Cell::new(Duration::MIN));
            let feed = || last.set(start.elapsed());
            // The sensor's limit is the interval between feeds here.
            let limits = Limits { sensor: limit, link: if hangs { limit } else { Duration::MAX } };
            let guard = Guard::new(&feed, limits);
            let layout = FlashLayout { provision: 0, record: 4096..8192 };
            let mut client = Client::new(BrokenFlash, layout, 1, [0; SEED], About::default(), &guard);
            let mut port = Port { hangs, written: Vec::new() };
            let end = async {
                while (!hangs || start.elapsed() < limit * 6) && last.get() < limit * 2 {
                    Timer::after_millis(10).await;
                }
            };
            block_on(select(client.take_part(&mut port), end));
            assert_eq!(last.get() < limit * 2, hangs, "last fed after {:?}", last.get());
            let expected = if hangs { "" } else { StartError::Unreadable.text() };
            assert_eq!(port.written, expected.as_bytes());
        }
    }
}
