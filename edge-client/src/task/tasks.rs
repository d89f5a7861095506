//! Combination of several tasks in one firmware: [`Tasks`] opens each round with one of two tasks.

#[cfg(feature = "top-k")]
use fedspan_protocol::message::AckOutcome;
use fedspan_protocol::message::{
    self, CHOOSES_RIDGE, Capabilities, DeclineReason, Descriptors, FITS_BY_STEPS, Privacy, RoundId,
    RoundOpen, TaskKind,
};
use fedspan_protocol::tensor::Role;

use super::{Task, Usage};
use crate::pace::Pace;
use crate::release::Release;
use crate::source::{SampleSource, Targets};
use crate::time::Millis;

/// Pair of tasks, each with its own memory. The task whose [capabilities](Task::capabilities) contain the
/// kind of a round opens it, and the round then runs as if that task were alone. More than two tasks can be
/// nested: `Tasks<A, Tasks<B, C>>`. Calls are dispatched statically, and firmware that does not use this type
/// contains none of its code.
///
/// ```
/// use fedspan_client::task::Tasks;
/// use fedspan_client::{Linear, Task, Workspace};
///
/// # type Own = Linear<Workspace<20, 2>>;
/// # fn own() -> Own { Linear::new(Workspace::new()) }
/// let model = Linear::new(Workspace::<20, 2>::new());
/// let tasks = Tasks::new(model, own()); // an own task: `examples/own_device_task.rs`
/// assert_eq!(tasks.capabilities().model, tasks.first().capabilities().model);
/// ```
///
/// # Capabilities of the pair
///
/// | capability | of the pair |
/// | --- | --- |
/// | tasks, roles that may be sent, sizes | of either task |
/// | model, arithmetic | of the first task |
/// | encodings, a scale ([`Role::Scale`]) | of both tasks, because they apply to any round |
/// | choice of a ridge, heads by gradient steps | of every task that fits heads |
///
/// If both tasks support a kind of round, the first task opens it. If one task supports no kind that the pair
/// can use, the pair announces the capabilities of the other task. To scale the samples of both tasks, wrap
/// the pair in `Scaled`.
///
/// # Privacy
///
/// All noise is charged to one ledger, the device's. The pair announces the larger cost of a release and the
/// smaller budget, and each round is charged the cost that its task states. The response slot is the longer
/// of the two: with two different slots the time of an answer would depend on the task. If a task with noise
/// has no slot, the pair has no slot, and the session declines rounds with a cost.
///
/// If only one task has noise, the other task is disabled, in either order: it is neither announced nor
/// opened. Otherwise a device that announces noise would also send updates without noise.
///
/// # Head
///
/// The session stores one head: the head of the task that fits heads ([`TaskKind::FitHead`]), otherwise of
/// the first task that has a head. The head of the other task is lost after a reset.
#[derive(Clone, Debug)]
pub struct Tasks<A, B> {
    first: A,
    second: B,
    /// Kinds of rounds that the first task opens, as bits.
    of_first: u32,
    /// Kinds of rounds that the second task opens, as bits; disjoint from `of_first`.
    of_second: u32,
    /// Task of the open round, or of the last round.
    open: Member,
}

/// One of the two tasks of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    First,
    Second,
}

/// Calls a method of the task that opened the current round.
macro_rules! of_open {
    ($tasks:ident.$method:ident($($argument:expr),*)) => {
        match $tasks.open {
            Member::First => $tasks.first.$method($($argument),*),
            Member::Second => $tasks.second.$method($($argument),*),
        }
    };
}

/// Calls a method of the task whose head is stored.
macro_rules! of_head {
    ($tasks:ident.$method:ident($($argument:expr),*)) => {
        match $tasks.head_member() {
            Member::First => $tasks.first.$method($($argument),*),
            Member::Second => $tasks.second.$method($($argument),*),
        }
    };
}

impl<A: Task, B: Task> Tasks<A, B> {
    /// Combines two tasks. The assignment of rounds to tasks is computed here from their capabilities.
    pub fn new(first: A, second: B) -> Self {
        let (a, b) = (first.capabilities(), second.capabilities());
        let noise = a.privacy != Privacy::None || b.privacy != Privacy::None;
        let admitted = |task: &Capabilities| match task.privacy {
            Privacy::None if noise => 0,
            _ => task.tasks,
        };
        let of_first = admitted(&a);
        let of_second = admitted(&b) & !of_first;
        Self { first, second, of_first, of_second, open: Member::First }
    }

    /// Returns the first task.
    pub fn first(&self) -> &A {
        &self.first
    }

    /// Returns the first task, mutable, for example for predictions. Its capabilities must not change.
    pub fn first_mut(&mut self) -> &mut A {
        &mut self.first
    }

    /// Returns the second task.
    pub fn second(&self) -> &B {
        &self.second
    }

    /// Returns the second task, mutable. Its capabilities must not change.
    pub fn second_mut(&mut self) -> &mut B {
        &mut self.second
    }

    /// Returns the task that opens rounds of this kind.
    fn member(&self, kind: TaskKind) -> Option<Member> {
        if kind.is_in(self.of_first) {
            Some(Member::First)
        } else if kind.is_in(self.of_second) {
            Some(Member::Second)
        } else {
            None
        }
    }

