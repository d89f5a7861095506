//! Sources of a board's lines: a serial port, a TCP connection, a file or standard input. A thread reads the source.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serial2::SerialPort;

use super::Source;

/// Bytes of one read, nothing at the end of the source, or the error that ended it.
pub type Received = std::io::Result<Vec<u8>>;

/// Number of reads that wait for the recorder.
const WAITING: usize = 64;
/// Longest read of a serial port, after which the thread reads again.
const PATIENCE: Duration = Duration::from_millis(200);

/// Opens the source, and starts the thread that reads it.
///
/// # Errors
/// A one-line message with the name of the source.
pub fn open(source: &Source, baud: u32) -> Result<Receiver<Received>, String> {
    let Source { serial, tcp, from } = source;
    let failed = |name: &str, error: std::io::Error| format!("{name}: {error}");
    let mut source: Box<dyn Read + Send> = if let Some(name) = serial {
        let mut port = SerialPort::open(name, baud).map_err(|error| failed(name, error))?;
        port.set_read_timeout(PATIENCE).map_err(|error| failed(name, error))?;
        Box::new(port)
    } else if let Some(name) = tcp {
        Box::new(TcpStream::connect(name).map_err(|error| failed(name, error))?)
    } else {
        match from.as_deref().unwrap_or("-") {
            "-" => Box::new(std::io::stdin()),
            name => Box::new(std::fs::File::open(name).map_err(|error| failed(name, error))?),
        }
    };
    let (sender, receiver) = sync_channel(WAITING);
    let read = move || {
        let mut buffer = vec![0; 65_536];
        loop {
            let received = match source.read(&mut buffer) {
                Ok(length) => Ok(buffer.get(..length).unwrap_or_default().to_vec()),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                Err(error) => Err(error),
            };
            let is_last = received.as_ref().map_or(true, Vec::is_empty);
            if sender.send(received).is_err() || is_last {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("source".to_owned()).spawn(read);
    started.map_err(|error| failed("thread", error)).map(|_| receiver)
}
