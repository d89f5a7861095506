//! Emulated fleet: QEMU boards run the client firmware and connect to a real server in this process.

mod board;
mod board_line;
mod board_run;
mod error;
mod expected;
mod keys;
mod samples;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fedspan_aggregator::config::{Fleet, Limits, RoundsSection, Security};
use fedspan_aggregator::server::{Server, Status, query};
use fedspan_engine::CustomNames;
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::{GivenKeys, ModelSection, Shape, StopSection};
use getrandom::SysRng;
use tokio::net::unix::pipe;
use tokio::task::{JoinHandle, JoinSet};

pub use board::{BoardArgs, BoardLink, CORES, Core, Firmware, firmware_cargo};
pub use board_run::{BoardFaults, BoardReport, DeadBoard};
pub use error::EmulateError;
pub use expected::{Expected, expected, has_same_participants};
pub use samples::{NetworkSize, network_size};

use crate::scenario::Scenario;
use board_line::board_line;
use board_run::BoardRun;
use samples::SampleImages;

/// Kind of link between boards and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Named pipes through semihosting, the faster link.
    Pipes,
    /// Serial line, which also exercises the firmware's UART driver.
    Uart,
}

/// Settings of an emulated fleet.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Scenario that the core's firmware supports.
    pub scenario: &'a Scenario,
    /// Number of boards. Board `i`, from 1, has the samples of client `i`. If there are more boards than
    /// clients, clients are repeated.
    pub boards: usize,
    /// Faults injected into boards.
    pub faults: &'a [BoardFaults],
    /// Core of all boards.
    pub core: Core,
    /// Kind of link of all boards.
    pub link: Link,
    /// True if frames are sent in plaintext. If false, each board receives a key that is made for this run.
    pub plaintext: bool,
    /// Root of the repository, where firmware is built and the emulator may be installed.
    pub root: &'a Path,
    /// Path of the firmware; `None` to build the firmware.
    pub firmware: Option<PathBuf>,
    /// Empty directory for pipes, images, flash, keys and the server's state.
    pub scratch: &'a Path,
}

/// Result of an emulated fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulationResult {
    /// Reports of the boards that ran to the end, in order.
    pub boards: Vec<BoardReport>,
    /// Boards that ended without a report, in order. The campaign went on without them.
    pub dead: Vec<DeadBoard>,
    /// Final status of the server.
    pub status: Status,
    /// Report of the server on each round, including the devices whose updates were aggregated.
    pub rounds: Vec<serde_json::Value>,
    /// Wall-clock time from the start of the first board to the end of the last board, in seconds.
    pub seconds: f64,
}

/// Observer of a campaign's progress.
pub trait EmulationWatcher {
    /// Called with a message when a step has finished.
    fn message(&mut self, text: &str);
    /// Called with the server's status at intervals.
    fn status(&mut self, status: &serde_json::Value);
}

/// Interval between two status requests to the server.
const STATUS_INTERVAL: Duration = Duration::from_millis(300);

