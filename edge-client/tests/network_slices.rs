//! Tests of networks whose sizes are known at run time only: described shapes, and memory in slices.
#![cfg(feature = "network")]

use crate::common::network::{
    NetworkHeap, descent, draw_parameters, fit_head_task, labelled_samples, network, sgd, with_cells,
    with_filters,
};
use fedspan_client::memory::{NetworkMemory, NetworkShape, NetworkSlices, ShapeError, SlicesError};
use fedspan_client::{Network, Task};
use fedspan_protocol::limits::{FILTERS_MAX, HIDDEN_AFTER_FILTERS_MAX};
use fedspan_protocol::message::{
    Descriptors, Filters, Image, Model, RoundId, RoundOpen, Task as Wire, Trained,
};
use proptest::prelude::*;

const BATCH: usize = 4;

/// Shapes of all kinds that the features allow.
fn shapes() -> Vec<NetworkShape> {
    let mut shapes = vec![
        NetworkShape::new(3, &[], 2, BATCH),
        NetworkShape::new(5, &[4], 3, BATCH),
        NetworkShape::new(6, &[5, 4, 3], 2, BATCH),
    ];
    shapes.extend(with_filters(BATCH));
    shapes.extend(with_cells(BATCH));
    #[cfg(feature = "adapter")]
    shapes.extend([
        NetworkShape::adapted(6, 2, 5, &[], 3, BATCH),
        NetworkShape::adapted(6, 2, 5, &[4, 3], 2, BATCH),
    ]);
    shapes
}

