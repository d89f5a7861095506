//! Tests of invalid inputs and outputs: the error is one line that names file and tensor, and neither an
//! output nor temporary files remain.

use std::path::{Path, PathBuf};

use fedspan_adapters::files::{AdapterError, Dtype, RoundKind, average};

use crate::common::{Adapter, DOWN, Folder, SAVED, UP};

/// Valid base and clients of an up round.
fn valid() -> (Adapter, Vec<Adapter>) {
    let base = Adapter::random(Dtype::F32, 1, 4, 30, 10);
    let clients = (1..4).map(|seed| base.trained(RoundKind::Up, seed)).collect();
    (base, clients)
}

/// Folder in which `change` modifies client 1.
fn changed(change: impl FnOnce(&mut Adapter)) -> Folder {
    let (base, mut clients) = valid();
    change(&mut clients[1]);
    Folder::new(&base, &clients)
}

/// Asserts that an up round fails with an error text that contains all texts in `expected`, and leaves no
/// files.
fn refused(folder: &Folder, expected: &[&str]) {
    refused_as(folder, RoundKind::Up, None, expected);
}

/// Asserts that a round of this kind with these samples fails, like [`refused`].
fn refused_as(folder: &Folder, round: RoundKind, samples: Option<&[u64]>, expected: &[&str]) {
    let before = folder.names();
    let error = folder.average(round, samples).expect_err(&expected.join(" "));
    let text = error.to_string();
    for part in expected {
        assert!(text.contains(part), "{text:?} has no {part:?}");
    }
    assert!(!text.contains('\n') && text.len() < 1500, "{text}");
    assert!(error.is_invalid_input(), "{text}");
    assert_eq!(folder.names(), before, "{text}");
}

#[test]
fn client_that_does_not_fit_base_is_refused() {
    refused(
        &changed(|one| one.add(UP, &[10, 3], 7)),
        &["1.safetensors", "q_proj.lora_B", "rank 3", "expected 4"],
    );
    refused(&changed(|one| one.add(UP, &[11, 4], 7)), &["1.safetensors", UP, "[11, 4]", "[10, 4]"]);
    refused(&changed(|one| one.add(SAVED, &[30], 7)), &["1.safetensors", SAVED, "[30]"]);
    let missing = changed(|one| drop(one.tensors.remove(SAVED)));
    refused(&missing, &["1.safetensors", SAVED, "missing", "base.safetensors"]);
    let extra = changed(|one| one.add("base_model.model.more", &[2], 7));
    refused(&extra, &["1.safetensors", "tensor base_model.model.more", "no such tensor"]);
    refused(&changed(|one| one.dtype = Dtype::F16), &["1.safetensors", "dtype F16", "F32"]);
    let dora = changed(|one| one.add("x.lora_magnitude_vector", &[2], 7));
    refused(&dora, &["1.safetensors", "lora_magnitude_vector", "DoRA"]);
}

#[test]
fn changed_frozen_factor_is_refused() {
    let (base, _) = valid();
    let other = base.trained(RoundKind::Plain, 8);
    let wrong = changed(|one| *one = base.trained(RoundKind::Down, 8));
    refused(&wrong, &["1.safetensors", "lora_A", "frozen", "the wrong factor, or both"]);
    refused_as(&wrong, RoundKind::Down, None, &["0.safetensors", "lora_B", "frozen"]);
    refused(&changed(|one| *one = other), &["1.safetensors", "lora_A", "frozen"]);
    // Only the last bit of the last value is changed.
    let last = changed(|one| {
        let value = one.tensors.get_mut(DOWN).unwrap().1.last_mut().unwrap();
        *value = f32::from_bits(value.to_bits() ^ 1);
    });
    refused(&last, &["1.safetensors", DOWN, "element 119 "]);
}

#[test]
fn non_finite_values_are_refused() {
    for (value, expected) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let folder = changed(|one| one.tensors.get_mut(UP).unwrap().1[23] = value);
        refused(&folder, &["1.safetensors", UP, "element 23 is", expected]);
        refused_as(
            &folder,
            RoundKind::Plain,
            Some(&[1, 0, 1]),
            &["1.safetensors", "element 23 is", expected],
        );
        let (mut base, mut clients) = valid();
        for one in clients.iter_mut().chain([&mut base]) {
            one.tensors.get_mut(DOWN).unwrap().1[7] = value;
        }
        refused(&Folder::new(&base, &clients), &["base.safetensors", DOWN, "element 7 is", expected]);
    }
    // The error is the same for any number of threads.
    let (base, mut clients) = valid();
    for (client, place) in [(2, 3), (0, 30), (1, 4)] {
        clients[client].tensors.get_mut(UP).unwrap().1[place] = f32::NAN;
    }
    let folder = Folder::new(&base, &clients);
    for threads in [1, 2, 7] {
        let inputs = folder.inputs(None).unwrap();
        let error =
            average(&inputs, folder.job(RoundKind::Up, threads), &|_, _| true).unwrap_err().to_string();
        assert!(error.contains("2.safetensors") && error.contains("element 3 "), "{error}");
    }
}