/// Runs the fleet until the campaign ends. Dropping the future kills the boards.
///
/// # Errors
/// [`EmulateError`] if the scenario does not fit the core, the firmware cannot be built, the emulator or the
/// server cannot be started, a board or the server fails, or `interrupted` completes.
pub async fn run(
    plan: &Plan<'_>,
    interrupted: impl Future<Output = ()>,
    watcher: &mut dyn EmulationWatcher,
) -> Result<EmulationResult, EmulateError> {
    let system = |what: &str| {
        let what = what.to_owned();
        move |error| EmulateError::System { what, error }
    };
    check(plan.scenario, plan.core)?;
    let mut interrupted = std::pin::pin!(interrupted);
    let images = SampleImages::new(plan.scenario, plan.core)?;
    let emulator = plan.core.emulator(plan.root)?;
    let firmware = match &plan.firmware {
        Some(firmware) => firmware.clone(),
        None => {
            watcher.message("building the firmware");
            tokio::select! {
                biased;
                () = &mut interrupted => return Err(EmulateError::Interrupted),
                firmware = plan.core.build(plan.root) => firmware?,
            }
        }
    };
    let security = keys::security(plan);
    let protection = keys::protection(&security, plan)?;
    let mut server =
        Server::bind(fleet(plan, images.shape(), images.model(), security), 1, SysRng, protection).await?;
    let port = server.address()?.port();
    let state = plan.scratch.join("state");
    let mut boards: Vec<BoardRun> = Vec::new();
    // Ends the server's end of a board's pipes.
    let mut line_ends = BTreeMap::new();
    for index in 0..plan.boards {
        let (device, client) = (index as u64 + 1, index % images.clients() + 1);
        let image = plan.scratch.join(format!("client{client}.bin"));
        if !image.exists() {
            std::fs::write(&image, images.image(client)?).map_err(system("samples"))?;
        }
        let faults = plan.faults.iter().find(|faults| faults.board == index + 1).cloned().unwrap_or_default();
        let flash = plan.scratch.join(format!("board{device}.flash"));
        if let Some(content) = &faults.flash {
            std::fs::write(&flash, content).map_err(system("flash"))?;
        }
        let link = match plan.link {
            Link::Uart => BoardLink::Uart(port),
            Link::Pipes => {
                let pipes = ["in", "out"].map(|end| plan.scratch.join(format!("board{device}.{end}")));
                for pipe in &pipes {
                    make_pipe(pipe).map_err(system("named pipe"))?;
                }
                let [receive, transmit] = pipes;
                #[cfg_attr(not(target_os = "linux"), allow(unused_mut))]
                let mut open = pipe::OpenOptions::new();
                // On Linux each pipe is opened for reading and writing, so that it stays open while a board
                // restarts. On other systems this is not possible, and opening a pipe without a reader fails;
                // `--link uart` works on these systems.
                #[cfg(target_os = "linux")]
                open.read_write(true);
                let (line, end) = board_line(open.open_receiver(&transmit).map_err(system("named pipe"))?);
                let line = tokio::io::join(line, open.open_sender(&receive).map_err(system("named pipe"))?);
                server.attach_link(format!("board {device}"), line);
                line_ends.insert(device, end);
                BoardLink::Pipes(receive, transmit)
            }
        };
        let provision = (!plan.plaintext).then(|| keys::file(plan.scratch, device));
        let core = plan.core;
        let emulator = emulator.clone();
        let firmware = firmware.clone();
        boards.push(BoardRun {
            core,
            emulator,
            firmware,
            image,
            flash,
            provision,
            device,
            client,
            link,
            faults,
        });
    }
    let began = Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut stop = Some(stop);
    let mut serving = tokio::spawn(server.serve(
        async {
            let _ = stopped.await;
        },
        true,
    ));
    let rounds = watch_rounds(&state).await;
    let mut running = JoinSet::new();
    for board in boards {
        running.spawn(board.run());
    }
    watcher.message(&format!("{} boards are running", plan.boards));
    let (mut reports, mut dead) = (Vec::new(), Vec::new());
    let mut status = None;
    let mut ask = tokio::time::interval(STATUS_INTERVAL);
    while reports.len() + dead.len() < plan.boards || status.is_none() {
        tokio::select! {
            () = &mut interrupted => {
                running.shutdown().await;
                return Err(EmulateError::Interrupted);
            }
            Some(ended) = running.join_next() => {
                let ended = ended.map_err(|error| system("board")(std::io::Error::other(error)))?;
                match ended {
                    Ok(report) => reports.push(report),
                    // A board that dies in a campaign is a dropout. Before the first round the campaign would wait for it.
                    Err(EmulateError::Board { device, code, last_line })
                        if dead.len() + 1 < plan.boards && has_begun(&state).await =>
                    {
                        watcher.message(&format!("board {device} ended with {code}, the others go on: {last_line}"));
                        drop(line_ends.remove(&device));
                        dead.push(DeadBoard { device, code, last_line });
                    }
                    Err(error) => {
                        running.shutdown().await;
                        return Err(error);
                    }
                }
                // The server would wait for the heads of dead boards.
                if reports.len() + dead.len() == plan.boards && !dead.is_empty() {
                    stop = None;
                }
            }
            served = &mut serving, if status.is_none() => {
                let served = served.map_err(|error| system("server")(std::io::Error::other(error)))?;
                status = Some(served?);
            }
            _ = ask.tick() => {
                let status_query = query(&state, "status", |line| {
                    if let Ok(value) = serde_json::from_str(line) {
                        watcher.status(&value);
                    }
                    Ok(())
                });
                // Errors are ignored: the server may not have started yet, or may have ended.
                let _ = status_query.await;
            }
        }
    }
    drop(stop);
    let seconds = began.elapsed().as_secs_f64();
    reports.sort_by_key(|report| report.device);
    dead.sort_by_key(|board| board.device);
    let rounds = rounds.await.unwrap_or_default();
    Ok(EmulationResult { boards: reports, dead, status: status.unwrap_or_default(), rounds, seconds })
}

