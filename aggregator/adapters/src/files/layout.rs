//! What an adapter is made of: factors in pairs, saved modules, and where they lie.

use std::collections::BTreeMap;

use super::header::Tensor;
use super::tensor_name::parse_tensor_name;
use super::{Fault, Header, Role};

/// One tensor of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterTensor {
    /// As the header has it.
    pub tensor: Tensor,
    /// What it is.
    pub role: Role,
}

/// The two factors of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactorPair {
    /// Which module.
    pub module: String,
    /// Place of the down factor among the tensors.
    pub down: usize,
    /// Place of the up factor.
    pub up: usize,
    /// The rank r.
    pub rank: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// In the order of the file.
    pub tensors: Vec<AdapterTensor>,
    /// In the order of their names.
    pub pairs: Vec<FactorPair>,
}

impl Layout {
    /// Of a file.
    ///
    /// # Errors
    /// What makes it no adapter, and in which tensor.
    pub fn from_header(header: &Header) -> Result<Self, (Option<String>, Fault)> {
        let mut tensors: Vec<AdapterTensor> = Vec::with_capacity(header.tensors.len());
        let mut modules: BTreeMap<String, [Option<usize>; 2]> = BTreeMap::new();
        for tensor in &header.tensors {
            let (role, module) =
                parse_tensor_name(&tensor.name).map_err(|fault| (Some(tensor.name.clone()), fault))?;
            if role != Role::Saved {
                if !tensor.dtype.is_factor_dtype() {
                    return Err((Some(tensor.name.clone()), Fault::FactorDtype { found: tensor.dtype }));
                }
                let place = &mut modules.entry(module).or_default()[usize::from(role == Role::Up)];
                // Two names of one factor: none of a file has both.
                if place.replace(tensors.len()).is_some() {
                    return Err((Some(tensor.name.clone()), Fault::DuplicateName));
                }
            }
            tensors.push(AdapterTensor { tensor: tensor.clone(), role });
        }
        let mut pairs = Vec::with_capacity(modules.len());
        for (module, places) in modules {
            let alone = |place: usize| {
                let AdapterTensor { tensor, role } = &tensors[place];
                Err((Some(tensor.name.clone()), Fault::Unpaired { role: *role }))
            };
            let (down, up) = match places {
                [Some(down), Some(up)] => (down, up),
                [Some(place), None] | [None, Some(place)] => return alone(place),
                [None, None] => continue,
            };
            let ranks = [down, up].map(|place| rank(&tensors[place]));
            let [rank, other] = ranks;
            let (rank, other) = (rank?, other?);
            if rank != other {
                let fault = Fault::PairRankMismatch { down: rank, up: other };
                return Err((Some(tensors[up].tensor.name.clone()), fault));
            }
            pairs.push(FactorPair { module, down, up, rank });
        }
        if pairs.is_empty() {
            return Err((None, Fault::NoFactors));
        }
        Ok(Self { tensors, pairs })
    }

    /// Bytes of the longest tensor.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.tensors.iter().map(|slot| slot.tensor.bytes()).max().unwrap_or(0)
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|slot| slot.tensor.bytes()).sum()
    }
}

/// The rank of a factor: the first side of a down factor, the second of an up factor. Those of convolutions have more sides;
/// an up factor's are 1.
pub(super) fn rank(slot: &AdapterTensor) -> Result<u64, (Option<String>, Fault)> {
    let AdapterTensor { tensor, role } = slot;
    let rank = match (role, tensor.shape.as_slice()) {
        (Role::Down, [rank, _, ..]) => Some(*rank),
        (Role::Up, [_, rank, rest @ ..]) if rest.iter().all(|side| *side == 1) => Some(*rank),
        _ => None,
    };
    let rank = rank.filter(|rank| *rank > 0 && tensor.elements > 0);
    let fault = || Fault::FactorShape { role: *role, shape: tensor.shape.clone() };
    rank.ok_or_else(|| (Some(tensor.name.clone()), fault()))
}
