//! Samples: made ([`synthetic`], [`low_rank`], [`spiked_covariance`], [`stochastic_block_model`]) or read ([`watch`], [`idx`], [`cifar`],
//! [`leaf`], [`npz`], [`table`]), cut into clients.

pub mod augment;
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
pub mod npz;
pub mod partition;
pub mod pool;
pub mod scale;
pub mod scaled;
pub mod set;
pub mod sizes;
pub mod spiked_covariance;
pub mod split;
pub mod stochastic_block_model;
pub mod synthetic;
pub mod table;
pub mod watch;

use std::sync::Arc;

use fedspan_client::SourceError;
use fedspan_client::source::{SampleSource, Samples};
use fedspan_engine::linalg::Matrix;
use fedspan_protocol::message::RoundId;

pub use layout::{Layout, Shape};
pub use set::{Labels, Set};

use augment::Augment;
use eigenspace::{NoEigenspace, pooled_truth};
use generator::Generator;
use scale::Scaling;

/// The notices that the licences of the bundled data require from whoever redistributes them.
pub const LICENCES: &str = include_str!("../../data/LICENSES.md");

/// The most values that data, and the models on them, may take: 8 GiB of f32. A product of sizes that is
/// beyond it is a mistake in a scenario, not a wish.
pub const LARGEST_VALUES: u64 = 1 << 31;

/// Something is wrong with a data file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {message}")]
pub struct DataError {
    /// Which file.
    pub file: String,
    /// What is wrong with it.
    pub message: String,
}

impl DataError {
    /// An error in a file. The message is one line, whatever the file has in its names.
    pub fn new(file: impl Into<String>, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.contains(char::is_control) {
            let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
            message = message.chars().map(shown).collect();
        }
        Self { file: file.into(), message }
    }
}

/// One client.
#[derive(Clone, Debug)]
pub struct Client {
    /// What it trains on.
    pub train: Arc<Set>,
    /// What it is scored on.
    pub test: Arc<Set>,
    /// Draws a new batch every round instead of `train`, where data is fresh.
    pub fresh: Option<Generator>,
    /// Where a training round's head is fitted on a few samples of each class, drawn anew each round: how
    /// many, the seed, and the client's number.
    pub episode: Option<(usize, u64, u64)>,
    /// Where training images are moved and mirrored in every round.
    pub augment: Option<Augment>,
}

impl Client {
    /// Fixed samples.
    #[must_use]
    pub fn new(train: Set, test: Set) -> Self {
        Self { train: Arc::new(train), test: Arc::new(test), fresh: None, episode: None, augment: None }
    }

    /// The client's samples as its device reads them.
    #[must_use]
    pub fn source(&self) -> ClientSource {
        let set = Arc::clone(&self.train);
        ClientSource {
            set,
            fresh: self.fresh.clone(),
            episode: self.episode,
            augment: self.augment.map(|augment| (augment, Arc::clone(&self.train))),
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
    /// `d`.
    pub features: usize,
    /// `C`; 1 where there are no targets.
    pub outputs: usize,
    /// Targets are class numbers.
    pub classification: bool,
    /// Those who train.
    pub clients: Vec<Client>,
    /// Those who come after training and only fit a head.
    pub newcomers: Vec<Client>,
    /// The true representation, where there is one; the top eigenspace of all rows where that is the task.
    pub truth: Option<Matrix>,
    /// What the values of a row are.
    pub layout: Layout,
    /// Users of the data who are no clients: they have too few samples, or none to train on.
    pub left_out: usize,
    /// Names of `clients`, where the data have some; empty otherwise.
    pub client_names: Vec<String>,
    /// Names of `newcomers`, where the data have some; empty otherwise.
    pub newcomer_names: Vec<String>,
    /// Names of features, where the data have some; the constant has none.
    pub feature_names: Vec<String>,
    /// Names of classes 0, 1, 2 and so on, where the data have some; empty otherwise.
    pub class_names: Vec<String>,
    /// The scale of the features, where there is one.
    pub scale: Option<Scaling>,
    /// Remarks on the data that a run prints, one line each.
    pub warnings: Vec<String>,
}

impl Dataset {
    /// Clients whose samples have no targets: the truth is the top eigenspace of `k` dimensions of all their rows.
    ///
    /// # Errors
    /// [`NoEigenspace`].
    pub fn unlabelled(features: usize, clients: Vec<Client>, k: usize) -> Result<Self, NoEigenspace> {
        let mut dataset = Self { features, outputs: 1, clients, ..Self::default() };
        dataset.truth = Some(pooled_truth(&dataset, k)?);
        Ok(dataset)
    }

    /// Whether anybody has anything to learn a head from.
    #[must_use]
    pub fn has_targets(&self) -> bool {
        self.clients.iter().any(|client| client.train.has_targets())
    }
}

/// A client's samples, replayable; a new batch for every round where data is fresh, a new few samples for
/// every round's head where the client trains in episodes.
#[derive(Clone, Debug)]
pub struct ClientSource {
    set: Arc<Set>,
    fresh: Option<Generator>,
    episode: Option<(usize, u64, u64)>,
    /// With the images as they are.
    augment: Option<(Augment, Arc<Set>)>,
    /// The few samples of this round's head.
    part: Option<Set>,
    round: Option<RoundId>,
    head_pass: bool,
    done: bool,
}

impl ClientSource {
    fn prepare(&mut self, id: RoundId) {
        if self.round == Some(id) {
            return;
        }
        self.round = Some(id);
        if let Some(generator) = &self.fresh {
            self.set = Arc::new(generator.batch(id.round.into()));
        }
        if let Some((augment, whole)) = &self.augment {
            self.set = Arc::new(augment.apply(whole, id.round));
        }
        if let Some((count, seed, client)) = self.episode {
            let d = self.set.x.len().checked_div(self.set.len()).unwrap_or(0);
            let index = (client + 1) << 32 | u64::from(id.round);
            let chosen = watch::draw_per_class(&self.set, count, seed, index);
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

    fn samples_from(&mut self, index: usize, most: usize) -> Option<Samples<'_>> {
        let set = self.part.as_ref().filter(|_| self.head_pass).unwrap_or(&self.set);
        let d = set.x.len().checked_div(set.len())?;
        let outputs = if let Labels::Values { outputs, .. } = set.y { outputs } else { 1 };
        set.samples().slice(index, most, d, outputs)
    }
}
