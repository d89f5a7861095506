//! Computation of the rank, the number of experts and the scale of every module from the configuration.
//!
//! PEFT multiplies `B A` of a module by alpha/r, or by alpha/sqrt(r) with `use_rslora`. `rank_pattern` and
//! `alpha_pattern` override r and alpha of some modules.
//!
//! A parameter that PEFT wraps individually (`target_parameters`) may be a stack of E experts. `lora_A` is
//! then (E r) x d_in and `lora_B` is d_out x (r E). Expert e has the rows e r to e r + r - 1 of A and the
//! columns e, e + E, e + 2 E, ... of B. The files do not contain E, but the rank of the factors is r E.
//!
//! If a module has two such parameters, one wrapper contains the other: the factors are `MODULE.lora_A` and
//! `MODULE.base_layer.lora_A`. Only the ranks show which parameter a factor belongs to.

use std::collections::BTreeMap;

use super::{Config, FactorPair, Fault, Layout, LocatedFault};

/// Prefix of module names in files.
const PREFIX: &str = "base_model.model.";

/// Name of the wrapped module inside its wrapper.
const INNER: &str = "base_layer";

/// Largest number of parameters of one module for which assignments are enumerated.
const PARAMETERS_MAX: usize = 6;

/// Rank, experts and scale of one module, whose update is `scale` times `B A` for each expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModuleScaling {
    /// Rank r of the module, or of each expert.
    pub rank: u64,
    /// Number of experts: 1 for a plain module.
    pub experts: u64,
    /// Scale of `B A`: alpha/r or alpha/sqrt(r); 1/r without a configuration.
    pub scale: f64,
}

/// Scaling of every factor pair, in the order of the layout; or the reason why the scaling is unknown.
pub(super) type ModuleScalings = Vec<Result<ModuleScaling, String>>;

/// Determines the scalings of all modules. Without a configuration every module has a single expert and alpha
/// 1.
///
/// # Errors
/// [`Fault::ConfigRankMismatch`] if a rank contradicts the configuration.
pub(super) fn module_scalings(
    config: Option<&Config>,
    layout: &Layout,
) -> Result<ModuleScalings, LocatedFault> {
    let Some(config) = config else {
        #[allow(clippy::cast_precision_loss, reason = "ranks are small")]
        let unconfigured = |pair: &FactorPair| {
            Ok(ModuleScaling { rank: pair.rank, experts: 1, scale: 1.0 / pair.rank as f64 })
        };
        return Ok(layout.pairs.iter().map(unconfigured).collect());
    };
    let mut scalings: ModuleScalings = vec![Err(String::new()); layout.pairs.len()];
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, pair) in layout.pairs.iter().enumerate() {
        groups.entry(model_name(&pair.module)).or_default().push(index);
    }
    for (name, members) in groups {
        let mismatch = |member: usize, expected: u64, times: bool| {
            let pair = &layout.pairs[member];
            let tensor = layout.tensors[pair.down].tensor.name.clone();
            (Some(tensor), Fault::ConfigRankMismatch { found: pair.rank, expected, times })
        };
        let parameters = config.parameters_of(&name);
        if parameters.is_empty() {
            for member in members {
                let pair = &layout.pairs[member];
                scalings[member] = match module_scaling(config, pair, &name) {
                    Ok(Ok(scaling)) => Ok(scaling),
                    Ok(Err(expected)) => return Err(mismatch(member, expected, false)),
                    Err(reason) => Err(reason),
                };
            }
            continue;
        }
        // A parameter that is given without the name of its module may belong to any module.
        let is_named = config.names_module(&name);
        let mut candidates = Vec::new();
        for member in members {
            match module_scaling(config, &layout.pairs[member], &name) {
                Ok(Ok(scaling)) if !is_named => scalings[member] = Ok(scaling),
                _ => candidates.push(member),
            }
        }
        let ranks: Vec<u64> = candidates.iter().map(|member| layout.pairs[*member].rank).collect();
        let parameter_ranks: Result<Vec<_>, _> =
            parameters.iter().map(|key| config.rank_and_alpha(key)).collect();
        match parameter_ranks {
            Err(key) => {
                candidates.iter().for_each(|member| scalings[*member] = Err(unsupported_reason(&key)))
            }
            Ok(parameter_ranks) => {
                let member_scalings =
                    parameter_scalings(config, &ranks, &parameter_ranks).map_err(|index| {
                        mismatch(
                            candidates[index],
                            parameter_ranks.first().map_or(config.r, |first| first.0),
                            true,
                        )
                    })?;
                candidates
                    .iter()
                    .zip(member_scalings)
                    .for_each(|(member, scaling)| scalings[*member] = scaling);
            }
        }
    }
    Ok(scalings)
}

