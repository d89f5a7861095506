//! Tests of `Connection`: updates with chunks in any order, foreign and hostile bytes, and limits.

use crate::common;
use std::sync::Arc;

use crate::common::{decode_messages, encode_frame, encode_values, random, random_tensors};
use fedspan_aggregator::connection::{Acceptor, Connection, OUTBOX_MAX, PeerMessage, Traffic};
use fedspan_engine::admission::Requirements;
use fedspan_engine::{Request, Tensor};
use fedspan_engine::{RoundBroadcast, Update};
use fedspan_protocol::assembly::{Assembly, plan};
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, PRIVATE_TASKS, SCHEMA_HASH, WIRE_VERSION};
use fedspan_protocol::message::{
    Ack, AckOutcome, CHOOSES_RIDGE, Chunk, Decline, DeclineReason, Descriptors, Fault, HeadSolve, Hello,
    Missing, Refusal, Requirement, RoundId, Task, ToDevice, ToServer, Update as UpdateHead, Upload, Welcome,
    decode,
};
use fedspan_protocol::tensor::{Encoding, Role, SUMS_COLUMNS, TensorDescriptor};
use proptest::prelude::*;

const DEVICE: u64 = 9;

const WELCOME: Welcome = Welcome { campaign: 1, idle_milliseconds: 1000 };

/// Creates an acceptor for a campaign with the longest updates that frames allow.
fn create_acceptor() -> Arc<Acceptor> {
    let request = Request {
        task: Task::FitHead { head: HeadSolve::LeastSquares { ridge: 0.0 } },
        tensors: Vec::new(),
        encoding: Encoding::F32,
        expects: vec![TensorDescriptor::inline(Role::Gradient, Encoding::F32, 1024, 2)],
    };
    let model = unlimited_hello(DEVICE, (8, 2, 1), 256).capabilities.model;
    Arc::new(Acceptor::plaintext(Requirements::new(model, &[request], None), WELCOME))
}

/// Creates the hello of a device that supports tensors of any size.
fn unlimited_hello(device: u64, shape: (u16, u16, u16), limit: u16) -> Hello {
    let mut hello = common::create_hello(device, shape, limit);
    hello.capabilities.tensor_elements = u32::MAX;
    hello.capabilities.total_elements = u32::MAX;
    hello
}

/// Creates a round that sends and expects one d x k tensor. With `has_head`, the round also sends and
/// expects a 2 x 3 head.
fn create_opening(number: u32, d: u16, k: u16, encoding: Encoding, has_head: bool) -> Arc<RoundBroadcast> {
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let (download_role, upload_role) =
        (Role::Representation, if has_head { Role::Representation } else { Role::Gradient });
    let shape = |role| TensorDescriptor::inline(role, encoding, d, k);
    let shared = TensorDescriptor::inline(Role::SharedHead, encoding, 2, 3);
    let mut sends = vec![shape(download_role)];
    let mut expects = vec![shape(upload_role)];
    if has_head {
        sends.push(shared);
        expects.push(shared);
    }
    let request = Request {
        task: Task::FedRep { step_size: 0.5, head, upload: Upload::Gradient, encoding },
        tensors: random_tensors(&sends, &mut random(number.into()), 1.0),
        encoding,
        expects,
    };
    Arc::new(RoundBroadcast::new(RoundId { round: number, stage: 1 }, request).unwrap())
}

/// Creates a connection that has exchanged hello and welcome.
fn greeted_connection(limit: u16) -> Connection {
    let mut connection = Connection::new(create_acceptor());
    let results =
        deliver_message(&mut connection, &ToServer::Hello(unlimited_hello(DEVICE, (8, 2, 1), limit)), &[]);
    assert!(matches!(results.as_slice(), [PeerMessage::Hello(_)]), "{results:?}");
    assert_eq!(take_sent(&mut connection), vec![(ToDevice::Welcome(WELCOME), Vec::new())]);
    connection
}

/// Passes one message of the device to the connection and returns the resulting messages.
fn deliver_message(connection: &mut Connection, message: &ToServer, body: &[u8]) -> Vec<PeerMessage> {
    feed_bytes(connection, &encode_frame(message, body))
}

/// Passes bytes of the device to the connection and returns the resulting messages.
fn feed_bytes(connection: &mut Connection, bytes: &[u8]) -> Vec<PeerMessage> {
    let mut results = Vec::new();
    connection.receive(bytes, &mut results);
    results
}

/// Decodes all queued frames.
fn take_sent(connection: &mut Connection) -> Vec<(ToDevice, Vec<u8>)> {
    let mut bytes = Vec::new();
    while connection.next_frame(&mut bytes) {}
    decode_messages(&bytes)
}

/// Returns the frames of an update, beginning with the first message, and the update as it should arrive.
fn update_frames(opening: &RoundBroadcast, limit: usize, seed: u64) -> (Vec<Vec<u8>>, Update) {
    let mut descriptors: Descriptors = opening.request.expects.iter().copied().collect();
    plan(&mut descriptors, limit).unwrap();
    let mut values = random_tensors(&descriptors, &mut random(seed), 2.0);
    let mut bytes = Vec::new();
    for (tensor, descriptor) in values.iter_mut().zip(&descriptors) {
        let payload = encode_values(descriptor.encoding, &tensor.values);
        // The expected values are the decoded ones, which are rounded to the encoding.
        descriptor.encoding.decode(&payload, &mut tensor.values).unwrap();
        bytes.push(payload);
    }
    let update_head = UpdateHead { id: opening.id, samples: 5, skipped: 1, tensors: descriptors.clone() };
    let inline = descriptors.iter().all(|d| d.chunk == 0);
    let body = if inline { bytes.concat() } else { Vec::new() };
    let mut frames = vec![encode_frame(&ToServer::Update(update_head), &body)];
    for (tensor, descriptor) in descriptors.iter().enumerate() {
        frames.extend(
            (0..descriptor.chunks())
                .map(|index| chunk_frame(opening.id, descriptor, tensor, index, &bytes[tensor])),
        );
    }
    let update =
        Update { id: opening.id, samples: 5, skipped: 1, descriptors: descriptors.to_vec(), tensors: values };
    (frames, update)
}

