//! Reader and writer of safetensors files. Tensors are read by name as f32.

use std::path::{Path, PathBuf};

use fedspan_adapters::files::Dtype as AdapterDtype;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use super::EncoderError;
use super::error::read;

/// Largest accepted file, in bytes; a file is read completely into memory.
const FILE_MAX: u64 = 4 << 30;

/// Content of a safetensors file.
#[derive(Debug)]
pub struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Tensors {
    /// Reads a file and checks its header.
    ///
    /// # Errors
    /// [`EncoderError::File`] if the file cannot be read or is not a safetensors file.
    pub fn read(path: &Path) -> Result<Self, EncoderError> {
        let bytes = read(path, FILE_MAX)?;
        SafeTensors::deserialize(&bytes)
            .map_err(|error| EncoderError::file(path, format!("not a whole safetensors file: {error}")))?;
        Ok(Self { path: path.to_owned(), bytes })
    }

    /// True if the file has a tensor with this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.view(name).is_some()
    }

    /// Names of all tensors, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = SafeTensors::deserialize(&self.bytes)
            .map(|file| file.names().into_iter().map(str::to_owned).collect())
            .unwrap_or_default();
        names.sort();
        names
    }

    fn view(&self, name: &str) -> Option<TensorView<'_>> {
        SafeTensors::deserialize(&self.bytes).ok()?.tensor(name).ok()
    }

    /// Values of the tensor `name`, which must have the given shape and contain only finite values.
    ///
    /// # Errors
    /// [`EncoderError::File`] if the tensor is missing, has another shape or type, or contains a value that
    /// is not finite.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, EncoderError> {
        let tensor_error = |fault: String| EncoderError::file(&self.path, format!("tensor {name}: {fault}"));
        let view = self.view(name).ok_or_else(|| tensor_error("not there".to_owned()))?;
        let kind = match view.dtype() {
            Dtype::F32 => AdapterDtype::F32,
            Dtype::F16 => AdapterDtype::F16,
            Dtype::BF16 => AdapterDtype::Bf16,
            other => return Err(tensor_error(format!("type {other:?}, allowed: F32, F16, BF16"))),
        };
        if view.shape() != shape {
            return Err(tensor_error(format!("shape {:?}, needed: {shape:?}", view.shape())));
        }
        let mut values = vec![0.0; shape.iter().product()];
        kind.decode(view.data(), &mut values);
        match values.iter().position(|value| !value.is_finite()) {
            Some(index) => {
                Err(tensor_error(format!("element {index} is {}, not a finite number", values[index])))
            }
            None => Ok(values),
        }
    }
}

/// Writes a safetensors file of f32 tensors; each tensor is given as name, shape and values.
///
/// # Errors
/// [`EncoderError::File`] if the file cannot be written.
pub fn write(path: &Path, tensors: &[(String, Vec<usize>, &[f32])]) -> Result<(), EncoderError> {
    let file_error = |error: String| EncoderError::file(path, error);
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let mut views = Vec::with_capacity(tensors.len());
    for ((name, shape, _), bytes) in tensors.iter().zip(&bytes) {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
        views.push((name, view.map_err(|error| file_error(error.to_string()))?));
    }
    let format = Some([("format".to_owned(), "pt".to_owned())].into_iter().collect());
    let file = safetensors::serialize(views, format).map_err(|error| file_error(error.to_string()))?;
    std::fs::write(path, file).map_err(|error| file_error(error.to_string()))
}
