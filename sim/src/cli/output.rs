//! Writers for standard output (results) and standard error (messages).

use std::io::Write;

use super::CommandError;

/// Writes results to standard output. A closed pipe, for example of `| head`, is not an error.
///
/// # Errors
/// [`CommandError::Failed`] for any other failure, because results would be lost.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CommandError::Failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error and ignores failures.
pub fn log_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
