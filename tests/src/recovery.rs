//! Measurement of the time that a server needs to recover, and of the cost of an export: a real server starts
//! with the state of a large fleet in the middle of a round.

use std::io::{Error, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::durable_engine::{Campaign, DurableEngine};
use fedspan_aggregator::store::{FILE, Store};
use fedspan_engine::Tensor;
use fedspan_engine::{Action, DeviceId, Event, Millis, RoundBroadcast, Update};
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{Hello, ToDevice, ToServer, decode};
use getrandom::SysRng;

use crate::kills::start_server;
use crate::load::{Shape, capabilities, memory_of};

/// Frame limit of the device that reconnects, in bytes.
const FRAME_LIMIT: u16 = 2048;

/// Measurements of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Number of journal entries.
    pub lines: u64,
    /// Size of the database in bytes.
    pub bytes: u64,
    /// Sorted times from the start of the program until the server has sent the open round to the only device
    /// that has not answered.
    pub times: Vec<Duration>,
    /// Cost of an export from the running server.
    pub export: Export,
}

/// Cost of an export.
#[derive(Clone, Copy, Debug)]
pub struct Export {
    /// Time from the start of the command until all files are written.
    pub took: Duration,
    /// Peak memory of the command in bytes.
    pub client: u64,
    /// Growth of the server's peak memory in bytes.
    pub server: u64,
    /// Total size of the exported files in bytes.
    pub bytes: u64,
}

