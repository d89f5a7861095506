//! The frozen weights of an encoder.

use std::path::Path;

use super::tensors::Tensors;
use super::{EncoderError, Shape};

/// Its name in a directory of weights.
const MODEL: &str = "model.safetensors";

/// Weights and bias from `i` inputs to `o` outputs, as the dense kernels have them: (i + 1) x o, the last row the bias.
#[derive(Clone, Debug)]
pub struct Dense {
    /// The values.
    pub layer: Vec<f32>,
    /// o.
    pub outputs: usize,
}

/// A normalisation over features: what it multiplies with, what it adds.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Of each feature.
    pub weight: Vec<f32>,
    /// Of each feature.
    pub bias: Vec<f32>,
}

/// One layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// What is looked for.
    pub query: Dense,
    /// Where it is found.
    pub key: Dense,
    /// What is there.
    pub value: Dense,
    /// Of all heads together, before the residual is added.
    pub attended: Dense,
    /// After it is.
    pub attended_norm: Norm,
    /// To the wide part.
    pub wide: Dense,
    /// And back, before the residual is added.
    pub narrow: Dense,
    /// After it is.
    pub norm: Norm,
}

/// Embeddings and layers. Nothing of it changes in training.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its sizes.
    pub shape: Shape,
    /// vocabulary x d.
    pub words: Vec<f32>,
    /// positions x d; the vector of the first kind of tokens is in it.
    pub positions: Vec<f32>,
    /// Of the embeddings.
    pub norm: Norm,
    /// From the first.
    pub layers: Vec<Layer>,
}

impl Model {
    /// Reads `config.json` and `model.safetensors` of a directory. Names may begin with `bert.`; what else is in the file is
    /// not looked at.
    ///
    /// # Errors
    /// Which file or tensor is wrong, and how.
    pub fn read(directory: &Path) -> Result<Self, EncoderError> {
        let shape = Shape::read(directory)?;
        let file = Tensors::read(&directory.join(MODEL))?;
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
            words: from.get(words, &[shape.vocabulary, d])?,
            positions,
            norm: from.norm("embeddings.LayerNorm", d)?,
            layers: (0..shape.layers)
                .map(|number| Layer::read(&from, number, &shape))
                .collect::<Result<_, _>>()?,
            shape,
        })
    }
}

impl Layer {
    fn read(from: &Reader<'_>, number: usize, shape: &Shape) -> Result<Self, EncoderError> {
        let from = Reader { file: from.file, prefix: format!("{}encoder.layer.{number}.", from.prefix) };
        let (d, wide) = (shape.hidden, shape.intermediate);
        Ok(Self {
            query: from.dense("attention.self.query", d, d)?,
            key: from.dense("attention.self.key", d, d)?,
            value: from.dense("attention.self.value", d, d)?,
            attended: from.dense("attention.output.dense", d, d)?,
            attended_norm: from.norm("attention.output.LayerNorm", d)?,
            wide: from.dense("intermediate.dense", d, wide)?,
            narrow: from.dense("output.dense", wide, d)?,
            norm: from.norm("output.LayerNorm", d)?,
        })
    }
}

/// Tensors whose names begin alike.
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

    /// Files have outputs x inputs, and the bias apart.
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
