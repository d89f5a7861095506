//! Table of the keys of `adapter_config.json`: how each key is compared, and the canonical form of its
//! values.
//!
//! Two values have the same meaning if their canonical forms are equal. The forms follow PEFT 0.21; a missing
//! key has the default of PEFT 0.21, so that files of different PEFT versions can be averaged.

use super::json::Json;

/// Canonical form of the values of a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum ValueForm {
    /// Number with a default.
    Number(i128),
    /// Boolean, false by default.
    Flag,
    /// String with a default.
    Word(&'static str),
    /// Unordered list of names, or a string with a regular expression; empty by default.
    Names,
    /// Number or unordered list of numbers, empty by default.
    Layers,
    /// Name or unordered list of names, empty by default.
    Parts,
    /// Map, empty by default.
    Map,
    /// Any value, compared with the order of lists; off by default.
    Exact,
}

/// Effect of a key on the comparison of two configurations.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyUse {
    /// The key determines the meaning of tensors: its value must be the same in all files.
    MustAgree(ValueForm),
    /// The key names the model of an adapter. A difference causes a warning with this reason.
    Warn(&'static str),
    /// The key describes how an adapter was initialised, trained or saved: it may differ.
    Ignored,
}

/// All known keys. Unknown keys must be equal in all files, or off.
pub(super) const KEYS: [(&str, KeyUse); 43] = [
    ("peft_type", KeyUse::MustAgree(ValueForm::Word("LORA"))),
    ("r", KeyUse::MustAgree(ValueForm::Number(8))),
    ("lora_alpha", KeyUse::MustAgree(ValueForm::Number(8))),
    ("use_rslora", KeyUse::MustAgree(ValueForm::Flag)),
    ("rank_pattern", KeyUse::MustAgree(ValueForm::Map)),
    ("alpha_pattern", KeyUse::MustAgree(ValueForm::Map)),
    ("target_modules", KeyUse::MustAgree(ValueForm::Names)),
    ("exclude_modules", KeyUse::MustAgree(ValueForm::Names)),
    ("modules_to_save", KeyUse::MustAgree(ValueForm::Names)),
    ("target_parameters", KeyUse::MustAgree(ValueForm::Names)),
    ("layers_to_transform", KeyUse::MustAgree(ValueForm::Layers)),
    ("layers_pattern", KeyUse::MustAgree(ValueForm::Parts)),
    ("trainable_token_indices", KeyUse::MustAgree(ValueForm::Exact)),
    ("layer_replication", KeyUse::MustAgree(ValueForm::Exact)),
    ("bias", KeyUse::MustAgree(ValueForm::Word("none"))),
    ("lora_bias", KeyUse::MustAgree(ValueForm::Flag)),
    ("fan_in_fan_out", KeyUse::MustAgree(ValueForm::Flag)),
    ("use_dora", KeyUse::MustAgree(ValueForm::Flag)),
    ("use_qalora", KeyUse::MustAgree(ValueForm::Flag)),
    ("qalora_group_size", KeyUse::MustAgree(ValueForm::Number(16))),
    ("use_bdlora", KeyUse::MustAgree(ValueForm::Exact)),
    ("alora_invocation_tokens", KeyUse::MustAgree(ValueForm::Exact)),
    ("kasa_config", KeyUse::MustAgree(ValueForm::Exact)),
    ("monteclora_config", KeyUse::MustAgree(ValueForm::Exact)),
    ("arrow_config", KeyUse::MustAgree(ValueForm::Exact)),
    ("megatron_config", KeyUse::MustAgree(ValueForm::Exact)),
    ("ensure_weight_tying", KeyUse::MustAgree(ValueForm::Flag)),
    ("base_model_name_or_path", KeyUse::Warn("the mean of adapters of different models fits neither")),
    ("revision", KeyUse::Warn("the mean of adapters of different models fits neither")),
    ("task_type", KeyUse::Warn("the mean of saved modules of different tasks fits neither")),
    ("init_lora_weights", KeyUse::Warn("it changes the weights that the adapter is added to")),
    ("inference_mode", KeyUse::Ignored),
    ("lora_dropout", KeyUse::Ignored),
    ("auto_mapping", KeyUse::Ignored),
    ("peft_version", KeyUse::Ignored),
    ("runtime_config", KeyUse::Ignored),
    ("megatron_core", KeyUse::Ignored),
    ("loftq_config", KeyUse::Ignored),
    ("eva_config", KeyUse::Ignored),
    ("corda_config", KeyUse::Ignored),
    ("lora_ga_config", KeyUse::Ignored),
    ("velora_config", KeyUse::Ignored),
    ("merge_weights", KeyUse::Ignored),
];

/// Prefixes of those values of `init_lora_weights` for which PEFT subtracts the initial adapter from the
/// model's weights.
const WEIGHT_CHANGING_INITS: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// Use of a key; `None` if the key is unknown.
pub(super) fn key_use(key: &str) -> Option<KeyUse> {
    KEYS.iter().find(|(name, _)| *name == key).map(|(_, key_use)| *key_use)
}

