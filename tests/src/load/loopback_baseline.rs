//! Baseline of the machine: round-trip time over loopback between two threads, without a server, measured
//! while everything else runs. The rest of the time of an acknowledgement is caused by the server.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Quantiles;

/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(4);

/// A running echo connection.
#[derive(Debug)]
pub struct LoopbackBaseline {
    times: Arc<Mutex<Vec<Duration>>>,
}

impl LoopbackBaseline {
    /// Starts the echo, which runs until the process ends.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut echo, _) = listener.accept()?;
        client.set_nodelay(true)?;
        echo.set_nodelay(true)?;
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while echo.read_exact(&mut bytes).and_then(|()| echo.write_all(&bytes)).is_ok() {}
        });
        let times = Arc::new(Mutex::new(Vec::new()));
        let measured = Arc::clone(&times);
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            loop {
                let sent = Instant::now();
                if client.write_all(&bytes).and_then(|()| client.read_exact(&mut bytes)).is_err() {
                    return;
                }
                measured.lock().unwrap_or_else(PoisonError::into_inner).push(sent.elapsed());
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { times })
    }

    /// Returns the round-trip times since the last call.
    #[must_use]
    pub fn take(&self) -> Quantiles {
        Quantiles::new(std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