#[test]
fn invalid_files_are_refused() {
    let (base, clients) = valid();
    let folder = || Folder::new(&base, &clients);
    let bytes = clients[1].bytes();
    for cut in [0, 7, 8, 100, bytes.len() - 1] {
        let folder = folder();
        std::fs::write(&folder.clients[1], &bytes[..cut]).unwrap();
        refused(&folder, &["1.safetensors: "]);
    }
    let longer = folder();
    std::fs::write(&longer.clients[1], [&bytes[..], b"x"].concat()).unwrap();
    refused(&longer, &["1.safetensors: ", "from the header"]);
    let gone = folder();
    std::fs::remove_file(&gone.clients[1]).unwrap();
    refused(&gone, &["1.safetensors: ", "No such file"]);
    let mut no_directory = folder();
    no_directory.clients[1] = no_directory.directory.path().to_owned();
    refused(&no_directory, &["adapter_model.safetensors: ", "No such file"]);
    for cause in [
        "mkfifo 1.safetensors",
        "mkdir -p 1.safetensors/adapter_model.safetensors",
        "ln -s /dev/zero 1.safetensors",
    ] {
        let odd = folder();
        std::fs::remove_file(&odd.clients[1]).unwrap();
        let made = std::process::Command::new("sh").args(["-c", cause]).current_dir(&odd.directory).status();
        assert!(made.unwrap().success());
        refused(&odd, &["1.safetensors", "not a regular file"]);
    }
    // The files are sparse, have up to a terabyte, and claim a header of the largest allowed length or more.
    for (header, length) in
        [(1_u64 << 24, 1_u64 << 24), (1 << 24, 1 << 40), ((1 << 24) + 1, 1 << 40), (u64::MAX, 1 << 40)]
    {
        let sparse = folder();
        let file = std::fs::OpenOptions::new().write(true).open(&sparse.clients[1]).unwrap();
        file.set_len(0).unwrap();
        file.set_len(length).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &header.to_le_bytes(), 0).unwrap();
        refused(&sparse, &["1.safetensors: "]);
    }
    let mut device = folder();
    device.clients[1] = PathBuf::from("/dev/zero");
    refused(&device, &["/dev/zero: not a regular file"]);
}

#[test]
fn invalid_client_lists_are_refused() {
    let (base, clients) = valid();
    let mut folder = Folder::new(&base, &clients);
    refused_as(&folder, RoundKind::Up, Some(&[1, 2]), &["2 numbers of samples for 3 clients"]);
    refused_as(&folder, RoundKind::Up, Some(&[0, 0, 0]), &["every number of samples is 0"]);
    let expected = ["1.safetensors: 536870912 samples of one client, allowed: 0 to 536870911"];
    refused_as(&folder, RoundKind::Up, Some(&[1, 1 << 29, 1]), &expected);
    folder.clients[2] = folder.at("./1.safetensors");
    refused(&folder, &["1.safetensors: the same file as", "1.safetensors"]);
    std::fs::hard_link(folder.at("0.safetensors"), folder.at("again.safetensors")).unwrap();
    folder.clients[2] = folder.at("again.safetensors");
    refused(&folder, &["again.safetensors: the same file as", "0.safetensors"]);
    folder.clients[2] = folder.at("base.safetensors");
    refused(&folder, &["base.safetensors: the same file as"]);
    folder.clients.clear();
    refused(&folder, &["no client"]);
}

#[test]
fn base_without_factor_pairs_is_refused() {
    let (base, clients) = valid();
    let with = |change: &dyn Fn(&mut Adapter)| {
        let mut base = base.clone();
        change(&mut base);
        Folder::new(&base, &clients)
    };
    let alone = with(&|base| drop(base.tensors.remove(UP)));
    refused(&alone, &["base.safetensors", DOWN, "the down factor of a module without the other factor"]);
    let flat = with(&|base| base.add(UP, &[40], 1));
    refused(&flat, &["base.safetensors", UP, "for the up factor"]);
    let ranks = with(&|base| base.add(UP, &[10, 5], 1));
    refused(&ranks, &["base.safetensors", UP, "rank 5", "rank 4"]);
    let none = with(&|base| base.tensors.retain(|name, _| name == SAVED));
    refused(&none, &["base.safetensors: ", "not an adapter"]);
    let nothing = with(&|base| base.add(UP, &[0, 4], 1));
    refused(&nothing, &["base.safetensors", UP, "for the up factor"]);
}

