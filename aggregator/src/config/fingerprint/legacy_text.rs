//! Reader of the fingerprints that the first versions with store format 5 wrote: some of the values are in
//! Rust's debug syntax (`Some(5)`, `FedRep { .. }`) instead of keys and values of `fleet.toml`.
//!
//! A setting that is missing from such a fingerprint had the default of that version; this file contains
//! those defaults. The file can be removed together with the support of format 5.

use std::cell::RefCell;

use super::text::Settings;
use super::value::Setting;

/// Key that occurs in every legacy text and in no later text.
const MARKER_KEY: &str = "algorithm.final_head";

/// Returns true if a text is in the legacy format.
pub(super) fn is_legacy(text: &str) -> bool {
    text.lines().any(|line| line.split_once(" = ").is_some_and(|(key, _)| key == MARKER_KEY))
}

/// Translates a legacy text. A line that cannot be translated keeps its key and text, which differ from every
/// current setting, so that the campaign is not resumed.
pub(super) fn translate(text: &str) -> Settings {
    let lines = Lines::split(text);
    let mut settings = Settings::default();
    for key in ["seed", "data.d", "data.outputs", "data.image"] {
        lines.copy(&mut settings, key);
    }
    let network = lines.take("algorithm.network").and_then(parse_struct);
    match &network {
        None => translate_linear_model(&lines, &mut settings),
        Some(_) => translate_network_model(&lines, &mut settings),
    }
    let name = unquote(lines.take("algorithm.name").unwrap_or_default());
    match network {
        None => translate_linear_algorithm(&lines, &mut settings, name),
        Some((_, fields)) => translate_network_algorithm(&lines, &mut settings, name, &fields),
    }
    for key in ["algorithm.weighting", "algorithm.upload", "algorithm.download", "devices.expected"] {
        lines.copy(&mut settings, key);
    }
    translate_rule(&lines, &mut settings);
    translate_participation(&lines, &mut settings);
    for key in ["limits.norm", "limits.samples", "stop.change"] {
        lines.copy(&mut settings, key);
    }
    lines.add_remaining(&mut settings);
    settings
}

/// Lines of a legacy text as pairs of key and value. Reading a line removes the line.
struct Lines<'t>(RefCell<Vec<(&'t str, &'t str)>>);

impl<'t> Lines<'t> {
    /// Splits a text into lines.
    fn split(text: &'t str) -> Self {
        Self(RefCell::new(text.lines().map(|line| line.split_once(" = ").unwrap_or((line, ""))).collect()))
    }

    /// Removes the line of a key and returns the value.
    fn take(&self, key: &str) -> Option<&'t str> {
        let mut lines = self.0.borrow_mut();
        let index = lines.iter().position(|(line_key, _)| *line_key == key)?;
        Some(lines.remove(index).1)
    }

    /// Moves a line whose value needs no translation to the settings.
    fn copy(&self, settings: &mut Settings, key: &str) {
        if let Some(value) = self.take(key) {
            settings.set(key, Setting::parse(value));
        }
    }

    /// Adds the remaining lines to the settings, untranslated.
    fn add_remaining(self, settings: &mut Settings) {
        for (key, value) in self.0.into_inner() {
            settings.set(key, Setting::Other(value.to_owned()));
        }
    }
}

/// Removes the quotation marks around a string.
fn unquote(text: &str) -> &str {
    text.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(text)
}

/// Splits a text at the commas that are outside brackets.
fn split_at_commas(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let mut start = 0;
    let mut parts = Vec::new();
    for (index, c) in text.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.extend(text.get(start..index));
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(start..));
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Parses `Name { field: value, field: value }` or a single word.
fn parse_struct(text: &str) -> Option<(&str, Vec<(&str, &str)>)> {
    let Some((name, fields)) = text.split_once('{') else { return Some((text, Vec::new())) };
    let fields = split_at_commas(fields.strip_suffix('}')?).into_iter();
    let fields = fields.map(|field| field.split_once(':').map(|(key, value)| (key.trim(), value.trim())));
    Some((name.trim(), fields.collect::<Option<_>>()?))
}

