//! Command `record`: writes the samples that a board prints to a labelled recording, a table for `[data]` of kind "csv".

mod lines;
mod motion;
mod source;
mod table;
mod timing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use fedspan_client::features::CHANNELS;
use fedspan_sim_core::data::table::CLASSES;
use fedspan_sim_core::data::table::names::is_missing;

use self::lines::{Content, Lines, Refusal, check_names, parse};
use self::motion::Windows;
use self::source::Received;
use self::table::{Recording, cells};
use self::timing::{Clock, Step, Timing, mismatch};
use super::output::log_line;
use super::progress::Spinner;
use super::{CommandError, interrupt};

/// Options of command `record`.
#[derive(Args, Clone, Debug)]
pub struct RecordOptions {
    #[command(flatten)]
    source: Source,
    /// Baud rate of --serial; a port over USB ignores it
    #[arg(long, value_name = "BAUD", default_value_t = 115_200)]
    baud: u32,
    /// Label of the samples: a class, or a number to predict. Several labels, separated by commas, are recorded one after another
    #[arg(long, value_name = "LABEL,...", required = true, value_delimiter = ',')]
    label: Vec<String>,
    /// Name of the wearer: the client of each row
    #[arg(long, value_name = "NAME", default_value = "1")]
    wearer: String,
    /// CSV file of the recording; rows are appended to an existing one
    #[arg(long, value_name = "FILE.csv")]
    out: PathBuf,
    /// Names of the columns in each line, if the board does not print them first [default: those in FILE.csv]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    columns: Vec<String>,
    /// Column that counts samples, so that missing ones are reported
    #[arg(long, value_name = "NAME")]
    counter: Option<String>,
    /// Column with the board's time in milliseconds, so that missing samples are reported
    #[arg(long, value_name = "NAME", requires = "rate")]
    time: Option<String>,
    /// Expected number of samples per second; another rate is reported
    #[arg(long, value_name = "HZ", value_parser = rate)]
    rate: Option<f64>,
    /// Number of rows for each label [default: until the source ends, or Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// Duration of each label in seconds, of a port or connection
    #[arg(long, value_name = "N", conflicts_with = "from", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: Option<u64>,
    /// Time before each label, whose samples are dropped, of a port or connection [default: 3 for several labels, otherwise 0]
    #[arg(long, value_name = "SECONDS", conflicts_with = "from", value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pause: Option<u64>,
    /// Record the features of windows of 100 lines, as boards with an inertial sensor compute them, instead of the lines: six columns,
    /// acceleration in g and rotation in rad/s
    #[arg(long)]
    motion: bool,
}

/// Source of the lines.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct Source {
    /// Serial port of the board, such as /dev/ttyACM0
    #[arg(long, value_name = "PORT")]
    serial: Option<String>,
    /// Address of a board or bridge that sends lines over TCP
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Option<String>,
    /// File with lines, for example of a logger; `-` for standard input
    #[arg(long, value_name = "FILE")]
    from: Option<String>,
}

/// Parses a rate.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-6..=1e9).contains(rate));
    rate.ok_or_else(|| "allowed: 0.000001 to 1000000000".to_owned())
}

/// Number of refused lines that are shown; further ones are only counted.
const SHOWN: u64 = 10;
/// Time after which Ctrl-C, limits and progress are looked at without a new line.
const TICK: Duration = Duration::from_millis(100);
/// Shortest time over which the rate is measured by the clock of this computer.
const MEASURED: Duration = Duration::from_secs(2);

/// Message after the first Ctrl-C.
const INTERRUPTED: &str = "ending; the rows so far are kept";

