//! Tests of rounds of networks: each method against training in f64 over the samples in the device's order,
//! and properties of the epochs.
#![cfg(feature = "network")]

use std::ops::Range;

use crate::common::network::*;
use crate::common::*;
use fedspan_client::memory::NetworkShape;
use fedspan_client::task::Usage;
use fedspan_client::{NotReady, Task};
use fedspan_protocol::message::{DeclineReason, Descent, Task as Wire, Trained};
use fedspan_protocol::tensor::Encoding;

/// Returns shapes of dense networks, and of convolutional and recurrent ones if they are compiled in.
fn network_shapes() -> Vec<NetworkShape> {
    let mut shapes = vec![
        NetworkShape::new(5, &[], 3, 16),
        DENSE,
        NetworkShape::new(7, &[5, 6], 4, 16),
        NetworkShape::new(5, &[6, 5, 4], 2, 16),
    ];
    shapes.extend(with_filters(16));
    shapes.extend(with_cells(16));
    shapes
}

const DENSE: NetworkShape = NetworkShape::new(6, &[4], 3, 16);

/// Number of samples. In batches of 3, the last batch has one sample.
const SAMPLES: usize = 10;

/// Tolerance for parameters near one, which covers rounding or the error of micromath's exponential.
const ERROR: f64 = if cfg!(feature = "micromath") { 3e-2 } else { 1e-4 };

/// Training method: the shared layers and the task of its rounds, and the layers and numbers of epochs of its
/// phases.
struct Method {
    name: &'static str,
    shared: Range<usize>,
    task: Wire,
    phases: Vec<(Range<usize>, usize)>,
}

/// Returns the methods that the built features and the number of layers allow.
fn training_methods(shape: NetworkShape, descent: Descent) -> Vec<Method> {
    let (layer_count, head) = (shape.layers(), shape.layers() - 1);
    let method = |name, shared, task, phases| Method { name, shared, task, phases };
    let task_of = |head_epochs, epochs, trained| sgd(descent, head_epochs, epochs, trained);
    let mut methods = vec![
        method("FedPer", 0..head, task_of(0, 3, Trained::All), vec![(0..layer_count, 3)]),
        method("fit-head", 0..head, fit_head_task(descent, 4), vec![(head..layer_count, 4)]),
        method("alone", 0..0, task_of(0, 2, Trained::All), vec![(0..layer_count, 2)]),
    ];
    if head > 0 {
        let phases = vec![(head..layer_count, 3), (0..head, 2)];
        methods.push(method("FedRep", 0..head, task_of(3, 2, Trained::Shared), phases));
        let phases = vec![(head..layer_count, 2), (0..layer_count, 1)];
        methods.push(method("head, then all", 0..head, task_of(2, 1, Trained::All), phases));
    }
    if cfg!(feature = "shared-head") {
        methods.push(method(
            "FedAvg",
            0..layer_count,
            task_of(0, 3, Trained::All),
            vec![(0..layer_count, 3)],
        ));
        methods.push(method(
            "FedAvg + FT",
            0..layer_count,
            fit_head_task(descent, 2),
            vec![(head..layer_count, 2)],
        ));
        for first in 1..layer_count {
            methods.push(method(
                "LG-FedAvg",
                first..layer_count,
                task_of(0, 3, Trained::All),
                vec![(0..layer_count, 3)],
            ));
            let phases = vec![(0..first, 2), (first..layer_count, 1)];
            methods.push(method(
                "LG-FedAvg in turn",
                first..layer_count,
                task_of(2, 1, Trained::Shared),
                phases,
            ));
        }
    }
    methods
}

/// Returns the device's parameters, with the shared layers replaced by the received ones.
fn mix_parameters(
    shape: NetworkShape,
    own_parameters: &[f32],
    received: &[f32],
    shared: Range<usize>,
) -> Vec<f32> {
    let mut parameters = own_parameters.to_vec();
    let range = shape.range(shared);
    parameters[range.clone()].copy_from_slice(&received[range]);
    parameters
}

/// Asserts that parameters equal those computed in f64 up to `ERROR`.
fn assert_close(computed: &[f32], expected: &[f64], case_name: &str) {
    for (index, (&computed, &expected)) in computed.iter().zip(expected).enumerate() {
        let error = (f64::from(computed) - expected).abs();
        assert!(
            error <= ERROR * expected.abs().max(1.0),
            "{case_name}, place {index}: {computed} {expected}"
        );
    }
}

