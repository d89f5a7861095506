//! Tests that networks whose layers exceed the limits of tensor descriptors are rejected.

use fedspan_engine::algorithm::network::{Front, NetworkShape};
use fedspan_protocol::message::{Filters, Image};

/// Network with this front, a hidden layer of width `hidden_width` (none if 0), and three outputs.
const fn network_shape(features: u16, front: Front, hidden_width: u16) -> NetworkShape {
    NetworkShape { features, front, hidden: [hidden_width, 0, 0], outputs: 3 }
}

/// A tensor has at most 65535 rows, of which a layer needs one for its biases, so a layer has at most 65534
/// inputs.
#[test]
fn layer_beyond_descriptor_limits_is_refused() {
    assert_eq!(network_shape(65_534, Front::Nothing, 2).check(), Ok(()));
    let assert_refused = |shape: NetworkShape, layer: usize, inputs: usize| {
        let message = shape.check().unwrap_err();
        assert!(message.starts_with(&format!("layer {layer} has {inputs} inputs")), "{message}");
    };
    assert_refused(network_shape(65_535, Front::Nothing, 2), 0, 65_535);
    assert_refused(network_shape(4, Front::Nothing, 65_535), 1, 65_535);
    // The factors of an adapter have no biases.
    assert_eq!(network_shape(65_535, Front::Adapter { rank: 1, width: 2, frozen: 0 }, 0).check(), Ok(()));
    let image = |width: u16| Image { height: 1, width, channels: 1 };
    let four_filters = [Filters { count: 4, side: 1, pool: 1 }, Filters { count: 0, side: 0, pool: 0 }];
    assert_eq!(network_shape(16_383, Front::Filters(image(16_383), four_filters), 0).check(), Ok(()));
    assert_refused(network_shape(16_384, Front::Filters(image(16_384), four_filters), 0), 1, 65_536);
    let image_cells = |channels: u16| Front::Cells(Image { height: 2, width: channels, channels: 1 }, 2);
    assert_eq!(network_shape(65_535, image_cells(32_767), 0).check(), Ok(()));
}
