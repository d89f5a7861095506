//! Tests of the first sealed frame of a device, which proves its key: a report in it is read, everything else is ignored.

use std::sync::Arc;

use crate::common::create_hello;
use fedspan_aggregator::connection::{Acceptor, Connection, DeviceReport, PeerMessage};
use fedspan_aggregator::keys::{ActiveKeys, Entropy, KeyError, KeyTable};
use fedspan_engine::DeviceId;
use fedspan_engine::admission::Requirements;
use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::message::{Report, ReportCounters, ToServer, Welcome};
use fedspan_protocol::secure::{Channel, HandshakeInit, Key, answer_nonce, encode_hello};

/// Source of randomness that always returns the same bytes.
struct ConstantEntropy;

impl Entropy for ConstantEntropy {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), KeyError> {
        bytes.fill(7);
        Ok(())
    }
}

fn device_key() -> Key {
    Key::new(0, [3; 32])
}

/// Returns a connection that has answered the hello of device 1, and the device's channel.
fn answered_connection() -> (Connection, Channel) {
    let mut keys = KeyTable::new();
    keys.insert(DeviceId(1), device_key(), 0).unwrap();
    let hello = create_hello(1, (64, 4, 1), 256);
    let requirements = Requirements::new(hello.capabilities.model, &[], None);
    let welcome = Welcome { campaign: 1, idle_milliseconds: 1000 };
    let acceptor =
        Acceptor::encrypted(requirements, welcome, ActiveKeys::new(keys), Box::new(ConstantEntropy));
    let mut connection = Connection::new(Arc::new(acceptor));
    let init = HandshakeInit { epoch: 0, handshake: 5, nonce: [3; 16] };
    let mut buffer = [0; 300];
    let (length, transcript) = encode_hello(hello, &init, &mut buffer).unwrap();
    assert_eq!(connection.next_message(&mut &buffer[..length]), None);
    let mut answer = Vec::new();
    assert!(connection.next_frame(&mut answer));
    let mut decoder = Decoder::new(vec![0; 300]);
    let FeedResult::Sealed(frame) = decoder.feed(&mut &answer[..]) else { panic!("no answer") };
    let mut channel = Channel::device(&device_key(), &transcript, &answer_nonce(frame).unwrap());
    channel.open(frame).unwrap();
    (connection, channel)
}

/// Seals a message of the device.
fn seal(channel: &mut Channel, message: &ToServer, body: &[u8]) -> Vec<u8> {
    let mut buffer = [0; 300];
    let length = channel.seal(message, body.len(), |out| out.copy_from_slice(body), &mut buffer).unwrap();
    buffer[..length].to_vec()
}

/// Returns the messages that the connection reads.
fn receive(connection: &mut Connection, bytes: &[u8]) -> Vec<PeerMessage> {
    let mut messages = Vec::new();
    connection.receive(bytes, &mut messages);
    assert!(!connection.has_message());
    messages
}

/// Over UDP the proof can be lost. The report after it is then the proof, and the next report comes 64 rounds later.
#[test]
fn report_is_read_if_the_proof_before_it_is_lost() {
    let report = Report { firmware: Default::default(), reset: Default::default(), uptime: 77 };
    let mut body = vec![0; ReportCounters::length_of(&[4, 300])];
    ReportCounters::write(&[4, 300], &mut body);
    let is_report = |message: &PeerMessage| match message {
        PeerMessage::Report(read) => {
            let DeviceReport { report: read, counters } = &**read;
            *read == report && counters.0[..] == [4, 300]
        }
        _ => false,
    };
    for loses_proof in [false, true] {
        let (mut connection, mut channel) = answered_connection();
        let proof = seal(&mut channel, &ToServer::Alive, &[]);
        let frame = seal(&mut channel, &ToServer::Report(report), &body);
        let arrived = if loses_proof { frame.clone() } else { [proof, frame.clone()].concat() };
        let messages = receive(&mut connection, &arrived);
        assert!(
            matches!(&messages[..], [PeerMessage::Hello(hello), read] if hello.device == 1 && is_report(read)),
            "{messages:?}"
        );
        // A repetition by the network is no second report.
        assert_eq!(receive(&mut connection, &frame), []);
    }
}

/// Everything else in the first frame is ignored: a report that is malformed, and messages before a round.
#[test]
fn other_content_of_the_first_frame_is_ignored() {
    let report = Report { firmware: Default::default(), reset: Default::default(), uptime: 77 };
    for (message, body) in [(ToServer::Report(report), &[200, 1][..]), (ToServer::Alive, &[])] {
        let (mut connection, mut channel) = answered_connection();
        let proof = seal(&mut channel, &message, body);
        let messages = receive(&mut connection, &proof);
        assert!(matches!(&messages[..], [PeerMessage::Hello(_)]), "{messages:?}");
    }
}
