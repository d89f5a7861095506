//! What each client changed, which round that fits, and what plain averaging would have lost.

use serde::Serialize;

use super::interference::{Factors, Gram, ROWS_MAX, Squares, squares};
use super::source::Source;
use super::{AdapterError, Fault, Inputs, Pair, Role, Slot, Watch};

/// How much something changed: norms of the change and of what it was before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Changed {
    /// Frobenius norm of the change.
    pub change: f64,
    /// Of the base.
    pub base: f64,
    /// Whether any bit differs.
    pub differs: bool,
}

impl Changed {
    /// The change over the base; infinite where the base is zero, as an up factor is before the first round.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.change == 0.0 { 0.0 } else { self.change / self.base }
    }

    /// Both together.
    fn with(self, other: &Self) -> Self {
        Self {
            change: self.change.hypot(other.change),
            base: self.base.hypot(other.base),
            differs: self.differs || other.differs,
        }
    }
}

/// In which round a client's file can be averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fits {
    /// Only down factors changed.
    Down,
    /// Only up factors changed.
    Up,
    /// Both did: only plain averaging takes it.
    Both,
    /// Neither did: every round takes it, and learns nothing but saved modules.
    Nothing,
}

impl Fits {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
            Self::Both => "both",
            Self::Nothing => "nothing",
        }
    }
}

/// One client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reported {
    /// Its file.
    pub file: String,
    /// All down factors.
    pub down: Changed,
    /// All up factors.
    pub up: Changed,
    /// All saved modules, if there are any.
    pub saved: Option<Changed>,
    /// The round it fits.
    pub fits: Fits,
    /// Every tensor, in the order of the base's file.
    pub tensors: Vec<(String, Changed)>,
}

/// One module that is adapted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    /// Its name.
    pub module: String,
    /// Rank of the adapter.
    pub rank: u64,
    /// `|mean(B_i A_i) - mean(B) mean(A)| / |mean(B_i A_i)|`, Frobenius norms.
    pub interference: f64,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// In the order that they were given in.
    pub clients: Vec<Reported>,
    /// Modules; none where clients and rank are too many for it (see `ADAPTERS.md`).
    pub targets: Vec<Target>,
    /// The same of all modules as one matrix.
    pub interference: Option<f64>,
}

/// Compares clients with the base and with each other.
///
/// # Errors
/// A file that cannot be read, a number that is not finite.
pub fn check(inputs: &Inputs, watch: &Watch<'_>) -> Result<Checked, AdapterError> {
    // Factors are read a second time.
    let mut progress = Progress { watch, read: 0, of: inputs.bytes().saturating_mul(2) };
    let mut clients: Vec<Vec<Changed>> = vec![Vec::new(); inputs.clients()];
    let mut alike = Vec::with_capacity(inputs.layout.slots.len());
    for slot in 0..inputs.layout.slots.len() {
        let (changed, same) = changes(inputs, slot, &mut progress)?;
        clients.iter_mut().zip(changed).for_each(|(client, changed)| client.push(changed));
        alike.push(same);
    }
    let mut all = Squares::default();
    let (mut targets, mut possible) = (Vec::new(), true);
    for pair in &inputs.layout.pairs {
        let alike = [alike[pair.down], alike[pair.up]];
        let Some(squares) = interference(inputs, pair, alike, &mut progress)? else {
            possible = false;
            continue;
        };
        all = all.plus(squares);
        let (module, rank) = (pair.module.clone(), pair.rank);
        targets.push(Target { module, rank, interference: squares.ratio() });
    }
    inputs.unchanged()?;
    let clients =
        inputs.clients.iter().zip(clients).map(|(source, tensors)| reported(inputs, source, tensors));
    Ok(Checked { clients: clients.collect(), targets, interference: possible.then(|| all.ratio()) })
}

struct Progress<'a> {
    watch: &'a Watch<'a>,
    read: u64,
    of: u64,
}

impl Progress<'_> {
    fn add(&mut self, bytes: u64) -> Result<(), AdapterError> {
        self.read += bytes;
        if (self.watch)(self.read, self.of) { Ok(()) } else { Err(AdapterError::Interrupted) }
    }
}

fn reported(inputs: &Inputs, source: &Source, tensors: Vec<Changed>) -> Reported {
    let of = |role: Role| {
        let changed = inputs.layout.slots.iter().zip(&tensors).filter(|(slot, _)| slot.role == role);
        changed.map(|(_, changed)| changed).fold(Changed::default(), Changed::with)
    };
    let (down, up) = (of(Role::Down), of(Role::Up));
    let fits = match (down.differs, up.differs) {
        (true, false) => Fits::Down,
        (false, true) => Fits::Up,
        (true, true) => Fits::Both,
        (false, false) => Fits::Nothing,
    };
    let has_saved = inputs.layout.slots.iter().any(|slot| slot.role == Role::Saved);
    let names = inputs.layout.slots.iter().map(|slot| slot.tensor.name.clone());
    Reported {
        file: source.path.display().to_string(),
        down,
        up,
        saved: has_saved.then(|| of(Role::Saved)),
        fits,
        tensors: names.zip(tensors).collect(),
    }
}

