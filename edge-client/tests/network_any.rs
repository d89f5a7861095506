//! Tests of random rounds for networks of any shape: nothing panics, and only received layers are uploaded.
#![cfg(feature = "network")]

use crate::common::network::*;
use crate::common::problem::ALL_ENCODINGS;
use crate::common::*;
use fedspan_client::Task;
use fedspan_client::memory::NetworkShape;
use fedspan_protocol::message::{DeclineReason, Descriptors, RoundId, RoundOpen, Task as Wire, Trained};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;

const SHARED: bool = cfg!(feature = "shared-head");

/// Strategy for networks with filters, with LSTM cells, and with dense layers only.
fn any_shape() -> impl Strategy<Value = NetworkShape> {
    (0usize..10, any_dense_shape()).prop_map(|(kind, dense)| {
        // Indices beyond the list of special shapes select the dense network.
        let special_shapes = [with_filters(dense.batch), with_cells(dense.batch)].concat();
        special_shapes.get(kind).copied().unwrap_or(dense)
    })
}

prop_compose! {
    fn any_dense_shape()(
        features in 1usize..6,
        hidden in prop::collection::vec(1usize..5, 0..=3),
        outputs in 1usize..5,
        batch in 1usize..5,
    ) -> NetworkShape {
        NetworkShape::new(features, &hidden, outputs, batch)
    }
}

fn any_role() -> impl Strategy<Value = Role> {
    use Role::{Gradient, Representation, SharedHead, Subspace};
    prop_oneof![4 => Just(Representation), 4 => Just(SharedHead), 1 => Just(Gradient), 1 => Just(Subspace)]
}

/// Strategy for training tasks, some of which have invalid numbers.
fn any_task() -> impl Strategy<Value = Wire> {
    let number = prop_oneof![6 => 0.0f32..0.9, 1 => any::<f32>()];
    let trained = prop_oneof![Just(Trained::Shared), Just(Trained::All)];
    (number.clone(), number, 0u16..6, 0u16..3, 0u16..3, trained, any::<bool>()).prop_map(
        |(step, momentum, batch, head_epochs, epochs, trained, is_fit_head)| {
            let descent = descent(step, momentum, batch);
            if is_fit_head {
                fit_head_task(descent, epochs)
            } else {
                sgd(descent, head_epochs, epochs, trained)
            }
        },
    )
}

/// Strategy for descriptors of tensors in any role, with the shapes of the network's layers or arbitrary
/// shapes.
fn any_tensors(shape: NetworkShape) -> impl Strategy<Value = Vec<TensorDescriptor>> {
    let fields =
        (any_role(), 0usize..5, any::<bool>(), 0u16..6, 0u16..6, prop::sample::select(&ALL_ENCODINGS));
    let any_tensor = fields.prop_map(move |(role, layer, has_layer_shape, rows, cols, encoding)| {
        let (inputs, outputs) = shape.layer(layer).matrix();
        let (rows, cols) = if has_layer_shape { (inputs as u16 + 1, outputs as u16) } else { (rows, cols) };
        TensorDescriptor::inline(role, encoding, rows, cols)
    });
    let layers = 0..=shape.layers();
    let layers_of_network =
        (layers.clone(), layers, any::<bool>(), any_role()).prop_map(move |(a, b, changed, role)| {
            let layers = a.min(b)..a.max(b);
            let mut tensors =
                round_open(shape, fit_head_task(descent(0.1, 0.5, 1), 1), layers, Encoding::F32)
                    .tensors
                    .to_vec();
            if let (true, Some(last)) = (changed, tensors.last_mut()) {
                last.role = role;
            }
            tensors
        });
    prop_oneof![prop::collection::vec(any_tensor, 0..=5), layers_of_network]
}

proptest! {
    /// For any round, nothing panics, and the uploaded layers are the received ones in their roles. The head
    /// is uploaded only if the firmware was built for that.
    #[test]
    fn uploads_contain_received_layers_only(
        (shape, tensors) in any_shape().prop_flat_map(|shape| (Just(shape), any_tensors(shape))),
        task in any_task(),
        cached_samples in 0usize..8,
        count in 0usize..7,
    ) {
        let initial = draw_parameters(shape, 1);
        let mut device = network(NetworkHeap::with_body_cache(shape, cached_samples), &initial);
        let head = bits(device.head());
        let id = RoundId { round: 9, stage: 0 };
        let round = RoundOpen { id, task, tensors: tensors.iter().copied().collect::<Descriptors>() };
        if device.open(&round).is_err() {
            prop_assert!(device.upload().is_empty());
            prop_assert_eq!(bits(device.parameters()), bits(&initial));
            return Ok(());
        }
        for (index, tensor) in tensors.iter().enumerate() {
            let buffer = device.tensor_mut(index).unwrap();
            prop_assert_eq!(buffer.len(), tensor.elements());
            buffer.fill(0.25);
        }
        prop_assert!(device.tensor_mut(tensors.len()).is_none());
        device.verify().unwrap();
        let result = device.run(round.id, &mut labelled_samples(shape, count, 3));
        if result == Err(DeclineReason::UpdateNonFinite) {
            // The step size is arbitrary, so training may diverge; the update is then not sent.
            prop_assert!(device.parameters()[shape.start(shape.layers() - 1)..].iter().all(|w| w.is_finite()));
            return Ok(());
        }
        prop_assert_eq!(result.is_ok(), count > 0, "{:?}", result);
        let uploaded = device.upload();
        let shapes = |tensors: &[TensorDescriptor]| -> Vec<(Role, u16, u16)> {
            tensors.iter().map(|tensor| (tensor.role, tensor.rows, tensor.cols)).collect()
        };
        let expected = if matches!(task, Wire::Sgd { .. }) { shapes(&tensors) } else { Vec::new() };
        prop_assert_eq!(shapes(&uploaded), expected);
        let shared = uploaded.iter().filter(|tensor| tensor.role == Role::SharedHead).count();
        prop_assert!(SHARED || shared == 0);
        if shared == 0 {
            // Without a shared head, the uploaded values are a prefix of the parameters that ends before the head.
            let sent: usize = uploaded.iter().map(TensorDescriptor::elements).sum();
            prop_assert!(sent <= shape.start(shape.layers() - 1));
            let sent = collect_upload(&device, 3);
            prop_assert_eq!(bits(&sent), bits(&device.parameters()[..sent.len()]));
        }
        let mut out_of_range = [7.0; 3];
        device.emit(uploaded.len(), 0, &mut out_of_range);
        prop_assert_eq!(out_of_range, [7.0; 3]);
        if count == 0 && shared == 0 && !tensors.iter().any(|tensor| tensor.role == Role::SharedHead) {
            prop_assert_eq!(bits(device.head()), head);
        }
    }
}
