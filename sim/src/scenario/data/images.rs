//! Images, which are cut into clients.

use fedspan_aggregator::config::{Problem, Section};

use super::cutting::{Brings, read_cutting};
use super::locate;
use crate::data::idx::{self, Bundled};
use crate::data::pool::{Cutting, Pool};
use crate::data::{DataError, Dataset};

/// Labelled samples from files, and how they become clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagesSection {
    /// Where they come from.
    pub source: ImageSource,
    /// How they become clients.
    pub cutting: Cutting,
}

/// Where images come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageSource {
    /// With the program.
    Bundled(Bundled),
    /// From IDX files.
    Files(idx::Files),
}

impl ImageSource {
    /// IDX files.
    pub(super) fn read_files(section: &Section<'_>) -> Result<Self, Problem> {
        let file = "an IDX file name";
        let pair =
            |images, labels| Ok((section.string(images, None, file)?, section.string(labels, None, file)?));
        let test = section.has("test_images") || section.has("test_labels");
        for key in ["test_images", "test_labels"] {
            section.optional_string(key, file)?;
        }
        Ok(Self::Files(idx::Files {
            train: pair("images", "labels")?,
            test: if test { Some(pair("test_images", "test_labels")?) } else { None },
            first_label: u8::try_from(section.size("first_label", Some(0), 0..=255)?).unwrap_or(0),
            transposed: section.boolean("transposed", false)?,
        }))
    }

    fn brings(&self) -> Brings {
        match self {
            Self::Bundled(_) => Brings::default(),
            Self::Files(files) => Brings { tests: files.test.is_some(), users: false },
        }
    }

    /// The images.
    fn load(&self, name: &str) -> Result<Pool, DataError> {
        match self {
            Self::Bundled(which) => idx::bundled(*which),
            Self::Files(files) => files.read(|path| locate(name, path)),
        }
    }
}

impl ImagesSection {
    /// Reads what all kinds have.
    pub(super) fn read(
        source: ImageSource,
        section: &Section<'_>,
        split: &Section<'_>,
    ) -> Result<Self, Problem> {
        let cutting = read_cutting(section, split, source.brings())?;
        Ok(Self { source, cutting })
    }

    /// Cuts the samples into clients; `name` is the scenario's.
    pub(super) fn dataset(&self, name: &str, seed: u64) -> Result<Dataset, DataError> {
        self.cutting.dataset(&self.source.load(name)?, seed)
    }
}