#[test]
fn methods_train_as_defined() {
    for shape in network_shapes() {
        let (own_parameters, received) = (draw_parameters(shape, 1), draw_parameters(shape, 2));
        let samples = labelled_samples(shape, SAMPLES, 3);
        for (step, momentum, batch) in [(0.1, 0.5, 3), (0.2, 0.0, 1), (0.1, 0.9, 16), (0.1, 0.5, 10)] {
            let descent = descent(step, momentum, batch);
            for Method { name, shared, task, phases } in training_methods(shape, descent) {
                let case_name = format!("{name}, {} layers, {descent:?}", shape.layers());
                let mut network = network(NetworkHeap::new(shape), &own_parameters);
                let mut source = RecordingSource::new(samples.clone());
                let (usage, sent) =
                    run_round(&mut network, task, shared.clone(), &received, &mut source).expect(&case_name);
                assert_eq!(usage, Usage { samples: SAMPLES as u32, skipped: 0 }, "{case_name}");
                let mut orders = source.epochs().into_iter();
                let batches =
                    |order: Vec<usize>| order.chunks(batch.into()).map(<[_]>::to_vec).collect::<Vec<_>>();
                let phases: Vec<Epochs> = phases
                    .into_iter()
                    .map(|(layers, epochs)| Epochs {
                        layers,
                        batches: orders.by_ref().take(epochs).flat_map(batches).collect(),
                    })
                    .collect();
                assert_eq!(orders.next(), None, "{case_name}");
                let start = mix_parameters(shape, &own_parameters, &received, shared.clone());
                assert_close(
                    network.parameters(),
                    &train_exactly(shape, &start, &samples, &phases, descent),
                    &case_name,
                );
                let changed = |layer| phases.iter().any(|phase| phase.layers.contains(&layer));
                for layer in (0..shape.layers()).filter(|layer| !changed(*layer)) {
                    let range = shape.range(layer..layer + 1);
                    assert_eq!(
                        bits(&network.parameters()[range.clone()]),
                        bits(&start[range]),
                        "{case_name}"
                    );
                }
                // The uploaded layers are the received ones, in the same roles.
                let uploads = matches!(task, Wire::Sgd { .. });
                let uploaded_layers = if uploads { shared.clone() } else { 0..0 };
                assert_eq!(
                    network.upload(),
                    round_open(shape, task, uploaded_layers.clone(), Encoding::F32).tensors,
                    "{case_name}"
                );
                assert_eq!(
                    bits(&sent),
                    bits(&network.parameters()[shape.range(uploaded_layers)]),
                    "{case_name}"
                );
                assert_eq!(bits(&sent), bits(&collect_upload(&network, 1)), "{case_name}");
            }
        }
    }
}

#[test]
fn epoch_takes_all_samples_in_a_new_order() {
    let shape = DENSE;
    let mut network = network(NetworkHeap::new(shape), &draw_parameters(shape, 1));
    let mut source = RecordingSource::new(labelled_samples(shape, 40, 2));
    let task = sgd(descent(0.1, 0.0, 3), 3, 3, Trained::Shared);
    run_round(&mut network, task, 0..1, &draw_parameters(shape, 2), &mut source).unwrap();
    let mut epochs = source.epochs();
    assert_eq!(epochs.len(), 6);
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..40).collect::<Vec<_>>());
    }
    epochs.sort();
    epochs.dedup();
    assert_eq!(epochs.len(), 6);
}

/// Returns the bits of the parameters after a FedRep round over `samples`.
fn parameters_after(memory: NetworkHeap, task: Wire, samples: &Sliced) -> Vec<u32> {
    let shape = fedspan_client::memory::NetworkMemory::shape(&memory);
    let mut network = network(memory, &draw_parameters(shape, 1));
    run_round(&mut network, task, 0..shape.layers() - 1, &draw_parameters(shape, 2), &mut samples.clone())
        .unwrap();
    bits(network.parameters())
}

