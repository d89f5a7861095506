//! Who has which sentences: whole groups, of one file each client; and whole groups that nobody trains on.

use fedspan_engine::random::{Purpose, stream};

use super::sentences::{Corpus, Group, Sentence};
use super::{Batch, EncoderError};

/// Sentences that are tested at a time.
const TESTED: usize = 16;

/// Part of the sentences that test; and of what is left, part that chooses settings.
const HELD: f64 = 0.2;

/// The seed of what tests: the same for all seeds of runs, so that what is chosen with one never saw what tests another.
const TEST_SEED: u64 = 0;

/// A fleet and what it is tested on.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Sentences of each client.
    pub train: Vec<Vec<Sentence>>,
    /// The file of each client's sentences.
    pub files: Vec<usize>,
    /// Groups of no client, in the order of files.
    pub held: Vec<Group>,
}

/// What is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A fifth of the sentences of each file, in whole groups, the same for every seed.
    Test,
    /// A fifth of what is left then, in whole groups, another for every seed; who chooses settings by it leaves the test out.
    Validation,
}

impl Clients {
    /// Deals groups to so many clients. Files have clients in proportion to their sentences, at least one; a client gets groups of
    /// one file. The validation part is nobody's, whichever part is scored, so that both are of one training.
    ///
    /// # Errors
    /// Fewer groups than clients, or fewer clients than files.
    pub fn deal(corpus: &Corpus, clients: usize, held: Held, seed: u64) -> Result<Self, EncoderError> {
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
            let (test, rest) = hold(groups, TEST_SEED, file);
            let (validation, rest) = hold(rest, seed, file);
            kept.extend(if held == Held::Test { test } else { validation }.into_iter().cloned());
            parts.push(rest);
        }
        let mut all = Self { train: Vec::new(), files: Vec::new(), held: kept };
        let sizes: Vec<usize> = parts.iter().map(|groups| size(groups)).collect();
        for (file, (groups, count)) in parts.into_iter().zip(shares(&sizes, clients)).enumerate() {
            if groups.len() < count {
                let (groups, file) = (groups.len(), file + 1);
                return Err(EncoderError::Setting(format!(
                    "--clients: {count} of them would share {groups} groups of file {file}; allowed: a group for each"
                )));
            }
            all.train.extend(packed(groups, count));
            all.files.resize(all.train.len(), file);
        }
        Ok(all)
    }

    /// What is scored, some sentences at a time.
    #[must_use]
    pub fn tested(&self) -> Vec<Tested> {
        let all = self.held.iter().flat_map(|group| group.sentences.iter().map(|one| (group.file, one)));
        let mut all: Vec<(usize, &Sentence)> = all.collect();
        // Those of a batch are then about as long as each other.
        all.sort_by_key(|(_, sentence)| sentence.tokens.len());
        all.chunks(TESTED).map(Tested::of).collect()
    }
}

/// Sentences that are scored together.
#[derive(Clone, Debug)]
pub struct Tested {
    /// The sentences.
    pub tokens: Batch,
    /// The number of each one's file, its id and its label.
    pub names: Vec<(usize, String, u8)>,
}

impl Tested {
    fn of(sentences: &[(usize, &Sentence)]) -> Self {
        Self {
            tokens: Batch::of(sentences.iter().map(|(_, s)| (&*s.tokens, s.label))),
            names: sentences.iter().map(|(file, s)| (*file, s.id.clone(), s.label)).collect(),
        }
    }
}

fn size(groups: &[&Group]) -> usize {
    groups.iter().map(|group| group.sentences.len()).sum()
}

/// Random groups with a fifth of the sentences, and the others, which are in random order. A file of one group holds none.
fn hold(groups: Vec<&Group>, seed: u64, file: usize) -> (Vec<&Group>, Vec<&Group>) {
    let wanted = size(&groups) as f64 * HELD;
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

/// Clients of each file: one, and the rest to whoever has most sentences for each.
fn shares(sizes: &[usize], clients: usize) -> Vec<usize> {
    let mut shares = vec![1; sizes.len()];
    for _ in sizes.len()..clients {
        // Sizes over shares, without dividing; the first of several.
        let best = (0..sizes.len()).reduce(|best, other| {
            if sizes[other] * shares[best] > sizes[best] * shares[other] { other } else { best }
        });
        if let Some(best) = best {
            shares[best] += 1;
        }
    }
    shares
}

/// Each group goes to the client with the fewest sentences so far, the first of several.
fn packed(groups: Vec<&Group>, clients: usize) -> Vec<Vec<Sentence>> {
    let mut packed: Vec<Vec<Sentence>> = vec![Vec::new(); clients];
    for group in groups {
        if let Some(least) = packed.iter_mut().min_by_key(|sentences| sentences.len()) {
            least.extend(group.sentences.iter().cloned());
        }
    }
    packed
}
