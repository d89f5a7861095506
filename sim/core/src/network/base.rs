//! The network that an adapter is put into: what another run has learnt, of which nothing is trained any more.

use std::path::Path;

use fedspan_engine::algorithm::network::NetworkShape;
use fedspan_protocol::frame::crc32c_f32;

use crate::data::{DataError, npz};

/// Its layers, each (inputs + 1) x outputs, the last row the biases.
#[derive(Clone, Debug, PartialEq)]
pub struct Base {
    /// The first, beside which the adapter stands.
    pub frozen: Vec<f32>,
    /// Those behind it, one after the other.
    pub behind: Vec<f32>,
}

impl Base {
    /// Reads `layer-0.npy` and so on, as runs of a dense network write them where all layers travel.
    ///
    /// # Errors
    /// [`DataError`] naming the file: it cannot be read, or is no layer of these sizes.
    pub fn read(directory: &str, shape: NetworkShape) -> Result<Self, DataError> {
        let factors = shape.layers();
        let Some(([(features, _), (_, width)], behind)) = factors.split_first_chunk() else {
            return Err(DataError::new(directory, "this network has no adapter".to_owned()));
        };
        let layer = |number: usize, rows: usize, cols: usize| {
            let path = Path::new(directory).join(format!("layer-{number}.npy")).display().to_string();
            let matrix = npz::read_matrix(&path, rows)?;
            if matrix.ncols() != cols {
                let message = format!("{} columns, the model's layer has {cols}", matrix.ncols());
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
        let behind = (1..).zip(behind).map(|(number, (rows, cols))| layer(number, *rows, *cols));
        Ok(Self { frozen, behind: behind.collect::<Result<Vec<_>, _>>()?.concat() })
    }

    /// What devices say that they have: CRC-32C of the first layer.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        crc32c_f32(&self.frozen)
    }
}
