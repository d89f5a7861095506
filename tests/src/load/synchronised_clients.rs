//! Devices that answer a round after a common start signal, each with its own delay. Measures the times until
//! their updates are acknowledged.

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::time::Duration;

use fedspan_protocol::message::{AckOutcome, RoundId, ToDevice};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::{Device, Quantiles};

/// Times at which the devices of a round answer.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Delay between one device and the next; with zero, all devices answer at once.
    pub step: Duration,
    /// Additional delay of the last device.
    pub last_delay: Duration,
}

/// Time between the start signal and the first answer.
const LEAD_TIME: Duration = Duration::from_millis(500);

/// Signal with which the devices start to answer a round.
#[derive(Clone, Copy, Debug)]
struct StartSignal {
    round: u32,
    start: Instant,
    pace: Pace,
}

/// Report of a device to the common receiver.
#[derive(Debug)]
enum Report {
    Opened(u32),
    Acknowledged(u32, AckOutcome, Duration),
    Ended(Error),
}

/// Result of a round.
#[derive(Clone, Debug)]
pub struct RoundResult {
    /// Times from writing the last byte of an update to receiving its acknowledgement.
    pub times: Quantiles,
    /// Number of counted updates.
    pub counted: usize,
    /// Time from the first answer to the last acknowledgement.
    pub took: Duration,
}

/// All devices that answer rounds.
#[derive(Debug)]
pub struct SynchronisedClients {
    devices: usize,
    start_signal: watch::Sender<Option<StartSignal>>,
    reporter: mpsc::UnboundedSender<Report>,
    reports: mpsc::UnboundedReceiver<Report>,
    /// Number of devices that have received each round.
    opened: BTreeMap<u32, usize>,
    /// Last round that was answered.
    round: u32,
}

impl SynchronisedClients {
    /// Creates a fleet in which `devices` devices are expected to join.
    #[must_use]
    pub fn new(devices: usize) -> Self {
        let (reporter, reports) = mpsc::unbounded_channel();
        Self {
            devices,
            start_signal: watch::channel(None).0,
            reporter,
            reports,
            opened: BTreeMap::new(),
            round: 0,
        }
    }

    /// Adds a connected device; `index` is its position in the order of answers.
    pub fn join(&self, index: usize, device: Device) {
        let (signal, reporter) = (self.start_signal.subscribe(), self.reporter.clone());
        let last = index + 1 == self.devices;
        tokio::spawn(async move {
            if let Err(error) = run_device(index, last, device, signal, &reporter).await {
                let _ = reporter.send(Report::Ended(error));
            }
        });
    }

    /// Waits until every device has received the next round.
    ///
    /// # Errors
    /// The error of the first device that lost its connection.
    pub async fn opened(&mut self) -> Result<u32> {
        loop {
            if let Some((&round, _)) =
                self.opened.iter().find(|&(&round, &count)| round > self.round && count >= self.devices)
            {
                return Ok(round);
            }
            match self.reports.recv().await {
                Some(Report::Opened(round)) => *self.opened.entry(round).or_default() += 1,
                Some(Report::Ended(error)) => return Err(error),
                Some(Report::Acknowledged(..)) | None => {}
            }
        }
    }

    /// Runs one round. `before_last` is called when all but one update have been acknowledged.
    ///
    /// # Errors
    /// The same errors as [`Self::opened`], or the error of `before_last`.
    pub async fn round(
        &mut self,
        pace: Pace,
        mut before_last: impl FnMut() -> Result<()>,
    ) -> Result<RoundResult> {
        let round = self.opened().await?;
        let start = Instant::now() + LEAD_TIME;
        let _ = self.start_signal.send(Some(StartSignal { round, start, pace }));
        let (mut times, mut counted) = (Vec::with_capacity(self.devices), 0);
        while times.len() < self.devices {
            match self.reports.recv().await {
                Some(Report::Opened(opened_round)) => *self.opened.entry(opened_round).or_default() += 1,
                Some(Report::Acknowledged(acknowledged_round, outcome, time))
                    if acknowledged_round == round =>
                {
                    counted += usize::from(outcome == AckOutcome::Counted);
                    times.push(time);
                    if times.len() + 1 == self.devices {
                        before_last()?;
                    }
                }
                Some(Report::Ended(error)) => return Err(error),
                Some(Report::Acknowledged(..)) | None => {}
            }
        }
        self.round = round;
        self.opened.retain(|&known, _| known > round);
        Ok(RoundResult { times: Quantiles::new(times), counted, took: start.elapsed() })
    }
}

/// Runs a device: reports each opened round, answers it at its time, and reports the acknowledgement.
async fn run_device(
    index: usize,
    last: bool,
    mut device: Device,
    mut signal: watch::Receiver<Option<StartSignal>>,
    reports: &mpsc::UnboundedSender<Report>,
) -> Result<()> {
    let mut sent: Option<(RoundId, Instant)> = None;
    loop {
        match device.receive().await? {
            ToDevice::RoundOpen(open) if sent.is_none_or(|(id, _)| id != open.id) => {
                let _ = reports.send(Report::Opened(open.id.round));
                // Sealed before the start signal, so that updates sent at once do not wait for this process.
                let frames = device.update(open.id)?;
                let answer_at = answer_time(&mut signal, open.id.round, index, last).await?;
                sleep_until(answer_at).await;
                sent = Some((open.id, device.send(&frames).await?));
            }
            ToDevice::Ack(ack) => {
                if let Some((_, sent_at)) = sent.filter(|(id, _)| *id == ack.id) {
                    let _ = reports.send(Report::Acknowledged(ack.id.round, ack.outcome, sent_at.elapsed()));
                }
            }
            _ => {}
        }
    }
}

/// Waits for the start signal of a round; returns the time at which the device at this position answers.
async fn answer_time(
    signal: &mut watch::Receiver<Option<StartSignal>>,
    round: u32,
    index: usize,
    last: bool,
) -> Result<Instant> {
    let signal = signal.wait_for(|signal| signal.is_some_and(|signal| signal.round >= round)).await;
    let signal = signal
        .ok()
        .and_then(|signal| *signal)
        .ok_or_else(|| Error::other("the sender of the start signal is gone"))?;
    let last_delay = if last { signal.pace.last_delay } else { Duration::ZERO };
    Ok(signal.start + signal.pace.step * u32::try_from(index).unwrap_or(u32::MAX) + last_delay)
}
