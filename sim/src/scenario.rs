//! Scenario files: what to simulate. Every mistake names file, line, key, what was found and what is allowed.

mod attack;
mod fleet;

use std::path::Path;

pub use attack::{Attack, AttackSection, Attacked};
use attack::{check_attack, read_attack};
use fedspan_aggregator::aggregate::{MAGNITUDE_MAX, Rule, SampleCap};
use fedspan_aggregator::config::{
    AlgorithmName, AlgorithmSection, Init, ModelSection, ParticipationSection, PrivacySection, Problem,
    Section, Source, StopSection, check_aggregation, check_hidden, read_aggregation, read_algorithm,
    read_bounds, read_model, read_participation, read_privacy, read_stop,
};
use fedspan_aggregator::privacy::fedpower::Calibration;
pub(crate) use fleet::LARGEST_SIGMA;
use fleet::read_fleet;
pub use fleet::{Computing, Correlation, FleetSection, LinkSection, Reading, Speed};

use crate::data::eigenspace::{LARGEST_FEATURES, NoEigenspace};
use crate::data::idx::{self, Bundled};
use crate::data::npz;
use crate::data::partition::{OrderSplit, Partition, partition};
use crate::data::sizes::Sizes;
use crate::data::spiked_covariance::{self, SpikedCovariance};
use crate::data::stochastic_block_model::StochasticBlockModel;
use crate::data::synthetic::{HeadNorm, LinearRegression, linear_regression};
use crate::data::table::{self, Columns, Holdout};
use crate::data::watch::{self, Validation, WatchSettings};
use crate::data::{DataError, Dataset};

/// The built-in scenarios: name, one line, file.
pub const BUILT_IN: [(&str, &str, &str); 21] = [
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
        "digits, two classes a client, everybody, fixed speeds (SRPFL, Figure 3)",
        include_str!("../scenarios/srpfl-figure-3.toml"),
    ),
    (
        "srpfl-figure-4",
        "digits, two classes a client, a fifth is asked, fixed speeds (SRPFL, Figure 4)",
        include_str!("../scenarios/srpfl-figure-4.toml"),
    ),
    (
        "srpfl-figure-5",
        "digits, two classes a client, everybody, new speeds in every round (SRPFL, Figure 5)",
        include_str!("../scenarios/srpfl-figure-5.toml"),
    ),
    (
        "srpfl-figure-6",
        "digits, two classes a client, a fifth is asked, new speeds in every round (SRPFL, Figure 6)",
        include_str!("../scenarios/srpfl-figure-6.toml"),
    ),
    (
        "srpfl-figure-7",
        "digits that are alike at all clients, fixed speeds (SRPFL, Figure 7)",
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
        "linear regression, fast devices with like tasks (SRPFL, Figure 8, right)",
        include_str!("../scenarios/srpfl-figure-8-correlated.toml"),
    ),
    (
        "flanp",
        "digits, federated averaging with doubling participation (FLANP)",
        include_str!("../scenarios/flanp.toml"),
    ),
    (
        "fedpower",
        "principal directions with noise for each record's privacy (FedPower, Model I)",
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
        "linear regression with noise for each record's privacy: start, gradients and all",
        include_str!("../scenarios/fedrep-private.toml"),
    ),
    (
        "byzantine",
        "linear regression, a fifth of the devices attack, geometric median",
        include_str!("../scenarios/byzantine.toml"),
    ),
];

/// Most samples that a client may declare with effect, unless the file says otherwise: more than generated data have.
const SAMPLES: u32 = 1_000_000;

/// Squares of the noise multipliers that a device takes, in 2^-16.
const MULTIPLIER_SQUARES: std::ops::RangeInclusive<u64> = 1 << 14..=1 << 40;

