//! Comparison of a client's header with the base: both must have the same tensors, in any order.

use std::collections::HashMap;
use std::path::Path;

use super::layout::rank;
use super::tensor_name::parse_tensor_name;
use super::{AdapterTensor, Fault, Header, Layout, LocatedFault, Role};

/// Offsets of the base's tensors in a client's file, in the order of the base.
///
/// # Errors
/// The first difference, in the order of the base; otherwise the first tensor that the base lacks.
pub(super) fn offsets(layout: &Layout, header: &Header, base: &Path) -> Result<Vec<u64>, LocatedFault> {
    let offsets = optional_offsets(layout, header, base, |_| false)?;
    Ok(offsets.into_iter().flatten().collect())
}

/// Offsets as from [`offsets`], for a file that may lack tensors of some roles; `None` for missing tensors.
///
/// # Errors
/// Same as [`offsets`].
pub(super) fn optional_offsets(
    layout: &Layout,
    header: &Header,
    base: &Path,
    may_lack: impl Fn(Role) -> bool,
) -> Result<Vec<Option<u64>>, LocatedFault> {
    let mut tensors: HashMap<&str, _> =
        header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut offsets = Vec::with_capacity(layout.tensors.len());
    for AdapterTensor { tensor, role } in &layout.tensors {
        let base = || base.to_owned();
        let located = |fault| (Some(tensor.name.clone()), fault);
        let Some(client_tensor) = tensors.remove(tensor.name.as_str()) else {
            if may_lack(*role) {
                offsets.push(None);
                continue;
            }
            return Err(located(Fault::MissingTensor { base: base() }));
        };
        if client_tensor.dtype != tensor.dtype {
            let (found, expected) = (client_tensor.dtype, tensor.dtype);
            return Err(located(Fault::DtypeMismatch { found, expected, base: base() }));
        }
        if client_tensor.shape != tensor.shape {
            let rank_of =
                |tensor: &_| rank(&AdapterTensor { tensor: Clone::clone(tensor), role: *role }).ok();
            // If the ranks of two factors differ, the error names the ranks instead of the shapes, because
            // ranks are easier to read.
            let ranks =
                rank_of(client_tensor).zip(rank_of(tensor)).filter(|(found, expected)| found != expected);
            return Err(located(match ranks {
                Some((found, expected)) => Fault::RankMismatch { found, expected, base: base() },
                None => Fault::ShapeMismatch {
                    found: client_tensor.shape.clone(),
                    expected: tensor.shape.clone(),
                    base: base(),
                },
            }));
        }
        offsets.push(Some(client_tensor.begin));
    }
    let Some(extra) = tensors.into_keys().min() else { return Ok(offsets) };
    let fault = match parse_tensor_name(extra) {
        Ok((Role::Down | Role::Up | Role::Saved, _)) => Fault::UnexpectedTensor { base: base.to_owned() },
        Err(fault) => fault,
    };
    Err((Some(extra.to_owned()), fault))
}