#[test]
fn cache_source_and_batch_size_change_no_bit() {
    for shape in &network_shapes()[1..] {
        let mut samples = labelled_samples(*shape, SAMPLES, 3);
        // One sample is unusable.
        samples.x[4 * shape.features] = f32::NAN;
        let task = |batch| sgd(descent(0.1, 0.5, batch), 3, 2, Trained::Shared);
        let expected = parameters_after(NetworkHeap::new(*shape), task(3), &samples);
        for cached_samples in [0, 1, SAMPLES - 1, SAMPLES, 3 * SAMPLES] {
            assert_eq!(
                parameters_after(NetworkHeap::with_body_cache(*shape, cached_samples), task(3), &samples),
                expected,
                "{cached_samples}"
            );
        }
        for at_once in [1, 3, 4, SAMPLES] {
            let samples = samples.clone().at_once(at_once);
            assert_eq!(parameters_after(NetworkHeap::new(*shape), task(3), &samples), expected, "{at_once}");
        }
        let larger_batch = parameters_after(NetworkHeap::new(*shape), task(SAMPLES as u16 - 1), &samples);
        assert_eq!(parameters_after(NetworkHeap::new(*shape), task(16), &samples), larger_batch);
        assert_ne!(larger_batch, expected);
        let parameters_without_momentum =
            |memory| parameters_after(memory, sgd(descent(0.1, 0.0, 3), 3, 2, Trained::Shared), &samples);
        assert_eq!(
            parameters_without_momentum(NetworkHeap::without_momentum(*shape)),
            parameters_without_momentum(NetworkHeap::new(*shape))
        );
    }
}

/// The number of reads matters because reading a sample can be as expensive as training on it, if features
/// are computed from a window.
#[test]
fn samples_are_read_once_per_epoch_or_once_with_cache() {
    let shape = network_shapes()[2];
    for (memory, reads) in
        [(NetworkHeap::new(shape), 6 * SAMPLES), (NetworkHeap::with_body_cache(shape, SAMPLES), 3 * SAMPLES)]
    {
        let mut network = network(memory, &draw_parameters(shape, 1));
        let mut source = RecordingSource::new(labelled_samples(shape, SAMPLES, 3));
        let task = sgd(descent(0.1, 0.5, 3), 4, 2, Trained::Shared);
        run_round(&mut network, task, 0..2, &draw_parameters(shape, 2), &mut source).unwrap();
        // The first read only checks whether the source allows random access.
        assert_eq!(source.requested.len(), 1 + reads);
    }
}

#[test]
fn unusable_samples_are_counted_and_ignored() {
    for shape in network_shapes() {
        let mut samples = labelled_samples(shape, SAMPLES, 3);
        samples.x[2 * shape.features + 1] = f32::NAN;
        samples.x[5 * shape.features] = f32::NEG_INFINITY;
        let Labels::Classes(classes) = &mut samples.labels else { panic!() };
        classes[0] = shape.outputs as u8;
        classes[9] = 255;
        let unusable = [0, 2, 5, 9];
        for batch in [2, 4, 16] {
            let descent = descent(0.1, 0.5, batch);
            let (initial, mut source) = (draw_parameters(shape, 1), RecordingSource::new(samples.clone()));
            let mut network = network(NetworkHeap::new(shape), &initial);
            let task = sgd(descent, 0, 3, Trained::All);
            let (usage, _) = run_round(&mut network, task, 0..0, &initial, &mut source).unwrap();
            assert_eq!(usage, Usage { samples: 6, skipped: 4 });
            assert_eq!(network.usage(), usage);
            let only_usable =
                |order: Vec<usize>| order.into_iter().filter(|i| !unusable.contains(i)).collect::<Vec<_>>();
            let orders = source.epochs().into_iter().map(only_usable);
            let batches =
                orders.flat_map(|order| order.chunks(batch.into()).map(<[_]>::to_vec).collect::<Vec<_>>());
            let epochs = Epochs { layers: 0..shape.layers(), batches: batches.collect() };
            // The oracle never uses these two samples, so their classes only need to be valid.
            let mut valid_classes = samples.clone();
            let Labels::Classes(classes) = &mut valid_classes.labels else { panic!() };
            (classes[0], classes[9]) = (0, 0);
            assert_close(
                network.parameters(),
                &train_exactly(shape, &initial, &valid_classes, &[epochs], descent),
                "skipped",
            );
        }
    }
}

#[test]
fn single_class_is_learnt() {
    let shape = network_shapes()[2];
    let mut samples = labelled_samples(shape, SAMPLES, 3);
    samples.labels = Labels::Classes(vec![2; SAMPLES]);
    let mut network = network(NetworkHeap::new(shape), &draw_parameters(shape, 1));
    let task = sgd(descent(0.2, 0.5, 3), 10, 5, Trained::Shared);
    run_round(&mut network, task, 0..2, &draw_parameters(shape, 2), &mut samples).unwrap();
    let mut out = vec![0.0; SAMPLES * shape.outputs];
    network.predict(&samples.x, &mut out).unwrap();
    for logits in out.chunks(shape.outputs) {
        assert!(logits.iter().all(|&logit| logit <= logits[2]), "{logits:?}");
    }
}

