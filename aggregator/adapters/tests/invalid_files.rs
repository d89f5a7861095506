//! Tests of adapter averaging with invalid input or output files: the error is one line that names file and tensor, and neither an
//! output nor temporary files remain.

use std::path::{Path, PathBuf};

use fedspan_adapters::files::{AdapterError, Dtype, RoundKind, average};

use crate::common::{Adapter, DOWN, Folder, SAVED, UP};

/// Valid base and clients of an up round.
fn valid_adapters() -> (Adapter, Vec<Adapter>) {
    let base = Adapter::random(Dtype::F32, 1, 4, 30, 10);
    let clients = (1..4).map(|seed| base.trained(RoundKind::Up, seed)).collect();
    (base, clients)
}

/// Folder in which `change` modifies client 1.
fn change_client(change: impl FnOnce(&mut Adapter)) -> Folder {
    let (base, mut clients) = valid_adapters();
    change(&mut clients[1]);
    Folder::new(&base, &clients)
}

/// Asserts that an up round fails with an error text that contains all texts in `expected`, and leaves no
/// files.
fn assert_refused(folder: &Folder, expected: &[&str]) {
    assert_round_refused(folder, RoundKind::Up, None, expected);
}

/// Asserts that a round of this kind with these samples fails, like [`assert_refused`].
fn assert_round_refused(folder: &Folder, round: RoundKind, samples: Option<&[u64]>, expected: &[&str]) {
    let initial_names = folder.entry_names();
    let error = folder.average(round, samples).expect_err(&expected.join(" "));
    let message = error.to_string();
    for excerpt in expected {
        assert!(message.contains(excerpt), "{message:?} has no {excerpt:?}");
    }
    assert!(!message.contains('\n') && message.len() < 1500, "{message}");
    assert!(error.is_invalid_input(), "{message}");
    assert_eq!(folder.entry_names(), initial_names, "{message}");
}

#[test]
fn client_that_does_not_fit_base_is_refused() {
    assert_refused(
        &change_client(|client| client.add_random_tensor(UP, &[10, 3], 7)),
        &["1.safetensors", "q_proj.lora_B", "rank 3", "expected 4"],
    );
    assert_refused(
        &change_client(|client| client.add_random_tensor(UP, &[11, 4], 7)),
        &["1.safetensors", UP, "[11, 4]", "[10, 4]"],
    );
    assert_refused(
        &change_client(|client| client.add_random_tensor(SAVED, &[30], 7)),
        &["1.safetensors", SAVED, "[30]"],
    );
    let missing = change_client(|client| drop(client.tensors.remove(SAVED)));
    assert_refused(&missing, &["1.safetensors", SAVED, "missing", "base.safetensors"]);
    let extra = change_client(|client| client.add_random_tensor("base_model.model.more", &[2], 7));
    assert_refused(&extra, &["1.safetensors", "tensor base_model.model.more", "no such tensor"]);
    assert_refused(
        &change_client(|client| client.dtype = Dtype::F16),
        &["1.safetensors", "dtype F16", "F32"],
    );
    let dora = change_client(|client| client.add_random_tensor("x.lora_magnitude_vector", &[2], 7));
    assert_refused(&dora, &["1.safetensors", "lora_magnitude_vector", "DoRA"]);
}

#[test]
fn changed_frozen_factor_is_refused() {
    let (base, _) = valid_adapters();
    let retrained = base.trained(RoundKind::Plain, 8);
    let frozen_changed = change_client(|client| *client = base.trained(RoundKind::Down, 8));
    assert_refused(&frozen_changed, &["1.safetensors", "lora_A", "frozen", "the wrong factor, or both"]);
    assert_round_refused(&frozen_changed, RoundKind::Down, None, &["0.safetensors", "lora_B", "frozen"]);
    assert_refused(&change_client(|client| *client = retrained), &["1.safetensors", "lora_A", "frozen"]);
    // Only the last bit of the last value is changed.
    let last_bit_changed = change_client(|client| {
        let value = client.tensors.get_mut(DOWN).unwrap().1.last_mut().unwrap();
        *value = f32::from_bits(value.to_bits() ^ 1);
    });
    assert_refused(&last_bit_changed, &["1.safetensors", DOWN, "element 119 "]);
}

