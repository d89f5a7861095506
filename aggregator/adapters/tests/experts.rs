//! Tests of ranks, scales and experts of modules: the interference is compared with that of dense products.

use std::collections::BTreeMap;

use fedspan_adapters::files::{CheckReport, Dtype, RoundKind, check};
use serde_json::{Value, json};

use crate::common::{Adapter, Folder};

const LAYER: &str = "base_model.model.model.layers.0.";

/// Module of an adapter: name in files, rank of an expert, number of experts, alpha, d_in, d_out.
type Module = (&'static str, usize, usize, f64, usize, usize);

/// Creates a random adapter with these modules.
fn random_adapter(modules: &[Module], seed: u64) -> Adapter {
    let mut adapter = Adapter { dtype: Dtype::F32, tensors: BTreeMap::new() };
    for (index, (name, rank, experts, _, d_in, d_out)) in modules.iter().enumerate() {
        let factor = |letter: &str| format!("{LAYER}{name}.lora_{letter}.weight");
        let seed = seed * 100 + index as u64 * 2;
        adapter.add_random_tensor(&factor("A"), &[rank * experts, *d_in], seed);
        adapter.add_random_tensor(&factor("B"), &[*d_out, rank * experts], seed + 1);
    }
    adapter
}

/// Text of a configuration with some keys changed.
fn config_text(changes: &Value) -> String {
    let mut config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string()
}

/// Compares three random clients with a base, all with the same configuration. Returns the report and the
/// clients.
fn check_random_clients(modules: &[Module], config: &str) -> Result<(CheckReport, Vec<Adapter>), String> {
    let adapters: Vec<Adapter> = (0..4).map(|seed| random_adapter(modules, seed)).collect();
    let folder = Folder::with_directories(&adapters, &[config; 4]);
    let inputs = folder.open_directories().map_err(|error| error.to_string())?;
    let report = check(&inputs, &|_, _| true).unwrap();
    Ok((report, adapters[1..].to_vec()))
}

/// Squared norms of two matrices for each expert, computed from dense products: the mean of products, and the
/// difference between the mean of products and the product of means.
fn dense_squares((name, rank, experts, _, d_in, d_out): Module, clients: &[Adapter]) -> Vec<[f64; 2]> {
    let factor = |client: &Adapter, letter: &str| -> Vec<f64> {
        let (_, values) = &client.tensors[&format!("{LAYER}{name}.lora_{letter}.weight")];
        values.iter().copied().map(f64::from).collect()
    };
    let count = clients.len() as f64;
    let mean = |vectors: Vec<Vec<f64>>| -> Vec<f64> {
        (0..vectors[0].len())
            .map(|index| vectors.iter().map(|vector| vector[index]).sum::<f64>() / count)
            .collect()
    };
    (0..experts)
        .map(|expert| {
            // The product of expert e in PEFT is B.reshape(out, r, E)[:, :, e] A.reshape(E, r, in)[e].
            let product = |a: &[f64], b: &[f64]| -> Vec<f64> {
                let term = |o: usize, i: usize, j: usize| {
                    b[(o * rank + j) * experts + expert] * a[(expert * rank + j) * d_in + i]
                };
                (0..d_out * d_in)
                    .map(|index| (0..rank).map(|j| term(index / d_in, index % d_in, j)).sum())
                    .collect()
            };
            let products =
                clients.iter().map(|client| product(&factor(client, "A"), &factor(client, "B"))).collect();
            let [a, b] =
                ["A", "B"].map(|letter| mean(clients.iter().map(|client| factor(client, letter)).collect()));
            let (mean_of_products, product_of_means) = (mean(products), product(&a, &b));
            let squared_error = mean_of_products
                .iter()
                .zip(&product_of_means)
                .map(|(exact, averaged)| (exact - averaged).powi(2))
                .sum();
            [mean_of_products.iter().map(|value| value * value).sum(), squared_error]
        })
        .collect()
}

/// Asserts that the interference of every module, of every expert and of all modules equals that of dense
/// products with these scales.
fn assert_matches_dense(modules: &[Module], changes: &Value, scale: impl Fn(&Module) -> f64) {
    let (report, clients) = check_random_clients(modules, &config_text(changes)).unwrap();
    assert_eq!((report.targets.len(), &report.warnings), (modules.len(), &Vec::new()));
    let assert_interference = |interference: f64, [squared_norm, squared_error]: [f64; 2]| {
        let expected = f64::sqrt(squared_error / squared_norm);
        assert!((interference - expected).abs() < 1e-10, "{interference} {expected} {changes}");
    };
    let mut total = [0.0; 2];
    for module in modules {
        let target =
            report.targets.iter().find(|target| target.module == format!("{LAYER}{}", module.0)).unwrap();
        let squares = dense_squares(*module, &clients);
        assert_eq!((target.rank as usize, target.experts as usize), (module.1, module.2), "{target:?}");
        assert!((target.scale / scale(module) - 1.0).abs() < 1e-12, "{target:?} {}", scale(module));
        let sum = squares.iter().fold([0.0; 2], |sum, expert| [sum[0] + expert[0], sum[1] + expert[1]]);
        assert_interference(target.interference, sum);
        if module.2 > 1 {
            assert_eq!(target.expert_interference.len(), module.2);
            target
                .expert_interference
                .iter()
                .zip(squares)
                .for_each(|(interference, squares)| assert_interference(*interference, squares));
        }
        let weight = scale(module).powi(2);
        total = [total[0] + weight * sum[0], total[1] + weight * sum[1]];
    }
    assert_interference(report.interference.unwrap(), total);
}

#[test]
fn interference_weighs_modules_by_scale() {
    let scale_by_rank = |module: &Module| module.3 / module.1 as f64;
    let scale_by_sqrt_rank = |module: &Module| module.3 / (module.1 as f64).sqrt();
    let q_and_v_modules = |q: (usize, f64), v: (usize, f64)| -> [Module; 2] {
        [("self_attn.q_proj", q.0, 1, q.1, 6, 8), ("self_attn.v_proj", v.0, 1, v.1, 6, 8)]
    };
    for (modules, changes) in [
        (q_and_v_modules((4, 8.0), (4, 8.0)), json!({})),
        (q_and_v_modules((4, 8.0), (16, 8.0)), json!({"rank_pattern": {"v_proj": 16}})),
        (q_and_v_modules((4, 8.0), (16, 8.0)), json!({"rank_pattern": {"v_proj": 16.0}})),
        (
            q_and_v_modules((2, 8.0), (16, 8.0)),
            json!({"rank_pattern": {r".*\.v_proj": 16, "self_attn.q_proj": 2}}),
        ),
        (
            q_and_v_modules((2, 8.0), (16, 8.0)),
            json!({"rank_pattern": {"model.layers.0.self_attn.v_proj": 16}, "r": 2}),
        ),
        (
            q_and_v_modules((4, 8.0), (1, 8.0)),
            json!({"rank_pattern": {"^model.layers.0.self_attn.v_proj": 1, "layers.1.self_attn.q_proj": 9}}),
        ),
        (q_and_v_modules((4, 64.0), (4, 8.0)), json!({"alpha_pattern": {"q_proj": 64}})),
        (
            q_and_v_modules((4, 0.5), (8, 3.0)),
            json!({"alpha_pattern": {"q_proj": 0.5, "v_proj": 3}, "rank_pattern": {"(k|v)_proj": 8}}),
        ),
        (q_and_v_modules((8, 8.0), (8, 8.0)), json!({"r": 8, "lora_alpha": null})),
        (
            q_and_v_modules((8, 1e100), (2, 1e100)),
            json!({"r": 8, "lora_alpha": 1e100, "rank_pattern": {"v_proj": 2}}),
        ),
    ] {
        assert_matches_dense(&modules, &changes, scale_by_rank);
        let mut stable_changes = changes.clone();
        stable_changes["use_rslora"] = json!(true);
        assert_matches_dense(&modules, &stable_changes, scale_by_sqrt_rank);
    }
}

#[test]
fn experts_have_separate_interference() {
    let scale_by_rank = |module: &Module| module.3 / module.1 as f64;
    let parameters = json!(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]);
    for experts in [1, 2, 4, 7] {
        let modules: [Module; 3] = [
            ("mlp.experts", 4, experts, 8.0, 6, 10),
            ("mlp.experts.base_layer", 4, experts, 8.0, 10, 6),
            ("self_attn.q_proj", 4, 1, 8.0, 6, 8),
        ];
        assert_matches_dense(&modules, &json!({"target_parameters": parameters}), scale_by_rank);
        assert_matches_dense(
            &modules,
            &json!({"target_parameters": ["mlp.experts.down_proj", "gate_up_proj"]}),
            scale_by_rank,
        );
        assert_matches_dense(
            &modules[..1],
            &json!({"target_parameters": ["down_proj"], "target_modules": null}),
            scale_by_rank,
        );
        let full_names =
            json!(["model.layers.0.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_proj"]);
        assert_matches_dense(
            &modules[..1],
            &json!({"target_parameters": full_names, "target_modules": []}),
            scale_by_rank,
        );
    }
    // A router next to the experts is a module with a single expert.
    let modules: [Module; 2] = [("mlp.experts", 4, 3, 8.0, 6, 10), ("mlp.router", 4, 1, 8.0, 6, 3)];
    assert_matches_dense(
        &modules,
        &json!({"target_parameters": ["mlp.experts.down_proj", "mlp.router.weight"]}),
        scale_by_rank,
    );
}

