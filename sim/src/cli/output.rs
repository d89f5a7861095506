//! Standard output and standard error.

use std::io::Write;

use super::CommandError;

/// Writes results to standard output. A closed pipe (`| head`) is not an error; any other failure loses results
/// and is one.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CommandError::Failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error.
pub fn log_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
