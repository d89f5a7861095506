//! A fleet of emulated boards and a server, in one command: the firmware that is flashed, on emulated cores,
//! as real clients of the real server.

mod board;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fedspan_aggregator::config::{Fleet, Limits, RoundsSection, Shape};
use fedspan_aggregator::server::{ServeError, Server, Status, query};
use fedspan_protocol::message::Numeric;
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::task::JoinSet;

pub use board::{CORES, Core, Wire};

use crate::data::flash::{ImageError, image};
use crate::scenario::{DataSection, Scenario};

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
    /// A scenario about the bundled recordings.
    pub scenario: &'a Scenario,
    /// How many boards. Board `i`, from 1, has the recording of wearer `i`, counted round and round.
    pub boards: usize,
    /// Which core.
    pub core: Core,
    /// How they are connected.
    pub link: Link,
    /// The root of the repository, for firmware and emulator.
    pub root: &'a Path,
    /// Firmware that is built already.
    pub firmware: Option<PathBuf>,
    /// An empty directory for pipes, images and the server's state.
    pub scratch: &'a Path,
}

/// A fleet that did not get anywhere.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulateError {
    /// Boards replay recordings; other data they have not.
    #[error(
        "{name}: boards replay the bundled recordings (data.kind = \"watch-imu\") with a model of {d} x {k} and algorithm.numeric = \"f32\""
    )]
    Scenario {
        /// The scenario.
        name: String,
        /// Features that the firmware has.
        d: usize,
        /// Width that the firmware has.
        k: usize,
    },
    /// No emulator.
    #[error("{program} is not on the PATH; `tests/setup --install` fetches it")]
    NoQemu {
        /// Which program.
        program: &'static str,
    },
    /// No firmware.
    #[error("{}: the firmware does not build: {reason}", folder.display())]
    Build {
        /// Where.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
    /// No recording.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file, a pipe or a process.
    #[error("{what}: {error}")]
    System {
        /// What it was about.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// The server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A board that ended without a report.
    #[error("board {device} ended with {code}: {said}")]
    Board {
        /// Which one.
        device: u64,
        /// How.
        code: String,
        /// Its last words.
        said: String,
    },
    /// Somebody ended it.
    #[error("interrupted")]
    Interrupted,
}

/// What a board said at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct BoardReport {
    /// Its number.
    pub device: u64,
    /// The wearer, from 1.
    pub wearer: usize,
    /// Its line of JSON.
    pub line: serde_json::Value,
}

/// A fleet that has finished.
#[derive(Clone, Debug, PartialEq)]
pub struct Emulated {
    /// What each board said, in order.
    pub boards: Vec<BoardReport>,
    /// The server's last status.
    pub status: Status,
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

/// Features and width of the boards' firmware.
const FIRMWARE: (usize, usize) = (fedspan_client::features::FEATURES, 24);

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
    let scenario = plan.scenario;
    let system = |what: &str| {
        let what = what.to_owned();
        move |error| EmulateError::System { what, error }
    };
    let DataSection::Watch(settings) = &scenario.data else { return Err(unsuitable(scenario)) };
    let fits = scenario.model.k == FIRMWARE.1 && scenario.algorithm.numeric == Numeric::F32;
    if !fits || settings.programmes {
        return Err(unsuitable(scenario));
    }
    let wearers = settings.roles().clients.len();
    let emulator = plan.core.emulator(plan.root)?;
    let firmware = match &plan.firmware {
        Some(firmware) => firmware.clone(),
        None => {
            watch.say("building the firmware");
            plan.core.build(plan.root).await?
        }
    };
    let mut server = Server::bind(fleet(plan), 1).await?;
    let port = server.address()?.port();
    let state = plan.scratch.join("state");
    let mut boards: Vec<(u64, usize, PathBuf, Wire)> = Vec::new();
    for index in 0..plan.boards {
        let (device, wearer) = (index as u64 + 1, index % wearers.max(1) + 1);
        let file = plan.scratch.join(format!("wearer{wearer}.bin"));
        if !file.exists() {
            let image = image(settings, scenario.seed, wearer)?;
            std::fs::write(&file, image).map_err(system("recording"))?;
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
                server.attach(format!("board {device}"), line);
                Wire::Pipes(receive, transmit)
            }
        };
        boards.push((device, wearer, file, wire));
    }
    let began = Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut serving = tokio::spawn(server.serve(
        async {
            let _ = stopped.await;
        },
        true,
    ));
    let mut running = JoinSet::new();
    for (device, wearer, file, wire) in boards {
        let child = plan.core.start(&emulator, &firmware, &file, device, &wire);
        let child = child.map_err(system("emulator"))?;
        running.spawn(async move { (device, wearer, report(device, child).await) });
    }
    watch.say(&format!("{} boards are running", plan.boards));
    let mut reports = Vec::new();
    let mut status = None;
    let mut interrupted = std::pin::pin!(interrupted);
    let mut ask = tokio::time::interval(ASK);
    while reports.len() < plan.boards || status.is_none() {
        tokio::select! {
            () = &mut interrupted => {
                running.shutdown().await;
                return Err(EmulateError::Interrupted);
            }
            Some(ended) = running.join_next() => {
                let ended = ended.map_err(|error| system("board")(std::io::Error::other(error)))?;
                let (device, wearer, line) = ended;
                match line {
                    Ok(line) => reports.push(BoardReport { device, wearer, line }),
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
    Ok(Emulated { boards: reports, status: status.unwrap_or_default(), seconds })
}

fn unsuitable(scenario: &Scenario) -> EmulateError {
    let (d, k) = FIRMWARE;
    EmulateError::Scenario { name: scenario.name.clone(), d, k }
}

/// The server's configuration: the scenario's campaign for these boards.
fn fleet(plan: &Plan<'_>) -> Fleet {
    let Scenario { seed, model, algorithm, participation, stop, .. } = plan.scenario;
    Fleet {
        seed: *seed,
        state: plan.scratch.join("state"),
        tcp: "127.0.0.1:0".to_owned(),
        serial: Vec::new(),
        baud: 115_200,
        expected: plan.boards,
        allowed: None,
        absence: Duration::from_secs(30),
        shape: Shape { features: FIRMWARE.0, outputs: crate::data::watch::EXERCISES },
        model: model.clone(),
        algorithm: algorithm.clone(),
        participation: *participation,
        stop_change: stop.change,
        rounds: RoundsSection { deadline: None, min_count: 1, over_select: 1.0 },
        limits: Limits {
            connections: plan.boards + 16,
            hello: Duration::from_secs(60),
            // A board on pipes stands still while it waits, and sends no signs of life.
            idle: Duration::from_secs(600),
            frame: Duration::from_secs(30),
            repeat: Duration::from_secs(60),
            norm: 1e4,
        },
    }
}

/// Waits for a board to end and reads its report.
async fn report(device: u64, child: Child) -> Result<serde_json::Value, EmulateError> {
    let output = child.wait_with_output().await;
    let output = output.map_err(|error| EmulateError::System { what: format!("board {device}"), error })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.starts_with('{'));
    match line.and_then(|line| serde_json::from_str(line).ok()) {
        Some(value) if output.status.success() => Ok(value),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next_back().or(text.lines().next_back()).unwrap_or("nothing").to_owned();
            Err(EmulateError::Board { device, code: output.status.to_string(), said })
        }
    }
}

/// The system's own program makes named pipes, on every Unix alike.
fn make_pipe(path: &Path) -> std::io::Result<()> {
    let status = std::process::Command::new("mkfifo").arg("-m").arg("600").arg(path).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("mkfifo ended with {status}"))) }
}