/// Canonical form of a value; a `value` of `None` stands for a missing key.
pub(super) fn canonical(form: ValueForm, value: Option<&Json>) -> Json {
    let value = value.unwrap_or(&Json::Null);
    match (form, value) {
        (ValueForm::Number(default), Json::Null) => Json::Whole(default),
        (ValueForm::Flag, Json::Null | Json::Whole(0)) => Json::Flag(false),
        (ValueForm::Flag, Json::Whole(1)) => Json::Flag(true),
        (ValueForm::Word(default), Json::Null) => Json::Text(default.to_owned()),
        (ValueForm::Names | ValueForm::Layers | ValueForm::Parts, Json::Null) => Json::List(Vec::new()),
        (ValueForm::Parts, Json::Text(text)) if text.is_empty() => Json::List(Vec::new()),
        (ValueForm::Layers, Json::Whole(_)) | (ValueForm::Parts, Json::Text(_)) => {
            Json::List(vec![value.clone()])
        }
        (ValueForm::Names | ValueForm::Layers | ValueForm::Parts, Json::List(values)) => {
            let mut values = values.clone();
            values.sort_by_cached_key(ToString::to_string);
            values.dedup();
            Json::List(values)
        }
        (ValueForm::Map, Json::Null) => Json::Map(Vec::new()),
        (ValueForm::Exact, value) if value.is_off() => Json::Null,
        (_, value) => value.sorted(),
    }
}

/// Canonical form of a value that names the model of an adapter; `None` if the file does not name the model.
pub(super) fn model_statement(key: &str, value: Option<&Json>) -> Option<String> {
    match (key, value) {
        ("init_lora_weights", Some(Json::Text(text))) => {
            let text = text.to_lowercase();
            let changes_weights = WEIGHT_CHANGING_INITS.iter().any(|kind| text.starts_with(kind));
            Some(if changes_weights { text } else { String::new() })
        }
        ("init_lora_weights", _) => Some(String::new()),
        (_, Some(Json::Text(text))) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::{KEYS, KeyUse, canonical, key_use, model_statement};
    use crate::files::json::Json;

    fn parse_json(text: &str) -> Option<Json> {
        (!text.is_empty()).then(|| serde_json::from_str(text).unwrap())
    }

    /// Values of the same class have equal canonical forms, and values of different classes have different
    /// ones. An empty text stands for a missing key.
    #[test]
    fn canonical_forms_follow_meaning() {
        for (key, classes) in [
            ("r", &[&["", "8", "8.0", "null"][..], &["4", "4.0", "4e0"], &["8.5"], &["\"8\""]][..]),
            ("lora_alpha", &[&["", "8", "8.0"], &["16", "16.0", "1.6e1"], &["0.5", "5e-1"]]),
            ("use_rslora", &[&["", "null", "false", "0"], &["true", "1", "1.0"]]),
            ("bias", &[&["", "null", "\"none\""], &["\"all\""], &["\"lora_only\""]]),
            (
                "target_modules",
                &[
                    &["", "null", "[]"],
                    &["[\"q\", \"v\"]", "[\"v\", \"q\"]", "[\"v\",\"q\",\"v\"]"],
                    &["\"q\""],
                    &["[\"q\"]"],
                    &["[\"q\",\"v\",\"k\"]"],
                ],
            ),
            ("layers_to_transform", &[&["", "null", "[]"], &["3", "[3]", "[3.0]"], &["[3,4]", "[4, 3]"]]),
            ("layers_pattern", &[&["", "null", "[]", "\"\""], &["\"h\"", "[\"h\"]"], &["\"layers\""]]),
            (
                "rank_pattern",
                &[
                    &["", "null", "{}"],
                    &["{\"a\": 16, \"b\": 2}", "{\"b\": 2.0, \"a\": 16.0}"],
                    &["{\"a\": 16}"],
                    &["{\"a\": 2, \"b\": 16}"],
                ],
            ),
            (
                "trainable_token_indices",
                &[
                    &["", "null", "[]", "{}"],
                    &["[1, 2]", "[1.0, 2]"],
                    &["[2, 1]"],
                    &["{\"e\": [1, 2], \"f\": [3]}", "{\"f\": [3], \"e\": [1, 2]}"],
                    &["{\"e\": [2, 1], \"f\": [3]}"],
                ],
            ),
            ("layer_replication", &[&["", "null"], &["[[0,2],[1,3]]"], &["[[1,3],[0,2]]"]]),
        ] {
            let Some(KeyUse::MustAgree(form)) = key_use(key) else { panic!("{key} is not compared") };
            let forms: Vec<(usize, Json, &str)> = classes
                .iter()
                .enumerate()
                .flat_map(|(class, texts)| texts.iter().map(move |text| (class, *text)))
                .map(|(class, text)| (class, canonical(form, parse_json(text).as_ref()), text))
                .collect();
            for (first_class, first_form, first_text) in &forms {
                for (second_class, second_form, second_text) in &forms {
                    let is_same_class = first_class == second_class;
                    assert_eq!(
                        first_form == second_form,
                        is_same_class,
                        "{key}: {first_text:?} and {second_text:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn keys_are_unique() {
        let mut names: Vec<&str> = KEYS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KEYS.len());
        assert!(key_use("no_such_key").is_none() && matches!(key_use("eva_config"), Some(KeyUse::Ignored)));
    }

    #[test]
    fn model_statements_follow_meaning() {
        let statement = |text: &str| model_statement("init_lora_weights", parse_json(text).as_ref());
        for text in ["null", "true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\""] {
            assert_eq!(statement(""), statement(text), "{text}");
        }
        for text in [
            "\"pissa\"",
            "\"pissa_niter_4\"",
            "\"PiSSA\"",
            "\"olora\"",
            "\"corda\"",
            "\"loftq\"",
            "\"lora_ga\"",
        ] {
            assert_ne!(statement(""), statement(text), "{text}");
        }
        assert_eq!(statement("\"PiSSA\""), statement("\"pissa\""));
        let model = |text: &str| model_statement("base_model_name_or_path", parse_json(text).as_ref());
        assert_eq!([model(""), model("null"), model("\"\"")], [None, None, None]);
        assert_ne!(model("\"a\""), model("\"b\""));
    }
}
