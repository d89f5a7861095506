//! Tests of scenarios and simulations that a program builds: defaults, data in memory, observers, and custom
//! algorithms, policies and rules.

use fedspan_engine::aggregate::{AggregationRule, Rule, Weighted};
use fedspan_engine::algorithm::{Algorithm, FedRep, FedRepParameters, random_start};
use fedspan_engine::participation::Full;
use fedspan_engine::{Cohort, CustomError, DeviceId, Participation, Weighting};
use fedspan_protocol::message::{HeadSolve, Upload};
use fedspan_protocol::tensor::Encoding;
use fedspan_sim_core::data::{Client, Dataset, DatasetError, Labels, Set};
use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::run::{NoProgress, Outcome, RunError, Simulation, Watcher, run};
use fedspan_sim_core::scenario::{Scenario, ScenarioBuilder, ScenarioError};

const TEXT: &str = "[data]\nkind = \"linear-regression\"\nclients = 8\nd = 6\nk = 2\nsamples = 20\nnew_clients = 2\ntest_samples = 5\n\
                    [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 6\nstep_size = 0.25\n";

/// Sets the model and the algorithm of [`TEXT`].
fn campaign(scenario: ScenarioBuilder) -> ScenarioBuilder {
    scenario.width(2).algorithm("fedrep").rounds(6).step_size(0.25)
}

/// Creates the builder of the scenario in [`TEXT`].
fn linear() -> ScenarioBuilder {
    let data =
        Scenario::builder().set("data.kind", "linear-regression").set("data.clients", 8).set("data.d", 6);
    let data = data.set("data.k", 2).set("data.samples", 20);
    campaign(data.set("data.new_clients", 2).set("data.test_samples", 5))
}

fn parsed() -> Scenario {
    Scenario::parse("file", TEXT, &[]).unwrap()
}

/// Collects the bits of all values in a result that depend on arithmetic.
fn bits(outcome: &Outcome) -> Vec<u64> {
    let Scores { distance, loss, accuracy, accuracy_global, test_mse, .. } = outcome.scores;
    let scores = [distance, loss, accuracy, accuracy_global, test_mse];
    let heads =
        outcome.clients.iter().chain(&outcome.newcomers).flat_map(|client| client.head.iter().copied());
    let representation =
        outcome.representation.iter().flat_map(|representation| representation.iter().copied());
    let numbers = scores.into_iter().map(|score| score.unwrap_or(-1.0)).chain(heads).chain(representation);
    numbers.map(f64::to_bits).chain([outcome.bytes.0, outcome.bytes.1, outcome.updates]).collect()
}

/// A scenario that is built in code equals the scenario of a file with the same keys, so all defaults are
/// equal.
#[test]
fn builder_equals_file_of_the_same_keys() {
    let (built, parsed) = (linear().build().unwrap(), parsed());
    assert_eq!(Scenario { name: parsed.name.clone(), text: parsed.text.clone(), ..built.clone() }, parsed);
    // The text of a scenario that was built in code can be parsed and gives the same scenario.
    let reparsed = Scenario::parse(&built.name, &built.text, &[]).unwrap();
    assert_eq!(Scenario { text: built.text.clone(), ..reparsed }, built);
}

#[test]
fn builder_errors_name_key_and_value() {
    let error = |scenario: ScenarioBuilder| scenario.build().unwrap_err().to_string();
    assert_eq!(
        error(linear().width(7)),
        "model.k: found 7, allowed: an integer from 1 to 6, the number of features"
    );
    let missing = "Scenario::builder(): algorithm.rounds is missing, allowed: an integer from 1 to 10000000";
    assert_eq!(error(linear_without_rounds()), missing);
    let error_with_name = error(linear_without_rounds().name("pumps"));
    assert_eq!(error_with_name, missing.replace("Scenario::builder()", "pumps"));
    let unknown = error(linear().set("fleet.dropuot", 0.1));
    assert!(unknown.starts_with("fleet.dropuot: unknown key (did you mean \"dropout\"?)"), "{unknown}");
}

fn linear_without_rounds() -> ScenarioBuilder {
    let data =
        Scenario::builder().set("data.kind", "linear-regression").set("data.clients", 8).set("data.d", 6);
    data.set("data.k", 2).set("data.samples", 20).width(2).algorithm("fedrep").step_size(0.25)
}