/// Creates the state of a (64, 4) campaign in this process: `rounds` complete rounds of `devices` devices,
/// and a round in which a single answer is missing. Then starts `server` with this state and kills it,
/// `times` times.
///
/// # Errors
/// The first error, as a sentence.
pub fn measure(server: &Path, devices: u64, rounds: u32, times: usize) -> Result<Report, String> {
    let directory = std::env::temp_dir().join(format!("fedspan-recovery-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let report = measure_in(&directory, server, devices, rounds, times);
    let _ = std::fs::remove_dir_all(&directory);
    report
}

/// Runs the measurement with its files in `directory`.
fn measure_in(
    directory: &Path,
    server: &Path,
    devices: u64,
    rounds: u32,
    times: usize,
) -> Result<Report, String> {
    let (state, config) = (directory.join("state"), directory.join("fleet.toml"));
    let text = format!(
        "state = {:?}\n[listen]\ntcp = \"127.0.0.1:0\"\nplaintext = true\n[devices]\nexpected = {devices}\n[data]\nd = 64\n\
         [model]\nk = 4\n[algorithm]\nname = \"fedrep\"\nrounds = 1000000\nstep_size = 0.1\n[rounds]\ndeadline = 0\n\
         [limits]\nconnections = {}\n",
        state.display().to_string(),
        devices + 100,
    );
    std::fs::write(&config, &text).map_err(|error| error.to_string())?;
    let fleet = Fleet::parse("fleet.toml", &text).map_err(|error| error.to_string())?;
    let lines = fill_store(&fleet, devices, rounds)?;
    let mut recovery_times = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        let (mut child, address) = start_server(server, &config)?;
        await_round(address, DeviceId(devices - 1)).map_err(|error| error.to_string())?;
        recovery_times.push(start.elapsed());
        let _ = child.kill();
        let _ = child.wait();
    }
    recovery_times.sort();
    let bytes = std::fs::metadata(state.join(FILE)).map_err(|error| error.to_string())?.len();
    let (mut child, address) = start_server(server, &config)?;
    let export = await_round(address, DeviceId(devices - 1))
        .map_err(|error| error.to_string())
        .and_then(|()| measure_export(server, child.id(), &config, &directory.join("out")));
    let _ = child.kill();
    let _ = child.wait();
    Ok(Report { lines, bytes, times: recovery_times, export: export? })
}

/// Exports the state of the running server.
fn measure_export(
    program: &Path,
    server: u32,
    config: &Path,
    out_directory: &Path,
) -> Result<Export, String> {
    let describe = |error: Error| error.to_string();
    let before = memory_of(server).map_err(describe)?;
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args(["export", "--config"]).arg(config).arg("--out").arg(out_directory);
    let mut child = command.spawn().map_err(describe)?;
    let mut client = 0;
    let status = loop {
        // The system reports no memory for a process that is about to end.
        client = memory_of(child.id()).map_or(client, |memory| client.max(memory.peak));
        if let Some(status) = child.try_wait().map_err(describe)? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = start.elapsed();
    if !status.success() {
        return Err(format!("export: {status}"));
    }
    let files = std::fs::read_dir(out_directory).map_err(describe)?;
    let bytes = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum();
    let after = memory_of(server).map_err(describe)?;
    Ok(Export { took, client, server: after.peak.saturating_sub(before.peak), bytes })
}

/// Sends a hello as `device` and waits until the server sends the open round.
fn await_round(address: SocketAddr, device: DeviceId) -> std::io::Result<()> {
    let hello = Hello::new(device.0, capabilities(Shape::default(), FRAME_LIMIT));
    let mut bytes = vec![0; wire_capacity(usize::from(FRAME_LIMIT))];
    let sent = encode(&ToServer::Hello(hello), 0, |_| {}, &mut bytes).map_err(Error::other)?;
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(bytes.get(..sent).unwrap_or_default())?;
    let mut decoder = Decoder::new(vec![0; usize::from(FRAME_LIMIT)]);
    let mut buffer = [0; 512];
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(Error::other("the server closed the connection before it sent a round"));
        }
        let mut input = buffer.get(..read).unwrap_or_default();
        loop {
            match decoder.feed(&mut input) {
                FeedResult::NeedMore => break,
                FeedResult::Message(message) => {
                    if let Ok((ToDevice::RoundOpen(_), _)) = decode::<ToDevice>(message) {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
    }
}

/// Fills the store with the rounds; returns the number of journal entries.
fn fill_store(fleet: &Fleet, devices: u64, rounds: u32) -> Result<u64, String> {
    let store = Store::open(&fleet.state, SysRng).map_err(|error| error.to_string())?;
    let campaign = Campaign {
        configuration: fleet.fingerprint(),
        number: 1,
        expected: fleet.expected,
        journal: Some(0),
    };
    let (mut coordinator, _) =
        DurableEngine::new(fleet.engine(), store, &campaign).map_err(|error| error.to_string())?;
    (0..devices).for_each(|device| coordinator.handle(Millis::ZERO, Event::Joined(DeviceId(device))));
    for round in 0..=rounds {
        let flushed = coordinator.flush().map_err(|error| error.to_string())?;
        let opening = flushed.actions.into_iter().find_map(|action| match action {
            Action::Open(_, opening) => Some(opening),
            _ => None,
        });
        let opening = opening.ok_or("no round was opened")?;
        let answering = if round == rounds { devices.saturating_sub(1) } else { devices };
        for device in 0..answering {
            let update = create_update(DeviceId(device), &opening);
            coordinator.handle(Millis::new(u64::from(round) + 1), Event::Update(DeviceId(device), update));
            if device % 256 == 255 && device + 1 < answering {
                coordinator.flush().map_err(|error| error.to_string())?;
            }
        }
    }
    coordinator.flush().map_err(|error| error.to_string())?;
    Ok(coordinator.lines())
}

/// Creates an update of a device with arbitrary values.
fn create_update(device: DeviceId, opening: &RoundBroadcast) -> Update {
    let expects = &opening.request.expects;
    let tensor = |(index, tensor): (usize, &fedspan_protocol::tensor::TensorDescriptor)| {
        #[allow(clippy::cast_precision_loss, reason = "any number will do")]
        let value = |number: usize| ((number * 37 + index) as u64 + device.0 % 101) as f32 * 1e-4;
        let values = (0..tensor.elements()).map(value).collect();
        Tensor { role: tensor.role, rows: tensor.rows, cols: tensor.cols, values }
    };
    Update {
        id: opening.id,
        samples: 10,
        skipped: 0,
        descriptors: expects.clone(),
        tensors: expects.iter().enumerate().map(tensor).collect(),
    }
}
