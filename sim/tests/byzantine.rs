//! Tests of the Byzantine measurement on a small grid, with the thresholds of `aggregator/POISON.md`, and of
//! simulated attackers.

use std::sync::atomic::AtomicBool;

use fedspan_experiments::byzantine::{GRIDS, Grid, Row, Settings, Variant, markdown, measure};
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

/// Stop flag that is never set.
static GO_ON: AtomicBool = AtomicBool::new(false);

/// Progress display without output.
struct Silent;

impl Progress for Silent {
    fn advance(&self, _parts: u64, _of: u64, _what: &str) {}
}

/// Variant with the given name.
fn variant_by_name(variants: &[Variant], name: &str) -> Variant {
    variants.iter().find(|variant| variant.name == name).copied().unwrap()
}

/// Settings with all attacks of a grid, and the given rules and fractions.
fn settings(grid: Grid, rules: &[&str], fractions: &[f64]) -> Settings {
    Settings {
        grid,
        attacks: grid.attacks.to_vec(),
        rules: rules.iter().map(|rule| variant_by_name(grid.rules, rule)).collect(),
        fractions: fractions.to_vec(),
        changes: Vec::new(),
        seed: 6,
        seeds: 3,
        threads: 2,
    }
}

/// Grid with the given name.
fn variants_grid(name: &str) -> Grid {
    GRIDS.into_iter().find(|grid| grid.name == name).unwrap()
}

fn measured(settings: &Settings) -> Vec<Row> {
    measure(settings, &GO_ON, &Silent).unwrap().unwrap()
}

/// Runs the built-in scenario with changes.
fn outcome(changes: &[&str], seed: u64) -> Outcome {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    let text = Scenario::built_in("byzantine").unwrap();
    run(&Scenario::parse("byzantine", text, &changes).unwrap(), seed, &mut NoProgress).unwrap()
}

/// The spectral filter and, with k = 2 and enough samples, the geometric median keep the distance small under every
/// attack of the grid and with every seed.
#[test]
fn robust_rules_withstand_a_fifth_of_attackers() {
    let rows = measured(&settings(GRIDS[0], &["geometric median", "spectral filter"], &[0.05, 0.1, 0.2]));
    assert_eq!(rows.len(), 1 + 3 * GRIDS[0].attacks.len());
    for (row, cell) in rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell))) {
        assert_eq!(cell.distances.len(), 3);
        // POISON.md says which attacks cost the geometric median a data set, and both rules.
        let is_lost = row.attack == "opposing rank one"
            || cell.rule == "geometric median"
                && (row.attack == "IPM 5" || row.attack.starts_with("opposing"));
        let distance = if is_lost { cell.median() } else { cell.worst() };
        assert!(distance <= 0.05, "{} by {}, {}: {:?}", row.attack, row.fraction, cell.rule, cell.distances);
        // The spectral filter rejects gradients of full rank, but not the numbers of the start.
        let has_full_rank = cell.rule == "spectral filter"
            && ["IPM", "ALIE", "Gauss", "opposing"].iter().any(|name| row.attack.starts_with(name))
            && row.attack != "opposing rank one";
        if has_full_rank && cell.attacks > 0 {
            assert!(0 < cell.rejected && cell.rejected < cell.attacks, "{}: {}", row.attack, cell.rejected);
        } else {
            let bad_numbers = ["NaN", "Inf", "scale 1e6"].contains(&row.attack);
            assert_eq!(cell.rejected, if bad_numbers { cell.attacks } else { 0 }, "{}", row.attack);
        }
        assert_eq!(cell.attacks > 0, row.attack != "none");
        assert_eq!(cell.capped > 0, row.attack.contains("1e9"));
    }
    assert!(
        rows[0].cells[0].median() <= 0.008,
        "the distance without attackers is too large: {:?}",
        rows[0].cells[0].distances
    );
}

/// In shapes in which the geometric median is worse than the mean, the spectral filter is at most 1.5 times as far from
/// the truth as the mean under the same attack, or at most 0.03.
#[test]
fn spectral_filter_is_not_worse_than_mean_in_other_shapes() {
    let shapes: [&[&str]; 4] = [
        &["data.k=1", "model.k=1", "data.clients=20", "data.samples=8"],
        &["data.k=4", "model.k=4", "data.clients=20", "data.samples=20", "algorithm.rounds=300"],
        &["data.samples=8"],
        &["data.d=57", "data.samples=10", "algorithm.numeric=i16"],
    ];
    for shape in shapes {
        let all = settings(GRIDS[0], &["mean", "spectral filter"], &[0.2]);
        let names = ["sign x1", "sign x10", "IPM 1.5", "mimic", "opposing 0.1", "weak heads 1"];
        let attacks = all.attacks.iter().filter(|attack| names.contains(&attack.name)).copied().collect();
        let changes = shape.iter().map(|change| (*change).to_owned()).collect();
        for row in measured(&Settings { attacks, changes, ..all }) {
            let [mean, filter] = &row.cells[..] else { panic!("{} cells instead of 2", row.cells.len()) };
            let bound = (1.5 * mean.median()).max(0.03);
            assert!(
                filter.median() <= bound,
                "{shape:?}, {}: {:?}, mean {:?}",
                row.attack,
                filter.distances,
                mean.distances
            );
        }
    }
}