/// Encodes one chunk of a tensor as a frame.
fn chunk_frame(id: RoundId, d: &TensorDescriptor, tensor: usize, index: usize, bytes: &[u8]) -> Vec<u8> {
    let range = d.chunk_range(index).unwrap();
    let first = d.encoding.byte_len(range.start);
    let body = &bytes[first..first + d.encoding.byte_len(range.len())];
    let chunk = Chunk { id, tensor: tensor as u8, offset: range.start as u32 };
    encode_frame(&ToServer::Chunk(chunk), body)
}

/// Returns the tensor values that a device has received for a round; `None` if chunks are missing.
fn received_values(frames: &[(ToDevice, Vec<u8>)]) -> Option<(RoundId, Vec<Vec<f32>>)> {
    let (opened, body) = frames.iter().rev().find_map(|(message, body)| match message {
        ToDevice::RoundOpen(opened) => Some((opened, body)),
        _ => None,
    })?;
    let mut values: Vec<Vec<f32>> = opened.tensors.iter().map(|t| vec![f32::NAN; t.elements()]).collect();
    if opened.tensors.iter().all(|t| t.chunk == 0) {
        let mut remaining = body.as_slice();
        for (tensor, values) in opened.tensors.iter().zip(&mut values) {
            let (tensor_bytes, tail) = remaining.split_at(tensor.byte_len());
            tensor.encoding.decode(tensor_bytes, values).unwrap();
            remaining = tail;
        }
        return Some((opened.id, values));
    }
    let mut assembly = Assembly::new(&opened.tensors).unwrap();
    for (message, body) in frames {
        if let ToDevice::Chunk(chunk) = message
            && chunk.id == opened.id
            && let Some(chunk_range) = assembly.accept(chunk, body.len()).unwrap()
        {
            let encoding = opened.tensors[chunk_range.tensor].encoding;
            encoding.decode(body, &mut values[chunk_range.tensor][chunk_range.elements]).unwrap();
        }
    }
    assembly.is_complete().then_some((opened.id, values))
}

/// Returns the values of an opening after decoding.
fn decoded_values(opening: &RoundBroadcast) -> Vec<Vec<f32>> {
    let decode = |(tensor, bytes): (&Tensor, &Vec<u8>)| {
        let mut values = vec![0.0; tensor.values.len()];
        opening.request.encoding.decode(bytes, &mut values).unwrap();
        values
    };
    opening.request.tensors.iter().zip(&opening.encoded).map(decode).collect()
}

fn any_encoding() -> impl Strategy<Value = Encoding> {
    prop::sample::select(vec![Encoding::F32, Encoding::F16, Encoding::I8])
}

/// Shape and encoding of a tensor, frame limit of the device, and seed of the values.
#[derive(Clone, Debug)]
struct Case {
    d: u16,
    k: u16,
    encoding: Encoding,
    has_head: bool,
    limit: u16,
    seed: u64,
}

