//! Writer of fingerprints: lists the settings of a configuration under their keys.
//!
//! Sections are destructured field by field: a new field must either be written here or be ignored with a
//! comment that gives the reason.

use fedspan_protocol::limits::UNTIL_PLATEAU;
use fedspan_protocol::message::{Descent, Filters, HeadSolve, Image};

use super::super::fleet::Fleet;
use super::super::limits::Limits;
use super::text::Settings;
use super::value::Setting;
use fedspan_engine::CustomNames;
use fedspan_engine::aggregate::{Rule, SampleCap};
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::Shape;
use fedspan_engine::config::{AlgorithmSection, ENCODINGS, Init, ModelSection, NUMERICS, SENDS, WEIGHTINGS};
use fedspan_engine::config::{FrontModel, NetworkModel, NetworkSection};
use fedspan_engine::config::{Method, TUNED};
use fedspan_engine::participation::Policy;

/// Key of a setting that follows from `[privacy]` and that no file sets: whether noise is added to the
/// products from which power iterations compute the initial model.
pub(super) const NOISY_START: &str = "privacy.noisy_start";

/// Key of the number of expected devices. The number is part of the fingerprint only for SCAFFOLD, which
/// divides the sum of control variates by the number. For other algorithms only the first round depends on
/// the number.
const EXPECTED: &str = "devices.expected";

/// Keys whose values follow from the configuration, not from the stored settings.
pub(super) const DERIVED: [&str; 2] = [NOISY_START, EXPECTED];

/// Prefix of the keys of custom parts, which no file sets.
pub(super) const CUSTOM: &str = "custom.";

/// Prefix of the keys of an aggregation rule.
pub(super) const AGGREGATION: &str = "aggregation.";

impl Fleet {
    /// Returns the settings that affect the results of a campaign.
    pub(in super::super) fn settings(&self) -> Settings {
        let Self {
            seed,
            shape,
            scale,
            model,
            algorithm,
            rule,
            participation,
            stop_change,
            limits,
            // Written below, for SCAFFOLD only.
            expected,
            first_device: _,
            // These settings may change while a campaign runs, or follow from the program that runs it.
            state: _,
            journal: _,
            tcp: _,
            udp: _,
            packet: _,
            short_tags: _,
            beacon: _,
            beacon_delay: _,
            serial: _,
            baud: _,
            security: _,
            allowed: _,
            held_out: _,
            absence: _,
            privacy: _,
            rounds: _,
            given: _,
            custom,
        } = self;
        let mut settings = Settings::default();
        settings.set("seed", *seed);
        write_shape(&mut settings, *shape);
        write_scale(&mut settings, scale);
        write_model(&mut settings, model);
        write_algorithm(&mut settings, algorithm);
        if algorithm.network().is_some_and(|network| network.method.uses_fleet_size()) {
            settings.set(EXPECTED, *expected);
        }
        write_rule(&mut settings, *rule);
        write_participation(&mut settings, participation);
        write_limits(&mut settings, limits);
        if let Some(change) = stop_change {
            settings.set("stop.change", *change);
        }
        write_custom(&mut settings, custom);
        settings
    }
}

/// Writes the names and settings of custom parts; writes nothing if there are no custom parts.
fn write_custom(settings: &mut Settings, custom: &CustomNames) {
    let CustomNames { algorithm, participation, settings: custom_settings } = custom;
    if let Some(name) = algorithm {
        settings.set(&format!("{CUSTOM}algorithm"), name.as_str());
    }
    if let Some(name) = participation {
        settings.set(&format!("{CUSTOM}participation"), name.as_str());
    }
    for (key, value) in custom_settings {
        settings.set(&format!("{CUSTOM}settings.{key}"), *value);
    }
}

/// Writes the sizes of the data.
fn write_shape(settings: &mut Settings, shape: Shape) {
    let Shape { features, outputs, image } = shape;
    settings.set("data.d", features);
    settings.set("data.outputs", outputs);
    if let Some(Image { height, width, channels }) = image {
        settings.set("data.image", vec![height, width, channels]);
    }
}

