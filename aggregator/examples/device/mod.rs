//! Example helpers: a device with synthetic samples, which runs the client of a microcontroller on
//! this computer.
//!
//! The target of a sample is a combination of two directions that all devices share; each device has other
//! coefficients.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use embedded_io_adapters::tokio_1::FromTokio;
use fedspan_client::link::{Buffers, run_async};
use fedspan_client::session::{Config, Protection};
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Millis, Recording, Session, Task, Workspace};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Number of features of a sample.
pub const FEATURES: usize = 6;
/// Width of the shared representation.
pub const WIDTH: usize = 2;
/// Number of samples of a device.
const SAMPLES: usize = 30;

/// Connects a device to a server, takes part until its head is fitted, and returns its mean squared error on
/// samples that were not used for training.
pub async fn run_device(device: u64, server: SocketAddr) -> Result<f32, Box<dyn Error>> {
    let mut random = ChaCha8Rng::seed_from_u64(device);
    let (x, y) = draw_samples(device, &mut random);
    let (unseen_x, unseen_y) = draw_samples(device, &mut random);
    let model = Linear::new(Workspace::<FEATURES, WIDTH>::new());
    let mut model =
        take_part(device, server, model, Recording::regression(&x, &y, FEATURES, 1), random).await?;
    Ok(mean_squared_error(&mut model, &unseen_x, &unseen_y)?)
}

/// Connects a device to a server, takes part with a task until its head is fitted, and returns the task.
pub async fn take_part<T: Task + Clone>(
    device: u64,
    server: SocketAddr,
    task: T,
    samples: Recording<'_>,
    random: ChaCha8Rng,
) -> Result<T, Box<dyn Error>> {
    // The firmware of a board does the same, but with a flash store and with keys.
    let config = Config { leave_when_fitted: true, ..Config::new(device) };
    let mut session = Session::new(config, Protection::Plaintext, task, samples, NoStore, random);
    let mut receive = vec![0; config.frame_limit.into()];
    let mut transmit = vec![0; config.transmit_capacity()];

    let began = Instant::now();
    let clock = || Millis::from(began.elapsed());
    let sleep_until =
        |time: Millis| tokio::time::sleep_until(began + Duration::from_millis(time.as_u64().min(1 << 40)));
    // Reconnects after a lost connection, for example if the server restarts.
    for _ in 0..100 {
        if let Ok(socket) = TcpStream::connect(server).await {
            socket.set_nodelay(true)?;
            let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
            run_async(&mut session, &mut FromTokio::new(socket), buffers, clock, sleep_until).await;
        }
        if session.is_fitted() {
            return Ok(session.task_mut().clone());
        }
        if let Some(refusal) = session.refusal() {
            return Err(refusal.to_string().into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(format!("device {device}: no head after 100 connections").into())
}

/// Samples of a device. The target is `a (x0 + x1) + b (x2 - x3)`, with other `a` and `b` for each device.
fn draw_samples(device: u64, random: &mut ChaCha8Rng) -> (Vec<f32>, Vec<f32>) {
    let (a, b) = [(1.0, 0.5), (-0.5, 1.0), (1.0, 0.6), (0.7, -1.0)][(device % 4) as usize];
    // Uniform distribution with mean 0 and variance 1.
    let uniform = |_| 3.0_f32.sqrt() * ((random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0);
    let x: Vec<f32> = (0..SAMPLES * FEATURES).map(uniform).collect();
    let y = x.chunks_exact(FEATURES).map(|x| a * (x[0] + x[1]) + b * (x[2] - x[3])).collect();
    (x, y)
}

/// Mean squared error of a device's model.
fn mean_squared_error(
    model: &mut Linear<Workspace<FEATURES, WIDTH>>,
    x: &[f32],
    y: &[f32],
) -> Result<f32, fedspan_client::NotReady> {
    let mut sum = 0.0;
    for (x, y) in x.chunks_exact(FEATURES).zip(y) {
        let mut predicted = [0.0];
        model.predict(x, &mut predicted)?;
        sum += (predicted[0] - y).powi(2);
    }
    Ok(sum / y.len() as f32)
}
