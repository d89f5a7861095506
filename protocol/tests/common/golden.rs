//! Test helpers: the golden messages, whose bytes are stored in `vectors/`. Fields of the same type have
//! different values, so that swapped fields are detected.

use fedspan_protocol::limits::{FRAME_LIMIT_DEFAULT, FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, TENSORS_MAX};
use fedspan_protocol::message::{
    Ack, AckOutcome, Announced, Baseline, Capabilities, Chunk, Decline, DeclineReason, Descent, Descriptors,
    Fault, Filters, Firmware, GeometricGrid, HeadSolve, Hello, Image, Missing, Model, NewKey, Numeric,
    PowerRows, PowerUpload, Privacy, PrivateTask, Refusal, Rejection, Report, ReportCounters, Requirement,
    ResetReason, RoundId, RoundOpen, Task, ToDevice, ToServer, Trained, Update, Upload, Welcome,
};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::secure::{Key, ProvisionedNoise};
use fedspan_protocol::tensor::{Encoding, Role, SUMS_COLUMNS, TensorDescriptor};

use super::Random;

/// Encodes the body of a report.
fn report_body(counters: &[u32]) -> Vec<u8> {
    let mut body = vec![0; ReportCounters::length_of(counters)];
    ReportCounters::write(counters, &mut body);
    body
}

/// Message in either direction.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)]
pub enum Message {
    Up(ToServer),
    Down(ToDevice),
}

/// Golden message with its name and body.
#[derive(Clone, Debug)]
pub struct Golden {
    /// File name without extension, which is also the name of the C array.
    pub name: &'static str,
    /// Description in the C header.
    pub meaning: &'static str,
    pub message: Message,
    pub body: Vec<u8>,
}

impl Golden {
    /// Returns the message bytes and the body.
    pub fn payload(&self) -> Vec<u8> {
        let mut bytes = match &self.message {
            Message::Up(m) => super::encode_message(m),
            Message::Down(m) => super::encode_message(m),
        };
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Returns the complete wire frame.
    pub fn frame(&self) -> Vec<u8> {
        match &self.message {
            Message::Up(m) => super::encode_frame(m, &self.body),
            Message::Down(m) => super::encode_frame(m, &self.body),
        }
    }
}

const ID: RoundId = RoundId { round: 7, stage: 1 };
const LAST: RoundId = RoundId { round: u32::MAX, stage: u16::MAX };
const LEAST_SQUARES: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };
const DESCENT: Descent = Descent { step_size: 0.1, momentum: 0.5, batch: 10 };
const SGD: Task = Task::Sgd {
    descent: DESCENT,
    head_epochs: 3,
    epochs: 2,
    trained: Trained::Shared,
    encoding: Encoding::F32,
};

const LORA_UP: Task =
    Task::Sgd { descent: DESCENT, head_epochs: 0, epochs: 2, trained: Trained::Up, encoding: Encoding::F32 };

/// Device, epoch and key of the provisioning record in the vectors.
pub const PROVISIONED: (u64, u16, [u8; 32]) = (0x0123_4567_89ab_cdef, 0x0203, {
    let mut key = [0x40; 32];
    let mut i = 0;
    while i < 32 {
        key[i] += i as u8;
        i += 1;
    }
    key
});

/// Builds the provisioning record in the vectors, field by field from the table in SPEC.md.
pub fn provision_record() -> Vec<u8> {
    let (device, epoch, key) = PROVISIONED;
    let mut record = b"FSPV".to_vec();
    record.extend_from_slice(&1u16.to_le_bytes());
    record.extend_from_slice(&54u16.to_le_bytes());
    record.extend_from_slice(&device.to_le_bytes());
    record.extend_from_slice(&epoch.to_le_bytes());
    record.extend_from_slice(&key);
    record.extend_from_slice(&super::crc32c(&record).to_le_bytes());
    record
}

/// Noise of the second provisioning record in the vectors.
pub const NOISE: ProvisionedNoise = ProvisionedNoise {
    multiplier_square: 0x0504_0302_0100,
    budget: 0x2726_2524_2322_2120,
    rows_max: 1000,
    slot: 1500,
    clip: 0.75,
    iterations_max: 3,
};

/// Builds the provisioning record with noise.
pub fn provision_with_noise() -> Vec<u8> {
    let mut record = provision_record();
    record.truncate(50);
    record[6..8].copy_from_slice(&86u16.to_le_bytes());
    record.extend_from_slice(&[1, 30]);
    record.extend_from_slice(&[0, 1, 2, 3, 4, 5, 0, 0]);
    record.extend_from_slice(&(0x20..0x28).collect::<Vec<u8>>());
    record.extend_from_slice(&1000u32.to_le_bytes());
    record.extend_from_slice(&1500u32.to_le_bytes());
    record.extend_from_slice(&0.75f32.to_le_bytes());
    record.extend_from_slice(&3u16.to_le_bytes());
    record.extend_from_slice(&super::crc32c(&record).to_le_bytes());
    record
}

/// Returns the representation in the vectors: 20 x 2 with orthonormal columns, row-major.
pub fn representation() -> Vec<f32> {
    let mut b = Random(1).matrix(20, 2);
    orthonormalise(&mut b, 2).unwrap();
    b
}

/// Returns the gradient in the vectors: 20 x 2 small values.
pub fn gradient() -> Vec<f32> {
    Random(2).matrix(20, 2).iter().map(|v| v * 0.125).collect()
}

/// Returns a tall representation, 64 x 8, that does not fit one frame and is sent in chunks.
pub fn tall_representation() -> Vec<f32> {
    let mut b = Random(3).matrix(64, 8);
    orthonormalise(&mut b, 8).unwrap();
    b
}

