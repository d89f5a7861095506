//! Tests that the examples run without failed assertions.

#[path = "../examples/embed_server.rs"]
mod embed_server;
#[path = "../examples/own_algorithm.rs"]
pub mod own_algorithm;
#[path = "../examples/own_task.rs"]
mod own_task;

#[test]
fn embedded_server_serves_two_devices() {
    embed_server::main().unwrap();
}

#[test]
fn own_algorithm_trains_devices_over_tcp() {
    own_algorithm::main().unwrap();
}

#[test]
fn own_task_runs_on_devices_and_server_over_tcp() {
    own_task::main().unwrap();
}
