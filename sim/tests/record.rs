//! Tests of command `record`: a board's lines become a recording, on which a scenario trains.

use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fedspan_client::features::{FEATURES, WINDOW};
use serial2::SerialPort;

use crate::common::{empty_directory, exit_code, random_numbers, run_program, stderr_text};

/// Lines of a fake board at rest or in motion, with a counter: the mean of three axes depends on the label and the wearer.
fn board(label: &str, wearer: usize, samples: usize) -> String {
    let mean = if label == "walk" { 2.0 } else { -1.0 };
    let noise = random_numbers(3 * samples, wearer as u64);
    let line = |(number, noise): (usize, &[f64])| {
        let [x, y, z] = [0, 1, 2].map(|axis| mean * (axis as f64 + wearer as f64 / 10.0) + noise[axis]);
        format!("{number},{x:.4},{y:.4},{z:.4}\r\n")
    };
    noise.chunks(3).enumerate().map(line).collect()
}

const NAMES: &str = "n,ax,ay,az\r\n";

/// Starts the recorder with its standard input open.
fn start(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fedspan-sim"));
    command.current_dir(folder).arg("record").args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the recorder on lines from standard input.
fn record(folder: &Path, lines: &[u8], arguments: &[&str]) -> Output {
    let mut child = start(folder, &[&["--from", "-"], arguments].concat());
    // The recorder may end before it has read all lines.
    let _ = child.stdin.take().unwrap().write_all(lines);
    child.wait_with_output().unwrap()
}

/// Text of a recording.
fn content(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("r.csv")).unwrap()
}

