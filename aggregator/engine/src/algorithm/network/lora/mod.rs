//! Four algorithms that train low-rank adapters (LoRA, Hu et al. 2022). They differ in how the server
//! averages the factors, since the mean of the products `A_i B_i` is not the product of the means of `A_i`
//! and `B_i`.
//!
//! RoLoRA (Chen et al. 2025, Algorithm 1) trains one factor per round and keeps the other: the up-projection
//! B in odd rounds, the down-projection A in even rounds. The mean is then exact, and devices send half as
//! much. FFA-LoRA (Sun et al. 2024) trains only B. Plain averaging (`lora`) trains both factors and averages
//! each separately. FlexLoRA (Bai et al. 2024) trains both factors and approximates the mean of products by
//! the best factors of the same rank.

mod products;

use std::collections::BTreeMap;

use fedspan_protocol::message::{HeadSolve, Task, Trained};
use fedspan_protocol::tensor::Role;

use super::{MethodKeys, NetworkAlgorithm, NetworkParameters, Plan, SHARED_AND_HEAD, SharedLayers};
use crate::aggregate::{RoundAggregate, UpdateWeight};
use crate::algorithm::Algorithm;
use crate::algorithm::decoded::as_decoded;
use crate::linalg::{Matrix, RankDeficient, from_f32};
use crate::participation::UploadLayout;
use crate::reader::Problem;
use crate::types::{DeviceId, Request, Tensor};
use products::{Factors, MeanOfProducts};

/// Choice of the trained factors and of the averaging method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Averaging {
    /// RoLoRA: devices train B and A in alternate rounds.
    RoLora,
    /// Plain averaging: devices train both factors, and the server averages each factor separately.
    Lora,
    /// FFA-LoRA: devices train the up-projection alone.
    FfaLora,
    /// FlexLoRA: devices train both factors, and the server takes the best rank-r factors of the mean of
    /// products.
    FlexLora,
}

impl Averaging {
    /// Factors trained in round `number`, counted from 0.
    fn trained(self, number: u32) -> Trained {
        match self {
            Self::RoLora if number % 2 == 1 => Trained::Down,
            Self::RoLora | Self::FfaLora => Trained::Up,
            Self::Lora | Self::FlexLora => Trained::Shared,
        }
    }

    /// Roles of the factors that devices which took part in the last round need not receive again.
    fn unchanged(self, number: u32) -> &'static [Role] {
        match (self, self.trained(number)) {
            // A was last trained two rounds ago, so the last round already sent its present value.
            (Self::RoLora, Trained::Down) => &[Role::AdapterDown],
            (Self::RoLora, _) => &[Role::AdapterUp],
            (Self::FfaLora, _) => &[Role::AdapterDown],
            (Self::Lora | Self::FlexLora, _) => &[],
        }
    }
}

/// Shared layers and task of the devices in a round that trains these factors.
fn plan(parameters: &NetworkParameters, trained: Trained) -> Plan {
    let NetworkParameters { descent, head_epochs, epochs, upload_encoding: encoding, .. } = *parameters;
    let task = Task::Sgd { descent, head_epochs, epochs, trained, encoding };
    Plan { shared: SharedLayers::Factors, task }
}

macro_rules! methods {
    ($($Method:ident: $name:literal, $summary:literal;)+) => {$(
        #[doc = concat!("[`Averaging::", stringify!($Method), "`]")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Method;

        impl NetworkAlgorithm for $Method {
            const NAME: &'static str = $name;
            const SUMMARY: &'static str = $summary;
            const RUNS_ON_FIRMWARE: bool = true;
            const TRAINS_ADAPTER: bool = true;
            const NEEDS_MEAN: bool = matches!(Averaging::$Method, Averaging::FlexLora);

            fn read(_keys: &MethodKeys<'_, '_>) -> Result<Self, Problem> {
                Ok(Self)
            }

            fn plan(&self, parameters: &NetworkParameters) -> Plan {
                plan(parameters, Trained::Shared)
            }

            fn server(&self, parameters: NetworkParameters) -> Box<dyn Algorithm> {
                Box::new(Adapter::new(parameters, Averaging::$Method))
            }

            fn evaluated_model(&self) -> &'static str {
                "the shared network"
            }

            fn evaluated_newcomer_model(&self) -> &'static str {
                SHARED_AND_HEAD
            }
        }
    )+};
}

methods! {
    RoLora: "rolora", "low-rank adapters, one factor per round, averaged exactly (Chen et al. 2025)";
    Lora: "lora", "low-rank adapters (Hu et al. 2022), each factor averaged by itself";
    FfaLora: "ffa-lora", "low-rank adapters with a fixed random down-projection (Sun et al. 2024)";
    FlexLora: "flexlora", "low-rank adapters, products averaged and cut to the rank (Bai et al. 2024)";
}

/// Server side of the four algorithms: the shared adapter, and the updates of the open round.
#[derive(Clone, Debug)]
pub struct Adapter {
    parameters: NetworkParameters,
    averaging: Averaging,
    /// Values of A, then of B, concatenated into one column.
    values: Matrix,
    /// Number of finished rounds.
    rounds: u32,
    round: RoundAggregate,
    /// Uploads of both factors, from which [`MeanOfProducts`] is computed. Empty if a round trains one
    /// factor.
    pending: BTreeMap<DeviceId, Factors>,
    interference: Option<f64>,
}

