//! Comparison of clients' adapters with the base: norms of the changes, the changed factors, and the
//! interference of plain averaging.

use serde::Serialize;

use super::dtype::not_finite;
use super::interference::{FactorSet, GramMatrices, SquaredNorms, expert_norms, is_too_large};
use super::scaling::ModuleScaling;
use super::source::InputFile;
use super::{
    AdapterError, AdapterTensor, ClientWeight, Dtype, FactorPair, Fault, Inputs, MergeRule, ProgressFn, Role,
};

/// Norms of a change and of the base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ChangeNorms {
    /// Frobenius norm of the change.
    pub change: f64,
    /// Frobenius norm of the base.
    pub base: f64,
    /// True if any bit differs.
    pub differs: bool,
}

impl ChangeNorms {
    /// Ratio of the norm of the change to the norm of the base. Infinite if the base is zero; up factors are
    /// zero before the first round.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.change == 0.0 { 0.0 } else { self.change / self.base }
    }

    /// Norms of two changes, combined as one vector.
    fn combine(self, other: &Self) -> Self {
        Self {
            change: self.change.hypot(other.change),
            base: self.base.hypot(other.base),
            differs: self.differs || other.differs,
        }
    }
}

/// Factors that a client changed, and therefore the rounds that accept its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangedFactors {
    /// Down factors only: the file fits a down round.
    Down,
    /// Up factors only: the file fits an up round.
    Up,
    /// Both factors: the file fits plain averaging only.
    Both,
    /// No factors: every round accepts the file, and only the saved modules contribute to the mean.
    Nothing,
}

impl ChangedFactors {
    /// Name in tables and JSON.
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

/// Changes of one client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClientReport {
    /// Path of the client's file.
    pub file: String,
    /// Change of all down factors together.
    pub down: ChangeNorms,
    /// Change of all up factors together.
    pub up: ChangeNorms,
    /// Change of all saved modules together; `None` if there are none. The norms include float dtypes only.
    pub saved: Option<ChangeNorms>,
    /// Factors that changed.
    pub fits: ChangedFactors,
    /// Change of every tensor, in the order of the base.
    pub tensors: Vec<(String, ChangeNorms)>,
}

/// Interference of one module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModuleReport {
    /// Name of the module.
    pub module: String,
    /// Rank of the module, or of each expert.
    pub rank: u64,
    /// Number of experts: 1 for a plain module.
    pub experts: u64,
    /// Scale of `B A`: alpha/r or alpha/sqrt(r); 1/r without a configuration.
    pub scale: f64,
    /// `|mean(B_i A_i) - mean(B) mean(A)| / |mean(B_i A_i)|`, Frobenius norms.
    pub interference: f64,
    /// Interference of every expert; empty for a single expert.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expert_interference: Vec<f64>,
}

/// Result of [`check`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckReport {
    /// Changes of every client, in the order of the inputs.
    pub clients: Vec<ClientReport>,
    /// Modules whose interference was computed.
    pub targets: Vec<ModuleReport>,
    /// Interference of all modules as one block-diagonal matrix, with every module multiplied by its scale.
    /// `None` if the interference of a module is unknown.
    pub interference: Option<f64>,
    /// Weight of every client in the mean, in the order of the inputs.
    pub weights: Vec<ClientWeight>,
    /// Warnings for the user: differences that may be intended, and reasons for a missing interference.
    pub warnings: Vec<String>,
}