/// Returns values whose encoding contains no zero byte, which gives COBS blocks of full length.
fn no_zero_byte(count: usize) -> Vec<f32> {
    let mut random = Random(4);
    std::iter::repeat_with(|| random.unit())
        .filter(|v| v.to_le_bytes().iter().all(|b| *b != 0))
        .take(count)
        .collect()
}

/// Encodes values.
pub fn encode_values(encoding: Encoding, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; encoding.byte_len(values.len())];
    encoding.encode(values, &mut bytes).unwrap();
    bytes
}

/// Returns a list of descriptors.
fn descriptor_list(tensors: &[TensorDescriptor]) -> Descriptors {
    tensors.iter().copied().collect()
}

/// Returns a descriptor of a tensor in the message body.
fn inline_tensor(role: Role, encoding: Encoding, rows: u16, cols: u16) -> TensorDescriptor {
    TensorDescriptor::inline(role, encoding, rows, cols)
}

/// Returns a FedRep task.
fn fed_rep(upload: Upload, encoding: Encoding) -> Task {
    Task::FedRep { step_size: 0.25, head: LEAST_SQUARES, upload, encoding }
}

/// Returns a FedPower task on the features.
fn fed_power(iterations: u16, upload: PowerUpload) -> Task {
    Task::FedPower { iterations, rows: PowerRows::Features, upload, encoding: Encoding::F32 }
}

/// Samples of the vectors' feature sums, one row per feature: the first feature has values of one magnitude,
/// the second of several.
const SAMPLES: [[f32; 3]; 2] = [[1013.25, 1008.5, 1017.0], [-2.0, 0.5, -0.25]];

/// Computes the feature sums of [`SAMPLES`] from the definition in SPEC.md. The samples are multiples of
/// their feature's unit.
fn feature_sums() -> Vec<f32> {
    let limb = |value: i128, i: usize, limbs: usize| {
        let upper_bits = value >> (22 * i);
        (if i + 1 < limbs { upper_bits & 0x3F_FFFF } else { upper_bits }) as f32
    };
    let row = |samples: &[f32; 3]| {
        let largest = samples.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let exponent = largest.log2().floor() as i32 - 29;
        let units = samples.map(|v| (f64::from(v) / f64::from(exponent).exp2()) as i128);
        let (sum, squares) = (units.iter().sum(), units.iter().map(|n| n * n).sum());
        let limbs = (0..3).map(move |i| limb(sum, i, 3)).chain((0..4).map(move |i| limb(squares, i, 4)));
        std::iter::once(exponent as f32).chain(limbs)
    };
    SAMPLES.iter().flat_map(row).collect()
}

/// Part of the names of messages with tasks for private use, which the schema hash excludes.
pub const PRIVATE_USE: &str = "_private_use_";

/// Part of the names of messages with tasks for learned priors, which the schema hash excludes: they are for devices that say in
/// their hello that they know these tasks.
pub const LEARNED_PRIOR: &str = "_learned_prior_";

/// Names of messages that not every peer knows, which the schema hash excludes. A device that does not know the first counts it
/// as malformed, and goes on; the others are for devices that say in their hello that they know them.
pub const OPTIONAL: [&str; 5] = [
    "to_device_next_round",
    "to_device_announced",
    "to_device_new_key",
    "to_server_report",
    "to_server_update_gradient_i8_top_k",
];

/// Returns every golden message, in the order of file names.
pub fn all_messages() -> Vec<Golden> {
    let mut messages = messages_to_server();
    messages.extend(messages_to_device());
    messages.sort_by_key(|golden| golden.name);
    messages
}