/// Writes the scale of the samples; writes nothing if samples are not scaled.
fn write_scale(settings: &mut Settings, scale: &ScaleSource) {
    match scale {
        ScaleSource::None => {}
        ScaleSource::Fleet => settings.set("data.scale", "fleet"),
        ScaleSource::Given(scale) => {
            settings.set("data.scale.shift", scale.shift().to_vec());
            settings.set("data.scale.factor", scale.factor().to_vec());
        }
    }
}

/// Writes the model.
fn write_model(settings: &mut Settings, model: &ModelSection) {
    // `target` only serves to score results. `base` is a path that only the simulator uses; the model
    // contains the checksum of that file.
    let ModelSection { k, init, target: _, network, adapter, base: _ } = model;
    if let Some(network) = network {
        return write_network_model(settings, *network);
    }
    settings.set("model.kind", if *adapter { "lora-linear" } else { "linear" });
    settings.set(&format!("model.{}", model.width_key()), *k);
    let init_name = match init {
        Init::Random => "random".to_owned(),
        Init::Power { .. } | Init::NoisyPower { .. } => "power".to_owned(),
        Init::Moments => "moments".to_owned(),
        Init::TruthSine(sine) => format!("truth-sine:{sine}"),
        Init::Npy(path) => format!("npy:{path}"),
    };
    settings.set("model.init", init_name.as_str());
    if let Init::Power { iterations } | Init::NoisyPower { iterations } = init {
        settings.set("model.power_iterations", *iterations);
    }
    if let Init::NoisyPower { .. } = init {
        settings.set(NOISY_START, true);
    }
}

/// Writes the layers of a network.
fn write_network_model(settings: &mut Settings, network: NetworkModel) {
    let NetworkModel { front, hidden } = network;
    let kind = match front {
        FrontModel::Nothing => "mlp",
        FrontModel::Filters(_) => "cnn",
        FrontModel::Cells(_) => "lstm",
        FrontModel::Adapter { .. } => "lora-mlp",
    };
    settings.set("model.kind", kind);
    match front {
        FrontModel::Nothing => {}
        FrontModel::Filters(filters) => {
            let filters: Vec<Filters> = filters.into_iter().filter(|filters| filters.count > 0).collect();
            let counts: Vec<u16> = filters.iter().map(|filters| filters.count).collect();
            settings.set("model.filters", counts);
            // All convolutional layers have the side and pool of the first one.
            let Filters { count: _, side, pool } = filters.first().copied().unwrap_or_default();
            settings.set("model.side", u16::from(side));
            settings.set("model.pool", u16::from(pool));
        }
        FrontModel::Cells(cells) => settings.set("model.cells", cells),
        FrontModel::Adapter { rank, width, frozen } => {
            settings.set("model.rank", rank);
            settings.set("model.width", width);
            settings.set("model.frozen", frozen);
        }
    }
    settings.set("model.hidden", hidden.into_iter().take_while(|width| *width > 0).collect::<Vec<u16>>());
}

