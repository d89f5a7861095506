//! Property tests of messages: every message round-trips, no proper prefix of a message decodes, bodies occur
//! only where allowed, sizes stay within their bounds, and no bytes cause a panic.

use crate::common::golden::{self, Message};
use crate::common::{encode_message, strategies};
use fedspan_protocol::Error;
use fedspan_protocol::limits::{
    CHECK, CHUNK_OVERHEAD, DESCRIPTOR_MAX, FRAME_LIMIT_MIN, HEADER, HELLO_FRAME_MAX, MISSING_MAX,
    OPEN_HEAD_MAX, PRIVATE_PARAMETERS, SEAL_MAX, TENSORS_MAX,
};
use fedspan_protocol::message::{
    Baseline, CHOOSES_RIDGE, Chunk, Descent, Descriptors, Firmware, GeometricGrid, HeadSolve, HelloPrefix,
    Missing, Model, ModelSizes, PowerRows, PowerUpload, PrivateTask, ReportCounters, RoundId, RoundOpen,
    Task, ToDevice, ToServer, Trained, Update, Upload, decode,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;
use serde::Serialize;

const LAST: RoundId = RoundId { round: u32::MAX, stage: u16::MAX };

/// Compares the encoded bytes of two messages, because floats may be NaN.
fn same_bytes<M: Serialize>(a: &M, b: &M) -> bool {
    encode_message(a) == encode_message(b)
}

/// Returns true if SPEC.md allows a body after the message.
fn server_has_body(message: &ToServer) -> bool {
    matches!(message, ToServer::Hello(_) | ToServer::Update(_) | ToServer::Chunk(_))
}

/// Returns true if SPEC.md allows a body after the message.
fn device_has_body(message: &ToDevice) -> bool {
    matches!(message, ToDevice::Refused(_) | ToDevice::RoundOpen(_) | ToDevice::Chunk(_))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn model_is_restored_from_its_sizes_and_its_words(model in strategies::model()) {
        let restored = match model.sizes() {
            ModelSizes::Linear { features, width, outputs } => Model::linear(features, width, outputs),
            ModelSizes::Network { features, hidden, outputs } => Model::network(features, hidden, outputs),
            ModelSizes::Convolutional { image, filters, hidden, outputs } => {
                Model::convolutional(image, filters, hidden, outputs)
            }
            ModelSizes::Recurrent { steps, channels, cells, hidden, outputs } => {
                Model::recurrent(steps, channels, cells, hidden, outputs)
            }
            ModelSizes::Adapted { features, rank, width, hidden, outputs, frozen } => {
                Model::adapted(features, rank, width, hidden, outputs, frozen)
            }
        };
        prop_assert_eq!(restored, model);
        let words = model.words();
        prop_assert_eq!(Model::from_words(words), Some(model));
        // An unknown kind, and a word after the sizes of a linear model.
        let [_, sizes @ ..] = words;
        prop_assert_eq!(Model::from_words(std::array::from_fn(|i| if i == 0 { 5 } else { sizes[i - 1] })), None);
        let mut longer = Model::linear(20, 2, 1).words();
        longer[4] = 1;
        prop_assert_eq!(Model::from_words(longer), None);
    }

    #[test]
    fn to_server_round_trips(
        message in strategies::to_server(),
        body in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let bytes = encode_message(&message);
        let (decoded, trailing) = decode::<ToServer>(&bytes).unwrap();
        prop_assert!(same_bytes(&decoded, &message) && trailing.is_empty());

        let longer = [&bytes[..], &body].concat();
        match decode::<ToServer>(&longer) {
            Ok((decoded, trailing)) => {
                prop_assert!(server_has_body(&message) && same_bytes(&decoded, &message) && trailing == body);
            }
            Err(error) => {
                prop_assert!(!server_has_body(&message));
                prop_assert_eq!(error, Error::TrailingBytes { count: body.len() });
            }
        }
        // A proper prefix is never a message: decoding reads the same bytes, and fails at the missing byte.
        for length in 0..bytes.len() {
            prop_assert_eq!(decode::<ToServer>(&bytes[..length]), Err(Error::Malformed));
        }
    }

    #[test]
    fn to_device_round_trips(
        message in strategies::to_device(),
        body in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let bytes = encode_message(&message);
        let (decoded, trailing) = decode::<ToDevice>(&bytes).unwrap();
        prop_assert!(same_bytes(&decoded, &message) && trailing.is_empty());

        let longer = [&bytes[..], &body].concat();
        match decode::<ToDevice>(&longer) {
            Ok((decoded, trailing)) => {
                prop_assert!(device_has_body(&message) && same_bytes(&decoded, &message) && trailing == body);
            }
            Err(error) => {
                prop_assert!(!device_has_body(&message));
                prop_assert_eq!(error, Error::TrailingBytes { count: body.len() });
            }
        }
        for length in 0..bytes.len() {
            prop_assert_eq!(decode::<ToDevice>(&bytes[..length]), Err(Error::Malformed));
        }
    }

    /// Tests that messages decode as with postcard's own deserializer.
    #[test]
    fn any_bytes_decode_as_with_postcard(
        tag in 0..12u8,
        rest in prop::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..80),
    ) {
        let bytes = [&[tag][..], &rest].concat();
        match (decode::<ToServer>(&bytes), postcard::take_from_bytes::<ToServer>(&bytes)) {
            (Ok((message, body)), Ok((oracle, rest))) => {
                prop_assert!(same_bytes(&message, &oracle) && body == rest);
            }
            (Err(Error::TrailingBytes { count }), Ok((_, rest))) => prop_assert_eq!(count, rest.len()),
            (decoded, oracle) => prop_assert!(decoded == Err(Error::Malformed) && oracle.is_err()),
        }
        match (decode::<ToDevice>(&bytes), postcard::take_from_bytes::<ToDevice>(&bytes)) {
            (Ok((message, body)), Ok((oracle, rest))) => {
                prop_assert!(same_bytes(&message, &oracle) && body == rest);
            }
            (Err(Error::TrailingBytes { count }), Ok((_, rest))) => prop_assert_eq!(count, rest.len()),
            (decoded, oracle) => prop_assert!(decoded == Err(Error::Malformed) && oracle.is_err()),
        }
    }

    /// Tests that bytes which decode give a message that encodes to an equal message. (The bytes can differ,
    /// because a varint may be longer than necessary.)
    #[test]
    fn any_bytes_round_trip_or_are_malformed(
        tag in 0..12u8,
        rest in prop::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..80),
    ) {
        let bytes = [&[tag][..], &rest].concat();
        if let Ok((message, body)) = decode::<ToServer>(&bytes) {
            prop_assert!(encode_message(&message).len() + body.len() <= bytes.len());
            prop_assert!(same_bytes(&decode::<ToServer>(&encode_message(&message)).unwrap().0, &message));
        }
        if let Ok((message, body)) = decode::<ToDevice>(&bytes) {
            prop_assert!(encode_message(&message).len() + body.len() <= bytes.len());
            prop_assert!(same_bytes(&decode::<ToDevice>(&encode_message(&message)).unwrap().0, &message));
        }
    }

    /// Tests that the first three fields of a hello of any version are readable, with any bytes after them.
    #[test]
    fn hello_prefix_of_any_version_is_readable(
        hello in strategies::hello(),
        later in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let bytes = encode_message(&ToServer::Hello(hello));
        let fixed = encode_message(&(0u32, hello.wire_version, hello.schema_hash, hello.device));
        prop_assert!(bytes.starts_with(&fixed));
        let expected = HelloPrefix {
            wire_version: hello.wire_version,
            schema_hash: hello.schema_hash,
            device: hello.device,
        };
        prop_assert_eq!(HelloPrefix::read(&bytes), Ok(expected));
        prop_assert_eq!(HelloPrefix::read(&[&fixed[..], &later].concat()), Ok(expected));
        for length in 0..fixed.len() {
            prop_assert_eq!(HelloPrefix::read(&fixed[..length]), Err(Error::Malformed));
        }
    }

    #[test]
    fn only_a_hello_has_a_hello_prefix(message in strategies::to_server()) {
        let introduced = HelloPrefix::read(&encode_message(&message)).is_ok();
        prop_assert_eq!(introduced, matches!(message, ToServer::Hello(_)));
    }
}

