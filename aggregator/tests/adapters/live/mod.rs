//! The live exchange: real sockets, real files.

mod hostile;
mod http;
mod refusals;
mod restart;
mod round_state;
mod rounds;
mod weights;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use fedspan_adapters::files::{AverageJob, Dtype, Inputs, Output, RoundKind, average};
use fedspan_adapters::http::{AdapterServer, ServeSummary, ServerError, Settings};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::files::Adapter;
use http::{Answer, ask};

pub const CLIENTS: [&str; 3] = ["anton", "beate", "carla"];

/// A base and a configuration, in a directory of their own.
pub struct Place {
    pub directory: TempDir,
    pub base: Adapter,
}

impl Place {
    pub fn new() -> Self {
        Self::with(Adapter::drawn(Dtype::F32, 1, 4, 30, 10))
    }

    pub fn with(base: Adapter) -> Self {
        let directory = tempfile::tempdir().unwrap();
        base.write(&directory.path().join("base.safetensors"));
        Self { directory, base }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn text(&self) -> String {
        let (state, base) = (self.at("state"), self.at("base.safetensors"));
        format!(
            "listen = \"127.0.0.1:0\"\nstate = {state:?}\nbase = {base:?}\nclients = {CLIENTS:?}\nrounds = 3\n"
        )
    }

    pub fn serve(&self, changes: &[&str]) -> Live {
        self.try_serve(changes).unwrap()
    }

    pub fn try_serve(&self, changes: &[&str]) -> Result<Live, ServerError> {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let settings = Settings::parse("exchange.toml", &self.text(), &changes).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let exchange = runtime.block_on(AdapterServer::open(settings))?;
        let address = exchange.address().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(exchange.run(async { drop(stopped.await) }, false, 2))
        });
        Ok(Live { address, running: Some((stop, thread)) })
    }
}

type End = Result<ServeSummary, ServerError>;

/// A server in this process.
pub struct Live {
    pub address: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<End>)>,
}

impl Live {
    pub fn get(&self, client: &str, path: &str) -> Answer {
        ask(self.address, "GET", client, path, &[])
    }

    pub fn put(&self, client: &str, round: u32, samples: u32, body: &[u8]) -> Answer {
        let path = format!("/round/{round}/adapter_model.safetensors?samples={samples}");
        ask(self.address, "PUT", client, &path, body)
    }

    /// What a client is told once a later round than `after` is open, or there is none any more.
    pub fn round_after(&self, client: &str, after: u32) -> Value {
        self.get(client, &format!("/round?after={after}&wait=60")).json(200)
    }

    pub fn model(&self) -> Vec<u8> {
        self.get(CLIENTS[0], "/adapter/adapter_model.safetensors").ok(200)
    }

    /// How often something has happened.
    pub fn count(&self, what: &str) -> u64 {
        let status = self.get(CLIENTS[0], "/status").json(200);
        status["counts"][what].as_u64().unwrap_or(0)
    }

    pub fn stop(mut self) -> End {
        let (stop, thread) = self.running.take().unwrap();
        drop(stop);
        thread.join().unwrap()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            drop(thread.join());
        }
    }
}

/// What `adapter average` makes of these files.
pub fn mean(base: &Adapter, clients: &[(u32, Adapter)], round: RoundKind) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    base.write(&at("base.safetensors"));
    let paths: Vec<PathBuf> = (0..clients.len()).map(|index| at(&format!("{index}.safetensors"))).collect();
    clients.iter().zip(&paths).for_each(|((_, client), path)| client.write(path));
    let samples: Vec<u64> = clients.iter().map(|(samples, _)| u64::from(*samples)).collect();
    let inputs = Inputs::open(&at("base.safetensors"), &paths, Some(&samples)).unwrap();
    let job = AverageJob { round, output: Output::from_path(&at("next.safetensors")), threads: 1 };
    average(&inputs, job, &|_, _| true).unwrap();
    std::fs::read(at("next.safetensors")).unwrap()
}

/// Only what a round trains.
pub fn part(adapter: &Adapter, round: RoundKind) -> Adapter {
    let mut part = adapter.clone();
    part.tensors.retain(|name, _| match round {
        RoundKind::Up => !name.contains("lora_A"),
        RoundKind::Down => !name.contains("lora_B"),
        RoundKind::Plain => true,
    });
    part
}

pub fn read(bytes: &[u8]) -> Adapter {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Adapter::read(file.path())
}

/// Files under a directory, with their places in it.
pub fn files(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.extend(files(&path).into_iter().map(|file| format!("{name}/{file}")));
        } else {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found.sort();
    found
}