/// Returns the result of `predict` for 20 samples, and the head.
fn prediction_and_head(
    network: &mut fedspan_client::Network<NetworkHeap>,
) -> (Result<Vec<u32>, NotReady>, Vec<u32>) {
    let shape = network.shape();
    let (x, mut out) = (Random(8).normals(20 * shape.features), vec![0.0; 20 * shape.outputs]);
    let answer = network.predict(&x, &mut out).map(|()| bits(&out));
    (answer, bits(network.head()))
}

#[test]
fn missing_samples_or_random_access_change_nothing() {
    /// Source without random access.
    struct InOrder(Sliced);
    impl fedspan_client::SampleSource for InOrder {
        fn rewind(
            &mut self,
            id: fedspan_protocol::message::RoundId,
        ) -> Result<(), fedspan_client::SourceError> {
            self.0.rewind(id)
        }
        fn next(&mut self) -> Option<fedspan_client::Samples<'_>> {
            self.0.next()
        }
    }
    for shape in network_shapes() {
        let head = shape.layers() - 1;
        let initial = draw_parameters(shape, 1);
        let no_samples = labelled_samples(shape, 0, 3);
        let mut unknown_classes = labelled_samples(shape, 2, 3);
        unknown_classes.labels = Labels::Classes(vec![200, 201]);
        let regression = Sliced::regression(
            vec![0.5; 3 * shape.features],
            vec![0.0; 3 * shape.outputs],
            shape.features,
            shape.outputs,
        );
        let mut failing = labelled_samples(shape, 4, 3);
        failing.failing_pass = Some(1);
        let mut network = network(NetworkHeap::new(shape), &initial);
        let before = prediction_and_head(&mut network);
        assert!(before.0.is_ok());
        for task in [sgd(descent(0.1, 0.5, 3), 0, 2, Trained::All), fit_head_task(descent(0.1, 0.5, 3), 2)] {
            let mut check_declined = |source: &mut dyn fedspan_client::SampleSource, reason| {
                let result = run_round(&mut network, task, 0..head, &initial, source);
                assert_eq!(result.unwrap_err(), reason);
                assert_eq!(prediction_and_head(&mut network), before);
                assert_eq!(bits(network.parameters()), bits(&initial));
            };
            check_declined(&mut no_samples.clone(), DeclineReason::NoSamples);
            check_declined(&mut unknown_classes.clone(), DeclineReason::NoSamples);
            check_declined(&mut regression.clone(), DeclineReason::NoSamples);
            check_declined(&mut failing.clone(), DeclineReason::Device);
            check_declined(&mut InOrder(labelled_samples(shape, 4, 3)), DeclineReason::Device);
        }
        // A fit of no epochs leaves the head unchanged and needs no random access.
        let mut source = InOrder(labelled_samples(shape, 4, 3));
        run_round(&mut network, fit_head_task(descent(0.1, 0.5, 3), 0), 0..head, &initial, &mut source)
            .unwrap();
        assert_eq!(prediction_and_head(&mut network), before);
    }
}

/// If a sample cannot be read during training, no update is sent.
#[test]
fn source_that_fails_during_training_is_reported() {
    for shape in network_shapes() {
        for cached_samples in [0, SAMPLES] {
            for max_requests in 1..=3 * SAMPLES {
                let mut source = RecordingSource {
                    max_requests,
                    ..RecordingSource::new(labelled_samples(shape, SAMPLES, 3))
                };
                let mut network =
                    network(NetworkHeap::with_body_cache(shape, cached_samples), &draw_parameters(shape, 1));
                let task = sgd(descent(0.1, 0.5, 3), 0, 3, Trained::All);
                let (head, received) = (shape.layers() - 1, draw_parameters(shape, 2));
                let result = run_round(&mut network, task, 0..head, &received, &mut source);
                assert_eq!(result.unwrap_err(), DeclineReason::Device, "{max_requests}");
                // The partly trained network is valid, and the device continues with its parameters.
                assert!(prediction_and_head(&mut network).0.is_ok());
                run_round(&mut network, task, 0..head, &received, &mut labelled_samples(shape, SAMPLES, 3))
                    .unwrap();
            }
        }
    }
}