/// Two parameters of one module with different ranks are identified by their ranks, because both have the
/// same number of experts. Parameters with equal ranks and different alphas cannot be identified.
#[test]
fn ranks_identify_parameters_or_interference_is_unknown() {
    let scale_by_rank = |module: &Module| module.3 / module.1 as f64;
    let parameters = json!(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]);
    let modules: [Module; 2] =
        [("mlp.experts", 2, 4, 8.0, 6, 10), ("mlp.experts.base_layer", 4, 4, 8.0, 10, 6)];
    let pattern = json!({"down_proj": 2});
    assert_matches_dense(
        &modules,
        &json!({"target_parameters": parameters, "rank_pattern": pattern}),
        scale_by_rank,
    );
    assert_matches_dense(
        &modules,
        &json!({"target_parameters": parameters, "rank_pattern": {"experts.down_proj": 2}}),
        scale_by_rank,
    );
    let ambiguous_changes = json!({"target_parameters": parameters, "alpha_pattern": {"down_proj": 32}});
    let equal_ranks: [Module; 2] =
        [("mlp.experts", 4, 4, 8.0, 6, 10), ("mlp.experts.base_layer", 4, 4, 8.0, 10, 6)];
    let (report, _) = check_random_clients(&equal_ranks, &config_text(&ambiguous_changes)).unwrap();
    assert_eq!((report.interference, report.targets.len()), (None, 0));
    assert!(
        report.warnings[0].contains("2 of 2 modules is not computed")
            && report.warnings[0].contains("target_parameters")
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
        let message = check_random_clients(&module(rank), &config_text(&changes)).unwrap_err();
        assert!(
            message.contains(expected) && message.contains("mlp.experts.lora_A"),
            "{message}: {expected}"
        );
    }
}