/// Waits until a recording has so many rows.
fn wait_for_rows(folder: &Path, rows: usize) {
    while std::fs::read_to_string(folder.join("r.csv")).map_or(0, |text| text.lines().count()) <= rows {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The whole path: samples of six wearers from a board, over a pipe, to an accuracy.
#[test]
fn recording_of_a_fleet_is_trained_on() {
    let folder = empty_directory("record-fleet");
    for wearer in 1..=6 {
        let lines = ["rest", "walk"].map(|label| board(label, wearer, 40)).concat();
        let name = format!("w{wearer}");
        let arguments = ["--label", "rest,walk", "--samples", "40", "--wearer", &name, "--out", "r.csv"];
        let output = record(
            &folder,
            [NAMES, &lines].concat().as_bytes(),
            &[&arguments[..], &["--counter", "n"]].concat(),
        );
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        assert!(stderr_text(&output).contains("walk: 40 rows\n"), "{}", stderr_text(&output));
    }
    let text = content(&folder);
    assert!(text.starts_with("wearer,label,n,ax,ay,az\nw1,rest,0,"), "{text}");
    assert_eq!(text.lines().count(), 1 + 6 * 80);

    let proposed = run_program(&folder, &["init", "r.csv", "--yes"]);
    assert_eq!(exit_code(&proposed), 0, "{}", stderr_text(&proposed));
    let scenario = std::fs::read_to_string(folder.join("r.toml")).unwrap();
    assert!(
        scenario.contains("client = \"wearer\"") && scenario.contains("target = \"label\""),
        "{scenario}"
    );
    let gate = "\n[expect]\naccuracy = \">= 0.9\"\n";
    std::fs::write(folder.join("r.toml"), scenario + gate).unwrap();
    let run =
        run_program(&folder, &["run", "r.toml", "--set", "model.k=2", "--set", "data.features=[\"a?\"]"]);
    assert_eq!(exit_code(&run), 0, "{}", stderr_text(&run));
}

/// Over a serial line, the first line may have begun before the recorder attached.
#[test]
fn lines_of_a_serial_port_are_recorded_until_enough() {
    let folder = empty_directory("record-serial");
    let (board_end, recorder_end) = SerialPort::pair().unwrap();
    let port = std::fs::read_link(format!("/proc/self/fd/{}", recorder_end.as_raw_fd())).unwrap();
    let port = port.to_str().unwrap();
    let arguments =
        ["--serial", port, "--label", "walk", "--samples", "30", "--columns", "n,ax,ay,az", "--out", "r.csv"];
    let child = start(&folder, &[&arguments[..], &["--counter", "n"]].concat());
    board_end.write_all(b"7,0.1,0.2,0.3\n").unwrap();
    for line in board("walk", 1, 30).lines() {
        board_end.write_all(line.as_bytes()).unwrap();
        board_end.write_all(b"\n").unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert_eq!(content(&folder).lines().nth(1).unwrap().split(',').nth(2), Some("0"));
    assert_eq!(content(&folder).lines().count(), 31);
}

#[test]
fn lines_of_a_connection_are_recorded_until_interrupted() {
    let folder = empty_directory("record-tcp");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let child = start(&folder, &["--tcp", &address, "--label", "walk", "--out", "r.csv"]);
    let (mut bridge, _) = listener.accept().unwrap();
    bridge.write_all([NAMES, NAMES, &board("walk", 1, 20), "20,1,"].concat().as_bytes()).unwrap();
    wait_for_rows(&folder, 20);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert_eq!(content(&folder).lines().count(), 21);
}

/// A killed recorder loses nothing that arrived, and leaves complete rows.
#[test]
fn rows_are_in_the_file_when_the_recorder_is_killed() {
    let folder = empty_directory("record-killed");
    let mut child = start(&folder, &["--from", "-", "--label", "walk", "--out", "r.csv"]);
    let mut lines = child.stdin.take().unwrap();
    lines.write_all([NAMES, &board("walk", 1, 20), "20,1,"].concat().as_bytes()).unwrap();
    wait_for_rows(&folder, 20);
    child.kill().unwrap();
    child.wait().unwrap();
    drop(lines);
    let output = record(&folder, board("walk", 1, 20).as_bytes(), &["--label", "walk", "--out", "r.csv"]);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    assert_eq!(content(&folder).lines().count(), 41);
}

#[test]
fn refused_lines_and_gaps_are_reported_with_their_numbers() {
    let folder = empty_directory("record-refused");
    let lines = b"n,x,t\n0,1.5,0\n1,nan,20\n1,2\n2,\xff,40\n2,2.5,40\n# remark\n5,3.5,100\n0,4.5,0\n1,5.5";
    let arguments = ["--label", "a", "--out", "r.csv", "--counter", "n", "--time", "t", "--rate", "50"];
    let output = record(&folder, lines, &arguments);
    assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
    let reported = stderr_text(&output);
    for line in [
        "line 3 refused: column \"x\": found \"nan\"",
        "line 4 refused: found 2 columns, expected 3",
        "line 5 refused: found bytes that are no text",
        "line 6: 1 samples are missing before it",
        "line 8: 2 samples are missing before it",
        "line 9: counter or time went from 5 to 0",
        "line 10 refused: found a part of a line",
        "a: 4 rows, 3 samples missing, 1 times back, 4 lines refused",
    ] {
        assert!(reported.contains(line), "{line:?} is not in {reported}");
    }
    assert_eq!(
        content(&folder),
        "wearer,label,n,x,t\n1,a,0,1.5,0\n1,a,2,2.5,40\n1,a,5,3.5,100\n1,a,0,4.5,0\n"
    );
    let slow: String =
        ["n,x,t\n".to_owned()].into_iter().chain((0..9).map(|n| format!("{n},1,{}\n", 25 * n))).collect();
    let output = record(&folder, slow.as_bytes(), &arguments);
    assert!(
        stderr_text(&output).contains("warning: 40.0000 samples a second arrived, --rate says 50"),
        "{}",
        stderr_text(&output)
    );
}

#[test]
fn motion_is_recorded_as_the_features_of_windows() {
    let folder = empty_directory("record-motion");
    let values = random_numbers(6 * 3 * WINDOW, 1);
    let rows: Vec<String> =
        values.chunks(6).map(|row| row.iter().map(f64::to_string).collect::<Vec<_>>().join(",")).collect();
    let lines = |skipped: Option<usize>| -> String {
        let numbered = rows.iter().enumerate().filter(|(number, _)| Some(*number) != skipped);
        std::iter::once("n,ax,ay,az,gx,gy,gz\n".to_owned())
            .chain(numbered.map(|(number, row)| format!("{number},{row}\n")))
            .collect()
    };
    let arguments = ["--label", "a", "--out", "r.csv", "--motion", "--counter", "n"];
    // Windows of 100 samples, which overlap by half; the 51st sample is missing in the second recording.
    for (skipped, expected) in [(None, 5), (Some(50), 8)] {
        let output = record(&folder, lines(skipped).as_bytes(), &arguments);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        assert_eq!(content(&folder).lines().count(), 1 + expected);
    }
    assert!(content(&folder).lines().all(|line| line.split(',').count() == 2 + FEATURES - 1));
    let output = record(&folder, lines(None).as_bytes(), &["--label", "a", "--out", "other.csv", "--motion"]);
    assert_eq!(exit_code(&output), 2);
    assert!(stderr_text(&output).contains("--motion: found 7 columns"), "{}", stderr_text(&output));
    assert!(!folder.join("other.csv").exists());
}

/// Wrong options and other files change nothing.
#[test]
fn wrong_calls_are_refused_and_write_nothing() {
    let folder = empty_directory("record-wrong");
    std::fs::write(folder.join("other.csv"), "wearer,label,x\n1,a,2\n").unwrap();
    let base = ["--label", "a", "--out", "r.csv"];
    let other = ["--label", "a", "--out", "other.csv"];
    let lines = "x,y\n1,2\n";
    for (code, arguments, message) in [
        (2, vec!["--out", "r.csv"], "--label"),
        (2, vec!["--label", "a,b", "--out", "r.csv"], "several labels need --samples or --seconds"),
        (2, vec!["--label", "NA", "--out", "r.csv"], "missing value"),
        (2, [&base[..], &["--wearer", ""]].concat(), "missing value"),
        (2, [&base[..], &["--time", "x"]].concat(), "--rate"),
        (2, [&base[..], &["--seconds", "3"]].concat(), "--from"),
        (2, [&base[..], &["--counter", "z"]].concat(), "--counter z: the board has the columns x,y"),
        (2, [&base[..], &["--columns", "x,x"]].concat(), "twice"),
        (2, [&base[..], &["--columns", "x,label"]].concat(), "writes itself"),
        (1, [&base[..], &["--columns", "x"]].concat(), "found the columns x,y, expected x"),
        (
            2,
            [&other[..], &["--columns", "x,y"]].concat(),
            "found the columns x in the file, and x,y in this recording",
        ),
        (1, vec!["--label", "a", "--out", "/dev/full"], "No space left"),
        (1, other.to_vec(), "no row was recorded, 2 lines were refused"),
    ] {
        let output = record(&folder, lines.as_bytes(), &arguments);
        assert_eq!(exit_code(&output), code, "{arguments:?}: {}", stderr_text(&output));
        assert!(stderr_text(&output).contains(message), "{arguments:?}: {}", stderr_text(&output));
    }
    for (from, message) in
        [("nowhere.txt", "nowhere.txt: No such file"), ("/dev/null", "no row was recorded")]
    {
        let arguments = [&["record", "--from", from][..], &base].concat();
        assert!(stderr_text(&run_program(&folder, &arguments)).contains(message));
    }
    let output = record(&folder, lines.as_bytes(), &[&base[..], &["--samples", "2"]].concat());
    assert_eq!(exit_code(&output), 1);
    assert!(stderr_text(&output).contains("ended before all samples were there; r.csv has the 1 row"));
    let files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    assert_eq!(std::fs::read_to_string(folder.join("other.csv")).unwrap(), "wearer,label,x\n1,a,2\n");
}
