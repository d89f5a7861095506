//! Tests of ranks, scales and experts of modules: the interference is compared with that of dense products.

use std::collections::BTreeMap;

use fedspan_adapters::files::{CheckReport, Dtype, RoundKind, check};
use serde_json::{Value, json};

use crate::common::{Adapter, Folder};

const LAYER: &str = "base_model.model.model.layers.0.";

/// Module of an adapter: name in files, rank of an expert, number of experts, alpha, d_in, d_out.
type Module = (&'static str, usize, usize, f64, usize, usize);

/// Makes a random adapter with these modules.
fn random(modules: &[Module], seed: u64) -> Adapter {
    let mut adapter = Adapter { dtype: Dtype::F32, tensors: BTreeMap::new() };
    for (index, (name, rank, experts, _, d_in, d_out)) in modules.iter().enumerate() {
        let factor = |letter: &str| format!("{LAYER}{name}.lora_{letter}.weight");
        let seed = seed * 100 + index as u64 * 2;
        adapter.add(&factor("A"), &[rank * experts, *d_in], seed);
        adapter.add(&factor("B"), &[*d_out, rank * experts], seed + 1);
    }
    adapter
}

/// Text of a configuration with some keys changed.
fn config(changes: &Value) -> String {
    let mut plain = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]});
    for (key, value) in changes.as_object().unwrap() {
        plain[key] = value.clone();
    }
    plain.to_string()
}

/// Compares three random clients with a base, all with the same configuration. Returns the report and the
/// clients.
fn checked(modules: &[Module], config: &str) -> Result<(CheckReport, Vec<Adapter>), String> {
    let all: Vec<Adapter> = (0..4).map(|seed| random(modules, seed)).collect();
    let folder = Folder::directories(&all, &[config; 4]);
    let inputs = folder.directory_inputs().map_err(|error| error.to_string())?;
    let checked = check(&inputs, &|_, _| true).unwrap();
    Ok((checked, all[1..].to_vec()))
}

/// Squared norms of two matrices for each expert, computed from dense products: the mean of products, and the
/// difference between the mean of products and the product of means.
fn dense((name, rank, experts, _, d_in, d_out): Module, clients: &[Adapter]) -> Vec<[f64; 2]> {
    let factor = |one: &Adapter, letter: &str| -> Vec<f64> {
        let (_, values) = &one.tensors[&format!("{LAYER}{name}.lora_{letter}.weight")];
        values.iter().copied().map(f64::from).collect()
    };
    let count = clients.len() as f64;
    let mean = |all: Vec<Vec<f64>>| -> Vec<f64> {
        (0..all[0].len()).map(|place| all.iter().map(|one| one[place]).sum::<f64>() / count).collect()
    };
    (0..experts)
        .map(|expert| {
            // The product of expert e in PEFT is B.reshape(out, r, E)[:, :, e] A.reshape(E, r, in)[e].
            let product = |a: &[f64], b: &[f64]| -> Vec<f64> {
                let term = |o: usize, i: usize, j: usize| {
                    b[(o * rank + j) * experts + expert] * a[(expert * rank + j) * d_in + i]
                };
                (0..d_out * d_in).map(|at| (0..rank).map(|j| term(at / d_in, at % d_in, j)).sum()).collect()
            };
            let products = clients.iter().map(|one| product(&factor(one, "A"), &factor(one, "B"))).collect();
            let [a, b] =
                ["A", "B"].map(|letter| mean(clients.iter().map(|one| factor(one, letter)).collect()));
            let (all, plain) = (mean(products), product(&a, &b));
            let lost = all.iter().zip(&plain).map(|(one, other)| (one - other).powi(2)).sum();
            [all.iter().map(|value| value * value).sum(), lost]
        })
        .collect()
}

