//! Test helpers: proptest strategies for every message, with any variant and any bits, including extreme
//! values.

use fedspan_protocol::limits::{MISSING_MAX, TENSORS_MAX};
use fedspan_protocol::message::{
    Ack, AckOutcome, Baseline, Capabilities, Chunk, Decline, DeclineReason, Descent, Descriptors, Fault,
    Filters, GeometricGrid, HeadSolve, Hello, Image, Missing, Model, Numeric, PowerRows, PowerUpload,
    Privacy, PrivateTask, Refusal, Rejection, Requirement, RoundId, RoundOpen, Task, ToDevice, ToServer,
    Trained, Update, Upload, Welcome,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;
use proptest::sample::select;

/// Floats with any bits, including infinities, NaNs and subnormals.
pub fn float() -> impl Strategy<Value = f32> {
    any::<u32>().prop_map(f32::from_bits)
}

/// Numbers of every magnitude, so that varints of every length occur.
pub fn u64s() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(bits, shift)| bits >> shift)
}

pub fn u32s() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0..32u32).prop_map(|(bits, shift)| bits >> shift)
}

pub fn u16s() -> impl Strategy<Value = u16> {
    (any::<u16>(), 0..16u32).prop_map(|(bits, shift)| bits >> shift)
}

pub fn round_id() -> impl Strategy<Value = RoundId> {
    (u32s(), u16s()).prop_map(|(round, stage)| RoundId { round, stage })
}

pub fn encoding() -> impl Strategy<Value = Encoding> {
    select(vec![Encoding::F32, Encoding::F16, Encoding::I8, Encoding::I8TopK])
}

pub fn role() -> impl Strategy<Value = Role> {
    select(vec![
        Role::Representation,
        Role::Gradient,
        Role::Moment,
        Role::Subspace,
        Role::AdapterDown,
        Role::AdapterUp,
        Role::SharedHead,
        Role::FactoredHead,
        Role::FeatureSums,
        Role::RidgeScores,
        Role::Scale,
        Role::PriorMean,
        Role::PriorVariances,
        Role::SecondMoments,
        Role::CrossMoments,
        Role::HeadMoments,
        Role::HeadSums,
        Role::PriorEvidence,
        Role::NewcomerGradient,
        Role::NewcomerError,
        Role::HeadPrior,
    ])
}

pub fn descriptors() -> impl Strategy<Value = Descriptors> {
    let any_descriptor = (role(), encoding(), (u16s(), u16s(), u16s()));
    prop::collection::vec(any_descriptor, 0..=TENSORS_MAX).prop_map(|list| {
        list.into_iter()
            .map(|(role, encoding, (rows, cols, chunk))| TensorDescriptor {
                role,
                encoding,
                rows,
                cols,
                chunk,
            })
            .collect()
    })
}

/// Descriptors that a receiver accepts: small tensors that are all sent in chunks.
pub fn chunked() -> impl Strategy<Value = Descriptors> {
    let any_descriptor = (role(), encoding(), 1..60u16, 1..9u16, 1..9u16);
    prop::collection::vec(any_descriptor, 1..=TENSORS_MAX)
        .prop_map(|list| {
            let descriptor = |(role, encoding, rows, cols, blocks): (_, Encoding, _, _, u16)| {
                let chunk = blocks * 7 * u16::try_from(encoding.granularity()).unwrap();
                TensorDescriptor { role, encoding, rows, cols, chunk }
            };
            list.into_iter().map(descriptor).collect::<Descriptors>()
        })
        .prop_filter("at most CHUNKS_MAX", |list| fedspan_protocol::assembly::Assembly::new(list).is_ok())
}

