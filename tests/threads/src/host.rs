//! The way from the host to a conversation.

pub(crate) mod checks;
// As the aggregator's own modules see it.
#[allow(dead_code)]
#[path = "../../../aggregator/src/core/command_queue.rs"]
pub mod command_queue;

use command_queue::{Receiver, Sender, command_queue};

/// Nobody takes anything any more: what the host asks.
fn is_closed<T>(sender: &Sender<T>) -> bool {
    sender.is_closed()
}

/// A mailbox for those outside the host.
pub(crate) fn commands<T>(most: usize) -> (Sender<T>, Receiver<T>) {
    command_queue(most)
}
