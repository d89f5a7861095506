//! Command queue: one thread sends like the server core, another receives like a peer session.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::thread;

use super::command_queue::Receiver;
use super::{command_queue, is_closed};
use crate::Check;

pub(crate) const ALL: &[Check] = &[
    Check { name: "queue: commands arrive in order, then the end", program: in_order_then_the_end },
    Check { name: "queue: the end wakes a waiting receiver", program: the_end_wakes },
    Check { name: "queue: a cancelled wait loses no command", program: given_up },
    Check { name: "queue: exactly the accepted commands arrive", program: what_found_room },
    Check { name: "queue: nothing arrives after the end was seen", program: nothing_after_the_end },
    Check { name: "queue: no command outlives its receiver", program: nothing_is_kept },
];

/// Receives all commands until the end.
fn rest(mut receiver: Receiver<u8>) -> Vec<u8> {
    block_on(async {
        let mut taken = Vec::new();
        while let Some(one) = receiver.recv().await {
            taken.push(one);
        }
        taken
    })
}

fn in_order_then_the_end() {
    let (sender, receiver) = command_queue(2);
    let core = thread::spawn(move || assert!(sender.send(0) && sender.send(1)));
    assert_eq!(rest(receiver), [0, 1]);
    core.join().expect("the sender's thread ends");
}

fn the_end_wakes() {
    let (sender, receiver) = command_queue(1);
    let core = thread::spawn(move || drop(sender));
    assert!(rest(receiver).is_empty());
    core.join().expect("the sender's thread ends");
}

/// Cancels a wait, as `select!` does; the next wait is of another task.
fn given_up() {
    let (sender, mut receiver) = command_queue(2);
    let core = thread::spawn(move || assert!(sender.send(0)));
    let mut taken = Vec::new();
    match pin!(receiver.recv()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(one)) => taken.push(one),
        Poll::Ready(None) => panic!("the end arrived before the command"),
        Poll::Pending => {}
    }
    taken.extend(rest(receiver));
    assert_eq!(taken, [0]);
    core.join().expect("the sender's thread ends");
}

fn what_found_room() {
    let (sender, receiver) = command_queue(1);
    let core = thread::spawn(move || [0, 1].into_iter().filter(|&one| sender.send(one)).collect::<Vec<_>>());
    let taken = rest(receiver);
    assert_eq!(taken, core.join().expect("the sender's thread ends"));
    assert!(taken.starts_with(&[0]), "the queue has room for one command");
}

fn nothing_after_the_end() {
    let (sender, mut receiver) = command_queue(2);
    let core = thread::spawn(move || assert!(sender.send(0)));
    let mut taken = Vec::new();
    let closed = receiver.is_closed();
    taken.extend(receiver.try_recv());
    assert!(!closed || taken == [0], "a closed queue still has the command");
    taken.extend(rest(receiver));
    assert_eq!(taken, [0]);
    core.join().expect("the sender's thread ends");
}

/// The sender may outlive the receiver for long.
fn nothing_is_kept() {
    let command = Arc::new(());
    let (sender, mut receiver) = command_queue(2);
    let session = thread::spawn(move || {
        let waits = pin!(receiver.recv()).poll(&mut Context::from_waker(Waker::noop()));
        drop(waits);
        drop(receiver);
    });
    let sent = sender.send(Arc::clone(&command));
    let closed = is_closed(&sender);
    assert!(sent || closed, "the queue has room");
    session.join().expect("the receiver's thread ends");
    assert_eq!(Arc::strong_count(&command), 1, "the command was received, returned or dropped");
    assert!(is_closed(&sender) && !sender.send(command));
}
