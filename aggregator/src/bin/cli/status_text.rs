//! Status and rounds of a server as text for people.

use std::fmt::Write as _;

use serde_json::Value;

/// Width of the progress bar in characters.
const BAR: u64 = 30;
/// Largest number of devices that a line lists.
const LISTED: usize = 20;

/// Text of a status: the phase with a bar, the devices, the open round, and every counter that is not 0.
pub fn status_text(status: &Value) -> String {
    let number = |key: &str| status.get(key).and_then(Value::as_u64).unwrap_or(0);
    let phase = status.get("phase").and_then(Value::as_str).unwrap_or("unknown");
    let (round, rounds) = (number("round"), number("rounds"));
    let mut text = phase.to_owned();
    let part = |whole: u64| (whole * round.min(rounds)).checked_div(rounds);
    if let (Some(done), Some(percent)) = (part(BAR), part(100)) {
        let bar: String = (0..BAR).map(|place| if place < done { '#' } else { '.' }).collect();
        let _ = write!(text, ", round {round} of {rounds}  [{bar}] {percent} %");
    } else if phase != "starting" {
        let _ = write!(text, ", round {round}");
    }
    let mut line = |name: &str, content: String| {
        let _ = write!(text, "\n{name:<12} {content}");
    };
    if status.get("devices").is_some() {
        line("devices", format!("{} known, {} connected", number("devices"), number("connected")));
    }
    let target = number("target");
    if target > 0 {
        let missing = match devices(status, "missing") {
            Some(missing) => format!("; not yet answered: {missing}"),
            None => String::new(),
        };
        line("open round", format!("{} of {target} updates{missing}", number("answers")));
    }
    if let Some(not_awaited) = devices(status, "not_awaited") {
        line("not awaited", format!("{not_awaited}, until they answer"));
    }
    if let Some(held_out) = devices(status, "held_out") {
        line("held out", format!("{held_out}, until training ends"));
    }
    for name in ["updates", "connections"] {
        if let Some(counters) = status.get(name).and_then(Value::as_object) {
            let mut counted: Vec<String> = counters
                .iter()
                .filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0))
                .map(|(counter, count)| format!("{} {count}", counter.replace('_', " ")))
                .collect();
            counted.sort_unstable();
            line(name, if counted.is_empty() { "none".to_owned() } else { counted.join(", ") });
        }
    }
    if let Some(epsilon) = status.get("privacy").and_then(|privacy| privacy.get("epsilon")) {
        line("privacy", format!("epsilon {epsilon}"));
    }
    if status.get("stalled").and_then(Value::as_bool) == Some(true) {
        line("WARNING", "the store cannot be written; no update is acknowledged until it can".to_owned());
    }
    if number("journal_lost") > 0 {
        line("WARNING", format!("{} lines of the journal were lost", number("journal_lost")));
    }
    for condition in status.get("unmeasured").and_then(Value::as_array).into_iter().flatten() {
        line("WARNING", condition.as_str().unwrap_or_default().to_owned());
    }
    text
}

/// Text of a line of `watch`.
pub fn round_text(line: &Value) -> String {
    let number = |key: &str| line.get(key).and_then(Value::as_u64);
    let count = |key: &str| line.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    if let Some(missed) = number("missed") {
        return format!("{missed} rounds were too fast to show");
    }
    let phase = line.get("phase").and_then(Value::as_str).unwrap_or("unknown");
    let (round, of) = (number("round").unwrap_or(0), number("of").unwrap_or(0));
    if let Some(counted) = number("counted") {
        let rejected = number("rejected").unwrap_or(0);
        return format!(
            "{phase} after round {round} of {of}: {counted} updates counted, {rejected} rejected"
        );
    }
    let seconds = number("milliseconds").unwrap_or(0) as f64 / 1000.0;
    let name =
        if phase == "training" { format!("round {round} of {of}") } else { format!("{phase} {round}") };
    let mut text =
        format!("{name:<20} {} of {} updates, {seconds:.2} s", count("participants"), count("cohort"));
    if let Some(rejected) = number("rejected").filter(|rejected| *rejected > 0) {
        let _ = write!(text, ", {rejected} rejected");
    }
    if let Some(change) = line.get("change").and_then(Value::as_f64) {
        let _ = write!(text, ", change {change:.2e}");
    }
    if let Some(epsilon) = line.get("epsilon").and_then(Value::as_f64) {
        let _ = write!(text, ", epsilon {epsilon:.4}");
    }
    text
}

/// Devices in a list of a status; `None` if it is absent or empty.
fn devices(status: &Value, key: &str) -> Option<String> {
    let all = status.get(key)?.as_array().filter(|all| !all.is_empty())?;
    let listed: Vec<String> = all.iter().take(LISTED).map(Value::to_string).collect();
    let further = all.len().saturating_sub(LISTED);
    let further = if further == 0 { String::new() } else { format!(" and {further} more") };
    Some(listed.join(", ") + &further)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_shows_progress_devices_and_all_counters() {
        let status = serde_json::json!({
            "phase": "training", "round": 137, "rounds": 300, "devices": 8, "connected": 7, "answers": 5, "target": 8,
            "missing": [3, 6, 7], "not_awaited": [9], "updates": {"counted": 1096, "late": 2, "duplicate": 0},
            "connections": {"welcomed": 8, "dropped_frames": 1}, "stalled": true, "journal_lost": 0,
            "unmeasured": ["n is 8"],
        });
        let text = status_text(&status);
        for part in [
            "training, round 137 of 300  [#############.................] 45 %",
            "8 known, 7 connected",
            "5 of 8 updates; not yet answered: 3, 6, 7",
            "9, until they answer",
            "counted 1096, late 2\n",
            "dropped frames 1, welcomed 8",
            "WARNING      the store cannot be written",
            "WARNING      n is 8",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(status_text(&serde_json::json!({"phase": "starting"})), "starting");
        assert_eq!(
            status_text(&serde_json::json!({"phase": "not running", "round": 3})),
            "not running, round 3"
        );
    }

    #[test]
    fn rounds_and_the_end_are_one_line() {
        let round = serde_json::json!({
            "phase": "training", "round": 4, "of": 9, "cohort": [1, 2], "participants": [2], "rejected": 1,
            "milliseconds": 420, "change": 0.01,
        });
        assert_eq!(
            round_text(&round),
            "round 4 of 9         1 of 2 updates, 0.42 s, 1 rejected, change 1.00e-2"
        );
        let end = serde_json::json!({"phase": "finished", "round": 9, "of": 9, "counted": 20, "rejected": 0});
        assert_eq!(round_text(&end), "finished after round 9 of 9: 20 updates counted, 0 rejected");
        assert_eq!(round_text(&serde_json::json!({"missed": 3})), "3 rounds were too fast to show");
    }
}
