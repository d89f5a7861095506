//! Test helpers: a fleet that connects a server's algorithm directly with simulated devices, without a
//! network. The test chooses the participants of each round.

use fedspan_client::Task;
use fedspan_client::source::Recording;
use fedspan_engine::aggregate::{Rule, UpdateWeight};
use fedspan_engine::algorithm::Algorithm;
use fedspan_engine::algorithm::network::{Front, NetworkMethod, NetworkParameters, NetworkShape};
use fedspan_engine::{DeviceId, Tensor, Weighting};
use fedspan_protocol::message::{DeclineReason, Descent, HeadSolve, RoundId, RoundOpen, Task as Wire};
use fedspan_protocol::tensor::Encoding;
use fedspan_sim_core::data::{Labels, Set};
use fedspan_sim_core::network::{JoinTime, NetworkConfig, SimNetwork};

use crate::common::random_numbers;

/// Number of features.
pub const D: usize = 3;
/// Width of the hidden layer.
pub const H: usize = 4;
/// Number of classes.
pub const C: usize = 3;
/// Number of samples of a device.
pub const M: usize = 7;

/// Random samples of a device, with classes that depend on the features and on the device.
pub fn samples(device: u64, count: usize) -> Set {
    let x: Vec<f32> = random_numbers(count * D, 100 + device).iter().map(|value| *value as f32).collect();
    let class = |x: &[f32]| u8::from(x[0] > 0.2) + u8::from(x[1] + x[2] > 0.3 * device as f32);
    let classes = x.chunks(D).map(class).collect();
    Set::new(x, Labels::Classes(classes))
}

/// Sample source of a device with these samples.
pub fn source(set: &Set) -> Recording<'_> {
    let Labels::Classes(classes) = &set.y else { panic!("classes") };
    Recording::classification(&set.x, classes, D)
}

/// Parameters of an algorithm for the sizes of this module.
pub fn parameters(descent: Descent, epochs: u16) -> NetworkParameters {
    NetworkParameters {
        shape: NetworkShape {
            features: D as u16,
            front: Front::Nothing,
            hidden: [H as u16, 0, 0],
            outputs: C as u16,
        },
        descent,
        head_epochs: 0,
        epochs,
        download_encoding: Encoding::F32,
        upload_encoding: Encoding::F32,
        weighting: Weighting::Uniform,
        rule: Rule::MEAN,
        fleet: 3,
        seed: 5,
        training_rounds: 0,
        first_device: 0,
    }
}

/// Server's algorithm with three devices.
pub struct Fleet {
    pub algorithm: Box<dyn Algorithm>,
    pub devices: Vec<SimNetwork>,
    pub sets: Vec<Set>,
    pub round: u32,
    method: NetworkMethod,
    parameters: NetworkParameters,
}

impl Fleet {
    /// Creates three devices of `M` samples.
    pub fn new(method: NetworkMethod, descent: Descent, epochs: u16) -> Self {
        let parameters = parameters(descent, epochs);
        let build_for = NetworkConfig::new(method, parameters).unwrap();
        Self {
            algorithm: method.server(parameters),
            devices: (0..3)
                .map(|device| SimNetwork::new(&build_for, device, M, JoinTime::BeforeTraining))
                .collect(),
            sets: (0..3).map(|device| samples(device, M)).collect(),
            round: 0,
            method,
            parameters,
        }
    }

    /// Round opening of the next round, and the tensors that the server sends.
    pub fn opening(&self) -> (RoundOpen, Vec<Tensor>) {
        let request = self.algorithm.request();
        let tensors = request.tensors.iter().map(|tensor| tensor.descriptor(request.encoding)).collect();
        let id = RoundId { round: self.round + 1, stage: 0 };
        (RoundOpen { id, task: request.task, tensors }, request.tensors)
    }

    /// Runs a round on one device and returns its update.
    pub fn answer(
        &mut self,
        device: usize,
        (open, tensors): &(RoundOpen, Vec<Tensor>),
    ) -> Result<Vec<Tensor>, DeclineReason> {
        let task = &mut self.devices[device];
        task.open(open)?;
        for (index, tensor) in tensors.iter().enumerate() {
            task.tensor_mut(index).unwrap().copy_from_slice(&tensor.values);
        }
        task.verify()?;
        task.run(open.id, &mut source(&self.sets[device]))?;
        let sent_tensors = task.upload().into_iter().enumerate().map(|(index, tensor)| {
            let mut values = vec![f32::NAN; tensor.elements()];
            // The tensor is emitted in two parts, as it is for chunked frames.
            let (head, tail) = values.split_at_mut(5);
            task.emit(index, 0, head);
            task.emit(index, 5, tail);
            Tensor { role: tensor.role, rows: tensor.rows, cols: tensor.cols, values }
        });
        Ok(sent_tensors.collect())
    }

    /// Runs a round with the given participants.
    pub fn run_round(&mut self, participants: &[usize]) {
        let opening = self.opening();
        for &device in participants {
            let uploaded = self.answer(device, &opening).unwrap();
            assert_eq!(
                uploaded.iter().map(|t| t.descriptor(Encoding::F32)).collect::<Vec<_>>(),
                self.algorithm.request().expects
            );
            self.algorithm.absorb(DeviceId(device as u64), UpdateWeight::from_samples(M as u32), &uploaded);
        }
        self.algorithm.finish().unwrap();
        self.round += 1;
    }

    /// Shared layers of the server.
    pub fn shared(&self) -> Vec<Tensor> {
        let head = HeadSolve::Sgd { epochs: 0, descent: Descent::default() };
        self.algorithm.fit_request(head).tensors
    }

    /// Values of the shared network, as bits.
    pub fn bits(&self) -> Vec<u64> {
        self.algorithm.representation().iter().map(|value| value.to_bits()).collect()
    }

    /// Network with which a device is scored.
    pub fn scored(&self, device: usize) -> Vec<f32> {
        self.devices[device].scored(&self.shared(), &self.sets[device])
    }

    /// Replaces a device by a newcomer with the same number, which trains for `epochs` epochs in the final
    /// fit.
    pub fn replace(&mut self, device: usize, epochs: u16) {
        let build_for = NetworkConfig::new(self.method, self.parameters).unwrap();
        let join_time = JoinTime::AfterTraining { epochs };
        self.devices[device] = SimNetwork::new(&build_for, device as u64, M, join_time);
    }

    /// Network of a device after a final fit with 0 epochs.
    pub fn fitted(&mut self, device: usize) -> Vec<f32> {
        assert!(self.try_fit(device).unwrap().is_empty());
        self.devices[device].own().to_vec()
    }

    /// Upload of a device for a final fit with 0 epochs.
    pub fn try_fit(&mut self, device: usize) -> Result<Vec<Tensor>, DeclineReason> {
        let (mut open, _) = self.opening();
        let tensors = self.shared();
        open.task = Wire::FitHead {
            head: HeadSolve::Sgd { epochs: 0, descent: Descent { batch: 1, ..Descent::default() } },
        };
        open.tensors = tensors.iter().map(|tensor| tensor.descriptor(Encoding::F32)).collect();
        self.answer(device, &(open, tensors))
    }
}

/// Set that contains the first sample of `set` `count` times.
pub fn repeated(set: &Set, count: usize) -> Set {
    let Labels::Classes(classes) = &set.y else { panic!("classes") };
    Set::new(set.x[..D].repeat(count), Labels::Classes(vec![classes[0]; count]))
}