#[test]
fn non_finite_values_are_refused() {
    for (value, expected) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let folder = change_client(|client| client.tensors.get_mut(UP).unwrap().1[23] = value);
        assert_refused(&folder, &["1.safetensors", UP, "element 23 is", expected]);
        assert_round_refused(
            &folder,
            RoundKind::Plain,
            Some(&[1, 0, 1]),
            &["1.safetensors", "element 23 is", expected],
        );
        let (mut base, mut clients) = valid_adapters();
        for adapter in clients.iter_mut().chain([&mut base]) {
            adapter.tensors.get_mut(DOWN).unwrap().1[7] = value;
        }
        assert_refused(&Folder::new(&base, &clients), &["base.safetensors", DOWN, "element 7 is", expected]);
    }
    // The error is the same for any number of threads.
    let (base, mut clients) = valid_adapters();
    for (client, index) in [(2, 3), (0, 30), (1, 4)] {
        clients[client].tensors.get_mut(UP).unwrap().1[index] = f32::NAN;
    }
    let folder = Folder::new(&base, &clients);
    for threads in [1, 2, 7] {
        let inputs = folder.open_inputs(None).unwrap();
        let error = average(&inputs, folder.average_job(RoundKind::Up, threads), &|_, _| true)
            .unwrap_err()
            .to_string();
        assert!(error.contains("2.safetensors") && error.contains("element 3 "), "{error}");
    }
}

#[test]
fn invalid_files_are_refused() {
    let (base, clients) = valid_adapters();
    let folder = || Folder::new(&base, &clients);
    let bytes = clients[1].bytes();
    for truncated_len in [0, 7, 8, 100, bytes.len() - 1] {
        let folder = folder();
        std::fs::write(&folder.clients[1], &bytes[..truncated_len]).unwrap();
        assert_refused(&folder, &["1.safetensors: "]);
    }
    let too_long = folder();
    std::fs::write(&too_long.clients[1], [&bytes[..], b"x"].concat()).unwrap();
    assert_refused(&too_long, &["1.safetensors: ", "from the header"]);
    let missing = folder();
    std::fs::remove_file(&missing.clients[1]).unwrap();
    assert_refused(&missing, &["1.safetensors: ", "No such file"]);
    let mut no_directory = folder();
    no_directory.clients[1] = no_directory.directory.path().to_owned();
    assert_refused(&no_directory, &["adapter_model.safetensors: ", "No such file"]);
    for cause in [
        "mkfifo 1.safetensors",
        "mkdir -p 1.safetensors/adapter_model.safetensors",
        "ln -s /dev/zero 1.safetensors",
    ] {
        let irregular = folder();
        std::fs::remove_file(&irregular.clients[1]).unwrap();
        let status =
            std::process::Command::new("sh").args(["-c", cause]).current_dir(&irregular.directory).status();
        assert!(status.unwrap().success());
        assert_refused(&irregular, &["1.safetensors", "not a regular file"]);
    }
    // The files are sparse, have up to a terabyte, and claim a header of the largest allowed length or more.
    for (header, length) in
        [(1_u64 << 24, 1_u64 << 24), (1 << 24, 1 << 40), ((1 << 24) + 1, 1 << 40), (u64::MAX, 1 << 40)]
    {
        let sparse_file = folder();
        let file = std::fs::OpenOptions::new().write(true).open(&sparse_file.clients[1]).unwrap();
        file.set_len(0).unwrap();
        file.set_len(length).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &header.to_le_bytes(), 0).unwrap();
        assert_refused(&sparse_file, &["1.safetensors: "]);
    }
    let mut device = folder();
    device.clients[1] = PathBuf::from("/dev/zero");
    assert_refused(&device, &["/dev/zero: not a regular file"]);
}