/// Generated data that are passed in memory give the same bits as the scenario that generates the data.
#[test]
fn data_in_memory_give_the_same_bits() {
    let generated = parsed();
    let with_dataset =
        campaign(Scenario::builder().with_dataset(generated.dataset(3).unwrap())).build().unwrap();
    let (first, second) =
        (run(&generated, 3, &mut NoProgress).unwrap(), run(&with_dataset, 3, &mut NoProgress).unwrap());
    assert_eq!(bits(&first), bits(&second));
    assert_eq!(first.rounds, second.rounds);
    let initial = first.rounds[0].scores.unwrap().distance;
    assert!(
        initial.is_some() && second.scores.distance < initial,
        "no distance is known, or training did not reduce it"
    );
}

#[test]
fn data_in_memory_are_checked() {
    let client = |x: Vec<f32>, y: Vec<u8>| Client::new(Set::new(x, Labels::Classes(y)), Set::empty(true));
    let build = |clients: Vec<Client>| {
        campaign(Scenario::builder().with_dataset(Dataset::classes(2, 3, clients))).build()
    };
    let valid_client = || client(vec![1.0, 2.0, 3.0, 4.0], vec![0, 2]);
    build(vec![valid_client(), valid_client()]).unwrap();
    let error = build(vec![valid_client(), client(vec![1.0, 2.0], vec![3])]).unwrap_err();
    assert!(
        matches!(&error, ScenarioError::Dataset(DatasetError::Label { found: 3, classes: 3, .. })),
        "{error}"
    );
    let error = build(vec![client(vec![1.0, f32::INFINITY], vec![0])]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "client 0 (from 0), training samples: sample 0 (from 0) has feature 1 = inf, allowed: finite numbers"
    );
    // Keys that select other data, and a width above the number of features, are rejected.
    let error_with = |key: &str, value: f64| {
        let scenario =
            campaign(Scenario::builder().with_dataset(Dataset::classes(2, 3, vec![valid_client()])));
        scenario.set(key, value).build().unwrap_err().to_string()
    };
    assert_eq!(error_with("data.noise_std", 1.0), "data.noise_std: unknown key, allowed: scale");
    assert_eq!(
        error_with("split.test", 0.5),
        "split.test: unknown key: [split] has no keys here, leave it out"
    );
    let wide_scenario =
        campaign(Scenario::builder().with_dataset(Dataset::classes(2, 3, vec![valid_client()])))
            .width(3)
            .build();
    assert_eq!(
        wide_scenario.unwrap_err().to_string(),
        "model.k: found 3, allowed: an integer from 1 to 2, the number of features"
    );
}

/// Clients without samples are removed as for data from files, and newcomers fit heads.
#[test]
fn idle_clients_in_memory_are_left_out() {
    let mut dataset = parsed().dataset(0).unwrap();
    let newcomer = dataset.newcomers.pop().unwrap();
    dataset.clients.push(Client::new(Set::empty(false), Set::empty(false)));
    let with_newcomer =
        campaign(Scenario::builder().with_dataset(dataset.with_newcomers(vec![newcomer]))).build().unwrap();
    let outcome = Simulation::builder(&with_newcomer).run().unwrap();
    assert_eq!((outcome.clients.len(), outcome.newcomers.len(), outcome.dropped_users), (8, 1, 1));
}

/// Observer that counts the rounds, and ends the run after round `end`.
struct Counter {
    rounds: u32,
    end: u32,
}

impl Watcher for Counter {
    fn round(&mut self, completed_rounds: u32, total_rounds: u32, _scores: Option<&Scores>) -> bool {
        assert_eq!((completed_rounds, total_rounds), (self.rounds, 6));
        self.rounds += 1;
        completed_rounds < self.end
    }
}

#[test]
fn watcher_observes_and_ends_the_run() {
    let scenario = parsed();
    let mut counter = Counter { rounds: 0, end: 9 };
    let complete = Simulation::builder(&scenario).seed(2).watcher(&mut counter).run().unwrap();
    assert_eq!((counter.rounds, complete.interrupted), (7, false));
    assert_eq!(bits(&complete), bits(&run(&scenario, 2, &mut NoProgress).unwrap()));
    let mut counter = Counter { rounds: 0, end: 3 };
    let interrupted = Simulation::builder(&scenario).seed(2).watcher(&mut counter).run().unwrap();
    assert_eq!((counter.rounds, interrupted.interrupted), (4, true));
}