/// Returns the golden messages to the server.
fn messages_to_server() -> Vec<Golden> {
    let mut messages = Vec::new();
    let mut add = |name, meaning, message, body| {
        messages.push(Golden { name, meaning, message: Message::Up(message), body });
    };
    let no_body = Vec::new;

    let capabilities = Capabilities {
        frame_limit: FRAME_LIMIT_DEFAULT as u16,
        model: Model::linear(20, 2, 1),
        tasks: fed_rep(Upload::Gradient, Encoding::F32).bit() | Task::FitHead { head: LEAST_SQUARES }.bit(),
        roles: Role::Gradient.bit(),
        encodings: Encoding::F32.bit() | Encoding::F16.bit() | Encoding::I8.bit(),
        numeric: Numeric::F32,
        tensors: 2,
        tensor_elements: 40,
        total_elements: 42,
        privacy: Privacy::None,
    };
    add(
        "to_server_hello",
        "Hello of device 0x0123456789abcdef: linear model d=20 k=2 C=1, frame limit 256, \
         tasks FedRep and FitHead, role Gradient, all encodings, F32, 2 tensors of 40 elements, 42 in all",
        ToServer::Hello(Hello::new(0x0123_4567_89AB_CDEF, capabilities)),
        no_body(),
    );
    add(
        "to_server_hello_other_version",
        "The same hello with wire version 1 and schema hash 0x01020304 (an example): a server refuses it",
        ToServer::Hello(Hello {
            wire_version: 1,
            schema_hash: 0x0102_0304,
            device: 0x0123_4567_89AB_CDEF,
            capabilities,
        }),
        no_body(),
    );
    add(
        "to_server_hello_private",
        "Hello with schema hash 0x01020304 (an example) of device 0x0123456789abcdef, \
         which adds noise: task FedPower, role Subspace, 2 tensors of 40 elements, \
         80 in all; a release costs 2^21, the budget is 10 times that, of which 3 times are spent",
        ToServer::Hello(Hello {
            wire_version: 2,
            schema_hash: 0x0102_0304,
            device: 0x0123_4567_89AB_CDEF,
            capabilities: Capabilities {
                tasks: fed_power(1, PowerUpload::Product).bit(),
                roles: Role::Subspace.bit(),
                total_elements: 80,
                privacy: Privacy::Gaussian { release: 1 << 21, budget: 10 << 21, spent: 3 << 21 },
                ..capabilities
            },
        }),
        no_body(),
    );
    add(
        "to_server_hello_network",
        "Hello with schema hash 0x01020304 (an example) of device 0x0123456789abcdef: a network with \
         64 features, hidden layers of 32 and 16, 7 classes; tasks FitHead and Sgd, role Representation, 3 tensors of \
         2080 elements, 2608 in all",
        ToServer::Hello(Hello {
            wire_version: 2,
            schema_hash: 0x0102_0304,
            device: 0x0123_4567_89AB_CDEF,
            capabilities: Capabilities {
                model: Model::network(64, [32, 16, 0], 7),
                tasks: Task::FitHead { head: LEAST_SQUARES }.bit() | SGD.bit(),
                roles: Role::Representation.bit(),
                tensors: 3,
                tensor_elements: 2080,
                total_elements: 2608,
                ..capabilities
            },
        }),
        no_body(),
    );
    add(
        "to_server_hello_convolutional",
        "Hello with schema hash 0x01020304 (an example) of device 0x0123456789abcdef: signals of 25 \
         steps and 6 channels, 8 filters of width 5, max-pooling over 2, a hidden layer of 16, 10 \
         classes; tasks FitHead and Sgd, role Representation, 2 tensors of 1296 elements, 1544 in all",
        ToServer::Hello(Hello {
            wire_version: 2,
            schema_hash: 0x0102_0304,
            device: 0x0123_4567_89AB_CDEF,
            capabilities: Capabilities {
                model: Model::convolutional(
                    Image { height: 1, width: 25, channels: 6 },
                    [Filters { count: 8, side: 5, pool: 2 }, Filters::default()],
                    [16, 0],
                    10,
                ),
                tasks: Task::FitHead { head: LEAST_SQUARES }.bit() | SGD.bit(),
                roles: Role::Representation.bit(),
                tensors: 2,
                tensor_elements: 1296,
                total_elements: 1544,
                ..capabilities
            },
        }),
        no_body(),
    );
    add(
        "to_server_hello_recurrent",
        "Hello with schema hash 0x01020304 (an example) of device 0x0123456789abcdef: sequences \
         of 25 steps and 6 channels, 8 cells, a hidden layer of 16, 10 classes; tasks FitHead and Sgd, role Representation, \
         2 tensors of 480 elements, 624 in all",
        ToServer::Hello(Hello {
            wire_version: 2,
            schema_hash: 0x0102_0304,
            device: 0x0123_4567_89AB_CDEF,
            capabilities: Capabilities {
                model: Model::recurrent(25, 6, 8, [16, 0, 0], 10),
                tasks: Task::FitHead { head: LEAST_SQUARES }.bit() | SGD.bit(),
                roles: Role::Representation.bit(),
                tensors: 2,
                tensor_elements: 480,
                total_elements: 624,
                ..capabilities
            },
        }),
        no_body(),
    );
    add(
        "to_server_hello_adapted",
        "Hello with schema hash 0x01020304 (an example) of device 0x0123456789abcdef: 64 features, a frozen \
         layer of 64 outputs whose CRC-32C is 0x89abcdef, an adapter of rank 4, 7 classes; tasks FitHead and Sgd, roles \
         AdapterDown and AdapterUp, 2 tensors of 256 elements, 512 in all",
        ToServer::Hello(Hello {
            wire_version: 2,
            schema_hash: 0x0102_0304,
            device: 0x0123_4567_89AB_CDEF,
            capabilities: Capabilities {
                model: Model::adapted(64, 4, 64, [0; 3], 7, 0x89ab_cdef),
                tasks: Task::FitHead { head: LEAST_SQUARES }.bit() | SGD.bit(),
                roles: Role::AdapterDown.bit() | Role::AdapterUp.bit(),
                tensors: 2,
                tensor_elements: 256,
                total_elements: 512,
                ..capabilities
            },
        }),
        no_body(),
    );
    add(
        "to_server_hello_largest",
        "Hello of wire version 65535 with every number at its largest, and the first 16 bits of tasks and roles",
        ToServer::Hello(Hello {
            wire_version: u16::MAX,
            schema_hash: u32::MAX,
            device: u64::MAX,
            capabilities: Capabilities {
                frame_limit: u16::MAX,
                model: Model::convolutional(
                    Image { height: u16::MAX, width: u16::MAX, channels: u16::MAX },
                    [Filters { count: u16::MAX, side: u8::MAX, pool: u8::MAX }; 2],
                    [u16::MAX; 2],
                    u16::MAX,
                ),
                tasks: u16::MAX.into(),
                roles: u16::MAX.into(),
                encodings: u8::MAX,
                numeric: Numeric::I16,
                tensors: u8::MAX,
                tensor_elements: u32::MAX,
                total_elements: u32::MAX,
                privacy: Privacy::Gaussian { release: u32::MAX, budget: u64::MAX, spent: u64::MAX },
            },
        }),
        no_body(),
    );

    add(
        "to_server_hello_learned_prior_largest",
        "The same with all bits of tasks and roles: the longest hello there is",
        ToServer::Hello(Hello {
            wire_version: u16::MAX,
            schema_hash: u32::MAX,
            device: u64::MAX,
            capabilities: Capabilities {
                frame_limit: u16::MAX,
                model: Model::convolutional(
                    Image { height: u16::MAX, width: u16::MAX, channels: u16::MAX },
                    [Filters { count: u16::MAX, side: u8::MAX, pool: u8::MAX }; 2],
                    [u16::MAX; 2],
                    u16::MAX,
                ),
                tasks: u32::MAX,
                roles: u32::MAX,
                encodings: u8::MAX,
                numeric: Numeric::I16,
                tensors: u8::MAX,
                tensor_elements: u32::MAX,
                total_elements: u32::MAX,
                privacy: Privacy::Gaussian { release: u32::MAX, budget: u64::MAX, spent: u64::MAX },
            },
        }),
        no_body(),
    );

    let update = |samples, skipped, tensors: &[TensorDescriptor]| {
        ToServer::Update(Update { id: ID, samples, skipped, tensors: descriptor_list(tensors) })
    };
    for (name, meaning, encoding) in [
        (
            "to_server_update_gradient_f32",
            "Update of round 7, stage 1: 20 samples, the 20 x 2 gradient as f32 in the body",
            Encoding::F32,
        ),
        (
            "to_server_update_gradient_f16",
            "Update of round 7, stage 1: 20 samples, the 20 x 2 gradient as f16 in the body",
            Encoding::F16,
        ),
        (
            "to_server_update_gradient_i8",
            "Update of round 7, stage 1: 20 samples, the 20 x 2 gradient as i8 in the body \
             (a block of 32 and one of 8)",
            Encoding::I8,
        ),
        (
            "to_server_update_gradient_i8_top_k",
            "Update of round 7, stage 1: 20 samples, the largest quarter of the 20 x 2 gradient as i8 in the body \
             (8 of a block of 32, and 2 of one of 8)",
            Encoding::I8TopK,
        ),
    ] {
        let tensor = inline_tensor(Role::Gradient, encoding, 20, 2);
        add(name, meaning, update(20, 0, &[tensor]), encode_values(encoding, &gradient()));
    }
    add(
        "to_server_update_representation",
        "Update of round 7, stage 1: 300 samples, 2 skipped, a new 20 x 2 representation as f32 \
         in the body",
        update(300, 2, &[inline_tensor(Role::Representation, Encoding::F32, 20, 2)]),
        encode_values(Encoding::F32, &representation()),
    );
    add(
        "to_server_update_chunked",
        "Update of round 7, stage 1: announces a 64 x 8 gradient as f32 in chunks of 54 elements",
        update(
            1000,
            0,
            &[TensorDescriptor { chunk: 54, ..inline_tensor(Role::Gradient, Encoding::F32, 64, 8) }],
        ),
        no_body(),
    );
    let adapters = [
        inline_tensor(Role::AdapterDown, Encoding::F16, 2, 6),
        inline_tensor(Role::AdapterUp, Encoding::F16, 5, 2),
        inline_tensor(Role::FactoredHead, Encoding::F16, 2, 1),
        inline_tensor(Role::Moment, Encoding::F16, 1, 4),
        inline_tensor(Role::SharedHead, Encoding::F16, 3, 1),
    ];
    assert_eq!(adapters.len(), TENSORS_MAX);
    add(
        "to_server_update_five_tensors",
        "Update of round 7, stage 1: five f16 tensors in one body: AdapterDown 2 x 6, \
         AdapterUp 5 x 2, FactoredHead 2 x 1, Moment 1 x 4, SharedHead 3 x 1",
        update(64, 0, &adapters),
        encode_values(Encoding::F16, &Random(5).matrix(31, 1)),
    );
    add(
        "to_server_update_feature_sums",
        "Update of round 7, stage 1: sums of the features 3 and 4 of 3 samples: 1013.25, 1008.5, 1017 and -2, 0.5, -0.25",
        update(3, 0, &[inline_tensor(Role::FeatureSums, Encoding::F32, 2, SUMS_COLUMNS)]),
        encode_values(Encoding::F32, &feature_sums()),
    );
    add(
        "to_server_update_ridge_scores",
        "Update of round 7, stage 1: 20 samples, of which 4 ridges get 11, 13, 16 and 12 right",
        update(20, 0, &[inline_tensor(Role::RidgeScores, Encoding::F32, 1, 4)]),
        encode_values(Encoding::F32, &[11.0, 13.0, 16.0, 12.0]),
    );
    let (squares, crossed) = (Random(13).matrix(6, 1), Random(14).matrix(3, 1));
    add(
        "to_server_learned_prior_moments",
        "Update of round 7, stage 1: 20 samples of 3 features and one target, the 6 second moments and the 3 x 1 cross moments as \
         f32 in the body",
        update(
            20,
            0,
            &[
                inline_tensor(Role::SecondMoments, Encoding::F32, 1, 6),
                inline_tensor(Role::CrossMoments, Encoding::F32, 3, 1),
            ],
        ),
        encode_values(Encoding::F32, &[squares, crossed].concat()),
    );
    add(
        "to_server_learned_prior_heads",
        "Update of round 7, stage 1: 20 samples, the 3 x 2 head moments and the head sums 0.5, 4 and 20 as f32 in the body",
        update(
            20,
            0,
            &[
                inline_tensor(Role::HeadMoments, Encoding::F32, 3, 2),
                inline_tensor(Role::HeadSums, Encoding::F32, 1, 3),
            ],
        ),
        encode_values(Encoding::F32, &[Random(15).matrix(3, 2), vec![0.5, 4.0, 20.0]].concat()),
    );
    add(
        "to_server_learned_prior_newcomer",
        "Update of round 7, stage 1: 20 samples, the 3 x 2 newcomer gradient and the newcomer error 0.25 of 16 samples as f32 in the \
         body",
        update(
            20,
            0,
            &[
                inline_tensor(Role::NewcomerGradient, Encoding::F32, 3, 2),
                inline_tensor(Role::NewcomerError, Encoding::F32, 1, 2),
            ],
        ),
        encode_values(Encoding::F32, &[Random(18).matrix(3, 2), vec![0.25, 16.0]].concat()),
    );
    add(
        "to_server_learned_prior_evidence",
        "Update of round 7, stage 1: 20 samples, the evidence for two priors as f32 in the body: squared residuals 4 and 3.5, log \
         determinants 1.5 and 2, correct predictions 0.75 and 0.875; 20 samples, 160 predictions",
        update(20, 0, &[inline_tensor(Role::PriorEvidence, Encoding::F32, 1, 8)]),
        encode_values(Encoding::F32, &[4.0, 1.5, 0.75, 3.5, 2.0, 0.875, 20.0, 160.0]),
    );
    add(
        "to_server_chunk",
        "Chunk of the update: tensor 0, elements 54..108, as f32",
        ToServer::Chunk(Chunk { id: ID, tensor: 0, offset: 54 }),
        encode_values(Encoding::F32, &Random(6).matrix(54, 1)),
    );
    add(
        "to_server_missing",
        "Missing: the device asks for chunks 1, 3 and 200 of tensor 0",
        ToServer::Missing(Missing { id: ID, tensor: 0, chunks: [1, 3, 200].into_iter().collect() }),
        no_body(),
    );
    add("to_server_alive", "Alive", ToServer::Alive, no_body());
    add(
        "to_server_report",
        "Report: version 1.2.300, build 0xcafe0001, reset by the watchdog, 86400 s ago, counters 0 to 15",
        ToServer::Report(Report {
            firmware: Firmware { version: [1, 2, 300], build: 0xcafe_0001 },
            reset: ResetReason::Watchdog,
            uptime: 86_400,
        }),
        report_body(&std::array::from_fn::<u32, 16, _>(|index| index as u32)),
    );
    for (name, meaning, reason) in [
        ("to_server_decline_device", "Decline: Device", DeclineReason::Device),
        ("to_server_decline_no_samples", "Decline: NoSamples", DeclineReason::NoSamples),
        ("to_server_decline_non_finite", "Decline: NonFinite", DeclineReason::NonFinite),
        (
            "to_server_decline_not_orthonormal",
            "Decline: NotOrthonormal, error 0.5",
            DeclineReason::NotOrthonormal { error: 0.5 },
        ),
        ("to_server_decline_parameter", "Decline: Parameter", DeclineReason::Parameter),
        (
            "to_server_decline_round_repeated",
            "Decline: RoundRepeated, last finished round 300",
            DeclineReason::RoundRepeated { last: 300 },
        ),
        ("to_server_decline_task", "Decline: Task", DeclineReason::Task),
        ("to_server_decline_tensors", "Decline: Tensors", DeclineReason::Tensors),
        (
            "to_server_decline_budget",
            "Decline: Budget, 1000000 units are left",
            DeclineReason::Budget { left: 1_000_000 },
        ),
        ("to_server_decline_entropy", "Decline: Entropy", DeclineReason::Entropy),
        ("to_server_decline_undetermined", "Decline: Undetermined", DeclineReason::Undetermined),
        ("to_server_decline_update_non_finite", "Decline: UpdateNonFinite", DeclineReason::UpdateNonFinite),
    ] {
        add(name, meaning, ToServer::Decline(Decline { id: ID, reason }), no_body());
    }
    messages
}

