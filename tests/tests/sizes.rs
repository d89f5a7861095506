//! Tests of the memory and traffic of a client: size of the workspace compared with its arithmetic minimum,
//! and bytes of an update.

use fedspan_client::Workspace;
use fedspan_client::memory::{FixedWorkspace, Memory, StreamingWorkspace};
use fedspan_sim_core::run::{NoProgress, run};
use fedspan_sim_core::scenario::Scenario;

/// Compares the sizes of the workspaces of one shape with formulas.
fn check_sizes<const D: usize, const K: usize, const C: usize>() {
    let minimum = Workspace::<D, K, C>::new().parts_ref().shape.arithmetic_minimum();
    let workspace = size_of::<Workspace<D, K, C>>();
    let streaming = size_of::<StreamingWorkspace<D, K, C>>();
    let fixed = size_of::<FixedWorkspace<D, K, C>>();
    println!(
        "({D}, {K}, {C}): workspace {workspace}, arithmetic minimum {minimum}, streaming {streaming}, in i16 {fixed}"
    );
    assert_eq!(workspace, 4 * (2 * K * C + D * K + D * C + K * K + K + C));
    // A streaming workspace has additional sums over products, and a block of eight rows.
    assert_eq!(streaming, workspace + 4 * D * K + 32 * (K + C));
    // The workspace stores a triangular k x k matrix in full, but the minimum counts only the triangle.
    assert_eq!(workspace - minimum, 2 * K * (K - 1));
    // A fixed-point workspace has additional integers, and a scale for the integers of the representation.
    let integers = 2 * (D * K + D + K + C + K * C) + 2;
    assert_eq!(fixed, (workspace + integers).next_multiple_of(4));
}

#[test]
fn workspace_has_the_size_of_its_formula() {
    check_sizes::<20, 2, 1>();
    check_sizes::<57, 8, 7>();
    check_sizes::<58, 24, 7>();
    check_sizes::<64, 4, 1>();
    check_sizes::<128, 8, 1>();
}

#[test]
fn update_at_20_2_takes_at_most_400_bytes() {
    let changes = ["data.d=20", "data.clients=50", "participation.r=1.0", "algorithm.rounds=200"];
    let changes: Vec<String> = changes.map(str::to_owned).to_vec();
    let text = Scenario::built_in("linear").expect("built in").replace("\"moments\"", "\"random\"");
    let scenario = Scenario::parse("linear", &text, &changes).expect("scenario");
    let outcome = run(&scenario, 1, &mut NoProgress).expect("runs");
    for row in outcome.rounds.iter().skip(1) {
        let per_update = (row.bytes_up + row.bytes_down) as f64 / row.participants.len() as f64;
        assert!(per_update <= 400.0, "round {}: {per_update}", row.round);
    }
    let (up, down) = outcome.bytes;
    let updates = outcome.rounds.iter().map(|row| row.participants.len()).sum::<usize>() as f64;
    println!("bytes of an update: up {:.1}, down {:.1}", up as f64 / updates, down as f64 / updates);
}
