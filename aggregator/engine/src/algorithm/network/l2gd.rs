//! L2GD (Hanzely and Richtarik 2020, "Federated Learning of a Mixture of Global and Local Models", Algorithm 1): everyone's
//! own network, with a penalty on the distance to the mean of all.
//!
//! There a coin is flipped: with probability `p` all take a step towards the mean of all, `part` of the way (the paper's
//! `alpha lambda / (n p)`), otherwise each takes a local step. Only where a step to the mean follows a local one is there
//! anything to send, for steps to the mean do not move it. So a round is a run of steps to the mean and the run of local
//! steps after it, and their lengths are geometric: `J` with mean `1 / (1 - p)`, which goes `1 - (1 - part)^J` of the
//! way at once, and `K` with mean `1 / p`. The server draws both from the seed, for all devices alike. A local step is so
//! many epochs as a round of other methods has, where the paper takes one down the whole gradient.
//!
//! Without the coin, which is the default, a round is one of each: so it has the epochs of other methods' rounds, and what
//! is compared is not who trained longer. The mean is of those who took part. Scored is everyone's own.

use fedspan_protocol::message::{Baseline, HeadSolve, Task};

use super::{LayerMean, NetworkParameters, Plan, Travelling};
use crate::aggregate::Share;
use crate::algorithm::Algorithm;
use crate::linalg::{Matrix, RankDeficient};
use crate::random::{Purpose, stream};
use crate::types::{DeviceId, Request, Tensor};

pub(super) fn plan(parameters: &NetworkParameters, part: f32) -> Plan {
    let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
    let baseline = Baseline::L2gd { averaging_step: part };
    Plan { travelling: Travelling::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
}

/// The mean, and how often the coin has decided.
#[derive(Clone, Debug)]
pub struct L2gd {
    mean: LayerMean,
    parameters: NetworkParameters,
    part: f32,
    /// `p`.
    coin: f32,
    /// Rounds before this one.
    rounds: u32,
}

impl L2gd {
    /// Starts from the network that all begin with. `coin` is above 0 and below 1.
    #[must_use]
    pub fn new(parameters: NetworkParameters, part: f32, coin: f32) -> Self {
        let mean = LayerMean::new(parameters, plan(&parameters, part));
        Self { mean, parameters, part, coin, rounds: 0 }
    }

    /// Steps to the mean and local steps of the round: the first coin of each run has fallen already.
    fn steps(&self) -> (u16, u16) {
        let mut flips = stream(self.parameters.seed, Purpose::Coin, self.rounds.into());
        let mut run = |towards_mean: bool| {
            let mut steps = 1u16;
            while steps < u16::MAX && (flips.uniform() < f64::from(self.coin)) == towards_mean {
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
        let apart = libm::pow(1.0 - f64::from(self.part), f64::from(to_mean));
        #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
        let part = (1.0 - apart) as f32;
        let epochs = self.parameters.epochs.saturating_mul(local);
        let Plan { task, .. } = plan(&NetworkParameters { epochs, ..self.parameters }, part);
        Request { task, ..self.mean.request() }
    }

    fn absorb(&mut self, device: DeviceId, share: Share, tensors: &[Tensor]) {
        self.mean.absorb(device, share, tensors);
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

    /// The layers, and after them the rounds.
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