/// Runs command `record`.
pub fn command(options: &RecordOptions) -> Result<(), CommandError> {
    let mut recorder = Recorder::new(options).map_err(CommandError::Usage)?;
    let received = source::open(&options.source, options.baud).map_err(CommandError::Usage)?;
    let mut input = Input {
        received,
        lines: Lines::default(),
        skips_first: options.source.from.is_none(),
        stop: interrupt::watch_with(INTERRUPTED),
    };
    let has_end = options.samples.is_some() || options.seconds.is_some() || options.label.len() > 1;
    let mut rows = 0;
    let mut ended = None;
    for label in &options.label {
        let mut take = Take::new(label, recorder.clock.clone(), options);
        ended = recorder.wait(&mut input, label)?;
        if ended.is_none() {
            ended = recorder.record(&mut input, &mut take)?;
            recorder.finish(&take)?;
        }
        rows += take.rows;
        if ended.is_some() {
            break;
        }
    }
    let out = options.out.display();
    let count = if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") };
    let refused = recorder.refused;
    if rows == 0 {
        let message = format!("no row was recorded, {refused} lines were refused");
        return Err(CommandError::Failed(message));
    }
    match ended {
        Some(End::Failed(error)) => {
            Err(CommandError::Failed(format!("{error}; {out} has the {count} before")))
        }
        Some(End::Interrupted | End::Source) if has_end => Err(CommandError::Failed(format!(
            "ended before all samples were there; {out} has the {count} before"
        ))),
        _ => {
            log_line(&format!(
                "{out}: {count} appended; next: fedspan-sim init {out} --client wearer --target label"
            ));
            Ok(())
        }
    }
}

/// End of the samples before the limits of a label.
#[derive(Debug)]
enum End {
    /// Ctrl-C.
    Interrupted,
    /// End of the file, or of the connection.
    Source,
    /// Failed source, with a one-line message.
    Failed(String),
}

/// Lines as they arrive.
struct Input {
    received: Receiver<Received>,
    lines: Lines,
    /// Whether the next line is dropped, since it may have begun before the recorder attached.
    skips_first: bool,
    stop: Arc<AtomicBool>,
}

impl Input {
    /// Waits for bytes, until a deadline at the latest and not longer than [`TICK`].
    fn wait(&mut self, deadline: Option<Instant>) -> Option<End> {
        if self.stop.load(Ordering::Relaxed) {
            return Some(End::Interrupted);
        }
        let left =
            deadline.map_or(TICK, |deadline| deadline.saturating_duration_since(Instant::now()).min(TICK));
        match self.received.recv_timeout(left) {
            Ok(Ok(bytes)) if bytes.is_empty() => Some(End::Source),
            Ok(Ok(bytes)) => {
                self.lines.push(&bytes);
                None
            }
            Ok(Err(error)) => Some(End::Failed(error.to_string())),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(End::Source),
        }
    }

    /// Returns the next line that has arrived.
    fn next(&mut self) -> Option<(u64, Result<&str, Refusal>)> {
        if std::mem::take(&mut self.skips_first) && self.lines.next().is_none() {
            self.skips_first = true;
            return None;
        }
        self.lines.next()
    }
}

/// Samples of one label.
struct Take<'a> {
    label: &'a str,
    /// Number of recorded rows.
    rows: u64,
    /// Number of samples, of which [`RecordOptions::motion`] makes fewer rows.
    samples: u64,
    timing: Timing,
    windows: Windows,
    rate: Option<f64>,
    /// True if samples arrive as they are measured, and not from a file.
    is_live: bool,
    /// Arrival of the first and the last sample.
    arrived: Option<(Instant, Instant)>,
}

impl<'a> Take<'a> {
    fn new(label: &'a str, clock: Clock, options: &RecordOptions) -> Self {
        Self {
            label,
            rows: 0,
            samples: 0,
            timing: Timing::new(clock),
            windows: Windows::default(),
            rate: options.rate,
            is_live: options.source.from.as_deref().is_none_or(|from| from == "-"),
            arrived: None,
        }
    }

    /// Measured rate in samples per second, by the board's clock if lines have times.
    fn measured(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
        let arrived = self.arrived.filter(|_| self.is_live).and_then(|(first, last)| {
            let duration = last.duration_since(first);
            (duration >= MEASURED).then(|| (self.samples - 1) as f64 / duration.as_secs_f64())
        });
        self.timing.rate().or(arrived)
    }

    /// Text of the progress display and of the report.
    fn text(&self, refused: u64) -> String {
        let mut text = format!("{}: {} rows", self.label, self.rows);
        if let Some(rate) = self.measured() {
            text += &format!(", {rate:.1} samples a second");
        }
        if self.timing.missing > 0.0 {
            text += &format!(", {} samples missing", self.timing.missing);
        }
        if self.timing.backs > 0 {
            text += &format!(", {} times back", self.timing.backs);
        }
        if refused > 0 {
            text += &format!(", {refused} lines refused");
        }
        text
    }
}

