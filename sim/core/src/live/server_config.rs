//! Configuration file of a real server for the clients of a scenario.

use fedspan_aggregator::config::Fleet;
use fedspan_engine::algorithm::ScaleSource;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value, value};

use super::LiveError;
use crate::data::Dataset;
use crate::scenario::Scenario;

/// Sections that mean the same in a scenario and in the configuration of a server, with the keys that are taken over;
/// `None` for all keys.
const SECTIONS: [(&str, Option<&[&str]>); 6] = [
    ("model", None),
    ("algorithm", None),
    ("aggregation", None),
    ("participation", None),
    ("privacy", Some(&["epsilon", "delta"])),
    ("stop", Some(&["change"])),
];

/// Numbers of connections that a server accepts by default: from one address, and in total.
const CONNECTIONS_OF_ADDRESS: usize = 256;
const CONNECTIONS: usize = 1024;

/// Text of a configuration file with which `fedspan-aggregator serve` trains the model of a scenario with real devices, or
/// with clients of the scenario that `fedspan-sim device` runs. Step sizes that are measured, as in the scenario of a
/// [`Job`](crate::run::Job), are written as numbers. `changes` are those of the scenario, which devices need, too.
///
/// # Errors
/// [`LiveError::Scenario`] or [`LiveError::AttackNotAllowed`] if a server cannot run the scenario.
pub fn server_configuration(
    scenario: &Scenario,
    dataset: &Dataset,
    changes: &[String],
) -> Result<String, LiveError> {
    let unusable = |reason: String| LiveError::Scenario(format!("{}: {reason}", scenario.name));
    if let Some(reason) = scenario.not_served_because() {
        return Err(unusable(reason.to_owned()));
    }
    if scenario.attack.is_some() {
        scenario.check_runs_on_devices()?;
    }
    let (clients, shape) = (dataset.clients.len(), dataset.sizes());
    let source: DocumentMut = scenario.text.parse().map_err(|error| unusable(format!("{error}")))?;
    let mut file = DocumentMut::new();
    let count = |number: usize| value(i64::try_from(number).unwrap_or(i64::MAX));
    file.insert("seed", value(i64::try_from(scenario.seed).unwrap_or(i64::MAX)));
    file.insert("state", value("fedspan-state"));
    file.insert("listen", table([("tcp", value("127.0.0.1:4410"))]));
    let mut devices = vec![("expected", count(clients))];
    if !dataset.newcomers.is_empty() {
        // Devices have the numbers of clients, from 1.
        let newcomers =
            (clients + 1..=clients + dataset.newcomers.len()).filter_map(|n| i64::try_from(n).ok());
        devices.push(("held_out", value(newcomers.collect::<Array>())));
    }
    file.insert("devices", table(devices));
    let mut data = vec![("d", count(shape.features)), ("outputs", count(shape.outputs))];
    match &scenario.scale {
        ScaleSource::None => {}
        ScaleSource::Fleet => data.push(("scale", value("fleet"))),
        ScaleSource::Given(scale) => {
            let list = |values: &[f32]| Value::Array(values.iter().map(|v| f64::from(*v)).collect::<Array>());
            let scale: InlineTable =
                [("shift", list(scale.shift())), ("factor", list(scale.factor()))].into_iter().collect();
            data.push(("scale", value(scale)));
        }
    }
    if let Some(image) = shape.image {
        let sides: Array = [image.height, image.width, image.channels].map(i64::from).into_iter().collect();
        data.push(("image", value(sides)));
    }
    file.insert("data", table(data));
    for (name, keys) in SECTIONS {
        let Some(section) = source.get(name).and_then(Item::as_table_like) else { continue };
        let kept = section.iter().filter(|(key, _)| keys.is_none_or(|keys| keys.contains(key)));
        let copied: Vec<(&str, Item)> = kept.map(|(key, item)| (key, item.clone())).collect();
        if !copied.is_empty() {
            file.insert(name, table(copied));
        }
    }
    // The defaults of a server are lower.
    let mut limits = vec![
        ("norm", value(f64::from(scenario.norm))),
        ("samples", value(i64::from(scenario.samples.max_samples))),
    ];
    if clients > CONNECTIONS_OF_ADDRESS {
        limits.extend(["connections", "per_address"].map(|key| (key, count(clients.max(CONNECTIONS)))));
    }
    file.insert("limits", table(limits));
    if let Some(algorithm) = file.get_mut("algorithm").and_then(Item::as_table_mut) {
        let measured = scenario.measured;
        for (key, is_measured, step) in [
            ("step_size", measured.step_size, scenario.algorithm.step_size),
            ("head_step_size", measured.head_step_size, scenario.algorithm.head_step_size),
        ] {
            // A server has no samples on which to measure "auto", and an algorithm without steps needs none.
            if algorithm.get(key).is_some_and(Item::is_str) {
                algorithm.remove(key);
            }
            if is_measured {
                algorithm.insert(key, value(step));
            }
        }
    }
    let text = format!("{}{file}", introduction(scenario, clients + dataset.newcomers.len(), changes));
    Fleet::parse("fleet.toml", &text).map_err(|problem| unusable(problem.to_string()))?;
    Ok(text)
}

/// Comment at the beginning of the file.
fn introduction(scenario: &Scenario, devices: usize, changes: &[String]) -> String {
    let changes: String = changes.iter().map(|change| format!(" --set '{change}'")).collect();
    format!(
        "# Server for the clients of the scenario {}, from `fedspan-sim fleet`. Every key is in aggregator/examples/fleet.toml.\n\
         #\n\
         #   fedspan-aggregator keys --config fleet.toml add 1..{devices}\n\
         #   fedspan-aggregator keys --config fleet.toml export 1..{devices} -o devices.keys\n\
         #   fedspan-aggregator serve --config fleet.toml\n\
         #   fedspan-sim device --connect 127.0.0.1:4410 --keys devices.keys --scenario {}{changes} --client 1     (to {devices})\n\n",
        scenario.name, scenario.name
    )
}

/// Section with these keys.
fn table<'a>(keys: impl IntoIterator<Item = (&'a str, Item)>) -> Item {
    Item::Table(keys.into_iter().collect::<Table>())
}
