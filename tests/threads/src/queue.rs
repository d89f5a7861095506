//! Command queue from the server core to a peer session, compiled for loom, with its model checks.

pub(crate) mod checks;
// The file contains items that only the aggregator uses.
#[allow(dead_code)]
#[path = "../../../aggregator/src/core/command_queue.rs"]
pub mod command_queue;

use command_queue::{Receiver, Sender, command_queue};

/// Returns true if the receiver was dropped.
fn is_closed<T>(sender: &Sender<T>) -> bool {
    sender.is_closed()
}

/// Creates a command queue for the other checks.
pub(crate) fn create_queue<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    command_queue(capacity)
}
