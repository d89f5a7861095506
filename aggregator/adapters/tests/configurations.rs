//! Tests of PEFT configurations: values with the same meaning agree for all PEFT versions; different values
//! are refused or cause a warning.

use fedspan_adapters::files::{AdapterError, Config, Dtype, RoundKind, average, check};
use serde_json::{Map, Value, json};

use crate::common::{Adapter, Folder};

/// Configuration as PEFT 0.21 writes it, with some keys changed. The value "absent" removes a key.
fn config(changes: &[(&str, Value)]) -> String {
    let defaults = json!({
        "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": "org/model", "bias": "none", "corda_config": null, "ensure_weight_tying": false,
        "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": true,
        "init_lora_weights": true, "kasa_config": null, "layer_replication": null, "layers_pattern": null,
        "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 8, "lora_bias": false, "lora_dropout": 0.0,
        "lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
        "monteclora_config": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 4,
        "rank_pattern": {}, "revision": null, "target_modules": ["q_proj", "out"], "target_parameters": null,
        "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
        "use_qalora": false, "use_rslora": false, "velora_config": null,
    });
    let Value::Object(mut map) = defaults else { panic!("a map") };
    for (key, value) in changes {
        if value == "absent" {
            map.remove(*key);
        } else {
            map.insert((*key).to_owned(), value.clone());
        }
    }
    Value::Object(map).to_string()
}

/// Directories of a base and clients with these configurations.
fn create_folder(configs: &[&str]) -> Folder {
    let base = Adapter::random(Dtype::F32, 1, 4, 9, 5);
    let clients = (1..configs.len() as u64).map(|seed| base.trained(RoundKind::Up, seed));
    Folder::with_directories(&[base.clone()].into_iter().chain(clients).collect::<Vec<_>>(), configs)
}

/// Warnings of an average, or its error text.
fn average_outcome(configs: &[&str]) -> Result<Vec<String>, String> {
    let folder = create_folder(configs);
    let result = folder.open_directories().and_then(|inputs| {
        average(&inputs, folder.average_job(RoundKind::Up, 1), &|_, _| true)?;
        Ok(inputs.warnings().to_vec())
    });
    result.map_err(|error: AdapterError| {
        let message = error.to_string();
        assert!(error.is_invalid_input() && !message.contains('\n'), "{message}");
        assert!(!folder.file_path("next.safetensors").exists());
        message.replace(&format!("{}/", folder.directory.path().display()), "")
    })
}

/// Asserts that two different values of a key are refused, between base and client and between two clients,
/// and that the error names the key and both files.
fn assert_values_differ(key: &str, first_value: &Value, second_value: &Value) {
    let (first_config, second_config) =
        (config(&[(key, first_value.clone())]), config(&[(key, second_value.clone())]));
    for (configs, [first_dir, second_dir]) in [
        ([&first_config, &first_config, &second_config], ["base/", "1/"]),
        ([&second_config, &first_config, &first_config], ["base/", "0/"]),
        ([&first_config, &second_config, &first_config], ["base/", "0/"]),
    ] {
        let message = average_outcome(&configs.map(String::as_str))
            .expect_err(&format!("{key}: {first_value} and {second_value}"));
        let files = [first_dir, second_dir].map(|file| format!("{file}adapter_config.json"));
        assert!(
            message.starts_with(&files[1]) && message.contains(&files[0]) && message.contains(key),
            "{message}"
        );
    }
    let message = average_outcome(&["", &first_config, &second_config]).unwrap_err();
    assert!(
        message.starts_with("1/adapter_config.json") && message.contains("0/adapter_config.json"),
        "{message}"
    );
}

/// Asserts that all values of a key have the same meaning.
fn assert_values_agree(key: &str, values: &[Value]) {
    for first_value in values {
        for second_value in values {
            let configs = [config(&[(key, first_value.clone())]), config(&[(key, second_value.clone())])];
            let result = average_outcome(&[&configs[0], &configs[1], &configs[0]]);
            assert_eq!(result, Ok(Vec::new()), "{key}: {first_value} and {second_value}");
        }
    }
}