    /// Returns the task whose head is stored.
    fn head_member(&self) -> Member {
        let otherwise = if self.first.head().is_empty() { Member::Second } else { Member::First };
        self.member(TaskKind::FitHead).unwrap_or(otherwise)
    }
}

/// Tasks that fit a head, in which a server may let a device choose the ridge.
const FIT_HEADS: u32 = TaskKind::FedRep.bit() | TaskKind::FitHead.bit() | TaskKind::AdapterUp.bit();

/// Returns the capabilities of the pair, from the capabilities of two tasks with the kinds of rounds that
/// they open.
fn combine_capabilities(a: &Capabilities, b: &Capabilities) -> Capabilities {
    // Every task that fits heads must have the ability.
    let has = |task: &Capabilities, ability| task.tasks & FIT_HEADS == 0 || task.roles & ability != 0;
    let of_both = [CHOOSES_RIDGE, FITS_BY_STEPS]
        .into_iter()
        .filter(|ability| !(has(a, *ability) && has(b, *ability)))
        .fold(Role::Scale.bit(), |roles, ability| roles | ability);
    Capabilities {
        frame_limit: 0,
        model: a.model,
        tasks: a.tasks | b.tasks,
        roles: (a.roles | b.roles) & !of_both | (a.roles & b.roles & of_both),
        encodings: a.encodings & b.encodings,
        numeric: a.numeric,
        tensors: a.tensors.max(b.tensors),
        tensor_elements: a.tensor_elements.max(b.tensor_elements),
        total_elements: a.total_elements.max(b.total_elements),
        privacy: stricter_privacy(a.privacy, b.privacy),
    }
}

/// Returns the larger cost of a release and the smaller budget.
fn stricter_privacy(a: Privacy, b: Privacy) -> Privacy {
    match (a, b) {
        (
            Privacy::Gaussian { release, budget, spent },
            Privacy::Gaussian { release: other_release, budget: other_budget, spent: other_spent },
        ) => Privacy::Gaussian {
            release: release.max(other_release),
            budget: budget.min(other_budget),
            spent: spent.max(other_spent),
        },
        (privacy, Privacy::None) | (_, privacy) => privacy,
    }
}

impl<A: Task, B: Task> Task for Tasks<A, B> {
    fn capabilities(&self) -> Capabilities {
        let a = Capabilities { tasks: self.of_first, ..self.first.capabilities() };
        let b = Capabilities { tasks: self.of_second, ..self.second.capabilities() };
        match (self.of_first, self.of_second) {
            (_, 0) => a,
            (0, _) => b,
            _ => combine_capabilities(&a, &b),
        }
    }

    fn streamed_tasks(&self) -> u32 {
        self.first.streamed_tasks() & self.of_first | self.second.streamed_tasks() & self.of_second
    }

    fn open(&mut self, round: &RoundOpen) -> Result<(), DeclineReason> {
        let member = self.member(round.task.kind()).ok_or(DeclineReason::Task)?;
        match member {
            Member::First => self.first.open(round)?,
            Member::Second => self.second.open(round)?,
        }
        self.open = member;
        Ok(())
    }

    fn tensor_mut(&mut self, index: usize) -> Option<&mut [f32]> {
        of_open!(self.tensor_mut(index))
    }

    fn verify(&mut self) -> Result<(), DeclineReason> {
        of_open!(self.verify())
    }

    fn run(&mut self, id: RoundId, source: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        of_open!(self.run(id, source))
    }

    fn begin(&mut self) -> Result<(), DeclineReason> {
        of_open!(self.begin())
    }

    fn sample(&mut self, x: &[f32], target: Targets<'_>) -> u32 {
        of_open!(self.sample(x, target))
    }

    fn finish(&mut self) -> Result<Usage, DeclineReason> {
        of_open!(self.finish())
    }

    fn upload(&self) -> Descriptors {
        of_open!(self.upload())
    }

    fn emit(&self, index: usize, first: usize, out: &mut [f32]) {
        of_open!(self.emit(index, first, out));
    }

    #[cfg(feature = "top-k")]
    fn acknowledged(&mut self, outcome: AckOutcome) {
        of_open!(self.acknowledged(outcome));
    }

    fn cost(&self, task: &message::Task) -> u64 {
        match self.member(task.kind()) {
            Some(Member::First) => self.first.cost(task),
            Some(Member::Second) => self.second.cost(task),
            None => 0,
        }
    }

    fn slot(&self) -> Millis {
        let (first, second) = (self.first.slot(), self.second.slot());
        let private = self.capabilities().privacy != Privacy::None;
        match (self.of_first, self.of_second) {
            (_, 0) => first,
            (0, _) => second,
            _ if private && first.min(second) == Millis::ZERO => Millis::ZERO,
            _ => first.max(second),
        }
    }

    fn prepare(&mut self, release: &Release) -> Result<(), DeclineReason> {
        of_open!(self.prepare(release))
    }

    fn pace(&self) -> Pace<'_> {
        of_open!(self.pace())
    }

    fn head(&self) -> &[f32] {
        of_head!(self.head())
    }

    fn head_mut(&mut self) -> &mut [f32] {
        of_head!(self.head_mut())
    }

    fn head_fitted_on(&self) -> Option<u32> {
        of_head!(self.head_fitted_on())
    }

    fn restore_head(&mut self, representation: u32) {
        of_head!(self.restore_head(representation));
    }
}
