//! Set of samples that clients can share, or that is generated whenever it is read.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::Set;

/// Part of a client's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Training samples.
    Train,
    /// Test samples.
    Test,
}

/// Generator of the samples of many clients, each independent of the others.
pub trait ClientGenerator: Send + Sync {
    /// Generates a set. Repeated calls return the same samples.
    fn generate(&self, client: usize, part: Part) -> Set;

    /// Number of samples of a set.
    fn samples(&self, client: usize, part: Part) -> usize;
}

/// Set in memory, which clones share, or a set of a generator. A generated set takes memory only after it has been
/// [dereferenced](Deref), so that a client that takes part in no round costs little.
#[derive(Clone)]
pub struct SharedSet(Kind);

#[derive(Clone)]
enum Kind {
    Stored(Arc<Set>),
    Generated(Generated),
}

/// Set of a generator.
#[derive(Clone)]
struct Generated {
    generator: Arc<dyn ClientGenerator>,
    client: u32,
    part: Part,
    /// The set, after it has been dereferenced.
    kept: OnceLock<Arc<Set>>,
}

impl Generated {
    fn generate(&self) -> Arc<Set> {
        Arc::new(self.generator.generate(self.client as usize, self.part))
    }
}

impl SharedSet {
    /// Creates a set that is generated when it is read.
    #[must_use]
    pub const fn generated(generator: Arc<dyn ClientGenerator>, client: u32, part: Part) -> Self {
        Self(Kind::Generated(Generated { generator, client, part, kept: OnceLock::new() }))
    }

    /// Returns the samples. Those of a generator are in memory only as long as the caller keeps them.
    #[must_use]
    pub fn load(&self) -> Arc<Set> {
        match &self.0 {
            Kind::Stored(set) => Arc::clone(set),
            Kind::Generated(generated) => match generated.kept.get() {
                Some(set) => Arc::clone(set),
                None => generated.generate(),
            },
        }
    }

    /// Number of samples. Generates nothing.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Stored(set) => set.len(),
            Kind::Generated(generated) => {
                generated.generator.samples(generated.client as usize, generated.part)
            }
        }
    }

    /// True if there are no samples. Generates nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the samples are those of a generator.
    #[must_use]
    pub fn is_generated(&self) -> bool {
        matches!(self.0, Kind::Generated(_))
    }

    /// True if both are the same set in memory, or of the same generator.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Stored(a), Kind::Stored(b)) => Arc::ptr_eq(a, b),
            (Kind::Generated(a), Kind::Generated(b)) => {
                Arc::ptr_eq(&a.generator, &b.generator) && (a.client, a.part) == (b.client, b.part)
            }
            _ => false,
        }
    }

    /// Returns the set if it is in memory and no clone shares it.
    pub fn get_mut(&mut self) -> Option<&mut Set> {
        match &mut self.0 {
            Kind::Stored(set) => Arc::get_mut(set),
            Kind::Generated(_) => None,
        }
    }
}

impl Deref for SharedSet {
    type Target = Set;

    /// Returns the samples, and keeps those of a generator in memory.
    fn deref(&self) -> &Set {
        match &self.0 {
            Kind::Stored(set) => set,
            Kind::Generated(generated) => generated.kept.get_or_init(|| generated.generate()),
        }
    }
}

impl AsRef<Set> for SharedSet {
    fn as_ref(&self) -> &Set {
        self
    }
}

impl From<Set> for SharedSet {
    fn from(set: Set) -> Self {
        Arc::new(set).into()
    }
}

impl From<Arc<Set>> for SharedSet {
    fn from(set: Arc<Set>) -> Self {
        Self(Kind::Stored(set))
    }
}

impl PartialEq for SharedSet {
    fn eq(&self, other: &Self) -> bool {
        *self.load() == *other.load()
    }
}

impl fmt::Debug for SharedSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Stored(set) => set.fmt(f),
            Kind::Generated(Generated { client, part, .. }) => f
                .debug_struct("Generated")
                .field("client", client)
                .field("part", part)
                .finish_non_exhaustive(),
        }
    }
}
