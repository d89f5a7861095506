//! Scenarios: descriptions of a simulation in TOML files or built in code. Error messages name the file, the
//! line, the key, the value found and the allowed values.

mod attack;
mod builder;
mod data;
mod expect;
mod fleet;
mod resolved;
mod scale;

pub use attack::{Attack, AttackNotAllowed, AttackSection, SEARCH_CANDIDATES};
use attack::{check_attack, read_attack};
pub use builder::{ScenarioBuilder, ScenarioError};
use data::read_data;
pub use data::{DataSection, PoolSource, PooledSection, TableSection, TableSource, TargetKind};
use expect::read_expect;
pub use expect::{EXPECTED, Expectation, Relation};
use fedspan_engine::aggregate::{MAGNITUDE_MAX, Rule, SampleCap};
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::config::{
    AlgorithmSection, GivenKeys, Init, MeasuredSteps, ModelSection, PrivacySection, Problem, Section, Source,
    StopSection, Values, check_aggregation, check_change, check_private_algorithm, check_private_rule,
    check_scale, check_stop_of_prior, read_aggregation, read_bounds, read_linear_or_network, read_privacy,
    read_stop,
};
use fedspan_engine::participation::Policy;
use fedspan_engine::privacy::fedpower::Calibration;
use fleet::read_fleet;
pub use fleet::{
    CR2032_MAH, ComputeTimes, Correlation, Cycle, DropoutPattern, DynamicParameter, EnergySettings,
    FleetSection, LinkSection, LinkSpeed, Phases, Speed, Spikes,
};
use scale::read_scale;

use crate::data::{DataError, Dataset, MemoryData};
use crate::evaluate::MetricSet;
use crate::run::RECENT_ROUNDS;

