//! Tests of hostile files, which decompress to more data than allowed, contain more clients or classes than
//! allowed, or are not regular files. The tests check the amount of data that is read, which error messages
//! report, but no durations.

use std::io::Write;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::common::table::{Packing, Writing};
use crate::common::{
    REST, assert_contains_all, data_error_message, empty_directory, exit_code, run_program, stderr_text,
};
use fedspan_sim_core::data::table::{self, Columns};

/// Columns of a table with clients, numeric targets and the given features.
fn columns(features: &[&str]) -> Columns {
    Columns {
        client: Some("who".to_owned()),
        target: "y".to_owned(),
        features: features.iter().map(|name| (*name).to_owned()).collect(),
        classification: false,
        delimiter: None,
        decimal: None,
        not_missing: Vec::new(),
    }
}

/// Asserts that a table is refused and returns the error message.
fn refusal_message(bytes: &[u8], columns: &Columns) -> String {
    let reported = table::parse(bytes, "t.csv", columns).unwrap_err().to_string();
    assert_eq!(reported.lines().count(), 1, "{reported}");
    reported
}

/// A gzip file of about four megabytes with 4096 members, which would decompress to four gibibytes, is read
/// only up to the limit.
#[test]
fn gzip_bombs_are_read_up_to_their_bound() {
    let gzip = Writing { packing: Packing::Gzip, ..Writing::PLAIN };
    for block in ["\0", "1,2,3,4\n", "\n", " ", ",", "\""] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(block.repeat((1 << 20) / block.len()).as_bytes()).unwrap();
        let member = encoder.finish().unwrap();
        let bomb = [gzip.compress(b"who,a,b,y\n"), member.repeat(4096)].concat();
        let reported = refusal_message(&bomb, &columns(&["a", "b"]));
        assert_contains_all(&reported, &["t.csv", "after decompression"]);
        let read: usize = reported.split(' ').filter_map(|word| word.parse().ok()).next_back().unwrap();
        // The limit is 64 mebibytes, or 200 times the bytes read, plus one member.
        assert!(read <= (65 * member.len()).max(bomb.len() / 50), "{reported}, of {} bytes", bomb.len());
    }
}

#[test]
fn client_and_class_limits_apply_while_reading() {
    let mut text = String::from("who,a,y\n");
    for client in 0..1_000_000 {
        text += &format!("c{client},1,2\n");
    }
    let reported = refusal_message(text.as_bytes(), &columns(&["a"]));
    assert_contains_all(&reported, &["t.csv: line 100002, column who", "100000"]);
    let classes = Columns { target: "who".to_owned(), client: None, classification: true, ..columns(&["a"]) };
    assert_contains_all(&refusal_message(text.as_bytes(), &classes), &["line 258, column who", "256"]);
}

#[test]
fn too_many_columns_are_refused() {
    let table = |count: usize| {
        let names: Vec<String> = (0..count).map(|index| format!("f{index}")).collect();
        format!("who,y,{}\n1,2{}\n1,2{}\n", names.join(","), ",3".repeat(count), ",4".repeat(count))
    };
    assert_contains_all(
        &refusal_message(table(1_000_000).as_bytes(), &columns(&["*"])),
        &["1000002 columns", "131072"],
    );
    assert_contains_all(
        &refusal_message(table(100_000).as_bytes(), &columns(&["*"])),
        &["data.features", "100000", "65535"],
    );
    let many_names: Vec<String> = (0..100_000).map(|index| format!("f{index}")).collect();
    let many_names: Vec<&str> = many_names.iter().map(String::as_str).collect();
    assert_contains_all(
        &refusal_message(table(100_000).as_bytes(), &columns(&many_names)),
        &["data.features", "100000", "65535"],
    );
    let largest = table::parse(table(65_535).as_bytes(), "t.csv", &columns(&["*"])).unwrap();
    assert_eq!(largest.features.len(), 65_535);
    // With the constant feature, samples have one value more than allowed.
    let folder = empty_directory("hostile-columns");
    std::fs::write(folder.join("t.csv"), table(65_535)).unwrap();
    let data = "kind = \"csv\"\npath = \"t.csv\"\nclient = \"who\"\ntarget = \"y\"\nfeatures = \"*\"\n";
    assert_contains_all(
        &data_error_message(&folder, data),
        &["t.csv", "65535 features plus the constant 1", "at most 65534"],
    );
}

