//! What each client changed, which round that fits, and what plain averaging would have lost.

use serde::Serialize;

use super::dtype::not_finite;
use super::interference::{FactorSet, GramMatrices, SquaredNorms, is_too_large, squares};
use super::scaling::ModuleScaling;
use super::source::InputFile;
use super::{
    AdapterError, AdapterTensor, ClientWeight, Dtype, FactorPair, Fault, Inputs, MergeRule, ProgressFn, Role,
};

/// How much something changed: norms of the change and of what it was before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ChangeNorms {
    /// Frobenius norm of the change.
    pub change: f64,
    /// Of the base.
    pub base: f64,
    /// Whether any bit differs.
    pub differs: bool,
}

impl ChangeNorms {
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
pub enum ChangedFactors {
    /// Only down factors changed.
    Down,
    /// Only up factors changed.
    Up,
    /// Both did: only plain averaging takes it.
    Both,
    /// Neither did: every round takes it, and learns nothing but saved modules.
    Nothing,
}

impl ChangedFactors {
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
pub struct ClientReport {
    /// Its file.
    pub file: String,
    /// All down factors.
    pub down: ChangeNorms,
    /// All up factors.
    pub up: ChangeNorms,
    /// All saved modules, if there are any; norms of their real numbers alone.
    pub saved: Option<ChangeNorms>,
    /// The round it fits.
    pub fits: ChangedFactors,
    /// Every tensor, in the order of the base's file.
    pub tensors: Vec<(String, ChangeNorms)>,
}

/// One module that is adapted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModuleReport {
    /// Its name.
    pub module: String,
    /// Rank of the adapter, of one expert where there are several.
    pub rank: u64,
    /// Number of experts: 1 for a plain module.
    pub experts: u64,
    /// The number that `B A` is multiplied with: alpha/r or alpha/sqrt(r). Without a configuration 1/r.
    pub scale: f64,
    /// `|mean(B_i A_i) - mean(B) mean(A)| / |mean(B_i A_i)|`, Frobenius norms.
    pub interference: f64,
    /// The same of every expert, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expert_interference: Vec<f64>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckReport {
    /// In the order that they were given in.
    pub clients: Vec<ClientReport>,
    /// Modules whose interference is known.
    pub targets: Vec<ModuleReport>,
    /// The same of all modules as one matrix, each multiplied with its scale.
    pub interference: Option<f64>,
    /// Clients in their order, and the weight of each in the mean.
    pub weights: Vec<ClientWeight>,
    /// Lines for people: differences that may be meant, and why the interference is not that of all modules.
    pub warnings: Vec<String>,
}

/// Compares clients with the base and with each other.
///
/// # Errors
/// A file that cannot be read, a number that is not finite.
pub fn check(inputs: &Inputs, watch: &ProgressFn<'_>) -> Result<CheckReport, AdapterError> {
    // Factors are read a second time.
    let mut progress = Progress { watch, read: 0, of: inputs.bytes().saturating_mul(2) };
    let mut clients: Vec<Vec<ChangeNorms>> = vec![Vec::new(); inputs.clients()];
    let mut alike = Vec::with_capacity(inputs.layout.tensors.len());
    for slot in 0..inputs.layout.tensors.len() {
        let (changed, same) = changes(inputs, slot, &mut progress)?;
        clients.iter_mut().zip(changed).for_each(|(client, changed)| client.push(changed));
        alike.push(same);
    }
    let mut warnings = inputs.warnings().to_vec();
    let mut found: Vec<(SquaredNorms, f64)> = Vec::new();
    let (mut targets, mut unknown) = (Vec::new(), Vec::new());
    for (pair, share) in inputs.layout.pairs.iter().zip(&inputs.shares) {
        let alike = [alike[pair.down], alike[pair.up]];
        let share = match share {
            Ok(share) => *share,
            // Where one factor is everybody's, nothing is lost in any layout.
            Err(_) if alike[0] || alike[1] => {
                ModuleScaling { rank: pair.rank, experts: 1, scale: 1.0 / rank_of(pair) }
            }
            Err(why) => {
                unknown.push((pair, why.clone()));
                continue;
            }
        };
        if let (Some(why), false) = (inputs.other_product, alike[0] || alike[1]) {
            unknown.push((pair, why.to_owned()));
            continue;
        }
        let Some(squares) = interference(inputs, pair, share, alike, &mut progress)? else {
            unknown.push((pair, "too many clients for its rank".to_owned()));
            continue;
        };
        let all = squares.iter().fold(SquaredNorms::default(), |all, one| all.plus(*one));
        found.push((all, share.scale));
        let experts =
            if share.experts > 1 { squares.iter().map(|one| one.ratio()).collect() } else { Vec::new() };
        targets.push(ModuleReport {
            module: pair.module.clone(),
            rank: share.rank,
            experts: share.experts,
            scale: share.scale,
            interference: all.ratio(),
            expert_interference: experts,
        });
    }
    inputs.ensure_unchanged()?;
    if let Some((pair, why)) = unknown.first() {
        let module = pair.module.escape_debug();
        warnings.push(format!(
            "the interference of {} of {} modules is not computed, the first of them {module}: {why}",
            unknown.len(),
            inputs.layout.pairs.len()
        ));
    }
    let interference = unknown.is_empty().then(|| total(&found));
    let unlike = targets.windows(2).any(|pair| pair[0].scale != pair[1].scale);
    if unlike && !inputs.is_configured && interference.is_some_and(|all| all > 0.0) {
        warnings.push(
            "no adapter_config.json says how modules of different ranks are scaled: they are weighed with 1/r, as for one alpha"
                .to_owned(),
        );
    }
    let clients =
        inputs.clients.iter().zip(clients).map(|(source, tensors)| reported(inputs, source, tensors));
    Ok(CheckReport { clients: clients.collect(), targets, interference, weights: inputs.counted(), warnings })
}

/// The interference of modules with these scales.
fn total(found: &[(SquaredNorms, f64)]) -> f64 {
    let most = found.iter().fold(0.0, |most, (_, scale)| f64::max(most, scale.abs()));
    // Only how scales compare matters; equal ones are 1.
    let scaled = |scale: f64| if most > 0.0 { scale / most } else { 0.0 };
    let all =
        found.iter().fold(SquaredNorms::default(), |all, (one, scale)| all.plus(one.scaled(scaled(*scale))));
    all.ratio()
}

#[allow(clippy::cast_precision_loss, reason = "ranks are small")]
fn rank_of(pair: &FactorPair) -> f64 {
    pair.rank as f64
}

struct Progress<'a> {
    watch: &'a ProgressFn<'a>,
    read: u64,
    of: u64,
}

