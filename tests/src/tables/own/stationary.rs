//! Table of the stationary distances of full participation, which are constants of the simulator.

use fedspan_experiments::speedup::STATIONARY;

/// Returns the table, with one column for each fleet size.
pub fn distance_table() -> String {
    let sizes: String = STATIONARY.iter().map(|(clients, _)| format!(" {clients} |")).collect();
    let distances: String = STATIONARY.iter().map(|(_, distance)| format!(" {distance} |")).collect();
    format!("| clients |{sizes}\n| --- |{}\n| distance |{distances}\n", " --- |".repeat(STATIONARY.len()))
}