/// Asserts that the interference of every module, of every expert and of all modules equals that of dense
/// products with these scales.
fn agrees(modules: &[Module], changes: &Value, scale: impl Fn(&Module) -> f64) {
    let (found, clients) = checked(modules, &config(changes)).unwrap();
    assert_eq!((found.targets.len(), &found.warnings), (modules.len(), &Vec::new()));
    let near = |found: f64, [square, lost]: [f64; 2]| {
        let expected = f64::sqrt(lost / square);
        assert!((found - expected).abs() < 1e-10, "{found} {expected} {changes}");
    };
    let mut total = [0.0; 2];
    for module in modules {
        let target = found.targets.iter().find(|one| one.module == format!("{LAYER}{}", module.0)).unwrap();
        let squares = dense(*module, &clients);
        assert_eq!((target.rank as usize, target.experts as usize), (module.1, module.2), "{target:?}");
        assert!((target.scale / scale(module) - 1.0).abs() < 1e-12, "{target:?} {}", scale(module));
        let sum = squares.iter().fold([0.0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        near(target.interference, sum);
        if module.2 > 1 {
            assert_eq!(target.expert_interference.len(), module.2);
            target.expert_interference.iter().zip(squares).for_each(|(one, squares)| near(*one, squares));
        }
        let weight = scale(module).powi(2);
        total = [total[0] + weight * sum[0], total[1] + weight * sum[1]];
    }
    near(found.interference.unwrap(), total);
}

#[test]
fn interference_weighs_modules_by_scale() {
    let plain = |module: &Module| module.3 / module.1 as f64;
    let stable = |module: &Module| module.3 / (module.1 as f64).sqrt();
    let two = |q: (usize, f64), v: (usize, f64)| -> [Module; 2] {
        [("self_attn.q_proj", q.0, 1, q.1, 6, 8), ("self_attn.v_proj", v.0, 1, v.1, 6, 8)]
    };
    for (modules, changes) in [
        (two((4, 8.0), (4, 8.0)), json!({})),
        (two((4, 8.0), (16, 8.0)), json!({"rank_pattern": {"v_proj": 16}})),
        (two((4, 8.0), (16, 8.0)), json!({"rank_pattern": {"v_proj": 16.0}})),
        (two((2, 8.0), (16, 8.0)), json!({"rank_pattern": {r".*\.v_proj": 16, "self_attn.q_proj": 2}})),
        (two((2, 8.0), (16, 8.0)), json!({"rank_pattern": {"model.layers.0.self_attn.v_proj": 16}, "r": 2})),
        (
            two((4, 8.0), (1, 8.0)),
            json!({"rank_pattern": {"^model.layers.0.self_attn.v_proj": 1, "layers.1.self_attn.q_proj": 9}}),
        ),
        (two((4, 64.0), (4, 8.0)), json!({"alpha_pattern": {"q_proj": 64}})),
        (
            two((4, 0.5), (8, 3.0)),
            json!({"alpha_pattern": {"q_proj": 0.5, "v_proj": 3}, "rank_pattern": {"(k|v)_proj": 8}}),
        ),
        (two((8, 8.0), (8, 8.0)), json!({"r": 8, "lora_alpha": null})),
        (two((8, 1e100), (2, 1e100)), json!({"r": 8, "lora_alpha": 1e100, "rank_pattern": {"v_proj": 2}})),
    ] {
        agrees(&modules, &changes, plain);
        let mut with = changes.clone();
        with["use_rslora"] = json!(true);
        agrees(&modules, &with, stable);
    }
}

#[test]
fn experts_have_separate_interference() {
    let plain = |module: &Module| module.3 / module.1 as f64;
    let parameters = json!(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]);
    for experts in [1, 2, 4, 7] {
        let modules: [Module; 3] = [
            ("mlp.experts", 4, experts, 8.0, 6, 10),
            ("mlp.experts.base_layer", 4, experts, 8.0, 10, 6),
            ("self_attn.q_proj", 4, 1, 8.0, 6, 8),
        ];
        agrees(&modules, &json!({"target_parameters": parameters}), plain);
        agrees(&modules, &json!({"target_parameters": ["mlp.experts.down_proj", "gate_up_proj"]}), plain);
        agrees(&modules[..1], &json!({"target_parameters": ["down_proj"], "target_modules": null}), plain);
        let full = json!(["model.layers.0.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_proj"]);
        agrees(&modules[..1], &json!({"target_parameters": full, "target_modules": []}), plain);
    }
    // A router next to the experts is a module with a single expert.
    let modules: [Module; 2] = [("mlp.experts", 4, 3, 8.0, 6, 10), ("mlp.router", 4, 1, 8.0, 6, 3)];
    agrees(&modules, &json!({"target_parameters": ["mlp.experts.down_proj", "mlp.router.weight"]}), plain);
}

/// Two parameters of one module with different ranks are identified by their ranks, because both have the
/// same number of experts. Parameters with equal ranks and different alphas cannot be identified.
#[test]
fn ranks_identify_parameters_or_interference_is_unknown() {
    let plain = |module: &Module| module.3 / module.1 as f64;
    let parameters = json!(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]);
    let modules: [Module; 2] =
        [("mlp.experts", 2, 4, 8.0, 6, 10), ("mlp.experts.base_layer", 4, 4, 8.0, 10, 6)];
    let pattern = json!({"down_proj": 2});
    agrees(&modules, &json!({"target_parameters": parameters, "rank_pattern": pattern}), plain);
    agrees(
        &modules,
        &json!({"target_parameters": parameters, "rank_pattern": {"experts.down_proj": 2}}),
        plain,
    );
    let with = json!({"target_parameters": parameters, "alpha_pattern": {"down_proj": 32}});
    let same: [Module; 2] = [("mlp.experts", 4, 4, 8.0, 6, 10), ("mlp.experts.base_layer", 4, 4, 8.0, 10, 6)];
    let (found, _) = checked(&same, &config(&with)).unwrap();
    assert_eq!((found.interference, found.targets.len()), (None, 0));
    assert!(
        found.warnings[0].contains("2 of 2 modules is not computed")
            && found.warnings[0].contains("target_parameters")
    );
}