pub fn head_solve() -> impl Strategy<Value = HeadSolve> {
    prop_oneof![
        float().prop_map(|ridge| HeadSolve::LeastSquares { ridge }),
        (u16s(), float()).prop_map(|(steps, step_size)| HeadSolve::Gradient { steps, step_size }),
        (u16s(), descent()).prop_map(|(epochs, descent)| HeadSolve::Sgd { epochs, descent }),
        float().prop_map(|fallback_ridge| HeadSolve::LeaveOneOut { fallback_ridge }),
        float().prop_map(|noise| HeadSolve::Prior { noise }),
    ]
}

fn geometric_grid() -> impl Strategy<Value = GeometricGrid> {
    (float(), float(), any::<u8>()).prop_map(|(first, factor, count)| GeometricGrid { first, factor, count })
}

fn descent() -> impl Strategy<Value = Descent> {
    (float(), float(), u16s()).prop_map(|(step_size, momentum, batch)| Descent { step_size, momentum, batch })
}

fn baseline() -> impl Strategy<Value = Baseline> {
    prop_oneof![
        float().prop_map(|proximal_weight| Baseline::FedProx { proximal_weight }),
        Just(Baseline::Scaffold),
        float().prop_map(|inner_step| Baseline::PerFedAvg { inner_step }),
        float().prop_map(|inner_step| Baseline::PerFedAvgHf { inner_step }),
        float().prop_map(|proximal_weight| Baseline::Ditto { proximal_weight }),
        (float(), float())
            .prop_map(|(mixing_weight, mixing_step_size)| Baseline::Apfl { mixing_weight, mixing_step_size }),
        float().prop_map(|averaging_step| Baseline::L2gd { averaging_step }),
        float().prop_map(|proximal_weight| Baseline::FedMtl { proximal_weight }),
    ]
}

pub fn task() -> impl Strategy<Value = Task> {
    let upload = select(vec![Upload::Gradient, Upload::Representation]);
    prop_oneof![
        (float(), head_solve(), upload, encoding()).prop_map(|(step_size, head, upload, encoding)| {
            Task::FedRep { step_size, head, upload, encoding }
        }),
        head_solve().prop_map(|head| Task::FitHead { head }),
        (float(), float(), u16s(), encoding()).prop_map(
            |(step_size, head_step_size, local_steps, encoding)| Task::FedAvg {
                step_size,
                head_step_size,
                local_steps,
                encoding
            }
        ),
        Just(Task::PowerStart),
        (u16s(), u16s()).prop_map(|(first, count)| Task::MomentRows { first, count }),
        (u16s(), power_rows(), power_upload(), encoding()).prop_map(
            |(iterations, rows, upload, encoding)| { Task::FedPower { iterations, rows, upload, encoding } }
        ),
        (
            descent(),
            u16s(),
            u16s(),
            select(vec![Trained::Shared, Trained::All, Trained::Down, Trained::Up]),
            encoding()
        )
            .prop_map(|(descent, head_epochs, epochs, trained, encoding)| Task::Sgd {
                descent,
                head_epochs,
                epochs,
                trained,
                encoding
            }),
        (baseline(), descent(), u16s(), encoding()).prop_map(|(baseline, descent, epochs, encoding)| {
            Task::Baseline { baseline, descent, epochs, encoding }
        }),
        (head_solve(), encoding()).prop_map(|(head, encoding)| Task::AdapterUp { head, encoding }),
        Just(Task::PooledMoments),
        float().prop_map(|noise| Task::HeadMoments { noise }),
        (geometric_grid(), geometric_grid(), any::<u8>())
            .prop_map(|(spans, floors, draws)| Task::PriorEvidence { spans, floors, draws }),
        (u16s(), any::<u8>(), any::<u32>()).prop_map(|(labels, draws, first)| Task::NewcomerGradient {
            labels,
            draws,
            first
        }),
        (float(), encoding()).prop_map(|(step_size, encoding)| Task::AdapterDown { step_size, encoding }),
        (u16s(), u16s()).prop_map(|(first, count)| Task::FeatureSums { first, count }),
        (u16s(), float(), float(), any::<u8>()).prop_map(|(labels_per_class, first, factor, count)| {
            Task::RidgeScores { labels_per_class, first, factor, count }
        }),
        private_task().prop_map(Task::Private12),
        private_task().prop_map(Task::Private13),
        private_task().prop_map(Task::Private14),
        private_task().prop_map(Task::Private15),
    ]
}

