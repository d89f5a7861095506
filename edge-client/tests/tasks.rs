//! Tests of two tasks in one device ([`Tasks`]). Each round has the bits of its task alone, capabilities are
//! combined, a round of neither task is declined, and noise, budget and slot are those of the stricter task.
//! The custom task is that of `examples/own_device_task.rs`.

use crate::common::problem::{Problem, create_problem, gradient_task, session_config};
use crate::common::server::*;
use crate::common::*;
use crate::own_device_task::{Mean, own_round};
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::session::Event;
use fedspan_client::task::{Tasks, Usage};
use fedspan_client::{Linear, Recording, Task, Workspace};
use fedspan_protocol::message::{
    Ack, AckOutcome, CHOOSES_RIDGE, Capabilities, DeclineReason, Descriptors, HeadSolve, PrivateTask,
    RoundId, RoundOpen, Task as Wire, TaskKind, ToDevice, ToServer, Trained, Upload,
};
use fedspan_protocol::tensor::{Encoding, Role};
use proptest::prelude::*;

const D: usize = 20;
const LIMIT: u16 = 256;

type CustomTask = Mean<D>;
type Model = Linear<Heap>;

/// Returns a round of the custom task with a bound of 1.5.
fn custom_task(encoding: Encoding) -> Wire {
    Wire::Private12(PrivateTask { encoding, parameters: [1.5, 0.0, 0.0, 0.0, 0.0] })
}

fn linear_model(problem: &Problem) -> Model {
    Linear::new(Heap::new(problem.d, problem.k, problem.c))
}

/// Creates a connected device with the given task.
fn connected_bench<T: Task>(task: T, problem: &Problem, flash: &Flash) -> Bench<Sliced, T> {
    let mut bench = Bench::with_task(session_config(LIMIT), task, problem.samples.clone(), flash.clone());
    assert!(bench.connect(7, 60_000).is_empty());
    bench
}

/// Number of kinds of rounds: of a linear model, of the custom task, and of neither.
const ROUNDS: usize = 9;

/// Creates a server with a round of the given kind.
fn server_of_kind(problem: &Problem, number: u32, index: usize) -> Server {
    let encoding = [Encoding::F32, Encoding::F16, Encoding::I8][number as usize % 3];
    let task = match index {
        0 => gradient_task(),
        1 => Wire::FitHead { head: EXACT },
        2 => fed_rep(HeadSolve::Gradient { steps: 2, step_size: 0.01 }, Upload::Representation, 0.1),
        3 => Wire::PowerStart,
        4 | 5 => custom_task(encoding),
        6 => Wire::Private13(PrivateTask::default()),
        7 => Wire::Sgd {
            descent: Default::default(),
            head_epochs: 1,
            epochs: 1,
            trained: Trained::Shared,
            encoding,
        },
        _ => Wire::Private12(PrivateTask::default()), // a bound of 0
    };
    let b = problem.b.clone();
    let tensors = match task {
        Wire::Private12(_) => vec![],
        Wire::PowerStart => vec![(Role::Subspace, problem.d, problem.k, b)],
        _ => vec![(Role::Representation, problem.d, problem.k, b)],
    };
    Server::new(number, task, Encoding::F32, LIMIT.into(), tensors)
}

/// Opens the round, acknowledges the update if there is one, and returns the frames that the device sent.
fn run_round<T: Task>(bench: &mut Bench<Sliced, T>, server: &Server) -> Vec<(ToServer, Vec<u8>)> {
    let mut sent = Vec::new();
    for (message, body) in server.opening_messages() {
        sent.extend(bench.receive_message(&message, &body));
    }
    if bench.session.silent_until().as_u64() > bench.now {
        assert!(sent.is_empty());
        sent = bench.wake_up();
    }
    if matches!(sent[..], [(ToServer::Update(_), _), ..]) {
        let ack = ToDevice::Ack(Ack { id: server.open.id, outcome: AckOutcome::Counted });
        assert!(bench.receive_message(&ack, &[]).is_empty());
    }
    sent
}