/// Pipes and device files are refused: opening a pipe without a writer would block, and a device file never
/// ends.
#[cfg(unix)]
#[test]
fn non_regular_files_are_refused() {
    let folder = empty_directory("hostile-kinds");
    std::fs::create_dir(folder.join("directory")).unwrap();
    std::os::unix::fs::symlink("round", folder.join("about")).unwrap();
    std::os::unix::fs::symlink("about", folder.join("round")).unwrap();
    assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
    std::fs::write(folder.join("scenario.toml"), format!("[data]\nkind = \"digits\"\n{REST}")).unwrap();
    std::fs::write(
        folder.join("trace.toml"),
        format!("[data]\nkind = \"digits\"\n{REST}[fleet]\nspeed = \"trace\"\ntrace = \"none\"\n"),
    )
    .unwrap();
    let csv = "data={ kind = \"csv\", path = \"FILE\", client = \"c\", target = \"y\", features = \"*\" }";
    for (file, expected_part) in [
        ("pipe", "a pipe"),
        ("directory", "a directory"),
        ("/dev/zero", "a device"),
        ("/dev/urandom", "a device"),
        ("round", "symbolic links"),
        ("nowhere", "No such file"),
    ] {
        let leaf = "data={ kind = \"leaf\", path = \"FILE\" }";
        for (scenario, set) in [
            ("scenario.toml", csv),
            ("scenario.toml", "data={ kind = \"npz\", path = \"FILE\" }"),
            ("scenario.toml", leaf),
            ("scenario.toml", "data={ kind = \"leaf\", path = \"scenario.toml\", test_path = \"FILE\" }"),
            ("scenario.toml", "data={ kind = \"idx\", images = \"FILE\", labels = \"FILE\" }"),
            ("scenario.toml", "model.init=\"npy:FILE\""),
            ("trace.toml", "fleet.trace=\"FILE\""),
            ("", ""),
        ] {
            if file == "directory" && set == leaf || set.contains("test_path") {
                continue;
            }
            let set = set.replace("FILE", file);
            let arguments = match scenario {
                "" => vec!["run", file],
                _ => vec!["run", scenario, "--set", &set],
            };
            if scenario.is_empty() && ["round", "nowhere"].contains(&file) {
                continue;
            }
            let output = run_program(&folder, &arguments);
            let reported = stderr_text(&output);
            assert_eq!((exit_code(&output), reported.lines().count()), (2, 1), "{arguments:?}: {reported}");
            assert_contains_all(&reported, &[file, expected_part]);
        }
    }
}

/// Traces are tables and are read in the same encodings.
#[test]
fn traces_are_read_in_all_table_encodings() {
    use crate::common::table::Encoding;
    let folder = empty_directory("hostile-trace");
    let scenario = "[data]\nkind = \"linear-regression\"\nclients = 2\nd = 4\nk = 2\nsamples = 8\n[model]\nk = 2\n\
                    [algorithm]\nname = \"fedrep\"\nrounds = 2\nstep_size = 0.1\n[fleet]\nspeed = \"trace\"\ntrace = \"t.csv\"\n";
    std::fs::write(folder.join("my.toml"), scenario).unwrap();
    let mut times = Vec::new();
    for encoding in [Encoding::Utf8, Encoding::Utf8Mark, Encoding::Utf16Little, Encoding::Utf16Big] {
        let writing = Writing { encoding, packing: Packing::Gzip, ..Writing::PLAIN };
        std::fs::write(
            folder.join("t.csv"),
            writing.compress(&writing.encode_text("client,time\n0,1.5\n1,2.5\n")),
        )
        .unwrap();
        let output = run_program(&folder, &["run", "my.toml", "--format", "json"]);
        assert_eq!(exit_code(&output), 0, "{}", stderr_text(&output));
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        times.push(summary["time"]["simulated"].as_f64().unwrap());
    }
    assert_eq!(times, [times[0]; 4]);
}