fn private_task() -> impl Strategy<Value = PrivateTask> {
    (encoding(), prop::array::uniform(float()))
        .prop_map(|(encoding, parameters)| PrivateTask { encoding, parameters })
}

fn power_rows() -> impl Strategy<Value = PowerRows> {
    select(vec![PowerRows::Features, PowerRows::Weighted])
}

fn power_upload() -> impl Strategy<Value = PowerUpload> {
    select(vec![PowerUpload::Product, PowerUpload::ProductAndBasis, PowerUpload::Basis])
}

pub fn model() -> impl Strategy<Value = Model> {
    prop_oneof![
        (u16s(), u16s(), u16s())
            .prop_map(|(features, width, outputs)| Model::linear(features, width, outputs)),
        (u16s(), [u16s(), u16s(), u16s()], u16s())
            .prop_map(|(features, hidden, outputs)| Model::network(features, hidden, outputs)),
        ([u16s(), u16s(), u16s()], [filters(), filters()], [u16s(), u16s()], u16s()).prop_map(
            |([height, width, channels], filters, hidden, outputs)| Model::convolutional(
                Image { height, width, channels },
                filters,
                hidden,
                outputs
            )
        ),
        ([u16s(), u16s(), u16s()], [u16s(), u16s(), u16s()], u16s()).prop_map(
            |([steps, channels, cells], hidden, outputs)| Model::recurrent(
                steps, channels, cells, hidden, outputs
            )
        ),
        ([u16s(), u16s(), u16s()], [u16s(), u16s(), u16s()], u16s(), u32s()).prop_map(
            |([features, rank, width], hidden, outputs, frozen)| Model::adapted(
                features, rank, width, hidden, outputs, frozen
            )
        ),
    ]
}

fn filters() -> impl Strategy<Value = Filters> {
    (u16s(), any::<u8>(), any::<u8>()).prop_map(|(count, side, pool)| Filters { count, side, pool })
}

pub fn numeric() -> impl Strategy<Value = Numeric> {
    select(vec![Numeric::F32, Numeric::I16])
}

pub fn hello() -> impl Strategy<Value = Hello> {
    let identity = (u16s(), u32s(), u64s());
    let sizes = (u16s(), u32s(), u32s(), any::<u8>(), any::<u8>(), u32s(), u32s());
    let noise = (u32s(), u64s(), u64s());
    let privacy = prop_oneof![
        Just(Privacy::None),
        noise.prop_map(|(release, budget, spent)| Privacy::Gaussian { release, budget, spent }),
    ];
    (identity, model(), numeric(), sizes, privacy).prop_map(|(identity, model, numeric, sizes, privacy)| {
        Hello {
            wire_version: identity.0,
            schema_hash: identity.1,
            device: identity.2,
            capabilities: Capabilities {
                frame_limit: sizes.0,
                model,
                tasks: sizes.1,
                roles: sizes.2,
                encodings: sizes.3,
                numeric,
                tensors: sizes.4,
                tensor_elements: sizes.5,
                total_elements: sizes.6,
                privacy,
            },
        }
    })
}

pub fn chunk() -> impl Strategy<Value = Chunk> {
    (round_id(), (any::<u8>(), u32s())).prop_map(|(id, (tensor, offset))| Chunk { id, tensor, offset })
}

pub fn missing() -> impl Strategy<Value = Missing> {
    (round_id(), any::<u8>(), prop::collection::vec(u16s(), 0..=MISSING_MAX))
        .prop_map(|(id, tensor, chunks)| Missing { id, tensor, chunks: chunks.into_iter().collect() })
}

