//! Command `keys`: manages the keys of devices, through the running server or, if no server runs, in the key
//! store file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::keys::{
    Answer, Argon2Cost, DeviceRange, DeviceSelector, KeyState, KeyStatus, KeyStore, KeyStoreError, Request,
    parse_keys, ranges,
};
use fedspan_aggregator::server::query;
use fedspan_engine::DeviceId;
use fedspan_files::{FileError, create_private};
use fedspan_protocol::secure::{PROVISION, PROVISION_WITH_NOISE, Provision, ProvisionedNoise};
use getrandom::SysRng;
use zeroize::Zeroizing;

use super::noise::{NoiseOptions, multiplier};
use super::unlock::Sources;

/// Longest wait for a key store that another command uses.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Interval between attempts to open the key store.
pub const STORE_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Options of `keys`.
#[derive(Args)]
pub struct KeysOptions {
    /// The same configuration that `serve` is given.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// A file that holds the key store's passphrase and that only its owner can read; also
    /// FEDSPAN_PASSPHRASE_FILE. Not needed while a server runs, nor with `key_file` in [devices].
    #[arg(long, value_name = "FILE", global = true)]
    passphrase_file: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// Devices are numbers, or ranges: 7, 1..64 (64 included).
#[derive(Subcommand)]
enum Command {
    /// Give devices their first keys; the first time, make the key store.
    Add {
        /// Numbers or ranges: 7, 1..64 (64 included).
        #[arg(required = true, value_name = "DEVICE")]
        devices: Vec<DeviceRange>,
        /// Also give new keys to devices that were revoked.
        #[arg(long)]
        again: bool,
    },
    /// List devices, their epochs and states; never keys.
    List {
        /// A table, or one line of JSON.
        #[arg(long, value_enum, default_value_t = Format::Human)]
        format: Format,
    },
    /// Withdraw devices' keys; a running server takes no further frame from them.
    Revoke {
        /// Numbers or ranges: 7, 1..64 (64 included).
        #[arg(required = true, value_name = "DEVICE")]
        devices: Vec<DeviceRange>,
    },
    /// Give devices new keys; the old ones are accepted until a round closes.
    Rotate {
        #[command(flatten)]
        selection: Selection,
        /// Send the new keys to the devices over their encrypted links, if their firmware stores keys; the old ones are accepted until
        /// the devices have used the new ones. Not for keys that may have been stolen: who has the old key and listens gets the new one.
        #[arg(long)]
        send: bool,
    },
    /// Write devices' newest keys to a file or, to be flashed, one record a device.
    #[command(after_help = "Examples:\n  \
        fedspan-aggregator keys --config fleet.toml export 1..64 -o fleet.keys    for a host that plays them\n  \
        fedspan-aggregator keys --config fleet.toml export 1..64 --flash records  records/device-1.bin and so on\n  \
        fedspan-aggregator keys --config fleet.toml export 1..64 --flash records --epsilon 2 --delta 1e-5 \
        --releases 100 --slot 500\n  \
        fedspan-aggregator keys --config fleet.toml export 7 -o device-7.bin      one record")]
    Export {
        #[command(flatten)]
        selection: Selection,
        /// A new file: lines `device epoch key`, or one provisioning record if its name ends in .bin; `-`
        /// prints the lines.
        #[arg(short, long, value_name = "FILE", required_unless_present = "flash")]
        output: Option<PathBuf>,
        /// A directory for provisioning records, device-7.bin and so on.
        #[arg(long, value_name = "DIR", conflicts_with = "output")]
        flash: Option<PathBuf>,
        #[command(flatten)]
        noise: NoiseOptions,
    },
}

#[derive(Args)]
struct Selection {
    /// Numbers or ranges: 7, 1..64 (64 included).
    #[arg(value_name = "DEVICE", required_unless_present = "all")]
    devices: Vec<DeviceRange>,
    /// Every device that is not revoked.
    #[arg(long, conflicts_with = "devices")]
    all: bool,
}

impl Selection {
    /// Returns the selected devices.
    fn selector(&self) -> DeviceSelector {
        if self.all { DeviceSelector::All } else { DeviceSelector::These(self.devices.clone()) }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Table.
    Human,
    /// Line of JSON.
    Json,
}

/// Reason why the command stops.
pub enum Stop {
    /// The operation failed; exit code 1.
    Failed(String),
    /// The command line or a file is wrong; exit code 2.
    Wrong(String),
    /// Standard output is closed or full.
    Output(std::io::Error),
}

/// Creates an error of a failed operation.
fn failure(error: impl ToString) -> Stop {
    Stop::Failed(error.to_string())
}

/// Runs `keys` for a fleet.
///
/// # Errors
/// [`Stop`] if the command line is wrong, the operation fails, or its output cannot be written.
pub async fn command(options: &KeysOptions, fleet: &Fleet) -> Result<ExitCode, Stop> {
    let request = match &options.command {
        Command::Add { devices, again } => Request::Add { devices: devices.clone(), again: *again },
        Command::List { .. } => Request::List,
        Command::Revoke { devices } => Request::Revoke(devices.clone()),
        Command::Rotate { selection, send: false } => Request::Rotate(selection.selector()),
        Command::Rotate { selection, send: true } => Request::Send(selection.selector()),
        Command::Export { selection, output, noise, .. } => {
            // The options for noise and output are checked before secrets are read.
            match output.as_ref().is_none_or(|output| is_record(output)) {
                true => drop(noise.for_records(fleet).map_err(Stop::Wrong)?),
                false => noise.check_for_lines().map_err(Stop::Wrong)?,
            }
            if let Some(output) = output.as_ref().filter(|output| output.symlink_metadata().is_ok()) {
                return Err(failure(FileError::Exists { path: output.clone() }));
            }
            Request::Export(selection.selector())
        }
    };
    let (answer, plaintext) = match request_or_perform(&request, options, fleet).await? {
        (Answer::Error(message), _) => return Err(Stop::Failed(message)),
        answered => answered,
    };
    let output_text = match (&options.command, answer) {
        (Command::List { format: Format::Json }, Answer::Listed(rows)) => {
            serde_json::json!({ "keys": rows }).to_string() + "\n"
        }
        (Command::List { .. }, Answer::Listed(rows)) => format_table(&rows),
        (Command::Export { output, flash, noise, .. }, Answer::Exported(text)) => {
            let noise = noise.for_records(fleet).ok().flatten();
            export_keys(output.as_deref(), flash.as_deref(), noise, &text)?
        }
        (command, Answer::Changed(rows)) => describe_changes(command, &rows),
        _ => return Err(failure("the answer of the server does not fit the request")),
    };
    print_text(&output_text)?;
    if plaintext {
        eprintln!(
            "note: the running server has no keys and does not verify device identities; only the file was used"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a text on standard output.
fn print_text(text: &str) -> Result<(), Stop> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Stop::Output)
}

/// Sends a request to the server, or performs it on the key store file if no server with keys runs. Waits
/// while the key store is locked, because a server may be starting or another command may be about to end.
/// Also returns true if a server without keys is running.
async fn request_or_perform(
    request: &Request,
    options: &KeysOptions,
    fleet: &Fleet,
) -> Result<(Answer, bool), Stop> {
    let (path, key_file) = fleet.security.store(&fleet.state);
    let sources = Sources { passphrase_file: options.passphrase_file.clone(), key_file };
    let mut unlock = None;
    let began = Instant::now();
    loop {
        let plaintext = match ask_server(request, &fleet.state).await? {
            Some(Answer::NoStore) => true,
            Some(answer) => return Ok((answer, false)),
            None => false,
        };
        let derivation = KeyStore::derivation(&path).map_err(failure)?;
        if derivation.is_none() {
            // The request is checked before a store is created.
            request.check().map_err(failure)?;
        }
        if derivation.is_none() && !matches!(request, Request::Add { .. }) {
            return Err(failure(KeyStoreError::Missing { path }));
        }
        // The user is asked for a passphrase only once.
        let unlock = match &unlock {
            Some(unlock) => unlock,
            None => unlock.insert(sources.unlock(&path, derivation).map_err(Stop::Wrong)?),
        };
        let store = match derivation {
            Some(_) => KeyStore::open(&path, unlock, SysRng),
            None => KeyStore::create(&path, unlock, Argon2Cost::RECOMMENDED, SysRng),
        };
        match store {
            Ok(mut store) => {
                return store
                    .perform(request, unix_seconds())
                    .map(|answer| (answer, plaintext))
                    .map_err(failure);
            }
            // Another command has created the store in the meantime, or is using it.
            Err(KeyStoreError::Locked { .. }) if began.elapsed() < STORE_WAIT_MAX => {
                tokio::time::sleep(STORE_RETRY_INTERVAL).await;
            }
            Err(error) if derivation.is_none() && path.exists() && began.elapsed() < STORE_WAIT_MAX => {
                tracing::debug!(%error, "key store created by another command");
            }
            Err(error) => return Err(failure(error)),
        }
    }
}

/// Sends a request to the server; `None` if no server runs.
async fn ask_server(request: &Request, state: &Path) -> Result<Option<Answer>, Stop> {
    let request = serde_json::to_string(request).map_err(failure)?;
    let mut lines = Vec::new();
    let keep_line = |line: &str| {
        lines.push(Zeroizing::new(line.to_owned()));
        Ok(())
    };
    let result = query(state, &format!("keys {request}"), keep_line).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::TimedOut => "; the request may still be performed, see `keys list`",
            _ => "",
        };
        failure(format!("{}: {error}{hint}", state.display()))
    });
    if result?.is_none() {
        return Ok(None);
    }
    let line =
        lines.first().ok_or_else(|| failure("the server closed the control socket without an answer"))?;
    match serde_json::from_str(line) {
        Ok(answer) => Ok(Some(answer)),
        Err(_) => Err(failure("this version does not know the answer of the server")),
    }
}