#[test]
fn keys_with_meaning_must_agree() {
    let absent = json!("absent");
    for (key, first_value, second_value) in [
        ("lora_alpha", json!(8), json!(16)),
        ("lora_alpha", json!(16), absent.clone()),
        ("lora_alpha", json!(8), json!(8.5)),
        ("use_rslora", json!(true), json!(false)),
        ("use_rslora", json!(true), absent.clone()),
        ("rank_pattern", json!({"x_proj": 8}), json!({})),
        ("rank_pattern", json!({"x_proj": 8}), json!({"x_proj": 16})),
        ("alpha_pattern", json!({"q_proj": 8}), json!({"q_proj": 16})),
        ("alpha_pattern", json!({"q_proj": 8}), absent.clone()),
        ("fan_in_fan_out", json!(true), json!(false)),
        ("bias", json!("lora_only"), json!("none")),
        ("bias", json!("all"), absent.clone()),
        ("lora_bias", json!(true), json!(false)),
        ("target_modules", json!(["q_proj", "out"]), json!(["q_proj"])),
        ("target_modules", json!(["q_proj"]), json!("q_proj")),
        ("target_modules", json!("all-linear"), json!(["q_proj", "out"])),
        ("exclude_modules", json!(["lm_head"]), json!(null)),
        ("modules_to_save", json!(["score"]), json!(["classifier"])),
        ("modules_to_save", json!(["score"]), absent.clone()),
        ("layers_to_transform", json!([0, 1]), json!([0, 2])),
        ("layers_to_transform", json!(3), json!(null)),
        ("layers_pattern", json!("layers"), json!("h")),
        ("trainable_token_indices", json!({"embed_tokens": [100, 101]}), json!({"embed_tokens": [777, 101]})),
        ("trainable_token_indices", json!([100, 101]), json!([101, 100])),
        ("trainable_token_indices", json!({"embed_tokens": [1]}), json!({"lm_head": [1]})),
        ("trainable_token_indices", json!([100]), absent.clone()),
        ("target_parameters", json!(["mlp.experts.a"]), json!(["mlp.experts.b"])),
        ("target_parameters", json!(["mlp.experts.a"]), json!([])),
        ("layer_replication", json!([[0, 4], [2, 5]]), json!([[2, 5], [0, 4]])),
        ("use_qalora", json!(true), json!(false)),
        ("qalora_group_size", json!(32), absent.clone()),
        ("alora_invocation_tokens", json!([1, 2]), json!([1])),
        ("arrow_config", json!({"top_k": 3}), json!(null)),
        ("ensure_weight_tying", json!(true), absent.clone()),
        ("megatron_config", json!({"a": 1}), absent.clone()),
        ("some_future_key", json!(1), json!(2)),
        ("some_future_key", json!(true), absent.clone()),
        ("some_future_key", json!("x"), json!(null)),
        ("some_future_key", json!({"a": [1, {"b": 2}]}), json!({"a": [1, {"b": 3}]})),
        ("some_future_key", json!(0.5), absent),
    ] {
        assert_values_differ(key, &first_value, &second_value);
    }
}

#[test]
fn error_names_both_values() {
    let error_of = |key: &str, base_value: Value, client_value: Value| {
        average_outcome(&[&config(&[(key, base_value)]), &config(&[(key, client_value)])]).unwrap_err()
    };
    assert_eq!(
        error_of("trainable_token_indices", json!({"e": [100, 101]}), json!({"e": [777, 101]})),
        r#"0/adapter_config.json: trainable_token_indices is {"e":[777,101]}, but {"e":[100,101]} in base/adapter_config.json"#
    );
    assert_eq!(
        error_of("r", json!(4), json!("absent")),
        "0/adapter_config.json: r is 8 by default, but 4 in base/adapter_config.json"
    );
    assert_eq!(
        error_of("lora_alpha", json!(16), json!("absent")),
        "0/adapter_config.json: lora_alpha is 8 by default, but 16 in base/adapter_config.json"
    );
    let message = error_of("use_lora_plus", json!("absent"), json!(true));
    assert!(
        message.contains("use_lora_plus is true, but missing in base/adapter_config.json; the meaning of this key is unknown"),
        "{message}"
    );
}

