//! Tests of the commands `check` and `export`: consistent states are accepted, other states are reported in
//! one line, and the state directory is never changed.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{
    Scratch, ServerProcess, close_locked, read_line_with, run_program, spawn_program, stored_campaign,
};
use fedspan_aggregator::store::{FILE, KEY_FILE, OfflineStore, Store};
use getrandom::SysRng;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
const CHECKPOINT: TableDefinition<'_, (), &[u8]> = TableDefinition::new("checkpoint");
const JOURNAL: TableDefinition<'_, u64, &str> = TableDefinition::new("journal");
const ROUNDS: TableDefinition<'_, u32, &str> = TableDefinition::new("rounds");
const UPDATES: TableDefinition<'_, (u32, u16, u64), &[u8]> = TableDefinition::new("updates");

/// State directory of a campaign of five devices in its third round, which two devices have answered.
struct StateDir {
    scratch: Scratch,
    config: PathBuf,
    /// Representation after two rounds.
    representation: Vec<f64>,
}

impl StateDir {
    fn new() -> Self {
        let scratch = Scratch::new();
        let config = scratch.path().join("fleet.toml");
        let (configuration, representation) = stored_campaign::create_state(&scratch.path().join("state"));
        std::fs::write(&config, configuration).unwrap();
        Self { scratch, config, representation }
    }

    fn state_path(&self) -> PathBuf {
        self.scratch.path().join("state")
    }

    /// Runs a command on the state directory.
    fn run_command(&self, arguments: &[&str]) -> Output {
        let (command, options) = arguments.split_first().unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
        run_program(program.args([command, "--config"]).arg(&self.config).args(options))
    }

    fn serve_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-aggregator"));
        command.args(["serve", "--config"]).arg(&self.config);
        command
    }

    /// Returns the content of all files in the state directory.
    fn read_files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = std::fs::read_dir(self.state_path()).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
    }

    /// Runs a command that must fail with one line that contains all texts in `expected`.
    fn assert_refused(&self, arguments: &[&str], expected: &[&str]) {
        let files_before = self.read_files();
        let output = self.run_command(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(
            !stderr.contains("panicked") && expected.iter().all(|text| stderr.contains(text)),
            "{arguments:?}: {stderr}"
        );
        assert_eq!(
            stderr.lines().filter(|line| line.starts_with("fedspan-aggregator: ")).count(),
            1,
            "{stderr}"
        );
        // A server opens the database for writing, which changes some bytes.
        let mut files_after = self.read_files();
        if arguments[0] == "serve" {
            files_after
                .insert(self.state_path().join(FILE), files_before[&self.state_path().join(FILE)].clone());
        }
        assert!(files_after == files_before, "{arguments:?} changes something");
    }

    /// Returns the names next to the state directory, in order.
    fn sibling_names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.scratch.path()).unwrap();
        let mut sibling_names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        sibling_names.sort_unstable();
        sibling_names
    }

    /// Appends text to the configuration.
    fn append_configuration(&self, addition: &str) {
        let configuration = std::fs::read_to_string(&self.config).unwrap();
        std::fs::write(&self.config, configuration + addition).unwrap();
    }

    /// Changes the database directly, without the store.
    fn change_database(&self, change: impl FnOnce(&redb::WriteTransaction)) {
        let database = Database::open(self.state_path().join(FILE)).unwrap();
        let write = database.begin_write().unwrap();
        change(&write);
        write.commit().unwrap();
        close_locked(database);
    }
}

/// Returns a path for an export, also as text.
fn export_target(dir: &StateDir) -> (PathBuf, String) {
    let target = dir.scratch.path().join("out");
    let target_text = target.display().to_string();
    (target, target_text)
}

