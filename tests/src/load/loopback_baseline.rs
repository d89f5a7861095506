//! What the machine itself takes for a question and an answer over loopback, while everything else runs: two threads
//! and no server. What is slower than that is the server's doing.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Quantiles;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(4);

/// A running echo.
#[derive(Debug)]
pub struct LoopbackBaseline {
    times: Arc<Mutex<Vec<Duration>>>,
}

impl LoopbackBaseline {
    /// Starts it. It ends with the process.
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut own = TcpStream::connect(listener.local_addr()?)?;
        let (mut other, _) = listener.accept()?;
        own.set_nodelay(true)?;
        other.set_nodelay(true)?;
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            while other.read_exact(&mut bytes).and_then(|()| other.write_all(&bytes)).is_ok() {}
        });
        let times = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&times);
        std::thread::spawn(move || {
            let mut bytes = [0; 64];
            loop {
                let asked = Instant::now();
                if own.write_all(&bytes).and_then(|()| own.read_exact(&mut bytes)).is_err() {
                    return;
                }
                received.lock().unwrap_or_else(PoisonError::into_inner).push(asked.elapsed());
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { times })
    }

    /// The times since this was last called.
    #[must_use]
    pub fn take(&self) -> Quantiles {
        Quantiles::new(std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
