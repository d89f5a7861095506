//! Layout of an adapter: its factor pairs and saved modules.

use std::collections::BTreeMap;

use super::header::Tensor;
use super::tensor_name::parse_tensor_name;
use super::{Fault, Header, LocatedFault, Role};

/// Tensor of an adapter, with its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterTensor {
    /// Name, dtype, shape and offset from the header.
    pub tensor: Tensor,
    /// Role according to the name.
    pub role: Role,
}

/// The two factors of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactorPair {
    /// Name of the module, with the suffixes of [`parse_tensor_name`].
    pub module: String,
    /// Index of the down factor among the tensors.
    pub down: usize,
    /// Index of the up factor among the tensors.
    pub up: usize,
    /// Rank of the factors.
    pub rank: u64,
}

/// All tensors and factor pairs of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Tensors in the order of the file.
    pub tensors: Vec<AdapterTensor>,
    /// Factor pairs in the order of their module names.
    pub pairs: Vec<FactorPair>,
}

impl Layout {
    /// Finds the factor pairs of a file.
    ///
    /// # Errors
    /// [`LocatedFault`] if a name, dtype, shape or rank is not allowed in an adapter, a factor is unpaired,
    /// or the file has no factors.
    pub fn from_header(header: &Header) -> Result<Self, LocatedFault> {
        let mut tensors: Vec<AdapterTensor> = Vec::with_capacity(header.tensors.len());
        let mut modules: BTreeMap<String, [Option<usize>; 2]> = BTreeMap::new();
        for tensor in &header.tensors {
            let (role, module) =
                parse_tensor_name(&tensor.name).map_err(|fault| (Some(tensor.name.clone()), fault))?;
            if role != Role::Saved {
                if !tensor.dtype.is_factor_dtype() {
                    return Err((Some(tensor.name.clone()), Fault::FactorDtype { found: tensor.dtype }));
                }
                let index = &mut modules.entry(module).or_default()[usize::from(role == Role::Up)];
                // The file has the same factor under two names.
                if index.replace(tensors.len()).is_some() {
                    return Err((Some(tensor.name.clone()), Fault::DuplicateName));
                }
            }
            tensors.push(AdapterTensor { tensor: tensor.clone(), role });
        }
        let mut pairs = Vec::with_capacity(modules.len());
        for (module, indices) in modules {
            let unpaired = |index: usize| {
                let AdapterTensor { tensor, role } = &tensors[index];
                Err((Some(tensor.name.clone()), Fault::Unpaired { role: *role }))
            };
            let (down, up) = match indices {
                [Some(down), Some(up)] => (down, up),
                [Some(index), None] | [None, Some(index)] => return unpaired(index),
                [None, None] => continue,
            };
            let ranks = [down, up].map(|index| rank(&tensors[index]));
            let [rank, up_rank] = ranks;
            let (rank, up_rank) = (rank?, up_rank?);
            if rank != up_rank {
                let fault = Fault::PairRankMismatch { down: rank, up: up_rank };
                return Err((Some(tensors[up].tensor.name.clone()), fault));
            }
            pairs.push(FactorPair { module, down, up, rank });
        }
        if pairs.is_empty() {
            return Err((None, Fault::NoFactors));
        }
        Ok(Self { tensors, pairs })
    }

    /// Length of the longest tensor, in bytes.
    #[must_use]
    pub fn longest_tensor(&self) -> u64 {
        self.tensors.iter().map(|entry| entry.tensor.bytes()).max().unwrap_or(0)
    }

    /// Length of all tensors together, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|entry| entry.tensor.bytes()).sum()
    }
}

/// Rank of a factor: the first dimension of a down factor, the second of an up factor. Factors of
/// convolutions have more dimensions, which are 1 for an up factor.
pub(super) fn rank(entry: &AdapterTensor) -> Result<u64, LocatedFault> {
    let AdapterTensor { tensor, role } = entry;
    let rank = match (role, tensor.shape.as_slice()) {
        (Role::Down, [rank, _, ..]) => Some(*rank),
        (Role::Up, [_, rank, kernel @ ..]) if kernel.iter().all(|size| *size == 1) => Some(*rank),
        _ => None,
    };
    let rank = rank.filter(|rank| *rank > 0 && tensor.elements > 0);
    let fault = || Fault::FactorShape { role: *role, shape: tensor.shape.clone() };
    rank.ok_or_else(|| (Some(tensor.name.clone()), fault()))
}
