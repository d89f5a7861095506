//! Example of a server inside another program: it listens on a free port, serves until the program stops it,
//! and returns its status.
//!
//! ```sh
//! cargo run -p fedspan-aggregator --example embed_server
//! ```

mod device;

use std::error::Error;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::Server;
use tokio::sync::oneshot;

/// Serves a campaign of two devices. The devices are tasks of this program; in a real campaign they are
/// boards.
#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?; // a real campaign keeps its directory, to be resumed from it
    let fleet = Fleet::builder()
        .state(state.path())
        .tcp("127.0.0.1:0")
        .plaintext() // a test bench; real devices have keys
        .devices(2)
        .features(device::FEATURES)
        .width(device::WIDTH)
        .algorithm("fedrep")
        .rounds(100)
        .step_size(0.5)
        .set("algorithm.final_ridge", 0.0) // any key of `fleet.toml`
        .build()?;

    let server = Server::builder(fleet).bind().await?;
    let address = server.address()?;
    println!("listening on {address}");

    // The server is a future. It runs as a task here, which ends when `stop` is sent or dropped.
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }, false));

    let (first_error, second_error) =
        tokio::try_join!(device::run_device(1, address), device::run_device(2, address))?;
    println!("mean squared errors of the devices' models: {first_error:.1e}, {second_error:.1e}");
    assert!(first_error.max(second_error) < 1e-6, "{first_error}, {second_error}");

    let _ = stop.send(());
    let status = serving.await??;
    println!("{} after round {}, {} updates", status.phase, status.round, status.updates.counted);
    assert_eq!((status.phase.as_str(), status.round), ("finished", 100));
    Ok(())
}
