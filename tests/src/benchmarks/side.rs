//! One side of a comparison, from the inside: the work, and the lines that the program of a side prints.
//! `benchmarks/side.py` is the counterpart for rivals in Python.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Description of a side, which its program prints first, as JSON in one line.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// Name and version of the program or library, and of what it uses: `numpy 2.4.6, OpenBLAS 0.3.31`.
    pub program: String,
    /// Form of the computation, in a few words.
    pub form: String,
    /// Type of the numbers: `f32`.
    pub dtype: String,
    /// Sizes of the work. Sides with other sizes are not compared.
    pub n: String,
    /// Cost of the work; only our side knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Cost of one repeat, from which the physical limit follows.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Cost {
    /// Name of the units of work: `updates`.
    pub unit: String,
    /// Number of units of work.
    pub units: f64,
    /// Number of floating-point additions and multiplications that the algorithm needs; 0 if they do not limit the work.
    pub operations: f64,
    /// Bytes that must be read at least; 0 if they do not limit the work.
    pub bytes: f64,
    /// Bytes that are read again and again. They fit into a cache or not.
    pub resident: f64,
    /// Seconds within which a repeat should be done, for people who wait; 0 if there is no such target.
    #[serde(default)]
    pub target: f64,
    /// Meaning of the check value.
    pub check: String,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Duration of the turn's repeats, without what only one of the sides does.
    pub seconds: f64,
    /// Value that the other side has, too, after the same work: a loss or a distance.
    pub check: f64,
}

/// Circumstances in which a side works.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Directory for data that both sides use. Our side writes them before it prints its facts.
    pub directory: PathBuf,
    /// True for a smaller size of the work, if the figure has one.
    pub short: bool,
}

impl Setting {
    /// Writes values for the rivals, as 32-bit numbers in this machine's byte order.
    ///
    /// # Errors
    /// The name of the file, and the operating system's error.
    pub fn write(&self, name: &str, values: impl IntoIterator<Item = f32>) -> Result<(), String> {
        let path = self.directory.join(name);
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_ne_bytes).collect();
        std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads values that our side has written.
    ///
    /// # Errors
    /// The name of the file, and the operating system's error.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, String> {
        let path = self.directory.join(name);
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (values, _) = bytes.as_chunks();
        Ok(values.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
    }

    /// Writes the sizes of the work for the rivals, as JSON.
    ///
    /// # Errors
    /// The name of the file, and the operating system's error.
    pub fn write_sizes(&self, sizes: &serde_json::Value) -> Result<(), String> {
        let path = self.directory.join("sizes.json");
        std::fs::write(&path, sizes.to_string()).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Work of a side, ready to run.
pub struct Side {
    /// Description of the side.
    pub facts: Facts,
    /// Runs a number of repeats.
    pub turn: Box<dyn FnMut(u32) -> Result<Turn, String>>,
}

/// Prints the facts, then runs a turn for each line of `input`.
///
/// # Errors
/// A sentence, if a line is not a number of repeats, if a turn fails, or if the other process has ended.
pub fn serve(side: &mut Side, input: impl BufRead, mut output: impl Write) -> Result<(), String> {
    let facts = serde_json::to_string(&side.facts).map_err(|error| error.to_string())?;
    let mut print = |line: String| {
        writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| error.to_string())
    };
    print(facts)?;
    for line in input.lines() {
        let line = line.map_err(|error| error.to_string())?;
        let repeats =
            line.trim().parse().map_err(|_| format!("found {line:?}, allowed: a number of repeats"))?;
        let Turn { seconds, check } = (side.turn)(repeats)?;
        print(format!("{seconds} {check}"))?;
    }
    Ok(())
}

/// Reads the two numbers with which a side answers.
///
/// # Errors
/// A sentence, if the line is not two numbers, or if the first is no positive duration.
pub fn parse_turn(line: &str) -> Result<Turn, String> {
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match (numbers.as_slice(), line.split_whitespace().count()) {
        (&[seconds, check], 2) if seconds > 0.0 && seconds.is_finite() => Ok(Turn { seconds, check }),
        _ => Err(format!("printed {line:?}, allowed: positive seconds and a check value")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Facts, Side, Turn, parse_turn, serve};

    #[test]
    fn side_answers_each_line_of_repeats() {
        let facts = Facts { n: "3 x 4".to_owned(), ..Facts::default() };
        let turn = Box::new(|repeats| Ok(Turn { seconds: f64::from(repeats), check: 0.5 }));
        let mut side = Side { facts: facts.clone(), turn };
        let mut output = Vec::new();
        serve(&mut side, &b"2\n7\n"[..], &mut output).unwrap();
        let output = String::from_utf8(output).unwrap();
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(serde_json::from_str::<Facts>(lines[0]).unwrap(), facts);
        assert_eq!(parse_turn(lines[1]).unwrap(), Turn { seconds: 2.0, check: 0.5 });
        assert_eq!(lines[2..], ["7 0.5"]);
        let error = serve(&mut side, &b"many\n"[..], &mut Vec::new()).unwrap_err();
        assert_eq!(error, "found \"many\", allowed: a number of repeats");
    }

    #[test]
    fn nonsense_is_no_turn() {
        for line in ["", "1", "1 2 3", "0 1", "-1 1", "inf 1", "NaN 1", "one 1", "1 x 2"] {
            assert!(parse_turn(line).is_err(), "{line:?}");
        }
        // A check value that is NaN is refused where it is compared.
        assert!(parse_turn("1e-3 NaN").unwrap().check.is_nan());
    }
}
