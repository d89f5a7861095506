//! Tests of tasks for private use, and of the numbers of all tasks: a task's number on the wire is its bit in
//! a set of tasks, the parameters of a private task have a fixed length, and a hello has the layout of builds without these tasks.

use crate::common::golden::Message;
use crate::common::{Event, decode_stream, encode_message, golden, strategies};
use fedspan_protocol::Error;
use fedspan_protocol::limits::{OPEN_HEAD_MAX, PRIVATE_PARAMETERS, PRIVATE_TASKS, SCHEMA_HASH, WIRE_VERSION};
use fedspan_protocol::message::{
    Descriptors, Hello, PrivateTask, RoundId, RoundOpen, Task, TaskKind, ToDevice, ToServer, decode,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

/// Length of a task for private use, in bytes: tag, encoding, parameters.
const LENGTH: usize = 2 + 4 * PRIVATE_PARAMETERS;

/// Returns the four tasks for private use with these parameters.
fn private_tasks(task: PrivateTask) -> [Task; 4] {
    [Task::Private12(task), Task::Private13(task), Task::Private14(task), Task::Private15(task)]
}

/// Encodes a `RoundOpen` of a task.
fn round_open(task: Task) -> Vec<u8> {
    let id = RoundId { round: 7, stage: 1 };
    encode_message(&ToDevice::RoundOpen(RoundOpen { id, task, tensors: Descriptors::new() }))
}

/// Decodes a `RoundOpen` and returns its task.
fn task_of(bytes: &[u8]) -> Result<Task, Error> {
    match decode::<ToDevice>(bytes)? {
        (ToDevice::RoundOpen(open), _) => Ok(open.task),
        other => panic!("{other:?}"),
    }
}

#[test]
fn kinds_are_numbered_in_order() {
    for (number, kind) in (0u8..).zip(TaskKind::ALL) {
        assert_eq!((kind as u8, kind.bit()), (number, 1 << number));
        assert_eq!(kind.is_in(PRIVATE_TASKS), (12..16).contains(&number));
        assert!(!kind.is_in(!kind.bit()));
    }
    let private_bits = private_tasks(PrivateTask::default()).map(|task| task.bit());
    assert_eq!(private_bits.iter().sum::<u32>(), PRIVATE_TASKS);
}

/// Tests that the tasks for private use do not increase the size of [`Task`], whose longest variant is
/// `Baseline`.
#[test]
fn task_has_the_size_of_its_longest_assigned_variant() {
    assert_eq!(size_of::<Task>(), 28);
    assert!(size_of::<PrivateTask>() < size_of::<Task>());
    const { assert!(1 + 5 + 3 + LENGTH < OPEN_HEAD_MAX) };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Tests that the tag in a task's encoding is the number of its kind, and the position of its bit.
    #[test]
    fn kind_is_the_number_on_the_wire(task in strategies::task()) {
        let tag = encode_message(&task)[0];
        prop_assert_eq!(task.kind() as u8, tag);
        prop_assert_eq!(task.bit(), 1 << tag);
        prop_assert_eq!(TaskKind::from(task), task.kind());
        prop_assert_eq!(TaskKind::ALL[usize::from(tag)], task.kind());
    }

    /// Tests that any bits after the two tags are parameters, and that the same bits are encoded again.
    #[test]
    fn parameters_are_any_bits_of_a_fixed_length(
        index in 0..4usize,
        encoding in 0..3u8,
        parameters in prop::collection::vec(any::<u8>(), 4 * PRIVATE_PARAMETERS),
    ) {
        let task = [&[12 + index as u8, encoding], &parameters[..]].concat();
        let message = [&[2, 7, 1], &task[..], &[0]].concat();
        let decoded = task_of(&message).unwrap();
        prop_assert_eq!(decoded.kind() as usize, 12 + index);
        prop_assert_eq!(encode_message(&decoded), task);
        prop_assert_eq!(round_open(decoded), message);
    }

    /// Tests that a shorter task and an unknown encoding are malformed. Since the parameters have no length
    /// field, bytes after the fixed block are read as the number of tensors.
    #[test]
    fn other_lengths_and_encodings_are_malformed(
        index in 0..4u8,
        encoding in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let message = [&[2, 7, 1, 12 + index, encoding], &bytes[..]].concat();
        // A byte of 128 or more is the start of a varint.
        let complete = encoding < 4 && bytes.len() > 4 * PRIVATE_PARAMETERS;
        let decoded = task_of(&message);
        if let Ok(task) = decoded {
            prop_assert!(complete || encoding >= 128);
            prop_assert!(matches!(task.kind() as u8, 12..16));
        } else {
            prop_assert_eq!(decoded, Err(Error::Malformed));
            // The task is complete, but the list of tensors is not.
            prop_assert!(!complete || bytes[4 * PRIVATE_PARAMETERS] != 0);
        }
    }
}

#[test]
fn numbers_above_the_last_task_are_malformed() {
    for tag in 20..128u8 {
        for fields in [0u8, 1, 0x7F, 0xFF] {
            let message = [&[2, 7, 1, tag][..], &[fields; 40]].concat();
            assert_eq!(decode::<ToDevice>(&message), Err(Error::Malformed), "{tag} {fields}");
        }
    }
}

/// Tests that a hello of version 2 from before these tasks had fields has the present layout: only the schema hash differs, which is
/// that of a development build with other messages.
#[test]
fn hello_of_earlier_builds_has_the_same_layout() {
    /// Hello of such a build, a copy of `vectors/to_server_hello.bin` at that time.
    const BEFORE: &[u8] = include_bytes!("data/hello_before_private_use.bin");
    let golden = golden::all_messages().into_iter().find(|golden| golden.name == "to_server_hello").unwrap();
    let (events, _) = decode_stream(128, BEFORE, &[128]);
    let [Event::Message(message)] = &events[..] else { panic!("{events:?}") };
    let (ToServer::Hello(before), []) = decode(message).unwrap() else { panic!("{message:?}") };
    let Message::Up(ToServer::Hello(present)) = golden.message else { panic!("{:?}", golden.message) };
    assert_eq!((before.wire_version, present.schema_hash), (WIRE_VERSION, SCHEMA_HASH));
    assert_ne!(before.schema_hash, SCHEMA_HASH);
    assert_eq!((before.device, before.capabilities), (present.device, present.capabilities));
    assert_eq!(before.capabilities.tasks & PRIVATE_TASKS, 0);
    // Private tasks change only their bits.
    let mut capabilities = present.capabilities;
    capabilities.tasks |= TaskKind::Private12.bit();
    let hello = Hello::new(present.device, capabilities);
    assert_eq!((hello.wire_version, hello.schema_hash), (present.wire_version, present.schema_hash));
}

/// Tests that the schema hash excludes the messages with these tasks and no others.
#[test]
fn messages_outside_the_schema_hash_have_private_tasks() {
    let mut outside = 0;
    for golden in golden::all_messages() {
        let private = match &golden.message {
            golden::Message::Down(ToDevice::RoundOpen(open)) => open.task.kind().is_in(PRIVATE_TASKS),
            _ => false,
        };
        assert_eq!(golden.name.contains(golden::PRIVATE_USE), private, "{}", golden.name);
        outside += usize::from(private);
    }
    assert_eq!(outside, 4);
    let task = PrivateTask { encoding: Encoding::I8, parameters: [f32::NAN; PRIVATE_PARAMETERS] };
    assert_eq!(round_open(Task::Private14(task)).len(), 3 + LENGTH + 1);
}
