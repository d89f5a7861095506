//! File of the times that each check took when it last passed, below `target`.

use std::collections::BTreeMap;

use crate::process::{Context, Failure, write_whole};

/// Path of the file, relative to the root of the repository.
const FILE: &str = "target/xtask/times";

/// Times in seconds by the key of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times(BTreeMap<String, u64>);

impl Times {
    /// Reads the file. Lines with another format are ignored.
    pub fn read(context: &Context) -> Self {
        Self::parse(&std::fs::read_to_string(context.root.join(FILE)).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (key, seconds) = line.split_once(' ')?;
            Some((key.to_owned(), seconds.parse().ok()?))
        };
        Self(text.lines().filter_map(entry).collect())
    }

    fn to_text(&self) -> String {
        self.0.iter().map(|(key, seconds)| format!("{key} {seconds}\n")).collect()
    }

    /// Returns the time of a check, if it has passed on this machine before.
    pub fn seconds_of(&self, key: &str) -> Option<u64> {
        self.0.get(key).copied()
    }

    /// Records the time of a check.
    pub fn record(&mut self, key: &str, seconds: u64) {
        self.0.insert(key.to_owned(), seconds);
    }

    /// Writes the file.
    pub fn write(&self, context: &Context) -> Result<(), Failure> {
        let file = context.root.join(FILE);
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        write_whole(&file, &self.to_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_were_written() {
        let mut times = Times::default();
        times.record("bare-metal", 7);
        times.record("workspace", 300);
        times.record("workspace", 200);
        assert_eq!(Times::parse(&times.to_text()), times);
        assert_eq!((times.seconds_of("workspace"), times.seconds_of("none")), (Some(200), None));
    }

    #[test]
    fn other_lines_are_left_out() {
        assert_eq!(Times::parse("a\nb c\n\nd 5\n"), Times::parse("d 5"));
    }
}
