//! Ranks, experts and scales of modules, from the configuration.
//!
//! PEFT multiplies `B A` of a module with alpha/r, or with alpha/sqrt(r) (`use_rslora`), and the two patterns give modules a rank and
//! an alpha of their own. A parameter that it wraps itself (`target_parameters`) may be a stack of E experts: `lora_A` is
//! (E r) x d_in and `lora_B` d_out x (r E), and expert e has the rows e r to e r + r of A and the columns e, e + E, e + 2 E ... of B.
//! E is not in the files, but the rank of the factors is r E. Two parameters of one module are wrapped one around the
//! other, `MODULE.lora_A` and `MODULE.base_layer.lora_A`: which is which is told by their ranks, or not at all.

use std::collections::BTreeMap;

use super::{Config, FactorPair, Fault, Layout};

/// Before the names of a model's modules in files.
const PREFIX: &str = "base_model.model.";

/// Name of a module that a wrapper holds.
const INNER: &str = "base_layer";

/// Most parameters of one module that are told apart.
const PARAMETERS_MAX: usize = 6;

/// The update of one module: `scale` times `B A`, expert by expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModuleScaling {
    /// The rank r, of one expert where there are several.
    pub rank: u64,
    /// Number of experts: 1 for a plain module.
    pub experts: u64,
    /// alpha/r or alpha/sqrt(r); 1/r without a configuration.
    pub scale: f64,
}

/// The share of every pair of a layout, in its order; or why that cannot be known.
pub(super) type ModuleScalings = Vec<Result<ModuleScaling, String>>;

/// A pair's tensor and what is wrong with it.
type Found = (Option<String>, Fault);

/// Reads the shares of all modules. Without a configuration factors are plain and alpha is one for all.
///
/// # Errors
/// [`Fault::ConfigRankMismatch`]: a rank that the configuration does not say.
pub(super) fn shares(config: Option<&Config>, layout: &Layout) -> Result<ModuleScalings, Found> {
    let Some(config) = config else {
        #[allow(clippy::cast_precision_loss, reason = "ranks are small")]
        let plain = |pair: &FactorPair| {
            Ok(ModuleScaling { rank: pair.rank, experts: 1, scale: 1.0 / pair.rank as f64 })
        };
        return Ok(layout.pairs.iter().map(plain).collect());
    };
    let mut shares: ModuleScalings = vec![Err(String::new()); layout.pairs.len()];
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, pair) in layout.pairs.iter().enumerate() {
        groups.entry(wrapped(&pair.module)).or_default().push(index);
    }
    for (name, members) in groups {
        let wrong = |member: usize, expected: u64, times: bool| {
            let pair = &layout.pairs[member];
            let tensor = layout.tensors[pair.down].tensor.name.clone();
            (Some(tensor), Fault::ConfigRankMismatch { found: pair.rank, expected, times })
        };
        let parameters = config.parameters_of(&name);
        if parameters.is_empty() {
            for member in members {
                let pair = &layout.pairs[member];
                shares[member] = match plain(config, pair, &name) {
                    Ok(Ok(share)) => Ok(share),
                    Ok(Err(expected)) => return Err(wrong(member, expected, false)),
                    Err(why) => Err(why),
                };
            }
            continue;
        }
        // A parameter without a module before it may be of any module.
        let is_sure = config.names_module(&name);
        let mut kept = Vec::new();
        for member in members {
            match plain(config, &layout.pairs[member], &name) {
                Ok(Ok(share)) if !is_sure => shares[member] = Ok(share),
                _ => kept.push(member),
            }
        }
        let ranks: Vec<u64> = kept.iter().map(|member| layout.pairs[*member].rank).collect();
        let known: Result<Vec<_>, _> = parameters.iter().map(|key| config.rank_and_alpha(key)).collect();
        match known {
            Err(key) => kept.iter().for_each(|member| shares[*member] = Err(unread(&key))),
            Ok(known) => {
                let found = wrapped_ones(config, &ranks, &known).map_err(|place| {
                    wrong(kept[place], known.first().map_or(config.r, |known| known.0), true)
                })?;
                kept.iter().zip(found).for_each(|(member, share)| shares[*member] = share);
            }
        }
    }
    Ok(shares)
}

