//! Campaign of the fuzz target `host_connection`: its rounds, and the messages of honest devices.

use std::sync::{Arc, OnceLock};

use fedspan_engine::RoundBroadcast;
use fedspan_engine::admission::Requirements;
use fedspan_engine::{DeviceId, Request, Tensor};
use fedspan_protocol::assembly::plan;
use fedspan_protocol::limits::REPORT_COUNTERS_MAX;
use fedspan_protocol::message::{
    Capabilities, Chunk, Decline, DeclineReason, Descriptors, HeadSolve, Hello, Missing, Model, Numeric,
    Privacy, RoundId, Task, ToServer, Update as UpdateHead, Upload, Welcome,
};
use fedspan_protocol::message::{Firmware, Report, ReportCounters, ResetReason};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

use crate::Random;
use crate::honest::payload;

const D: u16 = 20;
const K: u16 = 3;

const MODEL: Model = Model::linear(D, K, 1);

pub const WELCOME: Welcome = Welcome { campaign: 3, idle_milliseconds: 5_000 };

/// Returns the requirements of the rounds; only devices 7 and 8 may join.
pub fn requirements() -> Requirements {
    let requests: Vec<Request> = openings().iter().map(|opening| opening.request.clone()).collect();
    Requirements::new(MODEL, &requests, Some(vec![DeviceId(7), DeviceId(8)]))
}

/// Returns the broadcasts of rounds 1 and 2, with one and two tensors in each direction.
pub fn openings() -> &'static [Arc<RoundBroadcast>] {
    static OPENINGS: OnceLock<Vec<Arc<RoundBroadcast>>> = OnceLock::new();
    OPENINGS.get_or_init(|| (0..4).map(create_opening).collect())
}

/// Returns the broadcast of round `1 + index / 2`, with the encoding f32 or i8.
fn create_opening(index: u32) -> Arc<RoundBroadcast> {
    let encoding = [Encoding::F32, Encoding::I8][index as usize % 2];
    let descriptor = |role| TensorDescriptor::inline(role, encoding, D, K);
    let mut expects = vec![descriptor(Role::Gradient)];
    if index >= 2 {
        expects.push(TensorDescriptor::inline(Role::SharedHead, encoding, K, 1));
    }
    let mut random = Random(index.into());
    let values = (0..D * K).map(|_| random.unit()).collect();
    let tensor = Tensor { role: Role::Representation, rows: D, cols: K, values };
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let task = Task::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding };
    let request = Request { task, tensors: vec![tensor], encoding, expects };
    let id = RoundId { round: 1 + index / 2, stage: 0 };
    Arc::new(RoundBroadcast::new(id, request).expect("finite"))
}

/// Returns hellos of several devices and frame limits, then updates for every round, inline and in chunks.
pub fn messages() -> &'static [Vec<u8>] {
    static MESSAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    MESSAGES.get_or_init(|| {
        let mut messages: Vec<Vec<u8>> = [(7, 128), (7, 4096), (8, 256), (7, 0)]
            .map(|(device, limit)| payload(&ToServer::Hello(hello(device, limit)), &[]))
            .into();
        for opening in openings() {
            for limit in [128, 4096] {
                messages.extend(encode_update(opening, limit));
            }
            let id = opening.id;
            let decline = Decline { id, reason: DeclineReason::NoSamples };
            messages.push(payload(&ToServer::Decline(decline), &[]));
            for chunks in [vec![0], vec![0, 1, 2], vec![1, 200]] {
                let chunks = chunks.into_iter().collect();
                messages.push(payload(&ToServer::Missing(Missing { id, tensor: 0, chunks }), &[]));
            }
        }
        messages.push(payload(&ToServer::Alive, &[]));
        // Short enough for the first frame of a connection.
        let counters = [300; REPORT_COUNTERS_MAX];
        let mut body = vec![0; ReportCounters::length_of(&counters)];
        ReportCounters::write(&counters, &mut body);
        let (firmware, reset) = (Firmware { version: [u16::MAX; 3], build: u32::MAX }, ResetReason::Wake);
        messages.push(payload(&ToServer::Report(Report { firmware, reset, uptime: u32::MAX }), &body));
        messages
    })
}

/// Returns the hello of a device with a frame limit.
pub fn hello(device: u64, frame_limit: u16) -> Hello {
    let elements = u32::from(D) * u32::from(K);
    let capabilities = Capabilities {
        frame_limit,
        model: MODEL,
        tasks: 0b1111,
        roles: 0xff,
        encodings: 0b111,
        numeric: Numeric::F32,
        tensors: 2,
        tensor_elements: elements,
        total_elements: elements + u32::from(K),
        privacy: Privacy::None,
    };
    Hello::new(device, capabilities)
}

/// Encodes an update for a round. Tensors that do not fit a frame of `limit` bytes follow in chunks.
fn encode_update(opening: &RoundBroadcast, limit: usize) -> Vec<Vec<u8>> {
    let mut tensors: Descriptors = opening.request.expects.iter().copied().collect();
    plan(&mut tensors, limit).expect("fits");
    let mut random = Random(limit as u64);
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|tensor| {
            let values: Vec<f32> = (0..tensor.elements()).map(|_| random.unit()).collect();
            let mut bytes = vec![0; tensor.byte_len()];
            tensor.encoding.encode(&values, &mut bytes).expect("finite");
            bytes
        })
        .collect();
    let inline = tensors.iter().all(|tensor| tensor.chunk == 0);
    let head = UpdateHead { id: opening.id, samples: 5, skipped: 0, tensors: tensors.clone() };
    let body = if inline { bytes.concat() } else { Vec::new() };
    let mut messages = vec![payload(&ToServer::Update(head), &body)];
    for (index, (tensor, bytes)) in tensors.iter().zip(&bytes).enumerate() {
        for number in 0..tensor.chunks() {
            let range = tensor.chunk_range(number).expect("a chunk below the count");
            let first = tensor.encoding.byte_len(range.start);
            let body = &bytes[first..first + tensor.encoding.byte_len(range.len())];
            let chunk = Chunk { id: opening.id, tensor: index as u8, offset: range.start as u32 };
            messages.push(payload(&ToServer::Chunk(chunk), body));
        }
    }
    messages
}