/// Compares the clients with the base and with each other.
///
/// # Errors
/// [`AdapterError::File`] for a file that cannot be read, has changed, or has a value that is not finite;
/// [`AdapterError::Interrupted`] if `progress` returns false.
pub fn check(inputs: &Inputs, progress: &ProgressFn<'_>) -> Result<CheckReport, AdapterError> {
    // The computation of the interference reads the factors a second time.
    let mut progress = Progress { report: progress, read: 0, total: inputs.bytes().saturating_mul(2) };
    let mut clients: Vec<Vec<ChangeNorms>> = vec![Vec::new(); inputs.clients()];
    let mut shared = Vec::with_capacity(inputs.layout.tensors.len());
    // The length depends on all tensors, so it is computed once and not for each tensor.
    let block_len = inputs.block_len(1);
    for index in 0..inputs.layout.tensors.len() {
        let (changed, is_shared) = tensor_changes(inputs, index, block_len, &mut progress)?;
        clients.iter_mut().zip(changed).for_each(|(client, changed)| client.push(changed));
        shared.push(is_shared);
    }
    let mut warnings = inputs.warnings().to_vec();
    let mut module_norms_and_scales: Vec<(SquaredNorms, f64)> = Vec::new();
    let mut targets = Vec::new();
    let mut unknown = Vec::new();
    for (pair, scaling) in inputs.layout.pairs.iter().zip(&inputs.scalings) {
        let shared = [shared[pair.down], shared[pair.up]];
        let scaling = match scaling {
            Ok(scaling) => *scaling,
            // If all clients have the same down or up factor, the interference is 0 for any number of
            // experts.
            Err(_) if shared[0] || shared[1] => {
                ModuleScaling { rank: pair.rank, experts: 1, scale: 1.0 / rank_of(pair) }
            }
            Err(reason) => {
                unknown.push((pair, reason.clone()));
                continue;
            }
        };
        if let (Some(reason), false) = (inputs.other_product, shared[0] || shared[1]) {
            unknown.push((pair, reason.to_owned()));
            continue;
        }
        let Some(norms) = module_norms(inputs, pair, scaling, shared, &mut progress)? else {
            unknown.push((pair, "too many clients for its rank".to_owned()));
            continue;
        };
        let summed = norms.iter().fold(SquaredNorms::default(), |sum, expert| sum.plus(*expert));
        module_norms_and_scales.push((summed, scaling.scale));
        let experts = if scaling.experts > 1 {
            norms.iter().map(|expert| expert.interference()).collect()
        } else {
            Vec::new()
        };
        targets.push(ModuleReport {
            module: pair.module.clone(),
            rank: scaling.rank,
            experts: scaling.experts,
            scale: scaling.scale,
            interference: summed.interference(),
            expert_interference: experts,
        });
    }
    inputs.ensure_unchanged()?;
    if let Some((pair, reason)) = unknown.first() {
        let module = pair.module.escape_debug();
        warnings.push(format!(
            "the interference of {} of {} modules is not computed, the first of them {module}: {reason}",
            unknown.len(),
            inputs.layout.pairs.len()
        ));
    }
    let interference = unknown.is_empty().then(|| total_interference(&module_norms_and_scales));
    let scales_differ = targets.windows(2).any(|pair| pair[0].scale != pair[1].scale);
    if scales_differ && !inputs.is_configured && interference.is_some_and(|value| value > 0.0) {
        warnings.push(
            "without an adapter_config.json, modules of different ranks are scaled by 1/r, as if all had the same alpha"
                .to_owned(),
        );
    }
    let clients =
        inputs.clients.iter().zip(clients).map(|(source, tensors)| client_report(inputs, source, tensors));
    Ok(CheckReport {
        clients: clients.collect(),
        targets,
        interference,
        weights: inputs.client_weights(),
        warnings,
    })
}

/// Interference of all modules as one block-diagonal matrix, from the norms and scales of the modules.
fn total_interference(modules: &[(SquaredNorms, f64)]) -> f64 {
    let largest = modules.iter().fold(0.0, |largest, (_, scale)| f64::max(largest, scale.abs()));
    // Only the ratios of scales affect the result; dividing by the largest scale avoids overflow.
    let relative = |scale: f64| if largest > 0.0 { scale / largest } else { 0.0 };
    let summed = modules
        .iter()
        .fold(SquaredNorms::default(), |sum, (norms, scale)| sum.plus(norms.scaled(relative(*scale))));
    summed.interference()
}