fn random_case() -> impl Strategy<Value = Case> {
    let limit = prop_oneof![Just(128u16), 129u16..400, 400u16..=4096];
    (1u16..60, 1u16..8, any_encoding(), any::<bool>(), limit, any::<u64>())
        .prop_map(|(d, k, encoding, has_head, limit, seed)| Case { d, k, encoding, has_head, limit, seed })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// An update yields exactly one message with the bits that were sent: inline or chunked, with chunks in
    /// any order, lost chunks that are requested again, and repeated chunks. The same holds for rounds sent
    /// to the device.
    #[test]
    fn update_is_assembled_exactly_once(
        case in random_case(), order in any::<u64>(), lose in 0.0f64..0.6, piece_len in 1usize..200
    ) {
        let mut connection = greeted_connection(case.limit);
        let opening = create_opening(3, case.d, case.k, case.encoding, case.has_head);
        connection.open(&opening);
        let download = take_sent(&mut connection);
        prop_assert_eq!(received_values(&download), Some((opening.id, decoded_values(&opening))));

        let (frames, update) = update_frames(&opening, case.limit.into(), case.seed);
        let random = &mut random(order);
        let (head, chunks) = frames.split_first().unwrap();
        let mut arriving = random.choose(chunks, chunks.len());
        arriving.retain(|_| random.uniform() > lose);
        let repeat_index = random.below(arriving.len() + 1);
        if let Some(repeated) = arriving.get(repeat_index).cloned() {
            arriving.insert(0, repeated);
        }
        let bytes: Vec<u8> = [head.clone()].into_iter().chain(arriving).flatten().collect();
        let mut results: Vec<PeerMessage> =
            bytes.chunks(piece_len).flat_map(|piece| feed_bytes(&mut connection, piece)).collect();
        // Lost chunks are requested until they have arrived.
        for _ in 0..300 {
            if !results.is_empty() {
                break;
            }
            prop_assert!(connection.is_mid_message());
            connection.request_missing();
            let requests = take_sent(&mut connection);
            let [(ToDevice::Missing(missing), _)] = requests.as_slice() else { panic!("{requests:?}") };
            prop_assert_eq!(missing.id, opening.id);
            for &index in &missing.chunks {
                let chunks_before: usize =
                    update.descriptors[..missing.tensor.into()].iter().map(|d| d.chunks()).sum();
                results.extend(feed_bytes(&mut connection, &chunks[chunks_before + usize::from(index)]));
            }
        }
        prop_assert_eq!(results, vec![PeerMessage::Update(update)]);
        prop_assert!(!connection.is_mid_message());
        prop_assert_eq!(connection.pending(), 0, "more than the update was answered");
        // Chunks after the end of the update are stale and not faults.
        if let Some(last_chunk) = chunks.last() {
            let stale_before = connection.traffic().stale;
            prop_assert_eq!(feed_bytes(&mut connection, last_chunk), vec![]);
            prop_assert_eq!((connection.traffic().faults, connection.traffic().stale), (0, stale_before + 1));
        }
    }

    /// A device may request any chunks of the open round and receives exactly the requested chunks.
    #[test]
    fn requested_chunks_are_sent_again(case in random_case(), wanted in proptest::collection::btree_set(0u16..300, 1..16)) {
        let mut connection = greeted_connection(case.limit);
        let opening = create_opening(3, case.d, case.k, case.encoding, case.has_head);
        connection.open(&opening);
        let download = take_sent(&mut connection);
        let chunk_of = |index: u16| {
            download
                .iter()
                .filter(|(message, _)| matches!(message, ToDevice::Chunk(c) if c.tensor == 0))
                .nth(index.into())
        };
        let chunks = wanted.iter().copied().collect();
        let missing = Missing { id: opening.id, tensor: 0, chunks };
        let results = deliver_message(&mut connection, &ToServer::Missing(missing), &[]);
        let resent = take_sent(&mut connection);
        let existing: Vec<_> = wanted.iter().filter_map(|index| chunk_of(*index).cloned()).collect();
        let (repeated, faults): (Vec<_>, Vec<_>) =
            resent.into_iter().partition(|(message, _)| matches!(message, ToDevice::Chunk(_)));
        prop_assert_eq!(repeated, existing.clone());
        // A request for chunks that do not exist is answered with one fault.
        let is_out_of_range = existing.len() < wanted.len();
        prop_assert_eq!(faults.len(), usize::from(is_out_of_range));
        prop_assert_eq!(results, vec![PeerMessage::Fault(Fault::Tensors); usize::from(is_out_of_range)]);
        prop_assert_eq!(
            (connection.traffic().unsent, connection.traffic().faults),
            (0, u32::from(is_out_of_range))
        );
        // Chunks of another round are not sent.
        let other_round =
            Missing { id: RoundId { round: 4, stage: 1 }, tensor: 0, chunks: [0].into_iter().collect() };
        prop_assert_eq!(deliver_message(&mut connection, &ToServer::Missing(other_round), &[]), vec![]);
        prop_assert_eq!((connection.pending(), connection.traffic().stale), (0, 1));
    }

    /// After a round is replaced, the device receives no further frames of the first round and all frames of
    /// the second.
    #[test]
    fn new_round_replaces_round_being_sent(case in random_case(), after in 0usize..20, half in 0usize..20) {
        let mut connection = greeted_connection(case.limit);
        let first_opening = create_opening(3, case.d, case.k, case.encoding, case.has_head);
        let second_opening = create_opening(4, case.d, case.k, case.encoding, case.has_head);
        connection.open(&first_opening);
        let mut bytes = Vec::new();
        for _ in 0..after {
            connection.next_frame(&mut bytes);
        }
        // The device is in the middle of an update for the first round.
        let (frames, _) = update_frames(&first_opening, case.limit.into(), case.seed);
        let begun = half.min(frames.len() - 1);
        for frame in &frames[..begun] {
            feed_bytes(&mut connection, frame);
        }
        connection.open(&second_opening);
        prop_assert!(!connection.is_mid_message());
        let resent = take_sent(&mut connection);
        prop_assert!(
            resent
                .iter()
                .all(|(message, _)| !matches!(message, ToDevice::Chunk(c) if c.id == first_opening.id))
        );
        prop_assert_eq!(received_values(&resent), Some((second_opening.id, decoded_values(&second_opening))));
        // The remaining frames of the update for the first round are stale.
        for frame in &frames[begun.max(1)..] {
            feed_bytes(&mut connection, frame);
        }
        if begun > 0 {
            prop_assert_eq!(connection.traffic().faults, 0);
            prop_assert_eq!(connection.traffic().stale as usize, frames.len() - begun);
        }
        let (frames, update) = update_frames(&second_opening, case.limit.into(), case.seed);
        let results: Vec<PeerMessage> =
            frames.iter().flat_map(|frame| feed_bytes(&mut connection, frame)).collect();
        prop_assert_eq!(results.last(), Some(&PeerMessage::Update(update)));
    }

    /// If a round is closed in the middle of an update, the partial update is discarded, so the connection
    /// does not time out.
    #[test]
    fn closed_round_discards_partial_update(case in random_case(), half in 1usize..20) {
        let mut connection = greeted_connection(case.limit);
        let opening = create_opening(3, case.d, case.k, case.encoding, case.has_head);
        connection.open(&opening);
        let mut bytes = Vec::new();
        connection.next_frame(&mut bytes);
        let (frames, _) = update_frames(&opening, case.limit.into(), case.seed);
        if frames.len() == 1 {
            return Ok(());
        }
        let begun = half.min(frames.len() - 1);
        for frame in &frames[..begun] {
            feed_bytes(&mut connection, frame);
        }
        prop_assert!(connection.is_mid_message());
        // Closing another round changes nothing.
        connection.close_round(RoundId { round: 2, stage: 1 });
        prop_assert!(connection.is_mid_message());
        connection.close_round(opening.id);
        prop_assert!(!connection.is_mid_message());
        let messages: Vec<ToDevice> =
            take_sent(&mut connection).into_iter().map(|(message, _)| message).collect();
        prop_assert_eq!(messages.last(), Some(&ToDevice::RoundClosed(opening.id)));
        prop_assert!(
            messages.iter().all(|message| !matches!(message, ToDevice::Chunk(_))),
            "chunks of the closed round were sent"
        );
        for frame in &frames[begun..] {
            prop_assert_eq!(feed_bytes(&mut connection, frame), vec![]);
        }
        prop_assert_eq!(connection.traffic().faults, 0);
        prop_assert_eq!(connection.traffic().stale as usize, frames.len() - begun);
    }

    /// Arbitrary bytes before and after the hello cause neither a panic nor an update that was not sent, and
    /// queues stay bounded.
    #[test]
    fn garbage_does_no_harm(
        greet in any::<bool>(), seed in any::<u64>(),
        pieces in proptest::collection::vec((0usize..6, any::<prop::sample::Index>(), any::<u8>(), proptest::collection::vec(any::<u8>(), 0..80)), 1..40)
    ) {
        let mut connection = if greet { greeted_connection(256) } else { Connection::new(create_acceptor()) };
        let opening = create_opening(3, 40, 3, Encoding::F32, true);
        if greet {
            connection.open(&opening);
        }
        let (frames, update) = update_frames(&opening, 256, seed);
        let valid: Vec<u8> = frames.concat();
        let mut stream = Vec::new();
        for (kind, position, byte, noise) in pieces {
            let index = position.index(valid.len());
            match kind {
                0 => stream.extend_from_slice(&noise),
                1 => stream.extend_from_slice(&valid[..index]),
                2 => stream.extend_from_slice(&valid[index..]),
                3 => {
                    let mut flipped = frames[position.index(frames.len())].clone();
                    let byte_index = usize::from(byte) % flipped.len();
                    flipped[byte_index] ^= 1 << (byte % 8);
                    stream.extend_from_slice(&flipped);
                }
                4 => stream.extend_from_slice(&frames[position.index(frames.len())]),
                _ => stream.push(0),
            }
        }
        let results = feed_bytes(&mut connection, &stream);
        for inbound in &results {
            match inbound {
                PeerMessage::Update(received) => prop_assert_eq!(received, &update),
                PeerMessage::Fault(_) => {}
                PeerMessage::Hello(_) | PeerMessage::OtherDevice | PeerMessage::Refused(_) => prop_assert!(!greet),
                unexpected => panic!("{unexpected:?} was never sent"),
            }
        }
        prop_assert!(connection.pending() <= OUTBOX_MAX + 2, "{}", connection.pending());
        take_sent(&mut connection);
        let faults = results.iter().filter(|inbound| matches!(inbound, PeerMessage::Fault(_))).count();
        prop_assert_eq!(connection.traffic().faults as usize, faults, "not every fault was counted");
    }

    /// Messages that are encoded once for all devices are those that each device receives otherwise, and count as many bytes.
    #[test]
    fn shared_messages_are_those_of_each_device(case in random_case()) {
        let opening = || create_opening(3, case.d, case.k, case.encoding, case.has_head);
        let of_other_limit = opening();
        of_other_limit.planned(FRAME_LIMIT_MAX).unwrap();
        let (mut sharing, mut alone) = (greeted_connection(case.limit), greeted_connection(case.limit));
        sharing.open(&opening());
        alone.open(&of_other_limit);
        let acknowledgement = || ToDevice::Ack(Ack { id: opening().id, outcome: AckOutcome::Counted });
        sharing.send(acknowledgement());
        alone.send(acknowledgement());

        let expected = take_sent(&mut alone);
        let mut shared = Vec::new();
        while let Some(message) = sharing.take_shared() {
            shared.push(message.bytes().to_vec());
        }
        prop_assert_eq!(sharing.pending(), 0, "a message is not shared");
        let decoded: Vec<_> =
            shared.iter().map(|bytes| decode::<ToDevice>(bytes).unwrap()).map(|(m, body)| (m, body.to_vec())).collect();
        prop_assert_eq!(decoded, expected);
        prop_assert_eq!(sharing.traffic().down, alone.traffic().down);
        // The same frames, for a device at the end of a link.
        sharing.open(&opening());
        alone.open(&of_other_limit);
        let mut frames = [Vec::new(), Vec::new()];
        while sharing.next_frame(&mut frames[0]) {}
        while alone.next_frame(&mut frames[1]) {}
        prop_assert_eq!(&frames[0], &frames[1]);
    }

    /// Every byte after the hello is counted, however the stream is split.
    #[test]
    fn traffic_is_counted_to_the_byte(case in random_case(), piece_len in 1usize..300) {
        let mut connection = Connection::new(create_acceptor());
        let hello_frame = encode_frame(&ToServer::Hello(unlimited_hello(DEVICE, (8, 2, 1), case.limit)), &[]);
        let opening = create_opening(3, case.d, case.k, case.encoding, case.has_head);
        let alive = encode_frame(&ToServer::Alive, &[]);
        let later_frames: Vec<u8> = std::iter::repeat_n(alive, 9).flatten().collect();
        let stream = [hello_frame.clone(), later_frames.clone()].concat();
        for piece in stream.chunks(piece_len) {
            feed_bytes(&mut connection, piece);
        }
        prop_assert_eq!(connection.traffic().up as usize, later_frames.len());
        let mut bytes = Vec::new();
        connection.open(&opening);
        while connection.next_frame(&mut bytes) {}
        prop_assert_eq!(connection.traffic().down as usize, bytes.len());

        // A reset of the byte counters keeps the counters of dropped frames.
        deliver_message(&mut connection, &ToServer::Hello(unlimited_hello(DEVICE + 1, (8, 2, 1), 256)), &[]);
        feed_bytes(&mut connection, &[5, 1, 2, 3, 4, 0]);
        connection.reset_traffic();
        let traffic = connection.traffic();
        prop_assert_eq!((traffic.up, traffic.down, traffic.faults), (0, 0, 1));
        prop_assert!(traffic.frames.framing + traffic.frames.check + traffic.frames.header >= 1);
    }
}