#[test]
fn equivalent_values_agree() {
    let absent = || json!("absent");
    assert_values_agree("r", &[json!(4), json!(4.0)]);
    assert_values_agree("lora_alpha", &[json!(8), json!(8.0), absent(), json!(null)]);
    for key in ["use_rslora", "use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "ensure_weight_tying"]
    {
        assert_values_agree(key, &[json!(false), json!(null), absent(), json!(0)]);
    }
    assert_values_agree("bias", &[json!("none"), absent(), json!(null)]);
    for key in
        ["exclude_modules", "modules_to_save", "target_parameters", "layers_to_transform", "layers_pattern"]
    {
        assert_values_agree(key, &[json!([]), json!(null), absent()]);
    }
    for key in ["rank_pattern", "alpha_pattern"] {
        assert_values_agree(key, &[json!({}), json!(null), absent()]);
    }
    for key in [
        "trainable_token_indices",
        "layer_replication",
        "alora_invocation_tokens",
        "kasa_config",
        "use_bdlora",
        "arrow_config",
    ] {
        assert_values_agree(key, &[json!(null), absent(), json!([]), json!({})]);
    }
    assert_values_agree(
        "target_modules",
        &[json!(["q_proj", "out"]), json!(["out", "q_proj"]), json!(["out", "q_proj", "out"])],
    );
    assert_values_agree("modules_to_save", &[json!(["a", "b"]), json!(["b", "a"])]);
    assert_values_agree("layers_to_transform", &[json!([1, 2]), json!([2, 1]), json!([1.0, 2.0])]);
    assert_values_agree("layers_to_transform", &[json!(3), json!([3])]);
    assert_values_agree("layers_pattern", &[json!("layers"), json!(["layers"])]);
    assert_values_agree("alpha_pattern", &[json!({"q_proj": 16}), json!({"q_proj": 16.0})]);
    assert_values_agree("qalora_group_size", &[json!(16), absent()]);
    assert_values_agree(
        "trainable_token_indices",
        &[json!({"a": [1], "b": [2]}), json!({"b": [2], "a": [1.0]})],
    );
    // Unknown keys agree if they are off, in any spelling, or are maps in a different order.
    assert_values_agree("some_future_key", &[absent(), json!(null), json!(false), json!([]), json!({})]);
    assert_values_agree("some_future_key", &[json!({"a": 1, "b": [2]}), json!({"b": [2.0], "a": 1.0})]);
}

#[test]
fn training_settings_may_differ() {
    for (key, values) in [
        ("inference_mode", [json!(true), json!(false), json!("absent")]),
        ("lora_dropout", [json!(0.0), json!(0.1), json!("absent")]),
        ("init_lora_weights", [json!(true), json!("gaussian"), json!("absent")]),
        ("init_lora_weights", [json!(false), json!("eva"), json!("orthogonal")]),
        ("auto_mapping", [json!(null), json!({"base_model_class": "X"}), json!("absent")]),
        ("peft_version", [json!("0.17.0"), json!("0.21.2"), json!("absent")]),
        ("runtime_config", [json!({"ephemeral_gpu_offload": true}), json!({}), json!("absent")]),
        ("megatron_core", [json!("megatron.core"), json!(null), json!("absent")]),
        ("loftq_config", [json!({"loftq_bits": 4}), json!({}), json!("absent")]),
        ("eva_config", [json!({"rho": 2.0}), json!(null), json!("absent")]),
        ("corda_config", [json!({"verbose": true}), json!(null), json!("absent")]),
        ("lora_ga_config", [json!({"direction": "ArBr"}), json!(null), json!("absent")]),
        ("velora_config", [json!({"num_groups": 4}), json!(null), json!("absent")]),
        ("task_type", [json!("CAUSAL_LM"), json!(null), json!("absent")]),
        ("base_model_name_or_path", [json!("org/model"), json!(null), json!("")]),
        ("revision", [json!(null), json!("main"), json!("absent")]),
    ] {
        assert_values_agree(key, &values);
    }
}

/// If the files name different models, the average succeeds with a warning.
#[test]
fn different_model_gives_a_warning() {
    for (key, base_value, client_value) in [
        ("base_model_name_or_path", "org/llama", "other/mistral"),
        ("revision", "main", "v2"),
        ("task_type", "SEQ_CLS", "TOKEN_CLS"),
        ("init_lora_weights", "pissa", "pissa_niter_16"),
    ] {
        let [base_config, other_config] =
            [base_value, client_value].map(|value| config(&[(key, json!(value))]));
        let warnings =
            average_outcome(&[&base_config, &base_config, &other_config, &other_config, &base_config])
                .unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        for excerpt in [
            &format!("{key} is {client_value:?}, but {base_value:?} in"),
            "1/adapter_config.json",
            "base/adapter_config.json",
            "1 more file",
        ] {
            assert!(warnings[0].contains(excerpt), "{warnings:?}: {excerpt}");
        }
    }
    // If the base does not name a model, the first client that names one is compared with the others.
    let [unnamed, names_a, names_b] =
        ["", "a", "b"].map(|name| config(&[("base_model_name_or_path", json!(name))]));
    assert_eq!(average_outcome(&[&unnamed, &names_a, &names_a]), Ok(Vec::new()));
    let warnings = average_outcome(&[&unnamed, &names_a, &names_b]).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("1/adapter_config.json: base_model"), "{warnings:?}");
    let changed = config(&[("init_lora_weights", json!("pissa"))]);
    let warnings = average_outcome(&[&config(&[]), &changed]).unwrap();
    assert!(warnings[0].contains("it changes the weights that the adapter is added to"), "{warnings:?}");
    let folder = create_folder(&[&names_a, &names_b]);
    let checked = check(&folder.open_directories().unwrap(), &|_, _| true).unwrap();
    assert_eq!(checked.warnings.len(), 1);
}