#[test]
fn check_accepts_consistent_state() {
    let dir = StateDir::new();
    let files_before = dir.read_files();
    let output = dir.run_command(&["check"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    for expected in [
        "every page has its checksum",
        "campaign 7: Train(2) of 4 is done; round id 3 is open among 5 devices, with 2 updates, which decrypt and count; 0 privacy accounts",
        "rounds: 2, the last has round id 2",
        "journal: 18 lines, 2 rounds",
        "arrivals.jsonl: 18 lines, all of them",
        "\nsound\n",
    ] {
        assert!(stdout.contains(expected), "{expected}: {stdout}");
    }
    assert!(dir.read_files() == files_before, "something was changed");
    // The journal file may have fewer lines than the database, and an incomplete last line. The next start
    // completes the file from the database.
    let path = dir.state_path().join("arrivals.jsonl");
    let journal = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &journal[..journal.len() - 5]).unwrap();
    let stdout = String::from_utf8(dir.run_command(&["check"]).stdout).unwrap();
    assert!(stdout.contains("17 lines, all but the last 1, which the next start adds"), "{stdout}");
}

#[test]
fn export_is_readable_by_other_programs() {
    let dir = StateDir::new();
    let files_before = dir.read_files();
    let (target, target_text) = export_target(&dir);
    let output = dir.run_command(&["export", "--out", &target_text]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(dir.read_files() == files_before, "something was changed");
    let npy = std::fs::read(target.join("representation.npy")).unwrap();
    let length = usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let header = std::str::from_utf8(&npy[10..10 + length]).unwrap();
    assert!(
        npy.starts_with(b"\x93NUMPY\x01\x00") && (10 + length).is_multiple_of(64) && header.ends_with('\n')
    );
    assert!(header.starts_with("{'descr': '<f8', 'fortran_order': False, 'shape': (6, 2), }"), "{header}");
    let values: Vec<f64> =
        npy[10 + length..].as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    assert_eq!(values, dir.representation);
    let bytes = std::fs::read(target.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor("0.representation").unwrap();
    let single: Vec<u8> = values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
    assert_eq!((tensors.len(), view.shape(), view.data()), (1, &[6, 2][..], single.as_slice()));
    let rounds = std::fs::read_to_string(target.join("rounds.jsonl")).unwrap();
    let rounds: Vec<serde_json::Value> =
        rounds.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rounds.len(), 2);
    assert_eq!((&rounds[1]["phase"], &rounds[1]["round"]), (&"training".into(), &2.into()));
    assert_eq!(rounds[1]["participants"], serde_json::json!([0, 1, 2, 3, 4]));
    let columns = (0..2).flat_map(|column| (0..6).map(move |row| 2 * row + column));
    let bytes: Vec<u8> = columns.flat_map(|index| values[index].to_le_bytes()).collect();
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(rounds[1]["representation"].as_str(), Some(digits.as_str()));
    assert_eq!(
        std::fs::read(target.join("arrivals.jsonl")).unwrap(),
        std::fs::read(dir.state_path().join("arrivals.jsonl")).unwrap()
    );
    assert!(std::fs::read_to_string(target.join("ledger.json")).unwrap().contains("\"devices\":{}"));
    assert!(std::fs::read_to_string(target.join("configuration.txt")).unwrap().contains("data.d = 6"));
    // Existing files are not overwritten.
    dir.assert_refused(
        &["export", "--out", &target_text],
        &["out: already exists; refusing to overwrite it"],
    );
}

/// An export must not remove other directories next to the target, even if they have the name of a temporary
/// directory.
#[test]
fn export_removes_only_its_own_directories() {
    let dir = StateDir::new();
    let (target, target_text) = export_target(&dir);
    let other_dir = dir.scratch.path().join("out.partial");
    std::fs::create_dir(&other_dir).unwrap();
    std::fs::write(other_dir.join("f"), b"x").unwrap();
    let names_before = dir.sibling_names();
    // The export fails after its first files, because a file exceeds the limit on file sizes.
    for out_path in ["out", "deep/er/out", "out.partial/out"] {
        let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, env!("CARGO_BIN_EXE_fedspan-aggregator"), "export", "--config"])
            .arg(&dir.config)
            .arg("--out")
            .arg(dir.scratch.path().join(out_path));
        let output = run_program(&mut command);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{out_path}: {stderr}");
        assert!(stderr.contains("arrivals.jsonl: File too large") && stderr.lines().count() == 1, "{stderr}");
        assert_eq!(dir.sibling_names(), names_before, "{out_path}");
        assert_eq!(std::fs::read_dir(&other_dir).unwrap().count(), 1, "{out_path}");
    }
    let output = dir.run_command(&["export", "--out", &target_text]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read(other_dir.join("f")).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(&target).unwrap().count(), 6);
    assert_eq!(dir.sibling_names(), ["fleet.toml", "out", "out.partial", "state"]);
}

