//! Arguments of a command, recorded in its result directory so that the command can be continued.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::CommandError;
use super::run_state::version;
use fedspan_sim_core::report::files::{COMMAND_FILE, write_json};

/// Content of the file.
#[derive(Clone, Deserialize, Serialize)]
pub struct Recorded {
    /// Version of the program.
    program: String,
    /// Arguments, without the name of the program.
    pub arguments: Vec<String>,
}

impl Recorded {
    /// Arguments of the present command; `None` if an argument is not UTF-8.
    pub fn present() -> Option<Self> {
        let arguments = std::env::args_os().skip(1).map(|argument| argument.into_string().ok());
        Some(Self { program: version(), arguments: arguments.collect::<Option<_>>()? })
    }

    /// Reads the file of a result directory.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if it cannot be read.
    pub fn read(directory: &Path) -> Result<Self, CommandError> {
        let path = directory.join(COMMAND_FILE);
        let unusable = |reason: String| CommandError::Usage(format!("{}: {reason}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| {
            unusable(format!(
                "{error}; allowed: a directory that run or compare has written, which has this file"
            ))
        })?;
        serde_json::from_str(&text).map_err(|error| unusable(format!("damaged: {error}")))
    }

    /// Writes the file of a result directory.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), CommandError> {
        Ok(write_json(&directory.join(COMMAND_FILE), self)?)
    }
}