/// Returns the time in seconds since 1970.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Describes the change of keys to the user.
fn describe_changes(command: &Command, rows: &[KeyStatus]) -> String {
    let (action, consequence) = match command {
        Command::Add { .. } => ("added", "export writes their keys"),
        Command::Revoke { .. } => ("revoked", "their frames are rejected from now on"),
        Command::Rotate { send: true, .. } => (
            "rotated",
            "the server sends the new keys at the start of a connection and behind each round; the old ones are accepted until the new ones are used",
        ),
        Command::Rotate { .. } if rows.iter().all(|row| row.state == KeyState::Active) => (
            "rotated",
            "training is over, so the old keys are rejected from now on; export writes the new ones",
        ),
        _ => ("rotated", "the old keys are accepted until a round closes; export writes the new ones"),
    };
    let plural = if rows.len() == 1 { "device" } else { "devices" };
    let devices_text = ranges(rows.iter().map(|row| row.device));
    format!("{action} {} {plural}: {devices_text} ({consequence})\n", rows.len())
}

/// Formats a table of devices and the states of their keys.
fn format_table(rows: &[KeyStatus]) -> String {
    let mut text = format!(
        "{:>20} {:>6} {:<9} {:<20} {:<20} {}\n",
        "device", "epoch", "state", "created", "rotated", "revoked"
    );
    for row in rows {
        let state = match row.state {
            KeyState::Active => "active",
            KeyState::Rotating => "rotating",
            KeyState::Sending => "sending",
            KeyState::Revoked => "revoked",
        };
        let format_time = |time: Option<u64>| time.map_or("-".to_owned(), format_utc);
        let KeyStatus { device, epoch, created, rotated, revoked, .. } = *row;
        let (created, rotated, revoked) = (format_utc(created), format_time(rotated), format_time(revoked));
        text += &format!("{device:>20} {epoch:>6} {state:<9} {created:<20} {rotated:<20} {revoked}\n",);
    }
    text
}

