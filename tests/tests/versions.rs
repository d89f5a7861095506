//! A server and a device of different wire versions part politely, and lose nothing by it.

use std::sync::Arc;

use crate::common::{
    Board, DEVICE, Host, WELCOME, converse, gate, keys, plain, protected, requirements, round, uncobs,
};
use crate::nor::{Nor, PAGE, WORD};
use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::session::Protection;
use fedspan_client::store::{FlashStore, NoStore, record_len};
use fedspan_protocol::frame::encode;
use fedspan_protocol::limits::WIRE_VERSION;
use fedspan_protocol::message::{Hello, Refusal, ToDevice, ToServer, decode};

const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);

/// Older, the next one, and any other.
const OTHERS: [u16; 6] = [0, WIRE_VERSION - 1, WIRE_VERSION + 1, 9, 0x7FFF, u16::MAX];

/// Servers without keys and with them, and how a device of theirs is protected.
fn worlds() -> [(Arc<Acceptor>, Protection); 2] {
    [
        (Arc::new(Acceptor::plaintext(requirements(), WELCOME)), Protection::Plaintext),
        (gate(&keys(), 1), protected()),
    ]
}

#[test]
fn hellos_of_other_versions_are_refused_in_the_clear() {
    for (gate, protection) in worlds() {
        let own = Board::new(DEVICE, protection, NoStore, 1).link_up().remove(0);
        let message = uncobs(&own);
        let (own, body) = decode::<ToServer>(&message[1..message.len() - 4]).unwrap();
        let ToServer::Hello(own) = own else { panic!("{own:?}") };
        for wire_version in OTHERS {
            // What follows the first fields may be anything.
            for body in [body, &[], &[0xFF; 40]] {
                let hello = ToServer::Hello(Hello { wire_version, schema_hash: 0xFFFF, ..own });
                let mut frame = vec![0; 400];
                let length =
                    encode(&hello, body.len(), |place| place.copy_from_slice(body), &mut frame).unwrap();
                let mut host = Host::new(&gate);
                let answers = host.hear(&[frame[..length].to_vec()]);
                let refusal = Refusal::WireVersion { served: WIRE_VERSION };
                assert_eq!(answers, [plain(&ToDevice::Refused(refusal))], "{wire_version}");
                assert!(matches!(host.said[..], [PeerMessage::Refused(said)] if said == refusal));
            }
        }
    }
}

#[test]
fn a_refused_device_closes_forgets_nothing_and_comes_back() {
    for (gate, protection) in worlds() {
        for served in OTHERS {
            let keyed = !matches!(protection, Protection::Plaintext);
            let nor = Nor::new(2);
            let store = FlashStore::<_, BYTES>::new(nor.clone(), 0..2 * PAGE as u32).unwrap();
            let mut board = Board::new(DEVICE, protection.clone(), store, 1);
            let hello = board.link_up();
            let mut host = Host::new(&gate);
            converse(&mut board, &mut host, hello);
            host.said.clear();
            round(&mut board, &mut host, 1);
            // The server is now one of another version.
            board.reconnect();
            let image = nor.image();
            let refusal = Refusal::WireVersion { served };
            assert!(board.hear(&plain(&ToDevice::Refused(refusal))).is_empty());
            assert!(board.last.close);
            assert_eq!(
                board.session.refusal(),
                (!keyed).then_some(refusal),
                "only what is sealed is believed"
            );
            assert_eq!((nor.image(), board.session.last_round()), (image, 1));
            // And then one that serves the device again.
            let hello = board.reconnect();
            let mut host = Host::new(&gate);
            converse(&mut board, &mut host, hello);
            assert_eq!(host.joined(), 1);
            host.said.clear();
            round(&mut board, &mut host, 2);
            assert_eq!(board.session.last_round(), 2);
        }
    }
}
