//! What devices are told of their updates, on the wire, and whether it is what the server has kept.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use fedspan_aggregator::journal::{self, JournalEntry, Outcome};
use fedspan_aggregator::store;
use fedspan_protocol::frame::{Decoder, Fed, crc32c};
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_protocol::message::{AckOutcome, ToDevice, decode};
use fedspan_sim_core::live::again;
use fedspan_sim_core::scenario::Scenario;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// (device, round): that it counts, as the device was told.
#[derive(Clone, Debug, Default)]
pub struct Told(Arc<Mutex<Vec<(u64, u32, AckOutcome)>>>);

impl Told {
    /// Acknowledgements that came.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// What a server has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// How often it began in the middle of a round that had updates.
    pub amid: usize,
    /// Rounds that were committed.
    pub rounds: usize,
    /// Updates that were counted.
    pub counted: usize,
}

/// Holds what was told against what is kept.
///
/// # Errors
/// What was lost, counted twice, or decided otherwise.
pub fn examine(scenario: &Scenario, state: &Path, devices: usize, told: &Told) -> Result<Kept, String> {
    let lines = journal::read(&state.join(journal::FILE)).map_err(|error| error.to_string())?;
    let (mut counted, mut rounds, mut amid) = (BTreeSet::new(), 0, 0);
    let mut open: BTreeSet<u64> = BTreeSet::new();
    let mut representation = None;
    for line in &lines {
        match line {
            JournalEntry::Answered(answer) if answer.outcome == Outcome::Counted => {
                if !counted.insert((answer.device, answer.round)) {
                    return Err(format!(
                        "device {} was counted twice in round {}",
                        answer.device, answer.round
                    ));
                }
                open.insert(answer.device);
            }
            JournalEntry::Committed(committed) => {
                rounds += 1;
                let participants: BTreeSet<u64> = committed.participants.iter().copied().collect();
                if participants != open || participants.len() != devices {
                    return Err(format!(
                        "round {} was committed with others than it counted",
                        committed.round
                    ));
                }
                open.clear();
                representation = Some(&committed.representation);
            }
            JournalEntry::Resumed(_) => amid += usize::from(!open.is_empty()),
            _ => {}
        }
    }
    let mut counts = BTreeSet::new();
    for (device, round, outcome) in told.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if !counted.contains(&(*device, *round)) {
            return Err(format!("device {device} was told {outcome:?} for round {round}, and that is lost"));
        }
        if *outcome == AckOutcome::Counted && !counts.insert((*device, *round)) {
            return Err(format!("device {device} was told twice that it counts in round {round}"));
        }
    }
    let replayed = again(scenario, &lines).map_err(|error| error.to_string())?.replay;
    if let Some(difference) = replayed.difference() {
        return Err(format!(
            "the journal is decided otherwise after {} rounds:\n{difference}",
            replayed.rounds()
        ));
    }
    if replayed.rounds() != rounds {
        return Err(format!("{} of {rounds} rounds were decided again", replayed.rounds()));
    }
    let stored = store::read(state).map_err(|error| error.to_string())?;
    let checkpoint = stored.and_then(|stored| stored.checkpoint).ok_or("nothing is stored")?;
    let bytes: Vec<u8> = checkpoint.state.iter().flat_map(|value| value.to_le_bytes()).collect();
    if representation != Some(&format!("{:08x}", crc32c(&bytes))) {
        return Err("the stored representation differs from that of the last commit".to_owned());
    }
    Ok(Kept { amid, rounds, counted: counted.len() })
}

/// A connection whose acknowledgements are written down.
#[derive(Debug)]
pub struct Tap<S> {
    stream: S,
    device: u64,
    decoder: Decoder<Vec<u8>>,
    told: Told,
}

impl<S> Tap<S> {
    /// `stream` is that of `device`.
    #[must_use]
    pub fn new(stream: S, device: u64, told: Told) -> Self {
        Self { stream, device, decoder: Decoder::new(vec![0; FRAME_LIMIT_MAX]), told }
    }

    fn hear(&mut self, mut input: &[u8]) {
        loop {
            match self.decoder.feed(&mut input) {
                Fed::NeedMore => return,
                Fed::Message(bytes) => {
                    if let Ok((ToDevice::Ack(ack), _)) = decode::<ToDevice>(bytes)
                        && matches!(ack.outcome, AckOutcome::Counted | AckOutcome::Duplicate)
                    {
                        let mut told = self.told.0.lock().unwrap_or_else(PoisonError::into_inner);
                        told.push((self.device, ack.id.round, ack.outcome));
                    }
                }
                _ => {}
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tap<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let heard = buffer.filled().get(before..).unwrap_or_default().to_vec();
        self.hear(&heard);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tap<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