/// Translates the settings of a linear model.
fn translate_linear_model(lines: &Lines<'_>, settings: &mut Settings) {
    // The text does not say whether the model is an adapter. Only these two algorithms used an adapter.
    let is_adapter = lines
        .0
        .borrow()
        .iter()
        .any(|(key, value)| *key == "algorithm.name" && ["rolora", "ffa-lora"].contains(&unquote(value)));
    settings.set("model.kind", if is_adapter { "lora-linear" } else { "linear" });
    if let Some(width) = lines.take("model.k") {
        settings.set(if is_adapter { "model.rank" } else { "model.k" }, Setting::parse(width));
    }
    let Some(init) = lines.take("model.init") else { return };
    let power = init.strip_prefix("\"power\"").and_then(|rest| rest.strip_suffix(" iterations"));
    let iterations = power.and_then(|rest| rest.rsplit_once(", "));
    match (iterations, unquote(init)) {
        (Some((noise, iterations)), _) => {
            settings.set("model.init", "power");
            settings.set("model.power_iterations", Setting::parse(iterations));
            if noise == " with noise" {
                settings.set(super::write::NOISY_START, true);
            }
        }
        (None, name) => {
            let sine = name.strip_prefix("truth-sine:").and_then(|sine| sine.parse::<f64>().ok());
            let init = sine.map_or_else(|| name.to_owned(), |sine| format!("truth-sine:{sine}"));
            settings.set("model.init", init.as_str());
        }
    }
}

/// Translates the settings of a network.
fn translate_network_model(lines: &Lines<'_>, settings: &mut Settings) {
    // Networks have only one kind of initial model.
    lines.take("model.init");
    let mut layers: Vec<Setting> = Vec::new();
    let (mut side, mut pool) = (None, None);
    while let Some(filters) = lines.take("model.filters") {
        let words: Vec<&str> = filters.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        if let [count, "of", "side", s, "pooled", "by", p] = words.as_slice() {
            layers.push(Setting::parse(count));
            (side, pool) = (Some(Setting::parse(s)), Some(Setting::parse(p)));
        } else {
            layers.push(Setting::Other(filters.to_owned()));
        }
    }
    let has_key = |key: &str| lines.0.borrow().iter().any(|(line_key, _)| *line_key == key);
    let kind = match layers.is_empty() {
        false => "cnn",
        true if has_key("model.cells") => "lstm",
        true if has_key("model.rank") => "lora-mlp",
        true => "mlp",
    };
    settings.set("model.kind", kind);
    if !layers.is_empty() {
        settings.set("model.filters", Setting::List(layers));
    }
    for (key, value) in [("model.side", side), ("model.pool", pool)] {
        if let Some(value) = value {
            settings.set(key, value);
        }
    }
    for key in ["model.cells", "model.rank", "model.width", "model.frozen"] {
        lines.copy(settings, key);
    }
    // The text pads the list of widths with zeros.
    if let Some(hidden) = lines.take("model.hidden") {
        let hidden = match Setting::parse(hidden) {
            Setting::List(widths) => {
                Setting::List(widths.into_iter().filter(|width| *width != Setting::Integer(0)).collect())
            }
            other => other,
        };
        settings.set("model.hidden", hidden);
    }
}

/// Translates the algorithm of a linear model.
fn translate_linear_algorithm(lines: &Lines<'_>, settings: &mut Settings, name: &str) {
    settings.set("algorithm.name", name);
    let power = ["iterations", "local_steps", "decay", "procrustes", "reference", "rows"];
    if name == "fedpower" {
        lines.take("algorithm.rounds");
        power.iter().for_each(|key| lines.copy(settings, &format!("algorithm.{key}")));
    } else {
        lines.copy(settings, "algorithm.rounds");
    }
    lines.copy(settings, "algorithm.step_size");
    if let Some(head) = lines.take("algorithm.head") {
        match head.split_once(", ") {
            Some(("\"least-squares\"", ridge)) => {
                settings.set("algorithm.head", "least-squares");
                settings.set("algorithm.ridge", Setting::parse(ridge.trim_start_matches("ridge = ")));
            }
            Some(("\"gradient\"", steps)) => {
                let (count, size) = steps.split_once(" steps of ").unwrap_or((steps, ""));
                settings.set("algorithm.head", "gradient");
                settings.set("algorithm.head_steps", Setting::parse(count));
                settings.set("algorithm.head_step_size", Setting::parse(size));
            }
            _ => settings.set("algorithm.head", Setting::Other(head.to_owned())),
        }
    }
    if let Some(head) = lines.take(MARKER_KEY) {
        let ridge = head.strip_prefix("\"least-squares\", ridge = ");
        let ridge = ridge.map_or_else(|| Setting::Other(head.to_owned()), Setting::parse);
        settings.set("algorithm.final_ridge", ridge);
    }
    for key in ["algorithm.head_step_size", "algorithm.local_steps"] {
        lines.copy(settings, key);
    }
    // A legacy text omits the key if the value is f32.
    settings.set("algorithm.numeric", "f32");
    lines.copy(settings, "algorithm.numeric");
    lines.copy(settings, "algorithm.send");
}

