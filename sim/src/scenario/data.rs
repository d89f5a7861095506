//! `[data]`, `[data.partition]` and `[split]`: where samples come from, and who has which of them.

mod cutting;
mod images;
mod read;

use std::path::Path;

pub use images::{ImageSource, ImagesSection};
pub(super) use read::read_data;

use crate::data::eigenspace::NoEigenspace;
use crate::data::holdout::Holdout;
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
    Images(ImagesSection),
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
            Self::Csv(..) | Self::Watch(_) | Self::Images(_) => Targeted::Classes,
        }
    }

    /// Whether the true representation is known beforehand, whatever the file.
    pub(super) fn is_synthetic(&self) -> bool {
        matches!(self, Self::Linear(_) | Self::Spiked(_) | Self::Blocks(_))
    }

    /// The number of features, where it is known before a file is read.
    pub(super) fn features(&self) -> Option<usize> {
        match self {
            Self::Linear(linear) => Some(linear.d),
            Self::Spiked(spiked) => Some(spiked.d),
            Self::Blocks(blocks) => Some(blocks.d),
            Self::Watch(_) => Some(fedspan_client::features::FEATURES),
            Self::Csv(_, columns, ..) => Some(columns.features.len() + 1),
            Self::Npz(_) | Self::Images(_) => None,
        }
    }

    /// That this machine can hold it.
    pub(super) fn check(&self, seed: u64) -> Result<(), String> {
        match self {
            Self::Linear(settings) => settings.check(seed),
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
            Self::Spiked(settings) => {
                spiked_covariance::Model::new(*settings, seed).dataset().map_err(untrue)
            }
            Self::Blocks(settings) => settings.dataset(seed).map_err(untrue),
            Self::Npz(path) => npz::dataset(&locate(name, path)),
            Self::Watch(settings) => watch::dataset(settings, seed),
            Self::Csv(path, columns, split, holdout) => {
                let path = locate(name, path);
                let (mut dataset, names) = table::read(&path, columns)?;
                let d = dataset.features;
                dataset.clients =
                    dataset.clients.iter().map(|client| split.in_order(&client.train, d)).collect();
                holdout.apply(dataset, &names, &path, seed)
            }
            Self::Images(settings) => settings.dataset(name, seed),
        }
    }
}

/// Where a file is that the scenario called `name` speaks of: beside the scenario file, or else in the current
/// directory.
pub(super) fn locate(name: &str, path: &str) -> String {
    let beside = Path::new(name).with_file_name(path);
    if beside.is_file() { beside.display().to_string() } else { path.to_owned() }
}
