//! Tests of convolutional layers that compute a few rows of an image at a time: the bits are those of whole
//! images, and the models fit the memory of a microcontroller.
#![cfg(feature = "convolution")]

use crate::common::dense::values;
use crate::common::{Random, bits};
use fedspan_client::kernel::convolution::{Convolution, MaxPooling};
use fedspan_client::kernel::dense::{add_gradient, backward};
use fedspan_client::kernel::layer::{ForwardPass, Gradient, Layer, LayerBuffers, Step};
use fedspan_client::memory::{NetworkShape, NetworkSizes, NetworkWorkspace};
use fedspan_client::pace::Pace;
use fedspan_protocol::message::{Filters, Image};
use proptest::prelude::*;

/// Number of images in a batch.
const N: usize = 3;

/// Bits of a layer's output for a batch, of the errors of its inputs, and of its gradient.
#[derive(Debug, PartialEq)]
struct Outcome {
    out: Vec<u32>,
    input_errors: Vec<u32>,
    gradient: Vec<u32>,
}

/// Returns the bits of values, those of one NaN for all of them.
fn bits_of_one_nan(values: &[f32]) -> Vec<u32> {
    bits(&values.iter().map(|value| if value.is_nan() { f32::NAN } else { *value }).collect::<Vec<_>>())
}

/// Computes whole images with the kernels, at all positions including those that pooling drops, with errors
/// that are masked per patch.
fn compute_whole_images(c: Convolution, pooling: MaxPooling, [x, weights, delta]: [&[f32]; 3]) -> Outcome {
    let mut patches = vec![0.0; N * c.positions() * c.patch()];
    let mut unpooled = vec![0.0; N * c.outputs()];
    let (mut out, mut pool_indices) = (vec![0.0; N * pooling.outputs()], vec![0; N * pooling.outputs()]);
    c.forward(x, weights, &mut patches, &mut unpooled, Pace::NONE);
    pooling.forward(&unpooled, &mut out, &mut pool_indices);
    pooling.backward(delta, &pool_indices, &mut unpooled);
    let (mut errors, mut input_errors) = (vec![0.0; patches.len()], vec![0.0; x.len()]);
    backward(&unpooled, weights, c.filters, &patches, &mut errors, Pace::NONE);
    c.add_patches(&errors, &mut input_errors);
    let mut gradient = vec![0.0; c.layer()];
    add_gradient(&patches, &unpooled, c.filters, &mut gradient, Pace::NONE);
    Outcome {
        out: bits_of_one_nan(&out),
        input_errors: bits_of_one_nan(&input_errors),
        gradient: bits_of_one_nan(&gradient),
    }
}

/// Computes the images with the layer, which works in strips.
fn compute_in_strips(layer: Layer, [x, weights, delta]: [&[f32]; 3]) -> Outcome {
    let mut scratch = vec![f32::NAN; layer.scratch()];
    let mut pool_indices = vec![0xEE; N * layer.pool_indices()];
    let mut buffers = LayerBuffers {
        saved: &mut [],
        pool_indices: &mut pool_indices,
        scratch: &mut scratch,
        pace: fedspan_client::pace::Pace::NONE,
    };
    let mut out = vec![f32::NAN; N * layer.outputs()];
    layer.forward(x, weights, &mut out, LayerBuffers { saved: &mut [], ..buffers });
    buffers = LayerBuffers {
        saved: &mut [],
        pool_indices: &mut pool_indices,
        scratch: &mut scratch,
        pace: fedspan_client::pace::Pace::NONE,
    };
    let (mut input_errors, mut gradient) = (vec![f32::NAN; x.len()], vec![0.0; weights.len()]);
    let pass = ForwardPass {
        x,
        #[cfg(feature = "recurrent")]
        after_relu: true,
        room: buffers,
    };
    layer.backward(
        pass,
        delta,
        &mut weights.to_vec(),
        Some(&mut input_errors),
        Gradient::Added(&mut gradient),
    );
    Outcome {
        out: bits_of_one_nan(&out),
        input_errors: bits_of_one_nan(&input_errors),
        gradient: bits_of_one_nan(&gradient),
    }
}

/// Takes a step of size one from weights of zero, and returns the weights: the negative gradient.
fn take_unit_step(layer: Layer, [x, weights, delta]: [&[f32]; 3]) -> Vec<f32> {
    let (mut pool_indices, mut scratch) =
        (vec![0; N * layer.pool_indices()], vec![f32::NAN; layer.scratch()]);
    let mut out = vec![0.0; N * layer.outputs()];
    layer.forward(
        x,
        weights,
        &mut out,
        LayerBuffers {
            saved: &mut [],
            pool_indices: &mut pool_indices,
            scratch: &mut scratch,
            pace: fedspan_client::pace::Pace::NONE,
        },
    );
    let mut weights = vec![0.0; weights.len()];
    let pass = ForwardPass {
        x,
        #[cfg(feature = "recurrent")]
        after_relu: true,
        room: LayerBuffers {
            saved: &mut [],
            pool_indices: &mut pool_indices,
            scratch: &mut scratch,
            pace: fedspan_client::pace::Pace::NONE,
        },
    };
    let step = Step { momentum: 0.0, velocity: None, size: 1.0 };
    layer.backward(pass, delta, &mut weights, None, Gradient::Step(step));
    weights
}