#[test]
fn invalid_client_lists_are_refused() {
    let (base, clients) = valid_adapters();
    let mut folder = Folder::new(&base, &clients);
    assert_round_refused(&folder, RoundKind::Up, Some(&[1, 2]), &["2 numbers of samples for 3 clients"]);
    assert_round_refused(&folder, RoundKind::Up, Some(&[0, 0, 0]), &["every number of samples is 0"]);
    let expected = ["1.safetensors: 536870912 samples of one client, allowed: 0 to 536870911"];
    assert_round_refused(&folder, RoundKind::Up, Some(&[1, 1 << 29, 1]), &expected);
    folder.clients[2] = folder.file_path("./1.safetensors");
    assert_refused(&folder, &["1.safetensors: the same file as", "1.safetensors"]);
    std::fs::hard_link(folder.file_path("0.safetensors"), folder.file_path("again.safetensors")).unwrap();
    folder.clients[2] = folder.file_path("again.safetensors");
    assert_refused(&folder, &["again.safetensors: the same file as", "0.safetensors"]);
    folder.clients[2] = folder.file_path("base.safetensors");
    assert_refused(&folder, &["base.safetensors: the same file as"]);
    folder.clients.clear();
    assert_refused(&folder, &["no client"]);
}

#[test]
fn base_without_factor_pairs_is_refused() {
    let (base, clients) = valid_adapters();
    let change_base = |change: &dyn Fn(&mut Adapter)| {
        let mut base = base.clone();
        change(&mut base);
        Folder::new(&base, &clients)
    };
    let down_without_up = change_base(&|base| drop(base.tensors.remove(UP)));
    assert_refused(
        &down_without_up,
        &["base.safetensors", DOWN, "the down factor of a module without the other factor"],
    );
    let one_dimension = change_base(&|base| base.add_random_tensor(UP, &[40], 1));
    assert_refused(&one_dimension, &["base.safetensors", UP, "for the up factor"]);
    let unequal_ranks = change_base(&|base| base.add_random_tensor(UP, &[10, 5], 1));
    assert_refused(&unequal_ranks, &["base.safetensors", UP, "rank 5", "rank 4"]);
    let no_factors = change_base(&|base| base.tensors.retain(|name, _| name == SAVED));
    assert_refused(&no_factors, &["base.safetensors: ", "not an adapter"]);
    let zero_rows = change_base(&|base| base.add_random_tensor(UP, &[0, 4], 1));
    assert_refused(&zero_rows, &["base.safetensors", UP, "for the up factor"]);
}

