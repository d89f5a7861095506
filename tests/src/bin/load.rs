//! Program `load` that measures what a fleet of devices and a crowd of hostile peers cost one server.

use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fedspan_aggregator::server::fetch_export;
use fedspan_protocol::limits::FRAME_LIMIT_MAX;
use fedspan_tests::load::{
    CpuTime, Device, Hostile, Identity, Kind, LoopbackBaseline, Memory, Pace, Plan, Quantiles, RoundResult,
    ServerProcess, Shape, SynchronisedClients, Target, fsync, memory_of, processor_seconds,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

const USAGE: &str = "usage: load [OPTION N]...

Starts fedspan-aggregator with an encrypted key store and a journal, connects devices, and prints the
memory each costs and how long updates wait for their acknowledgement: alone, with hostile peers, and while the server's
state is exported every second. See aggregator/LOAD.md.

  --devices N      devices that answer every round (default 10000)
  --d N            features of the model (default 64)
  --k N            width of the model (default 4)
  --herds N        rounds that all devices answer at once (default 1)
  --rounds N       rounds alone, with hostile peers, and during exports, alternating (default 5)
  --rate N         updates per second (default 2000)
  --hostile N      slow writers, and as many peers that send garbage (default 1000)
  --frame-limit N  longest frame a device accepts; updates that do not fit come in chunks (default: room
                   for an update, at least 1280)
  --seed N         seed of keys and garbage (default 1)
  --server PATH    server program (default: fedspan-aggregator next to this program)
  -h, --help       this text

Prints a table, and the same figures as one line of JSON.
exit: 0 every update counted exactly once, 1 an update did not, or an error, 2 wrong arguments";

/// Largest number of simultaneous handshakes.
const MAX_HANDSHAKES: usize = 64;

/// Bytes of a frame with an update besides its values, at most.
const FRAME_OVERHEAD: u32 = 256;

/// Least frame limit of devices, in bytes.
const LEAST_FRAME: u16 = 1_280;

/// Time for hostile peers to reach full effect (frames exceed their deadline after 10 s). A third of this
/// time is allowed for disconnecting.
const SETTLE_TIME: Duration = Duration::from_secs(11);

/// Parsed arguments.
struct Options {
    devices: usize,
    shape: Shape,
    herds: usize,
    rounds: usize,
    rate: u64,
    hostile: usize,
    frame_limit: Option<u16>,
    seed: u64,
    server: PathBuf,
}

impl Options {
    /// Parses the arguments. Returns `None` if help was requested.
    fn parse(mut arguments: impl Iterator<Item = String>) -> std::result::Result<Option<Self>, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut options = Self {
            devices: 10_000,
            shape: Shape::default(),
            herds: 1,
            rounds: 5,
            rate: 2_000,
            hostile: 1_000,
            frame_limit: None,
            seed: 1,
            server: program.with_file_name("fedspan-aggregator"),
        };
        while let Some(name) = arguments.next() {
            if name == "-h" || name == "--help" {
                return Ok(None);
            }
            let text = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || text.parse::<u64>().map_err(|_| format!("{name} {text}: not a number"));
            let count =
                || number().and_then(|n| usize::try_from(n).map_err(|_| format!("{name} {n}: too many")));
            let width =
                || number().and_then(|n| u16::try_from(n).map_err(|_| format!("{name} {n}: too large")));
            match name.as_str() {
                "--d" => options.shape.features = width()?,
                "--k" => options.shape.width = width()?,
                "--herds" => options.herds = count()?,
                "--devices" => options.devices = count()?,
                "--rounds" => options.rounds = count()?,
                "--rate" => options.rate = number()?.max(1),
                "--hostile" => options.hostile = count()?,
                "--frame-limit" => options.frame_limit = Some(width()?),
                "--seed" => options.seed = number()?,
                "--server" => options.server = text.into(),
                _ => return Err(format!("unknown option {name}")),
            }
        }
        match options.devices {
            0 | 1 => Err("--devices: must be at least 2".to_owned()),
            _ => Ok(Some(options)),
        }
    }

    /// Returns the longest frame that devices accept: as given, or room for an update in one frame.
    fn frame_limit(&self) -> u16 {
        let needed = (4 * self.shape.elements()).saturating_add(FRAME_OVERHEAD);
        let longest = u16::try_from(FRAME_LIMIT_MAX).unwrap_or(u16::MAX);
        let fitting = u16::try_from(needed).map_or(longest, |needed| needed.clamp(LEAST_FRAME, longest));
        self.frame_limit.unwrap_or(fitting)
    }

    /// Returns the load that the options describe.
    fn plan(&self) -> Plan {
        let connections = self.devices + 4 * self.hostile + 64;
        Plan {
            devices: self.devices,
            insiders: self.hostile,
            frame_limit: self.frame_limit(),
            shape: self.shape,
            seed: self.seed,
            // A shorter interval would make the server resend a round while the hostile peers connect.
            limits: format!("connections = {connections}\nper_address = {connections}\nrepeat = 60.0\n"),
        }
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("load: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("load: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("load: not every update counted once");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A round and the conditions under which it ran.
struct Row {
    name: &'static str,
    result: RoundResult,
    baseline: Quantiles,
    /// Share of the machine's processor time that this program and the server used.
    own: f64,
    /// Share that other processes used.
    others: f64,
    /// Seconds for which the threads of this program and of the server waited for a processor.
    waited: f64,
    /// Processor time of the server for each update, in microseconds, in user mode and in the kernel: until the
    /// next round has reached all devices.
    server: [f64; 2],
    /// The same of this program.
    generator: [f64; 2],
}

impl Row {
    /// Returns the acknowledged updates per second from the first update to the last acknowledgement.
    #[allow(clippy::cast_precision_loss)]
    fn rate(&self) -> f64 {
        self.result.times.count() as f64 / self.result.took.as_secs_f64().max(1e-9)
    }
}

/// Devices under load, and the rounds measured so far.
struct Bench {
    clients: SynchronisedClients,
    baseline: LoopbackBaseline,
    processes: [u32; 2],
    rows: Vec<Row>,
}

impl Bench {
    /// Returns the processor time of the server and of this program in seconds, in user mode and in the kernel.
    fn seconds(&self) -> Result<[[f64; 2]; 2]> {
        let [server, own] = self.processes;
        Ok([processor_seconds(server)?, processor_seconds(own)?])
    }

    /// Runs one round, prints its row, and keeps it.
    async fn round(
        &mut self,
        name: &'static str,
        pace: Pace,
        before_last: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        self.clients.opened().await?;
        let _ = self.baseline.take();
        let before = CpuTime::now(&self.processes)?;
        let seconds_before = self.seconds()?;
        let result = self.clients.round(pace, before_last).await?;
        let (own, others, waited) = CpuTime::now(&self.processes)?.since(&before);
        let baseline = self.baseline.take();
        // The round after it is a part of the cost of an update.
        self.clients.opened().await?;
        #[allow(clippy::cast_precision_loss)]
        let micros = 1e6 / result.times.count().max(1) as f64;
        let mut spent = self.seconds()?;
        for (after, before) in spent.iter_mut().flatten().zip(seconds_before.as_flattened()) {
            *after = (*after - before) * micros;
        }
        let [server, generator] = spent;
        let row = Row { name, result, baseline, own, others, waited, server, generator };
        let (times, baseline) = (&row.result.times, &row.baseline);
        println!(
            "{name:<8} {:>7} {:>9.2} {:>9.2} {:>9.2} {:>11.2} {:>11.2} {:>7.0} {:>7.0} {:>9.2} {:>9.1} {:>9.1} {:>9.0}",
            row.result.counted,
            times.quantile(0.5),
            times.quantile(0.99),
            times.quantile(1.0),
            baseline.quantile(0.5),
            baseline.quantile(0.99),
            100.0 * own,
            100.0 * others,
            waited,
            row.server.iter().sum::<f64>(),
            row.generator.iter().sum::<f64>(),
            row.rate()
        );
        self.rows.push(row);
        Ok(())
    }

    /// Returns median, minimum and maximum of a metric over the rounds with the given name.
    fn summarise(&self, name: &str, metric: impl Fn(&Row) -> f64) -> [f64; 3] {
        let mut values: Vec<f64> = self.rows.iter().filter(|row| row.name == name).map(metric).collect();
        values.sort_by(f64::total_cmp);
        let value_at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let middle = values.len().saturating_sub(1);
        [(value_at(middle / 2) + value_at(middle.div_ceil(2))) / 2.0, value_at(0), value_at(middle)]
    }
}

/// Connects devices to the server, at most [`MAX_HANDSHAKES`] at a time.
async fn join_devices(
    clients: &SynchronisedClients,
    server: &ServerProcess,
    identities: &[(usize, Identity)],
) -> Result<()> {
    let mut joining = JoinSet::new();
    let mut waiting = identities.iter().cloned();
    loop {
        while joining.len() < MAX_HANDSHAKES
            && let Some((index, identity)) = waiting.next()
        {
            let address = server.address;
            joining.spawn(async move { (index, Device::join(address, None, identity, 0).await) });
        }
        let Some(joined) = joining.join_next().await else { return Ok(()) };
        let (index, device) = joined.map_err(Error::other)?;
        clients.join(index, device?);
    }
}

/// Runs all phases of the measurement and prints the report. Returns true if every update counted once.
async fn run(options: &Options) -> Result<bool> {
    let directory = std::env::temp_dir().join(format!("fedspan-load-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let (fleet, mut identities) = options.plan().prepare(&directory)?;
    let insiders = identities.split_off(options.devices);
    // Sync times of the disk that holds the server's state.
    let disk = fsync(&directory)?;
    let server = ServerProcess::start(&options.server, &directory, &fleet)?;
    let processes = [server.id(), std::process::id()];
    let memory = || memory_of(server.id());
    let base_memory = memory()?;

    let mut bench = Bench {
        clients: SynchronisedClients::new(options.devices),
        baseline: LoopbackBaseline::start()?,
        processes,
        rows: Vec::new(),
    };
    let numbered: Vec<(usize, Identity)> = identities.into_iter().enumerate().collect();
    let (last, all_but_last) = numbered.split_last().ok_or_else(|| Error::other("no devices"))?;
    let start = Instant::now();
    join_devices(&bench.clients, &server, all_but_last).await?;
    let joining = start.elapsed();
    // The last frames of the handshakes may still be in flight.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let welcomed = memory()?;
    join_devices(&bench.clients, &server, std::slice::from_ref(last)).await?;
    bench.clients.opened().await?;
    let opened = memory()?;

    println!(
        "round    counted   p50/ms    p99/ms    max/ms  echo-p50/ms echo-p99/ms  own/% others/%  waited/s server/us  load/us updates/s"
    );
    #[allow(clippy::cast_precision_loss)]
    let step = Duration::from_secs_f64(1.0 / options.rate as f64);
    let (paced, at_once) = (
        Pace { step, last_delay: Duration::ZERO },
        Pace { step: Duration::ZERO, last_delay: Duration::ZERO },
    );
    let mut all_but_one_answered = Memory::default();
    let with_late_last = Pace { last_delay: Duration::from_secs(1), ..paced };
    bench
        .round("first", with_late_last, || {
            all_but_one_answered = memory()?;
            Ok(())
        })
        .await?;
    for _ in 0..options.herds {
        bench.round("herd", at_once, || Ok(())).await?;
    }

    let (switch, _) = watch::channel(false);
    let hostile_connections = spawn_hostile(options, &server, &insiders, &switch);
    let exports = Arc::new(AtomicU64::new(0));
    for _ in 0..options.rounds {
        bench.round("alone", paced, || Ok(())).await?;
        switch.send_replace(true);
        tokio::time::sleep(SETTLE_TIME).await;
        bench.round("beside", paced, || Ok(())).await?;
        switch.send_replace(false);
        tokio::time::sleep(SETTLE_TIME / 3).await;
        let exporting = tokio::spawn(export_every_second(server.state(), Arc::clone(&exports)));
        let result = bench.round("exports", paced, || Ok(())).await;
        exporting.abort();
        result?;
    }
    let end = memory()?;
    let status = server.status().await?;
    let hostile_connections: BTreeMap<String, u64> = hostile_connections
        .into_iter()
        .map(|(kind, hostile_connections)| (kind, hostile_connections.load(Ordering::Relaxed)))
        .collect();

    #[allow(clippy::cast_precision_loss)]
    let bytes_per_device =
        |memory: Memory| (memory.resident as f64 - base_memory.resident as f64) / options.devices as f64;
    println!(
        "\nresident bytes of the server, {} before the first connection; for each device beyond that:",
        base_memory.resident
    );
    println!(
        "  welcomed {:.0}, round open {:.0}, all but one update in {:.0}",
        bytes_per_device(welcomed),
        bytes_per_device(opened),
        bytes_per_device(all_but_one_answered)
    );
    println!(
        "  at the end {:.0}, at most {:.0}",
        bytes_per_device(end),
        bytes_per_device(Memory { resident: end.peak, ..end })
    );
    let p99_of = |name: &str| bench.summarise(name, |row| row.result.times.quantile(0.99));
    let format_p99 = |name: &str| {
        let [median, least, largest] = p99_of(name);
        format!("{name} {median:.2} ({least:.2}, {largest:.2}) ms")
    };
    if options.rounds > 0 {
        println!(
            "p99 of an acknowledgement, median (least, largest) of {} rounds: {}, {}, {}; {} exports",
            options.rounds,
            format_p99("alone"),
            format_p99("beside"),
            format_p99("exports"),
            exports.load(Ordering::Relaxed)
        );
    }
    let [rate, ..] = bench.summarise("herd", Row::rate);
    let mean = |metric: &dyn Fn(&Row) -> f64| {
        let herds = bench.rows.iter().filter(|row| row.name == "herd").map(metric);
        herds.sum::<f64>() / options.herds.max(1) as f64
    };
    println!(
        "all at once, {} rounds: median {rate:.0} updates/s; mean processor time of an update: server {:.1} us in user mode and \
         {:.1} us in the kernel, this program {:.1} us and {:.1} us",
        options.herds,
        mean(&|row| row.server[0]),
        mean(&|row| row.server[1]),
        mean(&|row| row.generator[0]),
        mean(&|row| row.generator[1])
    );
    println!(
        "a page to the disk and synced, before that: p50 {:.2} ms, p99 {:.2} ms, at most {:.2} ms",
        disk.quantile(0.5),
        disk.quantile(0.99),
        disk.quantile(1.0)
    );
    println!(
        "handshakes a second: {:.0}; hostile connections: {hostile_connections:?}",
        all_but_last.len() as f64 / joining.as_secs_f64()
    );

    let rounds = bench.rows.len();
    let counted: usize = bench.rows.iter().map(|row| row.result.counted).sum();
    let all_counted = counted == options.devices * rounds
        && status.pointer("/updates/counted").and_then(serde_json::Value::as_u64)
            == u64::try_from(counted).ok();
    let summary = |name: &str| {
        let quantile = |share: f64| bench.summarise(name, |row| row.result.times.quantile(share));
        json!({
            "p50": quantile(0.5), "p99": quantile(0.99), "max": quantile(1.0),
            "echo_p99": bench.summarise(name, |row| row.baseline.quantile(0.99)),
            "own": bench.summarise(name, |row| row.own), "others": bench.summarise(name, |row| row.others),
            "waited": bench.summarise(name, |row| row.waited),
            "seconds": bench.summarise(name, |row| row.result.took.as_secs_f64()),
            "updates_per_second": bench.summarise(name, Row::rate),
            "server_us": bench.summarise(name, |row| row.server.iter().sum()),
            "load_us": bench.summarise(name, |row| row.generator.iter().sum()),
        })
    };
    let report = json!({
        "devices": options.devices, "rounds": options.rounds, "rate": options.rate, "hostile": options.hostile,
        "frame_limit": options.frame_limit(), "d": options.shape.features, "k": options.shape.width, "seed": options.seed, "base": base_memory.resident,
        "each": {
            "welcomed": bytes_per_device(welcomed),
            "open": bytes_per_device(opened),
            "full": bytes_per_device(all_but_one_answered),
            "end": bytes_per_device(end),
            "most": bytes_per_device(Memory { resident: end.peak, ..end }),
        },
        "alone": summary("alone"), "beside": summary("beside"), "herd": summary("herd"),
        "exports": summary("exports"), "exported": exports.load(Ordering::Relaxed),
        "fsync": { "p50": disk.quantile(0.5), "p99": disk.quantile(0.99), "max": disk.quantile(1.0) },
        "counted": counted, "all_counted": all_counted, "made": hostile_connections, "status": status,
    });
    println!("{report}");
    Ok(all_counted)
}

/// Exports the server's state every second.
async fn export_every_second(state: PathBuf, exports: Arc<AtomicU64>) {
    while let Ok(Some(_)) = fetch_export(&state).await {
        exports.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Starts slow writers and as many peers that send garbage, all idle until the switch is on. Returns the
/// counters of the connections that each kind has made.
fn spawn_hostile(
    options: &Options,
    server: &ServerProcess,
    insiders: &[Identity],
    switch: &watch::Sender<bool>,
) -> Vec<(String, Arc<AtomicU64>)> {
    let target = Target { address: server.address, seed: options.seed };
    let kinds: Vec<(Kind, Arc<AtomicU64>)> =
        Kind::SLOW.into_iter().chain(Kind::GARBAGE).map(|kind| (kind, Arc::default())).collect();
    let (slow, garbage) = kinds.split_at(Kind::SLOW.len());
    let mut identities = insiders.iter().cloned();
    for index in 0..options.hostile {
        for (parity, kinds) in [slow, garbage].into_iter().enumerate() {
            let Some((kind, connections)) = kinds.get(index % kinds.len()) else { continue };
            let identity = if kind.has_key() { identities.next() } else { None };
            // A closed connection occupies its port for a minute, so the connections are spread over several
            // addresses.
            let from = Some(Ipv4Addr::new(127, 0, 1, u8::try_from(index % 200 + 1).unwrap_or(1)));
            let index = (2 * index + parity) as u64;
            let hostile = Hostile { kind: *kind, index, from, identity };
            tokio::spawn(hostile.reconnect_while(target, switch.subscribe(), Arc::clone(connections)));
        }
    }
    kinds.into_iter().map(|(kind, connections)| (format!("{kind:?}").to_lowercase(), connections)).collect()
}