#[test]
fn foreign_hello_is_refused_unread() {
    let refusal_of = |hello: Hello| {
        let mut connection = Connection::new(create_acceptor());
        let results = deliver_message(&mut connection, &ToServer::Hello(hello), &[]);
        let [PeerMessage::Refused(refusal)] = results.as_slice() else { panic!("{results:?}") };
        assert_eq!(take_sent(&mut connection), vec![(ToDevice::Refused(*refusal), Vec::new())]);
        *refusal
    };
    let valid = unlimited_hello(DEVICE, (8, 2, 1), 256);
    let version = Refusal::WireVersion { served: WIRE_VERSION };
    assert_eq!(refusal_of(Hello { wire_version: WIRE_VERSION - 1, ..valid }), version);
    assert_eq!(refusal_of(Hello { wire_version: WIRE_VERSION + 1, schema_hash: 0, ..valid }), version);
    assert_eq!(refusal_of(Hello { schema_hash: 7, ..valid }), Refusal::Schema { served: SCHEMA_HASH });
    // Versions share only the first fields of a hello.
    let mut connection = Connection::new(create_acceptor());
    let foreign = [&[fedspan_protocol::frame::HEADER_CRC32C, 0, 9, 1, 2][..], &[0xff; 40]].concat();
    let check = fedspan_protocol::frame::crc32c(&foreign).to_le_bytes();
    // The only zero byte is the second one, so the COBS encoding has two blocks.
    let checked_frame = [foreign.as_slice(), &check].concat();
    let zero_index = checked_frame.iter().position(|b| *b == 0).unwrap();
    assert!(checked_frame[zero_index + 1..].iter().all(|b| *b != 0));
    let tail = &checked_frame[zero_index + 1..];
    let wire =
        [&[zero_index as u8 + 1][..], &checked_frame[..zero_index], &[tail.len() as u8 + 1], tail, &[0]]
            .concat();
    assert_eq!(feed_bytes(&mut connection, &wire), vec![PeerMessage::Refused(version)]);
}

