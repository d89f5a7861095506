//! What an adapter is made of: factors in pairs, saved modules, and where they lie.

use std::collections::BTreeMap;

use super::header::Tensor;
use super::tensor_name::named;
use super::{Fault, Header, Role};

/// One tensor of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// As the header has it.
    pub tensor: Tensor,
    /// What it is.
    pub role: Role,
}

/// The two factors of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
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
    pub slots: Vec<Slot>,
    /// In the order of their names.
    pub pairs: Vec<Pair>,
}

impl Layout {
    /// Of a file.
    ///
    /// # Errors
    /// What makes it no adapter, and in which tensor.
    pub fn of(header: &Header) -> Result<Self, (Option<String>, Fault)> {
        let mut slots: Vec<Slot> = Vec::with_capacity(header.tensors.len());
        let mut modules: BTreeMap<String, [Option<usize>; 2]> = BTreeMap::new();
        for tensor in &header.tensors {
            let (role, module) = named(&tensor.name).map_err(|fault| (Some(tensor.name.clone()), fault))?;
            if role != Role::Saved {
                if !tensor.kind.is_of_factors() {
                    return Err((Some(tensor.name.clone()), Fault::FactorKind { found: tensor.kind }));
                }
                let place = &mut modules.entry(module).or_default()[usize::from(role == Role::Up)];
                // Two names of one factor: none of a file has both.
                if place.replace(slots.len()).is_some() {
                    return Err((Some(tensor.name.clone()), Fault::Twice));
                }
            }
            slots.push(Slot { tensor: tensor.clone(), role });
        }
        let mut pairs = Vec::with_capacity(modules.len());
        for (module, places) in modules {
            let alone = |place: usize| {
                let Slot { tensor, role } = &slots[place];
                Err((Some(tensor.name.clone()), Fault::Alone { role: *role }))
            };
            let (down, up) = match places {
                [Some(down), Some(up)] => (down, up),
                [Some(place), None] | [None, Some(place)] => return alone(place),
                [None, None] => continue,
            };
            let ranks = [down, up].map(|place| rank(&slots[place]));
            let [rank, other] = ranks;
            let (rank, other) = (rank?, other?);
            if rank != other {
                let fault = Fault::TwoRanks { down: rank, up: other };
                return Err((Some(slots[up].tensor.name.clone()), fault));
            }
            pairs.push(Pair { module, down, up, rank });
        }
        if pairs.is_empty() {
            return Err((None, Fault::NoFactors));
        }
        Ok(Self { slots, pairs })
    }

    /// Bytes of the longest tensor.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.slots.iter().map(|slot| slot.tensor.bytes()).max().unwrap_or(0)
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.tensor.bytes()).sum()
    }
}

/// The rank of a factor: the first side of a down factor, the second of an up factor. Those of convolutions have more sides;
/// an up factor's are 1.
pub(super) fn rank(slot: &Slot) -> Result<u64, (Option<String>, Fault)> {
    let Slot { tensor, role } = slot;
    let rank = match (role, tensor.shape.as_slice()) {
        (Role::Down, [rank, _, ..]) => Some(*rank),
        (Role::Up, [_, rank, rest @ ..]) if rest.iter().all(|side| *side == 1) => Some(*rank),
        _ => None,
    };
    let rank = rank.filter(|rank| *rank > 0 && tensor.elements > 0);
    let fault = || Fault::NoFactor { role: *role, shape: tensor.shape.clone() };
    rank.ok_or_else(|| (Some(tensor.name.clone()), fault()))
}
