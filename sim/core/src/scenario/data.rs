//! Sections `[data]`, `[data.partition]` and `[split]` of a scenario: the source of the samples, and the
//! division of the samples among clients.

mod checksums;
mod pooled;
mod read;
mod split_plan;
mod tables;

pub use pooled::{PoolSource, PooledSection};
pub(super) use read::read_data;
pub use tables::{TableSection, TableSource};

use crate::available_memory::check_memory;
use crate::data::eigenspace::NoEigenspace;
use crate::data::low_rank::LowRankRegression;
use crate::data::spiked_covariance::{self, SpikedCovariance};
use crate::data::stochastic_block_model::StochasticBlockModel;
use crate::data::synthetic::{LinearRegression, linear_regression};
use crate::data::watch::{self, WatchSettings};
use crate::data::{Client, DataError, Dataset, MemoryData};

/// Section `[data]` with the sections `[split]` and `[data.partition]`.
#[derive(Clone, Debug, PartialEq)]
pub enum DataSection {
    /// Synthetic data of a linear regression.
    Linear(LinearRegression),
    /// Synthetic data of a regression with several targets that depend on a few directions.
    LowRank(LowRankRegression),
    /// Synthetic data with a spiked covariance, without targets.
    Spiked(SpikedCovariance),
    /// Synthetic data of a stochastic block model, without targets.
    Blocks(StochasticBlockModel),
    /// Labelled table from a CSV file or an npz file.
    Table(TableSection),
    /// Features of smartwatch recordings.
    Watch(WatchSettings),
    /// Raw windows of smartwatch recordings, in which this number of samples is averaged into one sample.
    WatchWindows(WatchSettings, usize),
    /// Labelled samples, such as images, that are partitioned among clients.
    Pooled(PooledSection),
    /// Data that the calling program has made.
    Memory(MemoryData),
}

/// Kind of targets of the samples in a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// Class numbers.
    Classes,
    /// Real values.
    Values,
    /// No targets, so no heads are trained.
    Absent,
}

impl DataSection {
    /// Kind of targets of the samples.
    #[must_use]
    pub fn target_kind(&self) -> TargetKind {
        match self {
            Self::Spiked(_) | Self::Blocks(_) => TargetKind::Absent,
            Self::Linear(_) | Self::LowRank(_) => TargetKind::Values,
            Self::Table(table) if !table.classification() => TargetKind::Values,
            Self::Memory(memory_data) if memory_data.dataset().classification => TargetKind::Classes,
            Self::Memory(memory_data) if memory_data.dataset().has_targets() => TargetKind::Values,
            Self::Memory(_) => TargetKind::Absent,
            Self::Table(_) | Self::Watch(_) | Self::WatchWindows(..) | Self::Pooled(_) => TargetKind::Classes,
        }
    }

    /// Number of labelled samples of each class of a newcomer; `None` if there are no newcomers or all
    /// samples are labelled.
    pub(super) fn labels_per_class(&self) -> Option<u16> {
        let labels = match self {
            Self::Watch(watch) | Self::WatchWindows(watch, _) if watch.holdout_users > 0 => {
                watch.labels_per_class
            }
            Self::Table(table) if table.plan.holdout.clients > 0 && table.classification() => {
                table.plan.holdout.samples
            }
            Self::Pooled(pooled) if pooled.plan.holdout.clients > 0 => pooled.plan.holdout.samples,
            _ => return None,
        };
        // 0 stands for all samples.
        (labels > 0).then(|| u16::try_from(labels).unwrap_or(u16::MAX))
    }

    /// True if the true representation is known for every data set of this kind.
    pub(super) fn is_synthetic(&self) -> bool {
        match self {
            Self::Linear(_) | Self::LowRank(_) | Self::Spiked(_) | Self::Blocks(_) => true,
            Self::Memory(memory_data) => memory_data.dataset().truth.is_some(),
            Self::Table(_) | Self::Watch(_) | Self::WatchWindows(..) | Self::Pooled(_) => false,
        }
    }

    /// Number of features, if it is known before a file is read.
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
            Self::Memory(own) => Some(own.dataset().features),
        }
    }

    /// Memory in bytes of the data that are generated before the run; 0 for data that are read.
    fn generated_bytes(&self) -> u64 {
        let (clients, values) = match self {
            // The samples are generated when they are read.
            Self::Linear(settings) => (settings.clients, 2 * settings.clients as u64 * settings.k as u64),
            Self::LowRank(settings) => (settings.clients, settings.values()),
            Self::Spiked(settings) => (settings.clients, settings.values()),
            Self::Blocks(settings) => (settings.clients, settings.values()),
            _ => (0, 0),
        };
        let clients = (clients as u64).saturating_mul(size_of::<Client>() as u64);
        clients.saturating_add(values.saturating_mul(4))
    }

    /// Checks that generated data are not larger than data of a scenario may be.
    pub(super) fn check(&self, seed: u64) -> Result<(), String> {
        match self {
            Self::Linear(settings) => settings.check(seed),
            Self::LowRank(settings) => settings.check(),
            Self::Spiked(settings) => settings.check(),
            Self::Blocks(settings) => settings.check(),
            _ => Ok(()),
        }
    }

    /// Generates or reads the data of the scenario called `name`. If `has_given_start` is true, the initial
    /// representation is read from a file and refers to unscaled features.
    pub(super) fn dataset(&self, name: &str, seed: u64, has_given_start: bool) -> Result<Dataset, DataError> {
        // The sizes of clients depend on the seed, so the check is repeated.
        self.check(seed)
            .and_then(|()| check_memory("the generated data", self.generated_bytes()))
            .map_err(|message| DataError::new(name, message))?;
        let failed = |error: NoEigenspace| DataError::new(name, error.to_string());
        match self {
            Self::Linear(settings) => Ok(linear_regression(settings, seed)),
            Self::LowRank(settings) => Ok(settings.dataset(seed)),
            Self::Spiked(settings) => {
                spiked_covariance::Model::new(*settings, seed).dataset().map_err(failed)
            }
            Self::Blocks(settings) => settings.dataset(seed).map_err(failed),
            Self::Table(table) => table.dataset(name, seed, has_given_start),
            Self::Watch(settings) => watch::dataset(settings, seed),
            Self::WatchWindows(settings, decimation) => watch::raw_dataset(settings, *decimation, seed),
            Self::Pooled(settings) => settings.dataset(name, seed),
            Self::Memory(own) => Ok(own.dataset().clone()),
        }
    }
}
