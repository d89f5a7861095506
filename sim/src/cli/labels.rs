//! Labels of scenarios in tables, and names of their directories.

use fedspan_sim_core::report::summary::short_name;

/// Label of a scenario: its short name and its changes, in which only the last part of each key is shown.
pub fn label(name: &str, own_changes: &[String]) -> String {
    let short_change = |change: &String| {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        format!(" {}={value}", key.rsplit('.').next().unwrap_or(key))
    };
    short_name(name) + &own_changes.iter().map(short_change).collect::<String>()
}

/// Returns `label`, or `label` with a number appended if `is_taken` returns true for it.
pub fn distinct(is_taken: impl Fn(&str) -> bool, label: String) -> String {
    if !is_taken(&label) {
        return label;
    }
    (2u32..).map(|n| format!("{label} ({n})")).find(|label| !is_taken(label)).unwrap_or(label)
}

/// Converts a label into a directory name: replaces all characters except letters, digits and `-_.=` by `-`.
pub fn directory_name(label: &str) -> String {
    let keep = |c: char| if c.is_alphanumeric() || "-_.=".contains(c) { c } else { '-' };
    label.chars().map(keep).collect()
}