/// Returns true if the server has opened a round.
async fn has_begun(state: &Path) -> bool {
    let mut has_begun = false;
    let answered = query(state, "status", |line| {
        let status = serde_json::from_str::<serde_json::Value>(line).unwrap_or_default();
        has_begun |=
            status.get("phase").and_then(serde_json::Value::as_str).is_some_and(|phase| phase != "waiting");
        Ok(())
    });
    // A server that does not answer has ended its campaign.
    !matches!(answered.await, Ok(Some(()))) || has_begun
}

/// Checks that a server and the core's firmware can run the algorithm of the scenario.
fn check(scenario: &Scenario, core: Core) -> Result<(), EmulateError> {
    scenario.check_runs_on_devices()?;
    let simulated_stop = StopSection { change: None, ..scenario.stop } != StopSection::default();
    let reason = if let Some(reason) = scenario.not_served_because() {
        reason
    } else if scenario.privacy.is_some() {
        "boards add no noise: leave out [privacy]"
    } else if scenario.fleet.normal_equations_only {
        "the emulated firmware has every solver: leave out fleet.head_solver"
    } else if core.is_in_c() && scenario.model.network.is_some() {
        "the client in C has linear models only: leave out --in-c"
    } else if simulated_stop {
        "of [stop] a server knows \"change\" only: leave the other keys out"
    } else {
        return Ok(());
    };
    Err(EmulateError::NotServed { name: scenario.name.clone(), reason })
}

/// Largest number of attempts to reach the server. If all attempts fail, the rounds are not observed.
const MAX_ATTEMPTS: u32 = 500;

