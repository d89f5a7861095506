//! Partition of the sentences over clients, in whole groups: a client gets groups of one file, and some groups
//! are held out of training.

use fedspan_engine::random::{Purpose, stream};

use super::sentences::{Corpus, Group, Sentence};
use super::{Batch, EncoderError};

/// Sentences in one batch of scoring.
const TEST_BATCH: usize = 16;

/// Fraction of the sentences that is held out for testing, and fraction of the rest that is held out for
/// validation.
const HELD_OUT_FRACTION: f64 = 0.2;

/// Seed of the test split. It is the same for all runs, so that settings chosen with one seed never saw the
/// test sentences of another.
const TEST_SEED: u64 = 0;

/// Training sentences of a fleet, and the sentences that it is scored on.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Sentences of each client.
    pub train: Vec<Vec<Sentence>>,
    /// Index of the file of each client's sentences.
    pub files: Vec<usize>,
    /// HeldOut-out groups, in the order of files.
    pub held: Vec<Group>,
}

/// HeldOut-out part that is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldOut {
    /// A fifth of the sentences of each file, in whole groups, the same for every seed.
    Test,
    /// A fifth of the remaining sentences, in whole groups, different for every seed; for choosing settings
    /// without the test part.
    Validation,
}

impl Clients {
    /// Distributes groups over `clients` clients. Files get clients in proportion to their sentences, at least
    /// one each, and a client gets groups of one file. The test and validation parts are held out in either
    /// case, so that scores of both belong to the same training.
    ///
    /// # Errors
    /// [`EncoderError::Setting`] for fewer groups than clients, or fewer clients than files.
    pub fn partition(
        corpus: &Corpus,
        clients: usize,
        held: HeldOut,
        seed: u64,
    ) -> Result<Self, EncoderError> {
        let files = corpus.groups.last().map_or(0, |group| group.file + 1);
        if clients < files.max(2) {
            let allowed = files.max(2);
            return Err(EncoderError::Setting(format!(
                "--clients: found {clients}, allowed: at least {allowed}, and at least one for each file"
            )));
        }
        let (mut parts, mut kept) = (Vec::with_capacity(files), Vec::new());
        for file in 0..files {
            let of_file = |group: &&Group| group.file == file;
            let groups: Vec<&Group> = corpus.groups.iter().filter(of_file).collect();
            let (test, rest) = hold_out(groups, TEST_SEED, file);
            let (validation, rest) = hold_out(rest, seed, file);
            kept.extend(if held == HeldOut::Test { test } else { validation }.into_iter().cloned());
            parts.push(rest);
        }
        let mut all = Self { train: Vec::new(), files: Vec::new(), held: kept };
        let sizes: Vec<usize> = parts.iter().map(|groups| size(groups)).collect();
        for (file, (groups, count)) in parts.into_iter().zip(client_counts(&sizes, clients)).enumerate() {
            if groups.len() < count {
                let (groups, file) = (groups.len(), file + 1);
                return Err(EncoderError::Setting(format!(
                    "--clients: {count} of them would share {groups} groups of file {file}; allowed: a group for each"
                )));
            }
            all.train.extend(assign_groups(groups, count));
            all.files.resize(all.train.len(), file);
        }
        Ok(all)
    }

    /// The held-out sentences in batches.
    #[must_use]
    pub fn test_batches(&self) -> Vec<TestBatch> {
        let all = self.held.iter().flat_map(|group| group.sentences.iter().map(|one| (group.file, one)));
        let mut all: Vec<(usize, &Sentence)> = all.collect();
        // Sentences of a batch have similar lengths then.
        all.sort_by_key(|(_, sentence)| sentence.tokens.len());
        all.chunks(TEST_BATCH).map(TestBatch::new).collect()
    }
}

/// Sentences that are scored together.
#[derive(Clone, Debug)]
pub struct TestBatch {
    /// The sentences.
    pub tokens: Batch,
    /// Index of the file, id and label of each sentence.
    pub names: Vec<(usize, String, u8)>,
}

impl TestBatch {
    fn new(sentences: &[(usize, &Sentence)]) -> Self {
        Self {
            tokens: Batch::from_sentences(sentences.iter().map(|(_, s)| (&*s.tokens, s.label))),
            names: sentences.iter().map(|(file, s)| (*file, s.id.clone(), s.label)).collect(),
        }
    }
}

fn size(groups: &[&Group]) -> usize {
    groups.iter().map(|group| group.sentences.len()).sum()
}

/// Draws random groups with a fifth of the sentences. Returns them and the other groups in random order. A file
/// with one group holds nothing out.
fn hold_out(groups: Vec<&Group>, seed: u64, file: usize) -> (Vec<&Group>, Vec<&Group>) {
    let wanted = size(&groups) as f64 * HELD_OUT_FRACTION;
    let count = groups.len();
    let mut drawn = stream(seed, Purpose::Partition, file as u64).choose(&groups, count);
    let (mut taken, mut have) = (0, 0);
    while (have as f64) < wanted && taken + 1 < count {
        have += drawn[taken].sentences.len();
        taken += 1;
    }
    let rest = drawn.split_off(taken);
    (drawn, rest)
}

/// Number of clients of each file: one, and the rest one by one to the file with the most sentences per client.
fn client_counts(sizes: &[usize], clients: usize) -> Vec<usize> {
    let mut shares = vec![1; sizes.len()];
    for _ in sizes.len()..clients {
        // Compares sizes over shares without a division; the first of equals wins.
        let best = (0..sizes.len()).reduce(|best, other| {
            if sizes[other] * shares[best] > sizes[best] * shares[other] { other } else { best }
        });
        if let Some(best) = best {
            shares[best] += 1;
        }
    }
    shares
}

/// Gives each group to the client with the fewest sentences so far; the first of equals wins.
fn assign_groups(groups: Vec<&Group>, clients: usize) -> Vec<Vec<Sentence>> {
    let mut packed: Vec<Vec<Sentence>> = vec![Vec::new(); clients];
    for group in groups {
        if let Some(least) = packed.iter_mut().min_by_key(|sentences| sentences.len()) {
            least.extend(group.sentences.iter().cloned());
        }
    }
    packed
}