impl Adapter {
    /// Starts from the initial adapter.
    #[must_use]
    pub fn new(parameters: NetworkParameters, averaging: Averaging) -> Self {
        let shape = parameters.shape;
        let range = shape.range(shape.shared_layers(SharedLayers::Factors));
        let start = shape.start(parameters.seed, true);
        let values = start.get(range).unwrap_or_default();
        let values = Matrix::from_column_slice(values.len(), 1, values);
        let mut adapter = Self {
            parameters,
            averaging,
            values,
            rounds: 0,
            round: RoundAggregate::new(parameters.rule, parameters.weighting, 0),
            pending: BTreeMap::new(),
            interference: None,
        };
        adapter.start_round();
        adapter
    }

    /// Request of round `number`, counted from 0.
    fn request_for(&self, number: u32) -> Request {
        let NetworkParameters { shape, download_encoding: encoding, upload_encoding, .. } = self.parameters;
        let trained = self.averaging.trained(number);
        let mut expects = shape.descriptors(SharedLayers::Factors, 1, upload_encoding);
        expects.retain(|factor| match trained {
            Trained::Down => factor.role == Role::AdapterDown,
            Trained::Up => factor.role == Role::AdapterUp,
            _ => true,
        });
        let Plan { task, .. } = plan(&self.parameters, trained);
        Request { task, tensors: self.tensors(), encoding, expects }
    }

    /// Range of the trained factors among the values.
    fn trained_range(&self) -> std::ops::Range<usize> {
        let shape = self.parameters.shape;
        match self.averaging.trained(self.rounds) {
            Trained::Down => shape.range(0..1),
            Trained::Up => shape.range(1..2),
            _ => shape.range(0..2),
        }
    }

    /// Creates an empty aggregate for the factors that the next round trains.
    fn start_round(&mut self) {
        let NetworkParameters { rule, weighting, .. } = self.parameters;
        self.round = RoundAggregate::new(rule, weighting, self.trained_range().len());
        self.pending.clear();
    }

    /// Both factors as tensors.
    fn tensors(&self) -> Vec<Tensor> {
        let NetworkParameters { shape, download_encoding, .. } = self.parameters;
        let plan = plan(&self.parameters, Trained::Shared);
        super::mean::tensors(&plan, shape, self.values.as_slice(), 1, download_encoding)
    }

    /// Replaces the values in `range`.
    fn set_values(&mut self, range: std::ops::Range<usize>, values: impl IntoIterator<Item = f64>) {
        for (current, value) in self.values.iter_mut().skip(range.start).take(range.len()).zip(values) {
            *current = value;
        }
    }
}

impl Algorithm for Adapter {
    fn request(&self) -> Request {
        self.request_for(self.rounds)
    }

    fn requests(&self) -> Vec<Request> {
        (self.rounds..self.rounds.saturating_add(2)).map(|number| self.request_for(number)).collect()
    }

    fn unchanged(&self) -> &[Role] {
        self.averaging.unchanged(self.rounds)
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.round.absorb(device, weight, tensors);
        if let [down, up] = tensors {
            let matrix = |tensor: &Tensor| from_f32(tensor.rows.into(), tensor.cols.into(), &tensor.values);
            let weight = f64::from(weight.weight(self.parameters.weighting));
            self.pending.insert(device, Factors { weight, down: matrix(down), up: matrix(up) });
        }
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        let range = self.trained_range();
        let on_devices: Vec<f64> = self
            .tensors()
            .into_iter()
            .flat_map(|tensor| as_decoded(tensor.values, self.parameters.download_encoding))
            .map(f64::from)
            .collect();
        let centre = on_devices.get(range.clone()).filter(|_| self.round.rule().needs_all_updates());
        let mean = self.round.take_vector(centre.unwrap_or_default());
        let uploads: Vec<Factors> = std::mem::take(&mut self.pending).into_values().collect();
        let products = MeanOfProducts::new(&uploads);
        // If devices trained one factor, the other factor is common to all devices. The mean of products is
        // then the product of means, and the interference is zero.
        self.interference = Some(products.as_ref().map_or(0.0, MeanOfProducts::interference));
        let truncated =
            products.filter(|_| self.averaging == Averaging::FlexLora).and_then(|p| p.truncated());
        match (truncated, mean) {
            (Some((down, up)), _) => {
                // Matrices are column-major, and values are row-major as on the wire.
                let rows = [down.transpose(), up.transpose()];
                self.set_values(
                    range,
                    rows.iter().flat_map(|matrix| matrix.iter().copied()).collect::<Vec<_>>(),
                );
            }
            (None, Some(mean)) => self.set_values(range, mean),
            (None, None) => {}
        }
        self.rounds = self.rounds.saturating_add(1);
        self.start_round();
        Ok(())
    }

    fn representation(&self) -> &Matrix {
        &self.values
    }

    fn upload_layout(&self) -> UploadLayout {
        UploadLayout::Layers { offset: self.trained_range().start }
    }

    fn begins_cycle(&self) -> bool {
        self.averaging != Averaging::RoLora || self.rounds.is_multiple_of(2)
    }

    fn interference(&self) -> Option<f64> {
        self.interference
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        let encoding = self.parameters.download_encoding;
        Request { task: Task::FitHead { head }, tensors: self.tensors(), encoding, expects: Vec::new() }
    }

    /// Returns the factors, then the number of finished rounds.
    fn state(&self) -> Vec<f64> {
        self.values.iter().copied().chain([self.rounds.into()]).collect()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let Some((rounds, values)) = state.split_last() else { return false };
        let fits = values.len() == self.values.len();
        if fits {
            self.set_values(0..values.len(), values.iter().copied());
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of rounds")]
            {
                self.rounds = *rounds as u32;
            }
            self.start_round();
        }
        fits
    }
}