/// The first matching key of a pattern applies, so the order of keys is relevant only if two keys match the
/// same module.
#[test]
fn pattern_order_matters_if_two_keys_match() {
    let config_with_pattern = |pattern: &str| {
        config(&[("alpha_pattern", json!({}))])
            .replace(r#""alpha_pattern":{}"#, &format!(r#""alpha_pattern":{pattern}"#))
    };
    let [first_config, second_config] =
        [r#"{"q_proj":16,"0.q_proj":2}"#, r#"{"0.q_proj":2,"q_proj":16}"#].map(config_with_pattern);
    let message = average_outcome(&[&first_config, &second_config]).unwrap_err();
    assert!(
        message.contains("another order than in base/adapter_config.json") && message.contains("q_proj"),
        "{message}"
    );
    let [first_config, second_config] =
        [r#"{"q_proj":16,"out":2}"#, r#"{"out":2,"q_proj":16}"#].map(config_with_pattern);
    assert_eq!(average_outcome(&[&first_config, &second_config]), Ok(Vec::new()));
}

#[test]
fn invalid_configurations_are_refused() {
    for (config_text, expected) in [
        (config(&[("peft_type", json!("ADALORA"))]), "peft_type is \"ADALORA\", allowed: \"LORA\""),
        (config(&[("peft_type", json!("absent"))]), "peft_type is missing"),
        (config(&[("r", json!(0))]), "r is 0, allowed: a whole number of at least 1"),
        (config(&[("r", json!(-4))]), "r is -4"),
        (config(&[("r", json!("4"))]), "r is \"4\""),
        (config(&[("r", json!(4.5))]), "r is 4.5"),
        (config(&[("lora_alpha", json!("8"))]), "lora_alpha is \"8\""),
        (config(&[("use_rslora", json!("yes"))]), "use_rslora is \"yes\", allowed: true or false"),
        (config(&[("use_dora", json!(true))]), "use_dora is true, allowed: false"),
        (config(&[("rank_pattern", json!(["q"]))]), "rank_pattern is [\"q\"], allowed: a map"),
        (config(&[("rank_pattern", json!({"q": 0}))]), "rank_pattern is {\"q\":0}"),
        (config(&[("rank_pattern", json!({"q": null}))]), "rank_pattern is"),
        (config(&[("alpha_pattern", json!({"q": "8"}))]), "alpha_pattern is {\"q\":\"8\"}"),
        (config(&[("target_parameters", json!("a.b"))]), "target_parameters is \"a.b\", allowed: a list"),
        (config(&[("target_parameters", json!([1]))]), "target_parameters is [1]"),
        (
            config(&[("rank_pattern", json!({"q_proj": 8}))]),
            "found rank 4, but adapter_config.json says r = 8 for this module",
        ),
        ("[]".to_owned(), "the configuration is [], allowed: a map"),
        ("{\"r\": 1, \"r\": 1}".to_owned(), "duplicate field `r`"),
        ("{\"peft_type\": \"LORA\", \"x\": {\"a\": 1, \"a\": 1}}".to_owned(), "duplicate field `a`"),
        ("{\"peft_type\": \"LORA\", \"r\": 1e999}".to_owned(), "number out of range"),
        ("{\"a\":".repeat(100_000), "recursion limit"),
        (String::new() + " ", "EOF"),
    ] {
        let message = average_outcome(&[&config_text, &config(&[])]).unwrap_err();
        assert!(message.contains(expected) && message.len() < 1000, "{message}: {expected}");
    }
}

#[test]
fn configuration_agrees_with_itself() {
    let mut map = Map::new();
    for (index, value) in
        [json!(1e300), json!(-0.0), json!(u64::MAX), json!(i64::MIN), json!(0.1)].into_iter().enumerate()
    {
        map.insert(format!("key{index}"), value);
    }
    let parsed = Config::parse(config(&[("more", Value::Object(map))]).as_bytes()).unwrap();
    assert_eq!(parsed.difference(&parsed.clone()), None);
}
