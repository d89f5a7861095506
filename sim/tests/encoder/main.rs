//! Tests of the encoder: comparison with results of PyTorch and PEFT, which `tests/scripts/encoder.py tiny`
//! writes, and federated training of a tiny model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../common/mod.rs"]
mod common;
mod federated;

use std::path::{Path, PathBuf};

use fedspan_experiments::encoder::{Adam, Adapter, Batch, Model, Shape, Tensors, Tokenizer};
use serde_json::Value;

/// Directory of the tiny model and of the expected results.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoder/tiny")
}

/// Expected results, written by PyTorch and PEFT.
fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(tiny().join("expected.json")).unwrap()).unwrap()
}

fn tokenizer() -> Tokenizer {
    let shape = Shape::read(&tiny()).unwrap();
    Tokenizer::read(&tiny(), shape.vocabulary).unwrap()
}

/// Adapter of the tiny model, written by PEFT.
fn adapter(shape: &Shape) -> Adapter {
    Adapter::read(&tiny().join("adapter/adapter_model.safetensors"), shape, 4).unwrap()
}

/// Batch of the texts and labels for which there are expected results.
fn batch() -> Batch {
    let (expected, tokenizer) = (expected(), tokenizer());
    let texts = expected["texts"].as_array().unwrap().iter();
    let tokens: Vec<Vec<u32>> = texts.map(|text| tokenizer.tokens(text.as_str().unwrap(), 24)).collect();
    let labels = expected["labels"].as_array().unwrap().iter().map(|label| label.as_u64().unwrap() as u8);
    Batch::from_sentences(tokens.iter().map(Vec::as_slice).zip(labels))
}

#[test]
fn tokens_equal_those_of_hugging_face() {
    let tokenizer = tokenizer();
    for pair in expected()["tokens"].as_array().unwrap() {
        let text = pair[0].as_str().unwrap();
        let expected_tokens: Vec<u32> = serde_json::from_value(pair[1].clone()).unwrap();
        assert_eq!(tokenizer.tokens(text, 24), expected_tokens, "{text:?}");
    }
}

#[test]
fn logits_loss_and_gradients_equal_those_of_torch() {
    let model = Model::read(&tiny()).unwrap();
    let (adapter, batch, expected) = (adapter(&model.shape), batch(), expected());
    let expected_logits: Vec<Vec<f64>> = serde_json::from_value(expected["logits"].clone()).unwrap();
    for (computed, expected_logits) in
        model.logits(&adapter, &batch).iter().zip(expected_logits.iter().flatten())
    {
        assert!((f64::from(*computed) - expected_logits).abs() < 2e-6, "{computed} {expected_logits}");
    }
    let mut gradient = vec![0.0; adapter.values.len()];
    let loss = model.gradient(&adapter, &batch, &mut gradient);
    assert!((loss - expected["losses"][0].as_f64().unwrap()).abs() < 1e-6, "{loss}");
    let torch = Tensors::read(&tiny().join("gradients.safetensors")).unwrap();
    assert_eq!(torch.names().len(), adapter.parts.len());
    for part in &adapter.parts {
        let expected_gradient = torch.get(&part.name, &part.shape).unwrap();
        let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let computed = &gradient[part.range.clone()];
        let difference: Vec<f32> = computed
            .iter()
            .zip(&expected_gradient)
            .map(|(computed, expected_gradient)| computed - expected_gradient)
            .collect();
        assert!(
            norm(&difference) < 1e-5 * norm(&expected_gradient),
            "{}: {} of {}",
            part.name,
            norm(&difference),
            norm(&expected_gradient)
        );
    }
}

#[test]
fn adamw_steps_equal_those_of_torch() {
    let model = Model::read(&tiny()).unwrap();
    let (mut adapter, batch) = (adapter(&model.shape), batch());
    let mut gradient = vec![0.0; adapter.values.len()];
    let mut adam = Adam::new(gradient.len(), 1e-2, 0.01);
    for wanted in expected()["losses"].as_array().unwrap() {
        let loss = model.gradient(&adapter, &batch, &mut gradient);
        assert!((loss - wanted.as_f64().unwrap()).abs() < 2e-5, "{loss} {wanted}");
        adam.step(&mut adapter.values, &gradient, std::slice::from_ref(&(0..gradient.len())));
    }
}