/// Unknown capability bits, including those of private tasks, are ignored. A campaign that needs such a
/// capability refuses devices without it.
#[test]
fn unknown_capability_bits_are_ignored_unless_needed() {
    let task_bits: [u32; 4] = [12, 13, 14, 15].map(|bit| 1 << bit);
    let valid = unlimited_hello(DEVICE, (8, 2, 1), 256);
    for bits in task_bits.into_iter().chain([PRIVATE_TASKS, u32::MAX]) {
        let mut extended = valid;
        extended.capabilities.tasks |= bits;
        extended.capabilities.roles |= !0x7F_07FF;
        extended.capabilities.encodings |= 0xF8;
        let mut connection = Connection::new(create_acceptor());
        let results = deliver_message(&mut connection, &ToServer::Hello(extended), &[]);
        assert!(matches!(results[..], [PeerMessage::Hello(hello)] if hello == extended), "{results:?}");
    }
    let request = Request {
        task: Task::FeatureSums { first: 0, count: 1 },
        tensors: Vec::new(),
        encoding: Encoding::F32,
        expects: vec![TensorDescriptor::inline(Role::FeatureSums, Encoding::F32, 1, SUMS_COLUMNS)],
    };
    let needs = Requirements::new(valid.capabilities.model, &[request], None);
    let mut without_task = valid;
    without_task.capabilities.tasks = PRIVATE_TASKS;
    let refusal = Refusal::Capability(Requirement::Tasks(1 << 10));
    assert_eq!(needs.admit(&without_task), Err(refusal));
    without_task.capabilities.tasks |= 1 << 10;
    without_task.capabilities.roles = 0;
    assert_eq!(needs.admit(&without_task), Err(Refusal::Capability(Requirement::Roles(1 << 8))));
    without_task.capabilities.roles = 1 << 8;
    assert_eq!(needs.admit(&without_task), Ok(()));
}

#[test]
fn messages_before_hello_are_faults() {
    let mut connection = Connection::new(create_acceptor());
    let opening = create_opening(1, 2, 1, Encoding::F32, false);
    let (frames, _) = update_frames(&opening, 256, 1);
    assert_eq!(feed_bytes(&mut connection, &frames.concat()), vec![PeerMessage::Fault(Fault::Unexpected)]);
    assert_eq!(
        deliver_message(&mut connection, &ToServer::Alive, &[]),
        vec![PeerMessage::Fault(Fault::Unexpected)]
    );
    assert_eq!(connection.pending(), 0, "the faults were answered");
    assert_eq!(
        connection.traffic(),
        Traffic { faults: 2, frames: connection.traffic().frames, ..Traffic::default() }
    );
    // Before the hello, frames of more than 128 bytes are dropped. This frame has 2 * 111 bytes and the final
    // zero byte.
    let oversized = [&[0x70; 0x6f][..], &[0x70; 0x6f], &[0]].concat();
    feed_bytes(&mut connection, &oversized);
    assert_eq!(connection.traffic().frames.oversize, 1);
    assert_eq!(
        deliver_message(&mut connection, &ToServer::Hello(unlimited_hello(1, (8, 2, 1), 256)), &[]).len(),
        1
    );
}

