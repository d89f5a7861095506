//! Takes part in campaigns over a line, connection after connection.

use core::ops::Range;

use embassy_time::{Duration, Instant, Timer};
use embedded_io_async::{Read, Write};
use embedded_storage::nor_flash::NorFlash;
use fedspan_client::Millis;
use fedspan_client::link::{Buffers, run_async_with_sensor};
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::session::{Config, Sampling};
use fedspan_client::source::NoRecording;
use fedspan_client::store::{FlashStore, record_len};
use fedspan_client::{Linear, Session};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::identity::{Absent, PLAINTEXT, identity};
use crate::line::Line;
use crate::sensor::{C, D, K, SAMPLES, Sensor};
use crate::unique::SEED;

const CONFIG: Config = Config { sampling: Sampling::Stream { samples: SAMPLES }, ..Config::new(0) };

/// Bytes of a frame: what a driver's receive buffer must hold at least, since the core reads nothing while
/// it computes a round or writes to flash.
pub const FRAME: usize = CONFIG.frame_limit as usize;

/// A record in whole words of flash, of which the boards' have at most eight bytes.
const RECORD: usize = record_len(K, C).next_multiple_of(8);

/// What a build for the bench says when it starts. To a server it is one frame that makes no sense: zeros end
/// whatever was before it, and itself.
const NOTICE: &str =
    "\0fedspan: PLAINTEXT, for the bench: anybody on this line can read and change what is said\r\n\0";

/// How often a device that does not join says why.
const REPEAT: Duration = Duration::from_secs(5);

/// Where things are in a board's flash, as its driver counts.
#[derive(Clone, Debug)]
pub struct Places {
    /// The page of the provisioning record.
    pub provision: u32,
    /// The pages of what a round leaves behind, and of the number of handshakes.
    pub record: Range<u32>,
}

/// The whole device: model, session, sensor, record, one frame in and one frame out.
pub struct Client<F: NorFlash> {
    device: Result<Device<F>, Absent>,
    notice: bool,
    receive: [u8; FRAME],
    transmit: [u8; CONFIG.transmit_capacity()],
}

struct Device<F: NorFlash> {
    session: Session<Linear<StreamingWorkspace<D, K, C>>, NoRecording, FlashStore<F, RECORD>, ChaCha8Rng>,
    sensor: Sensor,
}

impl<F: NorFlash> Client<F> {
    /// The client of the device that the provisioning record names, with what the record of its last round
    /// remembers. `seed` is for the nonces of handshakes and the random part of reconnect delays; no key repeats
    /// if it does, as handshakes are numbered in flash. `number` is the device's in a build for the bench.
    ///
    /// Without a key, or without pages for the record, it does not join: [`take_part`](Self::take_part) says why.
    pub fn new(mut flash: F, places: Places, number: u64, seed: [u8; SEED]) -> Self {
        let device = identity(&mut flash, places.provision, number).and_then(|(device, protection)| {
            let store = FlashStore::new(flash, places.record).map_err(|_| Absent::Pages)?;
            let model = Linear::new(StreamingWorkspace::new());
            let (config, random) = (Config { device, ..CONFIG }, ChaCha8Rng::from_seed(seed));
            let session = Session::new(config, protection, model, NoRecording, store, random);
            Ok(Device { session, sensor: Sensor::new(device) })
        });
        Self { device, notice: PLAINTEXT, receive: [0; FRAME], transmit: [0; CONFIG.transmit_capacity()] }
    }

    /// Takes part over a link that just came up, until it is lost, and then until it is time for the next. A device
    /// that does not join says why instead, as text for whoever has opened the port.
    pub async fn take_part<IO: Read + Write>(&mut self, io: &mut IO) {
        let Device { session, sensor } = match &mut self.device {
            Ok(device) => device,
            Err(absent) => {
                say(io, absent.text()).await;
                return Timer::after(REPEAT).await;
            }
        };
        if core::mem::take(&mut self.notice) {
            say(io, NOTICE).await;
        }
        let buffers = Buffers { receive: &mut self.receive, transmit: &mut self.transmit };
        let closed = run_async_with_sensor(
            session,
            &mut Line(io),
            buffers,
            || Millis::new(Instant::now().as_millis()),
            |time| Timer::at(Instant::from_millis(time.as_u64())),
            sensor,
        )
        .await;
        Timer::at(Instant::from_millis(closed.retry_at.as_u64())).await;
    }
}

/// Writes text, if there is somebody to read it.
async fn say<IO: Write>(io: &mut IO, text: &str) {
    if io.write_all(text.as_bytes()).await.is_ok() {
        let _ = io.flush().await;
    }
}

#[cfg(test)]
mod tests {
    use fedspan_protocol::frame::{Decoder, Fed, encode};
    use fedspan_protocol::limits::HELLO_FRAME_MAX;
    use fedspan_protocol::message::ToServer;

    use super::*;

    /// Frames that a server reads in `bytes`, and those that it throws away.
    fn frames(bytes: &[u8]) -> (u32, u32) {
        let mut decoder = Decoder::new([0; HELLO_FRAME_MAX]);
        let (mut read, mut dropped) = (0, 0);
        let mut rest = bytes;
        loop {
            match decoder.feed(&mut rest) {
                Fed::NeedMore => return (read, dropped),
                Fed::Dropped(_) => dropped += 1,
                Fed::Message(_) | Fed::Sealed(_) => read += 1,
            }
        }
    }

    #[test]
    fn what_is_said_as_text_is_no_frame_and_hides_none() {
        let mut frame = [0; 64];
        let length = encode(&ToServer::Alive, 0, |_| (), &mut frame).unwrap_or(0);
        let frame = &frame[..length];
        assert_eq!(frames(frame), (1, 0));
        // After half a frame of a life before, too.
        for before in [&[][..], &frame[..4]] {
            let line = [before, NOTICE.as_bytes(), frame].concat();
            assert_eq!(frames(&line), (1, 1 + u32::from(!before.is_empty())), "{line:?}");
        }
        for absent in [
            Absent::Unreadable,
            Absent::Unprovisioned,
            Absent::NoRecord,
            Absent::TooNew,
            Absent::Damaged,
            Absent::Noise,
            Absent::Pages,
        ] {
            let text = absent.text();
            assert!(text.ends_with("\r\n") && text.is_ascii(), "{text}");
            assert_eq!(frames(&[text.repeat(9).as_bytes(), &[0], frame].concat()), (1, 1));
        }
    }
}