#[test]
fn configurations_must_agree() {
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q", "out"], "modules_to_save": null,
        "bias": "none", "task_type": "SEQ_CLS", "alpha_pattern": {}}"#;
    let folders = |other: &str| {
        let (base, clients) = valid();
        let mut folder = Folder::new(&base, &clients[..2]);
        for (name, adapter, text) in [("base", &base, config), ("client", &clients[2], other)] {
            let directory = folder.at(name);
            std::fs::create_dir(&directory).unwrap();
            adapter.write(&directory.join("adapter_model.safetensors"));
            std::fs::write(directory.join("adapter_config.json"), text).unwrap();
        }
        std::fs::copy(folder.at("base/adapter_config.json"), folder.at("adapter_config.json")).unwrap();
        folder.clients.push(folder.at("client"));
        folder
    };
    folders(config).average(RoundKind::Up, None).unwrap();
    let same =
        r#"{"peft_type": "LORA", "r": 4.0, "lora_alpha": 16.0, "target_modules": ["out", "q"], "more": []}"#;
    folders(same).average(RoundKind::Up, None).unwrap();
    for (from, to, expected) in [
        (r#""r": 4"#, r#""r": 8"#, &["r is 8, but 4 in"][..]),
        ("16", "32", &["lora_alpha is 32, but 16 in"]),
        (r#"["q", "out"]"#, r#"["q"]"#, &["target_modules is [\"q\"], but [\"out\",\"q\"] in"]),
        ("null", r#"["score"]"#, &["modules_to_save is"]),
        ("{}", r#"{"q": 8}"#, &["alpha_pattern is"]),
        (r#""bias""#, r#""rank_pattern": {"q": 2}, "bias""#, &["rank_pattern is"]),
        (r#""bias""#, r#""use_rslora": true, "bias""#, &["use_rslora is true, but false in"]),
        (r#""bias""#, r#""use_dora": true, "bias""#, &["use_dora is true, allowed: false"]),
        (r#""LORA""#, r#""IA3""#, &["peft_type is \"IA3\", allowed: \"LORA\""]),
        (r#""r": 4,"#, "", &["r is 8 by default, but 4 in"]),
        (r#""r": 4,"#, r#""r": 4, "r": 4,"#, &["duplicate field `r`"]),
        ("}}", "", &["EOF"]),
        ("{", "[", &["expected"]),
    ] {
        let wrong = config.replacen(from, to, 1);
        let wrong = if from == "}}" { config.trim_end_matches('}').to_owned() } else { wrong };
        assert_ne!(wrong, config);
        refused(&folders(&wrong), &[&["client/adapter_config.json: "], expected].concat());
    }
    let rank = folders(config);
    for path in ["base/adapter_config.json", "adapter_config.json", "client/adapter_config.json"] {
        std::fs::write(rank.at(path), config.replace(r#""r": 4"#, r#""r": 8"#)).unwrap();
    }
    refused(&rank, &["base.safetensors", "lora_A", "rank 4", "r = 8"]);
}

#[test]
fn unwritable_outputs_are_refused() {
    let (base, clients) = valid();
    let folder = Folder::new(&base, &clients);
    let inputs = folder.inputs(None).unwrap();
    let to = |path: &Path| {
        let before = folder.names();
        let output = fedspan_adapters::files::Output::from_path(path);
        let job = fedspan_adapters::files::AverageJob { output, ..folder.job(RoundKind::Up, 1) };
        let error = average(&inputs, job, &|_, _| true).unwrap_err();
        assert_eq!(folder.names(), before, "{error}");
        error.to_string()
    };
    assert!(to(&folder.at("1.safetensors")).contains("1.safetensors: this file is an input"));
    assert!(to(&folder.at("base.safetensors")).contains("this file is an input"));
    assert!(to(&folder.at("none/next.safetensors")).contains("No such file"));
    assert!(to(&folder.at("none/next")).contains("No such file"));
    std::os::unix::fs::symlink(folder.at("0.safetensors"), folder.at("link.safetensors")).unwrap();
    assert!(to(&folder.at("link.safetensors")).contains("link.safetensors: not a regular file"));
    assert_eq!(Adapter::read(&folder.at("link.safetensors")), clients[0]);
    // A locked temporary file belongs to a running command. An unlocked one was left by a killed command.
    let partial = folder.at("next.safetensors.partial");
    let other = std::fs::File::create(&partial).unwrap();
    other.lock().unwrap();
    assert!(to(&folder.at("next.safetensors")).contains("another command is writing this file"));
    drop(other);
    folder.average(RoundKind::Up, None).unwrap();
    assert!(!partial.exists());
}

#[test]
fn changed_input_is_refused() {
    let (base, clients) = valid();
    let folder = Folder::new(&base, &clients);
    let inputs = folder.inputs(None).unwrap();
    let longer = [&clients[0].bytes()[..], b" "].concat();
    std::fs::write(&folder.clients[0], longer).unwrap();
    let error = average(&inputs, folder.job(RoundKind::Up, 1), &|_, _| true).unwrap_err();
    assert!(error.to_string().contains("0.safetensors: the file changed while it was read"), "{error}");
    assert!(!folder.at("next.safetensors").exists());
}

#[test]
fn interruption_keeps_previous_output() {
    let (base, clients) = valid();
    let folder = Folder::new(&base, &clients);
    std::fs::write(folder.at("next.safetensors"), "before").unwrap();
    let before = folder.names();
    let inputs = folder.inputs(None).unwrap();
    let error = average(&inputs, folder.job(RoundKind::Up, 2), &|_, _| false).unwrap_err();
    assert!(matches!(error, AdapterError::Interrupted) && !error.is_invalid_input());
    assert_eq!(folder.names(), before);
    assert_eq!(std::fs::read(folder.at("next.safetensors")).unwrap(), b"before");
}