/// Translates the algorithm of a network.
fn translate_network_algorithm(
    lines: &Lines<'_>,
    settings: &mut Settings,
    name: &str,
    fields: &[(&str, &str)],
) {
    // These keys are dropped: the values are among the fields of the network, or follow from the method.
    for key in ["step_size", "head", "final_head", "head_step_size", "local_steps", "send"] {
        lines.take(&format!("algorithm.{key}"));
    }
    let field = |fields: &[(&str, &str)], wanted: &str| {
        let setting = fields.iter().find(|(key, _)| *key == wanted).map(|(_, value)| Setting::parse(value));
        setting.unwrap_or_else(|| Setting::Other("?".to_owned()))
    };
    let nested = |wanted: &str| {
        let entry = fields.iter().find(|(key, _)| *key == wanted);
        entry.and_then(|(_, value)| parse_struct(value)).unwrap_or_default()
    };
    let tuned = field(fields, "tuned") == Setting::Flag(true);
    settings.set("algorithm.name", format!("{name}{}", if tuned { "+ft" } else { "" }).as_str());
    lines.copy(settings, "algorithm.rounds");
    let (_, descent) = nested("descent");
    for key in ["step_size", "momentum", "batch"] {
        settings.set(&format!("algorithm.{key}"), field(&descent, key));
    }
    let (method, parameters) = nested("method");
    if method == "FedRep" {
        settings.set("algorithm.head_epochs", field(fields, "head_epochs"));
    }
    for (key, value) in parameters {
        match key {
            "layers" => settings.set("algorithm.shared_layers", Setting::parse(value)),
            // The name of the algorithm implies this field.
            "hessian_free" => {}
            key => settings.set(&format!("algorithm.{key}"), Setting::parse(value)),
        }
    }
    settings.set("algorithm.body_epochs", field(fields, "epochs"));
    settings.set("algorithm.tuning_epochs", field(fields, "tuning_epochs"));
}

/// Translates the aggregation rule.
fn translate_rule(lines: &Lines<'_>, settings: &mut Settings) {
    // A legacy text omits the key if the rule is the mean.
    let rule = lines.take("aggregation.rule").unwrap_or("\"mean\"");
    let (name, trim) = rule.split_once(", trim = ").map_or((rule, None), |(name, trim)| (name, Some(trim)));
    settings.set("aggregation.rule", unquote(name));
    if let Some(trim) = trim {
        settings.set("aggregation.trim", Setting::parse(trim));
    }
}

/// Translates the participation policy.
fn translate_participation(lines: &Lines<'_>, settings: &mut Settings) {
    let Some(policy) = lines.take("participation.policy") else { return };
    let mut set = |key: &str, value: Setting| settings.set(&format!("participation.{key}"), value);
    for part in split_at_commas(policy) {
        match part.split_once(" = ") {
            None => set("policy", Setting::parse(part)),
            Some(("cohort", "None")) => {}
            Some(("cohort", option)) => {
                let size = option.strip_prefix("Some(").and_then(|size| size.strip_suffix(')'));
                set("cohort", size.map_or_else(|| Setting::Other(option.to_owned()), Setting::parse));
            }
            Some(("schedule", schedule)) => {
                if let Some(rounds) = schedule.strip_prefix("Fixed(").and_then(|n| n.strip_suffix(')')) {
                    set("schedule", "fixed".into());
                    set("stage_rounds", Setting::parse(rounds));
                } else if let Some((name, fields)) = parse_struct(schedule) {
                    set("schedule", name.to_lowercase().as_str().into());
                    fields.into_iter().for_each(|(key, value)| set(key, Setting::parse(value)));
                }
            }
            Some((key, value)) => set(key, Setting::parse(value)),
        }
    }
}
