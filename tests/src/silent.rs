//! Measures how many rounds a fleet completes with a device that never answers, and with a thief that
//! reconnects with the key of a device without end.

use std::io::{Error, Result};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fedspan_protocol::message::ToDevice;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::load::{Device, Identity, Plan, ServerProcess, Shape};

/// Deadline of the rounds, in seconds.
pub const DEADLINE: u64 = 5;

/// Time after which a device that has lost its connection connects again.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// Device or peer in addition to the honest devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// None.
    None,
    /// One more device, which joins and never answers.
    Silent,
    /// A thief that has the key of device 1, which takes part as well: it reconnects without end and never
    /// answers.
    Thief,
}

/// Rounds that a fleet has completed.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Rounds a second, over the second half of the measurement.
    pub rounds: f64,
    /// Connections of the thief a second.
    pub reconnections: f64,
}

/// Runs a campaign with policy "full" for `time` and measures the second half of it. `patience` is that of
/// the server; 0 is none.
///
/// # Errors
/// An error of the operating system or of the server.
pub async fn measure(
    program: &Path,
    devices: usize,
    patience: u32,
    disturbance: Disturbance,
    time: Duration,
) -> Result<Rate> {
    let directory = std::env::temp_dir().join(format!("fedspan-silent-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let joining = devices + usize::from(disturbance == Disturbance::Silent);
    let plan = Plan {
        devices: joining,
        insiders: 0,
        frame_limit: 4096,
        shape: Shape::default(),
        seed: 1,
        limits: "updates = 1000".to_owned(),
    };
    let (fleet, identities) = plan.prepare(&directory)?;
    let fleet = fleet
        .replace(&format!("policy = \"first-arrivals\"\nn = {joining}"), "policy = \"full\"")
        .replace("deadline = 0", &format!("deadline = {DEADLINE}\npatience = {patience}"));
    let server = ServerProcess::start(program, &directory, &fleet)?;
    let (address, reconnections) = (server.address, Arc::new(AtomicU64::new(0)));
    // Both holders of a key count its handshakes, since a server may see each number once.
    let handshakes = Arc::new(AtomicU64::new(1));
    let mut tasks = JoinSet::new();
    for (index, identity) in identities.iter().cloned().enumerate() {
        let handshakes = Arc::clone(&handshakes);
        tasks.spawn(async move {
            loop {
                let handshake = handshakes.fetch_add(1, Ordering::Relaxed);
                let _ = take_part(address, identity.clone(), handshake, index < devices).await;
                sleep(RECONNECT_DELAY).await;
            }
        });
    }
    if disturbance == Disturbance::Thief
        && let Some(identity) = identities.first().cloned()
    {
        let (handshakes, reconnections) = (Arc::clone(&handshakes), Arc::clone(&reconnections));
        tasks.spawn(async move {
            sleep(time / 10).await;
            loop {
                let handshake = handshakes.fetch_add(1, Ordering::Relaxed);
                if Device::join(address, None, identity.clone(), handshake).await.is_ok() {
                    reconnections.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    sleep(time / 2).await;
    let (rounds, connected, began) =
        (completed(&server).await?, reconnections.load(Ordering::Relaxed), Instant::now());
    sleep(time / 2).await;
    let seconds = began.elapsed().as_secs_f64();
    let rate = |count: u64| count as f64 / seconds;
    let rounds = rate(completed(&server).await?.saturating_sub(rounds));
    let reconnections = rate(reconnections.load(Ordering::Relaxed) - connected);
    tasks.shutdown().await;
    Ok(Rate { rounds, reconnections })
}

/// Number of training rounds that a server has committed.
async fn completed(server: &ServerProcess) -> Result<u64> {
    let status = server.status().await?;
    status["round"].as_u64().ok_or_else(|| Error::other(format!("no number of rounds in {status}")))
}

/// Joins the campaign, and answers every round if `answers`, until the connection ends.
async fn take_part(
    address: std::net::SocketAddr,
    identity: Identity,
    handshake: u64,
    answers: bool,
) -> Result<()> {
    let mut device = Device::join(address, None, identity, handshake).await?;
    loop {
        if let ToDevice::RoundOpen(open) = device.receive().await?
            && answers
        {
            device.answer(open.id).await?;
        }
    }
}