/// What to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The file's name, or the built-in's.
    pub name: String,
    /// The whole file with all changes, as it is reported.
    pub text: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Scores are computed every so many rounds, and after the last.
    pub evaluate_every: u32,
    /// Where samples come from.
    pub data: DataSection,
    /// The model.
    pub model: ModelSection,
    /// The algorithm.
    pub algorithm: AlgorithmSection,
    /// How the updates of a round become one.
    pub rule: Rule,
    /// Largest Frobenius norm of an update.
    pub norm: f32,
    /// What declared numbers of samples may count.
    pub samples: SampleCap,
    /// Who lies, and how.
    pub attack: Option<AttackSection>,
    /// Who takes part.
    pub participation: ParticipationSection,
    /// Speeds.
    pub fleet: FleetSection,
    /// What is promised to each record.
    pub privacy: Option<PrivacySection>,
    /// When to stop early.
    pub stop: StopSection,
}

/// `[data]`, with `[split]` and `[data.partition]`.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSection {
    /// Synthetic.
    Linear(LinearRegression),
    /// Synthetic, without targets.
    Spiked(SpikedCovariance),
    /// Synthetic, without targets: graphs.
    Blocks(StochasticBlockModel),
    /// An npz file.
    Npz(String),
    /// A CSV file.
    Csv(String, Columns, OrderSplit, Holdout),
    /// The smartwatch recordings.
    Watch(WatchSettings),
    /// Images.
    Images(ImageSource, Partition, Sizes, OrderSplit),
}

/// What samples are labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targeted {
    /// Class numbers.
    Classes,
    /// Values.
    Values,
    /// Nothing: there is no head to learn.
    Nothing,
}

impl DataSection {
    /// What samples are labelled with.
    #[must_use]
    pub fn targeted(&self) -> Targeted {
        match self {
            Self::Spiked(_) | Self::Blocks(_) => Targeted::Nothing,
            Self::Linear(_) | Self::Npz(_) => Targeted::Values,
            Self::Csv(_, columns, ..) if !columns.classification => Targeted::Values,
            Self::Csv(..) | Self::Watch(_) | Self::Images(..) => Targeted::Classes,
        }
    }

    /// Whether the true representation is known beforehand, whatever the file.
    fn is_synthetic(&self) -> bool {
        matches!(self, Self::Linear(_) | Self::Spiked(_) | Self::Blocks(_))
    }

    /// That this machine can hold it.
    fn check(&self, seed: u64) -> Result<(), String> {
        match self {
            Self::Linear(settings) => settings.check(seed),
            Self::Spiked(settings) => settings.check(),
            Self::Blocks(settings) => settings.check(),
            _ => Ok(()),
        }
    }
}

/// Where images come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageSource {
    /// With the program.
    Bundled(Bundled),
    /// From IDX files: images and labels.
    Files(String, String),
}