#[allow(clippy::cast_precision_loss, reason = "ranks are small")]
fn rank_of(pair: &FactorPair) -> f64 {
    pair.rank as f64
}

/// Number of bytes read, and the function to which the number is reported.
struct Progress<'a> {
    report: &'a ProgressFn<'a>,
    read: u64,
    total: u64,
}

impl Progress<'_> {
    /// Reports that more bytes were read.
    ///
    /// # Errors
    /// [`AdapterError::Interrupted`] if the function returns false.
    fn add_bytes(&mut self, bytes: u64) -> Result<(), AdapterError> {
        self.read += bytes;
        if (self.report)(self.read, self.total) { Ok(()) } else { Err(AdapterError::Interrupted) }
    }
}

/// Report on one client, from the changes of all tensors.
fn client_report(inputs: &Inputs, source: &InputFile, tensors: Vec<ChangeNorms>) -> ClientReport {
    let change_of = |role: Role| {
        let changed = inputs.layout.tensors.iter().zip(&tensors).filter(|(entry, _)| entry.role == role);
        // Differences of integer counters are not distances, so they are not part of the norms.
        let norms = changed.map(|(entry, changed)| match entry.tensor.dtype.rule() {
            MergeRule::Mean => *changed,
            _ => ChangeNorms { change: 0.0, base: 0.0, ..*changed },
        });
        norms.fold(ChangeNorms::default(), |sum, norms| sum.combine(&norms))
    };
    let (down, up) = (change_of(Role::Down), change_of(Role::Up));
    let fits = match (down.differs, up.differs) {
        (true, false) => ChangedFactors::Down,
        (false, true) => ChangedFactors::Up,
        (true, true) => ChangedFactors::Both,
        (false, false) => ChangedFactors::Nothing,
    };
    let has_saved = inputs.layout.tensors.iter().any(|entry| entry.role == Role::Saved);
    let names = inputs.layout.tensors.iter().map(|entry| entry.tensor.name.clone());
    ClientReport {
        file: source.path.display().to_string(),
        down,
        up,
        saved: has_saved.then(|| change_of(Role::Saved)),
        fits,
        tensors: names.zip(tensors).collect(),
    }
}

/// Change of one tensor in every client, and true if the tensor is equal in all clients. Files are read in blocks of
/// `block` bytes.
fn tensor_changes(
    inputs: &Inputs,
    tensor_index: usize,
    block: usize,
    progress: &mut Progress<'_>,
) -> Result<(Vec<ChangeNorms>, bool), AdapterError> {
    let AdapterTensor { tensor, .. } = &inputs.layout.tensors[tensor_index];
    let (dtype, size) = (tensor.dtype, tensor.dtype.size());
    let mut squares = vec![(0.0, false); inputs.clients()];
    let mut base_square = 0.0;
    let mut is_shared = true;
    let mut base_bytes = Vec::new();
    let mut client_bytes = Vec::new();
    let mut first_client_bytes = Vec::new();
    let mut base_values = Vec::new();
    let mut client_values = Vec::new();
    for begin in (0..tensor.bytes()).step_by(block) {
        let length = usize::try_from(tensor.bytes() - begin).map_or(block, |remaining| remaining.min(block));
        let check_finite = |source: &InputFile, bytes: &[u8]| {
            let Some((index, value)) = not_finite(dtype, bytes) else { return Ok(()) };
            let fault = Fault::NotFinite { index: begin / size as u64 + index as u64, value };
            Err(AdapterError::tensor(&source.path, &tensor.name, fault))
        };
        base_bytes.resize(length, 0);
        inputs.base.read(&mut base_bytes, inputs.base.offsets[tensor_index] + begin)?;
        check_finite(&inputs.base, &base_bytes)?;
        decode_block(dtype, &base_bytes, &mut base_values);
        base_square += base_values.iter().fold(0.0, |sum, value| sum + value.powi(2));
        for (client, (source, (square, differs))) in inputs.clients.iter().zip(&mut squares).enumerate() {
            client_bytes.resize(length, 0);
            source.read(&mut client_bytes, source.offsets[tensor_index] + begin)?;
            if client == 0 {
                first_client_bytes.clone_from(&client_bytes);
            }
            is_shared &= client_bytes == first_client_bytes;
            if client_bytes == base_bytes {
                continue;
            }
            *differs = true;
            check_finite(source, &client_bytes)?;
            decode_block(dtype, &client_bytes, &mut client_values);
            let add_square = |sum: f64, (changed, base): (&f64, &f64)| sum + (changed - base).powi(2);
            *square = client_values.iter().zip(&base_values).fold(*square, add_square);
        }
        progress.add_bytes((length * (inputs.clients() + 1)) as u64)?;
    }
    let base = base_square.sqrt();
    let changed =
        squares.into_iter().map(|(square, differs)| ChangeNorms { change: square.sqrt(), base, differs });
    Ok((changed.collect(), is_shared))
}

