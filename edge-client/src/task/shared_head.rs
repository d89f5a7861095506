//! Training of a linear model `(B, W)` with a shared head: gradient steps on both factors (FedAvg), or on `B`
//! alone (RoLoRA, Chen et al. 2025, Algorithm 2). The head is sent to the server, so a separate feature
//! enables this module.

use fedspan_protocol::message::{DeclineReason, RoundId};

use super::fedrep::copy;
use super::projection_cache::ProjectionCache;
use super::sample_pass::{PassKind, SampleSet, count, run_pass};
use super::{Usage, row_blocks};
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::gradient;
use crate::memory::Parts;
use crate::source::SampleSource;

/// Takes `steps` gradient steps `B <- B - eta G_B`, `W <- W - eta_h G_W`, with both gradients at the same
/// point. The steps are taken in place: afterwards the buffers hold the device's model.
pub fn run(
    parts: &mut Parts<'_>,
    step_size: f32,
    head_step_size: f32,
    steps: u16,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    let (k, c) = (parts.shape.width, parts.shape.outputs);
    let mut usage = Usage::default();
    for _ in 0..steps {
        usage = residual(parts, id, source)?;
        if usage.samples == 0 {
            break;
        }
        let scale = 1.0 / count(usage);
        // Computes G_W = B^T S / m before B changes.
        parts.rhs.fill(0.0);
        for (b_row, s_row) in
            parts.representation.chunks_exact(k.max(1)).zip(parts.residual.chunks_exact(c.max(1)))
        {
            gradient::accumulate(parts.rhs, b_row, s_row, parts.pace);
        }
        for (row, b_row) in parts.representation.chunks_exact_mut(k.max(1)).enumerate() {
            parts.pace.spend(k * (c + 2));
            gradient::elements(parts.residual, parts.head, k, c, scale, row * k, parts.z);
            for (b, &g) in b_row.iter_mut().zip(parts.z.iter()) {
                *b -= step_size * g;
            }
        }
        for (w, &g) in parts.head.iter_mut().zip(parts.rhs.iter()) {
            *w -= head_step_size * scale * g;
        }
    }
    Ok(usage)
}

/// Computes `S` for the current head. Uses no cached projections, because `B` changes before the next pass.
pub fn residual(
    parts: &mut Parts<'_>,
    id: RoundId,
    source: &mut dyn SampleSource,
) -> Result<Usage, DeclineReason> {
    copy(parts.rhs, parts.head);
    run_pass(
        PassKind::Residual,
        parts,
        &mut ProjectionCache::new(row_blocks::spare_fours(parts.shape)),
        &mut ConstantColumn::default(),
        id,
        SampleSet::All,
        source,
    )
}
