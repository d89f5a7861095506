//! Command queue from the server core to a peer session.

pub(crate) mod checks;
// The file has items that only the aggregator uses.
#[allow(dead_code)]
#[path = "../../../aggregator/src/core/command_queue.rs"]
pub mod command_queue;

use command_queue::{Receiver, Sender, command_queue};

/// True if the receiver is gone, as the server core asks.
fn is_closed<T>(sender: &Sender<T>) -> bool {
    sender.is_closed()
}

/// A command queue for the other checks.
pub(crate) fn commands<T>(most: usize) -> (Sender<T>, Receiver<T>) {
    command_queue(most)
}
