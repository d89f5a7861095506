//! Test helpers: exchanges of frames between a device and its server.

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::secure::Aead;
use fedspan_client::store::{NoStore, Store};
use fedspan_protocol::message::{Ack, AckOutcome, ToDevice};

use super::board::Plain;
use super::{Board, DEVICE, ServerEnd, key_protection, round_broadcast};

/// Exchanges frames until both ends are silent; returns the frames sent up and down.
pub fn exchange_frames<P: Store, A: Aead + Clone>(
    board: &mut Board<P, Plain, A>,
    server: &mut ServerEnd,
    mut up: Vec<Vec<u8>>,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut all_up, mut all_down) = (Vec::new(), Vec::new());
    loop {
        let down = server.receive(&up);
        all_up.append(&mut up);
        up = board.receive_all(&down);
        all_down.extend(down);
        if up.is_empty() {
            return (all_up, all_down);
        }
        assert!(all_up.len() < 1000, "the two ends never stop sending");
    }
}

/// Creates a connected device and the server's end of its connection.
pub fn connect_device<P: Store>(acceptor: &Arc<Acceptor>, store: P, seed: u64) -> (Board<P>, ServerEnd) {
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), store, seed), ServerEnd::new(acceptor));
    let hello = board.link_up();
    exchange_frames(&mut board, &mut server, hello);
    assert!(matches!(server.events[..], [PeerMessage::Hello(_)]), "{:?}", server.events);
    server.events.clear();
    (board, server)
}

/// Runs one round between a connected device and its server; returns the frames sent up and down.
pub fn run_round<P: Store, A: Aead + Clone>(
    board: &mut Board<P, Plain, A>,
    server: &mut ServerEnd,
    number: u32,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    server.connection.open(&round_broadcast(number));
    let (mut up, mut down) = exchange_frames(board, server, Vec::new());
    let [PeerMessage::Update(update)] = &server.events[..] else { panic!("{:?}", server.events) };
    let ack = Ack { id: update.id, outcome: AckOutcome::Counted };
    server.events.clear();
    server.connection.send(ToDevice::Ack(ack));
    let (more_up, more_down) = exchange_frames(board, server, Vec::new());
    up.extend(more_up);
    down.extend(more_down);
    (up, down)
}

/// Returns the frames of a connection, up and down: hello, answer, confirmation, three rounds.
pub fn record_connection(acceptor: &Arc<Acceptor>, seed: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut board, mut server) =
        (Board::new(DEVICE, key_protection(), NoStore, seed), ServerEnd::new(acceptor));
    let hello = board.link_up();
    let (mut up, mut down) = exchange_frames(&mut board, &mut server, hello);
    server.events.clear();
    for number in 1..=3 {
        let (more_up, more_down) = run_round(&mut board, &mut server, number);
        up.extend(more_up);
        down.extend(more_down);
    }
    (up, down)
}