/// Starts a task that collects the server's reports on its rounds until the server ends. Returns as soon as
/// the server has accepted the subscription. Boards are started afterwards, so no report is missed.
async fn watch_rounds(state: &Path) -> JoinHandle<Vec<serde_json::Value>> {
    let is_up = async || matches!(query(state, "status", |_| Ok(())).await, Ok(Some(())));
    for _ in 0..MAX_ATTEMPTS {
        if is_up().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let directory = state.to_owned();
    let mut rounds = Box::pin(async move {
        let mut rounds = Vec::new();
        let watched = query(&directory, "watch", |line| {
            let line = serde_json::from_str::<serde_json::Value>(line).ok();
            // The last line is about the whole campaign.
            rounds.extend(line.filter(|line| line.get("participants").is_some()));
            Ok(())
        });
        // Errors are ignored: without a control socket there are no reports.
        let _ = watched.await;
        rounds
    });
    // The server answers requests in order, so the subscription has been accepted once this request is
    // answered.
    let early_exit = tokio::select! {
        biased;
        rounds = &mut rounds => Some(rounds),
        _ = is_up() => None,
    };
    tokio::spawn(async move {
        match early_exit {
            Some(rounds) => rounds,
            None => rounds.await,
        }
    })
}

/// Creates the configuration of the server, which runs the scenario's campaign with the boards.
fn fleet(plan: &Plan<'_>, shape: Shape, model: ModelSection, security: Security) -> Fleet {
    let Scenario { seed, algorithm, rule, norm, samples, participation, stop, .. } = plan.scenario;
    Fleet {
        seed: *seed,
        state: plan.scratch.join("state"),
        journal: false,
        tcp: "127.0.0.1:0".to_owned(),
        udp: None,
        packet: 1232,
        short_tags: true,
        beacon: None,
        beacon_delay: Duration::ZERO,
        serial: Vec::new(),
        baud: 115_200,
        expected: plan.boards,
        first_device: 1,
        allowed: None,
        held_out: Vec::new(),
        security,
        // A board that restarts is back within a second.
        absence: Duration::from_secs(10),
        shape,
        // The firmware does not support feature scaling.
        scale: ScaleSource::None,
        model,
        algorithm: algorithm.clone(),
        rule: *rule,
        participation: *participation,
        privacy: None,
        stop_change: stop.change,
        rounds: RoundsSection { deadline: None, patience: None, every: None, min_count: 1, over_select: 1.0 },
        limits: Limits {
            connections: plan.boards + 16,
            per_address: plan.boards + 16,
            unauthenticated: plan.boards + 16,
            updates: u32::MAX,
            hello: Duration::from_secs(60),
            // An emulated core that waits for a pipe is suspended and cannot send keep-alives. In a large fleet a core waits
            // long for a processor of the host.
            idle: Duration::from_secs(600),
            frame: Duration::from_secs(600),
            repeat: Duration::from_secs(60),
            norm: *norm,
            samples: *samples,
        },
        given: GivenKeys::ALL,
        custom: CustomNames::default(),
    }
}

/// Creates a named pipe with the program `mkfifo`, which is part of every Unix.
fn make_pipe(path: &Path) -> std::io::Result<()> {
    let status = std::process::Command::new("mkfifo").arg("-m").arg("600").arg(path).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other(format!("mkfifo ended with {status}"))) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn scenario(changes: &[&str]) -> Scenario {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        Scenario::parse("smallest", Scenario::built_in("smallest").unwrap(), &changes).unwrap()
    }

    #[test]
    fn server_of_boards_has_limits_of_the_scenario() {
        for (changes, norm) in [(&["limits.norm=2.5", "limits.samples=7"][..], 2.5), (&[], 4_194_304.0)] {
            let scenario = scenario(changes);
            let plan = Plan {
                scenario: &scenario,
                boards: 2,
                faults: &[],
                core: CORES[5],
                link: Link::Pipes,
                plaintext: true,
                root: Path::new(""),
                firmware: None,
                scratch: Path::new(""),
            };
            let shape = Shape { features: 20, outputs: 1, image: None };
            let limits = fleet(&plan, shape, scenario.model.clone(), Security::Plaintext).limits;
            assert_eq!((limits.norm, limits.samples), (norm, scenario.samples), "{changes:?}");
        }
    }

    #[test]
    fn settings_that_boards_would_ignore_are_refused() {
        assert!(check(&scenario(&["stop.change=0.01"]), CORES[5]).is_ok());
        for (change, part) in [
            ("fleet.dropout=0.1", "leave out fleet.dropout"),
            ("rounds.deadline=2", "rounds.deadline"),
            ("model.init=\"truth-sine:0.5\"", "set model.init"),
            ("algorithm.name=\"local-only\"", "no rounds to serve"),
            ("privacy={ epsilon = 1, delta = 1e-4, clip = 1 }", "leave out [privacy]"),
            ("stop.distance=0.1", "a server knows \"change\" only"),
            ("attack.kind=\"mimic\"", "attack.kind"),
        ] {
            let refused = check(&scenario(&[change]), CORES[5]).unwrap_err().to_string();
            assert!(refused.contains(part), "{change}: {refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
    }
}