/// Built-in scenarios: name, one-line description, and text of the file.
pub const BUILT_IN: [(&str, &str, &str); 31] = [
    (
        "demo",
        "smartwatch wearers: new people label one window per exercise",
        include_str!("../scenarios/demo.toml"),
    ),
    (
        "programmes",
        "smartwatch wearers, each with exercises numbered in their own order",
        include_str!("../scenarios/programmes.toml"),
    ),
    (
        "linear",
        "FedRep's synthetic regression: distance to the true representation",
        include_str!("../scenarios/linear.toml"),
    ),
    (
        "new-clients",
        "linear regression: new clients with few samples (FedRep, Figure 4)",
        include_str!("../scenarios/new-clients.toml"),
    ),
    (
        "stragglers",
        "linear regression among fast and slow devices, with doubling participation (SRPFL)",
        include_str!("../scenarios/stragglers.toml"),
    ),
    ("digits", "optical digits, two classes a client", include_str!("../scenarios/digits.toml")),
    (
        "smallest",
        "linear regression that trains in 16 KiB of RAM, on the smallest board",
        include_str!("../scenarios/smallest.toml"),
    ),
    (
        "srpfl-figure-3",
        "digits, two classes a client, full participation, fixed speeds (SRPFL, Figure 3)",
        include_str!("../scenarios/srpfl-figure-3.toml"),
    ),
    (
        "srpfl-figure-4",
        "digits, two classes a client, a fifth takes part in each round, fixed speeds (SRPFL, Figure 4)",
        include_str!("../scenarios/srpfl-figure-4.toml"),
    ),
    (
        "srpfl-figure-5",
        "digits, two classes a client, full participation, new speeds in every round (SRPFL, Figure 5)",
        include_str!("../scenarios/srpfl-figure-5.toml"),
    ),
    (
        "srpfl-figure-6",
        "digits, two classes a client, a fifth takes part in each round, new speeds in every round (SRPFL, Figure 6)",
        include_str!("../scenarios/srpfl-figure-6.toml"),
    ),
    (
        "srpfl-figure-7",
        "digits, identically distributed clients, fixed speeds (SRPFL, Figure 7)",
        include_str!("../scenarios/srpfl-figure-7.toml"),
    ),
    (
        "srpfl-figure-8-imbalanced",
        "linear regression, unequal numbers of samples (SRPFL, Figure 8, left)",
        include_str!("../scenarios/srpfl-figure-8-imbalanced.toml"),
    ),
    (
        "srpfl-figure-8-stragglers",
        "smartwatch wearers, a fifth of them a hundred times as slow (SRPFL, Figure 8, middle)",
        include_str!("../scenarios/srpfl-figure-8-stragglers.toml"),
    ),
    (
        "srpfl-figure-8-correlated",
        "linear regression, fast devices with similar tasks (SRPFL, Figure 8, right)",
        include_str!("../scenarios/srpfl-figure-8-correlated.toml"),
    ),
    (
        "flanp",
        "digits, federated averaging with doubling participation (FLANP)",
        include_str!("../scenarios/flanp.toml"),
    ),
    (
        "fedpower",
        "principal directions with record-level differential privacy (FedPower, Model I)",
        include_str!("../scenarios/fedpower.toml"),
    ),
    (
        "fedpower-sbm",
        "communities in graphs, without noise (FedPower, Model II)",
        include_str!("../scenarios/fedpower-sbm.toml"),
    ),
    (
        "fedpower-mnist",
        "principal directions of handwritten digits, without noise (FedPower)",
        include_str!("../scenarios/fedpower-mnist.toml"),
    ),
    (
        "fedrep-private",
        "linear regression with record-level differential privacy: start and gradients",
        include_str!("../scenarios/fedrep-private.toml"),
    ),
    (
        "mnist",
        "personal networks on MNIST's digits, two classes a client (FedRep, Table 1)",
        include_str!("../scenarios/mnist.toml"),
    ),
    (
        "mnist-lenet",
        "personal LeNet-5 networks on MNIST's digits: layers of filters (FedRep and SRPFL on CIFAR)",
        include_str!("../scenarios/mnist-lenet.toml"),
    ),
    (
        "mnist-lora",
        "low-rank adapters, averaged by RoLoRA and three others (RoLoRA, Figure 2)",
        include_str!("../scenarios/mnist-lora.toml"),
    ),
    (
        "rolora",
        "a linear model as a low-rank adapter, factors trained in alternation (RoLoRA, Algorithm 2)",
        include_str!("../scenarios/rolora.toml"),
    ),
    (
        "digits-network",
        "personal networks on small digits, two classes a client",
        include_str!("../scenarios/digits-network.toml"),
    ),
    (
        "watch-network",
        "personal networks on smartwatch recordings: new people label one window per exercise",
        include_str!("../scenarios/watch-network.toml"),
    ),
    (
        "watch-gate",
        "smartwatch wearers with bounds on the results, as a gate for a pipeline",
        include_str!("../scenarios/watch-gate.toml"),
    ),
    (
        "watch-prior",
        "smartwatch wearers learn the distribution of their heads, from which new people's follow",
        include_str!("../scenarios/watch-prior.toml"),
    ),
    (
        "watch-signal",
        "personal networks on a smartwatch's raw signals: convolution over time",
        include_str!("../scenarios/watch-signal.toml"),
    ),
    (
        "srpfl-network",
        "personal networks among fast and slow devices, with doubling participation (SRPFL, Figures 3 to 6)",
        include_str!("../scenarios/srpfl-network.toml"),
    ),
    (
        "byzantine",
        "linear regression, a fifth of the devices attack, geometric median",
        include_str!("../scenarios/byzantine.toml"),
    ),
];

/// Default cap on the number of samples that a client may declare, larger than in any generated data set.
const DEFAULT_SAMPLE_CAP: u32 = 1_000_000;

/// Range of the noise multipliers that a device accepts, squared and in units of 2^-16.
const MULTIPLIER_SQUARES: std::ops::RangeInclusive<u64> = 1 << 14..=1 << 40;

