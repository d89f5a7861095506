//! Command `radio`: bytes and time on the air of a round over radios.

use clap::Args;
use serde::Serialize;

use super::{CommandError, Format, load, output};
use fedspan_engine::{Request, RoundBroadcast};
use fedspan_protocol::datagram::FRAME_MAX;
use fedspan_protocol::message::{RoundId, Task};
use fedspan_sim_core::fleet::DeviceFactory;
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::radio::{Exchange, RADIOS, Radio};
use fedspan_sim_core::report::files::json;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::run::engine;

/// Options of command `radio`.
#[derive(Debug, Args)]
pub struct RadioOptions {
    /// Built-in scenario or TOML file
    #[arg(value_name = "NAME|FILE.toml", default_value = "smallest")]
    scenario: String,
    /// Number of devices in a round that share the server's end [default: the clients of the scenario]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    devices: Option<u32>,
    /// Change a key of the scenario file; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Format of standard output: a table as text or as Markdown, or JSON
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// Figures of one radio. Bytes are those of FedSpan's packets; times are in seconds on the air.
#[derive(Serialize)]
struct Row {
    radio: &'static str,
    packet: usize,
    up: Part,
    down: Part,
    /// Beacon of all devices, and the frames of each device in addition; `None` if the beacon does not fit one packet.
    beacon: Option<Part>,
    down_beside_beacon: Option<Part>,
    /// Shortest time between two rounds in seconds: of a device, and of the server's end, without and with a beacon.
    device_round: f64,
    server_round: f64,
    server_round_with_beacon: Option<f64>,
}

/// Packets of one direction.
#[derive(Clone, Copy, Serialize)]
struct Part {
    bytes: usize,
    packets: usize,
    seconds: f64,
}

/// Content that `--format json` prints.
#[derive(Serialize)]
struct Figures {
    version: &'static str,
    scenario: String,
    devices: u32,
    rows: Vec<Row>,
}

impl Part {
    fn new(radio: &Radio, frames: &[usize]) -> Self {
        let packets: Vec<usize> = frames.iter().flat_map(|frame| radio.packets(*frame)).collect();
        Self { bytes: packets.iter().sum(), packets: packets.len(), seconds: radio.seconds(frames) }
    }

    fn shown(&self) -> String {
        let packets = if self.packets == 1 { String::new() } else { format!(" in {}", self.packets) };
        format!("{} B{packets}, {}", self.bytes, seconds(self.seconds))
    }
}

/// Runs command `radio`.
pub fn command(options: &RadioOptions) -> Result<(), CommandError> {
    let scenario = load::scenario(&options.scenario, &options.changes)?;
    let failed = |error: String| CommandError::Failed(error);
    let dataset = scenario.dataset(scenario.seed).map_err(|error| failed(error.to_string()))?;
    let factory = DeviceFactory::new(&scenario, &dataset, scenario.seed, SeedSource::System)
        .map_err(|error| failed(error.to_string()))?;
    let requests = engine(&scenario, &dataset, scenario.seed, None).requests();
    let Some(request) = requests.into_iter().find(is_training) else {
        let message = format!("{}: the algorithm has no rounds in which devices send", options.scenario);
        return Err(CommandError::Usage(message));
    };
    // The number of a round has one byte up to 127, and two up to 16,383.
    let round = RoundBroadcast::new(RoundId { round: 100, stage: 0 }, request)
        .map_err(|error| failed(error.to_string()))?;
    let limit = usize::from(factory.frame_limit()).min(FRAME_MAX);
    let exchange = Exchange::new(&round, limit);
    let clients = u32::try_from(dataset.clients.len()).unwrap_or(u32::MAX);
    let devices = options.devices.unwrap_or(clients).max(1);
    let rows: Vec<Row> = RADIOS.iter().map(|radio| row(radio, &exchange, devices)).collect();
    match options.format {
        format @ (Format::Human | Format::Markdown) => output::print(&format.shown(&table(&rows, devices))),
        Format::Json => {
            let figures = Figures {
                version: env!("CARGO_PKG_VERSION"),
                scenario: scenario.name.clone(),
                devices,
                rows,
            };
            output::print(&json(&figures).map_err(|error| failed(error.to_string()))?)
        }
    }
}

/// True if the request is a round of training.
fn is_training(request: &Request) -> bool {
    let other = matches!(
        request.task,
        Task::FitHead { .. }
            | Task::PowerStart
            | Task::MomentRows { .. }
            | Task::FeatureSums { .. }
            | Task::RidgeScores { .. }
    );
    !other && !request.expects.is_empty()
}

/// Computes the figures of one radio.
fn row(radio: &Radio, exchange: &Exchange, devices: u32) -> Row {
    let sealed = |lengths: &[fedspan_sim_core::radio::Lengths]| {
        lengths.iter().map(|lengths| lengths.sealed()).collect::<Vec<usize>>()
    };
    let up = Part::new(radio, &sealed(&exchange.update));
    let mut frames = sealed(&exchange.opening);
    frames.push(exchange.acknowledgement.sealed());
    let down = Part::new(radio, &frames);
    let beacon = exchange.beacon().filter(|length| *length <= radio.packet);
    let beside = sealed(&[exchange.announcement, exchange.acknowledgement]);
    let beacon = beacon.map(|length| (Part::new(radio, &[length]), Part::new(radio, &beside)));
    let count = f64::from(devices);
    Row {
        radio: radio.name,
        packet: radio.packet,
        up,
        down,
        beacon: beacon.map(|(beacon, _)| beacon),
        down_beside_beacon: beacon.map(|(_, beside)| beside),
        device_round: up.seconds / radio.device_duty,
        server_round: count * down.seconds / radio.gateway_duty,
        server_round_with_beacon: beacon
            .map(|(beacon, beside)| (beacon.seconds + count * beside.seconds) / radio.gateway_duty),
    }
}

/// Formats a time.
fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.1} ms", 1e3 * seconds),
        ..1.0 => format!("{:.0} ms", 1e3 * seconds),
        ..100.0 => format!("{seconds:.1} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

fn table(rows: &[Row], devices: u32) -> Table {
    let columns = [
        "radio",
        "packet",
        "update",
        "opening and acknowledgement",
        "beacon",
        "beside the beacon",
        "a round per device",
        &format!("of {devices} devices"),
        "with a beacon",
    ]
    .map(str::to_owned)
    .to_vec();
    let none = || "-".to_owned();
    let cells = |row: &Row| {
        vec![
            row.radio.to_owned(),
            format!("{} B", row.packet),
            row.up.shown(),
            row.down.shown(),
            row.beacon.map_or_else(none, |part| part.shown()),
            row.down_beside_beacon.map_or_else(none, |part| part.shown()),
            seconds(row.device_round),
            seconds(row.server_round),
            row.server_round_with_beacon.map_or_else(none, seconds),
        ]
    };
    Table {
        title: String::new(),
        columns,
        rows: rows.iter().map(cells).collect(),
        notes: vec![
            "Bytes of a training round in packets, sealed with short tags, and their time on the air. The last three columns are the shortest \
             time between two rounds that the duty cycle allows: for the update of a device, and for all frames of the server's end. Lost \
             packets, collisions and the time of computations are not in them."
                .to_owned(),
        ],
    }
}