/// A repeated hello means that the device has restarted or missed its welcome, so the connection starts over.
#[test]
fn repeated_hello_starts_over() {
    let mut connection = greeted_connection(256);
    let opening = create_opening(3, 40, 3, Encoding::F32, true);
    connection.open(&opening);
    let (frames, _) = update_frames(&opening, 256, 1);
    assert!(frames.len() > 2);
    feed_bytes(&mut connection, &frames[0]);
    connection.send(ToDevice::Fault(Fault::Malformed));
    assert!(connection.is_mid_update() && connection.pending() > 0);
    let second_hello = unlimited_hello(DEVICE, (8, 2, 1), 200);
    assert_eq!(
        deliver_message(&mut connection, &ToServer::Hello(second_hello), &[]),
        vec![PeerMessage::Hello(second_hello)]
    );
    assert!(!connection.is_mid_message() && connection.pending() == 1 && connection.unanswered().is_none());
    // The frame limit of the new hello applies, and rounds continue.
    connection.open(&opening);
    let messages = take_sent(&mut connection);
    assert_eq!(
        messages[0],
        (ToDevice::Welcome(WELCOME), Vec::new()),
        "a message from before the second hello was sent"
    );
    assert!(messages.iter().all(|(_, body)| body.len() < 200));
    let (frames, update) = update_frames(&opening, 200, 1);
    assert_eq!(feed_bytes(&mut connection, &frames.concat()), vec![PeerMessage::Update(update)]);
    assert_eq!(connection.traffic().faults, 0);
}

#[test]
fn hello_of_other_device_is_a_fault() {
    let mut connection = greeted_connection(256);
    let other_hello = ToServer::Hello(unlimited_hello(DEVICE + 1, (8, 2, 1), 4096));
    assert_eq!(deliver_message(&mut connection, &other_hello, &[]), vec![PeerMessage::OtherDevice]);
    assert_eq!(take_sent(&mut connection), vec![(ToDevice::Fault(Fault::Unexpected), Vec::new())]);
    assert_eq!(connection.traffic().faults, 1);
}

/// On a persistent link a device cannot detect the begin of a new session, so the server requests a hello.
#[test]
fn persistent_link_asks_for_hello() {
    let mut connection = Connection::persistent(create_acceptor());
    let greet = vec![(ToDevice::Fault(Fault::Greet), Vec::new())];
    assert_eq!(take_sent(&mut connection), greet);
    assert_eq!(
        deliver_message(&mut connection, &ToServer::Alive, &[]),
        vec![PeerMessage::Fault(Fault::Unexpected)]
    );
    assert_eq!(take_sent(&mut connection), greet);
    feed_bytes(&mut connection, &[9; 1000]);
    assert_eq!(take_sent(&mut connection), vec![], "noise was answered");
    feed_bytes(&mut connection, &[0]);
    let first_hello = unlimited_hello(DEVICE, (8, 2, 1), 256);
    assert_eq!(
        deliver_message(&mut connection, &ToServer::Hello(first_hello), &[]),
        vec![PeerMessage::Hello(first_hello)]
    );
    let stranger = ToServer::Hello(unlimited_hello(DEVICE + 1, (8, 2, 1), 256));
    assert_eq!(deliver_message(&mut connection, &stranger, &[]), vec![PeerMessage::OtherDevice]);
}

/// A device that does not know of a new connection may send nothing but an update that is longer than a hello, again and again.
#[test]
fn long_frame_before_hello_is_answered_on_links_that_do_not_close() {
    let greet = vec![(ToDevice::Fault(Fault::Greet), Vec::new())];
    let (frames, _) = update_frames(&create_opening(1, 40, 3, Encoding::F32, false), 4096, 1);
    for (mut connection, expected) in [
        (Connection::datagrams(create_acceptor()), greet.clone()),
        (Connection::persistent(create_acceptor()), greet),
        (Connection::new(create_acceptor()), vec![]),
    ] {
        take_sent(&mut connection);
        assert_eq!(feed_bytes(&mut connection, &frames[0]), vec![]);
        assert_eq!(connection.traffic().frames.oversize, 1);
        assert_eq!(take_sent(&mut connection), expected);
    }
}