/// Validated description of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Path of the scenario file, or name of the built-in scenario.
    pub name: String,
    /// Text of the scenario file with all changes applied, which is shown in reports. For a scenario that was
    /// built in code, the equivalent text without the data.
    pub text: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of rounds between two evaluations; the last round is always evaluated.
    pub evaluate_every: u32,
    /// Figures that evaluations compute.
    pub metrics: MetricSet,
    /// Source of the samples.
    pub data: DataSection,
    /// Source of the scale with which devices standardise their samples.
    pub scale: ScaleSource,
    /// Section `[model]`.
    pub model: ModelSection,
    /// True if the scenario has a section `[model.network]`, which is also allowed with a linear model.
    pub has_network_section: bool,
    /// Section `[algorithm]`.
    pub algorithm: AlgorithmSection,
    /// Step sizes that a run measures before it starts.
    pub measured: MeasuredSteps,
    /// Rule that aggregates the updates of a round.
    pub rule: Rule,
    /// Largest Frobenius norm of an accepted update.
    pub norm: f32,
    /// Cap on the number of samples that a client may declare.
    pub samples: SampleCap,
    /// Simulated attack; `None` if all devices are honest.
    pub attack: Option<AttackSection>,
    /// Participation policy.
    pub participation: Policy,
    /// Times and failures of the devices.
    pub fleet: FleetSection,
    /// Deadline after which a round closes without the missing answers, in mean computations since the round
    /// opened.
    pub deadline: Option<f64>,
    /// Privacy guarantee for each record; `None` if the scenario has no section `[privacy]`.
    pub privacy: Option<PrivacySection>,
    /// Conditions for stopping early.
    pub stop: StopSection,
    /// Bounds on the results.
    pub expect: Vec<Expectation>,
    /// Keys that are set by the file or the command line.
    pub given: GivenKeys,
}