/// Runs a round in which the device shares no layer and keeps its own.
fn run(network: &mut Network<impl NetworkMemory>, task: Wire, round: u32) {
    let id = RoundId { round, stage: 0 };
    let mut samples = labelled_samples(network.shape(), 11, 3);
    network.open(&RoundOpen { id, task, tensors: Descriptors::new() }).unwrap();
    network.verify().unwrap();
    network.run(id, &mut samples).unwrap();
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn network_in_slices_learns_the_same_bits() {
    for shape in shapes() {
        let start = draw_parameters(shape, 1);
        for (momentum, cached) in [(0.0, false), (0.5, false), (0.5, true)] {
            let cache = if cached { shape.body_cache_len(11) } else { 0 };
            // The array has content of an earlier use.
            let mut values = vec![f32::NAN; NetworkSlices::values(shape, momentum > 0.0) + cache];
            let mut bytes = vec![0xEE; shape.bytes() + 1];
            let memory = NetworkSlices::new(shape, momentum > 0.0, &mut values, &mut bytes).unwrap();
            let mut sliced = Network::new(memory, 5);
            sliced.set_parameters(&start).unwrap();
            let mut reference = network(NetworkHeap::new(shape), &start);
            let descent = descent(0.1, momentum, 3);
            let trained = if shape.is_adapted() { Trained::Down } else { Trained::All };
            for (round, task) in (1..).zip([sgd(descent, 1, 2, trained), fit_head_task(descent, 3)]) {
                run(&mut sliced, task, round);
                run(&mut reference, task, round);
                assert_eq!(bits(sliced.parameters()), bits(reference.parameters()), "{shape:?}");
            }
            assert_ne!(bits(sliced.parameters()), bits(&start));
        }
    }
}

#[test]
fn short_slices_are_refused_with_numbers() {
    for shape in shapes() {
        for momentum in [false, true] {
            let (needed, bytes) = (NetworkSlices::values(shape, momentum), shape.bytes());
            let error = |values: usize, bytes: usize| {
                let (mut values, mut bytes) = (vec![0.0; values], vec![0; bytes]);
                NetworkSlices::new(shape, momentum, &mut values, &mut bytes).map(|_| ()).unwrap_err()
            };
            for got in [0, 1, needed - 1] {
                assert_eq!(error(got, bytes), SlicesError::Values { needed, got });
            }
            for got in [0, bytes - 1] {
                assert_eq!(error(needed, got), SlicesError::Bytes { needed: bytes, got });
            }
        }
    }
    let error = SlicesError::Values { needed: 9, got: 7 };
    assert_eq!(error.to_string(), "7 values given; the network needs 9");
}

#[test]
fn memory_without_velocity_declines_momentum() {
    let shape = NetworkShape::new(5, &[4], 3, BATCH);
    let mut values = vec![0.0; NetworkSlices::values(shape, false)];
    let mut bytes = vec![0; shape.bytes()];
    let mut network = Network::new(NetworkSlices::new(shape, false, &mut values, &mut bytes).unwrap(), 5);
    network.set_parameters(&draw_parameters(shape, 1)).unwrap();
    let task = fit_head_task(descent(0.1, 0.5, 3), 1);
    let opened = network.open(&RoundOpen { id: RoundId::default(), task, tensors: Descriptors::new() });
    assert_eq!(opened, Err(fedspan_protocol::message::DeclineReason::Parameter));
}

#[test]
fn described_shape_is_the_shape_of_the_model() {
    for shape in shapes() {
        let model = Network::new(NetworkHeap::new(shape), 1).model();
        assert_eq!(NetworkShape::described(&model, BATCH), Ok(shape), "{model}");
        assert_eq!(NetworkShape::described(&model, 0), Err(ShapeError::Empty));
    }
}

#[test]
fn impossible_descriptions_are_refused_with_a_reason() {
    let refused = |model: Model| NetworkShape::described(&model, 10).unwrap_err();
    assert_eq!(refused(Model::linear(20, 2, 1)), ShapeError::Linear);
    assert_eq!(refused(Model::network(0, [3, 0, 0], 2)), ShapeError::Empty);
    assert_eq!(refused(Model::network(3, [3, 0, 0], 0)), ShapeError::Empty);
    assert_eq!(refused(Model::network(3, [0, 3, 0], 2)), ShapeError::Empty);
    let side = ShapeError::Side { found: 65_536, allowed: 65_535 };
    assert_eq!(refused(Model::network(65_535, [3, 0, 0], 2)), side);
    assert_eq!(side.to_string(), "a layer has 65536 rows or columns, allowed: at most 65535");
    let values = refused(Model::network(65_534, [65_534, 0, 0], 2));
    assert!(
        matches!(values, ShapeError::Values { found, allowed: 0x1000_0000 } if found > 1 << 32),
        "{values}"
    );
    let image = Image { height: 4, width: 4, channels: 1 };
    let filters = |count, side, pool| [Filters { count, side, pool }, Filters::default()];
    let convolutional = |filters| Model::convolutional(image, filters, [0; HIDDEN_AFTER_FILTERS_MAX], 2);
    if cfg!(feature = "convolution") {
        // Filters and pooling that leave nothing, and a layer that follows a missing one.
        for filters in [filters(3, 5, 1), filters(3, 4, 2), filters(3, 0, 1), filters(3, 2, 0)] {
            assert_eq!(refused(convolutional(filters)), ShapeError::Empty);
        }
        let [first, missing] = filters(3, 2, 1);
        assert_eq!(refused(convolutional([missing, first])), ShapeError::Empty);
        assert_eq!(refused(convolutional([missing; FILTERS_MAX])), ShapeError::Empty);
    } else {
        assert_eq!(refused(convolutional(filters(3, 2, 1))), ShapeError::Feature("convolution"));
    }
    if cfg!(feature = "recurrent") {
        for (steps, channels, cells) in [(0, 3, 2), (3, 0, 2), (3, 3, 0)] {
            assert_eq!(refused(Model::recurrent(steps, channels, cells, [0; 3], 2)), ShapeError::Empty);
        }
    } else {
        let recurrent = Model::recurrent(3, 3, 2, [0; 3], 2);
        assert_eq!(refused(recurrent), ShapeError::Feature("recurrent"));
    }
    if cfg!(feature = "adapter") {
        assert_eq!(refused(Model::adapted(6, 0, 5, [0; 3], 2, 0)), ShapeError::Empty);
    } else {
        assert_eq!(refused(Model::adapted(6, 2, 5, [0; 3], 2, 0)), ShapeError::Feature("adapter"));
    }
}

/// Sizes near the limits: small ones, and any.
fn size() -> impl Strategy<Value = u16> {
    prop_oneof![0u16..6, any::<u16>()]
}

fn model() -> impl Strategy<Value = Model> {
    let filters =
        || (size(), any::<u8>(), any::<u8>()).prop_map(|(count, side, pool)| Filters { count, side, pool });
    let hidden = || [size(), size(), size()];
    prop_oneof![
        (size(), hidden(), size()).prop_map(|(d, hidden, c)| Model::network(d, hidden, c)),
        ([size(), size(), size()], [filters(), filters()], [size(), size()], size()).prop_map(
            |([height, width, channels], filters, hidden, outputs)| {
                Model::convolutional(Image { height, width, channels }, filters, hidden, outputs)
            }
        ),
        ([size(), size(), size()], hidden(), size()).prop_map(|([steps, channels, cells], hidden, c)| {
            Model::recurrent(steps, channels, cells, hidden, c)
        }),
        ([size(), size(), size()], hidden(), size())
            .prop_map(|([d, rank, width], hidden, c)| Model::adapted(d, rank, width, hidden, c, 7)),
    ]
}

proptest! {
    /// An accepted shape has sizes that a device with 32 bits can compute, and the description of the model.
    #[test]
    fn sizes_of_accepted_shapes_fit_32_bits(model in model(), batch in 0usize..2000) {
        if let Ok(shape) = NetworkShape::described(&model, batch) {
            let total = 2 * shape.parameters() as u64 + shape.scratch() as u64;
            prop_assert!(total <= 1 << 28, "{model} {total}");
            prop_assert!(shape.bytes() <= 1 << 28);
            prop_assert_eq!((shape.features, shape.outputs), (model.features(), model.outputs()));
            prop_assert!((0..shape.layers()).all(|layer| shape.layer(layer).outputs() > 0));
        }
    }
}