/// Returns the golden messages to the device.
fn messages_to_device() -> Vec<Golden> {
    let mut messages = Vec::new();
    let mut add = |name, meaning, message, body| {
        messages.push(Golden { name, meaning, message: Message::Down(message), body });
    };
    let no_body = Vec::new;

    add(
        "to_device_welcome",
        "Welcome to campaign 0x00000000deadbeef, idle limit 60000 ms",
        ToDevice::Welcome(Welcome { campaign: 0xDEAD_BEEF, idle_milliseconds: 60_000 }),
        no_body(),
    );
    for (name, meaning, refusal) in [
        (
            "to_device_refused_wire_version",
            "Refused: version 2 is served here",
            Refusal::WireVersion { served: 2 },
        ),
        (
            "to_device_refused_schema",
            "Refused: schema 0x01020304 is served here (an example value)",
            Refusal::Schema { served: 0x0102_0304 },
        ),
        (
            "to_device_refused_model",
            "Refused: the model trained here is linear, d=57 k=8 C=7",
            Refusal::Model { expected: Model::linear(57, 8, 7) },
        ),
        (
            "to_device_refused_tasks",
            "Refused: the campaign needs the tasks FedRep and FitHead (0x0003)",
            Refusal::Capability(Requirement::Tasks(3)),
        ),
        (
            "to_device_refused_roles",
            "Refused: the campaign needs the role Gradient (0x0002)",
            Refusal::Capability(Requirement::Roles(2)),
        ),
        (
            "to_device_refused_encodings",
            "Refused: the campaign needs the encoding I8 (0x04)",
            Refusal::Capability(Requirement::Encodings(4)),
        ),
        (
            "to_device_refused_numeric",
            "Refused: the campaign needs the arithmetic I16",
            Refusal::Capability(Requirement::Numeric(Numeric::I16)),
        ),
        (
            "to_device_refused_tensor_elements",
            "Refused: the campaign needs 6272 elements in one tensor",
            Refusal::Capability(Requirement::TensorElements(6272)),
        ),
        (
            "to_device_refused_tensors",
            "Refused: the campaign needs 2 tensors in one direction of a round",
            Refusal::Capability(Requirement::Tensors(2)),
        ),
        (
            "to_device_refused_total_elements",
            "Refused: the campaign needs 6280 elements in one direction of a round",
            Refusal::Capability(Requirement::TotalElements(6280)),
        ),
        (
            "to_device_refused_privacy",
            "Refused: the campaign needs noise, and a budget of at most 2^24 units",
            Refusal::Capability(Requirement::Privacy(1 << 24)),
        ),
        ("to_device_refused_device", "Refused: UnknownDevice", Refusal::UnknownDevice),
        ("to_device_refused_key_needed", "Refused: KeyNeeded", Refusal::KeyNeeded),
        ("to_device_refused_no_keys_here", "Refused: NoKeysHere", Refusal::NoKeysHere),
        (
            "to_device_refused_frame_limit",
            "Refused: the frame limit must be 128 to 4096",
            Refusal::FrameLimit { min: FRAME_LIMIT_MIN as u16, max: FRAME_LIMIT_MAX as u16 },
        ),
    ] {
        add(name, meaning, ToDevice::Refused(refusal), no_body());
    }

    let open = |task, tensors: &[TensorDescriptor]| {
        ToDevice::RoundOpen(RoundOpen { id: ID, task, tensors: descriptor_list(tensors) })
    };
    add(
        "to_device_round_open_f32",
        "RoundOpen of round 7, stage 1: FedRep, step 0.25, least squares without ridge, gradient \
         as f32; the 20 x 2 representation as f32 in the body",
        open(
            fed_rep(Upload::Gradient, Encoding::F32),
            &[inline_tensor(Role::Representation, Encoding::F32, 20, 2)],
        ),
        encode_values(Encoding::F32, &representation()),
    );
    add(
        "to_device_round_open_f16",
        "RoundOpen of round 7, stage 1: FedRep, step 0.25, least squares without ridge, new \
         representation as f16; the 20 x 2 representation as f16 in the body",
        open(
            fed_rep(Upload::Representation, Encoding::F16),
            &[inline_tensor(Role::Representation, Encoding::F16, 20, 2)],
        ),
        encode_values(Encoding::F16, &representation()),
    );
    add(
        "to_device_round_open_i8",
        "RoundOpen of round 7, stage 1: FitHead by 10 gradient steps of size 0.5; the 20 x 2 \
         representation as i8 in the body (after the QR it is representation_i8_orthonormal)",
        open(
            Task::FitHead { head: HeadSolve::Gradient { steps: 10, step_size: 0.5 } },
            &[inline_tensor(Role::Representation, Encoding::I8, 20, 2)],
        ),
        encode_values(Encoding::I8, &representation()),
    );
    add(
        "to_device_round_open_chunked",
        "RoundOpen of round 7, stage 1: FedRep, step 0.25, least squares without ridge, gradient \
         as i8; announces a 64 x 8 representation as f32 in chunks of 54 elements",
        open(
            fed_rep(Upload::Gradient, Encoding::I8),
            &[TensorDescriptor { chunk: 54, ..inline_tensor(Role::Representation, Encoding::F32, 64, 8) }],
        ),
        no_body(),
    );
    let mut pair = encode_values(Encoding::F32, &representation());
    pair.extend(encode_values(Encoding::F32, &[0.5, -1.5]));
    add(
        "to_device_round_open_fed_avg",
        "RoundOpen of round 7, stage 1: FedAvg, steps 0.25 and 0.125, 5 local steps, upload as \
         f32; the 20 x 2 representation and the 2 x 1 shared head as f32 in one body",
        open(
            Task::FedAvg { step_size: 0.25, head_step_size: 0.125, local_steps: 5, encoding: Encoding::F32 },
            &[
                inline_tensor(Role::Representation, Encoding::F32, 20, 2),
                inline_tensor(Role::SharedHead, Encoding::F32, 2, 1),
            ],
        ),
        pair,
    );
    add(
        "to_device_round_open_power_start",
        "RoundOpen of round 7, stage 1: PowerStart; a 20 x 2 subspace as f32 in the body",
        open(Task::PowerStart, &[inline_tensor(Role::Subspace, Encoding::F32, 20, 2)]),
        encode_values(Encoding::F32, &representation()),
    );
    add(
        "to_device_round_open_fed_power",
        "RoundOpen of round 7, stage 1: FedPower, 2 iterations on features, uploading product and basis as f32; a 20 x 2 \
         subspace as f32 in the body",
        open(
            fed_power(2, PowerUpload::ProductAndBasis),
            &[inline_tensor(Role::Subspace, Encoding::F32, 20, 2)],
        ),
        encode_values(Encoding::F32, &representation()),
    );
    let layers = [
        inline_tensor(Role::Representation, Encoding::F32, 4, 3),
        inline_tensor(Role::SharedHead, Encoding::F32, 4, 2),
    ];
    add(
        "to_device_round_open_sgd",
        "RoundOpen of round 7, stage 1: Sgd with step size 0.1, momentum 0.5, batches of 10, 3 epochs on the \
         personal layers, then 2 on the shared layers, uploaded as f32; the 4 x 3 shared layers \
         of a network as f32 in the body",
        open(SGD, &layers[..1]),
        encode_values(Encoding::F32, &Random(7).matrix(4, 3)),
    );
    add(
        "to_device_round_open_lora_up",
        "RoundOpen of round 7, stage 1: Sgd with step size 0.1, momentum 0.5, batches of 10, 2 epochs on an \
         adapter's up-projection, uploaded as f32; a 4 x 2 down-projection as f32 in the body, for \
         a device that has the up-projection",
        open(LORA_UP, &[inline_tensor(Role::AdapterDown, Encoding::F32, 4, 2)]),
        encode_values(Encoding::F32, &Random(9).matrix(4, 2)),
    );
    add(
        "to_device_round_open_fit_head_sgd",
        "RoundOpen of round 7, stage 1: FitHead by 10 epochs of Sgd with step size 0.1, momentum 0.5, batches of 10; a \
         4 x 3 body and a 4 x 2 head as f32 in the body",
        open(Task::FitHead { head: HeadSolve::Sgd { epochs: 10, descent: DESCENT } }, &layers),
        encode_values(Encoding::F32, &Random(8).matrix(4, 5)),
    );
    add(
        "to_device_round_open_baseline",
        "RoundOpen of round 7, stage 1: the baseline APFL, initial mixing weight 0.5, learnt with step size 0.01; step size 0.1, \
         momentum 0.5, batches of 10, 2 epochs, uploaded as f16; a 4 x 3 body and a 4 x 2 head as f32 in the body",
        open(
            Task::Baseline {
                baseline: Baseline::Apfl { mixing_weight: 0.5, mixing_step_size: 0.01 },
                descent: DESCENT,
                epochs: 2,
                encoding: Encoding::F16,
            },
            &layers,
        ),
        encode_values(Encoding::F32, &Random(9).matrix(4, 5)),
    );
    add(
        "to_device_round_open_adapter_up",
        "RoundOpen of round 7, stage 1: AdapterUp by least squares without ridge, uploaded as f16; a 4 x 2 down-projection as f32 \
         in the body",
        open(
            Task::AdapterUp { head: HeadSolve::LeastSquares { ridge: 0.0 }, encoding: Encoding::F16 },
            &[inline_tensor(Role::AdapterDown, Encoding::F32, 4, 2)],
        ),
        encode_values(Encoding::F32, &Random(10).matrix(4, 2)),
    );
    add(
        "to_device_round_open_adapter_down",
        "RoundOpen of round 7, stage 1: AdapterDown, step 0.25, uploaded as f32; a 2 x 3 up-projection as f32 in the body, for a \
         device that has the down-projection",
        open(
            Task::AdapterDown { step_size: 0.25, encoding: Encoding::F32 },
            &[inline_tensor(Role::AdapterUp, Encoding::F32, 2, 3)],
        ),
        encode_values(Encoding::F32, &Random(11).matrix(2, 3)),
    );
    add(
        "to_device_round_open_moment_rows",
        "RoundOpen of round 7, stage 1: MomentRows, 5 rows from row 10; no tensors",
        open(Task::MomentRows { first: 10, count: 5 }, &[]),
        no_body(),
    );
    add(
        "to_device_round_open_feature_sums",
        "RoundOpen of round 7, stage 1: FeatureSums, 2 features from feature 3; no tensors",
        open(Task::FeatureSums { first: 3, count: 2 }, &[]),
        no_body(),
    );
    let scaled = [
        inline_tensor(Role::Representation, Encoding::F16, 20, 2),
        inline_tensor(Role::Scale, Encoding::F32, 2, 20),
    ];
    let scale: Vec<f32> = (0..40u8).map(|i| if i < 20 { f32::from(i) - 9.5 } else { 0.25 }).collect();
    add(
        "to_device_round_open_ridge_scores",
        "RoundOpen of round 7, stage 1: RidgeScores of heads fitted on 1 sample of each class with ridges 0.125, 0.5, 2 and 8; \
         the 20 x 2 representation as f16 and the 2 x 20 scale as f32 in one body",
        open(Task::RidgeScores { labels_per_class: 1, first: 0.125, factor: 4.0, count: 4 }, &scaled),
        [encode_values(Encoding::F16, &representation()), encode_values(Encoding::F32, &scale)].concat(),
    );
    let prior = [
        inline_tensor(Role::Representation, Encoding::F32, 3, 2),
        inline_tensor(Role::PriorMean, Encoding::F32, 3, 1),
        inline_tensor(Role::SecondMoments, Encoding::F32, 1, 6),
        inline_tensor(Role::PriorVariances, Encoding::F32, 1, 3),
    ];
    let metric = vec![1.0, 0.25, 1.0, 0.0, 0.5, 2.0];
    let prior_values =
        [Random(16).matrix(3, 2), Random(17).matrix(3, 1), metric, vec![4.0, 2.0, 0.25]].concat();
    let grid = |first, count| GeometricGrid { first, factor: 2.0, count };
    for (name, meaning, task) in [
        (
            "to_device_learned_prior_heads",
            "RoundOpen of round 7, stage 1: HeadMoments with noise of variance 0.125; a prior as f32 in the body: the 3 x 2 \
             representation, the 3 x 1 mean, the 6 second moments of the metric, the variances 4, 2 and 0.25",
            Task::HeadMoments { noise: 0.125 },
        ),
        (
            "to_device_learned_prior_evidence",
            "RoundOpen of round 7, stage 1: PriorEvidence for the factors 0.5 and 1 of the representation's variances, 0.25, 0.5 and \
             1 of the other, and 2 draws; the same prior",
            Task::PriorEvidence { spans: grid(0.5, 2), floors: grid(0.25, 3), draws: 2 },
        ),
        (
            "to_device_learned_prior_newcomer",
            "RoundOpen of round 7, stage 1: NewcomerGradient with 1 label of each class and 8 draws from number 300; the same prior",
            Task::NewcomerGradient { labels: 1, draws: 8, first: 300 },
        ),
        (
            "to_device_learned_prior_fit",
            "RoundOpen of round 7, stage 1: FitHead under the same prior, with noise of variance 0.125",
            Task::FitHead { head: HeadSolve::Prior { noise: 0.125 } },
        ),
    ] {
        add(name, meaning, open(task, &prior), encode_values(Encoding::F32, &prior_values));
    }
    let layers = [
        inline_tensor(Role::Representation, Encoding::F32, 3, 2),
        inline_tensor(Role::HeadPrior, Encoding::F32, 1, 21),
    ];
    let prior_of_layer = [
        Random(18).matrix(3, 2),
        Random(19).matrix(3, 2),
        Random(20).matrix(3, 2),
        vec![4.0, 2.0, 0.25],
        vec![1.0, 0.25, 1.0, 0.0, 0.5, 2.0],
    ]
    .concat();
    add(
        "to_device_learned_prior_network",
        "RoundOpen of round 7, stage 1: FitHead of a network's last layer, with noise of variance 0.125; as f32 in the body a 3 x 2 layer \
         and the prior of 3 x 2 heads: representation, mean, variances 4, 2 and 0.25, metric",
        open(Task::FitHead { head: HeadSolve::Prior { noise: 0.125 } }, &layers),
        encode_values(Encoding::F32, &prior_of_layer),
    );
    add(
        "to_device_learned_prior_moments",
        "RoundOpen of round 7, stage 1: PooledMoments",
        open(Task::PooledMoments, &[]),
        no_body(),
    );
    let parameters = [0.5, 3.0, -1.0, f32::from_bits(1), f32::INFINITY];
    let private_use = PrivateTask { encoding: Encoding::F16, parameters };
    for (name, meaning, task) in [
        (
            "to_device_private_use_12",
            "RoundOpen of round 7, stage 1: Private12 with parameters 0.5, 3, -1, the least subnormal and infinity, uploaded as \
             f16; a 4 x 2 representation as f32 in the body",
            Task::Private12(private_use),
        ),
        ("to_device_private_use_13", "the same as Private13", Task::Private13(private_use)),
        ("to_device_private_use_14", "the same as Private14", Task::Private14(private_use)),
        ("to_device_private_use_15", "the same as Private15", Task::Private15(private_use)),
    ] {
        let tensors = [inline_tensor(Role::Representation, Encoding::F32, 4, 2)];
        add(name, meaning, open(task, &tensors), encode_values(Encoding::F32, &Random(12).matrix(4, 2)));
    }
    add(
        "to_device_round_open_leave_one_out",
        "RoundOpen of round 7, stage 1: FitHead with the ridge of least leave-one-out error, or 0.5; the 20 x 2 \
         representation as f32 in the body",
        open(
            Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: 0.5 } },
            &[inline_tensor(Role::Representation, Encoding::F32, 20, 2)],
        ),
        encode_values(Encoding::F32, &representation()),
    );
    add(
        "to_device_chunk",
        "Chunk of the round: tensor 0, elements 0..54, as f32",
        ToDevice::Chunk(Chunk { id: ID, tensor: 0, offset: 0 }),
        encode_values(Encoding::F32, &tall_representation()[..54]),
    );
    add(
        "to_device_chunk_last",
        "Chunk of the round: tensor 0, elements 486..512, as f32: the last and shorter one",
        ToDevice::Chunk(Chunk { id: ID, tensor: 0, offset: 486 }),
        encode_values(Encoding::F32, &tall_representation()[486..]),
    );
    add(
        "to_device_chunk_long",
        "Chunk at the last possible round and offset: 150 f32 without a zero byte, so that COBS \
         blocks are full (code 0xff)",
        ToDevice::Chunk(Chunk { id: LAST, tensor: 3, offset: u32::MAX }),
        encode_values(Encoding::F32, &no_zero_byte(150)),
    );
    add(
        "to_device_missing",
        "Missing: the server asks for chunk 9 of tensor 0",
        ToDevice::Missing(Missing { id: ID, tensor: 0, chunks: [9].into_iter().collect() }),
        no_body(),
    );
    for (name, meaning, outcome) in [
        ("to_device_ack_counted", "Ack of round 7, stage 1: Counted", AckOutcome::Counted),
        ("to_device_ack_duplicate", "Ack of round 7, stage 1: Duplicate", AckOutcome::Duplicate),
        ("to_device_ack_late", "Ack of round 7, stage 1: Late", AckOutcome::Late),
        (
            "to_device_ack_rejected_content_changed",
            "Ack of round 7, stage 1: Rejected, ContentChanged",
            AckOutcome::Rejected(Rejection::ContentChanged),
        ),
        (
            "to_device_ack_rejected_no_samples",
            "Ack of round 7, stage 1: Rejected, NoSamples",
            AckOutcome::Rejected(Rejection::NoSamples),
        ),
        (
            "to_device_ack_rejected_non_finite",
            "Ack of round 7, stage 1: Rejected, NonFinite",
            AckOutcome::Rejected(Rejection::NonFinite),
        ),
        (
            "to_device_ack_rejected_norm",
            "Ack of round 7, stage 1: Rejected, NormOverBound, norm 12.5, bound 10",
            AckOutcome::Rejected(Rejection::NormOverBound { norm: 12.5, bound: 10.0 }),
        ),
        (
            "to_device_ack_rejected_not_asked",
            "Ack of round 7, stage 1: Rejected, NotAsked",
            AckOutcome::Rejected(Rejection::NotAsked),
        ),
        (
            "to_device_ack_rejected_tensors",
            "Ack of round 7, stage 1: Rejected, Tensors",
            AckOutcome::Rejected(Rejection::Tensors),
        ),
        (
            "to_device_ack_rejected_wrong_round",
            "Ack of round 7, stage 1: Rejected, WrongRound",
            AckOutcome::Rejected(Rejection::WrongRound),
        ),
    ] {
        add(name, meaning, ToDevice::Ack(Ack { id: ID, outcome }), no_body());
    }
    add("to_device_round_closed", "RoundClosed: round 7, stage 1", ToDevice::RoundClosed(ID), no_body());
    add(
        "to_device_retry_after",
        "RetryAfter: 2500 ms",
        ToDevice::RetryAfter { milliseconds: 2500 },
        no_body(),
    );
    add(
        "to_device_next_round",
        "NextRound: 3600000 ms",
        ToDevice::NextRound { milliseconds: 3_600_000 },
        no_body(),
    );
    add(
        "to_device_announced",
        "Announced: round 7, stage 1, with the tag 01 02 03 04 05 06 07 80",
        ToDevice::Announced(Announced { id: ID, tag: [1, 2, 3, 4, 5, 6, 7, 0x80] }),
        no_body(),
    );
    add(
        "to_device_new_key",
        "NewKey: epoch 516, key 60 61 .. 7f",
        ToDevice::NewKey(NewKey::from(&Key::new(516, std::array::from_fn(|i| 0x60 + i as u8)))),
        no_body(),
    );
    for (name, meaning, fault) in [
        ("to_device_fault_greet", "Fault: Greet", Fault::Greet),
        ("to_device_fault_malformed", "Fault: Malformed", Fault::Malformed),
        ("to_device_fault_tensors", "Fault: Tensors", Fault::Tensors),
        ("to_device_fault_unexpected", "Fault: Unexpected", Fault::Unexpected),
    ] {
        add(name, meaning, ToDevice::Fault(fault), no_body());
    }
    messages
}