pub fn decline() -> impl Strategy<Value = Decline> {
    let reason = prop_oneof![
        select(vec![
            DeclineReason::Task,
            DeclineReason::Tensors,
            DeclineReason::Parameter,
            DeclineReason::NonFinite,
            DeclineReason::NoSamples,
            DeclineReason::UpdateNonFinite,
            DeclineReason::Device,
            DeclineReason::Entropy,
            DeclineReason::Undetermined,
        ]),
        u64s().prop_map(|left| DeclineReason::Budget { left }),
        u32s().prop_map(|last| DeclineReason::RoundRepeated { last }),
        float().prop_map(|error| DeclineReason::NotOrthonormal { error }),
    ];
    (round_id(), reason).prop_map(|(id, reason)| Decline { id, reason })
}

pub fn ack() -> impl Strategy<Value = Ack> {
    let rejection = prop_oneof![
        select(vec![
            Rejection::NotAsked,
            Rejection::WrongRound,
            Rejection::Tensors,
            Rejection::NonFinite,
            Rejection::ContentChanged,
            Rejection::NoSamples,
        ]),
        (float(), float()).prop_map(|(norm, bound)| Rejection::NormOverBound { norm, bound }),
    ];
    let outcome = prop_oneof![
        select(vec![AckOutcome::Counted, AckOutcome::Duplicate, AckOutcome::Late]),
        rejection.prop_map(AckOutcome::Rejected),
    ];
    (round_id(), outcome).prop_map(|(id, outcome)| Ack { id, outcome })
}

pub fn refusal() -> impl Strategy<Value = Refusal> {
    let need = prop_oneof![
        u32s().prop_map(Requirement::Tasks),
        u32s().prop_map(Requirement::Roles),
        any::<u8>().prop_map(Requirement::Encodings),
        numeric().prop_map(Requirement::Numeric),
        u32s().prop_map(Requirement::TensorElements),
        any::<u8>().prop_map(Requirement::Tensors),
        u32s().prop_map(Requirement::TotalElements),
    ];
    prop_oneof![
        u16s().prop_map(|served| Refusal::WireVersion { served }),
        u32s().prop_map(|served| Refusal::Schema { served }),
        model().prop_map(|expected| Refusal::Model { expected }),
        need.prop_map(Refusal::Capability),
        Just(Refusal::UnknownDevice),
        (u16s(), u16s()).prop_map(|(min, max)| Refusal::FrameLimit { min, max }),
    ]
}

pub fn to_server() -> impl Strategy<Value = ToServer> {
    prop_oneof![
        hello().prop_map(ToServer::Hello),
        (round_id(), (u32s(), u32s()), descriptors()).prop_map(|(id, (samples, skipped), tensors)| {
            ToServer::Update(Update { id, samples, skipped, tensors })
        }),
        chunk().prop_map(ToServer::Chunk),
        missing().prop_map(ToServer::Missing),
        decline().prop_map(ToServer::Decline),
        Just(ToServer::Alive),
    ]
}

pub fn to_device() -> impl Strategy<Value = ToDevice> {
    prop_oneof![
        (u64s(), u32s()).prop_map(|(campaign, idle_milliseconds)| ToDevice::Welcome(Welcome {
            campaign,
            idle_milliseconds
        })),
        refusal().prop_map(ToDevice::Refused),
        (round_id(), task(), descriptors()).prop_map(|(id, task, tensors)| ToDevice::RoundOpen(RoundOpen {
            id,
            task,
            tensors
        })),
        chunk().prop_map(ToDevice::Chunk),
        missing().prop_map(ToDevice::Missing),
        ack().prop_map(ToDevice::Ack),
        round_id().prop_map(ToDevice::RoundClosed),
        u32s().prop_map(|milliseconds| ToDevice::RetryAfter { milliseconds }),
        u32s().prop_map(|milliseconds| ToDevice::NextRound { milliseconds }),
        select(vec![Fault::Malformed, Fault::Unexpected, Fault::Tensors, Fault::Greet])
            .prop_map(ToDevice::Fault),
    ]
}