/// Formats seconds since 1970 according to RFC 3339. The date is computed as in H. Hinnant's
/// "chrono-compatible low-level date algorithms".
fn format_utc(seconds: u64) -> String {
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, which are then split into eras of 400 years.
    let days_since_march_0 = days + 719_468;
    let (era, day_of_era) = (days_since_march_0 / 146_097, days_since_march_0 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Writes keys to a file, to records or to standard output, and returns a report for the user.
fn export_keys(
    output: Option<&Path>,
    flash: Option<&Path>,
    noise: Option<ProvisionedNoise>,
    text: &str,
) -> Result<String, Stop> {
    let keys = parse_keys(text).map_err(|_| failure("the answer of the server holds no keys"))?;
    let records = keys.into_iter().map(|(device, key)| Provision { device: device.0, key, noise });
    let (length, noise_text) = match noise {
        Some(noise) => (PROVISION_WITH_NOISE, format!("; noise multiplier {:.2}", multiplier(&noise))),
        None => (PROVISION, String::new()),
    };
    if let Some(directory) = flash {
        let directory_error = |error| failure(format!("{}: {error}", directory.display()));
        std::fs::create_dir_all(directory).map_err(directory_error)?;
        let path = |device| directory.join(format!("device-{device}.bin"));
        let records: Vec<Provision> = records.collect();
        // Refuses existing files before any record is written, so that in most cases either all records are
        // written or none.
        if let Some(existing) = records.iter().map(|r| path(r.device)).find(|p| p.symlink_metadata().is_ok())
        {
            return Err(failure(FileError::Exists { path: existing }));
        }
        for (index, record) in records.iter().enumerate() {
            write_record(&path(record.device), record).inspect_err(|_| {
                records.iter().take(index).for_each(|record| drop(std::fs::remove_file(path(record.device))));
            })?;
        }
        let (count, device_ranges) =
            (records.len(), ranges(records.iter().map(|record| DeviceId(record.device))));
        return Ok(format!(
            "{}: {count} records of {length} bytes, devices {device_ranges}{noise_text}\n",
            directory.display()
        ));
    }
    let output = output.unwrap_or(Path::new("-"));
    if output == Path::new("-") {
        print_text(text)?;
        return Ok(String::new());
    }
    let mut records: Vec<Provision> = records.collect();
    let name = output.display();
    if is_record(output) {
        return match (records.pop(), records.len()) {
            (Some(record), 0) => {
                write_record(output, &record)?;
                Ok(format!("{name}: the record of device {}, {length} bytes{noise_text}\n", record.device))
            }
            (_, remaining) => Err(Stop::Wrong(format!(
                "{name}: found {} devices, allowed for a record: one; see --flash",
                remaining + 1
            ))),
        };
    }
    create_private(output, text.as_bytes()).map_err(failure)?;
    let device_ranges = ranges(records.iter().map(|record| DeviceId(record.device)));
    Ok(format!("{name}: {} keys, devices {device_ranges}\n", records.len()))
}

/// Writes a provisioning record to a new file that only its owner can read.
fn write_record(path: &Path, record: &Provision) -> Result<(), Stop> {
    let mut bytes = Zeroizing::new([0; PROVISION_WITH_NOISE]);
    let length = record.write(bytes.as_mut_slice()).map_err(failure)?;
    create_private(path, bytes.get(..length).unwrap_or_default()).map_err(failure)
}

/// Returns true if a file of this name will contain a provisioning record.
fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "bin")
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    #[test]
    fn utc_matches_calendar() {
        // The expected values were computed with `date -u -d @N +%FT%TZ`.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(format_utc(seconds), expected);
        }
        // The largest time that a file can contain does not overflow.
        assert!(format_utc(u64::MAX).ends_with('Z'));
    }
}