#[test]
fn ranks_must_match_configuration() {
    let module = |rank: usize| -> [Module; 1] { [("mlp.experts", rank, 1, 8.0, 6, 10)] };
    for (rank, changes, expected) in [
        (16, json!({}), "found rank 16, but adapter_config.json says r = 4 for this module"),
        (16, json!({"target_parameters": ["mlp.router.weight"]}), "says r = 4 for this module"),
        (
            15,
            json!({"target_parameters": ["mlp.experts.down_proj"]}),
            "says r = 4 for this module, times the number of experts",
        ),
        (2, json!({"target_parameters": ["mlp.experts.down_proj"]}), "times the number of experts"),
        (
            16,
            json!({"target_parameters": ["mlp.experts.down_proj"], "rank_pattern": {"down_proj": 5}}),
            "says r = 5",
        ),
        (4, json!({"rank_pattern": {"experts": 8}}), "says r = 8 for this module"),
    ] {
        let text = checked(&module(rank), &config(&changes)).unwrap_err();
        assert!(text.contains(expected) && text.contains("mlp.experts.lora_A"), "{text}: {expected}");
    }
}

/// The output projection inside an attention module has the rank of the module.
#[test]
fn inner_projection_has_rank_of_outer_module() {
    let modules: [Module; 2] = [("attn", 2, 1, 8.0, 6, 18), ("attn.base_layer.out_proj", 2, 1, 8.0, 6, 6)];
    agrees(&modules, &json!({"rank_pattern": {"attn": 2}}), |module| module.3 / module.1 as f64);
}

#[test]
fn unsupported_expression_leaves_interference_unknown() {
    let modules: [Module; 1] = [("self_attn.q_proj", 4, 1, 8.0, 6, 8)];
    let (found, _) = checked(&modules, &config(&json!({"alpha_pattern": {"(?!k)_proj": 2}}))).unwrap();
    assert_eq!(found.interference, None);
    assert!(found.warnings[0].contains("(?!k)_proj"), "{:?}", found.warnings);
}

/// Without a configuration all alphas are assumed to be equal, which causes a warning if ranks differ.
#[test]
fn missing_configuration_scales_by_rank() {
    let modules: [Module; 2] =
        [("self_attn.q_proj", 2, 1, 1.0, 6, 8), ("self_attn.v_proj", 16, 1, 1.0, 6, 8)];
    let (bare, _) = checked(&modules, "").unwrap();
    let (told, _) =
        checked(&modules, &config(&json!({"rank_pattern": {"v_proj": 16, "q_proj": 2}}))).unwrap();
    assert!((bare.interference.unwrap() - told.interference.unwrap()).abs() < 1e-12);
    assert!(bare.warnings[0].contains("scaled by 1/r") && told.warnings.is_empty());
}

/// In up and down rounds of experts the interference is 0, because all clients have the same frozen factor.
#[test]
fn expert_rounds_have_no_interference() {
    let modules: [Module; 1] = [("mlp.experts", 4, 3, 8.0, 6, 10)];
    let base = random(&modules, 1);
    let all = [base.clone(), base.trained(RoundKind::Up, 2), base.trained(RoundKind::Up, 3)];
    let text = config(&json!({"target_parameters": ["mlp.experts.down_proj"]}));
    let folder = Folder::directories(&all, &[text.as_str(); 3]);
    let inputs = folder.directory_inputs().unwrap();
    assert_eq!(check(&inputs, &|_, _| true).unwrap().interference, Some(0.0));
    let done = fedspan_adapters::files::average(&inputs, folder.job(RoundKind::Up, 2), &|_, _| true).unwrap();
    assert_eq!((done.averaged, done.kept), (1, 1));
}