/// An unanswered round is sent again unchanged, until the device answers.
#[test]
fn unanswered_round_is_sent_again() {
    let id = RoundId { round: 3, stage: 1 };
    let missing = |round| {
        let id = RoundId { round, stage: 1 };
        ToServer::Missing(Missing { id, tensor: 0, chunks: [0u16].into_iter().collect() })
    };
    let decline = Decline { id, reason: DeclineReason::NoSamples };
    let opening = create_opening(3, 40, 3, Encoding::F32, true);
    let (frames, _) = update_frames(&opening, 256, 1);
    let answers: [Vec<u8>; 2] = [encode_frame(&ToServer::Decline(decline), &[]), frames[0].clone()];
    for answer in answers {
        let mut connection = greeted_connection(256);
        connection.resend_round();
        assert_eq!((connection.pending(), connection.unanswered().is_some()), (0, false), "a round is open");
        connection.open(&opening);
        assert!(connection.unanswered().is_none(), "a round that was not sent counts as unanswered");
        let first_messages = take_sent(&mut connection);
        assert!(connection.unanswered().is_some() && first_messages.len() > 2);
        // A decline of another round is not an answer.
        let other_decline = Decline { id: RoundId { round: 2, stage: 1 }, reason: DeclineReason::NoSamples };
        deliver_message(&mut connection, &ToServer::Decline(other_decline), &[]);
        deliver_message(&mut connection, &ToServer::Alive, &[]);
        assert!(connection.unanswered().is_some());
        connection.resend_round();
        assert_eq!(take_sent(&mut connection), first_messages);
        // A device that requests chunks is receiving the round, but may have restarted after the request.
        // Fault simulation found this case.
        for (round, repeats) in [(2, 0), (3, 1), (3, 2)] {
            deliver_message(&mut connection, &missing(round), &[]);
            take_sent(&mut connection);
            assert_eq!(connection.unanswered(), Some(repeats));
        }
        feed_bytes(&mut connection, &answer);
        take_sent(&mut connection);
        assert!(connection.unanswered().is_none());
        connection.resend_round();
        assert_eq!((connection.pending(), connection.traffic().reopened), (0, 1));
        connection.open(&opening);
        connection.close_round(id);
        take_sent(&mut connection);
        assert!(connection.unanswered().is_none(), "a closed round counts as unanswered");
    }
}

/// An announced update is compared with the request before memory is allocated.
#[test]
fn oversized_update_is_refused() {
    let announce = |rows, cols, count: usize| {
        let chunk = 1014;
        let tensor =
            TensorDescriptor { chunk, ..TensorDescriptor::inline(Role::Gradient, Encoding::F32, rows, cols) };
        let tensors = std::iter::repeat_n(tensor, count).collect();
        UpdateHead { id: RoundId { round: 3, stage: 1 }, samples: 1, skipped: 0, tensors }
    };
    let mut connection = greeted_connection(4096);
    let refused = vec![PeerMessage::Fault(Fault::Tensors)];
    // An update before a round is open is not decoded, and its chunks are stale.
    let early_head = announce(400, 500, 1);
    let id = early_head.id;
    assert_eq!(
        deliver_message(&mut connection, &ToServer::Update(early_head), &[]),
        vec![PeerMessage::UnreadUpdate(id)]
    );
    let chunk = ToServer::Chunk(Chunk { id, tensor: 0, offset: 0 });
    assert_eq!(deliver_message(&mut connection, &chunk, &[0; 4056]), vec![]);
    assert!(!connection.is_mid_message());
    connection.open(&create_opening(3, 40, 50, Encoding::F32, false));
    for (rows, cols, count) in [(40, 51, 1), (65_535, 3, 1), (400, 500, 1), (40, 50, 2), (2001, 1, 1)] {
        assert_eq!(
            deliver_message(&mut connection, &ToServer::Update(announce(rows, cols, count)), &[]),
            refused
        );
        assert!(!connection.is_mid_message());
    }
    // An update of the same size and another shape is accepted; the engine checks the shape.
    assert_eq!(deliver_message(&mut connection, &ToServer::Update(announce(50, 40, 1)), &[]), vec![]);
    assert!(connection.is_mid_message());
    // Impossible descriptors.
    for tensor in [
        TensorDescriptor { chunk: 0, ..announce(0, 5, 1).tensors[0] },
        TensorDescriptor { chunk: 33, encoding: Encoding::I8, ..announce(4, 50, 1).tensors[0] },
        TensorDescriptor { chunk: 1, ..announce(40, 50, 1).tensors[0] },
    ] {
        let tensors = [tensor].into_iter().collect();
        let head = UpdateHead { tensors, ..announce(1, 1, 1) };
        assert_eq!(deliver_message(&mut connection, &ToServer::Update(head), &[]), refused);
    }
}

#[test]
fn unannounced_chunks_are_faults() {
    let mut connection = greeted_connection(128);
    let opening = create_opening(3, 40, 3, Encoding::F32, false);
    connection.open(&opening);
    take_sent(&mut connection);
    let (frames, update) = update_frames(&opening, 128, 1);
    feed_bytes(&mut connection, &frames[0]);
    let chunk = |id, tensor, offset| Chunk { id, tensor, offset };
    let fault = |connection: &mut Connection, chunk, len: usize| {
        let results = deliver_message(connection, &ToServer::Chunk(chunk), &vec![0; len]);
        let [PeerMessage::Fault(fault)] = results.as_slice() else { panic!("{results:?}") };
        *fault
    };
    let step = u32::from(update.descriptors[0].chunk);
    let bytes = step as usize * 4;
    assert_eq!(fault(&mut connection, chunk(opening.id, 1, 0), bytes), Fault::Tensors);
    assert_eq!(fault(&mut connection, chunk(opening.id, 0, 1), bytes), Fault::Tensors);
    assert_eq!(fault(&mut connection, chunk(opening.id, 0, 120_000 / step * step), bytes), Fault::Tensors);
    assert_eq!(fault(&mut connection, chunk(opening.id, 0, u32::MAX), bytes), Fault::Tensors);
    assert_eq!(fault(&mut connection, chunk(opening.id, 0, step), bytes - 4), Fault::Tensors);
    assert_eq!(fault(&mut connection, chunk(RoundId { round: 8, stage: 0 }, 0, 0), bytes), Fault::Unexpected);
    // The faults did not affect the update.
    let results: Vec<PeerMessage> =
        frames[1..].iter().flat_map(|frame| feed_bytes(&mut connection, frame)).collect();
    assert_eq!(results, vec![PeerMessage::Update(update)]);
    assert_eq!(connection.traffic().faults, 6);
}