/// The sign attacks destroy the model under the mean, which shows that the attacks of the grid are effective.
#[test]
fn mean_fails_under_attack() {
    let all_settings = settings(GRIDS[0], &["mean"], &[0.2]);
    let attacks =
        all_settings.attacks.iter().filter(|attack| attack.name.starts_with("sign x10")).copied().collect();
    for row in measured(&Settings { attacks, ..all_settings }).iter().skip(1) {
        assert!(row.cells[0].median() > 0.5, "{}: {:?}", row.attack, row.cells[0].distances);
    }
}

#[test]
fn projector_median_withstands_orthogonal_plane_of_nearly_half() {
    let all_settings = settings(GRIDS[1], &["projector geometric median", "geometric median"], &[0.2, 0.45]);
    let attacks = vec![variant_by_name(GRIDS[1].attacks, "orthogonal plane")];
    let rows = measured(&Settings { attacks, ..all_settings });
    let without_attack = rows[0].cells[0].median();
    for row in &rows[1..] {
        assert!(
            row.cells[0].median() <= 1.6 * without_attack,
            "{}: {:?}",
            row.fraction,
            row.cells[0].distances
        );
    }
    assert!(
        rows[2].cells[1].median() > 0.5,
        "as numbers nearly half do win: {:?}",
        rows[2].cells[1].distances
    );
}

#[test]
fn results_do_not_depend_on_threads_and_table_is_complete() {
    let small_settings = Settings { seeds: 1, ..settings(GRIDS[1], &["mean", "projector mean"], &[0.2]) };
    let single_thread = measured(&Settings { threads: 1, ..small_settings.clone() });
    assert_eq!(single_thread, measured(&Settings { threads: 3, ..small_settings }));
    assert_eq!(markdown(&single_thread).lines().count(), 2 + single_thread.len());
}

/// Robust rules work with doubling participation by devices or by samples, with partial participation, and
/// with the start by moments.
#[test]
fn robust_rules_hold_under_doubling_participation() {
    for policy in [
        "participation={ policy = \"doubling\", n0 = 10 }",
        "participation={ policy = \"doubling\", n0 = 10, by = \"samples\" }",
        "participation={ policy = \"fraction\", r = 0.5 }",
    ] {
        let changes =
            [policy, "fleet.speed=exponential-dynamic", "attack.fraction=0.1", "attack.samples=1000000000"];
        let changes_with_moments = ["algorithm.weighting=samples", "model.init=moments"];
        let result = outcome(&[&changes[..], &changes_with_moments].concat(), 6);
        assert!(result.scores.distance.unwrap() <= 0.05, "{policy}: {:?}", result.scores);
        assert!(
            result.counters.capped_samples > 0 && result.counters.capped_to_others > 0,
            "{:?}",
            result.counters
        );
    }
}

/// Honest gradients are admitted in every encoding and arithmetic, with one output and with several.
#[test]
fn honest_gradients_have_the_rank_of_the_outputs() {
    let outcome = |scenario: &str, changes: &[&str]| {
        let common =
            ["aggregation={ rule = \"spectral-filter\", rank_tolerance = 0.001 }", "algorithm.rounds=40"];
        let changes: Vec<String> = changes.iter().chain(&common).map(|change| (*change).to_owned()).collect();
        let text = Scenario::built_in(scenario).unwrap();
        run(&Scenario::parse(scenario, text, &changes).unwrap(), 3, &mut NoProgress).unwrap()
    };
    for upload in ["f32", "f16", "i8"] {
        let upload = format!("algorithm.upload={upload}");
        for numeric in ["f32", "i16"] {
            let numeric = format!("algorithm.numeric={numeric}");
            let changes = ["attack={}", "data.k=8", "model.k=8", &upload, &numeric];
            assert_eq!(outcome("byzantine", &changes).counters.rejected(), 0, "{upload}, {numeric}");
        }
        assert_eq!(outcome("demo", &["model.k=24", &upload]).counters.rejected(), 0, "{upload}, classes");
    }
}

/// Devices with noise send gradients of full rank, so the check of the rank is refused with `[privacy]`.
#[test]
fn check_of_the_rank_is_refused_with_noise() {
    let read = |tolerance: &str| {
        let changes = [
            "aggregation.rule=spectral-filter".to_owned(),
            format!("aggregation.rank_tolerance={tolerance}"),
        ];
        let text = Scenario::built_in("fedrep-private").unwrap();
        Scenario::parse("fedrep-private", text, &changes)
    };
    let message = read("0.05").unwrap_err().to_string();
    assert!(
        message.contains("aggregation.rank_tolerance: found 0.05") && message.contains("allowed: 1"),
        "{message}"
    );
    assert_eq!(read("1").unwrap().rule.rank_tolerance(), 1.0);
}

