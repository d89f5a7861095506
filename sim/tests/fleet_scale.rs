//! Tests of the setting `scale = "fleet"` in `[data]`: results do not depend on units and offsets of the
//! features, and every kind of data can be scaled.
#![allow(clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::path::Path;

use fedspan_sim_core::run::{Job, NoProgress, Outcome};
use fedspan_sim_core::scenario::Scenario;

fn outcome(text: &str, changes: &[&str]) -> Outcome {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let scenario = Scenario::parse("test", text, &changes).unwrap_or_else(|problem| panic!("{problem}"));
    Job::prepare(&scenario, scenario.seed).unwrap().run(&mut NoProgress).unwrap()
}

/// Writes a table of 12 clients with 40 samples each. Feature j is `offsets[j]` plus `scales[j]` times a
/// random number around 0, and the target depends on two directions of the six features.
fn write_table(path: &Path, offsets: [f64; 6], scales: [f64; 6]) {
    let mut state = 7u64;
    let mut normal = || {
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    };
    let directions: Vec<[f64; 2]> = (0..6).map(|_| [normal(), normal()]).collect();
    let mut text = String::from("who,a,b,c,d,e,f,y\n");
    for client in 0..12 {
        let head = [normal(), normal()];
        for _ in 0..40 {
            let z: Vec<f64> = (0..6).map(|_| normal()).collect();
            let y: f64 = (0..2).map(|k| head[k] * (0..6).map(|j| directions[j][k] * z[j]).sum::<f64>()).sum();
            let x: Vec<String> = (0..6).map(|j| format!("{:.12e}", offsets[j] + scales[j] * z[j])).collect();
            text.push_str(&format!("{client},{},{y:.9e}\n", x.join(",")));
        }
    }
    std::fs::write(path, text).unwrap();
}

/// Scenario that reads a table and scales the features over the fleet.
fn scenario(path: &Path, algorithm: &str) -> String {
    format!(
        "seed = 5\n[data]\nkind = \"csv\"\npath = {:?}\nclient = \"who\"\ntarget = \"y\"\n\
         features = [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]\nscale = \"fleet\"\n[model]\nk = 3\n[algorithm]\n{algorithm}\n",
        path.display().to_string()
    )
}

/// Settings of algorithm FedRep.
const FED_REP: &str = "name = \"fedrep\"\nrounds = 60\nstep_size = 0.05";

/// Features with offsets of up to 1e5 deviations, and with scales that differ by a factor of 1e6, have the
/// results of standardised features up to the rounding of samples in f32, which is 1e5 2^-24 of a deviation.
#[test]
fn units_and_offsets_do_not_change_results() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, shifted_path) = (folder.path().join("plain.csv"), folder.path().join("other.csv"));
    write_table(&plain, [0.0; 6], [1.0; 6]);
    let scales = [1e-3, 1e3, 1.0, 5.0, 1e2, 0.1];
    write_table(&shifted_path, [1e2, 2020.0 * 1e3, -1e5, 1013.0, 0.0, 1e3], scales);
    let expected = outcome(&scenario(&plain, FED_REP), &[]);
    let shifted = outcome(&scenario(&shifted_path, FED_REP), &[]);
    let (plain_mse, shifted_mse) = (expected.scores.test_mse.unwrap(), shifted.scores.test_mse.unwrap());
    let (wanted_loss, got_loss) = (expected.scores.loss.unwrap(), shifted.scores.loss.unwrap());
    // Samples differ by up to 1e5 2^-25 = 3e-3 deviations, and targets, whose variance is about 12, by 3e-3
    // of their deviation.
    assert!((plain_mse - shifted_mse).abs() <= 0.02 * plain_mse + 1e-3, "{plain_mse} {shifted_mse}");
    assert!((wanted_loss - got_loss).abs() <= 0.02 * wanted_loss + 1e-3, "{wanted_loss} {got_loss}");
    // On the same data without scaling, FedRep learns almost nothing.
    let unscaled = outcome(&scenario(&shifted_path, FED_REP), &["data.scale=\"none\""]);
    assert!(
        unscaled.scores.test_mse.is_none_or(|mse| mse >= 3.0 * shifted_mse + 0.1),
        "{:?} {shifted_mse}",
        unscaled.scores
    );

    let scale = shifted.scale.expect("a scale");
    for (j, size) in scales.iter().enumerate() {
        assert!((f64::from(scale.factor()[j]) * size - 1.0).abs() < 0.2, "{j}: {:?}", scale.factor());
    }
    // The constant feature is not scaled.
    assert_eq!((scale.shift()[6], scale.factor()[6]), (0.0, 1.0));
    assert_eq!(outcome(&scenario(&shifted_path, FED_REP), &["data.scale=\"none\""]).scale, None);
}

/// Pooled and local-only training, which have no rounds, use the same scale as a campaign, bit for bit.
#[test]
fn baselines_use_the_scale_of_the_campaign() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.csv");
    write_table(&path, [1e2, 2e5, 0.0, 1013.0, 0.0, 1e3], [1e-3, 1e3, 1.0, 5.0, 1e2, 0.1]);
    let scale = outcome(&scenario(&path, FED_REP), &["algorithm.rounds=1"]).scale;
    assert!(scale.is_some());
    for name in ["pooled", "local-only"] {
        let outcome_with_scale = outcome(&scenario(&path, &format!("name = \"{name}\"")), &[]);
        assert_eq!(outcome_with_scale.scale, scale, "{name}");
        assert!(outcome_with_scale.scores.loss.is_some_and(f64::is_finite));
    }
}

#[test]
fn every_data_kind_is_scaled() {
    for (name, changes) in [
        ("linear", &["algorithm.rounds=3", "data.clients=10"][..]),
        ("rolora", &["algorithm.rounds=4", "data.clients=5", "data.d=10"]),
        ("digits", &["algorithm.rounds=2"]),
        ("digits-network", &["algorithm.rounds=1"]),
        ("demo", &["algorithm.rounds=2"]),
        ("watch-network", &["algorithm.rounds=1"]),
    ] {
        let text = Scenario::built_in(name).unwrap();
        let all_changes: Vec<&str> = changes.iter().copied().chain(["data.scale=\"fleet\""]).collect();
        let scaled = outcome(text, &all_changes);
        assert!(scaled.scale.is_some(), "{name}");
        assert!(scaled.scores.loss.is_none_or(f64::is_finite), "{name}");
    }
}

#[test]
fn unscalable_data_are_refused() {
    let reported = |text: &str, changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        Scenario::parse("test", text, &changes).unwrap_err().to_string()
    };
    let linear = Scenario::built_in("linear").unwrap();
    assert!(reported(linear, &["data.scale=\"flet\""]).contains("did you mean \"fleet\""));
    let robust = reported(Scenario::built_in("byzantine").unwrap(), &["data.scale=\"fleet\""]);
    assert!(robust.contains("one device can move"), "{robust}");
    let private = reported(Scenario::built_in("fedrep-private").unwrap(), &["data.scale=\"fleet\""]);
    assert!(private.contains("reveals"), "{private}");
}
