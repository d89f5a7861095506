//! Command `radio`: bytes, time on the air and energy of a round over radios.

use clap::Args;
use serde::Serialize;

use super::{CommandError, Format, load, output};
use fedspan_engine::{Request, RoundBroadcast};
use fedspan_protocol::datagram::FRAME_MAX;
use fedspan_protocol::limits::CHUNKS_MAX;
use fedspan_protocol::message::{Numeric, RoundId, Task};
use fedspan_sim_core::data::shape_of;
use fedspan_sim_core::energy::{Chip, Core, Energy, Usage, Work};
use fedspan_sim_core::fleet::{DeviceFactory, FleetArithmetic};
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::radio::{Exchange, RADIOS, Radio};
use fedspan_sim_core::report::files::json;
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::run::engine;
use fedspan_sim_core::scenario::CR2032_MAH;

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
    #[command(flatten)]
    energy: EnergyOptions,
}

/// Options of the energy. The defaults of currents, supply, clock and core are those of the radio's chip.
#[derive(Debug, Args)]
struct EnergyOptions {
    /// Seconds between two rounds of a device
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0, value_parser = positive)]
    period: f64,
    /// Capacity of the battery in mAh
    #[arg(long, value_name = "MAH", default_value_t = CR2032_MAH, value_parser = positive)]
    battery_mah: f64,
    /// Cycles of the computation of a round [default: of FedRep on a linear model, by the core]
    #[arg(long, value_name = "N", value_parser = not_negative)]
    cycles: Option<f64>,
    /// Core whose cycles count: m4, m3, m0 or rv32imc
    #[arg(long, value_parser = core)]
    core: Option<Core>,
    /// Clock in MHz
    #[arg(long, value_name = "MHZ", value_parser = positive)]
    clock_mhz: Option<f64>,
    /// Supply in volts
    #[arg(long, value_parser = positive)]
    volts: Option<f64>,
    /// Current of computation in mA
    #[arg(long, value_name = "MA", value_parser = not_negative)]
    active_ma: Option<f64>,
    /// Current of sending in mA
    #[arg(long, value_name = "MA", value_parser = not_negative)]
    transmit_ma: Option<f64>,
    /// Current of receiving in mA
    #[arg(long, value_name = "MA", value_parser = not_negative)]
    receive_ma: Option<f64>,
    /// Current of sleep in uA
    #[arg(long, value_name = "UA", value_parser = not_negative)]
    sleep_ua: Option<f64>,
}

impl EnergyOptions {
    /// Chip of a radio, with the values that the options give.
    fn chip(&self, radio: &Radio) -> Chip {
        let chip = Chip::with(radio);
        Chip {
            core: self.core.unwrap_or(chip.core),
            clock_mhz: self.clock_mhz.unwrap_or(chip.clock_mhz),
            volts: self.volts.unwrap_or(chip.volts),
            active_ma: self.active_ma.unwrap_or(chip.active_ma),
            transmit_ma: self.transmit_ma.unwrap_or(chip.transmit_ma),
            receive_ma: self.receive_ma.unwrap_or(chip.receive_ma),
            sleep_ua: self.sleep_ua.unwrap_or(chip.sleep_ua),
            ..chip
        }
    }
}

/// Reads a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    not_negative(text).ok().filter(|value| *value > 0.0).ok_or_else(|| "allowed: a number above 0".to_owned())
}

/// Reads a number from 0.
fn not_negative(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "allowed: a number from 0".to_owned())
}

/// Reads the name of a core.
fn core(text: &str) -> Result<Core, String> {
    let known = Core::ALL.into_iter().find(|core| core.name() == text);
    known.ok_or_else(|| format!("allowed: {:?}", Core::ALL.map(Core::name)))
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
    /// Energy of a device; `None` if the cycles of the computation are not known, or the period is shorter than a round.
    energy: Option<EnergyRow>,
}

/// Energy of a device that takes part in a round in every period.
#[derive(Clone, Copy, Serialize)]
struct EnergyRow {
    chip: &'static str,
    /// Cycles of computation and of sealing.
    cycles: f64,
    /// Joules of a period.
    round: Energy,
    round_with_beacon: Option<Energy>,
    /// Mean power in watts.
    power: f64,
    battery_months: f64,
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
    /// Seconds between two rounds of a device.
    period: f64,
    rows: Vec<Row>,
}

