//! L2GD (Hanzely and Richtarik 2020, "Federated Learning of a Mixture of Global and Local Models", Algorithm
//! 1): each device trains a personal network, with a penalty on the distance to the mean of all personal
//! networks.
//!
//! In the paper a coin is flipped before each step. With probability `p` all devices move towards the mean,
//! by the fraction `part` of the distance (`alpha lambda / (n p)` in the paper); otherwise each device takes
//! a local step. Steps towards the mean do not change the mean, so devices communicate only when such a step
//! follows a local step. A round here is therefore a run of `J` steps towards the mean followed by a run of
//! `K` local steps. `J` is geometric with mean `1 / (1 - p)`, and the run is one move by the fraction
//! `1 - (1 - part)^J` of the distance; `K` is geometric with mean `1 / p`. The server draws `J` and `K` from
//! the seed, the same for all devices. A local step has as many epochs as a round of other methods, where the
//! paper takes one step down the full gradient.
//!
//! Without the coin, which is the default, a round is one step of each kind. It then has as many epochs as a
//! round of other methods, so that comparisons do not favour longer training. The mean is over the
//! participants. Each client is evaluated on its personal network.

use fedspan_protocol::message::{Baseline, HeadSolve, Task};
use toml_edit::Value;

use super::{
    LayerMean, MethodKeys, NetworkAlgorithm, NetworkParameters, OWN_NETWORK, Plan, SHARED_AND_HEAD,
    SharedLayers,
};
use crate::aggregate::UpdateWeight;
use crate::algorithm::Algorithm;
use crate::linalg::{Matrix, RankDeficient};
use crate::participation::UploadLayout;
use crate::random::{Purpose, stream};
use crate::reader::{Problem, shortest};
use crate::types::{DeviceId, Request, Tensor};

/// L2GD: personal networks that move towards their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2gd {
    /// Fraction of the distance to the mean by which one step moves a network.
    pub averaging_step: f32,
    /// Probability of a step towards the mean instead of a local step; 0 for one step of each kind in every
    /// round.
    pub averaging_probability: f32,
}

impl NetworkAlgorithm for L2gd {
    const NAME: &'static str = "l2gd";
    const SUMMARY: &'static str = "personal models that move towards their mean each round (networks)";

    fn read(keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
        let coin = keys.section_of("coin").number("coin", Some(0.0), 0.0..=0.99)?;
        if coin > 0.0 && coin < 0.01 {
            let message = format!("found {coin}, which makes rounds too long; allowed: 0, or 0.01 to 0.99");
            return Err(keys.section_of("coin").problem("coin", message));
        }
        let averaging_step = keys.number("part", 0.05, 0.0..=1.0)?;
        #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
        let averaging_probability = coin as f32;
        Ok(Self { averaging_step, averaging_probability })
    }

    fn write(&self, set: &mut dyn FnMut(&str, Value)) {
        set("part", shortest(self.averaging_step).into());
        set("coin", shortest(self.averaging_probability).into());
    }

    fn plan(&self, parameters: &NetworkParameters) -> Plan {
        let Self { averaging_step, .. } = *self;
        let NetworkParameters { descent, epochs, upload_encoding: encoding, .. } = *parameters;
        let baseline = Baseline::L2gd { averaging_step };
        Plan { shared: SharedLayers::All, task: Task::Baseline { baseline, descent, epochs, encoding } }
    }

    fn server(&self, parameters: NetworkParameters) -> Box<dyn Algorithm> {
        if self.averaging_probability > 0.0 {
            return Box::new(L2gdServer::new(*self, parameters));
        }
        Box::new(LayerMean::new(parameters, self.plan(&parameters)))
    }

    fn evaluated_model(&self) -> &'static str {
        OWN_NETWORK
    }

    fn evaluated_newcomer_model(&self) -> &'static str {
        SHARED_AND_HEAD
    }
}

/// State of L2GD with a coin: the mean, and the number of finished rounds.
#[derive(Clone, Debug)]
pub struct L2gdServer {
    mean: LayerMean,
    parameters: NetworkParameters,
    settings: L2gd,
    /// Number of finished rounds.
    rounds: u32,
}

impl L2gdServer {
    /// Starts from the initial network. The averaging probability is above 0 and below 1.
    #[must_use]
    pub fn new(settings: L2gd, parameters: NetworkParameters) -> Self {
        let mean = LayerMean::new(parameters, settings.plan(&parameters));
        Self { mean, parameters, settings, rounds: 0 }
    }

    /// Number of steps towards the mean, and number of local steps, in this round. Each number is at least 1,
    /// since the coin that starts a run also counts as a step of it.
    fn draw_steps(&self) -> (u16, u16) {
        let mut flips = stream(self.parameters.seed, Purpose::Coin, self.rounds.into());
        let mut run_length = |towards_mean: bool| {
            let mut steps = 1u16;
            while steps < u16::MAX
                && (flips.uniform() < f64::from(self.settings.averaging_probability)) == towards_mean
            {
                steps += 1;
            }
            steps
        };
        (run_length(true), run_length(false))
    }
}

impl Algorithm for L2gdServer {
    fn request(&self) -> Request {
        let (to_mean, local) = self.draw_steps();
        let remaining_distance = libm::pow(1.0 - f64::from(self.settings.averaging_step), f64::from(to_mean));
        #[allow(clippy::cast_possible_truncation, reason = "settings travel as f32")]
        let averaging_step = (1.0 - remaining_distance) as f32;
        let epochs = self.parameters.epochs.saturating_mul(local);
        let settings = L2gd { averaging_step, ..self.settings };
        let Plan { task, .. } = settings.plan(&NetworkParameters { epochs, ..self.parameters });
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

    fn upload_layout(&self) -> UploadLayout {
        self.mean.upload_layout()
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        self.mean.fit_request(head)
    }

    /// Returns the layers, then the number of finished rounds.
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
