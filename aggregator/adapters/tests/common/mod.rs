//! Test helpers: random adapters, which are written and read with the `safetensors` crate, and an adapter
//! server.

pub mod http;
pub mod live;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fedspan_adapters::files::{
    AdapterError, AverageJob, AverageReport, Dtype, Inputs, Output, RoundKind, average,
};
use fedspan_engine::random::{Purpose, stream};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as FileDtype, SafeTensors};
use tempfile::TempDir;

pub const DOWN: &str = "base_model.model.layers.0.q_proj.lora_A.weight";
pub const UP: &str = "base_model.model.layers.0.q_proj.lora_B.weight";
pub const SAVED: &str = "base_model.model.classifier.weight";

/// Adapter in memory: the dtype, and the shape and values of every tensor by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub dtype: Dtype,
    pub tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Adapter {
    /// Creates a random adapter with two modules (d_in x d_out and d_out x d_in) and a classifier.
    pub fn random(dtype: Dtype, seed: u64, rank: usize, d_in: usize, d_out: usize) -> Self {
        let mut adapter = Self { dtype, tensors: BTreeMap::new() };
        for (module, (d_in, d_out)) in [("q_proj", (d_in, d_out)), ("out", (d_out, d_in))] {
            let name = |factor: &str| format!("base_model.model.layers.0.{module}.lora_{factor}.weight");
            adapter.add_random_tensor(&name("A"), &[rank, d_in], seed * 10);
            adapter.add_random_tensor(&name("B"), &[d_out, rank], seed * 10 + 1);
        }
        adapter.add_random_tensor(SAVED, &[3, d_out], seed * 10 + 2);
        adapter
    }

    /// Adds or replaces a tensor of random values.
    pub fn add_random_tensor(&mut self, name: &str, shape: &[usize], seed: u64) {
        let count = shape.iter().product();
        let values = random_values(self.dtype, seed ^ (name.len() as u64) << 32, count);
        self.tensors.insert(name.to_owned(), (shape.to_vec(), values));
    }

    /// Copy of the adapter in which the tensors whose names `select` accepts are replaced by those of
    /// `other`.
    pub fn with_tensors_of(&self, other: &Self, select: impl Fn(&str) -> bool) -> Self {
        let mut copy = self.clone();
        for (name, tensor) in &mut copy.tensors {
            if select(name) {
                tensor.clone_from(&other.tensors[name]);
            }
        }
        copy
    }

    /// Whole adapter of a client after a round: all values are new except those of frozen factors.
    pub fn trained(&self, kind: RoundKind, seed: u64) -> Self {
        let mut changed = self.clone();
        for (index, (name, (_, values))) in changed.tensors.iter_mut().enumerate() {
            *values =
                random_values(self.dtype, seed * 100 + index as u64 + (name.len() as u64), values.len());
        }
        self.with_tensors_of(&changed, |name| match kind {
            RoundKind::Up => !name.contains("lora_A"),
            RoundKind::Down => !name.contains("lora_B"),
            RoundKind::Plain => true,
        })
    }

    /// Bytes of a safetensors file.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_with(&[])
    }

    /// Bytes of a safetensors file with additional tensors of any dtype.
    pub fn bytes_with(&self, extra_tensors: &[Buffer]) -> Vec<u8> {
        let dtype = file_dtype(self.dtype);
        let data: Vec<(&String, &Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, (shape, values))| {
                let mut bytes = Vec::new();
                self.dtype.encode(&values.iter().copied().map(f64::from).collect::<Vec<_>>(), &mut bytes);
                (name, shape, bytes)
            })
            .collect();
        let views = data.iter().map(|(name, shape, bytes)| {
            (name.as_str(), TensorView::new(dtype, (*shape).clone(), bytes).unwrap())
        });
        let views = views.chain(extra_tensors.iter().map(|(name, dtype, shape, bytes)| {
            (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        }));
        let metadata = [("format".to_owned(), "pt".to_owned())];
        safetensors::serialize(views, Some(metadata.into_iter().collect())).unwrap()
    }

    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }

    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut adapter = Self { dtype: Dtype::F32, tensors: BTreeMap::new() };
        for (name, view) in file.iter() {
            let dtypes = [Dtype::F32, Dtype::F16, Dtype::Bf16];
            let Some(dtype) = dtypes.into_iter().find(|dtype| file_dtype(*dtype) == view.dtype()) else {
                continue;
            };
            adapter.dtype = dtype;
            let mut values = vec![0.0; view.shape().iter().product()];
            adapter.dtype.decode(view.data(), &mut values);
            adapter.tensors.insert(name.to_owned(), (view.shape().to_vec(), values));
        }
        adapter
    }
}

