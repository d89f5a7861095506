//! Tests that the selection of a ridge is an optional ability: a device with it announces it, and a device
//! without it declines such a task instead of silently fitting another head.

use crate::common::head::head_of;
use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use fedspan_client::session::{Config, Event, Sampling};
use fedspan_client::source::NoRecording;
use fedspan_client::{Linear, Task};
use fedspan_protocol::message::{CHOOSES_RIDGE, DeclineReason, HeadSolve, Task as Wire, ToServer};
use fedspan_protocol::tensor::{Encoding, Role};

const CHOOSES: bool = cfg!(feature = "ridge-choice");
const LEFT_OUT: HeadSolve = HeadSolve::LeaveOneOut { fallback_ridge: 0.5 };
const SCORES: Wire = Wire::RidgeScores { labels_per_class: 1, first: 1e-4, factor: 10.0, count: 4 };

#[test]
fn devices_announce_ridge_selection() {
    for outputs in [1, 3] {
        let capabilities = Linear::new(Heap::new(20, 2, outputs)).capabilities();
        assert_eq!(capabilities.roles & CHOOSES_RIDGE != 0, CHOOSES);
        let scores = CHOOSES && outputs > 1;
        assert_eq!(capabilities.tasks & SCORES.bit() != 0, scores);
        assert_eq!(capabilities.roles & Role::RidgeScores.bit() != 0, scores);
    }
    #[cfg(feature = "i16")]
    {
        let fixed = fedspan_client::memory::FixedWorkspace::<20, 2, 3>::new();
        assert_eq!(Linear::new(fixed).capabilities().roles & CHOOSES_RIDGE, 0);
    }
}

/// A device with streamed samples does not announce the ability, because leave-one-out needs a second pass.
#[test]
fn streaming_devices_use_the_fallback_ridge() {
    let config = Config { sampling: Sampling::Stream { samples: 30 }, ..session_config(256) };
    let memory = Heap::streaming(20, 2, 1);
    assert_eq!(Linear::new(memory.clone()).capabilities().roles & CHOOSES_RIDGE != 0, CHOOSES);
    let mut bench = Bench::new(config, memory, NoRecording, Flash::default());
    let [(ToServer::Hello(hello), _)] = &bench.handle_until_idle(Event::LinkUp)[..] else {
        panic!("a hello")
    };
    assert_eq!(hello.capabilities.roles & CHOOSES_RIDGE, 0);
    assert_ne!(hello.capabilities.roles & Role::Gradient.bit(), 0);
}

/// Without the ability, the task is declined and the previous head stays.
#[test]
fn unsupported_ridge_selection_is_declined() {
    let problem = create_problem(20, 2, 3);
    let mut bench = problem.bench(4096);
    bench.connect(7, 60_000);
    let reasons =
        [(Wire::FitHead { head: LEFT_OUT }, DeclineReason::Parameter), (SCORES, DeclineReason::Task)];
    for (round, (task, reason)) in (1..).zip(reasons) {
        let (message, body) = &problem.server(round, task, Encoding::F32, 4096).opening_messages()[0];
        if !CHOOSES {
            check_lacking_task(&mut bench, message, body, reason);
        }
    }
    let mut model = Linear::new(Heap::new(20, 2, 3));
    model.set_representation(&problem.b).unwrap();
    model.fit_head(EXACT, &mut problem.samples.clone()).unwrap();
    let before = head_of(&model);
    let result = model.fit_head(LEFT_OUT, &mut problem.samples.clone());
    assert_eq!(result.is_ok(), CHOOSES);
    if !CHOOSES {
        assert_eq!(result.unwrap_err(), DeclineReason::Parameter);
        assert_eq!(bits(&head_of(&model)), bits(&before));
    }
}
