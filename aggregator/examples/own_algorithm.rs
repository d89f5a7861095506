//! Example of a custom algorithm, with devices connected over TCP: FedRep with momentum on the server.
//!
//! ```sh
//! cargo run -p fedspan-aggregator --example own_algorithm
//! ```
//!
//! The devices compute FedRep's gradients, so they need no special firmware. The server keeps a velocity
//! `V <- beta V + (Q - B)`, where `Q` is the step that FedRep would take from `B`, and moves to the
//! orthonormal factor of `B + V`.

mod device;

use std::error::Error;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::Server;
use fedspan_engine::aggregate::{Rule, UpdateWeight};
use fedspan_engine::algorithm::{Algorithm, FedRep, FedRepParameters, random_start};
use fedspan_engine::linalg::{Matrix, RankDeficient, orthonormal};
use fedspan_engine::{DeviceId, Request, Tensor, Weighting};
use fedspan_protocol::message::{HeadSolve, Upload};
use fedspan_protocol::tensor::Encoding;

/// FedRep with momentum on the server.
pub struct Momentum {
    fedrep: FedRep,
    beta: f64,
    velocity: Matrix,
}

impl Momentum {
    /// Starts from a random representation, features x width.
    pub fn new((features, width): (usize, usize), step_size: f32, beta: f64, seed: u64) -> Self {
        let parameters = FedRepParameters {
            step_size,
            head: HeadSolve::LeastSquares { ridge: 0.0 },
            upload: Upload::Gradient,
            download_encoding: Encoding::F32,
            upload_encoding: Encoding::F32,
            weighting: Weighting::Uniform,
            rule: Rule::MEAN,
        };
        let fedrep = FedRep::new(random_start(features, width, seed), parameters);
        Self { fedrep, beta, velocity: Matrix::zeros(features, width) }
    }
}

impl Algorithm for Momentum {
    fn request(&self) -> Request {
        self.fedrep.request()
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.fedrep.absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let previous = self.fedrep.representation().clone();
        self.fedrep.finish()?;
        let velocity = &self.velocity * self.beta + (self.fedrep.representation() - &previous);
        // If `B + V` is rank deficient, the model must not change.
        let next = orthonormal(&(&previous + &velocity));
        self.fedrep.restore(next.as_ref().unwrap_or(&previous).as_slice());
        next.map(|_| self.velocity = velocity)
    }

    fn representation(&self) -> &Matrix {
        self.fedrep.representation()
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        self.fedrep.fit_request(head)
    }

    /// Returns the state on which the next round depends, so that a restarted server continues with
    /// bit-identical results.
    fn state(&self) -> Vec<f64> {
        [self.fedrep.state(), self.velocity.as_slice().to_vec()].concat()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((representation, velocity)) = state.split_at_checked(self.fedrep.state().len()) else {
            return false;
        };
        let fits = velocity.len() == self.velocity.len();
        if fits {
            self.velocity.copy_from_slice(velocity);
            self.fedrep.restore(representation);
        }
        fits
    }
}

/// Serves a campaign of four devices with momentum.
#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let state = tempfile::tempdir()?;
    let fleet = Fleet::builder()
        .state(state.path())
        .tcp("127.0.0.1:0")
        .plaintext()
        .devices(4)
        .features(device::FEATURES)
        .width(device::WIDTH)
        .algorithm("fedrep") // for rounds, final heads and the model that devices announce
        .rounds(60)
        .step_size(0.2)
        .set("algorithm.final_ridge", 0.0)
        .build()?;

    let step_size = 0.2;
    let beta = 0.6;
    let algorithm = Momentum::new((device::FEATURES, device::WIDTH), step_size, beta, fleet.seed);
    let server = Server::builder(fleet)
        .algorithm("fedrep with momentum", Box::new(algorithm))
        // The setting is stored with the name, and the campaign can be resumed only with the same momentum.
        .setting("momentum", beta)
        .bind()
        .await?;
    let address = server.address()?;
    println!("listening on {address}");

    // The server ends when all heads are fitted, since the shutdown future never completes.
    let serving = tokio::spawn(server.serve(std::future::pending(), true));
    let run = |number| device::run_device(number, address);
    let (a, b, c, d) = tokio::try_join!(run(0), run(1), run(2), run(3))?;
    println!("mean squared errors of the devices' models: {a:.1e}, {b:.1e}, {c:.1e}, {d:.1e}");
    let status = serving.await??;
    println!("{} after round {}", status.phase, status.round);

    assert_eq!((status.phase.as_str(), status.updates.counted), ("finished", 4 * 61));
    assert!([a, b, c, d].into_iter().all(|error| error < 1e-6));
    Ok(())
}
