//! `[data]`, `[data.partition]` and `[split]`: where samples come from, and who has which of them.

mod cutting;
mod pooled;
mod read;

pub use pooled::{PoolSource, PooledSection};
pub(super) use read::read_data;

use crate::data::eigenspace::NoEigenspace;
use crate::data::file::Files;
use crate::data::holdout::Holdout;
use crate::data::low_rank::LowRankRegression;
use crate::data::npz;
use crate::data::spiked_covariance::{self, SpikedCovariance};
use crate::data::split::OrderSplit;
use crate::data::stochastic_block_model::StochasticBlockModel;
use crate::data::synthetic::{LinearRegression, linear_regression};
use crate::data::table::{self, Columns};
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
    /// An npz file.
    Npz(NpzSection),
    /// A CSV file.
    Csv(CsvSection),
    /// The smartwatch recordings.
    Watch(WatchSettings),
    /// The smartwatch recordings, windows in place of features: so many samples are averaged into one.
    WatchWindows(WatchSettings, usize),
    /// Labelled samples that are cut into clients: images, mostly.
    Pooled(PooledSection),
}

/// An npz file.
#[derive(Clone, Debug, PartialEq)]
pub struct NpzSection {
    /// Its name.
    pub path: String,
    /// Its SHA-256, if that is to be checked.
    pub sums: Vec<String>,
    /// Targets are classes.
    pub classification: bool,
}

/// A CSV file.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvSection {
    /// Its name.
    pub path: String,
    /// Its SHA-256, if that is to be checked.
    pub sums: Vec<String>,
    /// What its columns mean.
    pub columns: Columns,
    /// What trains and what tests.
    pub split: OrderSplit,
    /// Who comes later.
    pub holdout: Holdout,
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
            Self::Npz(npz) if !npz.classification => Targeted::Values,
            Self::Csv(csv) if !csv.columns.classification => Targeted::Values,
            Self::Npz(_) | Self::Csv(_) | Self::Watch(_) | Self::WatchWindows(..) | Self::Pooled(_) => {
                Targeted::Classes
            }
        }
    }

    /// Samples of each class that newcomers label, where there are any.
    pub(super) fn labels_per_class(&self) -> Option<u16> {
        let labels = match self {
            Self::Watch(watch) | Self::WatchWindows(watch, _) if watch.holdout_users > 0 => {
                watch.labels_per_class
            }
            Self::Csv(csv) if csv.holdout.clients > 0 && csv.columns.classification => csv.holdout.samples,
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
            Self::Csv(csv) => Some(csv.columns.features.len() + 1),
            Self::Npz(_) | Self::Pooled(_) => None,
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

    /// Makes or reads the data of the scenario called `name`.
    pub(super) fn dataset(&self, name: &str, seed: u64) -> Result<Dataset, DataError> {
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
            Self::Npz(NpzSection { path, sums, classification }) => {
                let mut files = Files::new(name, sums);
                let (bytes, path) = files.read(path, npz::LARGEST_FILE)?;
                files.finish()?;
                npz::dataset(&bytes, &path, *classification)
            }
            Self::Watch(settings) => watch::dataset(settings, seed),
            Self::WatchWindows(settings, decimation) => watch::series(settings, *decimation, seed),
            Self::Csv(CsvSection { path, sums, columns, split, holdout }) => {
                let mut files = Files::new(name, sums);
                let (bytes, path) = files.read(path, table::LARGEST_FILE)?;
                files.finish()?;
                let (mut dataset, names) = table::parse(&bytes, &path, columns)?;
                dataset.feature_names.clone_from(&columns.features);
                let d = dataset.features;
                dataset.clients =
                    dataset.clients.iter().map(|client| split.in_order(&client.train, d)).collect();
                holdout.apply(dataset, &names, &path, seed)
            }
            Self::Pooled(settings) => settings.dataset(name, seed),
        }
    }
}
