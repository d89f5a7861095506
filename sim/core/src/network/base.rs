//! Base network of an adapter: reads the layers of a network that was trained in another run. The first layer
//! is frozen.

use std::path::Path;

use fedspan_engine::algorithm::network::NetworkShape;
use fedspan_protocol::frame::crc32c_f32;

use crate::data::{DataError, npz};

/// Layers of the base network, each (inputs + 1) x outputs, with the biases in the last row.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseNetwork {
    /// First layer, to which the adapter is added.
    pub frozen: Vec<f32>,
    /// All later layers, concatenated.
    pub later_layers: Vec<f32>,
}

impl BaseNetwork {
    /// Reads `layer-0.npy`, `layer-1.npy`, ..., which are written by runs of a dense network that shares all
    /// layers.
    ///
    /// # Errors
    /// [`DataError`] naming the file if the file cannot be read or does not contain a layer of these sizes.
    pub fn read(directory: &str, shape: NetworkShape) -> Result<Self, DataError> {
        let factors = shape.layers();
        let Some(([(features, _), (_, width)], later_layers)) = factors.split_first_chunk() else {
            return Err(DataError::new(directory, "this network has no adapter".to_owned()));
        };
        let layer = |number: usize, rows: usize, cols: usize| {
            let path = Path::new(directory).join(format!("layer-{number}.npy")).display().to_string();
            let matrix = npz::read_matrix(&path, rows)?;
            if matrix.ncols() != cols {
                let message = format!(
                    "found {} columns, allowed: {cols}, the width of the model's layer",
                    matrix.ncols()
                );
                return Err(DataError::new(&path, message));
            }
            #[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
            let values: Vec<f32> = matrix.transpose().iter().map(|value| *value as f32).collect();
            match values.iter().position(|value| !value.is_finite()) {
                Some(index) => Err(DataError::new(&path, format!("value {index} does not fit an f32"))),
                None => Ok(values),
            }
        };
        let frozen = layer(0, features + 1, *width)?;
        let later_layers = (1..).zip(later_layers).map(|(number, (rows, cols))| layer(number, *rows, *cols));
        Ok(Self { frozen, later_layers: later_layers.collect::<Result<Vec<_>, _>>()?.concat() })
    }

    /// CRC-32C of the first layer, which devices report in their hello.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        crc32c_f32(&self.frozen)
    }
}
