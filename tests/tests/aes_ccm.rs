//! Tests of devices that seal their frames with AES-128-CCM, by software or by the hardware of a chip, on a server that takes both
//! algorithms.

use std::cell::RefCell;

use crate::common::{
    Board, DEVICE, ServerEnd, active_keys, encrypted_acceptor, exchange_frames, key_protection,
    round_broadcast, run_round,
};
use fedspan_aggregator::connection::PeerMessage;
use fedspan_client::secure::{Aead, Aes128, Aes128Ccm, Suite};
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Workspace};
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::message::{SEALS_WITH_AES_CCM, ToServer, decode};
use fedspan_protocol::secure::SoftwareAes;

/// AES of a chip: a peripheral that exists once, and breaks after a number of blocks.
struct Peripheral {
    aes: SoftwareAes,
    works_for: u32,
}

/// Returns the algorithm over a peripheral that breaks after a number of blocks.
fn hardware(works_for: u32) -> RefCell<Aes128Ccm<Peripheral>> {
    RefCell::new(Aes128Ccm::new(Peripheral { aes: SoftwareAes::default(), works_for }))
}

impl Aes128 for Peripheral {
    fn set_key(&mut self, key: &[u8; 16]) -> Option<()> {
        self.aes.set_key(key)
    }

    fn encrypt_block(&mut self, block: &mut [u8; 16]) -> Option<()> {
        let is_broken = self.works_for == 0;
        self.works_for = self.works_for.saturating_sub(1);
        if is_broken { None } else { self.aes.encrypt_block(block) }
    }
}

/// Creates a device whose frames are sealed by `aead`.
fn board<A: Aead + Clone>(protection: Protection, aead: A) -> Board<NoStore, Linear<Workspace<20, 2>>, A> {
    let config = Config { frame_limit: 256, ..Config::new(DEVICE) };
    Board::with_aead(config, protection, aead, Linear::new(Workspace::new()), NoStore, 1)
}

fn server() -> ServerEnd {
    ServerEnd::new(&encrypted_acceptor(&active_keys(), 1))
}

fn short(protection: Protection) -> Protection {
    match protection {
        Protection::Key(key) => Protection::ShortTags(key),
        other => other,
    }
}

#[test]
fn rounds_are_sealed_with_both_algorithms_and_lengths_of_tags() {
    let mut frames = Vec::new();
    for suite in [Suite::ChaCha20Poly1305, Suite::Aes128Ccm] {
        for protection in [key_protection(), short(key_protection())] {
            let (mut board, mut server) = (board(protection, suite), server());
            let hello = board.link_up();
            exchange_frames(&mut board, &mut server, hello);
            assert!(matches!(server.events[..], [PeerMessage::Hello(_)]), "{suite:?}: {:?}", server.events);
            server.events.clear();
            for round in 1..=3 {
                let (up, down) = run_round(&mut board, &mut server, round);
                frames.extend(up);
                frames.extend(down);
            }
            assert_eq!((board.session.counters().counted, board.rejected()), (3, 0), "{suite:?}");
            assert_eq!(server.connection.traffic().protocol_errors(), 0);
        }
    }
    let count = frames.len();
    frames.sort();
    frames.dedup();
    assert_eq!(frames.len(), count, "no two frames are equal, though the rounds are");
}

#[test]
fn hardware_that_exists_once_serves_connection_after_connection() {
    let peripheral = hardware(u32::MAX);
    let (mut board, mut server) = (board(key_protection(), &peripheral), server());
    let hello = board.link_up();
    exchange_frames(&mut board, &mut server, hello);
    server.events.clear();
    run_round(&mut board, &mut server, 1);
    let mut next = ServerEnd::new(&encrypted_acceptor(&active_keys(), 2));
    let hello = board.reconnect();
    exchange_frames(&mut board, &mut next, hello);
    next.events.clear();
    run_round(&mut board, &mut next, 2);
    assert_eq!((board.session.counters().counted, board.rejected()), (2, 0));
}

/// Hardware that breaks at any block: nothing leaves the device that is not sealed, with either length of tags.
#[test]
fn broken_hardware_sends_nothing() {
    let mut completed = 0;
    for works_for in 0..80 {
        for protection in [key_protection(), short(key_protection())] {
            let peripheral = hardware(works_for);
            let (mut board, mut server) = (board(protection, &peripheral), server());
            let hello = board.link_up();
            exchange_frames(&mut board, &mut server, hello);
            server.events.clear();
            server.connection.open(&round_broadcast(1));
            let down = server.take_frames();
            let up = board.receive_all(&down);
            server.receive(&up);
            // Each frame that has left can be opened by the server.
            assert_eq!(server.connection.traffic().forged, 0, "{works_for}");
            completed += u32::from(server.count_updates() == 1);
            if works_for == 0 {
                assert!(up.is_empty() && board.rejected() > 0);
            }
        }
    }
    assert!((20..140).contains(&completed), "{completed}");
}

#[test]
fn algorithm_that_is_changed_on_the_way_gives_no_connection() {
    for suite in [Suite::ChaCha20Poly1305, Suite::Aes128Ccm] {
        let (mut board, mut server) = (board(key_protection(), suite), server());
        let hello = board.link_up().concat();
        let mut decoder = Decoder::new([0; 256]);
        let FeedResult::Message(message) = decoder.feed(&mut &hello[..]) else { panic!() };
        let Ok((ToServer::Hello(mut forged), body)) = decode::<ToServer>(message) else { panic!() };
        assert_eq!(Suite::announced(forged.capabilities.roles), suite);
        forged.capabilities.roles ^= SEALS_WITH_AES_CCM;
        let mut wire = [0; 300];
        let fill = |target: &mut [u8]| target.copy_from_slice(body);
        let sent = encode(&ToServer::Hello(forged), body.len(), fill, &mut wire).unwrap();
        let answer = server.receive(&[wire[..sent].to_vec()]);
        assert_eq!(answer.len(), 1);
        let reply = board.receive_all(&answer);
        assert!(reply.is_empty() && board.rejected() == 1, "{suite:?}");
        assert!(server.events.is_empty());
    }
}