/// Computation of a round on a device.
#[derive(Clone, Copy)]
struct Computation {
    /// Operations; `None` if they are not known.
    work: Option<Work>,
    numeric: Numeric,
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
    let factory = DeviceFactory { longest_frame: FRAME_MAX, ..factory };
    let exchange = Exchange::new(&round, factory.frame_limit().into());
    if exchange.opening.is_empty() || exchange.update.is_empty() {
        let values: usize = round.request.tensors.iter().map(|tensor| tensor.values.len()).sum();
        let message = format!(
            "{}: a round with {values} values does not fit the {CHUNKS_MAX} frames of {FRAME_MAX} bytes that packets can carry",
            options.scenario
        );
        return Err(CommandError::Usage(message));
    }
    let clients = u32::try_from(dataset.clients.len()).unwrap_or(u32::MAX);
    let devices = options.devices.unwrap_or(clients).max(1);
    let samples = dataset.clients.iter().map(|client| client.train.len());
    let computation = Computation {
        work: Work::of(&round.request.task, shape_of(&dataset, scenario.model.k), samples.max().unwrap_or(0)),
        numeric: FleetArithmetic::of_scenario(&scenario).numeric_of(0),
    };
    let row = |radio: &Radio| Row {
        energy: energy_row(radio, &exchange, &computation, &options.energy),
        ..row(radio, &exchange, devices)
    };
    let rows: Vec<Row> = RADIOS.iter().map(row).collect();
    match options.format {
        format @ (Format::Human | Format::Markdown) => {
            let tables = [table(&rows, devices), energy_table(&rows, &options.energy)];
            output::print(&tables.map(|table| format.shown(&table)).join("\n"))
        }
        Format::Json => {
            let figures = Figures {
                version: env!("CARGO_PKG_VERSION"),
                scenario: scenario.name.clone(),
                devices,
                period: options.energy.period,
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
    let part = |frames: &mut dyn Iterator<Item = usize>| Part::new(radio, &frames.collect::<Vec<usize>>());
    let up = part(&mut exchange.frames_up());
    let down = part(&mut exchange.frames_down());
    let beacon = exchange.beacon().filter(|length| *length <= radio.packet);
    let beacon =
        beacon.map(|length| (Part::new(radio, &[length]), part(&mut exchange.frames_beside_beacon())));
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
        energy: None,
    }
}

/// Computes the energy of a device over one radio.
fn energy_row(
    radio: &Radio,
    exchange: &Exchange,
    computation: &Computation,
    options: &EnergyOptions,
) -> Option<EnergyRow> {
    let chip = options.chip(radio);
    let computing = options
        .cycles
        .or_else(|| computation.work.map(|work| chip.core.cycles(computation.numeric, &work)))?;
    let up: Vec<usize> = exchange.frames_up().collect();
    // A beacon has no seal.
    let usage = |sealed_down: &[usize], beacon: Option<usize>| Usage {
        rounds: 1,
        uncounted: 0,
        cycles: computing
            + chip.core.sealing_cycles(up.len() + sealed_down.len(), up.iter().chain(sealed_down).sum()),
        sending: radio.seconds(&up),
        receiving: radio.seconds(sealed_down) + beacon.map_or(0.0, |length| radio.seconds(&[length])),
    };
    let alone = usage(&exchange.frames_down().collect::<Vec<usize>>(), None);
    if options.period < alone.sending / radio.device_duty {
        return None;
    }
    let round = chip.in_period(&alone, options.period).ok()?;
    let beacon = exchange.beacon().filter(|length| *length <= radio.packet);
    let with_beacon =
        beacon.map(|beacon| usage(&exchange.frames_beside_beacon().collect::<Vec<usize>>(), Some(beacon)));
    let power = round.total() / options.period;
    Some(EnergyRow {
        chip: chip.name,
        cycles: alone.cycles,
        round,
        round_with_beacon: with_beacon.and_then(|usage| chip.in_period(&usage, options.period).ok()),
        power,
        battery_months: chip.battery_months(options.battery_mah, power),
    })
}

/// Formats an energy in joules.
fn joules(joules: f64) -> String {
    match joules {
        ..1e-4 => format!("{:.1} uJ", 1e6 * joules),
        ..1e-3 => format!("{:.0} uJ", 1e6 * joules),
        ..0.1 => format!("{:.2} mJ", 1e3 * joules),
        ..1.0 => format!("{:.0} mJ", 1e3 * joules),
        _ => format!("{joules:.2} J"),
    }
}

/// Table of the energy of a device.
fn energy_table(rows: &[Row], options: &EnergyOptions) -> Table {
    const DAY: f64 = 86_400.0;
    let columns = [
        "radio",
        "chip",
        "computation",
        "sending",
        "receiving",
        "sleep",
        "a round",
        "with a beacon",
        "a day",
        &format!("months on {} mAh", options.battery_mah),
    ]
    .map(str::to_owned)
    .to_vec();
    let cells = |row: &Row| {
        let none = || "-".to_owned();
        let energy = row.energy.map_or_else(
            || vec![none(); 9],
            |EnergyRow { chip, round, round_with_beacon, power, battery_months, .. }| {
                let total = |energy: Energy| joules(energy.total());
                vec![
                    chip.to_owned(),
                    joules(round.computation),
                    joules(round.sending),
                    joules(round.receiving),
                    joules(round.sleep),
                    total(round),
                    round_with_beacon.map_or_else(none, total),
                    joules(DAY * power),
                    format!("{battery_months:.1}"),
                ]
            },
        );
        std::iter::once(row.radio.to_owned()).chain(energy).collect()
    };
    Table {
        title: format!("Energy of a device with a round in {}", seconds(options.period)),
        columns,
        rows: rows.iter().map(cells).collect(),
        notes: vec![
            "A model with currents of data sheets, not a measurement. Receive windows and connections without data, writes to flash, sensors, \
             and the self-discharge of the battery are not in it. A radio has no figures if the period is shorter than its duty cycle allows, or if \
             the cycles of the computation are not known: give --cycles."
                .to_owned(),
        ],
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