/// Draws a layer and a batch for it, and compares strips with whole images. `spoil` changes inputs, weights and errors.
fn assert_bits_of_whole_images(
    c: Convolution,
    [down, across]: [usize; 2],
    seed: u64,
    spoil: impl Fn([&mut [f32]; 3]),
) -> Result<(), TestCaseError> {
    let pooling = MaxPooling {
        height: c.out_height(),
        width: c.out_width(),
        channels: c.filters,
        rows: down,
        columns: across,
    };
    prop_assume!(pooling.outputs() > 0);
    let mut random = Random(seed);
    // Half of the inputs and errors are zero, as after a ReLU.
    let mut x: Vec<f32> = values(&mut random, N * c.inputs()).iter().map(|x| x.max(0.0)).collect();
    let mut delta: Vec<f32> = values(&mut random, N * pooling.outputs());
    for error in delta.iter_mut().filter(|error| **error < 0.1) {
        *error *= f32::from(u8::from(*error < -0.3));
    }
    let mut weights = values(&mut random, c.layer());
    spoil([&mut x, &mut weights, &mut delta]);
    let layer = Layer::Filters { convolution: c, pooling };
    let data = [&x[..], &weights, &delta];
    let expected = compute_whole_images(c, pooling, data);
    prop_assert_eq!(&compute_in_strips(layer, data), &expected);
    let stepped: Vec<f32> = take_unit_step(layer, data).iter().map(|w| 0.0 - w).collect();
    prop_assert_eq!(bits_of_one_nan(&stepped), expected.gradient);
    Ok(())
}

proptest! {
    #[test]
    fn strips_have_the_bits_of_whole_images(
        [height, width, channels, filters] in prop::array::uniform4(1usize..9),
        [rows, columns, stride, down, across] in prop::array::uniform5(1usize..4),
        seed in 0u64..1000,
    ) {
        let c = Convolution { height, width, channels, rows, columns, stride, filters };
        assert_bits_of_whole_images(c, [down, across], seed, |_| {})?;
    }

    #[test]
    fn strips_of_many_channels_have_the_bits_of_whole_images(
        [height, width] in prop::array::uniform2(1usize..8), [channels, filters] in prop::array::uniform2(1usize..80),
        [rows, columns, stride, down, across] in prop::array::uniform5(1usize..4),
        seed in 0u64..1000,
    ) {
        let c = Convolution { height, width, channels, rows, columns, stride, filters };
        assert_bits_of_whole_images(c, [down, across], seed, |_| {})?;
    }

    #[test]
    fn values_that_are_not_finite_spread_as_in_whole_images(
        // Pooling drops no row of outputs: strips skip such rows.
        height in prop::sample::select(vec![3usize, 5, 7]), width in 3usize..8,
        channels in prop::sample::select(vec![2usize, 40]),
        spoiled in 0usize..3, place in 0usize..1000, seed in 0u64..1000,
        value in prop::sample::select(vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN]),
    ) {
        let c = Convolution { height, width, channels, rows: 2, columns: 2, stride: 1, filters: 9 };
        assert_bits_of_whole_images(c, [2, 2], seed, |slices| {
            let slice = slices.into_iter().nth(spoiled).unwrap();
            let place = place % slice.len();
            slice[place] = value;
        })?;
    }
}

const fn filters_of_side_5(count: u16) -> Filters {
    Filters { count, side: 5, pool: 2 }
}

/// Network for images of MNIST in full size, with two convolutional layers and a hidden layer, trained on one
/// sample at a time.
struct Mnist;

impl NetworkSizes for Mnist {
    const SHAPE: NetworkShape = mnist(16, 1);
}

const fn mnist(hidden: usize, batch: usize) -> NetworkShape {
    let image = Image { height: 28, width: 28, channels: 1 };
    NetworkShape::convolutional(image, &[filters_of_side_5(4), filters_of_side_5(8)], &[hidden], 10, batch)
}

/// Network for signals of 25 steps and six channels, trained in batches of ten.
struct Motion;

impl NetworkSizes for Motion {
    const SHAPE: NetworkShape = NetworkShape::convolutional(
        Image { height: 1, width: 25, channels: 6 },
        &[filters_of_side_5(8)],
        &[16],
        7,
        10,
    );
}

/// Returns the memory of a model with momentum in bytes.
const fn ram_bytes(shape: NetworkShape) -> usize {
    4 * (2 * shape.parameters() + shape.scratch()) + shape.bytes()
}

/// The sizes of models are those that the documentation states.
#[test]
fn images_fit_a_microcontroller() {
    const P: usize = Mnist::SHAPE.parameters();
    const S: usize = Mnist::SHAPE.scratch();
    const N: usize = Mnist::SHAPE.bytes();
    let size = size_of::<NetworkWorkspace<Mnist, P, S, N, P>>();
    assert_eq!(size, ram_bytes(Mnist::SHAPE).next_multiple_of(4));
    assert_eq!((size, ram_bytes(Motion::SHAPE)), (46_684, 34_818));
    // A model with a hidden layer of 32 does not fit 64 KB together with a stack; in batches of ten it fits
    // none of the boards.
    assert_eq!((ram_bytes(mnist(32, 1)), ram_bytes(mnist(32, 10))), (64_537, 167_434));
}
