//! Whether a client's file has the tensors of the base, no more and no less; or no less but those it may leave out.

use std::collections::HashMap;
use std::path::Path;

use super::layout::rank;
use super::tensor_name::parse_tensor_name;
use super::{AdapterTensor, Fault, Header, Layout, Role};

/// Where the base's tensors are in another file, in the base's order; its tensors may lie in another one.
///
/// # Errors
/// The first difference in that order, then what the base has not.
pub(super) fn places(
    layout: &Layout,
    header: &Header,
    base: &Path,
) -> Result<Vec<u64>, (Option<String>, Fault)> {
    let places = present(layout, header, base, |_| false)?;
    Ok(places.into_iter().flatten().collect())
}

/// The same of a file that may leave tensors of some roles out.
///
/// # Errors
/// As [`places`].
pub(super) fn present(
    layout: &Layout,
    header: &Header,
    base: &Path,
    may_lack: impl Fn(Role) -> bool,
) -> Result<Vec<Option<u64>>, (Option<String>, Fault)> {
    let mut theirs: HashMap<&str, _> =
        header.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut places = Vec::with_capacity(layout.tensors.len());
    for AdapterTensor { tensor, role } in &layout.tensors {
        let base = || base.to_owned();
        let wrong = |fault| (Some(tensor.name.clone()), fault);
        let Some(found) = theirs.remove(tensor.name.as_str()) else {
            if may_lack(*role) {
                places.push(None);
                continue;
            }
            return Err(wrong(Fault::MissingTensor { base: base() }));
        };
        if found.dtype != tensor.dtype {
            let (found, expected) = (found.dtype, tensor.dtype);
            return Err(wrong(Fault::DtypeMismatch { found, expected, base: base() }));
        }
        if found.shape != tensor.shape {
            let of = |tensor: &_| rank(&AdapterTensor { tensor: Clone::clone(tensor), role: *role }).ok();
            // Of a factor it is most likely the rank, and that is said in one word.
            let ranks = of(found).zip(of(tensor)).filter(|(found, expected)| found != expected);
            return Err(wrong(match ranks {
                Some((found, expected)) => Fault::RankMismatch { found, expected, base: base() },
                None => Fault::ShapeMismatch {
                    found: found.shape.clone(),
                    expected: tensor.shape.clone(),
                    base: base(),
                },
            }));
        }
        places.push(Some(found.begin));
    }
    let Some(extra) = theirs.into_keys().min() else { return Ok(places) };
    let fault = match parse_tensor_name(extra) {
        Ok((Role::Down | Role::Up | Role::Saved, _)) => Fault::UnexpectedTensor { base: base.to_owned() },
        Err(fault) => fault,
    };
    Err((Some(extra.to_owned()), fault))
}
