//! One thread puts in, as the host does; another takes, as a conversation does.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::thread;

use super::command_queue::Receiver;
use super::{is_closed, command_queue};
use crate::Check;

pub(crate) const ALL: &[Check] = &[
    Check { name: "mailbox: what was put in comes in order, then the end", program: in_order_then_the_end },
    Check { name: "mailbox: the end wakes who waits for a first one", program: the_end_wakes },
    Check { name: "mailbox: a wait that is given up loses nothing", program: given_up },
    Check { name: "mailbox: what found room comes, and nothing else", program: what_found_room },
    Check { name: "mailbox: after the end was seen nothing more comes", program: nothing_after_the_end },
    Check { name: "mailbox: nothing is kept for a receiver that is gone", program: nothing_is_kept },
];

/// Waits for one after the other.
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
    let host = thread::spawn(move || assert!(sender.send(0) && sender.send(1)));
    assert_eq!(rest(receiver), [0, 1]);
    host.join().expect("the host ends");
}

fn the_end_wakes() {
    let (sender, receiver) = command_queue(1);
    let host = thread::spawn(move || drop(sender));
    assert!(rest(receiver).is_empty());
    host.join().expect("the host ends");
}

/// Something else comes first, as when a connection selects; who waits next is another task.
fn given_up() {
    let (sender, mut receiver) = command_queue(2);
    let host = thread::spawn(move || assert!(sender.send(0)));
    let mut taken = Vec::new();
    match pin!(receiver.recv()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(one)) => taken.push(one),
        Poll::Ready(None) => panic!("the end before what was put in"),
        Poll::Pending => {}
    }
    taken.extend(rest(receiver));
    assert_eq!(taken, [0]);
    host.join().expect("the host ends");
}

fn what_found_room() {
    let (sender, receiver) = command_queue(1);
    let host = thread::spawn(move || [0, 1].into_iter().filter(|&one| sender.send(one)).collect::<Vec<_>>());
    let taken = rest(receiver);
    assert_eq!(taken, host.join().expect("the host ends"));
    assert!(taken.starts_with(&[0]), "there is room for the first");
}

fn nothing_after_the_end() {
    let (sender, mut receiver) = command_queue(2);
    let host = thread::spawn(move || assert!(sender.send(0)));
    let mut taken = Vec::new();
    let closed = receiver.is_closed();
    taken.extend(receiver.try_recv());
    assert!(!closed || taken == [0], "what was put in before the end is there with it");
    taken.extend(rest(receiver));
    assert_eq!(taken, [0]);
    host.join().expect("the host ends");
}

/// The host may keep its end for long.
fn nothing_is_kept() {
    let command = Arc::new(());
    let (sender, mut receiver) = command_queue(2);
    let conversation = thread::spawn(move || {
        let waits = pin!(receiver.recv()).poll(&mut Context::from_waker(Waker::noop()));
        drop(waits);
        drop(receiver);
    });
    let sent = sender.send(Arc::clone(&command));
    let closed = is_closed(&sender);
    assert!(sent || closed, "there was room");
    conversation.join().expect("the conversation ends");
    assert_eq!(Arc::strong_count(&command), 1, "it is taken, given back, or dropped");
    assert!(is_closed(&sender) && !sender.send(command));
}