/// Returns the reason for which a round was declined, if it was.
fn decline_reason_if_any(sent: &[(ToServer, Vec<u8>)]) -> Option<DeclineReason> {
    match sent {
        [(ToServer::Decline(decline), _)] => Some(decline.reason),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// In any order of rounds, a round of a pair sends the frames that its task sends alone, and leaves the
    /// same head. A round of neither task is declined as it is by each task alone.
    #[test]
    fn pair_sends_the_frames_of_each_task_alone(
        rounds in prop::collection::vec(0..ROUNDS, 1..12),
        model_first in any::<bool>(),
    ) {
        let problem = create_problem(D, 2, 1);
        let flash = [(); 3].map(|()| Flash::default());
        let mut linear = connected_bench(linear_model(&problem), &problem, &flash[0]);
        let mut mean = connected_bench(CustomTask::new(), &problem, &flash[1]);
        let check = |number: u32, index, pair: Vec<_>, linear: &mut Bench<Sliced, _>, mean: &mut Bench<Sliced, _>| {
            let server = server_of_kind(&problem, number, index);
            match index {
                0..4 => prop_assert_eq!(pair, run_round(linear, &server)),
                6 | 7 => {
                    let is_readable = server.opening_messages().iter().all(|(message, body)| is_readable(message, body));
                    let expected = is_readable.then_some(DeclineReason::Task);
                    prop_assert_eq!(decline_reason_if_any(&pair), expected);
                    prop_assert!(is_readable || pair.is_empty());
                    prop_assert_eq!(&pair, &run_round(linear, &server));
                    prop_assert_eq!(&pair, &run_round(mean, &server));
                }
                _ => prop_assert_eq!(pair, run_round(mean, &server)),
            }
            Ok(())
        };
        if model_first {
            let tasks = Tasks::new(linear_model(&problem), CustomTask::new());
            let mut pair = connected_bench(tasks, &problem, &flash[2]);
            for (number, &index) in (1u32..).zip(&rounds) {
                let sent = run_round(&mut pair, &server_of_kind(&problem, number, index));
                check(number, index, sent, &mut linear, &mut mean)?;
                prop_assert_eq!(bits(pair.session.task().head()), bits(linear.session.task().head()));
            }
        } else {
            let tasks = Tasks::new(CustomTask::new(), linear_model(&problem));
            let mut pair = connected_bench(tasks, &problem, &flash[2]);
            for (number, &index) in (1u32..).zip(&rounds) {
                let sent = run_round(&mut pair, &server_of_kind(&problem, number, index));
                check(number, index, sent, &mut linear, &mut mean)?;
                prop_assert_eq!(bits(pair.session.task().head()), bits(linear.session.task().head()));
            }
        }
    }

    /// The custom task sends the mean of the clamped features without unusable samples, equal to the mean in
    /// f64 up to rounding.
    #[test]
    fn own_task_sends_the_mean(
        mut x in prop::collection::vec(-3.0f32..3.0, 4..200),
        bound in 0.1f32..4.0,
        unusable in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        x.truncate(x.len() / 4 * 4);
        for index in unusable {
            let position = index.index(x.len());
            x[position] = f32::NAN;
        }
        let targets = vec![0.0; x.len() / 4];
        let rows: Vec<&[f32]> = x.chunks(4).filter(|row| row.iter().all(|v| v.is_finite())).collect();
        let mut tasks = Tasks::new(Linear::new(Workspace::<4, 1>::new()), Mean::<4>::new());
        let outcome = own_round(&mut tasks, bound, &mut Recording::regression(&x, &targets, 4, 1));
        if rows.is_empty() {
            prop_assert_eq!(outcome, Err(DeclineReason::NoSamples));
            return Ok(());
        }
        let (usage, mean) = outcome.unwrap();
        let skipped = targets.len() - rows.len();
        prop_assert_eq!(usage, Usage { samples: rows.len() as u32, skipped: skipped as u32 });
        for (j, &value) in mean.iter().enumerate() {
            let sum: f64 = rows.iter().map(|row| f64::from(row[j].clamp(-bound, bound))).sum();
            let error = (f64::from(value) - sum / rows.len() as f64).abs();
            prop_assert!(error <= 4.0 * 64.0 * EPS, "{error:e}");
        }
    }
}

/// Streamed samples go to the task of the open round.
#[test]
fn streamed_rounds_have_the_bits_of_each_task_alone() {
    let problem = create_problem(D, 2, 1);
    let b = &problem.b[..];
    let streamed = || Linear::new(StreamingWorkspace::<D, 2>::new());
    /// Runs a round with streamed samples. Returns the usage of samples and the upload.
    fn stream_round(
        task: &mut impl Task,
        round: &RoundOpen,
        b: &[f32],
        samples: &Sliced,
    ) -> (Usage, Vec<u32>) {
        receive(task, round, &[b][..round.tensors.len()]).unwrap();
        task.begin().unwrap();
        for number in 1..=samples.len() {
            let (x, target) = samples.get(number - 1);
            assert_eq!(task.sample(x, target) as usize, number);
        }
        (task.finish().unwrap(), bits(&collect_upload(task, 7)))
    }
    let fit = open(1, gradient_task(), Role::Representation, Encoding::F32, D, 2);
    let mean = RoundOpen { task: custom_task(Encoding::F32), tensors: Descriptors::new(), ..fit.clone() };
    let mut pair = Tasks::new(streamed(), CustomTask::new());
    for round in [&fit, &mean, &fit] {
        let of_pair = stream_round(&mut pair, round, b, &problem.samples);
        let of_task = match round.task {
            Wire::Private12(_) => stream_round(&mut CustomTask::new(), round, b, &problem.samples),
            _ => stream_round(&mut streamed(), round, b, &problem.samples),
        };
        assert_eq!(of_pair, of_task);
    }
    let expected_tasks = streamed().streamed_tasks() | CustomTask::new().streamed_tasks();
    assert_eq!(pair.streamed_tasks(), expected_tasks);
    assert_eq!(expected_tasks, TaskKind::FedRep.bit() | TaskKind::FitHead.bit() | TaskKind::Private12.bit());
}

#[test]
fn capabilities_are_the_union() {
    let problem = create_problem(D, 2, 1);
    let (a, b) = (linear_model(&problem).capabilities(), CustomTask::new().capabilities());
    let pair = Tasks::new(linear_model(&problem), CustomTask::new()).capabilities();
    let expected = Capabilities {
        tasks: a.tasks | TaskKind::Private12.bit(),
        roles: a.roles | Role::Moment.bit(),
        tensor_elements: a.tensor_elements.max(D as u32),
        ..a
    };
    assert_eq!(pair, expected);
    // In the other order, only the announced model differs.
    let reversed = Tasks::new(CustomTask::new(), linear_model(&problem)).capabilities();
    assert_eq!(reversed, Capabilities { model: b.model, ..expected });
    // The session announces these capabilities with its frame limit.
    let task = Tasks::new(linear_model(&problem), CustomTask::new());
    let mut bench = Bench::with_task(session_config(LIMIT), task, problem.samples.clone(), Flash::default());
    let sent = bench.handle_until_idle(Event::LinkUp);
    let [(ToServer::Hello(hello), _)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(hello.capabilities, Capabilities { frame_limit: LIMIT, ..expected });
}

/// Task with the capabilities that a test requires and the rounds of the custom task.
struct Announcing(CustomTask, Capabilities);

impl Announcing {
    /// Creates a task whose capabilities are those of the custom task after `change`.
    fn new(change: impl FnOnce(&mut Capabilities)) -> Self {
        let mut capabilities = CustomTask::new().capabilities();
        change(&mut capabilities);
        Self(CustomTask::new(), capabilities)
    }
}

impl Task for Announcing {
    fn capabilities(&self) -> Capabilities {
        self.1
    }

    fn streamed_tasks(&self) -> u32 {
        u32::MAX
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        self.0.open(round)
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        self.0.tensor_mut(index)
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        self.0.verify()
    }

    fn run(
        &mut self,
        id: RoundId,
        source: &mut dyn fedspan_client::SampleSource,
    ) -> Result<Usage, DeclineReason> {
        self.0.run(id, source)
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        self.0.begin()
    }

    fn sample(&mut self, x: &[f32], target: fedspan_client::Targets<'_>) -> u32 {
        self.0.sample(x, target)
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        self.0.finish()
    }

    fn upload(&self) -> Descriptors {
        self.0.upload()
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        self.0.emit(index, first, out);
    }

    fn head(&self) -> &[f32] {
        &[]
    }

    fn head_mut(&mut self) -> &mut [f32] {
        &mut []
    }

    fn head_fitted_on(&self) -> Option<u32> {
        None
    }

    fn restore_head(&mut self, _representation: u32) {}
}

/// Abilities that concern every round are announced only if both tasks have them.
#[test]
fn abilities_are_announced_if_both_tasks_have_them() {
    let (scale, fit) = (Role::Scale.bit(), TaskKind::FitHead.bit());
    let task_with = |tasks: u32, roles: u32, encodings: u8| {
        Announcing::new(|capabilities| {
            (capabilities.tasks, capabilities.roles, capabilities.encodings) = (tasks, roles, encodings)
        })
    };
    let combined = |a, b| Tasks::new(a, b).capabilities();
    let one_has_scale = combined(task_with(fit, scale, 1), task_with(1 << 13, 0, 7));
    assert_eq!((one_has_scale.tasks, one_has_scale.roles, one_has_scale.encodings), (fit | 1 << 13, 0, 1));
    let both_have_scale = combined(task_with(fit, scale, 5), task_with(1 << 13, scale, 3));
    assert_eq!((both_have_scale.roles, both_have_scale.encodings), (scale, 1));
    // If a task fits no heads, the other task alone determines whether the device can choose a ridge.
    for (a, b, chooses) in [
        (task_with(fit, CHOOSES_RIDGE, 1), task_with(1 << 13, 0, 1), true),
        (task_with(1 << 13, 0, 1), task_with(fit, CHOOSES_RIDGE, 1), true),
        (task_with(fit, CHOOSES_RIDGE, 1), task_with(TaskKind::FedRep.bit(), 0, 1), false),
        (task_with(TaskKind::AdapterUp.bit(), 0, 1), task_with(fit, CHOOSES_RIDGE, 1), false),
        (task_with(fit, CHOOSES_RIDGE, 1), task_with(TaskKind::FedRep.bit(), CHOOSES_RIDGE, 1), true),
    ] {
        assert_eq!(combined(a, b).roles & CHOOSES_RIDGE != 0, chooses);
    }
    // A task whose kinds all belong to the other task does not restrict it.
    let single = task_with(fit, CHOOSES_RIDGE | scale, 7).capabilities();
    assert_eq!(combined(task_with(fit, CHOOSES_RIDGE | scale, 7), task_with(fit, 0, 1)), single);
    assert_eq!(combined(task_with(0, 0, 1), task_with(fit, CHOOSES_RIDGE | scale, 7)), single);
    // The second task's streams of a kind that the first task opens do not count.
    let tasks = Tasks::new(task_with(fit, 0, 1), task_with(1 << 13 | fit, 0, 1));
    assert_eq!(tasks.streamed_tasks(), fit | 1 << 13);
}

#[test]
fn task_of_both_belongs_to_the_first() {
    let problem = create_problem(D, 2, 1);
    let mut pair = connected_bench(
        Tasks::new(linear_model(&problem), linear_model(&problem)),
        &problem,
        &Flash::default(),
    );
    for number in 1..=3 {
        let sent = run_round(&mut pair, &server_of_kind(&problem, number, number as usize - 1));
        assert!(matches!(sent[0].0, ToServer::Update(_)), "{sent:?}");
    }
    let tasks = pair.session.task();
    assert!(tasks.first().head_fitted_on().is_some() && tasks.first().representation().is_some());
    assert_eq!((tasks.second().head_fitted_on(), tasks.second().representation()), (None, None));
    assert_eq!(tasks.capabilities(), linear_model(&problem).capabilities());
}

/// A nested pair opens each kind of round with the first task that has this kind.
#[test]
fn pairs_nest() {
    let problem = create_problem(D, 2, 1);
    let private_13 = Announcing::new(|capabilities| capabilities.tasks |= TaskKind::Private13.bit());
    let tasks = Tasks::new(Tasks::new(CustomTask::new(), private_13), linear_model(&problem));
    assert_eq!(tasks.capabilities().tasks, linear_model(&problem).capabilities().tasks | 0x3000);
    let mut nested = connected_bench(tasks, &problem, &Flash::default());
    let mut linear = connected_bench(linear_model(&problem), &problem, &Flash::default());
    for (number, index) in (1..).zip([0, 4, 1, 4, 2]) {
        let server = server_of_kind(&problem, number, index);
        let sent = run_round(&mut nested, &server);
        assert!(matches!(sent[0].0, ToServer::Update(_)), "{index}: {sent:?}");
        if index != 4 {
            assert_eq!(sent, run_round(&mut linear, &server));
        }
    }
    assert_eq!(nested.session.task().head(), linear.session.task().head());
}

/// After a reset, the head of the task that fits heads is restored, at either place in the pair.
#[test]
fn head_survives_a_reset() {
    let problem = create_problem(D, 2, 1);
    let flash = Flash::default();
    let mut before = connected_bench(Tasks::new(CustomTask::new(), linear_model(&problem)), &problem, &flash);
    for (number, index) in (1..).zip([0, 1, 4]) {
        run_round(&mut before, &server_of_kind(&problem, number, index));
    }
    let head = before.session.task().head().to_vec();
    assert_eq!((head.len(), flash.0.borrow().saves), (2, 3));
    let after = connected_bench(Tasks::new(linear_model(&problem), CustomTask::new()), &problem, &flash);
    assert_eq!(after.session.task().first().head(), head);
    assert_eq!(after.session.task().head_fitted_on(), before.session.task().head_fitted_on());
    assert_eq!(after.session.last_round(), 3);
    // If no task fits heads, the pair has the head of the first task.
    let tasks = Tasks::new(CustomTask::new(), Announcing::new(|capabilities| capabilities.tasks = 1 << 14));
    assert!(tasks.head().is_empty());
}

/// A pair needs only a few bytes in addition to its tasks.
#[test]
fn pair_has_no_memory_of_its_own() {
    type Small = Linear<Workspace<D, 2>>;
    let parts = size_of::<Small>() + size_of::<CustomTask>();
    assert!(size_of::<Tasks<Small, CustomTask>>() <= parts + 12);
}

#[cfg(feature = "privacy")]
mod private {
    use super::*;
    use crate::common::clipped;
    use crate::common::priced_task::PricedTask;
    use fedspan_client::Millis;
    use fedspan_client::privacy::Clip;
    use fedspan_protocol::message::Privacy;

    type Pair = Tasks<PricedTask<Model>, PricedTask<CustomTask>>;

    fn priced_task<T>(task: T, release: u32, budget: u64, slot: u64) -> PricedTask<T> {
        PricedTask { release, ..PricedTask::new(task, Some(budget), slot) }
    }

    /// Creates a linear model and the custom task, whose releases cost 3 and 5 units.
    fn priced_pair(problem: &Problem, budgets: [u64; 2], slots: [u64; 2]) -> Pair {
        Tasks::new(
            priced_task(linear_model(problem), 3, budgets[0], slots[0]),
            priced_task(CustomTask::new(), 5, budgets[1], slots[1]),
        )
    }

    fn spent_budget(flash: &Flash) -> u64 {
        flash.0.borrow().spent
    }

    #[test]
    fn pair_announces_the_larger_cost_the_smaller_budget_and_the_longer_slot() {
        let problem = create_problem(D, 2, 1);
        for (budgets, slots, budget, slot) in
            [([100, 40], [700, 900], 40, 900), ([40, 100], [900, 700], 40, 900), ([7, 7], [1, 1], 7, 1)]
        {
            let pair = priced_pair(&problem, budgets, slots);
            let expected = Privacy::Gaussian { release: 5, budget, spent: 0 };
            assert_eq!((pair.capabilities().privacy, pair.slot()), (expected, Millis::new(slot)));
            let costs = [
                gradient_task(),
                Wire::FitHead { head: EXACT },
                custom_task(Encoding::F32),
                Wire::PowerStart,
            ];
            assert_eq!(costs.map(|task| pair.cost(&task)), [3, 0, 5, 3]);
            assert_eq!(pair.cost(&Wire::Private15(PrivateTask::default())), 0);
        }
    }

    /// Both tasks spend one budget, each at its cost. The task of the round is prepared with the amount spent
    /// before.
    #[test]
    fn rounds_of_both_tasks_spend_one_budget() {
        let problem = create_problem(D, 2, 1);
        let flash = Flash::default();
        let mut bench = connected_bench(priced_pair(&problem, [12, 1000], [700, 900]), &problem, &flash);
        let mut total = 0;
        for (number, index, cost) in [(1, 0, 3), (2, 4, 5), (3, 1, 0), (4, 0, 3)] {
            let before = bench.now;
            let sent = run_round(&mut bench, &server_of_kind(&problem, number, index));
            assert!(matches!(sent[0].0, ToServer::Update(_)), "{index}: {sent:?}");
            total += cost;
            // Every answer is sent at the end of the longer slot.
            assert_eq!((spent_budget(&flash), bench.now), (total, before + 900));
        }
        let tasks = bench.session.task();
        let spent_before =
            |releases: &[fedspan_client::Release]| releases.iter().map(|r| r.spent).collect::<Vec<_>>();
        assert_eq!(spent_before(&tasks.first().releases), [0, 8]);
        assert_eq!(spent_before(&tasks.second().releases), [3]);
        // The smaller budget has one unit left.
        for (number, index) in [(5, 0), (6, 4)] {
            let sent = run_round(&mut bench, &server_of_kind(&problem, number, index));
            assert_eq!(decline_reason_if_any(&sent), Some(DeclineReason::Budget { left: 1 }));
        }
        assert_eq!(spent_budget(&flash), 11);
    }

    /// A failure of entropy or computation concerns only the task of the round. Without entropy nothing is
    /// charged; after a failed computation the charge stays.
    #[test]
    fn failures_are_those_of_the_open_task() {
        let problem = create_problem(D, 2, 1);
        let flash = Flash::default();
        let mut bench = connected_bench(priced_pair(&problem, [100, 100], [700, 900]), &problem, &flash);
        bench.session.task_mut().first_mut().entropy_fails = true;
        bench.session.task_mut().second_mut().computation_fails = true;
        assert_eq!(
            decline_reason_if_any(&run_round(&mut bench, &server_of_kind(&problem, 1, 0))),
            Some(DeclineReason::Entropy)
        );
        assert_eq!(spent_budget(&flash), 0);
        assert_eq!(
            decline_reason_if_any(&run_round(&mut bench, &server_of_kind(&problem, 2, 4))),
            Some(DeclineReason::UpdateNonFinite)
        );
        assert_eq!(spent_budget(&flash), 5);
    }

    /// A task with noise and no slot cannot use the other task's slot, because its answers would reveal how
    /// long it computed.
    #[test]
    fn missing_slot_declines_rounds_with_a_cost() {
        let problem = create_problem(D, 2, 1);
        for slots in [[0, 900], [900, 0], [0, 0]] {
            let flash = Flash::default();
            let mut bench = connected_bench(priced_pair(&problem, [100, 100], slots), &problem, &flash);
            for (number, index) in [(1, 0), (2, 4)] {
                let sent = run_round(&mut bench, &server_of_kind(&problem, number, index));
                assert_eq!(decline_reason_if_any(&sent), Some(DeclineReason::Device), "{slots:?}");
            }
            let sent = run_round(&mut bench, &server_of_kind(&problem, 3, 1));
            assert!(matches!(sent[0].0, ToServer::Update(_)));
            assert_eq!(spent_budget(&flash), 0);
        }
    }

    /// In a pair with a noisy task, a task without noise is neither announced nor opened, in either order.
    #[test]
    fn noisy_task_switches_a_task_without_noise_off() {
        let problem = create_problem(D, 2, 1);
        let noisy = || priced_task(linear_model(&problem), 3, 100, 700);
        let alone = noisy().capabilities();
        let first = Tasks::new(noisy(), CustomTask::new());
        let second = Tasks::new(CustomTask::new(), noisy());
        assert_eq!((first.capabilities(), second.capabilities()), (alone, alone));
        assert_eq!((first.slot(), second.slot()), (Millis::new(700), Millis::new(700)));
        assert_eq!(
            (first.streamed_tasks(), second.streamed_tasks()),
            (noisy().streamed_tasks(), noisy().streamed_tasks())
        );
        let flash = Flash::default();
        let mut bench = connected_bench(second, &problem, &flash);
        assert_eq!(
            decline_reason_if_any(&run_round(&mut bench, &server_of_kind(&problem, 1, 4))),
            Some(DeclineReason::Task)
        );
        assert_eq!(spent_budget(&flash), 0);
        let sent = run_round(&mut bench, &server_of_kind(&problem, 2, 0));
        assert!(matches!(sent[0].0, ToServer::Update(_)));
        assert_eq!(spent_budget(&flash), 3);
        // A noisy custom task also switches off a model without noise, in nested pairs too.
        let noisy_custom = || priced_task(CustomTask::new(), 5, 100, 700);
        let nested = Tasks::new(
            Tasks::new(linear_model(&problem), noisy_custom()),
            Announcing::new(|capabilities| capabilities.tasks = 1 << 15),
        );
        assert_eq!(nested.capabilities(), noisy_custom().capabilities());
    }

    /// In a pair, a private model's upload has the bits of the model alone, noise included, with rounds of
    /// another noisy task in between.
    #[test]
    fn noisy_upload_has_the_bits_of_the_model_alone() {
        let problem = create_problem(D, 2, 1);
        let round = open(1, gradient_task(), Role::Representation, Encoding::F32, D, 2);
        let mean =
            RoundOpen { task: custom_task(Encoding::F32), tensors: Descriptors::new(), ..round.clone() };
        let mut memory = [Heap::streaming(D, 2, 1), Heap::streaming(D, 2, 1)];
        let [alone, paired] = &mut memory;
        let clip = Clip::new(1.0).unwrap();
        let mut alone = clipped::clipping_device(alone, clipped::known_mechanism(9), clip);
        let paired = clipped::clipping_device(paired, clipped::known_mechanism(9), clip);
        let mut pair = Tasks::new(paired, priced_task(CustomTask::new(), 5, 100, clip_slot(&alone)));
        assert_eq!(pair.cost(&round.task), alone.cost(&round.task));
        assert!(alone.cost(&round.task) > 0);
        for _ in 0..2 {
            receive(&mut alone, &round, &[&problem.b]).unwrap();
            receive(&mut pair, &round, &[&problem.b]).unwrap();
            let usage = alone.run(round.id, &mut problem.samples.clone()).unwrap();
            assert_eq!(pair.run(round.id, &mut problem.samples.clone()).unwrap(), usage);
            assert_eq!(bits(&collect_upload(&pair, 7)), bits(&collect_upload(&alone, 7)));
            receive(&mut pair, &mean, &[]).unwrap();
            pair.run(mean.id, &mut problem.samples.clone()).unwrap();
            assert_eq!(pair.upload()[0].role, Role::Moment);
        }
    }

    fn clip_slot(task: &impl Task) -> u64 {
        task.slot().as_u64()
    }
}
