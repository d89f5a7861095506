//! Standard output and standard error.

use std::io::Write;

use super::Stop;

/// Writes results to standard output. A reader that has gone away (`| head`) has seen what it wanted; any
/// other failure loses results.
pub fn print(text: &str) -> Result<(), Stop> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Stop::Failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