/// In one round from the same start, attackers who may choose among more candidates move the representation at least
/// as far: they find the worst candidate for the rule of the campaign.
#[test]
fn search_among_more_candidates_is_never_nearer() {
    for rule in ["mean", "spectral-filter", "geometric-median"] {
        let rule = format!("aggregation={{ rule = \"{rule}\" }}");
        let distance = |attack: &str| {
            let one_round = [rule.as_str(), attack, "algorithm.rounds=1", "model.init=truth-sine:0.5"];
            outcome(&one_round, 6).scores.distance.unwrap()
        };
        let distances: Vec<f64> = (1..=25)
            .map(|count| distance(&format!("attack={{ kind = \"search\", strength = {count} }}")))
            .collect();
        assert!(distances.windows(2).all(|pair| pair[0] <= pair[1]), "{rule}: {distances:?}");
        let all = distance("attack={ kind = \"search\" }");
        assert_eq!(distances.last(), Some(&all));
        // The last candidate is what the attackers computed, so a search never helps the fleet.
        let honest = distance("attack={ kind = \"scale\", strength = 1 }");
        assert!(honest < all, "{rule}: {honest} without attack, {all} with it");
    }
}

/// Attackers that search win from a start that knows little, and the spectral filter bounds what they do from a good
/// one; a drift below all thresholds does little.
#[test]
fn search_and_drift_are_bounded_from_a_good_start() {
    let grid = variants_grid("beyond");
    let rules = ["mean", "spectral filter"];
    let changes = vec!["model.init=truth-sine:0.5".to_owned()];
    for row in measured(&Settings { changes, seeds: 2, ..settings(grid, &rules, &[0.2]) }) {
        let [mean, filter] = &row.cells[..] else { panic!("{} cells instead of 2", row.cells.len()) };
        assert!(filter.worst() <= 0.03, "{}: {:?}", row.attack, filter.distances);
        assert!(row.attack != "search" || mean.worst() > 2.0 * filter.worst(), "{:?}", row.cells);
    }
}

/// The spectral filter takes an honest minority for attackers, for as long as it takes the others to fit.
#[test]
fn honest_minority_is_filtered_at_first() {
    let grid = variants_grid("minorities");
    let rows = measured(&settings(grid, &["mean", "spectral filter"], &[0.1]));
    let [_, row] = &rows[..] else { panic!("{} rows instead of 2", rows.len()) };
    assert!(row.cells[0].worst() <= 0.05, "{:?}", row.cells[0].distances);
    assert!(row.cells[1].worst() > row.cells[0].worst(), "{:?}", row.cells[1].distances);
    assert_eq!(row.cells[1].attacks, 0);
}

/// Scores are computed over honest clients only.
#[test]
fn attackers_are_not_scored() {
    let attacked = outcome(&["attack.kind=sign-flip", "attack.fraction=0.2", "algorithm.rounds=3"], 6);
    assert_eq!(attacked.clients.len(), 32);
    assert_eq!(attacked.rounds.last().unwrap().participants.len(), 40);
    let without_attack = outcome(&["attack={}", "algorithm.rounds=3"], 6);
    assert_eq!((without_attack.clients.len(), without_attack.attacks), (40, 0));
}

#[test]
fn impossible_attacks_are_refused() {
    let reported = |changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let text = Scenario::built_in("byzantine").unwrap();
        Scenario::parse("byzantine", text, &changes).unwrap_err().to_string()
    };
    let plane = reported(&["attack={ kind = \"orthogonal-plane\" }"]);
    assert!(plane.contains("sent in place of a representation"), "{plane}");
    let mimic_message = reported(&["attack.kind=mimic"]);
    assert!(
        mimic_message.contains("attack.strength: found 1.5, but this kind of attack has none"),
        "{mimic_message}"
    );
    for (strength, found) in [("0", "found 0"), ("2.5", "found 2.5"), ("26", "found 26")] {
        let search = reported(&[&format!("attack={{ kind = \"search\", strength = {strength} }}")]);
        let allowed = "allowed for \"search\": a number of candidates, from 1 to 25";
        assert!(search.contains(&format!("attack.strength: {found}, {allowed}")), "{search}");
    }
    let fedavg = reported(&["attack={ kind = \"search\" }", "aggregation={}", "algorithm.name=fedavg"]);
    assert!(fedavg.contains("attack.kind: found \"search\", whose attackers rehearse rounds of"), "{fedavg}");
    let scale = reported(&["attack={ kind = \"search\" }", "aggregation={}", "data.scale=fleet"]);
    assert!(scale.contains("attack.kind: found \"search\", which needs data.scale"), "{scale}");
    let half = reported(&["attack.fraction=0.5"]);
    assert!(half.contains("found 0.5, allowed: a number from 0 to 0.49"), "{half}");
    let nothing = reported(&["attack={}", "algorithm.name=pooled"]);
    assert!(
        nothing.contains("aggregation.rule: found \"spectral-filter\", but \"pooled\" uploads nothing"),
        "{nothing}"
    );
    let local_only_message = reported(&["aggregation={}", "algorithm.name=local-only"]);
    assert!(
        local_only_message.contains("\"local-only\" sends nothing that could be attacked"),
        "{local_only_message}"
    );
}
