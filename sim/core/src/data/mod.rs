//! Data sets that are divided among clients. A data set is generated ([`synthetic`], [`low_rank`],
//! [`spiked_covariance`], [`stochastic_block_model`]), read from files ([`watch`], [`idx`], [`cifar`],
//! [`leaf`], [`npz`], [`table`]), or made by the calling program.

pub mod augment;
mod check;
pub mod cifar;
pub mod eigenspace;
pub mod file;
pub mod flash;
pub mod generator;
pub mod holdout;
mod idle;
pub mod idx;
pub mod layout;
pub mod leaf;
pub mod low_rank;
mod memory;
pub mod npz;
pub mod partition;
pub mod pool;
pub mod scale;
pub mod scaled;
pub mod set;
mod shared_set;
pub mod sizes;
pub mod spiked_covariance;
pub mod split;
pub mod stochastic_block_model;
pub mod synthetic;
pub mod table;
pub mod watch;

use std::sync::Arc;

use fedspan_client::SourceError;
use fedspan_client::memory::Shape as LinearShape;
use fedspan_client::source::{SampleSource, Samples};
use fedspan_engine::linalg::Matrix;
use fedspan_protocol::message::RoundId;

pub use check::{DatasetError, SetPlace};
pub use layout::{Layout, Shape};
pub use memory::MemoryData;
pub use set::{Labels, Set};
pub use shared_set::{ClientGenerator, Part, SharedSet};

use file::DataFile;

use augment::Augment;
use eigenspace::{NoEigenspace, pooled_truth};
use generator::Generator;
use scale::Scaling;

/// Notices that the licences of the bundled data require in every redistribution of the data.
pub const LICENCES: &str = include_str!("../../data/LICENSES.md");

/// Largest number of values in a data set, and in the models that are trained on it: 8 GiB of f32. A scenario
/// with larger sizes is rejected as a mistake.
pub const LARGEST_VALUES: u64 = 1 << 31;

/// An error in a data file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {message}")]
pub struct DataError {
    /// Path of the file.
    pub file: String,
    /// Description of the error, in one line.
    pub message: String,
}

impl DataError {
    /// Creates an error about a file. Control characters in the message are escaped, so that the message is
    /// one line for any file content.
    pub fn new(file: impl Into<String>, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.contains(char::is_control) {
            let escape =
                |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
            message = message.chars().map(escape).collect();
        }
        Self { file: file.into(), message }
    }
}

/// A client's data.
#[derive(Clone, Debug)]
pub struct Client {
    /// Training samples.
    pub train: SharedSet,
    /// Test samples.
    pub test: SharedSet,
    /// Generator of a new training batch for every round, which replaces `train`; `None` if the training
    /// samples are fixed.
    pub fresh: Option<Box<Generator>>,
    /// Samples that the head is fitted on in training rounds. `None` if it is fitted on all samples.
    pub episode: Option<Box<Episode>>,
    /// Augmentation of the training images; `None` for no augmentation.
    pub augment: Option<Box<Augment>>,
}

/// Draw of some samples of a client for the head, in every training round others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episode {
    /// Number of samples of each class.
    pub samples_per_class: usize,
    /// Seed of the draws.
    pub seed: u64,
    /// Number of the client.
    pub client: u64,
}

impl Client {
    /// Creates a client with fixed samples.
    #[must_use]
    pub fn new(train: impl Into<SharedSet>, test: impl Into<SharedSet>) -> Self {
        Self { train: train.into(), test: test.into(), fresh: None, episode: None, augment: None }
    }

    /// Creates the sample source of the client's device.
    #[must_use]
    pub fn source(&self) -> ClientSource {
        let set = self.train.load();
        ClientSource {
            set: Arc::clone(&set),
            fresh: self.fresh.clone(),
            episode: self.episode.clone(),
            augment: self.augment.clone().map(|augment| (augment, set)),
            part: None,
            round: None,
            head_pass: false,
            done: false,
        }
    }
}

/// All clients of a run.
#[derive(Clone, Debug, Default)]
pub struct Dataset {
    /// Number of features, `d`.
    pub features: usize,
    /// Number of outputs, `C`; 1 if samples have no targets.
    pub outputs: usize,
    /// True if targets are class numbers.
    pub classification: bool,
    /// Training clients.
    pub clients: Vec<Client>,
    /// Clients that join after training and only fit a head.
    pub newcomers: Vec<Client>,
    /// True representation, if known; for FedPower the top eigenspace of all rows.
    pub truth: Option<Matrix>,
    /// Arrangement of the values of a row.
    pub layout: Layout,
    /// Number of users in the data that did not become clients, because they have too few samples or no
    /// training samples.
    pub dropped_users: usize,
    /// Names of `clients`; empty if the data name none.
    pub client_names: Vec<String>,
    /// Names of `newcomers`; empty if the data name none.
    pub newcomer_names: Vec<String>,
    /// Names of the features without the constant; empty if the data name none.
    pub feature_names: Vec<String>,
    /// Names of the classes in the order of their numbers; empty if the data name none.
    pub class_names: Vec<String>,
    /// Scale that was applied to the features; `None` if the features are unscaled.
    pub scale: Option<Scaling>,
    /// Files from which the data were read; empty for data that are generated or bundled.
    pub files: Vec<DataFile>,
    /// Warnings about the data that a run prints, one line each.
    pub warnings: Vec<String>,
}