impl Scenario {
    /// The text of a built-in scenario.
    #[must_use]
    pub fn built_in(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _, _)| *known == name).map(|(_, _, text)| *text)
    }

    /// Reads a scenario with the command line's changes (`key=value`).
    ///
    /// # Errors
    /// [`Problem`] for the first mistake.
    pub fn parse(name: &str, text: &str, changes: &[String]) -> Result<Self, Problem> {
        let source = Source::parse(name, text, changes)?;
        let root = source.root();
        let fleet = read_fleet(&root.section("fleet")?)?;
        let rule = read_aggregation(&root.section("aggregation")?)?;
        let (norm, samples) = read_limits(&root.section("limits")?, rule)?;
        let scenario = Self {
            name: name.to_owned(),
            text: source.effective(),
            seed: root.integer("seed", Some(0), 0..=i64::MAX as u64)?,
            evaluate_every: u32::try_from(root.integer("evaluate_every", Some(1), 1..=1_000_000)?)
                .unwrap_or(1),
            data: read_data(&root.section("data")?, &root.section("split")?)?,
            model: read_model(&root.section("model")?)?,
            algorithm: read_algorithm(&root.section("algorithm")?)?,
            rule,
            norm,
            samples,
            attack: read_attack(&root.section("attack")?)?,
            participation: read_participation(&root.section("participation")?, Some(fleet.communication))?,
            fleet,
            privacy: read_privacy(&root.section("privacy")?)?,
            stop: read_stop(&root.section("stop")?)?,
        };
        root.finish()?;
        scenario.check(&root)?;
        if scenario.privacy.is_none() {
            return Ok(scenario);
        }
        // What is left after the check can be hidden.
        let init = scenario.model.init.clone().hidden().unwrap_or(Init::Random);
        Ok(Self { model: ModelSection { init, ..scenario.model }, ..scenario })
    }

    /// What cannot be seen key by key.
    fn check(&self, root: &Section<'_>) -> Result<(), Problem> {
        let targeted = self.data.targeted();
        let classification = targeted == Targeted::Classes;
        let model = root.section("model")?;
        check_aggregation(self.rule, &self.algorithm, &root.section("aggregation")?)?;
        check_attack(self.attack, &self.algorithm, &root.section("attack")?)?;
        self.check_privacy(root)?;
        if classification && self.model.init == Init::Moments {
            let message = "found \"moments\", which weighs samples by y^2: regression only; allowed here: \
                           \"random\", \"power\", \"npy:FILE\"";
            return Err(model.problem("init", message));
        }
        if targeted == Targeted::Nothing {
            self.check_without_targets(root)?;
        }
        if !classification && self.stop.accuracy.is_some() {
            let message = "found a target of classes, the data are for regression; allowed here: distance, loss, \
                           simulated_time, change";
            return Err(root.section("stop")?.problem("accuracy", message));
        }
        let data = root.section("data")?;
        self.data.check(self.seed).map_err(|message| data.problem("clients", message))?;
        let by_task = matches!(self.fleet.computing, Computing::Drawn(_, Correlation::Task));
        if by_task && !classification && !matches!(self.data, DataSection::Linear(_)) {
            let message = "found \"task\", which is told from classes, or from the true heads of kind = \
                           \"linear-regression\"; allowed here: \"none\", \"samples\"";
            return Err(root.section("fleet")?.problem("correlation", message));
        }
        if !self.data.is_synthetic() && matches!(self.model.init, Init::TruthSine(_)) {
            let message = "truth-sine needs a known truth: kind = \"linear-regression\", \"spiked-covariance\" or \
                           \"stochastic-block-model\"";
            return Err(model.problem("init", message));
        }
        let d = match &self.data {
            DataSection::Linear(linear) => Some(linear.d),
            DataSection::Spiked(spiked) => Some(spiked.d),
            DataSection::Blocks(blocks) => Some(blocks.d),
            DataSection::Watch(_) => Some(fedspan_client::features::FEATURES),
            DataSection::Csv(_, columns, ..) => Some(columns.features.len() + 1),
            _ => None,
        };
        if let Some(d) = d
            && self.model.k > d
        {
            let message =
                format!("found {}, allowed: an integer from 1 to {d}, the number of features", self.model.k);
            return Err(model.problem("k", message));
        }
        Ok(())
    }

    /// What needs targets, where samples have none.
    fn check_without_targets(&self, root: &Section<'_>) -> Result<(), Problem> {
        let (model, stop) = (root.section("model")?, root.section("stop")?);
        if self.algorithm.power.is_none() {
            let message = format!(
                "found {:?}, the data have no targets to learn from; allowed here: \"fedpower\"",
                self.algorithm_word()
            );
            return Err(root.section("algorithm")?.problem("name", message));
        }
        let weighs = match self.model.init {
            Init::Moments => Some("moments"),
            Init::Power { .. } => Some("power"),
            _ => None,
        };
        if let Some(word) = weighs {
            let message = format!(
                "found {word:?}, which weighs samples by their targets: the data have none; allowed here: \"random\", \
                 \"truth-sine:S\", \"npy:FILE\""
            );
            return Err(model.problem("init", message));
        }
        for (key, target) in [("accuracy", self.stop.accuracy), ("loss", self.stop.loss)] {
            if target.is_some() {
                let message = "the data have no targets to be right about; allowed here: distance, simulated_time, change";
                return Err(stop.problem(key, message));
            }
        }
        Ok(())
    }

    /// Noise is for what can be hidden in it.
    fn check_privacy(&self, root: &Section<'_>) -> Result<(), Problem> {
        let Some(privacy) = self.privacy else { return Ok(()) };
        check_hidden(&self.algorithm, &root.section("algorithm")?)?;
        if let Err(word) = self.model.init.clone().hidden() {
            let message = format!(
                "found {word:?}, which shows records; allowed with [privacy]: \"random\", \"power\" (iterations with \
                 noise), \"truth-sine:S\", \"npy:FILE\""
            );
            return Err(root.section("model")?.problem("init", message));
        }
        let section = root.section("privacy")?;
        let gradients = self.algorithm.power.is_none();
        match (gradients, privacy.clip, privacy.calibration) {
            (true, None, _) => {
                let message =
                    "missing: the norm that a device's gradient is clipped to, a number from 1e-12 to 1e12";
                Err(section.problem("clip", message))
            }
            (true, _, Calibration::Paper) => {
                let message = "found \"paper\", which is FedPower's; allowed here: \"tight\"";
                Err(section.problem("calibration", message))
            }
            (false, Some(_), _) => {
                let message = "for gradients; products are clipped row by row, to 1: leave it out";
                Err(section.problem("clip", message))
            }
            _ => Ok(()),
        }
    }

    /// Noisy releases of each device, if it takes part in every round: `None` without `[privacy]`.
    #[must_use]
    pub fn releases(&self) -> Option<u32> {
        self.privacy?;
        let rounds = self.algorithm.power.map_or(self.algorithm.rounds, |power| power.iterations.into());
        Some(rounds.saturating_add(self.model.init.releases()))
    }

    /// The square of the noise multiplier that devices are provisioned with, in 2^-16; `None` without `[privacy]`.
    ///
    /// # Errors
    /// A sentence with the numbers, where devices cannot have it.
    pub fn multiplier_square(&self) -> Result<Option<u64>, String> {
        let (Some(privacy), Some(releases)) = (self.privacy, self.releases()) else { return Ok(None) };
        let rank = u32::try_from(self.model.k).unwrap_or(u32::MAX);
        let square = privacy.multiplier_square(rank, releases).map_err(|error| error.to_string())?;
        if MULTIPLIER_SQUARES.contains(&square) {
            return Ok(Some(square));
        }
        let multiplier = (square as f64 / 65_536.0).sqrt();
        Err(format!(
            "privacy.epsilon is {}, for which noise is {multiplier:.3} times what a record can change; devices add 0.5 to \
             4096 times that",
            privacy.epsilon.get()
        ))
    }

    /// Makes or reads the data.
    ///
    /// # Errors
    /// [`DataError`] if a file cannot be used.
    pub fn dataset(&self, seed: u64) -> Result<Dataset, DataError> {
        // The sizes may be others than those of the scenario's own seed.
        self.data.check(seed).map_err(|message| DataError::new(&self.name, message))?;
        let untrue = |error: NoEigenspace| DataError::new(&self.name, error.to_string());
        match &self.data {
            DataSection::Linear(settings) => Ok(linear_regression(settings, seed)),
            DataSection::Spiked(settings) => {
                spiked_covariance::Model::new(*settings, seed).dataset().map_err(untrue)
            }
            DataSection::Blocks(settings) => settings.dataset(seed).map_err(untrue),
            DataSection::Npz(path) => npz::dataset(&self.locate(path)),
            DataSection::Watch(settings) => watch::dataset(settings, seed),
            DataSection::Csv(path, columns, split, holdout) => {
                let path = self.locate(path);
                let (mut dataset, names) = table::read(&path, columns)?;
                let d = dataset.features;
                dataset.clients =
                    dataset.clients.iter().map(|client| split.in_order(&client.train, d)).collect();
                holdout.apply(dataset, &names, &path, seed)
            }
            DataSection::Images(source, how, sizes, split) => {
                let (images, name) = match source {
                    ImageSource::Bundled(Bundled::Digits) => {
                        (idx::bundled(Bundled::Digits)?, "digits".to_owned())
                    }
                    ImageSource::Bundled(which) => (idx::bundled(*which)?, "mnist5k".to_owned()),
                    ImageSource::Files(images, labels) => {
                        let path = self.locate(images);
                        (idx::read(&path, &self.locate(labels))?, path)
                    }
                };
                let fits = how.check(images.set.len(), images.classes);
                fits.map_err(|message| DataError::new(name, message))?;
                let parts = partition(&images.set, images.features, *how, *sizes, seed);
                let clients = parts.iter().map(|part| split.shuffled(part, images.features, seed)).collect();
                Ok(Dataset {
                    features: images.features,
                    outputs: images.classes,
                    classification: true,
                    clients,
                    newcomers: Vec::new(),
                    truth: None,
                })
            }
        }
    }

    /// Checks that nobody attacks: real devices and boards do as they are built.
    ///
    /// # Errors
    /// [`Attacked`].
    pub fn check_honest(&self) -> Result<(), Attacked> {
        if self.attack.is_some() { Err(Attacked { name: self.name.clone() }) } else { Ok(()) }
    }

    /// Where a file that the scenario names is: beside the scenario file, or else in the current directory.
    #[must_use]
    pub fn locate(&self, path: &str) -> String {
        let beside = Path::new(&self.name).with_file_name(path);
        if beside.is_file() { beside.display().to_string() } else { path.to_owned() }
    }

    /// Whether the algorithm exchanges rounds.
    #[must_use]
    pub fn is_federated(&self) -> bool {
        self.algorithm.name.is_federated()
    }

    /// The algorithm's name as in the file.
    #[must_use]
    pub fn algorithm_word(&self) -> &'static str {
        AlgorithmName::word(self.algorithm.name)
    }
}