impl Progress<'_> {
    fn add(&mut self, bytes: u64) -> Result<(), AdapterError> {
        self.read += bytes;
        if (self.watch)(self.read, self.of) { Ok(()) } else { Err(AdapterError::Interrupted) }
    }
}

fn reported(inputs: &Inputs, source: &InputFile, tensors: Vec<ChangeNorms>) -> ClientReport {
    let of = |role: Role| {
        let changed = inputs.layout.tensors.iter().zip(&tensors).filter(|(slot, _)| slot.role == role);
        // A counter's steps are no distance between numbers.
        let norms = changed.map(|(slot, changed)| match slot.tensor.dtype.rule() {
            MergeRule::Mean => *changed,
            _ => ChangeNorms { change: 0.0, base: 0.0, ..*changed },
        });
        norms.fold(ChangeNorms::default(), |all, one| all.with(&one))
    };
    let (down, up) = (of(Role::Down), of(Role::Up));
    let fits = match (down.differs, up.differs) {
        (true, false) => ChangedFactors::Down,
        (false, true) => ChangedFactors::Up,
        (true, true) => ChangedFactors::Both,
        (false, false) => ChangedFactors::Nothing,
    };
    let has_saved = inputs.layout.tensors.iter().any(|slot| slot.role == Role::Saved);
    let names = inputs.layout.tensors.iter().map(|slot| slot.tensor.name.clone());
    ClientReport {
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
) -> Result<(Vec<ChangeNorms>, bool), AdapterError> {
    let AdapterTensor { tensor, .. } = &inputs.layout.tensors[slot];
    let (dtype, size) = (tensor.dtype, tensor.dtype.size());
    let mut squares = vec![(0.0, false); inputs.clients()];
    let (mut base_square, mut alike) = (0.0, true);
    let block = inputs.block(1);
    let (mut bytes, mut other, mut first) = (Vec::new(), Vec::new(), Vec::new());
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for begin in (0..tensor.bytes()).step_by(block) {
        let length = usize::try_from(tensor.bytes() - begin).map_or(block, |rest| rest.min(block));
        let finite = |source: &InputFile, bytes: &[u8]| {
            let Some((index, value)) = not_finite(dtype, bytes) else { return Ok(()) };
            let fault = Fault::NotFinite { index: begin / size as u64 + index as u64, value };
            Err(AdapterError::tensor(&source.path, &tensor.name, fault))
        };
        bytes.resize(length, 0);
        inputs.base.read(&mut bytes, inputs.base.places[slot] + begin)?;
        finite(&inputs.base, &bytes)?;
        numbers(dtype, &bytes, &mut before);
        base_square += before.iter().fold(0.0, |sum, value| sum + value.powi(2));
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
            finite(source, &other)?;
            numbers(dtype, &other, &mut after);
            let change = |sum: f64, (after, before): (&f64, &f64)| sum + (after - before).powi(2);
            *square = after.iter().zip(&before).fold(*square, change);
        }
        progress.add((length * (inputs.clients() + 1)) as u64)?;
    }
    let base = base_square.sqrt();
    let changed =
        squares.into_iter().map(|(square, differs)| ChangeNorms { change: square.sqrt(), base, differs });
    Ok((changed.collect(), alike))
}