fn file_dtype(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::F32 => FileDtype::F32,
        Dtype::F16 => FileDtype::F16,
        Dtype::Bf16 => FileDtype::BF16,
        other_dtype => panic!("factors are not {other_dtype}"),
    }
}

/// Tensor of any dtype: name, dtype, shape, bytes.
pub type Buffer = (&'static str, FileDtype, Vec<usize>, Vec<u8>);

/// Random values of a dtype as f32: normally distributed, with some large or tiny values, 0.0 and -0.0.
fn random_values(dtype: Dtype, seed: u64, count: usize) -> Vec<f32> {
    let random = &mut stream(seed, Purpose::Start, 3);
    let exact: Vec<f64> = (0..count)
        .map(|index| {
            let value = random.normal();
            match (index as u64 + seed) % 11 {
                0 => value * 1e-7,
                1 => 0.0_f64.copysign(value),
                2 => value * 100.0,
                _ => value,
            }
        })
        .collect();
    let mut bytes = Vec::new();
    dtype.encode(&exact, &mut bytes);
    let mut values = vec![0.0; count];
    dtype.decode(&bytes, &mut values);
    values
}

/// Temporary directory with `base.safetensors` and the clients' `0.safetensors`, `1.safetensors` and so on.
pub struct Folder {
    pub directory: TempDir,
    pub clients: Vec<PathBuf>,
}

impl Folder {
    /// Creates a directory with a base and clients.
    pub fn new(base: &Adapter, clients: &[Adapter]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        base.write(&directory.path().join("base.safetensors"));
        let paths = (0..clients.len()).map(|index| directory.path().join(format!("{index}.safetensors")));
        let paths: Vec<PathBuf> = paths.collect();
        clients.iter().zip(&paths).for_each(|(client, path)| client.write(path));
        Self { directory, clients: paths }
    }

    /// Path of a file in the directory.
    pub fn file_path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Opens the base and the clients.
    pub fn open_inputs(&self, samples: Option<&[u64]>) -> Result<Inputs, AdapterError> {
        Inputs::open(&self.file_path("base.safetensors"), &self.clients, samples)
    }

    /// Arguments of an average that writes `next.safetensors`.
    pub fn average_job(&self, kind: RoundKind, threads: usize) -> AverageJob {
        AverageJob { kind, output: Output::from_path(&self.file_path("next.safetensors")), threads }
    }

    /// Averages the clients with one thread.
    pub fn average(&self, round: RoundKind, samples: Option<&[u64]>) -> Result<AverageReport, AdapterError> {
        average(&self.open_inputs(samples)?, self.average_job(round, 1), &|_, _| true)
    }

    /// Temporary directory with directories `base`, `0`, `1` and so on in PEFT's layout. An empty text in
    /// `configs` stands for a directory without a configuration.
    pub fn with_directories(adapters: &[Adapter], configs: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (index, (adapter, config)) in adapters.iter().zip(configs).enumerate() {
            let name = if index == 0 { "base".to_owned() } else { (index - 1).to_string() };
            let path = directory.path().join(name);
            std::fs::create_dir(&path).unwrap();
            adapter.write(&path.join("adapter_model.safetensors"));
            if !config.is_empty() {
                std::fs::write(path.join("adapter_config.json"), config).unwrap();
            }
        }
        let clients = (0..adapters.len() - 1).map(|index| directory.path().join(index.to_string())).collect();
        Self { directory, clients }
    }

    /// Inputs of [`Self::with_directories`].
    pub fn open_directories(&self) -> Result<Inputs, AdapterError> {
        Inputs::open(&self.file_path("base"), &self.clients, None)
    }

    /// Averages the clients and returns the bytes of the mean.
    pub fn average_bytes(&self, round: RoundKind, samples: Option<&[u64]>) -> Vec<u8> {
        self.average(round, samples).unwrap();
        std::fs::read(self.file_path("next.safetensors")).unwrap()
    }

    /// Sorted names of the directory's entries.
    pub fn entry_names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}
