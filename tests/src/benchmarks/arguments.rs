//! Arguments of the program `benchmarks`.

use std::path::PathBuf;

use super::registry::{FIGURES, Figure, find};
use super::verdict::PAIRS;

/// Number of pairs of a short run.
const SHORT_PAIRS: usize = 3;

/// Request to the program.
#[derive(Clone, Debug)]
pub enum Request {
    /// Print the help text.
    Help,
    /// Print all figures.
    List,
    /// Run one side, for another process of this program: a figure, or a figure and a rival (`threads/one thread`),
    /// and the directory of its data.
    Side(String, PathBuf, bool),
    /// Run figures.
    Run(Options),
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Figures in the order of the command line.
    pub figures: Vec<&'static Figure>,
    /// Number of pairs.
    pub pairs: usize,
    /// True for smaller sizes, where a figure has them.
    pub short: bool,
    /// True if the results are recorded.
    pub record: bool,
    /// Python's interpreter, if it is given.
    pub python: Option<PathBuf>,
    /// Program of an earlier release.
    pub previous: Option<PathBuf>,
}

/// Parses the arguments.
///
/// # Errors
/// A sentence with the wrong argument and the allowed ones.
pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Request, String> {
    let mut options =
        Options { figures: Vec::new(), pairs: 0, short: false, record: false, python: None, previous: None };
    let (mut pairs, mut side) = (None, None);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("found {word} without its value"));
        match word.as_str() {
            "-h" | "--help" => return Ok(Request::Help),
            "--list" => return Ok(Request::List),
            "--short" => options.short = true,
            "--record" => options.record = true,
            "--pairs" => {
                let text = value()?;
                let number = text.parse().ok().filter(|number| (1..=10_000).contains(number));
                pairs = Some(number.ok_or_else(|| format!("found --pairs {text}, allowed: 1 to 10000"))?);
            }
            "--python" => options.python = Some(value()?.into()),
            "--previous" => options.previous = Some(value()?.into()),
            "--side" => side = Some((value()?, value()?.into())),
            word if word.starts_with('-') => return Err(format!("found {word:?}, see --help")),
            name => options.figures.push(find(name)?),
        }
    }
    if let Some((name, directory)) = side {
        return Ok(Request::Side(name, directory, options.short));
    }
    options.pairs = pairs.unwrap_or(if options.short { SHORT_PAIRS } else { PAIRS });
    if options.figures.is_empty() {
        options.figures = FIGURES.iter().collect();
    }
    Ok(Request::Run(options))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::{FIGURES, Options, Request, parse};

    fn options(line: &str) -> Result<Options, String> {
        match parse(line.split_whitespace().map(str::to_owned))? {
            Request::Run(options) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pairs_depend_on_the_form() {
        assert_eq!(options("").unwrap().figures.len(), FIGURES.len());
        let pairs = |line| options(line).map(|options| options.pairs);
        let found = ["", "--short", "--short --pairs 2", "--pairs 100 --record"].map(pairs);
        assert_eq!(found, [Ok(15), Ok(3), Ok(2), Ok(100)]);
        let two = options("updates-64-4-32 updates-20-2-20").unwrap();
        assert_eq!(
            two.figures.iter().map(|figure| figure.name).collect::<Vec<_>>(),
            ["updates-64-4-32", "updates-20-2-20"]
        );
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, message) in [
            ("speed", "found figure \"speed\", allowed: updates-20-2-20"),
            ("--pairs 0", "found --pairs 0, allowed: 1 to 10000"),
            ("--pairs many", "found --pairs many, allowed"),
            ("--pairs", "found --pairs without its value"),
            ("--fast", "found \"--fast\", see --help"),
        ] {
            let error = options(line).unwrap_err();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