/// Decodes the values of a block to f64.
fn decode_block(dtype: Dtype, bytes: &[u8], values: &mut Vec<f64>) {
    values.clear();
    if dtype.is_factor_dtype() {
        let mut values32 = [0.0_f32; 256];
        for group in bytes.chunks(values32.len() * dtype.size()) {
            let values32 = &mut values32[..group.len() / dtype.size()];
            dtype.decode(group, values32);
            values.extend(values32.iter().map(|value| f64::from(*value)));
        }
    } else {
        values.extend(bytes.chunks_exact(dtype.size()).map(|bytes| dtype.number(bytes)));
    }
}

/// Squared norms of every expert of one module; `None` if the computation would need too much memory.
fn module_norms(
    inputs: &Inputs,
    pair: &FactorPair,
    scaling: ModuleScaling,
    shared: [bool; 2],
    progress: &mut Progress<'_>,
) -> Result<Option<Vec<SquaredNorms>>, AdapterError> {
    let [rank, experts] =
        [scaling.rank, scaling.experts].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    // If all clients have the same down or up factor, the mean of products equals the product of means.
    let centred = !shared[0] && !shared[1];
    let parts = if centred { inputs.clients() + 1 } else { 2 };
    if is_too_large(parts, rank, experts) {
        return Ok(None);
    }
    let [down, up] = [pair.down, pair.up].map(|tensor_index| {
        let AdapterTensor { tensor, role } = &inputs.layout.tensors[tensor_index];
        let length = usize::try_from(tensor.bytes()).unwrap_or(usize::MAX);
        let mut buffers = Vec::with_capacity(inputs.clients());
        for source in &inputs.clients {
            let mut buffer = vec![0; length];
            source.read(&mut buffer, source.offsets[tensor_index])?;
            buffers.push(buffer);
        }
        let clients: Vec<(f64, &[u8])> =
            inputs.weights.iter().copied().zip(buffers.iter().map(Vec::as_slice)).collect();
        let factors = FactorSet {
            dtype: tensor.dtype,
            role: *role,
            rank,
            experts,
            clients: &clients,
            total: inputs.total,
            centred,
        };
        GramMatrices::from_factors(&factors).map_err(|(client, index)| {
            // The value was finite in the first pass, so the file has changed since that pass. The
            // value itself is unknown here.
            let path = &inputs.clients[client].path;
            let fault = Fault::NotFinite { index: index as u64, value: f64::NAN };
            AdapterError::tensor(path, &tensor.name, fault)
        })
    });
    let (down, up) = (down?, up?);
    let bytes = [pair.down, pair.up].map(|index| inputs.layout.tensors[index].tensor.bytes());
    progress.add_bytes((bytes[0] + bytes[1]).saturating_mul(inputs.clients() as u64))?;
    let weights = if centred { inputs.weights.as_slice() } else { &[] };
    Ok(Some(expert_norms(&down, &up, weights, inputs.total)))
}