/// Scaling of a module that is wrapped as a whole. `Ok(Err(rank))` contains the rank that the factors should
/// have; `Err` contains the reason why the scaling is unknown.
fn module_scaling(
    config: &Config,
    pair: &FactorPair,
    name: &str,
) -> Result<Result<ModuleScaling, u64>, String> {
    let (rank, alpha) = config.rank_and_alpha(name).map_err(|key| unsupported_reason(&key))?;
    if rank == pair.rank {
        return Ok(Ok(new_scaling(config, rank, alpha, 1)));
    }
    // PEFT also wraps the output projection inside a wrapped attention module. The projection then has the
    // rank of the attention module.
    let outer =
        without_suffix(&pair.module).split_once(&format!(".{INNER}.")).map(|(outer, _)| model_name(outer));
    if let Some(Ok((outer, alpha))) = outer.map(|outer| config.rank_and_alpha(&outer))
        && outer == pair.rank
    {
        return Ok(Ok(new_scaling(config, outer, alpha, 1)));
    }
    Ok(Err(rank))
}

/// Scalings of the parameters of one module, whose factors have these `ranks`. Each factor pair belongs to a
/// different one of the `parameters`, given as rank and alpha. The error is the index of the first rank that
/// fits no parameter.
fn parameter_scalings(
    config: &Config,
    ranks: &[u64],
    parameters: &[(u64, f64)],
) -> Result<ModuleScalings, usize> {
    let fits = |rank: u64, (parameter_rank, _): (u64, f64)| rank.is_multiple_of(parameter_rank);
    if let Some(index) =
        ranks.iter().position(|rank| !parameters.iter().any(|parameter| fits(*rank, *parameter)))
    {
        return Err(index);
    }
    let scaling_of = |rank: u64, (parameter_rank, alpha): (u64, f64)| {
        new_scaling(config, parameter_rank, alpha, rank / parameter_rank)
    };
    if parameters.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(ranks.iter().map(|rank| Ok(scaling_of(*rank, parameters[0]))).collect());
    }
    let reason = || "its rank fits several of target_parameters".to_owned();
    if parameters.len() > PARAMETERS_MAX || ranks.len() > parameters.len() {
        return Ok(ranks.iter().map(|_| Err(reason())).collect());
    }
    let mut assignments = Vec::new();
    enumerate_assignments(&mut Vec::new(), ranks, parameters, &mut assignments);
    let experts = |assignment: &[usize]| -> Vec<u64> {
        ranks.iter().zip(assignment).map(|(rank, index)| rank / parameters[*index].0).collect()
    };
    // All parameters of a module have the same number of experts.
    let has_equal_experts =
        |assignment: &Vec<usize>| experts(assignment).windows(2).all(|pair| pair[0] == pair[1]);
    if assignments.iter().any(has_equal_experts) {
        assignments.retain(has_equal_experts);
    }
    let unique_scaling = |(index, rank): (usize, &u64)| {
        let mut scalings =
            assignments.iter().map(|assignment| scaling_of(*rank, parameters[assignment[index]]));
        let first = scalings.next().ok_or_else(reason)?;
        if scalings.all(|scaling| scaling == first) { Ok(first) } else { Err(reason()) }
    };
    Ok(ranks.iter().enumerate().map(unique_scaling).collect())
}

/// Enumerates all assignments of ranks to fitting parameters. Each parameter is used at most once.
fn enumerate_assignments(
    chosen: &mut Vec<usize>,
    ranks: &[u64],
    parameters: &[(u64, f64)],
    assignments: &mut Vec<Vec<usize>>,
) {
    let Some(rank) = ranks.get(chosen.len()) else {
        assignments.push(chosen.clone());
        return;
    };
    for (index, (parameter_rank, _)) in parameters.iter().enumerate() {
        if rank.is_multiple_of(*parameter_rank) && !chosen.contains(&index) {
            chosen.push(index);
            enumerate_assignments(chosen, ranks, parameters, assignments);
            chosen.pop();
        }
    }
}

/// Scaling of a module with this rank, alpha and number of experts.
#[allow(clippy::cast_precision_loss, reason = "ranks are small")]
fn new_scaling(config: &Config, rank: u64, alpha: f64, experts: u64) -> ModuleScaling {
    let r = rank as f64;
    ModuleScaling { rank, experts, scale: alpha / if config.use_rslora { r.sqrt() } else { r } }
}

/// Reason for an unknown scaling: the key of a pattern is not supported.
fn unsupported_reason(key: &str) -> String {
    format!(
        "its rank or alpha depends on the expression {}, which is not supported",
        super::error::shortened(&format!("{key:?}"))
    )
}

/// Name of a module without the suffix ` (embedding)` or ` (ADAPTER)`.
fn without_suffix(module: &str) -> &str {
    module.split(" (").next().unwrap_or(module)
}

/// Name of a module in the model, without PEFT's prefix and wrappers.
fn model_name(module: &str) -> String {
    let name = without_suffix(module);
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    name.split('.').filter(|part| *part != INNER).collect::<Vec<_>>().join(".")
}