impl Scenario {
    /// Text of a built-in scenario; `None` if there is no built-in scenario of this name.
    #[must_use]
    pub fn built_in(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(built_in_name, _, _)| *built_in_name == name).map(|(_, _, text)| *text)
    }

    /// True if a run evaluates the model after this round: every `evaluate_every` rounds, after the last one, and with a
    /// network after the last [`RECENT_ROUNDS`], whose mean accuracy is reported.
    #[must_use]
    pub fn evaluates(&self, round: u32) -> bool {
        let rounds = self.algorithm.rounds;
        let is_recent = self.algorithm.network_with_trained_heads().is_some()
            && round.saturating_add(RECENT_ROUNDS) > rounds;
        is_recent || round == rounds || round.is_multiple_of(self.evaluate_every)
    }

    /// Parses and checks a scenario after applying the changes from the command line (`key=value`).
    ///
    /// # Errors
    /// [`Problem`] for the first error: a syntax error, an unknown key, or a value that is not allowed.
    pub fn parse(name: &str, text: &str, changes: &[String]) -> Result<Self, Problem> {
        Self::read(&Source::parse(name, text, changes)?, None)
    }

    /// Creates the builder of a scenario without a file.
    pub fn builder() -> ScenarioBuilder {
        ScenarioBuilder::default()
    }

    /// Reads and checks a scenario. If given, `memory_data` replaces the sections `[data]` and `[split]`.
    fn read(source: &Source, memory_data: Option<MemoryData>) -> Result<Self, Problem> {
        let root = source.root();
        let rule = read_aggregation(&root.section("aggregation")?)?;
        let (norm, samples) = read_limits(&root.section("limits")?, rule)?;
        let (model, algorithm, measured) =
            read_linear_or_network(&root.section("model")?, &root.section("algorithm")?)?;
        let fleet = read_fleet(&root.section("fleet")?, &algorithm)?;
        let data = root.section("data")?;
        let scale = read_scale(&data)?;
        let scenario = Self {
            name: source.name().to_owned(),
            text: source.effective(),
            seed: root.integer("seed", Some(0), 0..=i64::MAX as u64)?,
            evaluate_every: u32::try_from(root.integer("evaluate_every", Some(1), 1..=1_000_000)?)
                .unwrap_or(1),
            metrics: root.choice(
                "evaluate",
                Some("all"),
                &[("all", MetricSet::All), ("distance", MetricSet::Distance)],
            )?,
            data: match memory_data {
                Some(memory_data) => read_memory(memory_data, &data, &root.section("split")?)?,
                None => read_data(&data, &root.section("split")?)?,
            },
            scale,
            model,
            has_network_section: root.section("model")?.has("network"),
            algorithm,
            measured,
            rule,
            norm,
            samples,
            attack: read_attack(&root.section("attack")?)?,
            participation: Policy::read(&root.section("participation")?, Some(fleet.communication))?,
            fleet,
            deadline: read_rounds(&root.section("rounds")?)?,
            privacy: read_privacy(&root.section("privacy")?)?,
            stop: read_stop(&root.section("stop")?)?,
            expect: read_expect(&root.section("expect")?)?,
            given: source.given_keys(),
        };
        root.finish()?;
        scenario.check(&root)?;
        let is_set = root.section("algorithm")?.has("labels_per_class");
        let labels_of_newcomers = scenario.data.labels_per_class().filter(|_| !is_set);
        // Ridges are not scored with `[privacy]`. A server cannot distinguish class labels from several
        // real-valued targets, so devices with real-valued targets decline the scoring round.
        let scored = scenario.data.target_kind() != TargetKind::Absent && scenario.privacy.is_none();
        let ridge_labels = scenario.algorithm.ridge_labels.filter(|_| scored);
        let ridge_labels = ridge_labels.map(|given_labels| labels_of_newcomers.unwrap_or(given_labels));
        let algorithm = AlgorithmSection { ridge_labels, ..scenario.algorithm };
        let scenario = Self { algorithm, ..scenario };
        if scenario.privacy.is_none() {
            return Ok(scenario);
        }
        // Initialisations that cannot be made private have already been rejected.
        let init = scenario.model.init.clone().with_noise().unwrap_or(Init::Random);
        Ok(Self { model: ModelSection { init, ..scenario.model }, ..scenario })
    }

    /// Returns this scenario with another aggregation rule, such as a [`Rule::custom`].
    ///
    /// # Errors
    /// [`Problem`] if the rule is not compatible with the uploads of the algorithm or with the scale.
    pub fn with_rule(mut self, rule: Rule) -> Result<Self, Problem> {
        let source = Values::default().source("the given rule")?;
        let root = source.root();
        check_aggregation(rule, &self.algorithm, &root.section("aggregation")?)?;
        check_scale(&self.scale, rule, self.privacy.is_some(), &root.section("data")?)?;
        self.rule = rule;
        self.samples.relative = rule.needs_all_updates();
        Ok(self)
    }

    /// Checks conditions that involve several keys.
    fn check(&self, root: &Section<'_>) -> Result<(), Problem> {
        let target_kind = self.data.target_kind();
        let classification = target_kind == TargetKind::Classes;
        let model = root.section("model")?;
        check_aggregation(self.rule, &self.algorithm, &root.section("aggregation")?)?;
        check_change(self.stop.change, &self.model, &root.section("stop")?)?;
        check_stop_of_prior(&self.stop, &self.algorithm, &root.section("stop")?)?;
        self.model.check_policy(&self.participation, &self.algorithm, &root.section("participation")?)?;
        self.check_network(root)?;
        check_attack(self.attack, &self.algorithm, &self.scale, &root.section("attack")?)?;
        self.check_privacy(root)?;
        if self.attack.is_some() && self.algorithm.numeric.is_none() {
            let message =
                "found \"any\", attacks are measured in one arithmetic; allowed here: \"f32\", \"i16\"";
            return Err(root.section("algorithm")?.problem("numeric", message));
        }
        if classification && self.model.init == Init::Moments {
            let message = "found \"moments\", which weighs samples by y^2: regression only; allowed here: \
                           \"random\", \"power\", \"npy:FILE\"";
            return Err(model.problem("init", message));
        }
        if target_kind == TargetKind::Absent {
            self.check_without_targets(root)?;
        }
        if !classification && self.stop.accuracy.is_some() {
            let message = "found a target accuracy, but the targets are real values; allowed here: distance, loss, \
                           simulated_time, change";
            return Err(root.section("stop")?.problem("accuracy", message));
        }
        if self.metrics == MetricSet::Distance {
            check_without_heads(self.is_federated() && self.algorithm.network().is_none(), &self.stop, root)?;
        }
        let data = root.section("data")?;
        check_scale(&self.scale, self.rule, self.privacy.is_some(), &data)?;
        self.data.check(self.seed).map_err(|message| data.problem("clients", message))?;
        let correlated = |by| match self.fleet.compute_times {
            ComputeTimes::Drawn(_, correlation) => correlation == by,
            ComputeTimes::Trace(_) => false,
        };
        if correlated(Correlation::Task) && !classification && !matches!(self.data, DataSection::Linear(_)) {
            let message = "found \"task\", which needs classes, or the true heads of kind = \"linear-regression\"; \
                           allowed here: \"none\", \"samples\", \"features\"";
            return Err(root.section("fleet")?.problem("correlation", message));
        }
        if correlated(Correlation::Targets) && target_kind != TargetKind::Values {
            let message = "found \"targets\", which needs targets that are real values; allowed here: \"none\", \
                           \"samples\", \"features\"";
            return Err(root.section("fleet")?.problem("correlation", message));
        }
        if !self.data.is_synthetic() && matches!(self.model.init, Init::TruthSine(_)) {
            let message = "truth-sine needs a known truth: kind = \"linear-regression\", \"low-rank-regression\", \
                           \"spiked-covariance\" or \"stochastic-block-model\"";
            return Err(model.problem("init", message));
        }
        // The width of a network may exceed the number of features.
        if let Some(d) = self.data.features().filter(|_| self.model.network.is_none())
            && self.model.k > d
        {
            let message =
                format!("found {}, allowed: an integer from 1 to {d}, the number of features", self.model.k);
            return Err(model.problem(self.model.width_key(), message));
        }
        Ok(())
    }

    /// Rejects settings that need targets, for data without targets.
    fn check_without_targets(&self, root: &Section<'_>) -> Result<(), Problem> {
        let (model, stop) = (root.section("model")?, root.section("stop")?);
        if self.algorithm.power().is_none() {
            let message = format!(
                "found {:?}, the data have no targets to learn from; allowed here: \"fedpower\"",
                self.algorithm_name()
            );
            return Err(root.section("algorithm")?.problem("name", message));
        }
        let weighs = match self.model.init {
            Init::Moments => Some("moments"),
            Init::Power { .. } => Some("power"),
            _ => None,
        };
        if let Some(keyword) = weighs {
            let message = format!(
                "found {keyword:?}, which weights samples by their targets, but the data have none; allowed here: \"random\", \
                 \"truth-sine:S\", \"npy:FILE\""
            );
            return Err(model.problem("init", message));
        }
        for (key, target) in [("accuracy", self.stop.accuracy), ("loss", self.stop.loss)] {
            if target.is_some() {
                let message = "the data have no targets to evaluate it on; allowed here: distance, simulated_time, change";
                return Err(stop.problem(key, message));
            }
        }
        Ok(())
    }

    /// Rejects settings that networks do not support.
    fn check_network(&self, root: &Section<'_>) -> Result<(), Problem> {
        if self.model.network.is_none() {
            return Ok(());
        }
        if self.data.target_kind() != TargetKind::Classes {
            let message =
                "found a network, which needs class labels, but the data have none; allowed here: \"linear\"";
            return Err(root.section("model")?.problem("kind", message));
        }
        if self.stop.distance.is_some() {
            let message = "a network has no distance to a true representation; allowed here: accuracy, loss, simulated_time";
            return Err(root.section("stop")?.problem("distance", message));
        }
        if self.attack.is_some() {
            let message = "attacks are for linear models; leave the section out";
            return Err(root.section("attack")?.problem("kind", message));
        }
        Ok(())
    }

    /// Rejects settings that are not compatible with the section `[privacy]`.
    fn check_privacy(&self, root: &Section<'_>) -> Result<(), Problem> {
        let Some(privacy) = self.privacy else { return Ok(()) };
        check_private_algorithm(&self.algorithm, &root.section("algorithm")?)?;
        check_private_rule(self.rule, &self.algorithm, &root.section("aggregation")?)?;
        if let Err(keyword) = self.model.init.clone().with_noise() {
            let message = format!(
                "found {keyword:?}, which reveals records; allowed with [privacy]: \"random\", \"power\" (iterations with \
                 noise), \"truth-sine:S\", \"npy:FILE\""
            );
            return Err(root.section("model")?.problem("init", message));
        }
        let section = root.section("privacy")?;
        let gradients = self.algorithm.power().is_none();
        match (gradients, privacy.clip, privacy.calibration) {
            (true, None, _) => {
                let message =
                    "missing: the norm that a device's gradient is clipped to, a number from 1e-12 to 1e12";
                Err(section.problem("clip", message))
            }
            (true, _, Calibration::Paper) => {
                let message =
                    "found \"paper\", which is the calibration of FedPower's paper; allowed here: \"tight\"";
                Err(section.problem("calibration", message))
            }
            (false, Some(_), _) => {
                let message =
                    "applies to gradients only; this algorithm clips products row by row, to 1: leave it out";
                Err(section.problem("clip", message))
            }
            _ => Ok(()),
        }
    }

    /// Number of noisy releases of a device that participates in every round; `None` if the scenario has no
    /// section `[privacy]`.
    #[must_use]
    pub fn releases(&self) -> Option<u32> {
        self.privacy?;
        let rounds = self.algorithm.power().map_or(self.algorithm.rounds, |power| power.iterations.into());
        Some(rounds.saturating_add(self.model.init.releases()))
    }

    /// Square of the noise multiplier with which devices are provisioned, in units of 2^-16; `None` if the
    /// scenario has no section `[privacy]`.
    ///
    /// # Errors
    /// A one-line message with the numbers if the multiplier is outside the range that devices accept.
    pub fn multiplier_square(&self) -> Result<Option<u64>, String> {
        let (Some(privacy), Some(releases)) = (self.privacy, self.releases()) else { return Ok(None) };
        let rank = u32::try_from(self.model.k).unwrap_or(u32::MAX);
        let square = privacy.multiplier_square(rank, releases).map_err(|error| error.to_string())?;
        if MULTIPLIER_SQUARES.contains(&square) {
            return Ok(Some(square));
        }
        let multiplier = (square as f64 / 65_536.0).sqrt();
        Err(format!(
            "privacy.epsilon is {}, which needs noise of {multiplier:.3} times the sensitivity; allowed: 0.5 to 4096 times \
             that, so change epsilon or the number of rounds",
            privacy.epsilon.get()
        ))
    }

    /// Generates or reads the data for a seed.
    ///
    /// # Errors
    /// [`DataError`] if a file cannot be read or used, or the data do not fit in memory.
    pub fn dataset(&self, seed: u64) -> Result<Dataset, DataError> {
        let has_given_start = matches!(self.model.init, Init::Npy(_));
        let dataset = self.data.dataset(&self.name, seed, has_given_start)?.without_idle();
        // Networks have biases, so the constant feature is removed.
        Ok(if self.model.network.is_some() { dataset.without_constant() } else { dataset })
    }

    /// Reason why a real server cannot run the scenario's campaign, with the remedy; `None` if a server can
    /// run the campaign.
    #[must_use]
    pub fn not_served_because(&self) -> Option<&'static str> {
        if !self.is_federated() {
            return Some("this algorithm has no rounds to serve");
        }
        if matches!(self.model.init, Init::TruthSine(_) | Init::Npy(_)) {
            return Some("a server starts by \"random\", \"power\" or \"moments\": set model.init");
        }
        let sleeps = self.fleet.waking.is_some() || self.fleet.window.is_some();
        if self.fleet.dropout > 0.0 || self.fleet.link.is_some() || sleeps || self.deadline.is_some() {
            return Some(
                "dropouts, slow links, sleep and deadlines in mean computations are simulated only: leave out fleet.dropout, \
                 fleet.bandwidth, fleet.radio, fleet.wake_every, fleet.window_every and rounds.deadline",
            );
        }
        None
    }

    /// Checks that the scenario can run on real devices and boards: it has no attack, and no step sizes that
    /// must be measured in a simulation.
    ///
    /// # Errors
    /// [`AttackNotAllowed`] if an attack is configured or a step size is to be measured.
    pub fn check_runs_on_devices(&self) -> Result<(), AttackNotAllowed> {
        let reason = if self.attack.is_some() {
            "devices that attack are simulated only: set attack.kind = \"none\", or use `run`, `compare` or `byzantine`"
        } else if self.measured != MeasuredSteps::default() {
            "step sizes are measured in simulations only: set algorithm.step_size to a number, or use `run` or `compare`"
        } else {
            return Ok(());
        };
        Err(AttackNotAllowed { name: self.name.clone(), reason })
    }

    /// Path of a file that the scenario refers to as `path`. The path is relative to the directory of the
    /// scenario file if the file exists there, and to the current directory otherwise.
    #[must_use]
    pub fn locate(&self, path: &str) -> String {
        crate::data::file::locate(&self.name, path)
    }

    /// True if the algorithm runs rounds between server and clients.
    #[must_use]
    pub fn is_federated(&self) -> bool {
        self.algorithm.is_federated()
    }

    /// Name of the algorithm in scenario files.
    #[must_use]
    pub fn algorithm_name(&self) -> &'static str {
        self.algorithm.name()
    }
}

