//! Tests of the server with tokio on a simulated network (turmoil) in virtual time. Sockets, connection
//! slots, inbox, timers, tasks and the database are real. The server crashes at any point, and links are
//! partitioned, held and released. The same seed gives the same run.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::{Listener, Protection, Server};
use fedspan_aggregator::{journal, store};
use fedspan_engine::linalg::{Matrix, orthonormal};
use fedspan_engine::random::{Purpose, Stream, stream};
use fedspan_protocol::frame::crc32c;
use fedspan_sim_core::device::{Identity, client_session, run_session_over};
use fedspan_sim_core::run::{NoProgress, run};
use fedspan_sim_core::scenario::Scenario;
use fedspan_tests::fleet_of;
use fedspan_tests::observed_acks::{AckRecorder, Audit, ObservedAcks, audit};
use getrandom::SysRng;
use tokio::time::Instant;
use turmoil::Sim;
use turmoil::net::{TcpListener, TcpStream};

/// Number of devices.
const DEVICES: usize = 6;
/// Number of rounds.
const ROUNDS: usize = 60;
/// Number of seeds.
const SEEDS: u64 = 24;
const PORT: u16 = 4410;

const SCENARIO: &str = r#"
seed = 5
[data]
kind = "linear-regression"
clients = 6
d = 20
k = 2
samples = 20
noise_std = 0.1
[limits]
norm = 1e4
samples = 100000
"#;

const CAMPAIGN: &str = r#"
[model]
k = 2
[algorithm]
name = "fedrep"
rounds = 60
step_size = 0.25
"#;

/// Listener on the simulated network.
struct Simulated(TcpListener);

impl Listener for Simulated {
    type Stream = TcpStream;

    async fn accept(&mut self) -> std::io::Result<(TcpStream, std::net::SocketAddr)> {
        self.0.accept().await
    }

    fn address(&self) -> std::io::Result<std::net::SocketAddr> {
        self.0.local_addr()
    }
}

fn parse_scenario() -> Scenario {
    Scenario::parse("shell", &format!("{SCENARIO}{CAMPAIGN}"), &[]).expect("scenario")
}

/// Runs a device that reconnects when its session requests it, until its head is fitted.
async fn run_device(scenario: Scenario, index: usize, acks: ObservedAcks) -> turmoil::Result {
    let dataset = scenario.dataset(scenario.seed)?;
    let mut session = client_session(&scenario, &dataset, index, Identity::plaintext(index as u64), true)
        .ok_or_else(|| format!("device {index} has no data, and so no session"))?;
    let start = Instant::now();
    while !session.is_fitted() {
        let reconnect_at = match TcpStream::connect(("server", PORT)).await {
            Ok(stream) => {
                let recorder = AckRecorder::new(stream, index as u64, acks.clone());
                start
                    + Duration::from_millis(
                        run_session_over(&mut session, recorder, start).await.retry_at.as_u64(),
                    )
            }
            Err(_) => Instant::now() + Duration::from_millis(500),
        };
        tokio::time::sleep_until(reconnect_at).await;
    }
    Ok(())
}

/// Injects one fault, waits, and ends it. Returns true if the campaign finished in the meantime.
fn inject_fault(sim: &mut Sim<'_>, random: &mut Stream, counts: &mut [u32; 3]) -> turmoil::Result<bool> {
    let device = format!("device-{}", random.bits() % DEVICES as u64);
    let mut draw_duration = |max| Duration::from_millis(1 + random.bits() % max);
    let fault_end = sim.elapsed() + draw_duration(3_000);
    // Kind 1 crashes the server, 2 partitions a link, 3 holds a link.
    let kind = draw_duration(3).as_millis();
    // A held link must be released before the idle timeout.
    let until_released = sim.elapsed() + draw_duration(1_500);
    match kind {
        1 => sim.crash("server"),
        2 => sim.partition("server", device.as_str()),
        _ => sim.hold("server", device.as_str()),
    }
    let fault_end = if kind == 3 { until_released } else { fault_end };
    let mut finished = false;
    while !finished && sim.elapsed() < fault_end {
        finished = sim.step()?;
    }
    match kind {
        1 => sim.bounce("server"),
        2 => sim.repair("server", device.as_str()),
        _ => sim.release("server", device.as_str()),
    }
    if let Some(count) = usize::try_from(kind - 1).ok().and_then(|kind| counts.get_mut(kind)) {
        *count += 1;
    }
    Ok(finished)
}

