//! L2GD (Hanzely and Richtarik 2020, "Federated Learning of a Mixture of Global and Local Models", Algorithm
//! 1): each device trains its own network, with a penalty on the distance to the mean of all.
//!
//! In the paper a coin is flipped: with probability `p` all devices take a step towards the mean of all,
//! `part` of the way (the paper's `alpha lambda / (n p)`), otherwise each takes a local step. Communication
//! is needed only when a step to the mean follows a local one, since steps to the mean do not move it. So a
//! round here is a run of steps to the mean followed by a run of local steps. Their lengths are geometric:
//! `J` with mean `1 / (1 - p)`, which goes `1 - (1 - part)^J` of the way at once, and `K` with mean `1 / p`.
//! The server draws both from the seed, the same for all devices. A local step is as many epochs as a round
//! of other methods has, where the paper takes one step down the full gradient.
//!
//! Without the coin, which is the default, a round is one step of each kind, so that it has the epochs of
//! other methods' rounds and comparisons do not favour longer training. The mean is over the participants.
//! Evaluated is each device's own network.

use fedspan_protocol::message::{Baseline, HeadSolve, Task};

use super::{LayerMean, NetworkParameters, Plan, SharedLayers};
use crate::aggregate::UpdateWeight;
use crate::algorithm::Algorithm;
use crate::linalg::{Matrix, RankDeficient};
use crate::random::{Purpose, stream};
use crate::types::{DeviceId, Request, Tensor};

pub(super) fn plan(parameters: &NetworkParameters, averaging_step: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::L2gd { averaging_step };
    Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}

/// State of L2GD with a coin: the mean, and the number of rounds drawn.
#[derive(Clone, Debug)]
pub struct L2gd {
    mean: LayerMean,
    parameters: NetworkParameters,
    averaging_step: f32,
    /// Probability `p` of a step towards the mean.
    averaging_probability: f32,
    /// Number of finished rounds.
    rounds: u32,
}

impl L2gd {
    /// Starts from the initial network. `coin` is above 0 and below 1.
    #[must_use]
    pub fn new(parameters: NetworkParameters, averaging_step: f32, averaging_probability: f32) -> Self {
        let mean = LayerMean::new(parameters, plan(&parameters, averaging_step));
        Self { mean, parameters, averaging_step, averaging_probability, rounds: 0 }
    }

    /// Number of steps to the mean, and of local steps, in this round. Each run has at least one, whose coin
    /// decided the run.
    fn steps(&self) -> (u16, u16) {
        let mut flips = stream(self.parameters.seed, Purpose::Coin, self.rounds.into());
        let mut run = |towards_mean: bool| {
            let mut steps = 1u16;
            while steps < u16::MAX
                && (flips.uniform() < f64::from(self.averaging_probability)) == towards_mean
            {
                steps += 1;
            }
            steps
        };
        (run(true), run(false))
    }
}

impl Algorithm for L2gd {
    fn request(&self) -> Request {
        let (to_mean, local) = self.steps();
        let apart = libm::pow(1.0 - f64::from(self.averaging_step), f64::from(to_mean));
        #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
        let averaging_step = (1.0 - apart) as f32;
        let epochs = self.parameters.epochs.saturating_mul(local);
        let Plan { task, .. } = plan(&NetworkParameters { epochs, ..self.parameters }, averaging_step);
        Request { task, ..self.mean.request() }
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.mean.absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        self.rounds = self.rounds.saturating_add(1);
        self.mean.finish()
    }

    fn representation(&self) -> &Matrix {
        self.mean.representation()
    }

    fn model(&self) -> &Matrix {
        self.mean.model()
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        self.mean.fit_request(head)
    }

    /// The layers, then the number of finished rounds.
    fn state(&self) -> Vec<f64> {
        let mut state = self.mean.state();
        state.push(self.rounds.into());
        state
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((rounds, layers)) = state.split_last() else { return false };
        let fits = self.mean.restore(layers);
        if fits {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of rounds")]
            {
                self.rounds = *rounds as u32;
            }
        }
        fits
    }
}
