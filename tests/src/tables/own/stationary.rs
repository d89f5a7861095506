//! Distances at which full participation hovers, as they are recorded.

use fedspan_experiments::speedup::STATIONARY;

/// The distance for each size of the fleet.
pub fn table() -> String {
    let sizes: String = STATIONARY.iter().map(|(clients, _)| format!(" {clients} |")).collect();
    let distances: String = STATIONARY.iter().map(|(_, distance)| format!(" {distance} |")).collect();
    format!("| clients |{sizes}\n| --- |{}\n| distance |{distances}\n", " --- |".repeat(STATIONARY.len()))
}