#[test]
fn decline_discards_partial_update() {
    let mut connection = greeted_connection(128);
    let opening = create_opening(3, 40, 3, Encoding::F32, false);
    connection.open(&opening);
    let (frames, _) = update_frames(&opening, 128, 1);
    feed_bytes(&mut connection, &frames[0]);
    let decline = Decline { id: opening.id, reason: DeclineReason::UpdateNonFinite };
    assert_eq!(
        deliver_message(&mut connection, &ToServer::Decline(decline), &[]),
        vec![PeerMessage::Decline(decline)]
    );
    assert!(!connection.is_mid_message());
    assert_eq!(feed_bytes(&mut connection, &frames[1]), vec![]);
}

/// The outbox stays bounded for any number of requests and faults in one read.
#[test]
fn outbox_is_bounded() {
    let mut connection = greeted_connection(128);
    let opening = create_opening(3, 100, 10, Encoding::F32, false);
    connection.open(&opening);
    let chunks = (0..16).collect();
    let ask = encode_frame(&ToServer::Missing(Missing { id: opening.id, tensor: 0, chunks }), &[]);
    feed_bytes(&mut connection, &ask.repeat(1000));
    assert!(connection.pending() <= OUTBOX_MAX, "{}", connection.pending());
    let nonsense =
        encode_frame(&ToServer::Chunk(Chunk { id: RoundId::default(), tensor: 0, offset: 0 }), &[1, 2, 3]);
    let results = feed_bytes(&mut connection, &nonsense.repeat(1000));
    assert!(connection.pending() <= OUTBOX_MAX, "{}", connection.pending());
    // All faults are counted, even those without a reply.
    assert_eq!((results.len(), connection.traffic().faults), (1000, 1000));
    // Messages of the core are still queued.
    connection.send(ToDevice::Ack(Ack { id: opening.id, outcome: AckOutcome::Counted }));
    assert!(take_sent(&mut connection).iter().any(|(message, _)| matches!(message, ToDevice::Ack(_))));
}

/// A round that does not fit the frame limit is counted, and no part of the round is sent. In practice,
/// admission refuses such a device.
#[test]
fn round_that_does_not_fit_is_counted() {
    let mut connection = greeted_connection(128);
    connection.open(&create_opening(3, 784, 10, Encoding::F32, false));
    assert_eq!((connection.pending(), connection.traffic().unsent), (0, 1));
}

/// A device that cannot choose ridges is asked for the same head with the fallback ridge, which is counted at
/// each opening. Other devices are asked to choose the ridge.
#[test]
fn devices_without_ridge_choice_get_fixed_ridge() {
    let chosen = Task::FitHead { head: HeadSolve::LeaveOneOut { fallback_ridge: 0.25 } };
    let fixed = Task::FitHead { head: HeadSolve::LeastSquares { ridge: 0.25 } };
    let opening = |number, task| {
        let request = Request { task, tensors: Vec::new(), encoding: Encoding::F32, expects: Vec::new() };
        Arc::new(RoundBroadcast::new(RoundId { round: number, stage: 0 }, request).unwrap())
    };
    for chooses in [false, true] {
        let mut connection = Connection::new(create_acceptor());
        let mut hello = unlimited_hello(DEVICE, (8, 2, 1), 256);
        hello.capabilities.roles |= if chooses { CHOOSES_RIDGE } else { 0 };
        deliver_message(&mut connection, &ToServer::Hello(hello), &[]);
        take_sent(&mut connection);
        let requested_task = |connection: &mut Connection| match &take_sent(connection)[..] {
            [(ToDevice::RoundOpen(round), _)] => round.task,
            unexpected => panic!("{unexpected:?}"),
        };
        connection.open(&opening(1, chosen));
        assert_eq!(requested_task(&mut connection), if chooses { chosen } else { fixed });
        connection.resend_round();
        assert_eq!(requested_task(&mut connection), if chooses { chosen } else { fixed });
        connection.open(&opening(2, fixed));
        assert_eq!(requested_task(&mut connection), fixed);
        assert_eq!(connection.traffic().unchosen, u32::from(!chooses));
        // The same device connects with a different firmware.
        hello.capabilities.roles ^= CHOOSES_RIDGE;
        deliver_message(&mut connection, &ToServer::Hello(hello), &[]);
        take_sent(&mut connection);
        connection.open(&opening(3, chosen));
        assert_eq!(requested_task(&mut connection), if chooses { fixed } else { chosen });
        assert_eq!(connection.traffic().unchosen, 1);
    }
}

/// Packets carry frames of at most 4,096 bytes: a device that could send longer ones is refused with the numbers, on no other link.
#[test]
fn packets_need_a_short_frame_limit() {
    for (limit, is_refused) in [(256, false), (4_096, false), (4_097, true), (16_384, true)] {
        let hello = ToServer::Hello(unlimited_hello(DEVICE, (8, 2, 1), limit));
        let mut packets = Connection::datagrams(create_acceptor());
        let results = deliver_message(&mut packets, &hello, &[]);
        let expected = PeerMessage::Refused(Refusal::FrameLimit { min: 128, max: 4_096 });
        assert_eq!(results == [expected], is_refused, "{results:?}");
        let mut stream = Connection::new(create_acceptor());
        assert!(matches!(deliver_message(&mut stream, &hello, &[])[..], [PeerMessage::Hello(_)]));
    }
}
