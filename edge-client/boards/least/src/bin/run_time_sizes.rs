//! The client of the program `client` with sizes and settings that are known at run time only, and with storage by two functions, as in the
//! program `interface` but in Rust: the difference between the two is the interface to C.

#![no_std]
#![no_main]

use core::hint::black_box;
use core::hint::spin_loop;
use core::mem::MaybeUninit;

use fedspan_client::link::{Buffers, run};
use fedspan_client::memory::{Shape, SliceMemory};
use fedspan_client::session::Config;
use fedspan_client::store::{Record, RecordHeader, Store, StoreError};
use fedspan_client::{Linear, Recording, Session};
use least::{D, K, Lcg, Line, Once, clock, protection, report, samples};

/// Session settings of device 1.
const CONFIG: Config = Config::new(1);
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();
/// Values of the model.
const VALUES: usize = 3 * K + D * (K + 1) + K * (K + 1) + 1;
/// Bytes of a record: campaign, round, hash of the representation, head.
const RECORD: usize = 8 + 4 + 4 + 4 * K;

/// Storage by a function that reads and one that writes an item.
struct Items {
    load: fn(u32, &mut [u8]) -> i32,
    save: fn(u32, &[u8]) -> i32,
    record: [u8; RECORD],
}

impl Items {
    fn write(&self, item: u32, bytes: &[u8]) -> Result<(), StoreError> {
        match (self.save)(item, bytes) {
            0 => Ok(()),
            _ => Err(StoreError),
        }
    }
}

impl Store for Items {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let fields = record.campaign.to_le_bytes().into_iter().chain(record.round.to_le_bytes());
        let fields = fields.chain(record.representation.to_le_bytes());
        let values = record.head.iter().flat_map(|value| value.to_le_bytes());
        self.record.iter_mut().zip(fields.chain(values)).for_each(|(target, byte)| *target = byte);
        self.write(0, &self.record)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        if (self.load)(0, &mut self.record) != RECORD as i32 {
            return Ok(None);
        }
        let parse = || {
            let (campaign, bytes) = self.record.split_first_chunk()?;
            let (round, bytes) = bytes.split_first_chunk()?;
            let (representation, values) = bytes.split_first_chunk()?;
            for (target, bytes) in head.iter_mut().zip(values.as_chunks().0) {
                *target = f32::from_le_bytes(*bytes);
            }
            Some(RecordHeader {
                campaign: u64::from_le_bytes(*campaign),
                round: u32::from_le_bytes(*round),
                representation: u32::from_le_bytes(*representation),
            })
        };
        Ok({ parse }())
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        self.write(1, &reserved.to_le_bytes())
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        let mut bytes = [0; 8];
        match (self.load)(1, &mut bytes) {
            0 | 8 => Ok(u64::from_le_bytes(bytes)),
            _ => Err(StoreError),
        }
    }

    fn save_spent(&mut self, _spent: u64) -> Result<(), StoreError> {
        Err(StoreError)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        Err(StoreError)
    }
}

type Client = Session<Linear<SliceMemory<'static>>, Recording<'static>, Items, Lcg>;

/// All static memory of the client.
struct Statics {
    client: MaybeUninit<Client>,
    values: [f32; VALUES],
    receive: [u8; RECEIVE],
    transmit: [u8; TRANSMIT],
}

static STATICS: Once<Statics> = Once::new(Statics {
    client: MaybeUninit::uninit(),
    values: [0.0; VALUES],
    receive: [0; RECEIVE],
    transmit: [0; TRANSMIT],
});

#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    let (x, y) = samples();
    // SAFETY: this is the only call, because `main` runs once.
    let Statics { client, values, receive, transmit } = unsafe { STATICS.take() };
    // Sizes and settings that the compiler does not know.
    let (config, shape) = (black_box(CONFIG), black_box(Shape { features: D, width: K, outputs: 1 }));
    let Ok(memory) = SliceMemory::new(shape, values) else {
        loop {
            spin_loop();
        }
    };
    let samples = Recording::regression(x, y, shape.features, shape.outputs);
    let store = Items { load: black_box(|_, _| 0), save: black_box(|_, _| 0), record: [0; RECORD] };
    let session = Session::new(config, protection(), Linear::new(memory), samples, store, Lcg(1));
    let client = client.write(session);
    loop {
        let buffers = Buffers { receive, transmit };
        let closed = run(client, &mut Line, buffers, clock, |_| {});
        let mut out = [0.0];
        if let Some(sample) = x.get(..D)
            && client.task_mut().predict(sample, &mut out).is_ok()
        {
            report(out[0]);
        }
        while clock() < closed.retry_at {}
    }
}
