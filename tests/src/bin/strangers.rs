//! Program `strangers` that measures how long clients of `adapter serve` wait for an answer while other peers hold or
//! flood its connections.

use std::io::{BufRead, BufReader, Error, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fedspan_tests::load::Quantiles;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const USAGE: &str = "usage: strangers [REQUESTS]

Starts `fedspan-aggregator adapter serve`, which must be next to this program, with its default limits and three clients. Sends
REQUESTS (1000) requests of two clients, each on a new connection, one after the other: alone, and during floods of other peers,
which connect again 0.1 s after the server closes their connection, or at once. Prints how many requests were answered, and
how long they took. See aggregator/EXCHANGE.md.
exit: 0 all requests were answered, except in the last flood, which has no pauses; 1 one was not, or an error; 2 wrong arguments";

/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a flood to reach full effect.
const SETTLE: Duration = Duration::from_secs(1);
/// Pause before a peer connects again.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after each request of an honest client.
const REQUEST_PAUSE: Duration = Duration::from_millis(5);

/// Flood of connections.
struct Flood {
    name: &'static str,
    connections: usize,
    /// Bytes that each connection sends, before it reads until the server closes it.
    bytes: &'static str,
    /// Pause before a connection is opened again.
    pause: Duration,
    /// True if the program fails unless all requests are answered.
    must_answer: bool,
}

const NO_TOKEN: &str = "GET /round HTTP/1.1\r\nHost: localhost\r\n\r\n";
const POLL: &str =
    "GET /round?after=1&wait=60 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anton\r\n\r\n";

const FLOODS: [Flood; 8] = [
    Flood { name: "none", connections: 0, bytes: "", pause: PAUSE, must_answer: true },
    Flood { name: "64 without token", connections: 64, bytes: NO_TOKEN, pause: PAUSE, must_answer: true },
    Flood { name: "64 silent", connections: 64, bytes: "", pause: PAUSE, must_answer: true },
    Flood {
        name: "1,000 without token",
        connections: 1000,
        bytes: NO_TOKEN,
        pause: PAUSE,
        must_answer: true,
    },
    Flood { name: "1,000 silent", connections: 1000, bytes: "", pause: PAUSE, must_answer: true },
    Flood { name: "80 polls of one client", connections: 80, bytes: POLL, pause: PAUSE, must_answer: true },
    Flood {
        name: "64 without token, at once again",
        connections: 64,
        bytes: NO_TOKEN,
        pause: Duration::ZERO,
        must_answer: true,
    },
    Flood {
        name: "1,000 silent, at once again",
        connections: 1000,
        bytes: "",
        pause: Duration::ZERO,
        must_answer: false,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let requests = match arguments.as_slice() {
        [] => Some(1000),
        [help] if help == "-h" || help == "--help" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [requests] => requests.parse().ok().filter(|requests| *requests > 0),
        _ => None,
    };
    let Some(requests) = requests else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(measure(requests))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("strangers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Server process, killed on drop, with its directory, which is removed.
struct Server {
    child: Child,
    directory: PathBuf,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

impl Server {
    fn start() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("strangers-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        std::fs::write(directory.join("base.safetensors"), base())?;
        let config = format!(
            "listen = \"127.0.0.1:0\"\nstate = {:?}\nbase = {:?}\nclients = [\"anton\", \"beate\", \"carla\"]\nrounds = 3\n",
            directory.join("state"),
            directory.join("base.safetensors")
        );
        std::fs::write(directory.join("exchange.toml"), config)?;
        let (child, address) = start_program(&directory).inspect_err(|_| {
            drop(std::fs::remove_dir_all(&directory));
        })?;
        Ok(Self { child, directory, address })
    }
}

/// Starts the server, and reads its address from the first line that it prints.
fn start_program(directory: &Path) -> Result<(Child, SocketAddr)> {
    let program = std::env::current_exe()?.with_file_name("fedspan-aggregator");
    let mut command = Command::new(program);
    command.args(["adapter", "serve", "--config"]).arg(directory.join("exchange.toml"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(": ").next()?.parse().ok());
    match address {
        Some(address) => Ok((child, address)),
        None => {
            drop(child.kill());
            drop(child.wait());
            Err(Error::other(format!("the server did not start: {line:?}")))
        }
    }
}

/// Adapter of one module with rank 1.
fn base() -> Vec<u8> {
    let json = r#"{"m.lora_A.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"m.lora_B.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]}}"#;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.extend_from_slice(&[0; 16]);
    bytes
}

/// Measures all floods. Returns false if a request was not answered.
async fn measure(requests: usize) -> Result<bool> {
    println!(
        "{:<34} {:>9} {:>8} {:>8} {:>8} {:>12}",
        "other peers", "answered", "p50 ms", "p99 ms", "max ms", "opened"
    );
    let mut is_complete = true;
    for flood in &FLOODS {
        let server = Server::start()?;
        let mut peers = JoinSet::new();
        let opened = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        for _ in 0..flood.connections {
            let (address, bytes, pause, opened) = (server.address, flood.bytes, flood.pause, opened.clone());
            peers.spawn(async move {
                loop {
                    opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    // Errors are part of a flood: the peer connects again.
                    drop(hold(address, bytes).await);
                    sleep(pause).await;
                }
            });
        }
        if flood.connections > 0 {
            sleep(SETTLE).await;
        }
        let mut times = Vec::new();
        for request in 0..requests {
            let client = ["beate", "carla"].into_iter().cycle().nth(request % 2).unwrap_or_default();
            let began = Instant::now();
            if let Ok(Ok(true)) = timeout(TIMEOUT, ask(server.address, client)).await {
                times.push(began.elapsed());
            }
            sleep(REQUEST_PAUSE).await;
        }
        peers.shutdown().await;
        is_complete &= times.len() == requests || !flood.must_answer;
        let quantiles = Quantiles::new(times);
        let answered = format!("{}/{requests}", quantiles.count());
        let [p50, p99, most] = [0.5, 0.99, 1.0].map(|share| quantiles.quantile(share));
        let opened = opened.load(std::sync::atomic::Ordering::Relaxed);
        println!("{:<34} {answered:>9} {p50:>8.2} {p99:>8.2} {most:>8.2} {opened:>12}", flood.name);
    }
    Ok(is_complete)
}

/// Opens a connection, sends bytes, and reads until the server closes the connection.
async fn hold(address: SocketAddr, bytes: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(bytes.as_bytes()).await?;
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// Asks for the open round on a new connection. Returns true if the answer has the status 200.
async fn ask(address: SocketAddr, client: &str) -> Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "GET /round HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {client}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    Ok(response.starts_with(b"HTTP/1.1 200"))
}
