//! Rounds of the fuzz target `datagram_sessions`: each device gets other representations, so that data that reaches the wrong device
//! is recognised, and computes updates that are known in advance.

use std::sync::{Arc, OnceLock};

use fedspan_client::{Linear, Recording, Task as _, Workspace};
use fedspan_engine::admission::Requirements;
use fedspan_engine::{DeviceId, Request, RoundBroadcast, Tensor};
use fedspan_protocol::message::{HeadSolve, Model, RoundId, RoundOpen, Task, Upload};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use crate::Random;

/// Feature count `d`. At the smallest frame limit the representation and the update (`d x k`) need chunks.
pub const D: usize = 20;
/// Representation width `k`.
pub const K: usize = 3;
/// Number of samples of a device.
const M: usize = 12;

/// Devices of the fleet.
pub const DEVICES: [u64; 2] = [7, 8];
/// Number of the last round, which opens after the disturbance.
pub const LAST_ROUND: u32 = 8;
/// Encodings of representations and updates.
const ENCODINGS: [Encoding; 2] = [Encoding::F32, Encoding::I8];

/// Samples of a device.
pub struct Samples {
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Samples {
    /// Returns the samples of a device, by its index.
    pub fn of(device: usize) -> &'static Self {
        static SAMPLES: [OnceLock<Samples>; 2] = [const { OnceLock::new() }; 2];
        SAMPLES[device].get_or_init(|| {
            let mut random = Random(20 + device as u64);
            let mut values = |count: usize| (0..count).map(|_| random.unit()).collect();
            Self { x: values(M * D), y: values(M) }
        })
    }

    /// Returns a source of the samples.
    pub fn recording(&self) -> Recording<'_> {
        Recording::regression(&self.x, &self.y, D, 1)
    }
}

/// Round of one device.
pub struct Round {
    pub broadcast: Arc<RoundBroadcast>,
    /// Bits of the representation that the device receives.
    pub representation: Vec<u32>,
    /// Bits of the update that the server receives.
    pub update: Vec<u32>,
}

impl Round {
    /// Returns a round of a device, by the device's index and the round's number from 1 to [`LAST_ROUND`].
    pub fn of(device: usize, encoding: usize, number: u32) -> &'static Self {
        const ROUNDS: usize = LAST_ROUND as usize;
        static TABLE: [[[OnceLock<Round>; ROUNDS]; ENCODINGS.len()]; DEVICES.len()] =
            [const { [const { [const { OnceLock::new() }; ROUNDS] }; ENCODINGS.len()] }; DEVICES.len()];
        let encoding = encoding % ENCODINGS.len();
        TABLE[device][encoding][number as usize - 1]
            .get_or_init(|| Self::new(device, ENCODINGS[encoding], number))
    }

    fn new(device: usize, encoding: Encoding, number: u32) -> Self {
        let mut random = Random(u64::from(number) << 8 | device as u64);
        let mut values: Vec<f32> = (0..D * K).map(|_| random.unit()).collect();
        orthonormalise(&mut values, K).expect("random columns are independent");
        let descriptor = |role| TensorDescriptor::inline(role, encoding, D as u16, K as u16);
        let head = HeadSolve::LeastSquares { ridge: 0.0 };
        let task = Task::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding };
        let tensor = Tensor { role: Role::Representation, rows: D as u16, cols: K as u16, values };
        let request =
            Request { task, tensors: vec![tensor], encoding, expects: vec![descriptor(Role::Gradient)] };
        let id = RoundId { round: number, stage: 0 };
        let broadcast = RoundBroadcast::new(id, request).expect("finite");
        let opened =
            RoundOpen { id, task, tensors: [descriptor(Role::Representation)].into_iter().collect() };
        // The device's computation without a link.
        let mut model = Linear::new(Workspace::<D, K>::new());
        model.open(&opened).expect("a round for this model");
        let received = model.tensor_mut(0).expect("the representation");
        encoding.decode(&broadcast.encoded[0], received).expect("finite");
        model.verify().expect("orthonormal");
        let representation = bits(model.representation().expect("a verified representation"));
        model.run(id, &mut Samples::of(device).recording()).expect("an update");
        let (mut computed, mut sent) = (vec![0.0; D * K], vec![0; encoding.byte_len(D * K)]);
        model.emit(0, 0, &mut computed);
        encoding.encode(&computed, &mut sent).expect("finite");
        encoding.decode(&sent, &mut computed).expect("finite");
        Self { broadcast: Arc::new(broadcast), representation, update: bits(&computed) }
    }
}

/// Returns the requirements of the rounds of all devices.
pub fn requirements(encoding: usize) -> Requirements {
    let requests: Vec<Request> =
        (0..DEVICES.len()).map(|device| Round::of(device, encoding, 1).broadcast.request.clone()).collect();
    let model = Model::linear(D as u16, K as u16, 1);
    Requirements::new(model, &requests, Some(DEVICES.map(DeviceId).to_vec()))
}

/// Returns the bits of values.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