/// Checks that the sections `[data]` and `[split]` have no further keys, since the data are in memory.
fn read_memory(
    memory_data: MemoryData,
    data: &Section<'_>,
    split: &Section<'_>,
) -> Result<DataSection, Problem> {
    data.finish()?;
    split.finish()?;
    Ok(DataSection::Memory(memory_data))
}

/// Longest deadline, in mean computations.
const LONGEST_DEADLINE: f64 = 1e9;

/// Reads the section `[rounds]`. Simulations support only the key `deadline`.
fn read_rounds(section: &Section<'_>) -> Result<Option<f64>, Problem> {
    let deadline = section.optional_number("deadline", 1e-3..=LONGEST_DEADLINE)?;
    section.finish()?;
    Ok(deadline)
}

fn read_limits(section: &Section<'_>, rule: Rule) -> Result<(f32, SampleCap), Problem> {
    let bounds = read_bounds(section, f64::from(MAGNITUDE_MAX), DEFAULT_SAMPLE_CAP, rule)?;
    section.finish()?;
    Ok(bounds)
}

/// Checks that a scenario whose evaluations fit no heads asks for no figure that needs heads.
fn check_without_heads(has_distance: bool, stop: &StopSection, root: &Section<'_>) -> Result<(), Problem> {
    if !has_distance {
        let message = "found \"distance\", which networks and methods without rounds do not have; allowed here: \"all\"";
        return Err(root.problem("evaluate", message));
    }
    let asked = [("loss", stop.loss.is_some()), ("accuracy", stop.accuracy.is_some())];
    match asked.into_iter().find(|(_, is_asked)| *is_asked) {
        Some((key, _)) => {
            let message = "found a figure of heads, but evaluate = \"distance\" fits none; allowed here: distance, simulated_time, change";
            Err(root.section("stop")?.problem(key, message))
        }
        None => Ok(()),
    }
}
