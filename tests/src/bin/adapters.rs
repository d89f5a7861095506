//! Program `adapters` that measures the time of `adapter average` on adapters of a large model, compared with
//! the time of reading their files once.

use std::fs::File;
use std::io::{BufWriter, Error, Result, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fedspan_tests::benchmarks::interval::median;
use fedspan_tests::load::memory_of;

const USAGE: &str = "usage: adapters [PAIRS [CLIENTS [DIRECTORY [LAYERS]]]]

Writes adapters of CLIENTS (50) clients below DIRECTORY (the system's directory for temporary files): rank 8, for query, key,
value and output of LAYERS (32) layers of width 4096, 34 MB per client in f32. Removes them afterwards. Times
`cat FILES > /dev/null` and `fedspan-aggregator adapter average` in turns, PAIRS times (7), with a warm cache, for an up
round, plain averaging, and an up round in f16; and once `adapter check` where both factors differ. Peak memory is that of
the averaging or checking process. Needs a release build of fedspan-aggregator next to it.
exit: 0 done, 1 something failed, 2 wrong arguments";

/// Rank of the adapters.
const RANK: usize = 8;
/// Width of the model's layers.
const WIDTH: usize = 4096;

/// Interval between two samples of a process's memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| match arguments.get(index) {
        None => Some(default),
        Some(text) => text.parse().ok().filter(|number| *number > 0),
    };
    let numbers = (number(0, 7), number(1, 50), number(3, 32));
    let (Some(pairs), Some(clients), Some(layers)) = numbers else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let parent = arguments.get(2).map_or_else(std::env::temp_dir, PathBuf::from);
    if arguments.len() > 4 {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let directory = parent.join(format!("adapters-{}", std::process::id()));
    let result = compare(&directory, pairs, clients, layers);
    let removed = std::fs::remove_dir_all(&directory);
    match result.and(removed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("adapters: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the adapters, measures both commands in turns, and prints medians.
fn compare(directory: &Path, pairs: usize, clients: usize, layers: usize) -> Result<()> {
    let program = std::env::current_exe()?.with_file_name("fedspan-aggregator");
    std::fs::create_dir(directory)?;
    println!("{:<14} {:>8} {:>8} {:>8} {:>6} {:>9}", "", "MB read", "cat s", "mean s", "ratio", "peak MB");
    for (name, is_f16, flags) in [
        ("f32, up round", false, &["--round", "up"][..]),
        ("f32, plain", false, &["--plain"]),
        ("f16, up round", true, &["--round", "up"]),
    ] {
        let path = |client: usize| directory.join(format!("{client}.safetensors"));
        let mut bytes = 0;
        // Client 0 is the base; in an up round all clients have the down factors of the base.
        for client in 0..=clients {
            bytes += write_adapter(&path(client), client, layers, is_f16, flags == ["--plain"])?;
        }
        let files: Vec<PathBuf> = (1..=clients).map(path).collect();
        let mut read_seconds = Vec::new();
        let mut mean_seconds = Vec::new();
        let mut ratios = Vec::new();
        let mut peak = 0;
        // The first pair warms the cache and is not counted.
        for pair in 0..=pairs {
            let mut cat_command = Command::new("cat");
            let (cat_seconds, _) = run_timed(cat_command.arg(path(0)).args(&files).stdout(Stdio::null()))?;
            let mut average = Command::new(&program);
            average.args(["adapter", "average"]).args(flags).arg("--base").arg(path(0)).args(&files);
            average.arg("-o").arg(directory.join("next.safetensors")).stdout(Stdio::null());
            let (seconds, average_peak) = run_timed(&mut average)?;
            if pair > 0 {
                read_seconds.push(cat_seconds);
                mean_seconds.push(seconds);
                ratios.push(seconds / cat_seconds);
                peak = average_peak.max(peak);
            }
        }
        if name == "f32, plain" {
            let mut check = Command::new(&program);
            check.args(["adapter", "check", "--base"]).arg(path(0)).args(&files).stdout(Stdio::null());
            let (seconds, peak) = run_timed(&mut check)?;
            println!(
                "{:<14} {:>8} {:>8} {seconds:>8.3} {:>6} {:>9.1}",
                "f32, check",
                "",
                "",
                "",
                peak as f64 / 1e6
            );
        }
        let (min_ratio, max_ratio) = (
            ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratios.iter().copied().fold(0.0, f64::max),
        );
        let (megabytes, peak) = (bytes / 1_000_000, peak as f64 / 1e6);
        let (read_seconds, mean_seconds, ratio) =
            (median(read_seconds), median(mean_seconds), median(ratios));
        println!(
            "{name:<14} {megabytes:>8} {read_seconds:>8.3} {mean_seconds:>8.3} {ratio:>6.2} {peak:>9.1}  ({min_ratio:.2} to {max_ratio:.2})"
        );
    }
    println!("medians of {pairs} pairs, {clients} clients");
    Ok(())
}

/// Runs a command; returns its seconds and its peak memory in bytes.
fn run_timed(command: &mut Command) -> Result<(f64, u64)> {
    let start = Instant::now();
    let mut child: Child = command.spawn()?;
    let mut peak = 0;
    loop {
        if let Some(status) = child.try_wait()? {
            let seconds = start.elapsed().as_secs_f64();
            return if status.success() {
                Ok((seconds, peak))
            } else {
                Err(Error::other("a command failed"))
            };
        }
        peak = memory_of(child.id()).map_or(peak, |memory| memory.peak.max(peak));
        std::thread::sleep(SAMPLE_INTERVAL);
    }
}

/// Writes an adapter whose values span three powers of ten, as in trained adapters; returns the length of the
/// file. All clients have the same factor A, unless `trains_both` is set.
fn write_adapter(path: &Path, client: usize, layers: usize, is_f16: bool, trains_both: bool) -> Result<u64> {
    let (kind, size) = if is_f16 { ("F16", 2) } else { ("F32", 4) };
    let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut tensors = Vec::new();
    let mut offset = 0;
    for layer in 0..layers {
        for module in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            for (factor, shape) in [("A", [RANK, WIDTH]), ("B", [WIDTH, RANK])] {
                let end = offset + RANK * WIDTH * size;
                let name =
                    format!("base_model.model.model.layers.{layer}.self_attn.{module}.lora_{factor}.weight");
                header.push_str(&format!(
                    ",\"{name}\":{{\"dtype\":\"{kind}\",\"shape\":{shape:?},\"data_offsets\":[{offset},{end}]}}"
                ));
                tensors.push(factor);
                offset = end;
            }
        }
    }
    header.push('}');
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut frozen = Random(1);
    let mut trained = Random(client as u64 + 2);
    for factor in tensors {
        let random = if factor == "A" && !trains_both { &mut frozen } else { &mut trained };
        for _ in 0..RANK * WIDTH {
            let bits = random.next();
            if is_f16 {
                // A sign, one of ten exponents, ten bits of mantissa.
                let exponent = 5 + (bits >> 32) % 10;
                let bits = (bits & 0x83ff) | exponent << 10;
                file.write_all(&u16::try_from(bits).unwrap_or(0).to_le_bytes())?;
            } else {
                let exponent = 112 + (bits >> 32) % 10;
                let bits = (bits & 0x807f_ffff) | exponent << 23;
                file.write_all(&u32::try_from(bits).unwrap_or(0).to_le_bytes())?;
            }
        }
    }
    file.flush()?;
    Ok((8 + header.len() + offset) as u64)
}

/// Knuth's linear congruential generator with Marsaglia's mixing.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bits = self.0;
        bits ^= bits >> 33;
        bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
        bits ^ bits >> 33
    }
}
