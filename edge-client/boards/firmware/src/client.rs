//! Takes part in campaigns over a line, connection after connection.

use core::ops::Range;

use embassy_time::{Instant, Timer};
use embedded_io_async::{Read, Write};
use embedded_storage::nor_flash::NorFlash;
use fedspan_client::link::{Buffers, run_async_with_sensor};
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::session::{Config, Sampling};
use fedspan_client::source::NoRecording;
use fedspan_client::store::{FlashError, FlashStore, record_len};
use fedspan_client::{Linear, Session};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::line::Line;
use crate::sensor::{C, D, K, SAMPLES, Sensor};
use crate::unique::SEED;

const CONFIG: Config = Config { sampling: Sampling::Stream { samples: SAMPLES }, ..Config::new(0) };

/// Bytes of a frame: what a driver's receive buffer must hold at least, since the core reads nothing while
/// it computes a round or writes to flash.
pub const FRAME: usize = CONFIG.frame_limit as usize;

/// A record in whole words of flash, of which the boards' have at most eight bytes.
const RECORD: usize = record_len(K, C).next_multiple_of(8);

/// The whole device: model, session, sensor, record, one frame in and one frame out.
pub struct Client<F: NorFlash> {
    session: Session<Linear<StreamingWorkspace<D, K, C>>, NoRecording, FlashStore<F, RECORD>, ChaCha8Rng>,
    sensor: Sensor,
    receive: [u8; FRAME],
    transmit: [u8; CONFIG.transmit_capacity()],
}

impl<F: NorFlash> Client<F> {
    /// The client with what the record in the pages `record` of `flash` remembers. `seed` is for the random
    /// part of reconnect delays.
    ///
    /// # Errors
    /// [`FlashError`] if the pages are not as flash is divided, a mistake in the board's memory map.
    pub fn new(device: u64, seed: [u8; SEED], flash: F, record: Range<u32>) -> Result<Self, FlashError> {
        let store = FlashStore::new(flash, record)?;
        let model = Linear::new(StreamingWorkspace::new());
        let config = Config { device, ..CONFIG };
        Ok(Self {
            session: Session::new(config, model, NoRecording, store, ChaCha8Rng::from_seed(seed)),
            sensor: Sensor::new(device),
            receive: [0; FRAME],
            transmit: [0; CONFIG.transmit_capacity()],
        })
    }

    /// Takes part over a link that just came up, until it is lost, and then until it is time for the next.
    pub async fn take_part<IO: Read + Write>(&mut self, io: &mut IO) {
        let buffers = Buffers { receive: &mut self.receive, transmit: &mut self.transmit };
        let closed = run_async_with_sensor(
            &mut self.session,
            &mut Line(io),
            buffers,
            || Instant::now().as_millis(),
            |time| Timer::at(Instant::from_millis(time)),
            &mut self.sensor,
        )
        .await;
        Timer::at(Instant::from_millis(closed.retry_at)).await;
    }
}
