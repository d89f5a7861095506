//! Section `[data]` for labelled samples that are read from IDX, CIFAR or LEAF files, or bundled, and
//! partitioned among clients.

use fedspan_engine::config::{Problem, Section};

use super::checksums::read_checksums;
use super::split_plan::{PoolContents, read_plan};
use crate::data::augment::Augment;
use crate::data::cifar::{self, Kind};
use crate::data::file::Files;
use crate::data::idx::{self, Bundled, Idx};
use crate::data::leaf::Leaf;
use crate::data::pool::{Pool, SplitBy, SplitPlan};
use crate::data::{DataError, Dataset};

/// Largest number of lines that are read from a file of word vectors. Common files have fewer lines.
const VOCABULARY: usize = 10_000_000;
/// Number of lines that are read by default, the number of lines in the smallest files of GloVe.
const USUAL_VOCABULARY: usize = 400_000;

/// Labelled samples, and their division among clients.
#[derive(Clone, Debug, PartialEq)]
pub struct PooledSection {
    /// Source of the samples.
    pub source: PoolSource,
    /// SHA-256 of the files in the order in which they are read; empty if checksums are not verified.
    pub checksums: Vec<String>,
    /// Division of the samples among clients.
    pub plan: SplitPlan,
    /// True if training images are augmented by random shifts and reflections that differ from round to
    /// round.
    pub augment: bool,
}

/// Source of labelled samples.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolSource {
    /// Data set that is built into the program.
    Bundled(Bundled),
    /// IDX files.
    Idx(Idx),
    /// Directory with the files of CIFAR, and the variant of the data set.
    Cifar(String, Kind),
    /// JSON files of LEAF.
    Leaf(Leaf),
}

impl PoolSource {
    /// Reads the keys of `kind = "idx"`.
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

    /// Reads the keys of `kind = "cifar"`.
    pub(super) fn read_cifar(section: &Section<'_>) -> Result<Self, Problem> {
        let kinds = [("cifar-10", Kind::Ten), ("cifar-100", Kind::Fine), ("cifar-100-coarse", Kind::Coarse)];
        let path = section.string("path", None, "a directory of the binary version")?;
        Ok(Self::Cifar(path, section.choice("version", Some("cifar-10"), &kinds)?))
    }

    /// Reads the keys of `kind = "leaf"`.
    pub(super) fn read_leaf(section: &Section<'_>) -> Result<Self, Problem> {
        let allowed = "a file name or a directory";
        let leaf = Leaf {
            path: section.string("path", None, allowed)?,
            test_path: section.optional_string("test_path", allowed)?,
            vectors: section.optional_string("vectors", "a file name")?,
            vocabulary: section.size("vocabulary", Some(USUAL_VOCABULARY), 1..=VOCABULARY)?,
            words: section.size("words", Some(0), 0..=1000)?,
        };
        let (vocabulary, words) = (leaf.vocabulary, leaf.words);
        for (key, found, default) in [("vocabulary", vocabulary, USUAL_VOCABULARY), ("words", words, 0)] {
            if leaf.vectors.is_none() && found != default {
                let message =
                    format!("found {found}, which is for texts only: set data.vectors, or leave it out");
                return Err(section.problem(key, message));
            }
        }
        Ok(Self::Leaf(leaf))
    }

    fn contents(&self) -> PoolContents {
        match self {
            Self::Bundled(_) => PoolContents::default(),
            Self::Idx(idx) => PoolContents { tests: idx.test.is_some(), ..PoolContents::default() },
            Self::Cifar(..) => PoolContents { tests: true, ..PoolContents::default() },
            Self::Leaf(leaf) => PoolContents { tests: leaf.test_path.is_some(), users: true, names: true },
        }
    }

    fn load(&self, files: &mut Files<'_>) -> Result<Pool, DataError> {
        match self {
            Self::Bundled(data_set) => idx::bundled(*data_set),
            Self::Idx(idx) => idx.read(files),
            Self::Cifar(directory, kind) => cifar::read(directory, *kind, files),
            Self::Leaf(leaf) => leaf.read(files),
        }
    }
}

impl PooledSection {
    /// Reads the keys that are common to all sources.
    pub(super) fn read(
        source: PoolSource,
        section: &Section<'_>,
        split: &Section<'_>,
    ) -> Result<Self, Problem> {
        let plan = read_plan(section, split, source.contents())?;
        let augment = match source {
            PoolSource::Cifar(..) => section.boolean("augment", false)?,
            _ => false,
        };
        let checksums = match source {
            PoolSource::Bundled(_) => Vec::new(),
            _ => read_checksums(section)?,
        };
        Ok(Self { source, checksums, plan, augment })
    }

    /// Reads the samples and divides them among clients. `name` is the name of the scenario.
    pub(super) fn dataset(&self, name: &str, seed: u64) -> Result<Dataset, DataError> {
        let mut files = Files::new(name, &self.checksums);
        let pool = self.source.load(&mut files)?;
        let warning = match &self.source {
            PoolSource::Leaf(leaf) if self.plan.by == SplitBy::Files => {
                leaf.untrained_users_warning(&pool, &files)?
            }
            _ => None,
        };
        let files = files.finish()?;
        let mut dataset = self.plan.dataset(&pool, seed)?;
        dataset.warnings.extend(warning);
        dataset.files = files;
        if let Some(shape) = pool.layout.shape.filter(|_| self.augment) {
            for (number, client) in (0..).zip(&mut dataset.clients) {
                client.augment = Some(Box::new(Augment { seed, client: number, shape }));
            }
        }
        Ok(dataset)
    }
}