#[test]
fn trailing_slash_of_target_is_ignored() {
    let dir = StateDir::new();
    for out_path in ["out/", "out2//", "new/out/."] {
        let target_text = format!("{}/{out_path}", dir.scratch.path().display());
        let output = dir.run_command(&["export", "--out", &target_text]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read_dir(&target_text).unwrap().count(), 6, "{out_path}");
        dir.assert_refused(
            &["export", "--out", &target_text],
            &["out", "already exists; refusing to overwrite it"],
        );
    }
    assert_eq!(dir.sibling_names(), ["fleet.toml", "new", "out", "out2", "state"]);
}

/// Change of a state directory that makes it unusable.
type Damage = fn(&StateDir);

/// Changes the bytes of a file.
fn overwrite_file(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Every command reports an unusable state in one line. No file is changed, and no campaign is begun.
#[test]
fn unusable_states_are_reported_in_one_line() {
    let cases: [(Damage, &[&str]); 12] = [
        (
            |dir| overwrite_file(&dir.state_path().join(FILE), |bytes| bytes.truncate(5000)),
            &["campaign.redb"],
        ),
        (
            |dir| overwrite_file(&dir.state_path().join(FILE), Vec::clear),
            &["campaign.redb: the file is empty"],
        ),
        (
            |dir| overwrite_file(&dir.state_path().join(FILE), |bytes| bytes[..64].fill(0x55)),
            &["campaign.redb"],
        ),
        (
            |dir| overwrite_file(&dir.state_path().join(KEY_FILE), |bytes| bytes[20] ^= 1),
            &["round.key", "missing or damaged"],
        ),
        (
            |dir| std::fs::remove_file(dir.state_path().join(KEY_FILE)).unwrap(),
            &["round.key", "missing or damaged"],
        ),
        (
            |dir| std::fs::write(dir.state_path().join("campaign.bin"), b"FEDSPAN1").unwrap(),
            &["campaign.bin: format 1"],
        ),
        (
            |dir| {
                dir.change_database(|write| {
                    drop(write.open_table(ABOUT).unwrap().insert("format", 6u64.to_le_bytes().as_slice()))
                })
            },
            &["campaign.redb: format 6, this version reads format 5"],
        ),
        (
            |dir| dir.change_database(|write| drop(write.open_table(UPDATES).unwrap().pop_first())),
            &["an update is missing"],
        ),
        (
            |dir| {
                let text = std::fs::read_to_string(&dir.config).unwrap();
                std::fs::write(&dir.config, text.replace("step_size = 0.25", "step_size = 0.5")).unwrap();
            },
            &["another configuration", "- algorithm.step_size = 0.25", "+ algorithm.step_size = 0.5"],
        ),
        // With these settings the stored updates would be rejected, or would have another weight.
        (
            |dir| dir.append_configuration("[limits]\nnorm = 0.001\n"),
            &[
                "another configuration (- stored, + given): - limits.norm = 10000.0, + limits.norm = 0.001; restore the lines",
            ],
        ),
        (
            |dir| dir.append_configuration("[limits]\nsamples = 2\n"),
            &[
                "another configuration (- stored, + given): - limits.samples = 100000, + limits.samples = 2; restore the lines",
            ],
        ),
        (
            |dir| dir.append_configuration("[limits]\nsamples = 2\nnorm = 1\n[stop]\nchange = 0.5\n"),
            &[
                "another configuration",
                "- limits.norm = 10000.0, + limits.norm = 1.0, - limits.samples = 100000, + limits.samples = 2, + stop.change = 0.5;",
            ],
        ),
    ];
    for (damage, expected) in cases {
        let dir = StateDir::new();
        damage(&dir);
        let (_, target_text) = export_target(&dir);
        dir.assert_refused(&["check"], expected);
        dir.assert_refused(&["serve"], expected);
        // `export` does not read the updates of the open round.
        let concerns_open_round = expected[0].contains("round.key") || expected[0].contains("an update");
        if !concerns_open_round {
            dir.assert_refused(&["export", "--out", &target_text], expected);
        }
        // `status` does not compare the configuration.
        if !concerns_open_round && !expected[0].contains("configuration") {
            dir.assert_refused(&["status"], expected);
        }
        if concerns_open_round {
            assert!(
                dir.run_command(&["status", "--format", "json"]).status.success()
                    && dir.run_command(&["export", "--out", &target_text]).status.success()
            );
        }
    }
}

/// After the first round has opened, the number of expected devices may grow, because no result depends on
/// the number.
#[test]
fn expected_devices_may_grow() {
    let dir = StateDir::new();
    let configuration = std::fs::read_to_string(&dir.config).unwrap();
    std::fs::write(&dir.config, configuration.replace("expected = 5", "expected = 7")).unwrap();
    let output = dir.run_command(&["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The journal file is written after the database. If the file has more lines, the database is an older copy
/// and is refused.
#[test]
fn database_older_than_journal_is_refused() {
    let dir = StateDir::new();
    let path = dir.state_path().join("arrivals.jsonl");
    let journal = std::fs::read_to_string(&path).unwrap();
    let last_line = journal.lines().last().unwrap();
    std::fs::write(&path, format!("{journal}{last_line}\n{last_line}\n")).unwrap();
    dir.assert_refused(&["serve"], &["arrivals.jsonl has 20 lines and the database 18"]);
    dir.assert_refused(&["check"], &["arrivals.jsonl: 20 lines, but the database has 18"]);
    // The database is also refused if its campaign could be replaced, because no round was opened.
    dir.change_database(|write| {
        drop(write.open_table(ABOUT).unwrap().insert("configuration", b"another".as_slice()));
        write.delete_table(CHECKPOINT).unwrap();
        drop(write.open_table(CHECKPOINT).unwrap());
        write.delete_table(UPDATES).unwrap();
        drop(write.open_table(UPDATES).unwrap());
    });
    dir.assert_refused(&["serve"], &["arrivals.jsonl has 20 lines and the database 18"]);
}

/// A journal that contradicts the stored campaign is a fault.
#[test]
fn contradicting_journal_is_a_fault() {
    let cases: [(Damage, &str); 7] = [
        (
            |dir| dir.change_database(|write| drop(write.open_table(JOURNAL).unwrap().remove(3))),
            "the journal lacks line 3",
        ),
        (
            |dir| dir.change_database(|write| drop(write.open_table(JOURNAL).unwrap().insert(3, "{}"))),
            "line 3 of the journal",
        ),
        (
            |dir| dir.change_database(|write| drop(write.open_table(JOURNAL).unwrap().pop_last())),
            "round id 3 has counted 1 devices, but 2 updates are stored",
        ),
        (
            |dir| dir.change_database(|write| drop(write.open_table(ROUNDS).unwrap().pop_last())),
            "round id 2 differs from the committed round",
        ),
        (
            |dir| {
                dir.change_database(|write| {
                    let mut rounds = write.open_table(ROUNDS).unwrap();
                    let line =
                        rounds.get(1).unwrap().unwrap().value().replace("\"exchange\":1", "\"exchange\":2");
                    rounds.insert(2, line.as_str()).unwrap();
                })
            },
            "the rounds: the stored representation differs from that of round id 2",
        ),
        (
            |dir| dir.change_database(|write| drop(write.open_table(ROUNDS).unwrap().insert(2, "{}"))),
            "round 2 cannot be read: missing field",
        ),
        (
            |dir| overwrite_file(&dir.state_path().join("arrivals.jsonl"), |bytes| bytes[2] = b'x'),
            "arrivals.jsonl: line 1 differs from the database",
        ),
    ];
    for (damage, expected) in cases {
        let dir = StateDir::new();
        damage(&dir);
        let output = dir.run_command(&["check"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{expected}: {stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
        assert!(!String::from_utf8(output.stdout).unwrap().contains("sound"));
    }
}

/// Returns a journal line of the database.
fn journal_line(dir: &StateDir, number: u64) -> String {
    let database = Database::open(dir.state_path().join(FILE)).unwrap();
    let transaction = database.begin_read().unwrap();
    let line = transaction.open_table(JOURNAL).unwrap().get(number).unwrap().unwrap().value().to_owned();
    close_locked((transaction, database));
    line
}

/// Enables the journal by removing `journal` from the configuration, or disables it.
fn set_journal(dir: &StateDir, journal: bool) {
    let configuration = std::fs::read_to_string(&dir.config).unwrap().replace("journal = false\n", "");
    std::fs::write(
        &dir.config,
        if journal { configuration } else { "journal = false\n".to_owned() + &configuration },
    )
    .unwrap();
}

/// A journal that was disabled for a while has a gap and no fault.
#[test]
fn disabled_journal_leaves_a_gap() {
    type JournalCheck = &'static [(bool, &'static [usize])];
    let cases: [(JournalCheck, &str); 8] = [
        // The gap is the end of one round and a whole second round.
        (&[(false, &[5, 1]), (true, &[2])], "a gap at round ids 3 to 4 (not kept)"),
        (&[(false, &[5, 1]), (true, &[5, 2])], "a gap at round ids 3 to 4 (not kept)"),
        // The gap is within one round, which continues with a journal and is committed.
        (&[(false, &[3]), (true, &[4])], "a gap at round id 3 (not kept)"),
        (&[(false, &[3]), (true, &[5, 2])], "a gap at round id 3 (not kept)"),
        (&[(false, &[5]), (true, &[1])], "a gap at round ids 3 to 4 (not kept)"),
        // There are two gaps, and the second one has not ended.
        (&[(false, &[3]), (true, &[5, 1]), (false, &[2])], "gaps at round ids 3, 4 (not kept)"),
        (&[(false, &[5])], "a gap at round ids 3 to 4 (not kept)"),
        // The journal was disabled while nothing happened, so there is no gap.
        (&[(false, &[2]), (true, &[5])], "journal: 24 lines, 3 rounds\n"),
    ];
    for (course, expected) in cases {
        let dir = StateDir::new();
        for (journal, counted) in course {
            stored_campaign::run_campaign(&dir.state_path(), *journal, counted);
        }
        set_journal(&dir, course.last().unwrap().0);
        let output = dir.run_command(&["check"]);
        let (stdout, stderr) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{course:?}: {stdout}");
        assert!(stdout.contains(expected), "{course:?}: {stdout}");
        assert_eq!(expected.contains("gap"), stdout.contains("gap"), "{course:?}: {stdout}");
    }
    // The journal was disabled from the first round on.
    let dir = StateDir::new();
    std::fs::remove_dir_all(dir.state_path()).unwrap();
    stored_campaign::run_campaign(&dir.state_path(), false, &[5, 5, 2]);
    let stdout = String::from_utf8(dir.run_command(&["check"]).stdout).unwrap();
    assert!(stdout.contains("journal: none is kept\n") && stdout.contains("\nsound\n"), "{stdout}");
    stored_campaign::run_campaign(&dir.state_path(), true, &[5, 2]);
    let stdout = String::from_utf8(dir.run_command(&["check"]).stdout).unwrap();
    assert!(
        stdout.contains("a gap at round ids 1 to 3 (not kept)") && stdout.contains("\nsound\n"),
        "{stdout}"
    );
}

/// A gap does not hide a fault that the gap does not explain.
#[test]
fn gap_hides_no_other_fault() {
    type JournalCheck = [(bool, &'static [usize]); 2];
    fn replace_in_line(dir: &StateDir, number: u64, from: &str, to: &str) {
        let line = journal_line(dir, number);
        assert!(line.contains(from), "{line}");
        dir.change_database(|write| {
            drop(write.open_table(JOURNAL).unwrap().insert(number, line.replace(from, to).as_str()))
        });
    }
    // Lines 0 to 17 are from before the gap; line 18 is that of the server that resumed.
    let (committed_gap, partial_gap) =
        (&[(false, &[5, 1][..]), (true, &[5, 2])], &[(false, &[3][..]), (true, &[5, 2])]);
    let cases: [(&JournalCheck, Damage, &str); 9] = [
        (
            committed_gap,
            |dir| replace_in_line(dir, 18, "\"after\":4", "\"after\":2"),
            "it resumes after round id 2, but round id 3 was opened before",
        ),
        (
            committed_gap,
            |dir| replace_in_line(dir, 20, "\"device\":2", "\"device\":1"),
            "device 1 counted again in round id 4",
        ),
        (
            committed_gap,
            |dir| replace_in_line(dir, 23, "[0,1,2,3,4]", "[0,2,1,3,4]"),
            "round id 4 was committed with other devices than it counted",
        ),
        (
            committed_gap,
            |dir| replace_in_line(dir, 23, "\"round\":4", "\"round\":3"),
            "round id 4 was committed but has no entry",
        ),
        (
            partial_gap,
            |dir| replace_in_line(dir, 21, "[0,1,2,3,4]", "[0,2,1,3,4]"),
            "round id 3 was committed with other devices than it counted",
        ),
        (
            partial_gap,
            |dir| replace_in_line(dir, 20, "\"device\":4", "\"device\":2"),
            "round id 3 was committed with other devices than it counted",
        ),
        (
            partial_gap,
            |dir| {
                let line = journal_line(dir, 21);
                let start = line.find("\"representation\":\"").unwrap() + 18;
                let (old_digits, new_digit) =
                    (&line[start..start + 8], if &line[start..start + 8] == "00000000" { "1" } else { "0" });
                replace_in_line(dir, 21, old_digits, &new_digit.repeat(8));
            },
            "the stored representation differs from that of the last commit",
        ),
        (
            committed_gap,
            |dir| dir.change_database(|write| drop(write.open_table(JOURNAL).unwrap().pop_last())),
            "round id 5 has counted 1 devices, but 2 updates are stored",
        ),
        (
            committed_gap,
            |dir| {
                dir.change_database(|write| drop(write.open_table(ROUNDS).unwrap().remove(4)));
            },
            "round id 4 differs from the committed round",
        ),
    ];
    for (course, damage, expected) in cases {
        let dir = StateDir::new();
        for (journal, counted) in course {
            stored_campaign::run_campaign(&dir.state_path(), *journal, counted);
        }
        assert_eq!(dir.run_command(&["check"]).status.code(), Some(0), "before: {expected}");
        damage(&dir);
        let output = dir.run_command(&["check"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{expected}: {stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    // A journal without its end is a fault if the configuration keeps a journal.
    let dir = StateDir::new();
    stored_campaign::run_campaign(&dir.state_path(), false, &[5, 1]);
    dir.assert_refused(
        &["check"],
        &["the journal: it ends in round id 3", "round id 4 was opened", "journal = false"],
    );
    set_journal(&dir, false);
    assert_eq!(dir.run_command(&["check"]).status.code(), Some(0));
    // A disabled journal may lack updates that are stored, but may not contain updates that are not.
    let dir = StateDir::new();
    dir.change_database(|write| {
        drop(write.open_table(UPDATES).unwrap().pop_last());
        drop(write.open_table(ABOUT).unwrap().insert("counted", 0u64.to_le_bytes().as_slice()));
    });
    set_journal(&dir, false);
    dir.assert_refused(&["check"], &["round id 3 has counted 2 devices, but 0 updates are stored"]);
}

/// The message for a damaged journal file names the remedy: after the file is moved away, the next start
/// rewrites it from the database.
#[test]
fn damaged_journal_file_is_rewritten_once_moved_away() {
    let damages: [(Damage, &str); 3] = [
        (
            |dir| overwrite_file(&dir.state_path().join("arrivals.jsonl"), |bytes| bytes[2] = b'x'),
            "line 1 differs from",
        ),
        (
            |dir| overwrite_file(&dir.state_path().join("arrivals.jsonl"), |bytes| bytes[2] = 0xff),
            "not UTF-8",
        ),
        (
            |dir| overwrite_file(&dir.state_path().join("arrivals.jsonl"), |bytes| bytes.extend(b"{}\n")),
            "19 lines, but the database has 18",
        ),
    ];
    for (damage, expected) in damages {
        let dir = StateDir::new();
        let path = dir.state_path().join("arrivals.jsonl");
        let original = std::fs::read(&path).unwrap();
        damage(&dir);
        let remedy = "move it away; the next start rewrites it from the database";
        dir.assert_refused(&["check"], &["arrivals.jsonl", expected, remedy]);
        std::fs::rename(&path, path.with_extension("old")).unwrap();
        ServerProcess::start(dir.serve_command().stderr(Stdio::null())).stop_with("-INT");
        let rewritten = std::fs::read(&path).unwrap();
        assert!(rewritten.starts_with(&original), "the journal was not rewritten completely");
        assert_eq!(dir.run_command(&["check"]).status.code(), Some(0));
    }
}

/// The message names only the settings that differ, the directory and the remedies.
#[test]
fn only_differing_settings_are_named() {
    let dir = StateDir::new();
    let configuration = std::fs::read_to_string(&dir.config).unwrap();
    let append_to_configuration =
        |addition: &str| std::fs::write(&dir.config, configuration.clone() + addition).unwrap();
    append_to_configuration("[aggregation]\nrule = \"geometric-median\"\n");
    let state = dir.state_path().display().to_string();
    let (_, target_text) = export_target(&dir);
    for command in [&["check"][..], &["export", "--out", &target_text], &["serve"]] {
        let output = dir.run_command(command);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        let named =
            "- aggregation.rule = \"mean\", + aggregation.rule = \"geometric-median\"; restore the lines";
        let line = stderr.lines().find(|line| line.contains(named));
        assert!(line.is_some_and(|line| line.contains(&state)), "{command:?}: {stderr}");
    }
}

/// A setting that the file does not set keeps its stored value, even if the default has changed. The server
/// logs one line about it.
#[test]
fn unset_setting_keeps_stored_value() {
    let dir = StateDir::new();
    let configuration = std::fs::read_to_string(&dir.config).unwrap();
    assert!(configuration.starts_with("seed = 3\n"), "{configuration}");
    std::fs::write(&dir.config, configuration.replace("seed = 3\n", "")).unwrap();
    let check = dir.run_command(&["check"]);
    let stdout = String::from_utf8(check.stdout).unwrap();
    assert_eq!(check.status.code(), Some(0), "{stdout}");
    let line = "settings of the campaign that the file does not set: seed = 3\n";
    assert!(stdout.contains(line), "{stdout}");
    let (target, target_text) = export_target(&dir);
    assert_eq!(dir.run_command(&["export", "--out", &target_text]).status.code(), Some(0));
    let exported = std::fs::read_to_string(target.join("configuration.txt")).unwrap();
    assert!(exported.starts_with("seed = 3\n"), "{exported}");

    let log = dir.scratch.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    ServerProcess::start(dir.serve_command().env("NO_COLOR", "1").stderr(file)).stop_with("-INT");
    let log = std::fs::read_to_string(&log).unwrap();
    let settings_line: Vec<&str> = log.lines().filter(|line| line.contains("does not set")).collect();
    let [settings_line] = settings_line.as_slice() else { panic!("{log}") };
    let expected = "resuming with stored settings that the file does not set settings=seed = 3";
    assert!(settings_line.contains(expected), "{settings_line}");
}

/// A server waits for a command that reads the directory, but not for another server.
#[test]
fn server_waits_for_check() {
    let dir = StateDir::new();
    let reading = OfflineStore::open(&dir.state_path()).unwrap().unwrap();
    let mut server = spawn_program(dir.serve_command().stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut log = BufReader::new(server.stderr.take().unwrap());
    read_line_with(&mut log, "waiting for a check or an export");
    close_locked(reading);
    let _server = ServerProcess::await_listening(server);
    let output = dir.run_command(&["serve"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("another server is running on this state directory"), "{stderr}");
    assert!(!stderr.contains("waiting"), "{stderr}");
}

#[test]
fn running_server_and_missing_campaign_are_reported() {
    let dir = StateDir::new();
    let store = Store::open(&dir.state_path(), SysRng).unwrap();
    let (_, target_text) = export_target(&dir);
    dir.assert_refused(&["check"], &["another server is running on this state directory"]);
    dir.assert_refused(
        &["export", "--out", &target_text],
        &["another server is running on this state directory"],
    );
    close_locked(store);
    assert_eq!(dir.run_command(&["check"]).status.code(), Some(0));
    std::fs::remove_dir_all(dir.state_path()).unwrap();
    for command in [&["check"][..], &["export", "--out", &target_text]] {
        let output = dir.run_command(command);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains("no campaign was begun here"), "{stderr}");
    }
    assert!(!dir.state_path().exists(), "a command created the state directory");
}

/// A read-only directory can be checked, but no server can use it. The test is skipped for root, whom
/// permissions do not restrict.
#[test]
fn read_only_state_can_be_checked() {
    use std::os::unix::fs::PermissionsExt;
    let dir = StateDir::new();
    let modes = |file: u32, directory: u32| {
        for path in dir.read_files().keys() {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(file)).unwrap();
        }
        std::fs::set_permissions(dir.state_path(), std::fs::Permissions::from_mode(directory)).unwrap();
    };
    modes(0o400, 0o500);
    let may_everything = std::fs::write(dir.state_path().join("probe"), b"").is_ok();
    let _ = std::fs::remove_file(dir.state_path().join("probe"));
    assert_eq!(dir.run_command(&["check"]).status.code(), Some(0));
    if !may_everything {
        dir.assert_refused(&["serve"], &["ermission denied"]);
    }
    modes(0o600, 0o700);
}