/// Recorder of one call.
struct Recorder<'a> {
    options: &'a RecordOptions,
    /// Names of the columns in each line, as soon as they are known.
    names: Option<Vec<String>>,
    clock: Clock,
    /// Names of the columns of an existing file.
    earlier: Option<Vec<String>>,
    recording: Option<Recording>,
    /// Complete rows that are not in the file yet.
    pending: Vec<u8>,
    /// Number of refused lines.
    refused: u64,
    spinner: Spinner,
}

impl<'a> Recorder<'a> {
    /// Checks the options and the file of an earlier recording.
    fn new(options: &'a RecordOptions) -> Result<Self, String> {
        for name in options.label.iter().chain([&options.wearer]) {
            if is_missing(name) || name.trim() != name || name.chars().any(char::is_control) {
                return Err(format!(
                    "found {name:?} as a label or wearer, allowed: text in one line that does not stand for a missing value"
                ));
            }
        }
        if options.label.len() > CLASSES {
            return Err(format!("--label: found {} labels, allowed: at most {CLASSES}", options.label.len()));
        }
        if options.label.len() > 1 && options.samples.is_none() && options.seconds.is_none() {
            return Err(
                "several labels need --samples or --seconds, after which the next one begins".to_owned()
            );
        }
        let (recording, earlier) = Recording::open(&options.out)?.unzip();
        let mut recorder = Self {
            options,
            names: None,
            clock: Clock::default(),
            earlier,
            recording,
            pending: Vec::new(),
            refused: 0,
            spinner: Spinner::new(),
        };
        let known = match &recorder.earlier {
            _ if !options.columns.is_empty() => Some(options.columns.clone()),
            earlier if !options.motion => earlier.clone(),
            _ => None,
        };
        if let Some(names) = known {
            check_names(&names)?;
            recorder.set_names(names)?;
        }
        Ok(recorder)
    }

    /// Finds the roles of the columns by their names, and compares them with the file of an earlier recording.
    fn set_names(&mut self, names: Vec<String>) -> Result<(), String> {
        let find = |option: &str, name: &Option<String>| {
            let Some(name) = name else { return Ok(None) };
            let found = names.iter().position(|column| column == name);
            found
                .map(Some)
                .ok_or_else(|| format!("{option} {name}: the board has the columns {}", names.join(",")))
        };
        self.clock = Clock {
            counter: find("--counter", &self.options.counter)?,
            time: find("--time", &self.options.time)?,
            rate: self.options.rate,
        };
        let channels = (0..names.len()).filter(|index| self.clock.is_value(*index)).count();
        if self.options.motion && channels != CHANNELS {
            return Err(format!(
                "--motion: found {channels} columns without counter and time, expected {CHANNELS}: acceleration x, y, z in g, then \
                 rotation x, y, z in rad/s"
            ));
        }
        let written = if self.options.motion { motion::names() } else { names.clone() };
        if let Some(earlier) = self.earlier.as_ref().filter(|earlier| **earlier != written) {
            return Err(format!(
                "{}: found the columns {} in the file, and {} in this recording; give another --out",
                self.options.out.display(),
                earlier.join(","),
                written.join(",")
            ));
        }
        self.earlier = Some(written);
        self.names = Some(names);
        Ok(())
    }

    /// Drops what arrives before the label begins.
    fn wait(&mut self, input: &mut Input, label: &str) -> Result<Option<End>, CommandError> {
        let several = self.options.label.len() > 1 && self.options.source.from.is_none();
        let pause = self.options.pause.unwrap_or(if several { 3 } else { 0 });
        if pause > 0 {
            self.spinner.log(&format!("{label}: begins in {pause} s"));
        }
        let begins = Instant::now() + Duration::from_secs(pause);
        while Instant::now() < begins {
            if let Some(ended) = input.wait(Some(begins)) {
                return Ok(Some(ended));
            }
            while let Some((_, line)) = input.next() {
                // Names count even now, since a board prints them once.
                if let Ok(Content::Names(names)) = line.and_then(|text| parse(text, self.names.as_deref())) {
                    self.set_names(names).map_err(CommandError::Usage)?;
                }
            }
        }
        self.spinner.log(&format!("{label}: recording"));
        Ok(None)
    }