fn read_limits(section: &Section<'_>, rule: Rule) -> Result<(f32, SampleCap), Problem> {
    let bounds = read_bounds(section, f64::from(MAGNITUDE_MAX), SAMPLES, rule)?;
    section.finish()?;
    Ok(bounds)
}

fn read_data(section: &Section<'_>, split: &Section<'_>) -> Result<DataSection, Problem> {
    #[derive(Clone, Copy)]
    enum Kind {
        Linear,
        Spiked,
        Blocks,
        Npz,
        Csv,
        Watch,
        Digits,
        Mnist5k,
        Idx,
    }
    let kinds = [
        ("linear-regression", Kind::Linear),
        ("spiked-covariance", Kind::Spiked),
        ("stochastic-block-model", Kind::Blocks),
        ("npz", Kind::Npz),
        ("csv", Kind::Csv),
        ("watch-imu", Kind::Watch),
        ("digits", Kind::Digits),
        ("mnist5k", Kind::Mnist5k),
        ("idx", Kind::Idx),
    ];
    let file = "a file name";
    let data = match section.choice("kind", None, &kinds)? {
        Kind::Linear => {
            let norms = [("sqrt-k", HeadNorm::SqrtK), ("gaussian", HeadNorm::Gaussian), ("qr", HeadNorm::Qr)];
            let d = section.size("d", None, 1..=65_535)?;
            DataSection::Linear(LinearRegression {
                clients: section.size("clients", None, 1..=1_000_000)?,
                d,
                k: section.size("k", None, 1..=d)?,
                samples: section.size("samples", None, 0..=1_000_000)?,
                sizes: Sizes::read(section)?,
                fresh: section.boolean("fresh", false)?,
                feature_std: section.number("feature_std", Some(1.0), 1e-9..=1e9)?,
                noise_std: section.number("noise_std", Some(0.0), 0.0..=f64::MAX)?,
                head_norm: section.choice("head_norm", Some("sqrt-k"), &norms)?,
                new_clients: section.size("new_clients", Some(0), 0..=1_000_000)?,
                new_samples: section.size("new_samples", Some(10), 0..=1_000_000)?,
                test_samples: section.size("test_samples", Some(0), 0..=1_000_000)?,
            })
        }
        Kind::Spiked => {
            let d = section.size("d", None, 1..=LARGEST_FEATURES)?;
            DataSection::Spiked(SpikedCovariance {
                clients: section.size("clients", None, 1..=1_000_000)?,
                d,
                k: section.size("k", None, 1..=d)?,
                samples: section.size("samples", None, 1..=1_000_000)?,
                noise_std: section.number("noise_std", Some(0.6), 0.0..=1e6)?,
            })
        }
        Kind::Blocks => {
            let d = section.size("d", None, 1..=LARGEST_FEATURES)?;
            DataSection::Blocks(StochasticBlockModel {
                clients: section.size("clients", None, 1..=1_000_000)?,
                d,
                k: section.size("k", None, 1..=d)?,
            })
        }
        Kind::Npz => DataSection::Npz(section.string("path", None, file)?),
        Kind::Csv => {
            let column = "a column name";
            let names = "a list of column names";
            let features = section.list("features", names, |v| v.as_str().map(str::to_owned))?;
            let features = features
                .filter(|list| !list.is_empty())
                .ok_or_else(|| section.problem("features", format!("missing or empty, allowed: {names}")))?;
            let targets = [("regression", false), ("classes", true)];
            let columns = Columns {
                client: section.string("client", None, column)?,
                target: section.string("target", None, column)?,
                features,
                classification: section.choice("task", Some("regression"), &targets)?,
            };
            for (place, name) in columns.features.iter().enumerate() {
                let wrong = |what| Err(section.problem("features", format!("found {name:?}, {what}")));
                if *name == columns.target {
                    return wrong("which is the target");
                }
                if columns.features.iter().take(place).any(|before| before == name) {
                    return wrong("twice");
                }
            }
            let holdout = Holdout {
                users: split.size("holdout_users", Some(0), 0..=1_000_000)?,
                fold: split.size("fold", Some(0), 0..=1_000_000)?,
                samples: match columns.classification {
                    true => split.size("labels_per_class", Some(1), 1..=1_000_000)?,
                    false => split.size("new_samples", Some(10), 1..=1_000_000)?,
                },
            };
            let path = section.string("path", None, file)?;
            DataSection::Csv(path, columns, read_split(split, true)?, holdout)
        }
        Kind::Watch => {
            let programmes = section.boolean("programmes", false)?;
            let head_samples_per_class = section.size("head_samples_per_class", Some(0), 0..=1000)?;
            split.choice("by", Some("time"), &[("time", ())])?;
            let holdout_users = split.size("holdout_users", Some(0), 0..=watch::PEOPLE - 1)?;
            let folds = watch::PEOPLE.checked_div(holdout_users).unwrap_or(1);
            // Those who are left when one group is held out, in groups of the same size.
            let inner = (watch::PEOPLE - holdout_users).checked_div(holdout_users).unwrap_or(1).max(1);
            let fraction = split.number("validation", Some(0.0), 0.0..=0.9)?;
            let validation_fold = split.size("validation_fold", Some(0), 0..=inner - 1)?;
            DataSection::Watch(WatchSettings {
                test: split.number("test", Some(0.5), 0.05..=0.95)?,
                gap: split.size("gap", Some(3), 1..=100)?,
                holdout_users,
                fold: split.size("fold", Some(0), 0..=folds - 1)?,
                labels_per_class: split.size("labels_per_class", Some(1), 1..=1000)?,
                programmes,
                head_samples_per_class,
                validation: (fraction > 0.0).then_some(Validation { fraction, fold: validation_fold }),
            })
        }
        kind => {
            let source = match kind {
                Kind::Digits => ImageSource::Bundled(Bundled::Digits),
                Kind::Mnist5k => ImageSource::Bundled(Bundled::Mnist5k),
                _ => ImageSource::Files(
                    section.string("images", None, "an IDX file name")?,
                    section.string("labels", None, "an IDX file name")?,
                ),
            };
            let part = section.section("partition")?;
            let shards = part.choice("kind", Some("shards"), &[("shards", true), ("iid", false)])?;
            let clients = part.size("clients", Some(20), 1..=100_000)?;
            let how = if shards {
                Partition::Shards { clients, classes: part.size("classes", Some(2), 1..=256)? }
            } else {
                Partition::Iid { clients }
            };
            let sizes = Sizes::read(&part)?;
            part.finish()?;
            DataSection::Images(source, how, sizes, read_split(split, false)?)
        }
    };
    section.finish()?;
    split.finish()?;
    Ok(data)
}

/// `in_time`: samples have an order, and neighbours may be alike.
fn read_split(split: &Section<'_>, in_time: bool) -> Result<OrderSplit, Problem> {
    split.choice("by", Some("time"), &[("time", ())])?;
    Ok(OrderSplit {
        test: split.number("test", Some(0.2), 0.0..=0.95)?,
        validation: split.number("validation", Some(0.0), 0.0..=0.9)?,
        gap: if in_time { split.size("gap", Some(0), 0..=1_000_000)? } else { 0 },
    })
}
