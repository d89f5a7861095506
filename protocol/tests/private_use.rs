//! Tests of tasks for private use, and the numbers of all tasks: a task's number on the wire is its bit in a set of
//! tasks, the parameters of an own task have a fixed length, and builds with and without these tasks accept each
//! other.

use crate::common::{Event, events, golden, head, strategies};
use fedspan_protocol::Error;
use fedspan_protocol::limits::{OPEN_HEAD_MAX, PRIVATE_PARAMETERS, PRIVATE_TASKS, SCHEMA_HASH, WIRE_VERSION};
use fedspan_protocol::message::{
    Descriptors, Hello, PrivateTask, RoundId, RoundOpen, Task, TaskKind, ToDevice, ToServer, decode,
};
use fedspan_protocol::tensor::Encoding;
use proptest::prelude::*;

/// Bytes of a task for private use: tag, encoding, parameters.
const LENGTH: usize = 2 + 4 * PRIVATE_PARAMETERS;

fn variants(task: PrivateTask) -> [Task; 4] {
    [Task::Private12(task), Task::Private13(task), Task::Private14(task), Task::Private15(task)]
}

fn round_open(task: Task) -> Vec<u8> {
    let id = RoundId { round: 7, stage: 1 };
    head(&ToDevice::RoundOpen(RoundOpen { id, task, tensors: Descriptors::new() }))
}

fn task_of(bytes: &[u8]) -> Result<Task, Error> {
    match decode::<ToDevice>(bytes)? {
        (ToDevice::RoundOpen(open), _) => Ok(open.task),
        other => panic!("{other:?}"),
    }
}

#[test]
fn kinds_are_numbered_in_order_and_private_ones_come_last() {
    for (number, kind) in (0u8..).zip(TaskKind::ALL) {
        assert_eq!((kind as u8, kind.bit()), (number, 1 << number));
        assert_eq!(kind.is_in(PRIVATE_TASKS), number >= 12);
        assert!(!kind.is_in(!kind.bit()));
    }
    let own = variants(PrivateTask::default()).map(|task| task.bit());
    assert_eq!(own.iter().sum::<u16>(), PRIVATE_TASKS);
}

/// The memory of a round's task does not grow by the tasks for private use: the longest is `Baseline`.
#[test]
fn task_has_the_size_of_its_longest_assigned_variant() {
    assert_eq!(size_of::<Task>(), 28);
    assert!(size_of::<PrivateTask>() < size_of::<Task>());
    const { assert!(1 + 5 + 3 + LENGTH < OPEN_HEAD_MAX) };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// The tag that a task is encoded with is the number of its kind, and the place of its bit.
    #[test]
    fn kind_is_the_number_on_the_wire(task in strategies::task()) {
        let tag = head(&task)[0];
        prop_assert_eq!(task.kind() as u8, tag);
        prop_assert_eq!(task.bit(), 1 << tag);
        prop_assert_eq!(TaskKind::from(task), task.kind());
        prop_assert_eq!(TaskKind::ALL[usize::from(tag)], task.kind());
    }

    /// Any bits after the two tags are parameters, and exactly these bits are encoded again.
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
        prop_assert_eq!(head(&decoded), task);
        prop_assert_eq!(round_open(decoded), message);
    }

    /// A peer cannot lie about a length, because there is none: a shorter task and an unknown encoding are malformed,
    /// and bytes after the fixed block are read as the number of tensors.
    #[test]
    fn other_lengths_and_encodings_are_malformed(
        index in 0..4u8,
        encoding in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let message = [&[2, 7, 1, 12 + index, encoding], &bytes[..]].concat();
        // An encoding of 128 or more is the start of a varint.
        let complete = encoding < 3 && bytes.len() > 4 * PRIVATE_PARAMETERS;
        let decoded = task_of(&message);
        if let Ok(task) = decoded {
            prop_assert!(complete || encoding >= 128);
            prop_assert!(matches!(task.kind() as u8, 12..16));
        } else {
            prop_assert_eq!(decoded, Err(Error::Malformed));
            // Complete, but its list of tensors is not.
            prop_assert!(!complete || bytes[4 * PRIVATE_PARAMETERS] != 0);
        }
    }
}

#[test]
fn numbers_above_fifteen_are_malformed() {
    for tag in 16..128u8 {
        for fields in [0u8, 1, 0x7F, 0xFF] {
            let message = [&[2, 7, 1, tag][..], &[fields; 40]].concat();
            assert_eq!(decode::<ToDevice>(&message), Err(Error::Malformed), "{tag} {fields}");
        }
    }
}

/// Builds of version 2 before these tasks had fields, whose bytes are pinned here, and this build accept each other:
/// each side compares version and hash only, and the hello is the same to the last byte.
#[test]
fn builds_before_private_use_are_accepted() {
    /// Hello of such a build, as it was in `vectors/to_server_hello.bin`.
    const BEFORE: &[u8] = include_bytes!("data/hello_before_private_use.bin");
    let golden = golden::all().into_iter().find(|golden| golden.name == "to_server_hello").unwrap();
    assert_eq!(golden.frame(), BEFORE);
    let (read, _) = events(128, BEFORE, &[128]);
    let [Event::Message(message)] = &read[..] else { panic!("{read:?}") };
    let (ToServer::Hello(before), []) = decode(message).unwrap() else { panic!("{message:?}") };
    assert_eq!((before.wire_version, before.schema_hash), (WIRE_VERSION, SCHEMA_HASH));
    assert_eq!(before, Hello::new(before.device, before.capabilities));
    assert_eq!(before.capabilities.tasks & PRIVATE_TASKS, 0);
    // Own tasks change nothing but their bits.
    let mut own = before.capabilities;
    own.tasks |= TaskKind::Private12.bit();
    let hello = Hello::new(before.device, own);
    assert_eq!((hello.wire_version, hello.schema_hash), (before.wire_version, before.schema_hash));
}

/// The schema hash leaves out the messages with these tasks and no others.
#[test]
fn messages_outside_the_schema_hash_have_private_tasks() {
    let mut outside = 0;
    for golden in golden::all() {
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
