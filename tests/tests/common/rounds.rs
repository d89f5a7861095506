//! Test helpers: rounds of the test campaign.

use std::sync::Arc;

use fedspan_engine::RoundBroadcast;
use fedspan_engine::{Request, Tensor};
use fedspan_hostile::Random;
use fedspan_protocol::message::{HeadSolve, RoundId, Task, Upload};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};

/// Number of features.
pub const D: u16 = 20;
/// Width of the representation.
pub const K: u16 = 2;

/// Returns the request of a round for a gradient in f32.
pub fn request(number: u32) -> Request {
    let mut random = Random(number.into());
    let mut values: Vec<f32> = (0..D * K).map(|_| random.unit()).collect();
    orthonormalise(&mut values, usize::from(K)).unwrap();
    let head = HeadSolve::LeastSquares { ridge: 0.0 };
    let encoding = Encoding::F32;
    Request {
        task: Task::FedRep { step_size: 0.25, head, upload: Upload::Gradient, encoding },
        tensors: vec![Tensor { role: Role::Representation, rows: D, cols: K, values }],
        encoding,
        expects: vec![TensorDescriptor::inline(Role::Gradient, encoding, D, K)],
    }
}

/// Returns the message that opens a round, with its tensors.
pub fn round_broadcast(number: u32) -> Arc<RoundBroadcast> {
    Arc::new(RoundBroadcast::new(RoundId { round: number, stage: 0 }, request(number)).unwrap())
}