/// What every client changed in one tensor, and whether all clients have the same there.
fn changes(
    inputs: &Inputs,
    slot: usize,
    progress: &mut Progress<'_>,
) -> Result<(Vec<Changed>, bool), AdapterError> {
    let Slot { tensor, .. } = &inputs.layout.slots[slot];
    let (kind, size) = (tensor.kind, tensor.kind.size());
    let mut squares = vec![(0.0, false); inputs.clients()];
    let (mut base_square, mut alike) = (0.0, true);
    let block = inputs.block(1);
    let (mut bytes, mut other, mut first) = (Vec::new(), Vec::new(), Vec::new());
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for begin in (0..tensor.bytes()).step_by(block) {
        let length = usize::try_from(tensor.bytes() - begin).map_or(block, |rest| rest.min(block));
        let count = length / size;
        before.resize(count, 0.0);
        after.resize(count, 0.0);
        let finite = |source: &Source, values: &[f32]| {
            let Some(index) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
            let fault = Fault::NotFinite { index: begin / size as u64 + index as u64, value: values[index] };
            Err(AdapterError::tensor(&source.path, &tensor.name, fault))
        };
        bytes.resize(length, 0);
        inputs.base.read(&mut bytes, inputs.base.places[slot] + begin)?;
        kind.decode(&bytes, &mut before);
        finite(&inputs.base, &before)?;
        base_square += before.iter().fold(0.0, |sum, value| sum + f64::from(*value).powi(2));
        for (client, (source, (square, differs))) in inputs.clients.iter().zip(&mut squares).enumerate() {
            other.resize(length, 0);
            source.read(&mut other, source.places[slot] + begin)?;
            if client == 0 {
                first.clone_from(&other);
            }
            alike &= other == first;
            if other == bytes {
                continue;
            }
            *differs = true;
            kind.decode(&other, &mut after);
            finite(source, &after)?;
            let change = |sum: f64, (after, before): (&f32, &f32)| {
                sum + (f64::from(*after) - f64::from(*before)).powi(2)
            };
            *square = after.iter().zip(&before).fold(*square, change);
        }
        progress.add((length * (inputs.clients() + 1)) as u64)?;
    }
    let base = base_square.sqrt();
    let changed =
        squares.into_iter().map(|(square, differs)| Changed { change: square.sqrt(), base, differs });
    Ok((changed.collect(), alike))
}

/// Of one module; `None` if it would take too much memory.
fn interference(
    inputs: &Inputs,
    pair: &Pair,
    alike: [bool; 2],
    progress: &mut Progress<'_>,
) -> Result<Option<Squares>, AdapterError> {
    let rank = usize::try_from(pair.rank).unwrap_or(usize::MAX);
    // Where one factor is the same everywhere, the mean of products is the product of means.
    let centred = !alike[0] && !alike[1];
    let rows = (inputs.clients() + 1).saturating_mul(rank);
    if centred && rows > ROWS_MAX || rank > ROWS_MAX / 2 {
        return Ok(None);
    }
    let [down, up] = [pair.down, pair.up].map(|slot| {
        let Slot { tensor, role } = &inputs.layout.slots[slot];
        let length = usize::try_from(tensor.bytes()).unwrap_or(usize::MAX);
        let mut buffers = Vec::with_capacity(inputs.clients());
        for source in &inputs.clients {
            let mut buffer = vec![0; length];
            source.read(&mut buffer, source.places[slot])?;
            buffers.push(buffer);
        }
        let clients: Vec<(f64, &[u8])> =
            inputs.weights.iter().copied().zip(buffers.iter().map(Vec::as_slice)).collect();
        let (kind, role, total) = (tensor.kind, *role, inputs.total);
        let factors = Factors { kind, role, rank, clients: &clients, total, centred };
        Gram::of(&factors).map_err(|(client, index)| {
            // It was finite a moment ago.
            let path = &inputs.clients[client].path;
            let fault = Fault::NotFinite { index: index as u64, value: f32::NAN };
            AdapterError::tensor(path, &tensor.name, fault)
        })
    });
    let (down, up) = (down?, up?);
    let bytes = [pair.down, pair.up].map(|slot| inputs.layout.slots[slot].tensor.bytes());
    progress.add((bytes[0] + bytes[1]).saturating_mul(inputs.clients() as u64))?;
    let weights = if centred { inputs.weights.as_slice() } else { &[] };
    Ok(Some(squares(&down, &up, weights, inputs.total)))
}