/// Tests golden messages cut at any position: either the message is malformed, or a part of its body is
/// missing, which the lengths in the descriptors show.
#[test]
fn golden_messages_cut_anywhere_are_detected() {
    for golden in golden::all_messages() {
        let bytes = golden.payload();
        let head_length = bytes.len() - golden.body.len();
        for length in 0..bytes.len() {
            let body_length = match &golden.message {
                Message::Up(original) => decode::<ToServer>(&bytes[..length]).map(|(message, body)| {
                    assert_eq!(message, *original);
                    body.len()
                }),
                Message::Down(original) => decode::<ToDevice>(&bytes[..length]).map(|(message, body)| {
                    assert_eq!(message, *original);
                    body.len()
                }),
            };
            let expected = length.checked_sub(head_length).ok_or(Error::Malformed);
            assert_eq!(body_length, expected, "{} cut at {length}", golden.name);
        }
    }
}

#[test]
fn sequence_over_its_maximum_is_malformed() {
    let missing = Missing { id: LAST, tensor: 0, chunks: (0..MISSING_MAX as u16).collect() };
    let mut bytes = encode_message(&ToServer::Missing(missing));
    assert!(decode::<ToServer>(&bytes).is_ok());
    let length_at = bytes.len() - MISSING_MAX - 1;
    assert_eq!(usize::from(bytes[length_at]), MISSING_MAX);
    bytes[length_at] += 1;
    bytes.push(0);
    assert_eq!(decode::<ToServer>(&bytes), Err(Error::Malformed));
}

