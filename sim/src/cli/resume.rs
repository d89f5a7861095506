//! Command `resume`: continues an interrupted command, or trains the runs of a finished one further.

use std::path::PathBuf;

use clap::{Args, Parser};

use super::recorded_command::Recorded;
use super::{Cli, Command, CommandError, RunOptions, compare, run};
use fedspan_sim_core::report::files::COMMAND_FILE;

/// Arguments of command `resume`.
#[derive(Debug, Args)]
pub struct ResumeOptions {
    /// Directory with the results of a command `run` or `compare`
    directory: PathBuf,
    /// Train all runs to this number of rounds instead
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Number of threads, which does not affect the results [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Show no progress; warnings and errors are still shown
    #[arg(long, short)]
    quiet: bool,
}

/// Runs command `resume`.
pub fn command(resume: &ResumeOptions) -> Result<(), CommandError> {
    let mut recorded = Recorded::read(&resume.directory)?;
    let unusable = |reason: &str| {
        let path = resume.directory.join(COMMAND_FILE);
        CommandError::Usage(format!("{}: {reason}", path.display()))
    };
    let before = recorded.clone();
    if let Some(rounds) = resume.rounds {
        recorded.arguments.extend(["--set".to_owned(), format!("algorithm.rounds={rounds}")]);
    }
    let arguments = std::iter::once("fedspan-sim".to_owned()).chain(recorded.arguments.iter().cloned());
    let cli = Cli::try_parse_from(arguments)
        .map_err(|error| unusable(&format!("its arguments are not valid: {error}")))?;
    if resume.rounds.is_some() {
        // Before the command, so that one that is killed continues to the same number of rounds.
        recorded.write(&resume.directory)?;
    }
    let command = match cli.command {
        Some(Command::Run { scenario, mut options }) => {
            set(&mut options, resume);
            run::command(&scenario, &options)
        }
        Some(Command::Compare { what, mut options }) => {
            set(&mut options, resume);
            compare::command(&what, &options)
        }
        _ => Err(unusable("is not of the command run or compare")),
    };
    let command = command.map_err(|error| match error {
        CommandError::Usage(message) if message.contains("No such file") => {
            CommandError::Usage(format!("{message}; start resume in the directory of the first command"))
        }
        error => error,
    });
    if resume.rounds.is_some() && matches!(command, Err(CommandError::Usage(_))) {
        before.write(&resume.directory)?;
    }
    command
}

/// Changes the options of the recorded command to those with which it is continued.
fn set(options: &mut RunOptions, resume: &ResumeOptions) {
    options.out = Some(resume.directory.clone());
    (options.resumes, options.overwrite) = (true, false);
    options.quiet = resume.quiet;
    options.threads = resume.threads.or(options.threads);
}
