//! Tests of worked examples of `protocol/SPEC.md`: the kernels reproduce the numbers of a convolutional layer
//! and of an LSTM layer.
#![cfg(all(feature = "convolution", feature = "recurrent"))]

use std::path::Path;

use fedspan_client::kernel::convolution::{Convolution, MaxPooling};
use fedspan_client::kernel::dense::relu;
use fedspan_client::kernel::layer::{Layer, LayerBuffers};
use fedspan_client::kernel::recurrent::Lstm;

/// Returns the values of the line `name` in the block of the document that follows this title.
fn values_of_line(text: &str, title: &str, name: &str) -> Vec<f32> {
    let block = text.split_once(title).expect(title).1;
    let block = block.split("```").nth(1).expect("a block");
    let line = block.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    line.split_whitespace().map(|value| value.parse().expect(value)).collect()
}

/// Computes the layer's output for the values `x` and `W` of a block.
fn output_of(text: &str, title: &str, layer: Layer) -> Vec<f32> {
    let (x, weights) = (values_of_line(text, title, "x "), values_of_line(text, title, "W "));
    assert_eq!((x.len(), weights.len()), (layer.inputs(), layer.parameters()));
    let (mut saved, mut scratch) = (vec![0.0; layer.saved()], vec![0.0; layer.scratch()]);
    let mut pool_indices = vec![0; layer.pool_indices()];
    let mut out = vec![0.0; layer.outputs()];
    let buffers = LayerBuffers {
        saved: &mut saved,
        pool_indices: &mut pool_indices,
        scratch: &mut scratch,
        pace: fedspan_client::pace::Pace::NONE,
    };
    layer.forward(&x, &weights, &mut out, buffers);
    if layer.has_relu() {
        relu(&mut out);
    }
    out
}

#[test]
fn kernels_reproduce_the_worked_examples() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/SPEC.md");
    let text = std::fs::read_to_string(path).unwrap();
    let convolution =
        Convolution { height: 3, width: 4, channels: 1, rows: 2, columns: 2, stride: 1, filters: 2 };
    let pooling = MaxPooling { height: 2, width: 3, channels: 2, rows: 2, columns: 2 };
    let filters = ("An image of 3 rows of 4 pixels", Layer::Filters { convolution, pooling });
    let cells = ("A sequence of 2 steps", Layer::Lstm(Lstm { steps: 2, channels: 2, cells: 1 }));
    for (title, layer) in [filters, cells] {
        let (computed, expected) = (output_of(&text, title, layer), values_of_line(&text, title, "y "));
        assert_eq!(computed.len(), expected.len(), "{title}");
        // The sums of the convolution are exact; the document gives seven digits of the hidden state.
        let is_near = |(computed, expected): (&f32, &f32)| (computed - expected).abs() < 2e-7;
        assert!(computed.iter().zip(&expected).all(is_near), "{title}: {computed:?} {expected:?}");
    }
}
