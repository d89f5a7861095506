//! Frames carried to and fro between a device and its server.

use std::sync::Arc;

use fedspan_aggregator::connection::{Acceptor, PeerMessage};
use fedspan_client::store::{NoStore, Store};
use fedspan_protocol::message::{Ack, AckOutcome, ToDevice};

use super::{Board, DEVICE, Host, opening, protected};

/// Carries frames to and fro until nobody has anything to say. What crossed the wire, up and down.
pub fn converse<P: Store>(
    board: &mut Board<P>,
    host: &mut Host,
    mut up: Vec<Vec<u8>>,
) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut all_up, mut all_down) = (Vec::new(), Vec::new());
    loop {
        let down = host.hear(&up);
        all_up.append(&mut up);
        up = board.hear_all(&down);
        all_down.extend(down);
        if up.is_empty() {
            return (all_up, all_down);
        }
        assert!(all_up.len() < 1000, "it never ends");
    }
}

/// A device and its server, connected and welcome.
pub fn joined<P: Store>(gate: &Arc<Acceptor>, store: P, seed: u64) -> (Board<P>, Host) {
    let (mut board, mut host) = (Board::new(DEVICE, protected(), store, seed), Host::new(gate));
    let hello = board.link_up();
    converse(&mut board, &mut host, hello);
    assert!(matches!(host.said[..], [PeerMessage::Hello(_)]), "{:?}", host.said);
    host.said.clear();
    (board, host)
}

/// One round on both ends, which are welcome. What crossed the wire, up and down.
pub fn round<P: Store>(board: &mut Board<P>, host: &mut Host, number: u32) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    host.connection.open(&opening(number));
    let (mut up, mut down) = converse(board, host, Vec::new());
    let [PeerMessage::Update(update)] = &host.said[..] else { panic!("{:?}", host.said) };
    let ack = Ack { id: update.id, outcome: AckOutcome::Counted };
    host.said.clear();
    host.connection.send(ToDevice::Ack(ack));
    let (more_up, more_down) = converse(board, host, Vec::new());
    up.extend(more_up);
    down.extend(more_down);
    (up, down)
}

/// A whole conversation, recorded: hello, answer, confirmation, three rounds.
pub fn recording(gate: &Arc<Acceptor>, seed: u64) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut board, mut host) = (Board::new(DEVICE, protected(), NoStore, seed), Host::new(gate));
    let hello = board.link_up();
    let (mut up, mut down) = converse(&mut board, &mut host, hello);
    host.said.clear();
    for number in 1..=3 {
        let (more_up, more_down) = round(&mut board, &mut host, number);
        up.extend(more_up);
        down.extend(more_down);
    }
    (up, down)
}
