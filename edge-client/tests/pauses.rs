//! Tests of pauses within computations ([`fedspan_client::pace`]): every task gives the same bits with any quota, and pauses
//! at least once per quota of the multiply-accumulates that its definition needs.

use std::cell::Cell;

use crate::common::*;
use fedspan_client::memory::Memory;
use fedspan_client::pace::{Paced, Pacer};
use fedspan_client::{HeadSolve, Linear, Recording, Task};
use fedspan_protocol::message::{Task as Wire, Upload};
use fedspan_protocol::tensor::{Encoding, Role};

/// Quotas of the tests: the smallest, one that splits most loops, and a usual one.
const QUOTAS: [u32; 3] = [1, 37, 1_000];

/// Runs `round` without pauses and with each quota. The results must have the same bits, and the pauses must suffice for
/// `macs` multiply-accumulates.
fn check(name: &str, macs: usize, mut round: impl FnMut(&Pacer<'_>) -> Vec<f32>) {
    let expected = bits(&round(&Pacer::new(u32::MAX, &|| {})));
    assert!(!expected.is_empty(), "{name}");
    for quota in QUOTAS {
        let pauses = Cell::new(0u64);
        let pause = || pauses.set(pauses.get() + 1);
        assert_eq!(bits(&round(&Pacer::new(quota, &pause))), expected, "{name}, quota {quota}");
        // Within a quota below the largest piece of work, a pause may stand for several quotas.
        let due = macs as u64 / u64::from(quota.max(500));
        assert!(
            pauses.get() >= due,
            "{name}, quota {quota}: {} pauses, at least {due} are due",
            pauses.get()
        );
    }
}

/// Runs a round of a linear model. Returns the head and the upload.
fn linear_round<M: Memory>(
    memory: M,
    pacer: &Pacer<'_>,
    task: Wire,
    role: Role,
    b: &[f32],
    samples: &Sliced,
) -> Vec<f32> {
    let mut model = Linear::new(Paced::new(memory, pacer));
    let (d, k) = (samples.features, b.len() / samples.features);
    let round = open(1, task, role, Encoding::F32, d, k);
    receive(&mut model, &round, &[b]).unwrap();
    model.run(round.id, &mut samples.clone()).unwrap();
    let mut values = collect_upload(&model, 7);
    values.extend(model.head());
    values
}

/// Shapes (d, k, C, m) of the linear tests.
const SHAPES: [(usize, usize, usize, usize); 4] =
    [(20, 2, 1, 21), (57, 8, 7, 35), (130, 9, 3, 19), (300, 1, 2, 6)];

#[test]
fn linear_rounds_pause_without_changing_a_bit() {
    for (d, k, c, m) in SHAPES {
        let mut random = Random(d as u64);
        let b = flat(&random.orthonormal(d, k));
        let at_once = [1, 3, usize::MAX][d % 3];
        let samples = Sliced::regression(random.normals(m * d), random.normals(m * c), d, c).at_once(at_once);
        let mut collinear = samples.clone();
        collinear.x.chunks_exact_mut(d).for_each(|x| x.iter_mut().skip(1).for_each(|v| *v = 0.5));
        let verify = d * k * (k + 1) / 2;
        let update = verify + m * (d * k + k * (k + 1) / 2 + 2 * k * c + d * c) + d * k * c;
        let gradient = |head| fed_rep(head, Upload::Gradient, 0.1);
        let heads = [
            ("least squares", EXACT),
            ("ridge", HeadSolve::LeastSquares { ridge: 0.1 }),
            ("steps", HeadSolve::Gradient { steps: 5, step_size: 0.1 }),
            #[cfg(feature = "ridge-choice")]
            ("left out", HeadSolve::LeaveOneOut { fallback_ridge: 0.1 }),
        ];
        for (name, head) in heads {
            for source in [&samples, &collinear] {
                check(&format!("{name} ({d}, {k}, {c})"), update, |pacer| {
                    linear_round(Heap::new(d, k, c), pacer, gradient(head), Role::Representation, &b, source)
                });
                #[cfg(feature = "i16")]
                if !name.starts_with("left") {
                    check(&format!("{name} in i16 ({d}, {k}, {c})"), update, |pacer| {
                        let memory = crate::common::fixed::HeapFixed::new(d, k, c);
                        linear_round(memory, pacer, gradient(head), Role::Representation, &b, source)
                    });
                }
            }
        }
        check(&format!("streamed ({d}, {k}, {c})"), update, |pacer| {
            let mut model = Linear::new(Paced::new(Heap::streaming(d, k, c), pacer));
            fed_rep_stream(&mut model, gradient(EXACT), &b, &samples).unwrap().1
        });
        check(&format!("power start ({d}, {k}, {c})"), verify + 2 * m * d * k, |pacer| {
            linear_round(Heap::new(d, k, c), pacer, Wire::PowerStart, Role::Subspace, &b, &samples)
        });
    }
}

#[cfg(feature = "shared-head")]
#[test]
fn rounds_with_a_shared_head_pause_without_changing_a_bit() {
    use fedspan_protocol::message::{RoundId, RoundOpen};
    use fedspan_protocol::tensor::TensorDescriptor;

    for (d, k, c, m) in SHAPES {
        let mut random = Random(d as u64);
        let (b, w) = (flat(&random.orthonormal(d, k)), random.normals(k * c));
        let samples = Sliced::regression(random.normals(m * d), random.normals(m * c), d, c);
        let of = |role, rows, cols| TensorDescriptor::inline(role, Encoding::F32, rows as u16, cols as u16);
        let average =
            Wire::FedAvg { step_size: 0.01, head_step_size: 0.01, local_steps: 2, encoding: Encoding::F32 };
        let down = Wire::AdapterDown { step_size: 0.1, encoding: Encoding::F32 };
        for (task, roles) in [
            (average, [Role::Representation, Role::SharedHead]),
            (down, [Role::AdapterDown, Role::AdapterUp]),
        ] {
            check(&format!("{task:?} ({d}, {k}, {c})"), m * (d * k + k * c + d * c), |pacer| {
                let mut model = Linear::new(Paced::new(Heap::new(d, k, c), pacer));
                let tensors = [of(roles[0], d, k), of(roles[1], k, c)].into_iter().collect();
                let round = RoundOpen { id: RoundId { round: 1, stage: 0 }, task, tensors };
                receive(&mut model, &round, &[&b, &w]).unwrap();
                model.run(round.id, &mut samples.clone()).unwrap();
                collect_upload(&model, 7)
            });
        }
    }
}

#[cfg(feature = "ridge-choice")]
#[test]
fn ridge_scores_pause_without_changing_a_bit() {
    let (d, k, c, m) = (57, 8, 7, 70);
    let mut random = Random(3);
    let b = flat(&random.orthonormal(d, k));
    let classes = (0..m).map(|i| (i % c) as u8).collect();
    let samples = Sliced::classification(random.normals(m * d), classes, d, c);
    let task = Wire::RidgeScores { labels_per_class: 3, first: 0.01, factor: 10.0, count: 5 };
    check("ridge scores", 2 * m * d * k, |pacer| {
        linear_round(Heap::new(d, k, c), pacer, task, Role::Representation, &b, &samples)
    });
}

#[cfg(feature = "power")]
#[test]
fn power_iterations_pause_without_changing_a_bit() {
    use crate::common::power::fed_power;
    use fedspan_protocol::message::{PowerRows, PowerUpload};

    for (d, k, c, m) in SHAPES {
        let mut random = Random(d as u64);
        let b = flat(&random.orthonormal(d, k));
        let samples = Sliced::regression(random.normals(m * d), random.normals(m * c), d, c);
        for rows in [PowerRows::Features, PowerRows::Weighted] {
            let task = fed_power(2, rows, PowerUpload::Basis);
            check(&format!("{rows:?} ({d}, {k}, {c})"), 2 * (2 * m * d * k + 2 * d * k * k), |pacer| {
                linear_round(Heap::power(d, k, c), pacer, task, Role::Subspace, &b, &samples)
            });
            #[cfg(feature = "privacy")]
            check(&format!("private {rows:?} ({d}, {k}, {c})"), 2 * m * d * k, |pacer| {
                use crate::common::private::{Known, settings};
                let task = fed_power(1, rows, PowerUpload::Product);
                let known = Known::new(settings(1 << 16, 100), 1);
                let memory = Paced::new(Heap::power(d, k, c), pacer);
                let mut model = Linear::private(memory, known).unwrap();
                crate::common::power::power_round(&mut model, task, &b, &mut samples.clone()).unwrap().1
            });
        }
    }
}

#[cfg(feature = "network")]
#[test]
fn training_of_networks_pauses_without_changing_a_bit() {
    use crate::common::network::*;
    use fedspan_client::Network;
    use fedspan_client::memory::NetworkShape;
    use fedspan_protocol::message::Trained;

    let batch = 8;
    let mut shapes = vec![NetworkShape::new(130, &[40, 9], 3, batch), NetworkShape::new(6, &[], 3, batch)];
    shapes.extend(with_filters(batch));
    shapes.extend(with_cells(batch));
    for shape in shapes {
        let parameters = draw_parameters(shape, 1);
        let (m, last) = (21, shape.layers() - 1);
        let task = sgd(descent(0.1, 0.5, batch as u16), 1, 2, Trained::Shared);
        let layers = if last == 0 { 0..1 } else { 0..last };
        // Products of the forward pass and the gradient of the dense layers.
        let dense = (0..=last)
            .map(|layer| shape.layer(layer))
            .filter(|layer| matches!(layer, fedspan_client::kernel::Layer::Dense { .. }));
        let macs = dense.map(|layer| layer.inputs() * layer.outputs()).sum::<usize>() * m * 3;
        if last == 0 && !cfg!(feature = "shared-head") {
            continue;
        }
        let task = if last == 0 { sgd(descent(0.1, 0.5, batch as u16), 0, 2, Trained::Shared) } else { task };
        check(&format!("{shape:?}"), macs, |pacer| {
            let mut network = Network::new(Paced::new(NetworkHeap::new(shape), pacer), 5);
            network.set_parameters(&parameters).unwrap();
            let open = round_open(shape, task, layers.clone(), Encoding::F32);
            receive(&mut network, &open, &layer_tensors(shape, layers.clone(), &parameters)).unwrap();
            network.run(open.id, &mut labelled_samples(shape, m, 2)).unwrap();
            network.parameters().to_vec()
        });
    }
}

#[test]
fn small_pieces_of_work_add_up_to_a_quota() {
    let pauses = Cell::new(0);
    let pause = || pauses.set(pauses.get() + 1);
    let pacer = Pacer::new(100, &pause);
    let mut model = Linear::new(Paced::new(Heap::new(4, 1, 1), &pacer));
    model.set_representation(&[1.0, 0.0, 0.0, 0.0]).unwrap();
    let (x, y) = ([0.5; 4 * 1000], [1.0; 1000]);
    let mut source = Recording::regression(&x, &y, 4, 1);
    model.fit_head(EXACT, &mut source).unwrap();
    // A thousand samples of 4 multiply-accumulates for the projection and at least 2 for the sums.
    assert!((60..150).contains(&pauses.get()), "{}", pauses.get());
    let before = pauses.get();
    let mut out = [0.0];
    for _ in 0..100 {
        model.predict(&[0.5; 4], &mut out).unwrap();
    }
    assert!((3..8).contains(&(pauses.get() - before)), "{}", pauses.get() - before);
}

#[cfg(feature = "scale")]
#[test]
fn feature_sums_pause_without_changing_a_bit() {
    use fedspan_client::task::{Scaled, scaled_values};
    use fedspan_protocol::message::{Descriptors, RoundId, RoundOpen};
    use fedspan_protocol::tensor::SUMS_COLUMNS;

    for (d, k, c, m) in SHAPES {
        let mut random = Random(d as u64);
        let samples = Sliced::regression(random.normals(m * d), random.normals(m * c), d, c);
        let (first, count) = (d / 3, d / 2);
        check(&format!("feature sums ({d}, {m})"), 2 * 2 * m * count, |pacer| {
            let model = Linear::new(Paced::new(Heap::new(d, k, c), pacer));
            let mut model = Scaled::new(model, vec![0.0; scaled_values(d)]).unwrap();
            let task = Wire::FeatureSums { first: first as u16, count: count as u16 };
            let id = RoundId { round: 1, stage: 0 };
            model.open(&RoundOpen { id, task, tensors: Descriptors::new() }).unwrap();
            model.run(id, &mut samples.clone()).unwrap();
            let mut sums = vec![0.0; count * usize::from(SUMS_COLUMNS)];
            model.emit(0, 0, &mut sums);
            sums
        });
    }
}

#[cfg(feature = "top-k")]
#[test]
fn residuals_pause_without_changing_a_bit() {
    use fedspan_client::task::ErrorFeedback;
    use fedspan_protocol::message::AckOutcome;

    for (d, k, c, m) in SHAPES {
        let mut random = Random(d as u64);
        let b = flat(&random.orthonormal(d, k));
        let samples = Sliced::regression(random.normals(m * d), random.normals(m * c), d, c);
        let round = open(
            1,
            Wire::FedRep {
                step_size: 0.1,
                head: EXACT,
                upload: Upload::Gradient,
                encoding: Encoding::I8TopK,
            },
            Role::Representation,
            Encoding::F32,
            d,
            k,
        );
        let acknowledged = |pacer: &Pacer<'_>, count: &dyn Fn()| {
            let model = Linear::new(Paced::new(Heap::new(d, k, c), pacer));
            let mut model = ErrorFeedback::new(model, vec![0.0; d * k]).unwrap();
            receive(&mut model, &round, &[&b]).unwrap();
            model.run(round.id, &mut samples.clone()).unwrap();
            count();
            model.acknowledged(AckOutcome::Counted);
            model.residual().to_vec()
        };
        check(&format!("residuals ({d}, {k})"), 2 * m * d * k, |pacer| acknowledged(pacer, &|| {}));
        // The residuals alone.
        let (pauses, before) = (Cell::new(0), Cell::new(0));
        let pause = || pauses.set(pauses.get() + 1);
        acknowledged(&Pacer::new(32, &pause), &|| before.set(pauses.get()));
        assert!(pauses.get() - before.get() >= d * k / 32, "({d}, {k})");
    }
}
