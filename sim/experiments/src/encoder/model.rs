//! Frozen weights of a BERT encoder, and their reader.

use std::path::Path;

use super::tensors::Tensors;
use super::{EncoderError, Shape};

/// Name of the file of weights in a model directory.
const MODEL_FILE: &str = "model.safetensors";

/// Linear layer from i inputs to o outputs, in the layout of the dense kernels.
#[derive(Clone, Debug)]
pub struct Dense {
    /// Weights and bias, (i + 1) x o, row-major; the last row is the bias.
    pub layer: Vec<f32>,
    /// Number of outputs, o.
    pub outputs: usize,
}

/// Parameters of a layer normalisation over d features.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Factor of each feature.
    pub weight: Vec<f32>,
    /// Offset of each feature.
    pub bias: Vec<f32>,
}

/// Weights of one transformer layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Query projection, d x d.
    pub query: Dense,
    /// Key projection, d x d.
    pub key: Dense,
    /// Value projection, d x d.
    pub value: Dense,
    /// Output projection of the attention heads, d x d; the residual is added afterwards.
    pub attention_output: Dense,
    /// Layer normalisation after the attention residual.
    pub attention_norm: Norm,
    /// Feed-forward up-projection, from d to the intermediate width.
    pub feed_up: Dense,
    /// Feed-forward down-projection, back to d; the residual is added afterwards.
    pub feed_down: Dense,
    /// Layer normalisation after the feed-forward residual.
    pub output_norm: Norm,
}

/// Embeddings and layers of an encoder, which training does not change.
#[derive(Clone, Debug)]
pub struct Model {
    /// Sizes of the encoder.
    pub shape: Shape,
    /// Token embeddings, vocabulary x d.
    pub token_embeddings: Vec<f32>,
    /// Position embeddings, positions x d; the embedding of token type 0 is already added to each row.
    pub position_embeddings: Vec<f32>,
    /// Layer normalisation of the embeddings.
    pub norm: Norm,
    /// Transformer layers in the order of the forward pass.
    pub layers: Vec<Layer>,
}

impl Model {
    /// Reads `config.json` and `model.safetensors` of a directory. Tensor names may have the prefix `bert.`.
    /// Tensors that the encoder does not use are ignored.
    ///
    /// # Errors
    /// [`EncoderError::File`] with the file or tensor that is missing or malformed.
    pub fn read(directory: &Path) -> Result<Self, EncoderError> {
        let shape = Shape::read(directory)?;
        let file = Tensors::read(&directory.join(MODEL_FILE))?;
        let words = "embeddings.word_embeddings.weight";
        let prefix = match file.has(&format!("bert.{words}")) {
            true => "bert.",
            false => "",
        };
        let from = Reader { file: &file, prefix: prefix.to_owned() };
        let d = shape.hidden;
        let mut positions = from.get("embeddings.position_embeddings.weight", &[shape.positions, d])?;
        let kinds = from.get("embeddings.token_type_embeddings.weight", &[shape.types, d])?;
        for position in positions.chunks_exact_mut(d) {
            position.iter_mut().zip(&kinds).for_each(|(value, kind)| *value += kind);
        }
        Ok(Self {
            token_embeddings: from.get(words, &[shape.vocabulary, d])?,
            position_embeddings: positions,
            norm: from.norm("embeddings.LayerNorm", d)?,
            layers: (0..shape.layers)
                .map(|number| Layer::read(&from, number, &shape))
                .collect::<Result<_, _>>()?,
            shape,
        })
    }
}

impl Layer {
    /// Reads the weights of layer `number`.
    fn read(from: &Reader<'_>, number: usize, shape: &Shape) -> Result<Self, EncoderError> {
        let from = Reader { file: from.file, prefix: format!("{}encoder.layer.{number}.", from.prefix) };
        let (d, intermediate) = (shape.hidden, shape.intermediate);
        Ok(Self {
            query: from.dense("attention.self.query", d, d)?,
            key: from.dense("attention.self.key", d, d)?,
            value: from.dense("attention.self.value", d, d)?,
            attention_output: from.dense("attention.output.dense", d, d)?,
            attention_norm: from.norm("attention.output.LayerNorm", d)?,
            feed_up: from.dense("intermediate.dense", d, intermediate)?,
            feed_down: from.dense("output.dense", intermediate, d)?,
            output_norm: from.norm("output.LayerNorm", d)?,
        })
    }
}

/// Reader of tensors whose names share a prefix.
struct Reader<'a> {
    file: &'a Tensors,
    prefix: String,
}

impl Reader<'_> {
    fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EncoderError> {
        self.file.get(&format!("{}{name}", self.prefix), shape)
    }

    fn norm(&self, name: &str, d: usize) -> Result<Norm, EncoderError> {
        Ok(Norm {
            weight: self.get(&format!("{name}.weight"), &[d])?,
            bias: self.get(&format!("{name}.bias"), &[d])?,
        })
    }

    /// Reads a linear layer. In the file the weights are outputs x inputs, and the bias is a separate tensor.
    fn dense(&self, name: &str, inputs: usize, outputs: usize) -> Result<Dense, EncoderError> {
        let weight = self.get(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.get(&format!("{name}.bias"), &[outputs])?;
        let mut layer = Vec::with_capacity((inputs + 1) * outputs);
        for input in 0..inputs {
            layer.extend(weight.chunks_exact(inputs).map(|row| row[input]));
        }
        layer.extend(bias);
        Ok(Dense { layer, outputs })
    }
}
