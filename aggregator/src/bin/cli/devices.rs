//! Command `devices`: prints a table of the devices of the running server.

use std::path::Path;
use std::process::ExitCode;

use fedspan_aggregator::server::query;
use serde_json::Value;

use super::status::Format;
use crate::{FAILED, fail, output_exit_code, print};

/// Prints the devices of the server.
pub async fn devices(state: &Path, format: Format) -> ExitCode {
    let mut lines = Vec::new();
    let asked = query(state, "devices", |line| {
        lines.push(line.to_owned());
        Ok(())
    });
    let problem = match asked.await {
        Ok(Some(())) => {
            lines.first().and_then(|line| error_in(line)).map(|error| format!("the server reports: {error}"))
        }
        Ok(None) => Some("no server is running, and devices are not stored".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(problem) = problem {
        return fail(FAILED, &format!("{}: {problem}", state.display()));
    }
    let text = match format {
        Format::Json => lines.join("\n"),
        Format::Human => table(&lines),
    };
    output_exit_code(print(&text).map(|()| ExitCode::SUCCESS), "standard output")
}

/// Returns the error of an answer that consists of one.
fn error_in(line: &str) -> Option<String> {
    let value: Value = serde_json::from_str(line).ok()?;
    Some(value.get("error")?.as_str()?.to_owned())
}

/// Headings of the table, and the counters of a report that it shows.
const HEADINGS: [&str; 12] = [
    "device", "seen", "joined", "firmware", "build", "reset", "up for", "counted", "late", "rejected",
    "declined", "faults",
];

/// Counters of a report that are summed as faults: something that does not happen in a healthy fleet.
const FAULTS: [&str; 7] =
    ["malformed", "unexpected", "unsent", "unopened", "unsealed", "clock_jumps", "storage"];

/// Formats the lines as a table.
fn table(lines: &[String]) -> String {
    let rows: Vec<Vec<String>> =
        lines.iter().filter_map(|line| serde_json::from_str(line).ok()).map(|v| row(&v)).collect();
    if rows.is_empty() {
        return "no device has joined since the server was started".to_owned();
    }
    let headings = HEADINGS.map(str::to_owned).to_vec();
    let all: Vec<&Vec<String>> = [&headings].into_iter().chain(&rows).collect();
    let width =
        |column: usize| all.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    let shown = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}", width = *width));
        cells.collect::<Vec<String>>().join("  ")
    };
    all.iter().map(shown).collect::<Vec<String>>().join("\n")
}

/// Returns the cells of a device.
fn row(value: &Value) -> Vec<String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("-").to_owned();
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    let counter =
        |key: &str| value.get("counters").and_then(|counters| counters.get(key)).and_then(Value::as_u64);
    let shown = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let is_connected = value.get("connected").and_then(Value::as_bool).unwrap_or(false);
    let seen =
        if is_connected { "connected".to_owned() } else { number("seen_s").map_or_else(String::new, ago) };
    let faults = value.get("counters").map(|_| FAULTS.iter().filter_map(|key| counter(key)).sum());
    let mut cells = vec![
        shown(number("device")),
        seen,
        shown(number("joined")),
        text("firmware"),
        text("build"),
        text("reset"),
        number("uptime_s").map_or_else(|| "-".to_owned(), duration),
    ];
    cells.extend(["counted", "late", "rejected", "declined"].map(|key| shown(counter(key))));
    cells.push(shown(faults));
    cells
}

fn ago(seconds: u64) -> String {
    format!("{} ago", duration(seconds))
}

/// Formats a number of seconds by its largest unit.
fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_reports_and_devices_without() {
        let lines = [
            "{\"device\":3,\"connected\":false,\"seen_s\":7300,\"joined\":2,\"firmware\":\"1.2.3\",\"build\":\"0000abcd\",\
             \"reset\":\"Watchdog\",\"uptime_s\":130,\"counters\":{\"counted\":9,\"late\":1,\"rejected\":0,\"declined\":2,\"unsealed\":3,\
             \"storage\":4}}",
            "{\"device\":12,\"connected\":true,\"seen_s\":0,\"joined\":1}",
        ];
        let text = table(&lines.map(str::to_owned));
        assert_eq!(
            text,
            "device       seen  joined  firmware     build     reset  up for  counted  late  rejected  declined  faults\n\
             \u{20}    3    2 h ago       2     1.2.3  0000abcd  Watchdog   2 min        9     1         0         2       7\n\
             \u{20}   12  connected       1         -         -         -       -        -     -         -         -       -"
        );
        assert_eq!(table(&[]), "no device has joined since the server was started");
    }
}
