//! A fleet of emulated boards and a server, in one command: the firmware that is flashed, on emulated cores,
//! as real clients of the real server.

mod board;
mod error;
mod expected;
mod keys;
mod life;
mod samples;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fedspan_aggregator::config::{Fleet, Limits, RoundsSection, Security};
use fedspan_aggregator::server::{Server, Status, query};
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::{Said, Shape};
use getrandom::SysRng;
use tokio::net::unix::pipe;
use tokio::task::{JoinHandle, JoinSet};

pub use board::{CORES, Core, Firmware, Start, Wire};
pub use error::EmulateError;
pub use expected::{Expected, expected};
pub use life::{BoardReport, Fate};

use crate::scenario::Scenario;
use life::Life;
use samples::Images;

/// How boards reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Named pipes, through semihosting: fast.
    Pipes,
    /// The board's serial line and its driver.
    Uart,
}

/// What to emulate.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// A scenario that the core's firmware is made for.
    pub scenario: &'a Scenario,
    /// How many boards. Board `i`, from 1, has the samples of client `i`, counted round and round.
    pub boards: usize,
    /// What befalls some of them.
    pub fates: &'a [Fate],
    /// Which core.
    pub core: Core,
    /// How they are connected.
    pub link: Link,
    /// Frames in the clear, as on a bench. Otherwise each board has a key, made for this fleet.
    pub plaintext: bool,
    /// The root of the repository, for firmware and emulator.
    pub root: &'a Path,
    /// Firmware that is built already.
    pub firmware: Option<PathBuf>,
    /// An empty directory for pipes, images, flash, keys and the server's state.
    pub scratch: &'a Path,
}

/// A fleet that has finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Emulated {
    /// What each board said, in order.
    pub boards: Vec<BoardReport>,
    /// The server's last status.
    pub status: Status,
    /// What the server said after each round, among it who has counted.
    pub rounds: Vec<serde_json::Value>,
    /// From the first board's start to the last one's end.
    pub seconds: f64,
}

/// Is told how far the campaign is.
pub trait Watch {
    /// Something was done.
    fn say(&mut self, what: &str);
    /// The server's status, now and then.
    fn status(&mut self, status: &serde_json::Value);
}

/// How often the server is asked how far it is.
const ASK: Duration = Duration::from_millis(300);

/// Runs the fleet to the end of its campaign. Whatever ends this future ends the boards.
///
/// # Errors
/// [`EmulateError`].
pub async fn run(
    plan: &Plan<'_>,
    interrupted: impl Future<Output = ()>,
    watch: &mut dyn Watch,
) -> Result<Emulated, EmulateError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |error| EmulateError::System { what, error }
    };
    plan.scenario.check_honest()?;
    let mut interrupted = std::pin::pin!(interrupted);
    let images = Images::new(plan)?;
    let emulator = plan.core.emulator(plan.root)?;
    let firmware = match &plan.firmware {
        Some(firmware) => firmware.clone(),
        None => {
            watch.say("building the firmware");
            tokio::select! {
                biased;
                () = &mut interrupted => return Err(EmulateError::Interrupted),
                firmware = plan.core.build(plan.root) => firmware?,
            }
        }
    };
    let security = keys::security(plan);
    let protection = keys::protection(&security, plan)?;
    let mut server = Server::bind(fleet(plan, security), 1, SysRng, protection).await?;
    let port = server.address()?.port();
    let state = plan.scratch.join("state");
    let mut boards: Vec<Life> = Vec::new();
    for index in 0..plan.boards {
        let (device, client) = (index as u64 + 1, index % images.clients() + 1);
        let image = plan.scratch.join(format!("client{client}.bin"));
        if !image.exists() {
            std::fs::write(&image, images.image(client)?).map_err(system("samples"))?;
        }
        let fate = plan.fates.iter().find(|fate| fate.board == index + 1).cloned().unwrap_or_default();
        let flash = plan.scratch.join(format!("board{device}.flash"));
        if let Some(content) = &fate.flash {
            std::fs::write(&flash, content).map_err(system("flash"))?;
        }
        let wire = match plan.link {
            Link::Uart => Wire::Uart(port),
            Link::Pipes => {
                let pipes = ["in", "out"].map(|end| plan.scratch.join(format!("board{device}.{end}")));
                for pipe in &pipes {
                    make_pipe(pipe).map_err(system("named pipe"))?;
                }
                let [receive, transmit] = pipes;
                #[cfg_attr(not(target_os = "linux"), allow(unused_mut))]
                let mut open = pipe::OpenOptions::new();
                // With a reader and a writer of our own neither end ever sees the pipe close. Elsewhere opening
                // fails for want of a reader: `--link uart` works there.
                #[cfg(target_os = "linux")]
                open.read_write(true);
                let line = tokio::io::join(
                    open.open_receiver(&transmit).map_err(system("named pipe"))?,
                    open.open_sender(&receive).map_err(system("named pipe"))?,
                );
                server.attach_link(format!("board {device}"), line);
                Wire::Pipes(receive, transmit)
            }
        };
        let provision = (!plan.plaintext).then(|| keys::file(plan.scratch, device));
        let (core, emulator, firmware) = (plan.core, emulator.clone(), firmware.clone());
        boards.push(Life { core, emulator, firmware, image, flash, provision, device, client, wire, fate });
    }
    let began = Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut serving = tokio::spawn(server.serve(
        async {
            let _ = stopped.await;
        },
        true,
    ));
    let rounds = watch_rounds(&state).await;
    let mut running = JoinSet::new();
    for life in boards {
        running.spawn(life.live());
    }
    watch.say(&format!("{} boards are running", plan.boards));
    let mut reports = Vec::new();
    let mut status = None;
    let mut ask = tokio::time::interval(ASK);
    while reports.len() < plan.boards || status.is_none() {
        tokio::select! {
            () = &mut interrupted => {
                running.shutdown().await;
                return Err(EmulateError::Interrupted);
            }
            Some(ended) = running.join_next() => {
                let ended = ended.map_err(|error| system("board")(std::io::Error::other(error)))?;
                match ended {
                    Ok(report) => reports.push(report),
                    Err(error) => {
                        running.shutdown().await;
                        return Err(error);
                    }
                }
            }
            served = &mut serving, if status.is_none() => {
                let served = served.map_err(|error| system("server")(std::io::Error::other(error)))?;
                status = Some(served?);
            }
            _ = ask.tick() => {
                let asked = query(&state, "status", |line| {
                    if let Ok(value) = serde_json::from_str(line) {
                        watch.status(&value);
                    }
                    Ok(())
                });
                // It may not be up yet, or be gone already.
                let _ = asked.await;
            }
        }
    }
    drop(stop);
    let seconds = began.elapsed().as_secs_f64();
    reports.sort_by_key(|report| report.device);
    let rounds = rounds.await.unwrap_or_default();
    Ok(Emulated { boards: reports, status: status.unwrap_or_default(), rounds, seconds })
}