/// The output projection inside an attention module has the rank of the module.
#[test]
fn inner_projection_has_rank_of_outer_module() {
    let modules: [Module; 2] = [("attn", 2, 1, 8.0, 6, 18), ("attn.base_layer.out_proj", 2, 1, 8.0, 6, 6)];
    assert_matches_dense(&modules, &json!({"rank_pattern": {"attn": 2}}), |module| {
        module.3 / module.1 as f64
    });
}

#[test]
fn unsupported_expression_leaves_interference_unknown() {
    let modules: [Module; 1] = [("self_attn.q_proj", 4, 1, 8.0, 6, 8)];
    let (report, _) =
        check_random_clients(&modules, &config_text(&json!({"alpha_pattern": {"(?!k)_proj": 2}}))).unwrap();
    assert_eq!(report.interference, None);
    assert!(report.warnings[0].contains("(?!k)_proj"), "{:?}", report.warnings);
}

/// Without a configuration all alphas are assumed to be equal, which causes a warning if ranks differ.
#[test]
fn missing_configuration_scales_by_rank() {
    let modules: [Module; 2] =
        [("self_attn.q_proj", 2, 1, 1.0, 6, 8), ("self_attn.v_proj", 16, 1, 1.0, 6, 8)];
    let (without_config, _) = check_random_clients(&modules, "").unwrap();
    let (with_config, _) =
        check_random_clients(&modules, &config_text(&json!({"rank_pattern": {"v_proj": 16, "q_proj": 2}})))
            .unwrap();
    assert!((without_config.interference.unwrap() - with_config.interference.unwrap()).abs() < 1e-12);
    assert!(without_config.warnings[0].contains("scaled by 1/r") && with_config.warnings.is_empty());
}

/// In up and down rounds of experts the interference is 0, because all clients have the same frozen factor.
#[test]
fn expert_rounds_have_no_interference() {
    let modules: [Module; 1] = [("mlp.experts", 4, 3, 8.0, 6, 10)];
    let base = random_adapter(&modules, 1);
    let adapters = [base.clone(), base.trained(RoundKind::Up, 2), base.trained(RoundKind::Up, 3)];
    let config_text = config_text(&json!({"target_parameters": ["mlp.experts.down_proj"]}));
    let folder = Folder::with_directories(&adapters, &[config_text.as_str(); 3]);
    let inputs = folder.open_directories().unwrap();
    assert_eq!(check(&inputs, &|_, _| true).unwrap().interference, Some(0.0));
    let report =
        fedspan_adapters::files::average(&inputs, folder.average_job(RoundKind::Up, 2), &|_, _| true)
            .unwrap();
    assert_eq!((report.averaged, report.kept), (1, 1));
}