/// The share of a module that is wrapped whole; or the rank that it should have, or why it cannot be known.
fn plain(config: &Config, pair: &FactorPair, name: &str) -> Result<Result<ModuleScaling, u64>, String> {
    let (rank, alpha) = config.rank_and_alpha(name).map_err(|key| unread(&key))?;
    if rank == pair.rank {
        return Ok(Ok(share(config, rank, alpha, 1)));
    }
    // Attention of one module wraps its own output projection as well, which has the rank of the whole.
    let outer = short(&pair.module).split_once(&format!(".{INNER}.")).map(|(outer, _)| wrapped(outer));
    if let Some(Ok((outer, alpha))) = outer.map(|outer| config.rank_and_alpha(&outer))
        && outer == pair.rank
    {
        return Ok(Ok(share(config, outer, alpha, 1)));
    }
    Ok(Err(rank))
}

/// Shares of the parameters of one module, whose factors have these ranks; each is one of those that the configuration
/// knows, no two the same. Or the first rank that is none of theirs.
fn wrapped_ones(config: &Config, ranks: &[u64], known: &[(u64, f64)]) -> Result<ModuleScalings, usize> {
    let fits = |rank: u64, (own, _): (u64, f64)| rank.is_multiple_of(own);
    if let Some(place) = ranks.iter().position(|rank| !known.iter().any(|known| fits(*rank, *known))) {
        return Err(place);
    }
    let of = |rank: u64, (own, alpha): (u64, f64)| share(config, own, alpha, rank / own);
    if known.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(ranks.iter().map(|rank| Ok(of(*rank, known[0]))).collect());
    }
    let why = || "which of target_parameters it is cannot be told from its rank".to_owned();
    if known.len() > PARAMETERS_MAX || ranks.len() > known.len() {
        return Ok(ranks.iter().map(|_| Err(why())).collect());
    }
    let mut orders = Vec::new();
    choose(&mut Vec::new(), ranks, known, &mut orders);
    let experts = |order: &[usize]| -> Vec<u64> {
        ranks.iter().zip(order).map(|(rank, place)| rank / known[*place].0).collect()
    };
    // Experts of a module are as many for each of its parameters.
    let alike = |order: &Vec<usize>| experts(order).windows(2).all(|pair| pair[0] == pair[1]);
    if orders.iter().any(alike) {
        orders.retain(alike);
    }
    let found = |(place, rank): (usize, &u64)| {
        let mut all = orders.iter().map(|order| of(*rank, known[order[place]]));
        let first = all.next().ok_or_else(why)?;
        if all.all(|other| other == first) { Ok(first) } else { Err(why()) }
    };
    Ok(ranks.iter().enumerate().map(found).collect())
}

/// All ways to give every rank a parameter of its own that fits it.
fn choose(chosen: &mut Vec<usize>, ranks: &[u64], known: &[(u64, f64)], orders: &mut Vec<Vec<usize>>) {
    let Some(rank) = ranks.get(chosen.len()) else {
        orders.push(chosen.clone());
        return;
    };
    for (place, (own, _)) in known.iter().enumerate() {
        if rank.is_multiple_of(*own) && !chosen.contains(&place) {
            chosen.push(place);
            choose(chosen, ranks, known, orders);
            chosen.pop();
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "ranks are small")]
fn share(config: &Config, rank: u64, alpha: f64, experts: u64) -> ModuleScaling {
    let r = rank as f64;
    ModuleScaling { rank, experts, scale: alpha / if config.use_rslora { r.sqrt() } else { r } }
}

fn unread(key: &str) -> String {
    format!(
        "its rank or alpha depends on the expression {}, which is not read here",
        super::error::short(&format!("{key:?}"))
    )
}

/// A module without the adapter's name behind it.
fn short(module: &str) -> &str {
    module.split(" (").next().unwrap_or(module)
}

/// The name of a module in the model: without what PEFT puts before it and around it.
fn wrapped(module: &str) -> String {
    let name = short(module);
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    name.split('.').filter(|part| *part != INNER).collect::<Vec<_>>().join(".")
}
