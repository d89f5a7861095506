//! Example: trains a network of 16 features, 8 hidden units and 3 classes on synthetic samples in batches of
//! ten. `Memory` is all the RAM of the model.
//!
//! The example has no server: its round sends and receives no tensors and trains all layers. In a device with
//! a server, [`Session`] makes the calls of `train`.
//!
//! [`Session`]: fedspan_client::Session
#![allow(clippy::unwrap_used, missing_docs)]

use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};
use fedspan_client::{Network, Recording, Task};
use fedspan_protocol::message::{
    DeclineReason, Descent, Descriptors, RoundId, RoundOpen, Task as Wire, Trained,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Sizes of the network.
struct Sizes;

impl NetworkSizes for Sizes {
    const SHAPE: NetworkShape = NetworkShape::new(16, &[8], 3, 10);
}

/// Number of parameters of the network.
const P: usize = Sizes::SHAPE.parameters();
// Memory of the network. The last number is room for velocities: 0 would mean training without momentum.
type Memory = NetworkWorkspace<Sizes, P, { Sizes::SHAPE.scratch() }, 10, P>;

/// Returns synthetic samples: uniform noise around the centre of each class.
fn synthetic(random: &mut ChaCha8Rng, count: usize) -> (Vec<f32>, Vec<u8>) {
    let classes: Vec<u8> = (0..count).map(|i| (i % 3) as u8).collect();
    let mut value = |class: u8, feature: usize| {
        let noise = random.next_u32() as f32 / u32::MAX as f32 - 0.5;
        noise + if feature % 3 == usize::from(class) { 0.5 } else { 0.0 }
    };
    let x = classes.iter().flat_map(|&class| (0..16).map(move |feature| (class, feature)));
    (x.map(|(class, feature)| value(class, feature)).collect(), classes)
}

/// Runs one round of twenty epochs.
fn train(network: &mut Network<&mut Memory>, source: &mut Recording<'_>) -> Result<(), DeclineReason> {
    let descent = Descent { step_size: 0.1, momentum: 0.5, batch: 10 };
    let encoding = Default::default();
    let task = Wire::Sgd { descent, head_epochs: 0, epochs: 20, trained: Trained::All, encoding };
    let id = RoundId { round: 1, stage: 0 };
    network.open(&RoundOpen { id, task, tensors: Descriptors::new() })?;
    network.verify()?;
    let usage = network.run(id, source)?;
    println!("{} samples used, {} skipped", usage.samples, usage.skipped);
    Ok(())
}

fn main() -> Result<(), DeclineReason> {
    // In firmware the memory is a `static`: it is all zeros and takes no flash.
    let mut memory = Memory::new();
    println!("{} bytes of memory for {P} parameters", size_of::<Memory>());
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut network = Network::new(&mut memory, random.next_u64());
    network.draw(&mut random);
    let (x, classes) = synthetic(&mut random, 60);
    train(&mut network, &mut Recording::classification(&x, &classes, 16))?;

    let (x, classes) = synthetic(&mut random, 30);
    let mut logits = [0.0; 90];
    network.predict(&x, &mut logits).unwrap();
    let largest =
        |logits: &[f32]| (0..3u8).max_by(|&a, &b| logits[usize::from(a)].total_cmp(&logits[usize::from(b)]));
    let correct =
        logits.chunks(3).zip(&classes).filter(|(logits, class)| largest(logits) == Some(**class)).count();
    println!("{correct} of 30 test samples classified correctly");
    assert!(correct >= 25);
    Ok(())
}