/// The numbers of a block, as f64.
fn numbers(dtype: Dtype, bytes: &[u8], values: &mut Vec<f64>) {
    values.clear();
    if dtype.is_factor_dtype() {
        let mut room = [0.0_f32; 256];
        for group in bytes.chunks(room.len() * dtype.size()) {
            let room = &mut room[..group.len() / dtype.size()];
            dtype.decode(group, room);
            values.extend(room.iter().map(|value| f64::from(*value)));
        }
    } else {
        values.extend(bytes.chunks_exact(dtype.size()).map(|bytes| dtype.number(bytes)));
    }
}

/// The squares of every expert of one module; `None` if they would take too much memory.
fn interference(
    inputs: &Inputs,
    pair: &FactorPair,
    share: ModuleScaling,
    alike: [bool; 2],
    progress: &mut Progress<'_>,
) -> Result<Option<Vec<SquaredNorms>>, AdapterError> {
    let [rank, experts] =
        [share.rank, share.experts].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    // Where one factor is the same everywhere, the mean of products is the product of means.
    let centred = !alike[0] && !alike[1];
    let parts = if centred { inputs.clients() + 1 } else { 2 };
    if is_too_large(parts, rank, experts) {
        return Ok(None);
    }
    let [down, up] = [pair.down, pair.up].map(|slot| {
        let AdapterTensor { tensor, role } = &inputs.layout.tensors[slot];
        let length = usize::try_from(tensor.bytes()).unwrap_or(usize::MAX);
        let mut buffers = Vec::with_capacity(inputs.clients());
        for source in &inputs.clients {
            let mut buffer = vec![0; length];
            source.read(&mut buffer, source.places[slot])?;
            buffers.push(buffer);
        }
        let clients: Vec<(f64, &[u8])> =
            inputs.weights.iter().copied().zip(buffers.iter().map(Vec::as_slice)).collect();
        let (dtype, role, total) = (tensor.dtype, *role, inputs.total);
        let factors = FactorSet { dtype, role, rank, experts, clients: &clients, total, centred };
        GramMatrices::from_factors(&factors).map_err(|(client, index)| {
            // It was finite a moment ago.
            let path = &inputs.clients[client].path;
            let fault = Fault::NotFinite { index: index as u64, value: f64::NAN };
            AdapterError::tensor(path, &tensor.name, fault)
        })
    });
    let (down, up) = (down?, up?);
    let bytes = [pair.down, pair.up].map(|slot| inputs.layout.tensors[slot].tensor.bytes());
    progress.add((bytes[0] + bytes[1]).saturating_mul(inputs.clients() as u64))?;
    let weights = if centred { inputs.weights.as_slice() } else { &[] };
    Ok(Some(squares(&down, &up, weights, inputs.total)))
}