/// Writes the algorithm of a linear model or network.
fn write_algorithm(settings: &mut Settings, algorithm: &AlgorithmSection) {
    let AlgorithmSection {
        method,
        // Written as the number of rounds of training.
        rounds: _,
        step_size,
        head,
        final_head,
        ridge_labels,
        // These keys are written below, by the algorithms that use them.
        head_step_size: _,
        local_steps: _,
        weighting,
        send,
        upload,
        download,
        numeric,
    } = *algorithm;
    let mut set = |key: &str, value: Setting| settings.set(&format!("algorithm.{key}"), value);
    let tuned = algorithm.network().is_some_and(|network| network.tuned);
    set("name", format!("{}{}", algorithm.name(), if tuned { TUNED } else { "" }).as_str().into());
    let linear_settings = algorithm.linear_settings();
    let derives_rounds = algorithm.linear().is_some_and(|method| method.rounds().is_some());
    match method {
        Method::Linear(method) if derives_rounds => {
            method.write(&linear_settings, &mut |key, value| set(key, Setting::from_toml(&value)));
        }
        Method::Linear(_) | Method::Network(_) => set("rounds", algorithm.training_rounds().into()),
    }
    match method {
        Method::Network(network) => write_network(settings, network),
        Method::Linear(method) => {
            set("step_size", step_size.into());
            match head {
                HeadSolve::LeastSquares { ridge } => {
                    set("head", "least-squares".into());
                    set("ridge", ridge.into());
                }
                HeadSolve::Gradient { steps, step_size } => {
                    set("head", "gradient".into());
                    set("head_steps", steps.into());
                    set("head_step_size", step_size.into());
                }
                // The remaining solvers apply only to the heads of networks.
                _ => {}
            }
            match final_head {
                HeadSolve::LeastSquares { ridge } => set("final_ridge", ridge.into()),
                HeadSolve::LeaveOneOut { fallback_ridge } => {
                    set("final_ridge", "auto".into());
                    set("fallback_ridge", fallback_ridge.into());
                }
                _ => {}
            }
            if let Some(labels) = ridge_labels {
                set("labels_per_class", labels.into());
            }
            if !derives_rounds {
                method.write(&linear_settings, &mut |key, value| set(key, Setting::from_toml(&value)));
            }
            set("numeric", named_setting(&NUMERICS, &numeric));
            set("send", named_setting(&SENDS, &send));
        }
    }
    let mut set = |key: &str, value: Setting| settings.set(&format!("algorithm.{key}"), value);
    set("weighting", named_setting(&WEIGHTINGS, &weighting));
    set("upload", named_setting(&ENCODINGS, &upload));
    set("download", named_setting(&ENCODINGS, &download));
}

/// Writes the method of a network, with the epochs and steps with which heads are trained.
fn write_network(settings: &mut Settings, network: NetworkSection) {
    let NetworkSection { method, descent, head_epochs, epochs, tuning_epochs, tuned: _ } = network;
    let Descent { step_size, momentum, batch } = descent;
    let mut set = |key: &str, value: Setting| settings.set(&format!("algorithm.{key}"), value);
    set("step_size", step_size.into());
    set("momentum", momentum.into());
    set("batch", batch.into());
    if method.has_head_epochs() {
        set("head_epochs", head_epochs.into());
    }
    method.write(&mut |key, value| set(key, Setting::from_toml(&value)));
    set("body_epochs", epochs.into());
    set(
        "tuning_epochs",
        match tuning_epochs {
            UNTIL_PLATEAU => "auto".into(),
            epochs => epochs.into(),
        },
    );
}

/// Writes the aggregation rule.
fn write_rule(settings: &mut Settings, rule: Rule) {
    settings.set("aggregation.rule", rule.as_str());
    for (key, value) in rule.parameters() {
        settings.set(&format!("aggregation.{key}"), value);
    }
}

/// Writes the participation policy.
fn write_participation(settings: &mut Settings, participation: &Policy) {
    settings.set("participation.policy", participation.name());
    participation.write(&mut |key, value| {
        settings.set(&format!("participation.{key}"), Setting::from_toml(&value));
    });
}

/// Writes the limits that affect results.
fn write_limits(settings: &mut Settings, limits: &Limits) {
    let Limits {
        norm,
        // `relative` follows from the aggregation rule.
        samples: SampleCap { max_samples, relative: _ },
        // These settings may change while a campaign runs.
        connections: _,
        per_address: _,
        unauthenticated: _,
        updates: _,
        hello: _,
        idle: _,
        frame: _,
        repeat: _,
    } = limits;
    settings.set("limits.norm", *norm);
    settings.set("limits.samples", *max_samples);
}

/// Returns the name of a value; a value without a name becomes a setting that differs from every other
/// setting.
fn named_setting<T: PartialEq>(names: &[(&str, T)], value: &T) -> Setting {
    let entry = names.iter().find(|(_, named)| named == value);
    entry.map_or_else(|| Setting::Other("?".to_owned()), |(name, _)| (*name).into())
}