    /// Records one label until its limits, or the end of the samples.
    fn record(&mut self, input: &mut Input, take: &mut Take<'_>) -> Result<Option<End>, CommandError> {
        let deadline = self.options.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        loop {
            let is_full = self.read_lines(input, take)?;
            self.write().map_err(CommandError::Failed)?;
            self.spinner.show(|| take.text(self.refused));
            if is_full || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break Ok(None);
            }
            if let Some(ended) = input.wait(deadline) {
                // At Ctrl-C the board is still printing.
                let unfinished = input.lines.unfinished().filter(|_| !matches!(ended, End::Interrupted));
                if let Some(number) = unfinished {
                    self.refuse(number, &Refusal::Cut);
                }
                break Ok(Some(ended));
            }
        }
    }

    /// Takes the lines that have arrived. Returns true if the label has all its rows.
    fn read_lines(&mut self, input: &mut Input, take: &mut Take<'_>) -> Result<bool, CommandError> {
        while self.options.samples != Some(take.rows) {
            let Some((number, line)) = input.next() else { return Ok(false) };
            let names = self.names.take();
            match line.and_then(|text| parse(text, names.as_deref())) {
                Ok(Content::Row(cells, values)) => {
                    self.names = names;
                    self.take_row(take, number, &cells, &values)?;
                }
                Ok(Content::Names(found)) => {
                    self.set_names(found).map_err(CommandError::Usage)?;
                    take.timing.set_clock(self.clock.clone());
                }
                Ok(Content::Remark) => self.names = names,
                Err(refusal) => {
                    self.names = names;
                    self.refuse(number, &refusal);
                    take.windows.interrupt();
                }
            }
        }
        Ok(true)
    }

    /// Takes the values of a line.
    fn take_row(
        &mut self,
        take: &mut Take<'_>,
        number: u64,
        texts: &[&str],
        values: &[f64],
    ) -> Result<(), CommandError> {
        match take.timing.check(values, texts) {
            Ok(Step::Next) => {}
            Ok(step) => {
                self.spinner.log(&format!("line {number}: {step}"));
                take.windows.interrupt();
            }
            Err(refusal) => {
                self.refuse(number, &refusal);
                take.windows.interrupt();
                return Ok(());
            }
        }
        let now = Instant::now();
        take.arrived = Some((take.arrived.map_or(now, |(first, _)| first), now));
        take.samples += 1;
        let own = [self.options.wearer.as_str(), take.label];
        let row = if self.options.motion {
            let mut sample = [0.0; CHANNELS];
            let channels = values.iter().enumerate().filter(|(index, _)| self.clock.is_value(*index));
            for (channel, (_, value)) in sample.iter_mut().zip(channels) {
                *channel = narrow(*value);
            }
            let Some(features) = take.windows.push(&sample) else { return Ok(()) };
            let features: Vec<String> = features.iter().map(f32::to_string).collect();
            cells(own.into_iter().chain(features.iter().map(String::as_str)))
        } else {
            cells(own.into_iter().chain(texts.iter().copied()))
        };
        self.pending.extend(row.map_err(CommandError::Failed)?);
        take.rows += 1;
        Ok(())
    }

    /// Appends the pending rows to the file, which is created for the first of them.
    fn write(&mut self) -> Result<(), String> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.recording.is_none() {
            let columns = self.earlier.as_deref().unwrap_or_default();
            self.recording = Some(Recording::create(&self.options.out, columns)?);
        }
        let Some(recording) = &mut self.recording else { return Ok(()) };
        recording.append(&std::mem::take(&mut self.pending))
    }

    /// Counts a line that is not recorded, and shows it if it is among the first.
    fn refuse(&mut self, number: u64, refusal: &Refusal) {
        self.refused += 1;
        if self.refused <= SHOWN {
            self.spinner.log(&format!("line {number} refused: {refusal}"));
        }
        if self.refused == SHOWN {
            self.spinner.log("further refused lines are only counted");
        }
    }

    /// Saves and reports a finished label, and another rate than the expected one.
    fn finish(&mut self, take: &Take<'_>) -> Result<(), CommandError> {
        if let Some(recording) = &self.recording {
            recording.sync().map_err(CommandError::Failed)?;
        }
        self.spinner.log(&take.text(self.refused));
        let warning =
            take.rate.zip(take.measured()).and_then(|(expected, measured)| mismatch(measured, expected));
        if let Some(warning) = warning {
            self.spinner.log(&format!("warning: {warning}"));
        }
        Ok(())
    }
}

/// Rounds a value to f32, as boards hold it.
#[allow(clippy::cast_possible_truncation, reason = "boards hold f32")]
fn narrow(value: f64) -> f32 {
    value as f32
}
