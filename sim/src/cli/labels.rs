//! Labels of scenarios in tables, and names of their directories.

use fedspan_sim_core::report::summary::short_name;

/// Label of a scenario: its short name and its changes. Of a key only the last part is shown, and of an algorithm only the
/// name.
pub fn label(name: &str, own_changes: &[String]) -> String {
    let short_change = |change: &String| {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        let value = value.trim();
        let plain = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
        match key.trim() {
            "algorithm.name" => format!(" {plain}"),
            key => format!(" {}={plain}", key.rsplit('.').next().unwrap_or(key)),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_differences_in_words() {
        let label = |changes: &[&str]| {
            label("a/my.toml", &changes.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(label(&[]), "my");
        assert_eq!(label(&["algorithm.name=\"fedper\""]), "my fedper");
        assert_eq!(
            label(&["model.k=3", "fleet.speed=\"pareto\"", "algorithm.name=fedavg"]),
            "my k=3 speed=pareto fedavg"
        );
        assert_eq!(directory_name(&label(&["model.hidden=[32, 16]"])), "my-hidden=-32--16-");
    }
}
