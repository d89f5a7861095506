//! Labelled samples from files that are cut into clients.

use fedspan_engine::config::{Problem, Section};

use super::cutting::{Brings, read_cutting};
use super::read::read_sums;
use crate::data::augment::Augment;
use crate::data::cifar::{self, Kind};
use crate::data::file::Files;
use crate::data::idx::{self, Bundled, Idx};
use crate::data::leaf::Leaf;
use crate::data::pool::{Cutting, Pool, SplitBy};
use crate::data::{DataError, Dataset};

/// Lines of a file of word vectors that may be looked at: more than any in use has.
const VOCABULARY: usize = 10_000_000;

/// Labelled samples, and how they become clients.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledSection {
    /// Where they come from.
    pub source: PoolSource,
    /// SHA-256 of the files, in the order in which they are read; none for no check.
    pub sums: Vec<String>,
    /// How they become clients.
    pub cutting: Cutting,
    /// Images that train are moved and mirrored, otherwise in every round.
    pub augment: bool,
}

/// Where samples come from.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolSource {
    /// With the program.
    Bundled(Bundled),
    /// From IDX files.
    Idx(Idx),
    /// From the files of a directory.
    Cifar(String, Kind),
    /// From LEAF's files.
    Leaf(Leaf),
}

impl PoolSource {
    /// IDX files.
    pub(super) fn read_idx(section: &Section<'_>) -> Result<Self, Problem> {
        let file = "an IDX file name";
        let pair =
            |images, labels| Ok((section.string(images, None, file)?, section.string(labels, None, file)?));
        let mut test = false;
        for key in ["test_images", "test_labels"] {
            test |= section.optional_string(key, file)?.is_some();
        }
        Ok(Self::Idx(Idx {
            train: pair("images", "labels")?,
            test: if test { Some(pair("test_images", "test_labels")?) } else { None },
            first_label: u8::try_from(section.size("first_label", Some(0), 0..=255)?).unwrap_or(0),
            transposed: section.boolean("transposed", false)?,
        }))
    }

    /// CIFAR's files.
    pub(super) fn read_cifar(section: &Section<'_>) -> Result<Self, Problem> {
        let kinds = [("cifar-10", Kind::Ten), ("cifar-100", Kind::Fine), ("cifar-100-coarse", Kind::Coarse)];
        let path = section.string("path", None, "a directory of the binary version")?;
        Ok(Self::Cifar(path, section.choice("version", Some("cifar-10"), &kinds)?))
    }

    /// LEAF's files.
    pub(super) fn read_leaf(section: &Section<'_>) -> Result<Self, Problem> {
        let place = "a file name or a directory";
        Ok(Self::Leaf(Leaf {
            path: section.string("path", None, place)?,
            test_path: section.optional_string("test_path", place)?,
            vectors: section.optional_string("vectors", "a file name")?,
            vocabulary: section.size("vocabulary", Some(400_000), 1..=VOCABULARY)?,
            words: section.size("words", Some(0), 0..=1000)?,
        }))
    }

    fn brings(&self) -> Brings {
        match self {
            Self::Bundled(_) => Brings::default(),
            Self::Idx(idx) => Brings { tests: idx.test.is_some(), ..Brings::default() },
            Self::Cifar(..) => Brings { tests: true, ..Brings::default() },
            Self::Leaf(leaf) => Brings { tests: leaf.test_path.is_some(), users: true, names: true },
        }
    }

    fn load(&self, files: &mut Files<'_>) -> Result<Pool, DataError> {
        match self {
            Self::Bundled(which) => idx::bundled(*which),
            Self::Idx(idx) => idx.read(files),
            Self::Cifar(directory, kind) => cifar::read(directory, *kind, files),
            Self::Leaf(leaf) => leaf.read(files),
        }
    }
}

impl PooledSection {
    /// Reads what all kinds have.
    pub(super) fn read(
        source: PoolSource,
        section: &Section<'_>,
        split: &Section<'_>,
    ) -> Result<Self, Problem> {
        let cutting = read_cutting(section, split, source.brings())?;
        let augment = match source {
            PoolSource::Cifar(..) => section.boolean("augment", false)?,
            _ => false,
        };
        let sums = match source {
            PoolSource::Bundled(_) => Vec::new(),
            _ => read_sums(section)?,
        };
        Ok(Self { source, sums, cutting, augment })
    }

    /// Cuts the samples into clients; `name` is the scenario's.
    pub(super) fn dataset(&self, name: &str, seed: u64) -> Result<Dataset, DataError> {
        let mut files = Files::new(name, &self.sums);
        let pool = self.source.load(&mut files)?;
        let strangers = match &self.source {
            PoolSource::Leaf(leaf) if self.cutting.by == SplitBy::Files => leaf.strangers(&pool, &files)?,
            _ => None,
        };
        files.finish()?;
        let mut dataset = self.cutting.dataset(&pool, seed)?;
        dataset.warnings.extend(strangers);
        if let Some(shape) = pool.layout.shape.filter(|_| self.augment) {
            for (client, one) in (0..).zip(&mut dataset.clients) {
                one.augment = Some(Augment { seed, client, shape });
            }
        }
        Ok(dataset)
    }
}
