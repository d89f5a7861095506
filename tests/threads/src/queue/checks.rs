//! Model checks of the command queue with two threads: one sends like the server core, the other receives
//! like a peer session.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::thread;

use super::command_queue::Receiver;
use super::{command_queue, is_closed};
use crate::Check;

/// All checks of the command queue.
pub(crate) const ALL: &[Check] = &[
    Check {
        name: "queue: commands arrive in order, then the queue is closed",
        program: in_order_then_closed,
    },
    Check { name: "queue: closing wakes a waiting receiver", program: closing_wakes_receiver },
    Check { name: "queue: a cancelled wait loses no command", program: cancelled_wait_loses_no_command },
    Check { name: "queue: exactly the accepted commands arrive", program: accepted_commands_arrive },
    Check { name: "queue: nothing arrives after the queue was seen closed", program: no_command_after_close },
    Check { name: "queue: no command outlives its receiver", program: dropped_receiver_drops_commands },
];

/// Receives all commands until the queue is closed.
fn receive_until_closed(mut receiver: Receiver<u8>) -> Vec<u8> {
    block_on(async {
        let mut received = Vec::new();
        while let Some(command) = receiver.recv().await {
            received.push(command);
        }
        received
    })
}

fn in_order_then_closed() {
    let (sender, receiver) = command_queue(2);
    let sending = thread::spawn(move || assert!(sender.send(0) && sender.send(1)));
    assert_eq!(receive_until_closed(receiver), [0, 1]);
    sending.join().expect("the sender's thread ends");
}

fn closing_wakes_receiver() {
    let (sender, receiver) = command_queue(1);
    let sending = thread::spawn(move || drop(sender));
    assert!(receive_until_closed(receiver).is_empty());
    sending.join().expect("the sender's thread ends");
}

/// Checks a wait that is cancelled, as in `select!`, and followed by a wait in another task.
fn cancelled_wait_loses_no_command() {
    let (sender, mut receiver) = command_queue(2);
    let sending = thread::spawn(move || assert!(sender.send(0)));
    let mut received = Vec::new();
    match pin!(receiver.recv()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(command)) => received.push(command),
        Poll::Ready(None) => panic!("the queue was closed before the command arrived"),
        Poll::Pending => {}
    }
    received.extend(receive_until_closed(receiver));
    assert_eq!(received, [0]);
    sending.join().expect("the sender's thread ends");
}

fn accepted_commands_arrive() {
    let (sender, receiver) = command_queue(1);
    let sending =
        thread::spawn(move || [0, 1].into_iter().filter(|&command| sender.send(command)).collect::<Vec<_>>());
    let received = receive_until_closed(receiver);
    assert_eq!(received, sending.join().expect("the sender's thread ends"));
    assert!(received.starts_with(&[0]), "the queue has room for one command");
}

/// Checks that a receiver that has found the queue closed can still receive the sent command, but no further
/// one.
fn no_command_after_close() {
    let (sender, mut receiver) = command_queue(2);
    let sending = thread::spawn(move || assert!(sender.send(0)));
    let mut received = Vec::new();
    let closed = receiver.is_closed();
    received.extend(receiver.try_recv());
    assert!(!closed || received == [0], "a closed queue still has the command");
    received.extend(receive_until_closed(receiver));
    assert_eq!(received, [0]);
    sending.join().expect("the sender's thread ends");
}

/// Checks that a receiver drops its queued commands when it is dropped, since the sender may exist for much
/// longer.
fn dropped_receiver_drops_commands() {
    let command = Arc::new(());
    let (sender, mut receiver) = command_queue(2);
    let session = thread::spawn(move || {
        let poll = pin!(receiver.recv()).poll(&mut Context::from_waker(Waker::noop()));
        drop(poll);
        drop(receiver);
    });
    let sent = sender.send(Arc::clone(&command));
    let closed = is_closed(&sender);
    assert!(sent || closed, "the queue has room");
    session.join().expect("the receiver's thread ends");
    assert_eq!(Arc::strong_count(&command), 1, "the command was received, returned or dropped");
    assert!(is_closed(&sender) && !sender.send(command));
}