/// Runs a campaign with faults. Returns the journal, the audited totals, and the numbers of crashes,
/// partitions and holds.
fn run_campaign(seed: u64, state: &Path) -> Result<(String, Audit, [u32; 3]), Box<dyn std::error::Error>> {
    let scenario = parse_scenario();
    let dataset = Arc::new(scenario.dataset(scenario.seed)?);
    let text = fleet_of(&scenario, &dataset, state, CAMPAIGN).replace("tcp = ", "plaintext = true\ntcp = ")
        + "[rounds]\ndeadline = 0\n[limits]\nidle = 5\n";
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .enable_tokio_io()
        .enable_random_order()
        .tick_duration(Duration::from_millis(2))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(40))
        .simulation_duration(Duration::from_secs(3600))
        .build();
    sim.host("server", move || {
        let text = text.clone();
        async move {
            let fleet = Fleet::parse("fleet.toml", &text).map_err(|problem| problem.to_string())?;
            let listener = Simulated(TcpListener::bind(("0.0.0.0", PORT)).await?);
            let server = Server::with_listener(fleet, listener, 1, SysRng, Protection::Plaintext)?;
            server.serve(std::future::pending(), false).await?;
            Ok(())
        }
    });
    let acks = ObservedAcks::default();
    for index in 0..DEVICES {
        sim.client(format!("device-{index}"), run_device(scenario.clone(), index, acks.clone()));
    }
    let mut random = stream(seed, Purpose::Network, 0);
    let mut counts = [0; 3];
    let mut finished = false;
    for _ in 0..40 {
        let next_fault_at = sim.elapsed() + Duration::from_millis(random.bits() % 400);
        while !finished && sim.elapsed() < next_fault_at {
            finished = sim.step()?;
        }
        if finished || inject_fault(&mut sim, &mut random, &mut counts)? {
            break;
        }
    }
    // The rest of the campaign runs without faults.
    while !finished {
        finished = sim.step()?;
    }
    drop(sim);
    let totals = audit(&scenario, state, DEVICES, &acks)?;
    Ok((std::fs::read_to_string(state.join(journal::FILE))?, totals, counts))
}

/// Tests each seed in a separate process, because tokio numbers its tasks per process and drops them in the
/// order of these numbers.
#[test]
#[ignore = "started by the tests below; to run it alone: FEDSPAN_SEED=N cargo test -p fedspan-tests --test all -- shell:: --ignored --nocapture"]
fn campaign_of_one_seed() {
    let seed = std::env::var("FEDSPAN_SEED").expect("FEDSPAN_SEED").parse().expect("a number");
    let scenario = parse_scenario();
    let state = tempfile::tempdir().unwrap();
    let (journal, totals, [crashes, partitions, holds]) =
        run_campaign(seed, state.path()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert_eq!((totals.rounds, totals.counted), (ROUNDS, (ROUNDS + 1) * DEVICES), "seed {seed}");
    let stored = store::read(state.path()).expect("readable").expect("a campaign");
    let served = Matrix::from_column_slice(20, 2, &stored.checkpoint.expect("a checkpoint").state[..40]);
    let served = orthonormal(&served).expect("full rank");
    let simulated = run(&scenario, scenario.seed, &mut NoProgress).expect("simulation");
    let bits = |matrix: &Matrix| matrix.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&served), bits(simulated.representation.as_ref().unwrap()), "seed {seed}");
    println!("\nresults {crashes} {partitions} {holds} {} {}", totals.mid_round, crc32c(journal.as_bytes()));
}

/// Runs one seed in a separate process. Returns the numbers of crashes, partitions, holds and crashes in the
/// middle of a round, and the CRC of the journal.
fn run_in_process(seed: u64) -> [u64; 5] {
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shell::campaign_of_one_seed", "--ignored", "--nocapture"])
        .env("FEDSPAN_SEED", seed.to_string())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&process.stdout);
    let numbers =
        output.lines().find_map(|line| line.strip_prefix("results ")).filter(|_| process.status.success());
    let numbers = numbers
        .unwrap_or_else(|| panic!("seed {seed}: {output}{}", String::from_utf8_lossy(&process.stderr)));
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn model_after_network_faults_equals_that_of_the_simulator() {
    let mut totals = [0; 4];
    for seed in 1..=SEEDS {
        totals.iter_mut().zip(run_in_process(seed)).for_each(|(total, count)| *total += count);
    }
    let [crashes, partitions, holds, mid_round] = totals;
    println!(
        "{SEEDS} seeds: {crashes} crashes, {mid_round} of them in the middle of a round, {partitions} partitions, {holds} holds"
    );
    assert!(mid_round > SEEDS && partitions > SEEDS && holds > SEEDS, "too few faults: {totals:?}");
}

#[test]
fn same_seed_gives_the_same_run() {
    let results = run_in_process(3);
    assert_eq!(results, run_in_process(3));
    assert_ne!(results, run_in_process(4));
}
