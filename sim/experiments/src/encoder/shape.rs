//! Sizes of a BERT encoder, and their reader for `config.json`.

use std::path::Path;

use serde::Deserialize;

use super::EncoderError;
use super::error::read;

/// Name of the configuration file in a model directory.
const CONFIG_FILE: &str = "config.json";

/// Largest accepted `config.json`, in bytes.
const CONFIG_MAX: u64 = 1 << 20;

/// Largest accepted size. The product of three such sizes fits into 64 bits.
const SIZE_MAX: usize = 1 << 20;

/// Sizes of a BERT encoder (Devlin et al. 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Width of every layer, d.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; a divisor of the width.
    pub heads: usize,
    /// Width of the hidden layer in the feed-forward network.
    pub intermediate: usize,
    /// Largest number of tokens of a sentence.
    pub positions: usize,
    /// Number of token types; only type 0 is used.
    pub types: usize,
    /// Constant added to the variance in layer normalisations.
    pub epsilon: f32,
}

/// Content of `config.json`, as far as it is used.
#[derive(Deserialize)]
struct Config {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f32,
    hidden_act: String,
    #[serde(default = "default_position_embedding_type")]
    position_embedding_type: String,
}

fn default_position_embedding_type() -> String {
    "absolute".to_owned()
}

impl Shape {
    /// Reads the sizes from the `config.json` of a directory.
    ///
    /// # Errors
    /// [`EncoderError::File`] if the file cannot be read, a value is out of range, or the model is not a
    /// supported BERT encoder.
    pub fn read(directory: &Path) -> Result<Self, EncoderError> {
        let path = directory.join(CONFIG_FILE);
        let file_error = |fault: String| EncoderError::file(&path, fault);
        let bytes = read(&path, CONFIG_MAX)?;
        let config: Config = serde_json::from_slice(&bytes).map_err(|error| file_error(error.to_string()))?;
        for (field, found, allowed) in [
            ("model_type", &config.model_type, "bert"),
            ("hidden_act", &config.hidden_act, "gelu"),
            ("position_embedding_type", &config.position_embedding_type, "absolute"),
        ] {
            if found != allowed {
                return Err(file_error(format!("{field} is {found:?}, allowed: {allowed:?}")));
            }
        }
        for (field, size) in [
            ("vocab_size", config.vocab_size),
            ("hidden_size", config.hidden_size),
            ("num_hidden_layers", config.num_hidden_layers),
            ("num_attention_heads", config.num_attention_heads),
            ("intermediate_size", config.intermediate_size),
            ("max_position_embeddings", config.max_position_embeddings),
            ("type_vocab_size", config.type_vocab_size),
        ] {
            if !(1..=SIZE_MAX).contains(&size) {
                return Err(file_error(format!("{field} is {size}, allowed: 1 to {SIZE_MAX}")));
            }
        }
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        if !hidden.is_multiple_of(heads) {
            return Err(file_error(format!(
                "hidden_size {hidden} is no multiple of num_attention_heads {heads}"
            )));
        }
        let epsilon = config.layer_norm_eps;
        if !(epsilon > 0.0 && epsilon < 1.0) {
            return Err(file_error(format!("layer_norm_eps is {epsilon}, allowed: above 0, below 1")));
        }
        Ok(Self {
            vocabulary: config.vocab_size,
            hidden,
            layers: config.num_hidden_layers,
            heads,
            intermediate: config.intermediate_size,
            positions: config.max_position_embeddings,
            types: config.type_vocab_size,
            epsilon,
        })
    }

    /// Number of features of one attention head.
    #[must_use]
    pub fn head(&self) -> usize {
        self.hidden / self.heads
    }
}
