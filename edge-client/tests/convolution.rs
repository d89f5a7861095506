//! Tests of convolutions and pooling: against loops in f64, against finite differences, and as transposes of
//! each other.
#![cfg(feature = "convolution")]

use crate::common::Random;
use crate::common::dense::{cross_entropy, to_f64, values};
use fedspan_client::kernel::convolution::{Convolution, MaxPooling};
use fedspan_client::kernel::dense::{add_gradient, backward, forward, relu, relu_errors, softmax_errors};
use fedspan_client::pace::Pace;
use proptest::prelude::*;

/// Computes pixel `(y, x)` of the output of filter `f`, in f64.
fn output_value(c: &Convolution, image: &[f64], layer: &[f64], (y, x, f): (usize, usize, usize)) -> f64 {
    let mut sum = layer[c.patch() * c.filters + f];
    for row in 0..c.rows {
        for column in 0..c.columns {
            for channel in 0..c.channels {
                let (input_row, input_column) = (y * c.stride + row, x * c.stride + column);
                let input = image[(input_row * c.width + input_column) * c.channels + channel];
                let weight = (row * c.columns + column) * c.channels + channel;
                sum += input * layer[weight * c.filters + f];
            }
        }
    }
    sum
}

/// Computes the output of all filters at all positions, in f64.
fn convolve(c: &Convolution, image: &[f64], layer: &[f64]) -> Vec<f64> {
    let width = c.out_width();
    let output_position =
        |index: usize| (index / c.filters / width, index / c.filters % width, index % c.filters);
    (0..c.outputs()).map(|index| output_value(c, image, layer, output_position(index))).collect()
}

/// Returns the shapes: LeNet-5's first layer on a small image, a signal of six channels, two strides, and a
/// filter as large as the image.
fn convolution_shapes() -> [Convolution; 5] {
    let shape = |[height, width, channels, rows, columns, stride, filters]: [usize; 7]| Convolution {
        height,
        width,
        channels,
        rows,
        columns,
        stride,
        filters,
    };
    [
        shape([12, 11, 3, 5, 5, 1, 6]),
        shape([1, 40, 6, 1, 5, 1, 8]),
        shape([1, 40, 6, 1, 7, 3, 4]),
        shape([9, 10, 2, 3, 2, 2, 5]),
        shape([4, 6, 1, 4, 6, 1, 3]),
    ]
}

#[test]
fn forward_equals_plain_loops() {
    let mut random = Random(1);
    for c in convolution_shapes() {
        let n = 3;
        let (images, layer) = (values(&mut random, n * c.inputs()), values(&mut random, c.layer()));
        let mut patches = vec![0.0; n * c.positions() * c.patch()];
        let mut out = vec![0.0; n * c.outputs()];
        c.forward(&images, &layer, &mut patches, &mut out, Pace::NONE);
        for (image, out) in images.chunks(c.inputs()).zip(out.chunks(c.outputs())) {
            for (computed, expected) in out.iter().zip(convolve(&c, &to_f64(image), &to_f64(&layer))) {
                assert!((f64::from(*computed) - expected).abs() < 1e-5, "{c:?}: {computed} {expected}");
            }
        }
    }
}

/// The operations are transposes of each other: `<patches(x), p> = <x, add_patches(p)>`.
#[test]
fn add_patches_is_the_transpose_of_patches() {
    let mut random = Random(2);
    for c in convolution_shapes() {
        let (x, p) =
            (values(&mut random, 2 * c.inputs()), values(&mut random, 2 * c.positions() * c.patch()));
        let (mut patches, mut summed) = (vec![0.0; p.len()], vec![0.0; x.len()]);
        c.patches(&x, &mut patches);
        c.add_patches(&p, &mut summed);
        let dot = |a: &[f32], b: &[f32]| to_f64(a).iter().zip(to_f64(b)).map(|(a, b)| a * b).sum::<f64>();
        let (patch_product, input_product) = (dot(&patches, &p), dot(&x, &summed));
        assert!((patch_product - input_product).abs() < 1e-4, "{c:?}: {patch_product} {input_product}");
    }
}

