//! Test helpers: an adapter server with real sockets and files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use fedspan_adapters::files::{AverageJob, Dtype, Inputs, Output, RoundKind, average};
use fedspan_adapters::http::{AdapterServer, ServeSummary, ServerError, Settings};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::Adapter;
use super::http::{Response, send_request};

/// Names of the clients.
pub const CLIENTS: [&str; 3] = ["anton", "beate", "carla"];

/// Temporary directory with a base, a configuration and the state directory of a server.
pub struct ServerDirectory {
    pub directory: TempDir,
    pub base: Adapter,
}

impl ServerDirectory {
    /// Creates a directory with a random base.
    pub fn new() -> Self {
        Self::with_base(Adapter::random(Dtype::F32, 1, 4, 30, 10))
    }

    /// Creates a directory with the given base.
    pub fn with_base(base: Adapter) -> Self {
        let directory = tempfile::tempdir().unwrap();
        base.write(&directory.path().join("base.safetensors"));
        Self { directory, base }
    }

    /// Path of a file in the directory.
    pub fn file_path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Text of the configuration.
    pub fn config_text(&self) -> String {
        let (state, base) = (self.file_path("state"), self.file_path("base.safetensors"));
        format!(
            "listen = \"127.0.0.1:0\"\nstate = {state:?}\nbase = {base:?}\nclients = {CLIENTS:?}\nrounds = 3\n"
        )
    }

    /// Starts a server with some settings changed.
    pub fn start_server(&self, changes: &[&str]) -> RunningServer {
        self.try_start_server(changes).unwrap()
    }

    /// Starts a server with some settings changed, or returns its error.
    pub fn try_start_server(&self, changes: &[&str]) -> Result<RunningServer, ServerError> {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let settings = Settings::parse("exchange.toml", &self.config_text(), &changes).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = runtime.block_on(AdapterServer::open(settings))?;
        let address = server.address().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread =
            std::thread::spawn(move || runtime.block_on(server.run(async { drop(stopped.await) }, false, 2)));
        Ok(RunningServer { address, running: Some((stop, thread)) })
    }
}

type RunResult = Result<ServeSummary, ServerError>;

/// Server in this process, or handle to a server in another process.
pub struct RunningServer {
    pub address: SocketAddr,
    pub running: Option<(oneshot::Sender<()>, JoinHandle<RunResult>)>,
}

impl RunningServer {
    /// Sends a GET request of a client.
    pub fn get(&self, client: &str, path: &str) -> Response {
        send_request(self.address, "GET", client, path, &[])
    }

    /// Uploads an update of a client.
    pub fn put(&self, client: &str, round: u32, samples: u32, body: &[u8]) -> Response {
        let path = format!("/round/{round}/adapter_model.safetensors?samples={samples}");
        send_request(self.address, "PUT", client, &path, body)
    }

    /// Response to `GET /round`, after a wait until a round above `after` is open or all rounds are
    /// committed.
    pub fn round_after(&self, client: &str, last_round: u32) -> Value {
        self.get(client, &format!("/round?after={last_round}&wait=60")).expect_json(200)
    }

    /// Bytes of the whole current adapter.
    pub fn download_model(&self) -> Vec<u8> {
        self.get(CLIENTS[0], "/adapter/adapter_model.safetensors").expect_status(200)
    }

    /// Value of a counter of the status.
    pub fn status_count(&self, name: &str) -> u64 {
        let status = self.get(CLIENTS[0], "/status").expect_json(200);
        status["counts"][name].as_u64().unwrap_or(0)
    }

    /// Waits until a counter of the status has at least this value.
    pub fn wait_for_count(&self, name: &str, least: u64) {
        while self.status_count(name) < least {
            std::thread::yield_now();
        }
    }

    /// Waits until the server in this process ends of itself, and returns its result.
    pub fn join(mut self) -> RunResult {
        let (stop, thread) = self.running.take().unwrap();
        let result = thread.join().unwrap();
        drop(stop);
        result
    }

    /// Stops the server in this process and returns its result.
    pub fn stop(mut self) -> RunResult {
        let (stop, thread) = self.running.take().unwrap();
        drop(stop);
        thread.join().unwrap()
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            drop(thread.join());
        }
    }
}

/// Mean of adapters with these numbers of samples, as `adapter average` writes it.
pub fn mean_file(base: &Adapter, clients: &[(u32, Adapter)], kind: RoundKind) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let file_path = |name: &str| directory.path().join(name);
    base.write(&file_path("base.safetensors"));
    let paths: Vec<PathBuf> =
        (0..clients.len()).map(|index| file_path(&format!("{index}.safetensors"))).collect();
    clients.iter().zip(&paths).for_each(|((_, client), path)| client.write(path));
    let samples: Vec<u64> = clients.iter().map(|(samples, _)| u64::from(*samples)).collect();
    let inputs = Inputs::open(&file_path("base.safetensors"), &paths, Some(&samples)).unwrap();
    let job = AverageJob { kind, output: Output::from_path(&file_path("next.safetensors")), threads: 1 };
    average(&inputs, job, &|_, _| true).unwrap();
    std::fs::read(file_path("next.safetensors")).unwrap()
}

/// Tensors that a round does not freeze.
pub fn trained_part(adapter: &Adapter, kind: RoundKind) -> Adapter {
    let mut trained = adapter.clone();
    trained.tensors.retain(|name, _| match kind {
        RoundKind::Up => !name.contains("lora_A"),
        RoundKind::Down => !name.contains("lora_B"),
        RoundKind::Plain => true,
    });
    trained
}

/// Parses the bytes of an adapter file.
pub fn parse_adapter(bytes: &[u8]) -> Adapter {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    Adapter::read(file.path())
}

/// Sorted paths of all files below a directory, relative to it.
pub fn list_files(directory: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            files.extend(list_files(&path).into_iter().map(|file| format!("{name}/{file}")));
        } else {
            files.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    files.sort();
    files
}