#[test]
fn configurations_must_agree() {
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q", "out"], "modules_to_save": null,
        "bias": "none", "task_type": "SEQ_CLS", "alpha_pattern": {}}"#;
    let folders = |client_config: &str| {
        let (base, clients) = valid_adapters();
        let mut folder = Folder::new(&base, &clients[..2]);
        for (name, adapter, config_text) in [("base", &base, config), ("client", &clients[2], client_config)]
        {
            let directory = folder.file_path(name);
            std::fs::create_dir(&directory).unwrap();
            adapter.write(&directory.join("adapter_model.safetensors"));
            std::fs::write(directory.join("adapter_config.json"), config_text).unwrap();
        }
        std::fs::copy(folder.file_path("base/adapter_config.json"), folder.file_path("adapter_config.json"))
            .unwrap();
        folder.clients.push(folder.file_path("client"));
        folder
    };
    folders(config).average(RoundKind::Up, None).unwrap();
    let equivalent =
        r#"{"peft_type": "LORA", "r": 4.0, "lora_alpha": 16.0, "target_modules": ["out", "q"], "more": []}"#;
    folders(equivalent).average(RoundKind::Up, None).unwrap();
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
        let changed_config = config.replacen(from, to, 1);
        let changed_config =
            if from == "}}" { config.trim_end_matches('}').to_owned() } else { changed_config };
        assert_ne!(changed_config, config);
        assert_refused(&folders(&changed_config), &[&["client/adapter_config.json: "], expected].concat());
    }
    let wrong_rank = folders(config);
    for path in ["base/adapter_config.json", "adapter_config.json", "client/adapter_config.json"] {
        std::fs::write(wrong_rank.file_path(path), config.replace(r#""r": 4"#, r#""r": 8"#)).unwrap();
    }
    assert_refused(&wrong_rank, &["base.safetensors", "lora_A", "rank 4", "r = 8"]);
}

#[test]
fn unwritable_outputs_are_refused() {
    let (base, clients) = valid_adapters();
    let folder = Folder::new(&base, &clients);
    let inputs = folder.open_inputs(None).unwrap();
    let refuse_output = |path: &Path| {
        let initial_names = folder.entry_names();
        let output = fedspan_adapters::files::Output::from_path(path);
        let job = fedspan_adapters::files::AverageJob { output, ..folder.average_job(RoundKind::Up, 1) };
        let error = average(&inputs, job, &|_, _| true).unwrap_err();
        assert_eq!(folder.entry_names(), initial_names, "{error}");
        error.to_string()
    };
    assert!(
        refuse_output(&folder.file_path("1.safetensors")).contains("1.safetensors: this file is an input")
    );
    assert!(refuse_output(&folder.file_path("base.safetensors")).contains("this file is an input"));
    assert!(refuse_output(&folder.file_path("none/next.safetensors")).contains("No such file"));
    assert!(refuse_output(&folder.file_path("none/next")).contains("No such file"));
    std::os::unix::fs::symlink(folder.file_path("0.safetensors"), folder.file_path("link.safetensors"))
        .unwrap();
    assert!(
        refuse_output(&folder.file_path("link.safetensors")).contains("link.safetensors: not a regular file")
    );
    assert_eq!(Adapter::read(&folder.file_path("link.safetensors")), clients[0]);
    // A locked temporary file belongs to a running command. An unlocked one was left by a killed command.
    let partial = folder.file_path("next.safetensors.partial");
    let running_command = std::fs::File::create(&partial).unwrap();
    running_command.lock().unwrap();
    assert!(
        refuse_output(&folder.file_path("next.safetensors")).contains("another command is writing this file")
    );
    // Explicitly, because a child process that another test is starting may have inherited the file.
    running_command.unlock().unwrap();
    drop(running_command);
    folder.average(RoundKind::Up, None).unwrap();
    assert!(!partial.exists());
}

#[test]
fn changed_input_is_refused() {
    let (base, clients) = valid_adapters();
    let folder = Folder::new(&base, &clients);
    let inputs = folder.open_inputs(None).unwrap();
    let longer = [&clients[0].bytes()[..], b" "].concat();
    std::fs::write(&folder.clients[0], longer).unwrap();
    let error = average(&inputs, folder.average_job(RoundKind::Up, 1), &|_, _| true).unwrap_err();
    assert!(error.to_string().contains("0.safetensors: the file changed while it was read"), "{error}");
    assert!(!folder.file_path("next.safetensors").exists());
}

#[test]
fn interruption_keeps_previous_output() {
    let (base, clients) = valid_adapters();
    let folder = Folder::new(&base, &clients);
    std::fs::write(folder.file_path("next.safetensors"), "before").unwrap();
    let initial_names = folder.entry_names();
    let inputs = folder.open_inputs(None).unwrap();
    let error = average(&inputs, folder.average_job(RoundKind::Up, 2), &|_, _| false).unwrap_err();
    assert!(matches!(error, AdapterError::Interrupted) && !error.is_invalid_input());
    assert_eq!(folder.entry_names(), initial_names);
    assert_eq!(std::fs::read(folder.file_path("next.safetensors")).unwrap(), b"before");
}
