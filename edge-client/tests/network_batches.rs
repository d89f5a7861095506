//! Tests of batches and gradients for custom training: with them, a custom loop reproduces the network's own
//! steps bit by bit.
#![cfg(feature = "network")]

use fedspan_client::memory::{NetworkMemory, NetworkParts, NetworkShape};
use fedspan_client::source::{NoRecording, Recording, SampleSource, Samples};
use fedspan_client::task::{Batches, add_gradient};
use fedspan_client::{Network, SourceError, Task};
use fedspan_protocol::message::{DeclineReason, Descent, RoundId, RoundOpen, Task as Wire, Trained};
use fedspan_protocol::tensor::Encoding;

const SHAPE: NetworkShape = NetworkShape::new(5, &[6, 4], 3, 8);
const DESCENT: Descent = Descent { step_size: 0.2, momentum: 0.5, batch: 4 };
const SEED: u64 = 9;
const ID: RoundId = RoundId { round: 7, stage: 2 };
/// Number of samples, one of them unusable.
const M: usize = 11;

/// Memory of the network.
struct Memory {
    parameters: Vec<f32>,
    velocity: Vec<f32>,
    scratch: Vec<f32>,
    classes: Vec<u8>,
}

impl Memory {
    /// Creates memory with fixed parameters.
    fn new() -> Self {
        let numbers = |count: usize| (0..count).map(|i| (i as f32 * 0.7).sin() * 0.5).collect();
        Self {
            parameters: numbers(SHAPE.parameters()),
            velocity: vec![0.0; SHAPE.parameters()],
            scratch: vec![0.0; SHAPE.scratch()],
            classes: vec![0; SHAPE.batch],
        }
    }
}

impl NetworkMemory for Memory {
    fn parts(&mut self) -> NetworkParts<'_> {
        let Self { parameters, velocity, scratch, classes } = self;
        NetworkParts {
            shape: SHAPE,
            parameters,
            velocity,
            scratch,
            classes,
            pool_indices: &mut [],
            body_cache: &mut [],
            pace: fedspan_client::pace::Pace::NONE,
            #[cfg(feature = "adapter")]
            frozen: fedspan_client::kernel::frozen::Frozen::Nothing,
        }
    }

    fn shape(&self) -> NetworkShape {
        SHAPE
    }

    fn parameters(&self) -> &[f32] {
        &self.parameters
    }
}

/// Returns the samples and their classes.
fn samples_with_classes() -> (Vec<f32>, Vec<u8>) {
    let mut x: Vec<f32> = (0..M * SHAPE.features).map(|i| (i as f32 * 1.3).cos()).collect();
    x[17] = f32::NAN;
    (x, (0..M).map(|i| (i * i % 3) as u8).collect())
}

fn create_batches(size: u16, source: &mut dyn SampleSource) -> Result<Batches, DeclineReason> {
    Batches::new(SHAPE, ID, SEED, size, source)
}

#[test]
fn custom_steps_have_the_networks_bits() {
    let (x, classes) = samples_with_classes();
    let mut source = Recording::classification(&x, &classes, SHAPE.features);

    let mut network = Network::new(Memory::new(), SEED);
    network.set_parameters(&Memory::new().parameters).unwrap();
    let (trained, encoding) = (Trained::All, Encoding::F32);
    let task = Wire::Sgd { descent: DESCENT, head_epochs: 0, epochs: 3, trained, encoding };
    network.open(&RoundOpen { id: ID, task, tensors: [].into_iter().collect() }).unwrap();
    let usage = network.run(ID, &mut source).unwrap();

    let mut memory = Memory::new();
    let mut velocity = vec![0.0; SHAPE.parameters()];
    let mut batches = create_batches(DESCENT.batch, &mut source).unwrap();
    assert_eq!((batches.usage(), usage.skipped), (usage, 1));
    for _ in 0..3 {
        batches.begin_epoch();
        let mut sizes = Vec::new();
        loop {
            let size = batches.next(&mut memory.parts(), &mut source).unwrap();
            if size == 0 {
                break;
            }
            sizes.push(size);
            let mut gradient = vec![0.0; SHAPE.parameters()];
            assert!(add_gradient(&mut memory.parts(), size, 1.0 / size as f32, &mut gradient));
            for ((w, v), g) in memory.parameters.iter_mut().zip(&mut velocity).zip(&gradient) {
                *v = DESCENT.momentum * *v + g;
                *w -= DESCENT.step_size * *v;
            }
        }
        assert_eq!(sizes, [4, 4, 2]);
    }
    assert_eq!(memory.parameters, network.parameters());
    assert_ne!(memory.parameters, Memory::new().parameters);
}

#[test]
fn gradient_of_parts_equals_that_of_the_whole() {
    let (x, classes) = samples_with_classes();
    let (x, classes) = (&x[..3 * SHAPE.features], &classes[..3]);
    let mut source = Recording::classification(x, classes, SHAPE.features);
    let [one_batch, single_samples] = [3, 1].map(|size| {
        let mut memory = Memory::new();
        let mut batches = create_batches(size, &mut source).unwrap();
        let mut sums = vec![0.0; SHAPE.parameters()];
        batches.begin_epoch();
        loop {
            let size = batches.next(&mut memory.parts(), &mut source).unwrap();
            if size == 0 {
                return sums;
            }
            assert!(add_gradient(&mut memory.parts(), size, 0.25, &mut sums));
        }
    });
    assert_eq!(one_batch, single_samples);
}

#[test]
fn non_finite_gradient_is_reported() {
    let (x, classes) = samples_with_classes();
    let mut source = Recording::classification(&x, &classes, SHAPE.features);
    let mut memory = Memory::new();
    memory.parameters.fill(1e38);
    let mut batches = create_batches(4, &mut source).unwrap();
    batches.begin_epoch();
    let size = batches.next(&mut memory.parts(), &mut source).unwrap();
    assert!(!add_gradient(&mut memory.parts(), size, 1.0, &mut vec![0.0; SHAPE.parameters()]));
}

/// Source that loses a sample between its first pass and training.
struct Shrinking<'a>(Recording<'a>);

impl SampleSource for Shrinking<'_> {
    fn rewind(&mut self, id: RoundId) -> Result<(), SourceError> {
        self.0.rewind(id)
    }

    fn next(&mut self) -> Option<Samples<'_>> {
        self.0.next()
    }

    fn at(&mut self, index: usize) -> Option<Samples<'_>> {
        if index == 5 { None } else { self.0.at(index) }
    }
}

#[test]
fn failed_sources_are_reported() {
    let no_samples = Recording::classification(&[], &[], SHAPE.features);
    assert_eq!(create_batches(4, &mut no_samples.clone()).map(drop), Err(DeclineReason::NoSamples));
    assert_eq!(create_batches(4, &mut NoRecording).map(drop), Err(DeclineReason::Device));
    let (x, classes) = samples_with_classes();
    let mut source = Shrinking(Recording::classification(&x, &classes, SHAPE.features));
    let mut memory = Memory::new();
    let mut batches = create_batches(4, &mut source).unwrap();
    batches.begin_epoch();
    let result = loop {
        match batches.next(&mut memory.parts(), &mut source) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            Err(reason) => break Err(reason),
        }
    };
    assert_eq!(result, Err(DeclineReason::Device));
}