#[test]
fn diverged_training_invalidates_the_trained_layers() {
    // Recurrent networks are left out: after any step, their saturated gates have errors of zero and stay
    // finite.
    for shape in network_shapes().into_iter().filter(|shape| !with_cells(16).contains(shape)) {
        for memory in [NetworkHeap::new(shape), NetworkHeap::with_body_cache(shape, SAMPLES)] {
            let head = shape.layers() - 1;
            let mut network = network(memory, &draw_parameters(shape, 1));
            // A moderate step size is not enough, because softmax keeps finite values finite for many steps.
            let huge_step = f32::MAX;
            for task in [
                sgd(descent(huge_step, 0.5, 3), 2, 2, Trained::All),
                sgd(descent(huge_step, 0.0, 16), 0, 9, Trained::All),
                fit_head_task(descent(huge_step, 0.5, 3), 9),
            ] {
                let mut samples = labelled_samples(shape, SAMPLES, 3);
                let result = run_round(&mut network, task, 0..head, &draw_parameters(shape, 2), &mut samples);
                assert_eq!(result.unwrap_err(), DeclineReason::UpdateNonFinite);
                assert!(network.head().iter().all(|&w| w == 0.0));
                assert_eq!(network.head_fitted_on(), None);
                // A head fit that diverges keeps the received body.
                let body_lost = head > 0 && !matches!(task, Wire::FitHead { .. });
                let missing = if body_lost { NotReady::NoRepresentation } else { NotReady::NoHead };
                assert_eq!(prediction_and_head(&mut network).0, Err(missing));
                // The next round works as usual.
                let ordinary_task = sgd(descent(0.1, 0.5, 3), 1, 1, Trained::All);
                run_round(&mut network, ordinary_task, 0..head, &draw_parameters(shape, 2), &mut samples)
                    .unwrap();
                assert!(prediction_and_head(&mut network).0.is_ok());
            }
        }
    }
}

/// Parameters that are finite can still give a prediction that is not.
#[test]
fn prediction_that_overflows_is_an_error() {
    for shape in network_shapes() {
        let mut model = network(NetworkHeap::new(shape), &vec![1e38; shape.parameters()]);
        let mut out = vec![0.0; 2 * shape.outputs];
        let x: Vec<f32> = std::iter::repeat_n([0.0, 9.0], shape.features).flatten().collect();
        assert!(matches!(model.predict(&x, &mut out), Err(NotReady::Overflow { .. })), "{shape:?}: {out:?}");
    }
}

/// Sizes that do not fit a hello are rejected instead of truncated. A layer of more than 65534 inputs does
/// not compile if its shape is a constant, and panics here.
#[test]
fn layers_too_large_for_a_hello_are_rejected() {
    let check_limit = |make: fn(usize) -> NetworkShape, limit: usize| {
        assert_eq!(make(limit).parameters(), make(limit).start(make(limit).layers()));
        assert!(std::panic::catch_unwind(|| make(limit + 1)).is_err(), "{limit} and one more");
    };
    check_limit(|features| NetworkShape::new(features, &[2], 3, 1), 65_534);
    check_limit(|width| NetworkShape::new(4, &[width], 3, 1), 65_534);
    check_limit(|outputs| NetworkShape::new(4, &[2], outputs, 1), 65_535);
    #[cfg(feature = "adapter")]
    check_limit(|features| NetworkShape::adapted(features, 1, 2, &[], 3, 1), 65_535);
    #[cfg(feature = "recurrent")]
    {
        use fedspan_client::kernel::recurrent::Lstm;
        check_limit(
            |features| NetworkShape::recurrent(Lstm { steps: 1, channels: features, cells: 1 }, &[], 3, 1),
            65_533,
        );
        check_limit(
            |steps| NetworkShape::recurrent(Lstm { steps, channels: 1, cells: 1 }, &[], 3, 1),
            65_535,
        );
    }
    #[cfg(feature = "convolution")]
    {
        use fedspan_protocol::message::{Filters, Image};
        // 16383 pixels of four values each are 65532 inputs of the next layer; 16384 pixels would be 65536.
        let make = |width: usize| {
            let image = Image { height: 1, width: width as u16, channels: 1 };
            NetworkShape::convolutional(image, &[Filters { count: 4, side: 1, pool: 1 }], &[], 3, 1)
        };
        check_limit(make, 16_383);
    }
}