/// For two convolutions with ReLUs, of which the first one is pooled, and a dense layer, each gradient equals
/// the slope of the loss.
#[test]
fn gradients_equal_finite_differences() {
    const STEP: f64 = 1e-5;
    const N: usize = 2;
    let error = if cfg!(feature = "micromath") { 1e-3 } else { 2e-6 };
    let shape = |height, width, channels, rows, filters| {
        let c = Convolution { height, width, channels, rows, columns: 3, stride: 1, filters };
        (c, MaxPooling { height: c.out_height(), width: c.out_width(), channels: filters, rows, columns: 2 })
    };
    // The first shape is an image, the second one a signal.
    for (height, rows) in [(8, 2), (1, 1)] {
        let (first, pooling) = shape(height, 13, 2, rows, 3);
        let (second, _) = shape(pooling.out_height(), pooling.out_width(), 3, rows, 4);
        let classes = [1u8, 4];
        let mut random = Random(7);
        let x = values(&mut random, N * first.inputs());
        let layers = [first.layer(), second.layer(), (second.outputs() + 1) * 5]
            .map(|count| values(&mut random, count));

        let [mut p0, mut p1] = [first, second].map(|c| vec![0.0; N * c.positions() * c.patch()]);
        let [mut a0, mut a1] = [first, second].map(|c| vec![0.0; N * c.outputs()]);
        let (mut pooled, mut pool_indices) =
            (vec![0.0; N * pooling.outputs()], vec![0; N * pooling.outputs()]);
        let mut logits = vec![0.0; N * 5];
        first.forward(&x, &layers[0], &mut p0, &mut a0, Pace::NONE);
        relu(&mut a0);
        pooling.forward(&a0, &mut pooled, &mut pool_indices);
        second.forward(&pooled, &layers[1], &mut p1, &mut a1, Pace::NONE);
        relu(&mut a1);
        forward(&a1, &layers[2], 5, &mut logits, Pace::NONE);
        assert!(softmax_errors(&mut logits, &classes, 1.0 / N as f32, Pace::NONE));

        let (mut d1, mut dp, mut d0) = (vec![0.0; a1.len()], vec![0.0; pooled.len()], vec![0.0; a0.len()]);
        let mut errors = vec![0.0; p1.len()];
        backward(&logits, &layers[2], 5, &a1, &mut d1, Pace::NONE);
        second.add_errors(&d1, &layers[1], &mut errors, &mut dp, Pace::NONE);
        relu_errors(&pooled, &mut dp);
        pooling.backward(&dp, &pool_indices, &mut d0);

        let mut gradients = layers.clone().map(|layer| vec![0.0; layer.len()]);
        add_gradient(&p0, &d0, first.filters, &mut gradients[0], Pace::NONE);
        add_gradient(&p1, &d1, second.filters, &mut gradients[1], Pace::NONE);
        add_gradient(&a1, &logits, 5, &mut gradients[2], Pace::NONE);

        let loss = |layers: &[Vec<f64>; 3]| -> f64 {
            let of_image = |(image, &class): (&[f32], &u8)| {
                let a = rectify(convolve(&first, &to_f64(image), &layers[0]));
                let a = rectify(convolve(&second, &pool_maxima(&pooling, &a), &layers[1]));
                let mut logits = layers[2][a.len() * 5..].to_vec();
                for (a, row) in a.iter().zip(layers[2].chunks(5)) {
                    logits.iter_mut().zip(row).for_each(|(logit, w)| *logit += a * w);
                }
                cross_entropy(&logits, class)
            };
            x.chunks(first.inputs()).zip(&classes).map(of_image).sum::<f64>() / N as f64
        };
        let mut exact = [0, 1, 2].map(|depth: usize| to_f64(&layers[depth]));
        for (depth, gradient) in gradients.iter().enumerate() {
            assert!(gradient.iter().any(|g| g.abs() > 0.01));
            for (index, &g) in gradient.iter().enumerate() {
                let w = exact[depth][index];
                let mut loss_at = |w: f64| {
                    exact[depth][index] = w;
                    loss(&exact)
                };
                let slope = (loss_at(w + STEP) - loss_at(w - STEP)) / (2.0 * STEP);
                loss_at(w);
                assert!((f64::from(g) - slope).abs() < error, "layer {depth} place {index}: {g} {slope}");
            }
        }
    }
}

fn rectify(values: Vec<f64>) -> Vec<f64> {
    values.into_iter().map(|value| value.max(0.0)).collect()
}

/// Computes max pooling in f64.
fn pool_maxima(pooling: &MaxPooling, image: &[f64]) -> Vec<f64> {
    let mut out = Vec::new();
    for y in 0..pooling.out_height() {
        for x in 0..pooling.out_width() {
            for channel in 0..pooling.channels {
                let window = (0..pooling.rows * pooling.columns).map(|index| {
                    let (row, column) = (index / pooling.columns, index % pooling.columns);
                    let pixel = (y * pooling.rows + row) * pooling.width + x * pooling.columns + column;
                    image[pixel * pooling.channels + channel]
                });
                out.push(window.fold(f64::MIN, f64::max));
            }
        }
    }
    out
}

#[test]
fn pooling_keeps_the_first_maximum_and_any_nan() {
    let pooling = MaxPooling { height: 2, width: 5, channels: 1, rows: 2, columns: 2 };
    let image = [1.0, 3.0, f32::NAN, 2.0, 9.0, 3.0, 0.0, 5.0, 6.0, 9.0];
    let (mut out, mut pool_indices) = ([0.0; 2], [9; 2]);
    pooling.forward(&image, &mut out, &mut pool_indices);
    assert_eq!((out[0], out[1].is_nan(), pool_indices), (3.0, true, [1, 0]));
    let mut errors = [7.0; 10];
    pooling.backward(&[0.5, -1.0], &pool_indices, &mut errors);
    assert_eq!(errors, [0.0, 0.5, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

proptest! {
    #[test]
    fn wrong_lengths_do_not_panic(
        [height, width, channels, rows, columns, stride, filters] in prop::array::uniform7(0usize..5),
        lengths in prop::array::uniform5(0usize..200),
    ) {
        let c = Convolution { height, width, channels, rows, columns, stride, filters };
        let pooling = MaxPooling { height, width, channels, rows, columns };
        let [mut a, mut b, layer, x, mut out] = lengths.map(|length| vec![0.5f32; length]);
        let mut pool_indices = vec![u8::MAX; a.len()];
        c.forward(&x, &layer, &mut a, &mut out, Pace::NONE);
        c.add_errors(&x, &layer, &mut b, &mut out, Pace::NONE);
        pooling.backward(&x, &pool_indices, &mut out);
        pooling.forward(&x, &mut out, &mut pool_indices);
        pooling.backward(&x, &pool_indices, &mut out);
    }
}
