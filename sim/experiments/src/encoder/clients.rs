//! Partition of the sentences over clients in whole groups. Each client receives groups of a single file, and
//! some groups are held out of training.

use fedspan_engine::random::{Purpose, stream};

use super::sentences::{Corpus, Group, Sentence};
use super::{Batch, EncoderError};

/// Number of sentences in a batch of scoring.
const TEST_BATCH: usize = 16;

/// Fraction of the sentences that is held out for testing, and fraction of the remaining sentences that is
/// held out for validation.
const HELD_OUT_FRACTION: f64 = 0.2;

/// Seed of the test split. All runs use the same seed, so that hyperparameters that were chosen in a run with
/// one seed do not depend on test sentences of a run with another seed.
const TEST_SEED: u64 = 0;

/// Training sentences of the clients, and held-out sentences for scoring.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Training sentences of each client.
    pub train: Vec<Vec<Sentence>>,
    /// Index of the file from which each client's sentences come.
    pub files: Vec<usize>,
    /// Held-out groups of the scored part, in the order of files.
    pub held: Vec<Group>,
}

/// Held-out part that is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldOut {
    /// Test part: a fifth of the sentences of each file, in whole groups, and the same for every seed.
    Test,
    /// Validation part: a fifth of the remaining sentences, in whole groups, and different for every seed. It
    /// serves to choose hyperparameters without the test part.
    Validation,
}

impl Clients {
    /// Distributes groups over `clients` clients. The number of clients of a file is at least one and
    /// proportional to the number of its sentences; a client receives groups of a single file. Both the test
    /// and the validation part are held out of training, so that the scores of both parts belong to the same
    /// model.
    ///
    /// # Errors
    /// [`EncoderError::Setting`] if there are fewer groups than clients in a file, fewer clients than files,
    /// or fewer than two clients.
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
        let (mut parts, mut held_groups) = (Vec::with_capacity(files), Vec::new());
        for file in 0..files {
            let of_file = |group: &&Group| group.file == file;
            let groups: Vec<&Group> = corpus.groups.iter().filter(of_file).collect();
            let (test, remaining) = hold_out(groups, TEST_SEED, file);
            let (validation, remaining) = hold_out(remaining, seed, file);
            held_groups.extend(if held == HeldOut::Test { test } else { validation }.into_iter().cloned());
            parts.push(remaining);
        }
        let mut split = Self { train: Vec::new(), files: Vec::new(), held: held_groups };
        let sizes: Vec<usize> = parts.iter().map(|groups| size(groups)).collect();
        for (file, (groups, count)) in parts.into_iter().zip(client_counts(&sizes, clients)).enumerate() {
            if groups.len() < count {
                let (groups, file) = (groups.len(), file + 1);
                return Err(EncoderError::Setting(format!(
                    "--clients: {count} of them would share {groups} groups of file {file}; allowed: a group for each"
                )));
            }
            split.train.extend(assign_groups(groups, count));
            split.files.resize(split.train.len(), file);
        }
        Ok(split)
    }

    /// Groups the held-out sentences into batches.
    #[must_use]
    pub fn test_batches(&self) -> Vec<TestBatch> {
        let sentences =
            self.held.iter().flat_map(|group| group.sentences.iter().map(|sentence| (group.file, sentence)));
        let mut sentences: Vec<(usize, &Sentence)> = sentences.collect();
        // Sorting puts sentences of similar lengths into the same batch.
        sentences.sort_by_key(|(_, sentence)| sentence.tokens.len());
        sentences.chunks(TEST_BATCH).map(TestBatch::new).collect()
    }
}

/// Batch of sentences that are scored together.
#[derive(Clone, Debug)]
pub struct TestBatch {
    /// Tokens, lengths and labels of the sentences.
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

/// Number of sentences of all groups.
fn size(groups: &[&Group]) -> usize {
    groups.iter().map(|group| group.sentences.len()).sum()
}

/// Draws random groups until they have a fifth of the sentences, but never all groups. Returns the drawn
/// groups and the other groups, both in random order. If the file has only one group, none is drawn.
fn hold_out(groups: Vec<&Group>, seed: u64, file: usize) -> (Vec<&Group>, Vec<&Group>) {
    let held_out_sentences = size(&groups) as f64 * HELD_OUT_FRACTION;
    let count = groups.len();
    let mut shuffled = stream(seed, Purpose::Partition, file as u64).choose(&groups, count);
    let (mut taken_groups, mut taken_sentences) = (0, 0);
    while (taken_sentences as f64) < held_out_sentences && taken_groups + 1 < count {
        taken_sentences += shuffled[taken_groups].sentences.len();
        taken_groups += 1;
    }
    let remaining = shuffled.split_off(taken_groups);
    (shuffled, remaining)
}

/// Number of clients of each file. Every file receives one client; each further client goes to the file with
/// the most sentences per client.
fn client_counts(sizes: &[usize], clients: usize) -> Vec<usize> {
    let mut shares = vec![1; sizes.len()];
    for _ in sizes.len()..clients {
        // The ratios sizes / shares are compared without a division; the first of equal ratios is chosen.
        let best = (0..sizes.len()).reduce(|best, other| {
            if sizes[other] * shares[best] > sizes[best] * shares[other] { other } else { best }
        });
        if let Some(best) = best {
            shares[best] += 1;
        }
    }
    shares
}

/// Assigns each group in turn to the client with the fewest sentences, the first such client if there are
/// several.
fn assign_groups(groups: Vec<&Group>, clients: usize) -> Vec<Vec<Sentence>> {
    let mut packed: Vec<Vec<Sentence>> = vec![Vec::new(); clients];
    for group in groups {
        if let Some(smallest) = packed.iter_mut().min_by_key(|sentences| sentences.len()) {
            smallest.extend(group.sentences.iter().cloned());
        }
    }
    packed
}