/// Creates FedRep as a custom algorithm with the settings of [`TEXT`] and this width and step size.
fn fedrep(width: usize, step_size: f32) -> Box<dyn Algorithm> {
    let parameters = FedRepParameters {
        step_size,
        head: HeadSolve::LeastSquares { ridge: 0.0 },
        upload: Upload::Gradient,
        download_encoding: Encoding::F32,
        upload_encoding: Encoding::F32,
        weighting: Weighting::Uniform,
        rule: Rule::MEAN,
    };
    Box::new(FedRep::new(random_start(6, width, 4), parameters))
}

/// FedRep, full participation and the mean as custom parts give the same bits as the built-in parts. Another
/// step size, policy or rule gives other bits, which are the same in every run.
#[test]
fn custom_parts_replace_the_scenarios() {
    let scenario = parsed();
    let simulation = || Simulation::builder(&scenario).seed(4);
    let expected = bits(&simulation().run().unwrap());
    let custom = |step| simulation().algorithm("boxed", fedrep(2, step)).run().unwrap();
    assert_eq!(bits(&custom(0.25)), expected);
    assert_ne!(bits(&custom(0.125)), expected);
    let full = simulation().participation("full", Box::new(Full)).run().unwrap();
    assert_eq!(bits(&full), expected);
    let halves = || simulation().participation("halves", Box::new(Halves)).run().unwrap();
    assert_eq!(bits(&halves()), bits(&halves()));
    let cohorts: Vec<Vec<DeviceId>> = halves().rounds.into_iter().skip(1).map(|row| row.cohort).collect();
    assert_eq!(cohorts[..2], [[1, 3, 5, 7], [0, 2, 4, 6]].map(|half| half.map(DeviceId).to_vec()));
    assert_eq!(cohorts.len(), 6);
    let bits_with_rule = |rule| bits(&simulation().rule(rule).run().unwrap());
    assert_eq!(bits_with_rule(Rule::MEAN), expected);
    let sum = || Rule::custom(Box::new(Sum));
    assert_eq!(bits_with_rule(sum()), bits_with_rule(sum()));
    assert_ne!(bits_with_rule(sum()), expected);
    let file =
        Scenario::parse("file", &format!("{TEXT}[aggregation]\nrule = \"geometric-median\"\n"), &[]).unwrap();
    assert_eq!(bits_with_rule(Rule::GEOMETRIC_MEDIAN), bits(&run(&file, 4, &mut NoProgress).unwrap()));
}

/// Policy that selects devices with odd numbers in odd rounds, and devices with even numbers in even rounds.
struct Halves;

impl Participation for Halves {
    fn cohort(&mut self, round: u32, fleet: &[DeviceId]) -> Cohort {
        Cohort::new(fleet.iter().copied().filter(|device| device.0 % 2 == u64::from(round % 2)).collect())
    }
}

/// Aggregation rule that computes half of the sum of the updates.
#[derive(Debug)]
struct Sum;

impl AggregationRule for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn combine(&self, updates: &[Weighted<'_>], _center: &[f64], out: &mut [f64]) {
        for update in updates {
            out.iter_mut().zip(update.values).for_each(|(out, value)| *out += 0.5 * f64::from(*value));
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let scenario = parsed();
    let simulation = || Simulation::builder(&scenario);
    let wide = simulation().algorithm("wide", fedrep(3, 0.25)).run().unwrap_err();
    let expected = CustomError::Representation { algorithm: "wide".into(), found: (6, 3), allowed: (6, 2) };
    assert_eq!(wide, RunError::Custom(expected));
    let rejected =
        simulation().algorithm("boxed", fedrep(2, 0.25)).rule(Rule::GEOMETRIC_MEDIAN).run().unwrap_err();
    assert!(matches!(rejected, RunError::Custom(CustomError::RuleBesideAlgorithm { .. })), "{rejected}");
    let subspaces = simulation().rule(Rule::PROJECTOR_MEAN).run().unwrap_err();
    assert!(subspaces.to_string().contains("found \"projector-mean\", a rule for subspaces"), "{subspaces}");

    let local = TEXT.replace("fedrep", "local-only").replace("rounds = 6\nstep_size = 0.25\n", "");
    let local = Scenario::parse("file", &local, &[]).unwrap();
    let error = Simulation::builder(&local).algorithm("boxed", fedrep(2, 0.25)).run().unwrap_err();
    assert_eq!(
        error.to_string(),
        "algorithm.name is \"local-only\", which has no rounds for a custom algorithm or policy; allowed: one with rounds"
    );
}
