//! `[data]`, `[data.partition]` and `[split]`: where samples come from, and who has which of them.

mod cutting;
mod pooled;
mod read;
mod tables;

pub use pooled::{PoolSource, PooledSection};
pub(super) use read::read_data;
pub use tables::{TableSection, TableSource};

use crate::data::eigenspace::NoEigenspace;
use crate::data::low_rank::LowRankRegression;
use crate::data::spiked_covariance::{self, SpikedCovariance};
use crate::data::stochastic_block_model::StochasticBlockModel;
use crate::data::synthetic::{LinearRegression, linear_regression};
use crate::data::watch::{self, WatchSettings};
use crate::data::{DataError, Dataset};

/// `[data]`, with `[split]` and `[data.partition]`.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSection {
    /// Synthetic.
    Linear(LinearRegression),
    /// Synthetic: several targets, which depend on few directions.
    LowRank(LowRankRegression),
    /// Synthetic, without targets.
    Spiked(SpikedCovariance),
    /// Synthetic, without targets: graphs.
    Blocks(StochasticBlockModel),
    /// A labelled table, in a CSV or an npz file.
    Table(TableSection),
    /// The smartwatch recordings.
    Watch(WatchSettings),
    /// The smartwatch recordings, windows in place of features: so many samples are averaged into one.
    WatchWindows(WatchSettings, usize),
    /// Labelled samples that are cut into clients: images, mostly.
    Pooled(PooledSection),
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
            Self::Linear(_) | Self::LowRank(_) => Targeted::Values,
            Self::Table(table) if !table.classification() => Targeted::Values,
            Self::Table(_) | Self::Watch(_) | Self::WatchWindows(..) | Self::Pooled(_) => Targeted::Classes,
        }
    }

    /// Samples of each class that newcomers label, where there are any.
    pub(super) fn labels_per_class(&self) -> Option<u16> {
        let labels = match self {
            Self::Watch(watch) | Self::WatchWindows(watch, _) if watch.holdout_users > 0 => {
                watch.labels_per_class
            }
            Self::Table(table) if table.cutting.holdout.clients > 0 && table.classification() => {
                table.cutting.holdout.samples
            }
            Self::Pooled(pooled) if pooled.cutting.holdout.clients > 0 => pooled.cutting.holdout.samples,
            _ => return None,
        };
        // 0: all of them.
        (labels > 0).then(|| u16::try_from(labels).unwrap_or(u16::MAX))
    }

    /// Whether the true representation is known beforehand, whatever the file.
    pub(super) fn is_synthetic(&self) -> bool {
        matches!(self, Self::Linear(_) | Self::LowRank(_) | Self::Spiked(_) | Self::Blocks(_))
    }

    /// The number of features, where it is known before a file is read.
    pub(super) fn features(&self) -> Option<usize> {
        match self {
            Self::Linear(linear) => Some(linear.d),
            Self::LowRank(low_rank) => Some(low_rank.d),
            Self::Spiked(spiked) => Some(spiked.d),
            Self::Blocks(blocks) => Some(blocks.d),
            Self::Watch(_) => Some(fedspan_client::features::FEATURES),
            Self::WatchWindows(_, decimation) => Some(watch::windows::values(*decimation) + 1),
            Self::Table(table) => table.features(),
            Self::Pooled(_) => None,
        }
    }

    /// That this machine can hold it.
    pub(super) fn check(&self, seed: u64) -> Result<(), String> {
        match self {
            Self::Linear(settings) => settings.check(seed),
            Self::LowRank(settings) => settings.check(),
            Self::Spiked(settings) => settings.check(),
            Self::Blocks(settings) => settings.check(),
            _ => Ok(()),
        }
    }

    /// Makes or reads the data of the scenario called `name`. Where a start is `given`, it is a matrix of the features as
    /// they are.
    pub(super) fn dataset(&self, name: &str, seed: u64, given: bool) -> Result<Dataset, DataError> {
        // The sizes may be others than those of the scenario's own seed.
        self.check(seed).map_err(|message| DataError::new(name, message))?;
        let untrue = |error: NoEigenspace| DataError::new(name, error.to_string());
        match self {
            Self::Linear(settings) => Ok(linear_regression(settings, seed)),
            Self::LowRank(settings) => Ok(settings.dataset(seed)),
            Self::Spiked(settings) => {
                spiked_covariance::Model::new(*settings, seed).dataset().map_err(untrue)
            }
            Self::Blocks(settings) => settings.dataset(seed).map_err(untrue),
            Self::Table(table) => table.dataset(name, seed, given),
            Self::Watch(settings) => watch::dataset(settings, seed),
            Self::WatchWindows(settings, decimation) => watch::series(settings, *decimation, seed),
            Self::Pooled(settings) => settings.dataset(name, seed),
        }
    }
}
