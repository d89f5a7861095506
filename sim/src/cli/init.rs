//! Command `init`: writes a scenario for a data file.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use fedspan_sim_core::propose::{Answers, Proposal, ProposeError, propose};

use super::{CommandError, output};

/// Arguments of command `init`.
#[derive(Debug, Args)]
pub struct InitOptions {
    /// Table with a header (CSV), archive of arrays (npz), images (IDX), or file or directory of LEAF
    #[arg(value_name = "DATA")]
    data: String,
    /// Column or array that says whose each row is
    #[arg(long, value_name = "NAME", conflicts_with = "no_client")]
    client: Option<String>,
    /// Deal the rows to clients at random
    #[arg(long)]
    no_client: bool,
    /// Column or array that is predicted
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// File of the labels of IDX images [default: DATA with "labels" for "images", and idx1 for idx3]
    #[arg(long, value_name = "FILE")]
    labels: Option<String>,
    /// Whether the target is a class or a number
    #[arg(long, value_enum)]
    task: Option<Task>,
    /// Model to train
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// File to write, `-` for standard output [default: the name of DATA with the ending .toml]
    #[arg(long, value_name = "FILE.toml")]
    out: Option<PathBuf>,
    /// Ask nothing, also on a terminal
    #[arg(long, short)]
    yes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Task {
    Classes,
    Regression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    Linear,
    Mlp,
}

/// Runs the command.
pub fn command(options: &InitOptions) -> Result<(), CommandError> {
    let out = options.out.clone().unwrap_or_else(|| default_out(&options.data));
    let to_stdout = out == Path::new("-");
    if !to_stdout && out.exists() {
        return Err(CommandError::Usage(format!(
            "{}: exists already, and nothing is overwritten: give another --out FILE.toml, or remove it",
            out.display()
        )));
    }
    let scenario = if to_stdout { "scenario.toml".to_owned() } else { out.display().to_string() };
    let data = data_path(&options.data, &scenario)?;
    let mut answers = Answers {
        client: if options.no_client { Some(None) } else { options.client.clone().map(Some) },
        target: options.target.clone(),
        labels: options.labels.as_ref().map(|labels| data_path(labels, &scenario)).transpose()?,
        classification: options.task.map(|task| task == Task::Classes),
        network: options.model.map(|model| model == Model::Mlp),
    };
    let mut proposal = proposed(&scenario, &data, &answers)?;
    if !options.yes && std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
        let asked = ask(&proposal, &answers)
            .map_err(|error| CommandError::Failed(format!("standard input: {error}")))?;
        if asked != answers {
            answers = asked;
            proposal = proposed(&scenario, &data, &answers)?;
        }
    }
    for fact in &proposal.facts {
        output::log_line(fact);
    }
    if to_stdout {
        return output::print(&proposal.text);
    }
    let failed = |error: std::io::Error| CommandError::Failed(format!("{}: {error}", out.display()));
    let mut file = std::fs::File::create_new(&out).map_err(failed)?;
    if let Err(error) = file.write_all(proposal.text.as_bytes()) {
        // A partial scenario would be in the way of the next attempt, which overwrites nothing.
        std::fs::remove_file(&out).ok();
        return Err(failed(error));
    }
    let name = shell_word(&scenario);
    let results = shell_word(&format!("{}-results", Path::new(&scenario).with_extension("").display()));
    // Each fold holds out other clients; seeds alone hold out the same ones.
    let folds = proposal.folds.map_or(String::new(), |folds| {
        let folds: Vec<String> = (0..folds).map(|fold| fold.to_string()).collect();
        format!(" --over split.fold={}", folds.join(","))
    });
    // The program as the user has called it, so that the lines work where they are printed.
    let program = std::env::args().next().unwrap_or_else(|| "fedspan-sim".to_owned());
    let program = shell_word(&program);
    output::print(&format!(
        "wrote {scenario}. Next:\n  {program} run {name} --seeds 5 --out {results}\n  {program} compare {name} --algorithms all --seeds 3{folds}\n"
    ))
}

fn proposed(scenario: &str, data: &str, answers: &Answers) -> Result<Proposal, CommandError> {
    propose(scenario, data, answers).map_err(|error| match error {
        ProposeError::Data(error) => CommandError::Usage(error.to_string()),
        error @ ProposeError::Refused(_) => CommandError::Failed(error.to_string()),
    })
}

/// File that is written if none is given: in the current directory, called as the data.
fn default_out(data: &str) -> PathBuf {
    let name =
        Path::new(data).file_name().map_or("scenario".into(), |name| name.to_string_lossy().into_owned());
    let stem = name.strip_suffix(".gz").unwrap_or(&name);
    let stem = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
    PathBuf::from(format!("{}.toml", if stem.is_empty() { "scenario" } else { stem }))
}

/// Path of the data as the scenario has it: as given if both are named from the current directory, otherwise absolute.
fn data_path(data: &str, scenario: &str) -> Result<String, CommandError> {
    let is_beside = Path::new(scenario).parent().is_none_or(|parent| parent.as_os_str().is_empty());
    if is_beside || Path::new(data).is_absolute() {
        return Ok(data.to_owned());
    }
    let absolute =
        std::path::absolute(data).map_err(|error| CommandError::Usage(format!("{data}: {error}")))?;
    Ok(absolute.display().to_string())
}

/// Asks for the roles of the columns; an empty line takes what was guessed.
fn ask(proposal: &Proposal, answers: &Answers) -> std::io::Result<Answers> {
    let Some(roles) = &proposal.roles else { return Ok(answers.clone()) };
    let mut input = std::io::stdin().lock();
    let mut answers = answers.clone();
    let mut ask = |question: &str, guess: &str| {
        let mut err = std::io::stderr().lock();
        write!(err, "{question} [{guess}]: ")?;
        err.flush()?;
        let mut line = String::new();
        input.read_line(&mut line)?;
        let answer = line.trim();
        Ok::<_, std::io::Error>((!answer.is_empty() && answer != guess).then(|| answer.to_owned()))
    };
    if answers.target.is_none() {
        answers.target = ask("column to predict", &roles.target)?;
    }
    if answers.client.is_none() {
        let guess = roles.client.as_deref().unwrap_or("none");
        let answer = ask("column that says whose each row is, or none", guess)?;
        answers.client = answer.map(|name| (name != "none").then_some(name));
    }
    Ok(answers)
}

/// A word for a shell, quoted if it has to be.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./_-+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_is_called_as_the_data() {
        for (data, expected) in [
            ("a/vowel.csv", "vowel.toml"),
            ("vowel.csv.gz", "vowel.toml"),
            ("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte.toml"),
            ("leaf/train", "train.toml"),
            (".csv", "scenario.toml"),
        ] {
            assert_eq!(default_out(data), PathBuf::from(expected));
        }
    }

    #[test]
    fn words_for_a_shell_are_quoted() {
        assert_eq!(shell_word("a/b-1.toml"), "a/b-1.toml");
        assert_eq!(shell_word("my data.toml"), "'my data.toml'");
        assert_eq!(shell_word("it's"), "'it'\\''s'");
    }
}
