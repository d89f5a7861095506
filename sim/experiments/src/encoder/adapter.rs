//! Trained parameters of the encoder (LoRA; Hu et al. 2021): low-rank factors of the query and value
//! projections of every layer, and a linear classification head.
//!
//! Tensors have the names, shapes and file layout of Hugging Face's PEFT. `fedspan-adapters` can therefore
//! average them, and PEFT can load the result.

use std::ops::Range;
use std::path::Path;

use fedspan_adapters::files::Role;
use fedspan_engine::random::{Purpose, stream};
use serde_json::json;

use super::tensors::{self, Tensors};
use super::{EncoderError, Shape};
use fedspan_sim_core::report::files::write_json;

/// Number of classes of a sentence: negative and positive.
pub const CLASSES: usize = 2;

/// Ratio of `lora_alpha` to the rank.
const ALPHA_PER_RANK: usize = 2;

/// Projection of a layer that has low-rank factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Query projection.
    Query,
    /// Value projection.
    Value,
}

/// One tensor of the adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the tensor in the file.
    pub name: String,
    /// Dimensions, row-major.
    pub shape: Vec<usize>,
    /// Range of the tensor in [`Adapter::values`].
    pub range: Range<usize>,
    /// Role of the tensor in the averaging of adapters.
    pub role: Role,
}

/// Low-rank factors of all layers, and the classification head.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Rank of the factors, r.
    pub rank: usize,
    /// Width of the encoder, d.
    pub hidden: usize,
    /// Values of all tensors, concatenated. For each layer: down factor (r x d) and up factor (d x r) of the
    /// query, then of the value. After the layers: weight (2 x d) and bias of the head.
    pub values: Vec<f32>,
    /// Descriptions of the tensors, in the order of `values`.
    pub parts: Vec<Part>,
}

impl Adapter {
    /// Creates an adapter of zeros.
    #[must_use]
    pub fn zeros(shape: &Shape, rank: usize) -> Self {
        let d = shape.hidden;
        let mut parts: Vec<Part> = Vec::new();
        let mut add = |name: String, shape: Vec<usize>, role| {
            let begin = parts.last().map_or(0, |part| part.range.end);
            let length: usize = shape.iter().product();
            parts.push(Part { name, shape, range: begin..begin + length, role });
        };
        for layer in 0..shape.layers {
            for target in ["query", "value"] {
                let module = format!("base_model.model.bert.encoder.layer.{layer}.attention.self.{target}");
                add(format!("{module}.lora_A.weight"), vec![rank, d], Role::Down);
                add(format!("{module}.lora_B.weight"), vec![d, rank], Role::Up);
            }
        }
        add("base_model.model.classifier.weight".to_owned(), vec![CLASSES, d], Role::Saved);
        add("base_model.model.classifier.bias".to_owned(), vec![CLASSES], Role::Saved);
        let length = parts.last().map_or(0, |part| part.range.end);
        Self { rank, hidden: d, values: vec![0.0; length], parts }
    }

    /// Creates the initial adapter as PEFT and PyTorch do: down factors and head are drawn uniformly from
    /// -1 / sqrt(d) to 1 / sqrt(d), and up factors are zero.
    #[must_use]
    pub fn start(shape: &Shape, rank: usize, seed: u64) -> Self {
        let mut adapter = Self::zeros(shape, rank);
        let mut random = stream(seed, Purpose::Network, 0);
        let limit = 1.0 / (shape.hidden as f64).sqrt();
        for part in adapter.parts.iter().filter(|part| part.role != Role::Up) {
            for value in &mut adapter.values[part.range.clone()] {
                #[allow(clippy::cast_possible_truncation, reason = "rounded")]
                let random_value = ((2.0 * random.uniform() - 1.0) * limit) as f32;
                *value = random_value;
            }
        }
        adapter
    }

    /// Scale of the product `B A` of up and down factor: alpha / r.
    #[must_use]
    pub fn scale(&self) -> f32 {
        ALPHA_PER_RANK as f32
    }

    /// Ranges in `values` of the down factor (r x d) and the up factor (d x r) of a projection.
    #[must_use]
    pub fn factors(&self, layer: usize, target: Target) -> [Range<usize>; 2] {
        let size = self.rank * self.hidden;
        let begin = (4 * layer + if target == Target::Query { 0 } else { 2 }) * size;
        [begin..begin + size, begin + size..begin + 2 * size]
    }

    /// Ranges in `values` of the head's weight (2 x d) and bias.
    #[must_use]
    pub fn head(&self) -> [Range<usize>; 2] {
        let end = self.values.len();
        let bias_start = end - CLASSES;
        [bias_start - CLASSES * self.hidden..bias_start, bias_start..end]
    }

    /// Writes the adapter as a safetensors file.
    ///
    /// # Errors
    /// [`EncoderError::File`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), EncoderError> {
        let tensors: Vec<_> = self
            .parts
            .iter()
            .map(|part| (part.name.clone(), part.shape.clone(), &self.values[part.range.clone()]))
            .collect();
        tensors::write(path, &tensors)
    }

    /// Writes the adapter as a directory in PEFT's layout.
    ///
    /// # Errors
    /// [`EncoderError::Write`] or [`EncoderError::File`] if a file cannot be written.
    pub fn write_directory(&self, directory: &Path) -> Result<(), EncoderError> {
        fedspan_sim_core::report::files::make_directory(directory)?;
        write_json(&directory.join("adapter_config.json"), &self.config())?;
        self.write(&directory.join("adapter_model.safetensors"))
    }

    /// Content of `adapter_config.json`.
    fn config(&self) -> serde_json::Value {
        json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": null,
            "r": self.rank,
            "lora_alpha": ALPHA_PER_RANK * self.rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "target_modules": ["query", "value"],
            "modules_to_save": ["classifier"],
        })
    }

    /// Reads an adapter for an encoder of sizes `shape` from a safetensors file.
    ///
    /// # Errors
    /// [`EncoderError::File`] if a tensor is missing or has another shape.
    pub fn read(path: &Path, shape: &Shape, rank: usize) -> Result<Self, EncoderError> {
        let file = Tensors::read(path)?;
        let mut adapter = Self::zeros(shape, rank);
        for part in &adapter.parts {
            adapter.values[part.range.clone()].copy_from_slice(&file.get(&part.name, &part.shape)?);
        }
        Ok(adapter)
    }
}
