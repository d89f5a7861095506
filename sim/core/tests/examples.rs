//! Tests that the examples run without a failed assertion.

#[path = "../examples/own_data.rs"]
mod own_data;

#[test]
fn own_data_trains_a_fleet() {
    own_data::main().unwrap();
}
