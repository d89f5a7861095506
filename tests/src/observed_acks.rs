//! Record of the acknowledgements that devices received on the wire, and its comparison with the server's
//! state.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use fedspan_aggregator::journal::{self, JournalEntry, Outcome};
use fedspan_aggregator::store;
use fedspan_engine::DeviceId;
use fedspan_protocol::frame::{Decoder, FeedResult, crc32c};
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_protocol::message::{AckOutcome, ToDevice, decode};
use fedspan_sim_core::live::check_replay;
use fedspan_sim_core::scenario::Scenario;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Acknowledgements of counted updates: (device, round, outcome).
#[derive(Clone, Debug, Default)]
pub struct ObservedAcks(Arc<Mutex<Vec<(u64, u32, AckOutcome)>>>);

impl ObservedAcks {
    /// Returns the number of acknowledgements received.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Totals of a server's state directory after it has passed [`audit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Number of restarts in the middle of a round that had updates.
    pub mid_round: usize,
    /// Number of committed rounds.
    pub rounds: usize,
    /// Number of counted updates.
    pub counted: usize,
}

/// Compares the acknowledgements with the journal, replays the journal, and compares the stored model with
/// the last commit.
///
/// # Errors
/// A sentence that names the first update that is lost or counted twice, or the first difference between the
/// replay and the journal.
pub fn audit(
    scenario: &Scenario,
    state: &Path,
    devices: usize,
    acks: &ObservedAcks,
) -> Result<Audit, String> {
    let lines = journal::read(&state.join(journal::FILE)).map_err(|error| error.to_string())?;
    let mut counted = BTreeSet::new();
    let mut rounds = 0;
    let mut mid_round = 0;
    // Devices counted in the open round.
    let mut open: BTreeSet<DeviceId> = BTreeSet::new();
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
                let participants: BTreeSet<DeviceId> = committed.participants.iter().copied().collect();
                if participants != open || participants.len() != devices {
                    return Err(format!(
                        "round {} was committed with other devices than the journal counted",
                        committed.round
                    ));
                }
                open.clear();
                representation = Some(&committed.representation);
            }
            JournalEntry::Resumed(_) => mid_round += usize::from(!open.is_empty()),
            _ => {}
        }
    }
    let mut acknowledged = BTreeSet::new();
    for (device, round, outcome) in acks.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if !counted.contains(&(DeviceId(*device), *round)) {
            return Err(format!(
                "device {device} received {outcome:?} for round {round}, but the journal has no such update"
            ));
        }
        if *outcome == AckOutcome::Counted && !acknowledged.insert((*device, *round)) {
            return Err(format!("device {device} received Counted twice for round {round}"));
        }
    }
    let replayed = check_replay(scenario, &lines).map_err(|error| error.to_string())?.replay;
    if let Some(difference) = replayed.difference() {
        return Err(format!(
            "the replay of the journal differs after {} rounds: {difference}",
            replayed.rounds()
        ));
    }
    if replayed.rounds() != rounds {
        return Err(format!("the replay has {} of {rounds} rounds", replayed.rounds()));
    }
    let stored = store::read(state).map_err(|error| error.to_string())?;
    let checkpoint =
        stored.and_then(|stored| stored.checkpoint).ok_or("the state directory holds no checkpoint")?;
    let bytes: Vec<u8> = checkpoint.state.iter().flat_map(|value| value.to_le_bytes()).collect();
    if representation != Some(&format!("{:08x}", crc32c(&bytes))) {
        return Err("the stored representation differs from that of the last commit".to_owned());
    }
    Ok(Audit { mid_round, rounds, counted: counted.len() })
}

/// A connection that records the acknowledgements in its bytes.
#[derive(Debug)]
pub struct AckRecorder<S> {
    stream: S,
    device: u64,
    decoder: Decoder<Vec<u8>>,
    acks: ObservedAcks,
}

impl<S> AckRecorder<S> {
    /// Wraps `stream`, the connection of `device`.
    #[must_use]
    pub fn new(stream: S, device: u64, acks: ObservedAcks) -> Self {
        Self { stream, device, decoder: Decoder::new(vec![0; FRAME_LIMIT_MAX]), acks }
    }

    /// Decodes received bytes and records the acknowledgements of counted updates.
    fn record(&mut self, mut input: &[u8]) {
        loop {
            match self.decoder.feed(&mut input) {
                FeedResult::NeedMore => return,
                FeedResult::Message(bytes) => {
                    if let Ok((ToDevice::Ack(ack), _)) = decode::<ToDevice>(bytes)
                        && matches!(ack.outcome, AckOutcome::Counted | AckOutcome::Duplicate)
                    {
                        let mut acks = self.acks.0.lock().unwrap_or_else(PoisonError::into_inner);
                        acks.push((self.device, ack.id.round, ack.outcome));
                    }
                }
                _ => {}
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AckRecorder<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().get(before..).unwrap_or_default().to_vec();
        self.record(&bytes);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AckRecorder<S> {
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
