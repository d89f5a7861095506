//! Images, which are cut into clients.

use fedspan_aggregator::config::{Problem, Section};

use super::locate;
use super::read::read_split;
use crate::data::idx::{self, Bundled, Images};
use crate::data::partition::{OrderSplit, Partition, partition};
use crate::data::sizes::Sizes;
use crate::data::{DataError, Dataset};

/// Images, and how they become clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagesSection {
    /// Where they come from.
    pub source: ImageSource,
    /// How they become clients.
    pub partition: Partition,
    /// How many each client has.
    pub sizes: Sizes,
    /// What trains and what tests.
    pub split: OrderSplit,
}

/// Where images come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageSource {
    /// With the program.
    Bundled(Bundled),
    /// From IDX files: images and labels.
    Files(String, String),
}

impl ImageSource {
    /// A pair of IDX files.
    pub(super) fn read_files(section: &Section<'_>) -> Result<Self, Problem> {
        let file = "an IDX file name";
        Ok(Self::Files(section.string("images", None, file)?, section.string("labels", None, file)?))
    }

    /// The images, and what to call them.
    fn load(&self, name: &str) -> Result<(Images, String), DataError> {
        Ok(match self {
            Self::Bundled(Bundled::Digits) => (idx::bundled(Bundled::Digits)?, "digits".to_owned()),
            Self::Bundled(which) => (idx::bundled(*which)?, "mnist5k".to_owned()),
            Self::Files(images, labels) => {
                let path = locate(name, images);
                (idx::read(&path, &locate(name, labels))?, path)
            }
        })
    }
}

impl ImagesSection {
    /// Reads what all kinds of images have.
    pub(super) fn read(
        source: ImageSource,
        section: &Section<'_>,
        split: &Section<'_>,
    ) -> Result<Self, Problem> {
        let part = section.section("partition")?;
        let shards = part.choice("kind", Some("shards"), &[("shards", true), ("iid", false)])?;
        let clients = part.size("clients", Some(20), 1..=100_000)?;
        let partition = if shards {
            Partition::Shards { clients, classes: part.size("classes", Some(2), 1..=256)? }
        } else {
            Partition::Iid { clients }
        };
        let sizes = Sizes::read(&part)?;
        part.finish()?;
        Ok(Self { source, partition, sizes, split: read_split(split, false)? })
    }

    /// Cuts the images into clients; `name` is the scenario's.
    pub(super) fn dataset(&self, name: &str, seed: u64) -> Result<Dataset, DataError> {
        let (images, name) = self.source.load(name)?;
        let fits = self.partition.check(images.set.len(), images.classes);
        fits.map_err(|message| DataError::new(name, message))?;
        let d = images.features;
        let parts = partition(&images.set, d, self.partition, self.sizes, seed);
        Ok(Dataset {
            features: d,
            outputs: images.classes,
            classification: true,
            clients: parts.iter().map(|part| self.split.shuffled(part, d, seed)).collect(),
            newcomers: Vec::new(),
            truth: None,
        })
    }
}
