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
use fedspan_protocol::secure::{Key, TAG, refusal_tag, transcript};

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
fn hello_of_another_version_gets_a_refusal_in_the_clear() {
    for (acceptor, protection) in acceptors() {
        let hello = Board::new(DEVICE, protection.clone(), NoStore, 1).link_up().remove(0);
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
                // A server with keys adds a tag for the key that this device number has, and a second one, unless the answer would be
                // longer than the hello, whose sender may be forged.
                let plain = encode_plain(&ToDevice::Refused(refusal));
                match &protection {
                    Protection::Key(key) if !body.is_empty() => {
                        let sent = decode_cobs(&frame[..length]);
                        let [answer] = &answers[..] else { panic!("{answers:?}") };
                        let decoded = decode_cobs(answer);
                        let (_, tags) = decode::<ToDevice>(&decoded[1..decoded.len() - 4]).unwrap();
                        assert_eq!(
                            (tags.len(), &tags[..TAG]),
                            (2 * TAG, &refusal_tag_of(key, &sent, refusal)[..])
                        );
                        assert_ne!(tags[..TAG], tags[TAG..]);
                        assert!(answer.len() <= length, "{} of {length} bytes", answer.len());
                    }
                    _ => assert_eq!(answers, [plain], "{wire_version}"),
                }
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

/// Returns the tag of a refusal for a hello, whose decoded frame is `hello`.
fn refusal_tag_of(key: &Key, hello: &[u8], refusal: Refusal) -> [u8; TAG] {
    let refused = decode_cobs(&encode_plain(&ToDevice::Refused(refusal)));
    refusal_tag(key, &transcript(&hello[1..hello.len() - 4]), &refused[1..refused.len() - 4])
}

/// Encodes a refusal with tags.
fn refused_with_tags(refusal: Refusal, tags: &[[u8; TAG]]) -> Vec<u8> {
    let (mut frame, tags) = (vec![0; 400], tags.concat());
    let refused = ToDevice::Refused(refusal);
    let length = encode(&refused, tags.len(), |body| body.copy_from_slice(&tags), &mut frame).unwrap();
    frame.truncate(length);
    frame
}

/// Tests that a device with a key accepts a refusal in the clear if it has the server's tag for this hello, and no other.
#[test]
fn device_with_a_key_recognises_the_servers_refusal() {
    let Protection::Key(key) = key_protection() else { panic!("no key") };
    for refusal in [Refusal::WireVersion { served: WIRE_VERSION + 1 }, Refusal::Schema { served: 7 }] {
        let greet = || {
            let mut board = Board::new(DEVICE, key_protection(), NoStore, 1);
            let hello = decode_cobs(&board.link_up().remove(0));
            (board, hello)
        };
        let (_, hello) = greet();
        let right = refusal_tag_of(&key, &hello, refusal);
        let other_key = refusal_tag_of(&Key::new(0, [9; 32]), &hello, refusal);
        let other_refusal = refusal_tag_of(&key, &hello, Refusal::WireVersion { served: 1 });
        let mut other_hello = hello.clone();
        other_hello[20] ^= 1;
        let other_hello = refusal_tag_of(&key, &other_hello, refusal);
        let mut changed = right;
        changed[15] ^= 0x80;
        let wrong = [other_key, other_refusal, other_hello, changed, [0; TAG]];
        // While a key is being replaced, the server sends a tag for each.
        for tags in [vec![right], vec![other_key, right], vec![right, other_key]] {
            let (mut board, _) = greet();
            assert!(board.receive(&refused_with_tags(refusal, &tags)).is_empty());
            assert_eq!((board.session.refusal(), board.last_progress.close), (Some(refusal), true));
        }
        for tags in wrong.map(|tag| vec![tag]).into_iter().chain([vec![], wrong.to_vec()]) {
            let (mut board, _) = greet();
            assert!(board.receive(&refused_with_tags(refusal, &tags)).is_empty());
            assert_eq!((board.session.refusal(), board.last_progress.close), (None, true), "{tags:?}");
        }
    }
}