/// Times that a server is asked whether it is up, before nobody listens to it.
const TRIES: u32 = 500;

/// Listens to what the server says after each round, to its end. It is heard from the first round on, as no
/// board runs yet.
async fn watch_rounds(state: &Path) -> JoinHandle<Vec<serde_json::Value>> {
    let up = async || matches!(query(state, "status", |_| Ok(())).await, Ok(Some(())));
    for _ in 0..TRIES {
        if up().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let directory = state.to_owned();
    let mut rounds = Box::pin(async move {
        let mut rounds = Vec::new();
        let told = query(&directory, "watch", |line| {
            rounds.extend(serde_json::from_str::<serde_json::Value>(line).ok());
            Ok(())
        });
        // Without a control socket nobody says anything.
        let _ = told.await;
        rounds
    });
    // Requests are answered in turn: when the second one is, the first has been heard.
    let early = tokio::select! {
        biased;
        rounds = &mut rounds => Some(rounds),
        _ = up() => None,
    };
    tokio::spawn(async move {
        match early {
            Some(rounds) => rounds,
            None => rounds.await,
        }
    })
}

/// The server's configuration: the scenario's campaign for these boards.
fn fleet(plan: &Plan<'_>, security: Security) -> Fleet {
    let Scenario { seed, model, algorithm, rule, samples, participation, stop, .. } = plan.scenario;
    let shape = plan.core.firmware.shape();
    Fleet {
        seed: *seed,
        state: plan.scratch.join("state"),
        journal: false,
        tcp: "127.0.0.1:0".to_owned(),
        serial: Vec::new(),
        baud: 115_200,
        expected: plan.boards,
        allowed: None,
        security,
        absence: Duration::from_secs(30),
        shape: Shape { features: shape.features, outputs: shape.outputs, image: None },
        // The boards' firmware has none: it declines such a scenario.
        scale: ScaleSource::None,
        model: model.clone(),
        algorithm: algorithm.clone(),
        rule: *rule,
        participation: *participation,
        privacy: None,
        stop_change: stop.change,
        rounds: RoundsSection { deadline: None, min_count: 1, over_select: 1.0 },
        limits: Limits {
            connections: plan.boards + 16,
            per_address: plan.boards + 16,
            unauthenticated: plan.boards + 16,
            updates: u32::MAX,
            hello: Duration::from_secs(60),
            // A board on pipes stands still while it waits, and sends no signs of life.
            idle: Duration::from_secs(600),
            frame: Duration::from_secs(30),
            repeat: Duration::from_secs(60),
            norm: 1e4,
            samples: *samples,
        },
        said: Said::EVERYTHING,
    }
}

/// The system's own program makes named pipes, on every Unix alike.
fn make_pipe(path: &Path) -> std::io::Result<()> {
    let status = std::process::Command::new("mkfifo").arg("-m").arg("600").arg(path).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("mkfifo ended with {status}"))) }
}