impl Dataset {
    /// Creates a data set of `classes` classes from clients whose targets are class numbers. Linear models
    /// have no offset: add a feature that is always 1 if an offset is needed.
    #[must_use]
    pub fn classes(features: usize, classes: usize, clients: Vec<Client>) -> Self {
        Self { features, outputs: classes, classification: true, clients, ..Self::default() }
    }

    /// Creates a data set from clients with `outputs` real-valued targets for each sample. Linear models have
    /// no offset: add a feature that is always 1 if an offset is needed.
    #[must_use]
    pub fn regression(features: usize, outputs: usize, clients: Vec<Client>) -> Self {
        Self { features, outputs, clients, ..Self::default() }
    }

    /// Adds clients that join after training and only fit a head.
    #[must_use]
    pub fn with_newcomers(self, newcomers: Vec<Client>) -> Self {
        Self { newcomers, ..self }
    }

    /// Creates a data set without targets. Its true representation is the top eigenspace, of `k` dimensions,
    /// of all rows.
    ///
    /// # Errors
    /// [`NoEigenspace`] if the eigenspace is not unique or cannot be computed.
    pub fn unlabelled(features: usize, clients: Vec<Client>, k: usize) -> Result<Self, NoEigenspace> {
        let mut dataset = Self { features, outputs: 1, clients, ..Self::default() };
        dataset.truth = Some(pooled_truth(&dataset, k)?);
        Ok(dataset)
    }

    /// True if any client has targets.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        self.clients.iter().any(|client| client.train.has_targets())
    }
}

/// Sizes of a linear model on a data set, with a representation of `width` dimensions.
#[must_use]
pub fn shape_of(dataset: &Dataset, width: usize) -> LinearShape {
    LinearShape { features: dataset.features, width, outputs: dataset.outputs }
}

/// Sample source of a simulated device. Prepares a new batch in every round if the client has a generator or
/// an augmentation, and draws new samples for the head of every round if the client trains in episodes.
#[derive(Clone, Debug)]
pub struct ClientSource {
    set: Arc<Set>,
    fresh: Option<Box<Generator>>,
    episode: Option<Box<Episode>>,
    /// Augmentation of the training images, and the original images.
    augment: Option<(Box<Augment>, Arc<Set>)>,
    /// Samples that the head of the current round is fitted on; `None` if it is fitted on all samples.
    part: Option<Set>,
    round: Option<RoundId>,
    head_pass: bool,
    done: bool,
}

impl ClientSource {
    /// Samples of every round and of every head; `None` if they differ from round to round, or the head has its own.
    #[must_use]
    pub fn fixed_samples(&self) -> Option<Arc<Set>> {
        let is_fixed = self.fresh.is_none() && self.augment.is_none() && self.episode.is_none();
        is_fixed.then(|| Arc::clone(&self.set))
    }

    /// Prepares the samples of a round: draws a new batch, augments images, and draws the samples for the
    /// head. Does nothing if the round has already been prepared.
    fn prepare(&mut self, id: RoundId) {
        if self.round == Some(id) {
            return;
        }
        self.round = Some(id);
        if let Some(generator) = &self.fresh {
            self.set = Arc::new(generator.batch(id.round.into()));
        }
        if let Some((augment, unaugmented)) = &self.augment {
            self.set = Arc::new(augment.apply(unaugmented, id.round));
        }
        if let Some(&Episode { samples_per_class, seed, client }) = self.episode.as_deref() {
            let d = self.set.x.len().checked_div(self.set.len()).unwrap_or(0);
            let index = (client + 1) << 32 | u64::from(id.round);
            let chosen = set::draw_per_class(&self.set, samples_per_class, seed, index);
            self.part = Some(self.set.select(d, &chosen));
        }
    }
}

impl SampleSource for ClientSource {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.prepare(id);
        self.head_pass = false;
        self.done = self.set.is_empty();
        Ok(())
    }

    fn rewind_for_head(&mut self, id: RoundId) -> Result<bool, SourceError> {
        self.rewind(id)?;
        self.head_pass = self.part.is_some();
        Ok(self.head_pass)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        if self.done {
            return None;
        }
        self.done = true;
        let set = self.part.as_ref().filter(|_| self.head_pass).unwrap_or(&self.set);
        Some(set.samples())
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        self.samples_from(index, 1)
    }

    fn samples_from(&mut self, index: usize, max_samples: usize) -> Option<Samples<'_>> {
        let set = self.part.as_ref().filter(|_| self.head_pass).unwrap_or(&self.set);
        let d = set.x.len().checked_div(set.len())?;
        let outputs = if let Labels::Values { outputs, .. } = set.y { outputs } else { 1 };
        set.samples().slice(index, max_samples, d, outputs)
    }
}