#[test]
fn largest_messages_fit_the_smallest_frame() {
    let tensor = TensorDescriptor {
        role: Role::FactoredHead,
        encoding: Encoding::I8,
        rows: u16::MAX,
        cols: u16::MAX,
        chunk: u16::MAX,
    };
    let tensors: Descriptors = [tensor; TENSORS_MAX].into_iter().collect();
    let solve = HeadSolve::Gradient { steps: u16::MAX, step_size: 1.0 };
    let descent = Descent { step_size: 1.0, momentum: 1.0, batch: u16::MAX };
    let grid = GeometricGrid { first: 1.0, factor: 2.0, count: u8::MAX };
    let tasks = [
        Task::FedRep { step_size: 1.0, head: solve, upload: Upload::Representation, encoding: Encoding::I8 },
        Task::FitHead { head: solve },
        Task::FedAvg { step_size: 1.0, head_step_size: 1.0, local_steps: u16::MAX, encoding: Encoding::I8 },
        Task::PowerStart,
        Task::MomentRows { first: u16::MAX, count: u16::MAX },
        Task::FedPower {
            iterations: u16::MAX,
            rows: PowerRows::Weighted,
            upload: PowerUpload::Basis,
            encoding: Encoding::I8,
        },
        Task::FitHead { head: HeadSolve::Sgd { epochs: u16::MAX, descent } },
        Task::Sgd {
            descent,
            head_epochs: u16::MAX,
            epochs: u16::MAX,
            trained: Trained::All,
            encoding: Encoding::I8,
        },
        Task::Baseline {
            baseline: Baseline::Apfl { mixing_weight: 1.0, mixing_step_size: 0.01 },
            descent,
            epochs: u16::MAX,
            encoding: Encoding::I8,
        },
        Task::AdapterUp { head: HeadSolve::Sgd { epochs: u16::MAX, descent }, encoding: Encoding::I8 },
        Task::AdapterDown { step_size: 1.0, encoding: Encoding::I8 },
        Task::FeatureSums { first: u16::MAX, count: u16::MAX },
        Task::RidgeScores { labels_per_class: u16::MAX, first: 1.0, factor: 2.0, count: u8::MAX },
        Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: 1.0 } },
        Task::FitHead { head: HeadSolve::Prior { noise: 1.0 } },
        Task::HeadMoments { noise: 1.0 },
        Task::PriorEvidence { spans: grid, floors: grid, draws: u8::MAX },
        Task::NewcomerGradient { labels: u16::MAX, draws: u8::MAX, first: u32::MAX },
        Task::Private15(PrivateTask { encoding: Encoding::I8, parameters: [1.0; PRIVATE_PARAMETERS] }),
    ];
    for task in tasks {
        let open = RoundOpen { id: LAST, task, tensors: tensors.clone() };
        let length = encode_message(&ToDevice::RoundOpen(open)).len();
        assert!(length <= OPEN_HEAD_MAX + TENSORS_MAX * DESCRIPTOR_MAX, "{task:?}: {length}");
        assert!(HEADER + length + SEAL_MAX < FRAME_LIMIT_MIN, "{task:?}: {length}");
    }
    let update = Update { id: LAST, samples: u32::MAX, skipped: u32::MAX, tensors };
    let length = encode_message(&ToServer::Update(update)).len();
    assert!(length <= OPEN_HEAD_MAX + TENSORS_MAX * DESCRIPTOR_MAX, "Update: {length}");
    assert!(HEADER + length + SEAL_MAX < FRAME_LIMIT_MIN, "Update: {length}");

    let chunks = [u16::MAX; MISSING_MAX].into_iter().collect();
    let missing = encode_message(&ToServer::Missing(Missing { id: LAST, tensor: u8::MAX, chunks }));
    assert!(HEADER + missing.len() + SEAL_MAX < FRAME_LIMIT_MIN);
}

#[test]
fn largest_hello_fits_its_frame() {
    let largest = golden::all_messages()
        .into_iter()
        .find(|g| g.name == "to_server_hello_learned_prior_largest")
        .unwrap();
    assert!(HEADER + largest.payload().len() + CHECK <= HELLO_FRAME_MAX);
    const { assert!(HELLO_FRAME_MAX <= FRAME_LIMIT_MIN) };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Tests that a message without a body fits the smallest frame for all values of its numbers.
    #[test]
    fn every_message_without_body_fits_the_smallest_frame(up in strategies::to_server(), down in strategies::to_device()) {
        prop_assert!(HEADER + encode_message(&up).len() + SEAL_MAX <= FRAME_LIMIT_MIN);
        prop_assert!(HEADER + encode_message(&down).len() + SEAL_MAX <= FRAME_LIMIT_MIN);
    }
}

