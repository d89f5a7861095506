//! Tests that a device and a server with different wire versions refuse each other without losing state.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, ServerEnd, WELCOME, active_keys, decode_cobs, encode_plain, encrypted_acceptor,
    exchange_frames, key_protection, requirements, run_round,
};
use crate::nor_flash::{Nor, PAGE, WORD};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::session::Protection;
use fedspan_client::store::{FlashStore, NoStore, record_len};
use fedspan_protocol::frame::encode;
use fedspan_protocol::limits::WIRE_VERSION;
use fedspan_protocol::message::{Hello, Refusal, ToDevice, ToServer, decode};

/// Size of the device's saved state (its record) in flash, in bytes.
const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);

/// Older versions, the next version, and arbitrary versions.
const OTHERS: [u16; 6] = [0, WIRE_VERSION - 1, WIRE_VERSION + 1, 9, 0x7FFF, u16::MAX];

/// Creates acceptors without and with keys, each with the protection of its devices.
fn acceptors() -> [(Arc<Acceptor>, Protection); 2] {
    [
        (Arc::new(Acceptor::plaintext(requirements(), WELCOME)), Protection::Plaintext),
        (encrypted_acceptor(&active_keys(), 1), key_protection()),
    ]
}

#[test]
fn hello_of_another_version_gets_a_plain_refusal() {
    for (acceptor, protection) in acceptors() {
        let hello = Board::new(DEVICE, protection, NoStore, 1).link_up().remove(0);
        let message = decode_cobs(&hello);
        let (hello, body) = decode::<ToServer>(&message[1..message.len() - 4]).unwrap();
        let ToServer::Hello(hello) = hello else { panic!("{hello:?}") };
        for wire_version in OTHERS {
            // The bytes after the first fields may be arbitrary.
            for body in [body, &[], &[0xFF; 40]] {
                let hello = ToServer::Hello(Hello { wire_version, schema_hash: 0xFFFF, ..hello });
                let mut frame = vec![0; 400];
                let length =
                    encode(&hello, body.len(), |buffer| buffer.copy_from_slice(body), &mut frame).unwrap();
                let mut server = ServerEnd::new(&acceptor);
                let answers = server.receive(&[frame[..length].to_vec()]);
                let refusal = Refusal::WireVersion { served: WIRE_VERSION };
                assert_eq!(answers, [encode_plain(&ToDevice::Refused(refusal))], "{wire_version}");
                assert!(matches!(server.events[..], [PeerMessage::Refused(sent)] if sent == refusal));
            }
        }
    }
}

#[test]
fn refused_device_keeps_its_state_and_reconnects() {
    for (acceptor, protection) in acceptors() {
        for served in OTHERS {
            let has_key = !matches!(protection, Protection::Plaintext);
            let nor = Nor::new(2);
            let store = FlashStore::<_, BYTES>::new(nor.clone(), 0..2 * PAGE as u32).unwrap();
            let mut board = Board::new(DEVICE, protection.clone(), store, 1);
            let hello = board.link_up();
            let mut server = ServerEnd::new(&acceptor);
            exchange_frames(&mut board, &mut server, hello);
            server.events.clear();
            run_round(&mut board, &mut server, 1);
            // The device reconnects to a server with another version.
            board.reconnect();
            let image = nor.image();
            let refusal = Refusal::WireVersion { served };
            assert!(board.receive(&encode_plain(&ToDevice::Refused(refusal))).is_empty());
            assert!(board.last_progress.close);
            assert_eq!(
                board.session.refusal(),
                (!has_key).then_some(refusal),
                "a device with a key ignores a plain refusal"
            );
            assert_eq!((nor.image(), board.session.last_round()), (image, 1));
            // The device reconnects to a server with its own version.
            let hello = board.reconnect();
            let mut server = ServerEnd::new(&acceptor);
            exchange_frames(&mut board, &mut server, hello);
            assert_eq!(server.count_hellos(), 1);
            server.events.clear();
            run_round(&mut board, &mut server, 2);
            assert_eq!(board.session.last_round(), 2);
        }
    }
}