#[test]
fn seal_is_counter_and_tag() {
    assert_eq!(SEAL_MAX, 8 + 16);
}

/// Tests that the constant is exact, so that no byte of a frame is wasted.
#[test]
fn chunk_overhead_is_exact() {
    let largest = Chunk { id: LAST, tensor: u8::MAX, offset: u32::MAX };
    let up = encode_message(&ToServer::Chunk(largest)).len();
    let down = encode_message(&ToDevice::Chunk(largest)).len();
    assert_eq!(HEADER + up + SEAL_MAX, CHUNK_OVERHEAD);
    assert_eq!(HEADER + down + SEAL_MAX, CHUNK_OVERHEAD);
}

#[test]
fn longest_chunk_fits_every_frame_limit() {
    for encoding in [Encoding::F32, Encoding::F16, Encoding::I8] {
        for limit in FRAME_LIMIT_MIN..=4096 {
            let elements = encoding.chunk_elements(limit);
            assert!(elements > 0 && elements.is_multiple_of(encoding.granularity()));
            assert!(CHUNK_OVERHEAD + encoding.byte_len(elements) <= limit);
            let one_more = elements + encoding.granularity();
            assert!(CHUNK_OVERHEAD + encoding.byte_len(one_more) > limit);
        }
    }
}

/// Tests that a device that cannot select a ridge gets the same task with a fixed ridge.
#[test]
fn without_ridge_choice_keeps_the_rest_of_the_task() {
    let choice = HeadSolve::LeaveOneOut { fallback_ridge: 0.25 };
    let fixed_ridge = HeadSolve::LeastSquares { ridge: 0.25 };
    let (upload, encoding) = (Upload::Gradient, Encoding::F16);
    let tasks = |head| {
        [
            Task::FitHead { head },
            Task::FedRep { step_size: 0.5, head, upload, encoding },
            Task::AdapterUp { head, encoding },
        ]
    };
    for (with_choice, with_fixed_ridge) in tasks(choice).into_iter().zip(tasks(fixed_ridge)) {
        assert_eq!(with_choice.without_ridge_choice(), Some(with_fixed_ridge));
        assert_eq!(with_fixed_ridge.without_ridge_choice(), None);
        assert_eq!(with_choice.bit(), with_fixed_ridge.bit());
    }
    assert_eq!(Task::PowerStart.without_ridge_choice(), None);
    // The bit of this ability is not the bit of a role.
    assert_eq!(CHOOSES_RIDGE & ((Role::Scale.bit() << 1) - 1), 0);
    assert_eq!(Role::PriorMean.bit(), CHOOSES_RIDGE << 1);
}

proptest! {
    /// Tests that the body of a report is what serde writes, and that other bodies are refused.
    #[test]
    fn counters_of_a_report_are_a_sequence(counters in prop::collection::vec(any::<u32>().prop_map(|n| n >> (n % 32)), 0..=24)) {
        let mut body = vec![0xEE; ReportCounters::length_of(&counters)];
        ReportCounters::write(&counters, &mut body);
        let mut expected = [0; 256];
        prop_assert_eq!(&body[..], &*postcard::to_slice(&counters[..], &mut expected).unwrap());
        prop_assert_eq!(&ReportCounters::read(&body).unwrap().0[..], &counters[..]);
        for end in 0..body.len() {
            prop_assert!(ReportCounters::read(&body[..end]).is_err());
        }
        prop_assert!(ReportCounters::read(&[&body[..], &[0]].concat()).is_err());
        prop_assert!(ReportCounters::read(&[25; 26]).is_err());
    }
}

#[test]
fn firmware_is_read_from_a_version_and_a_build() {
    let read = |version: [u16; 3], build| Some(Firmware { version, build });
    assert_eq!(Firmware::parse("1.20.300", "0"), read([1, 20, 300], 0));
    assert_eq!(Firmware::parse("0.1.0-rc.1", "3d0d186a"), read([0, 1, 0], 0x3d0d_186a));
    assert_eq!(Firmware::parse("65535.0.65535+7", "FFFFFFFF"), read([65535, 0, 65535], u32::MAX));
    for version in [
        "",
        "1",
        "1.2",
        "1.2.",
        ".1.2",
        "1..2",
        "1.2.3.4",
        "1.2.x",
        "1.2.3x",
        "-1.2.3",
        "65536.0.0",
        "4294967297.0.0",
    ] {
        assert_eq!(Firmware::parse(version, "0"), None, "{version}");
    }
    for build in ["", "g", "0x1", "-1", "123456789", "3d0d186a "] {
        assert_eq!(Firmware::parse("1.2.3", build), None, "{build}");
    }
}
