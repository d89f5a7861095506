//! Tests of a build without any feature, for `cargo test -p fedspan-client --no-default-features --test least`: what it announces,
//! and how it answers what it cannot do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]
#![cfg(not(any(
    feature = "custom-tasks",
    feature = "encryption",
    feature = "gradient-head",
    feature = "minimum-norm",
    feature = "power-start",
    feature = "streaming"
)))]

use std::convert::Infallible;
use std::path::Path;

use fedspan_client::session::{Config, Event, Protection};
use fedspan_client::store::NoStore;
use fedspan_client::{Linear, Millis, Recording, Session, Task, Workspace};
use fedspan_protocol::frame::{Decoder, FeedResult, encode};
use fedspan_protocol::message::{
    DeclineReason, HeadSolve, RoundId, RoundOpen, Task as Wire, TaskKind, ToDevice, ToServer, Upload,
    Welcome, decode,
};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use rand_core::TryRng;

const D: usize = 4;
const K: usize = 2;

struct Zero;

impl TryRng for Zero {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(0)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(0)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        bytes.fill(0);
        Ok(())
    }
}

type Device<'a> = Session<Linear<Workspace<D, K>>, Recording<'a>, NoStore, Zero>;

/// Device that is welcome to a server.
fn connected<'a>(x: &'a [f32], y: &'a [f32]) -> Device<'a> {
    let samples = Recording::regression(x, y, D, 1);
    let model = Linear::new(Workspace::new());
    let mut device = Session::new(Config::new(1), Protection::Plaintext, model, samples, NoStore, Zero);
    let hello = answer(&mut device, Event::LinkUp).unwrap();
    let ToServer::Hello(hello) = hello else { panic!("no hello but {hello:?}") };
    assert_eq!(hello.capabilities.tasks, TaskKind::FedRep.bit() | TaskKind::FitHead.bit());
    assert_eq!(hello.capabilities.roles, Role::Gradient.bit() | Role::Representation.bit());
    let welcome = Welcome { campaign: 1, idle_milliseconds: 60_000 };
    assert_eq!(send(&mut device, &ToDevice::Welcome(welcome), &[]), None);
    device
}

/// Passes an event to the device. Returns the message that it sends.
fn answer(device: &mut Device<'_>, event: Event<'_>) -> Option<ToServer> {
    let mut out = [0; 400];
    let progress = device.handle(Millis::new(1), event, &mut out);
    let progress = if progress.sent == 0 && progress.again {
        device.handle(Millis::new(1), Event::Tick, &mut out)
    } else {
        progress
    };
    let message = unframed(&out[..progress.sent])?;
    Some(decode(&message).unwrap().0)
}

/// Returns the message and body of a frame.
fn unframed(mut frame: &[u8]) -> Option<Vec<u8>> {
    let mut decoder = Decoder::new([0; 4096]);
    match decoder.feed(&mut frame) {
        FeedResult::Message(message) => Some(message.to_vec()),
        _ => None,
    }
}

/// Sends a message to the device. Returns its answer.
fn send(device: &mut Device<'_>, message: &ToDevice, body: &[u8]) -> Option<ToServer> {
    let mut out = [0; 400];
    let sent = encode(message, body.len(), |target| target.copy_from_slice(body), &mut out).unwrap();
    let message = unframed(&out[..sent]).unwrap();
    answer(device, Event::Message(&message))
}

/// Round with this task and an orthonormal representation.
fn round(number: u32, task: Wire) -> (ToDevice, Vec<u8>) {
    let tensors = [TensorDescriptor::inline(Role::Representation, Encoding::F32, D as u16, K as u16)];
    let open =
        RoundOpen { id: RoundId { round: number, stage: 0 }, task, tensors: tensors.into_iter().collect() };
    let b = [1.0f32, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
    (ToDevice::RoundOpen(open), b.iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn fed_rep(head: HeadSolve) -> Wire {
    Wire::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding: Encoding::F32 }
}

const EXACT: HeadSolve = HeadSolve::LeastSquares { ridge: 0.0 };

#[test]
fn rounds_of_its_own_task_are_computed() {
    let (x, y) = ([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0], [1.0, 2.0, 3.0]);
    let mut device = connected(&x, &y);
    let (open, body) = round(1, fed_rep(EXACT));
    let answer = send(&mut device, &open, &body);
    assert!(matches!(&answer, Some(ToServer::Update(update)) if update.samples == 3), "{answer:?}");
    assert!(device.task().head().iter().all(|w| w.is_finite()));
}

#[test]
fn samples_that_determine_no_head_are_declined() {
    let (x, y) = ([1.0, 0.0, 1.0, 0.0], [1.0]);
    let mut device = connected(&x, &y);
    let (open, body) = round(1, fed_rep(EXACT));
    let answer = send(&mut device, &open, &body);
    assert!(
        matches!(&answer, Some(ToServer::Decline(decline)) if decline.reason == DeclineReason::Undetermined),
        "{answer:?}"
    );
    assert_eq!(device.counters().declined, 1);
    // A ridge determines every head.
    let (open, body) = round(2, fed_rep(HeadSolve::LeastSquares { ridge: 0.1 }));
    assert!(matches!(send(&mut device, &open, &body), Some(ToServer::Update(_))));
}

/// Every golden message with a task that this build lacks is counted and ignored, and the device goes on.
#[test]
fn other_tasks_are_malformed() {
    let (x, y) = ([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0], [1.0, 2.0, 3.0]);
    let mut device = connected(&x, &y);
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/vectors");
    let (mut malformed, mut declined) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(vectors).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("to_device_round_open") || path.extension().is_none_or(|end| end != "bin") {
            continue;
        }
        let message = unframed(&std::fs::read(&path).unwrap()).unwrap();
        let before = device.counters();
        let answer = answer(&mut device, Event::Message(&message));
        let after = device.counters();
        if after.malformed > before.malformed {
            assert_eq!(answer, None, "{name}");
            malformed.push(name);
        } else {
            assert!(matches!(answer, Some(ToServer::Decline(_))), "{name}: {answer:?}");
            declined.push(name);
        }
    }
    malformed.sort();
    println!("{} malformed, {} declined: {declined:?}", malformed.len(), declined.len());
    for task in ["fed_avg", "baseline", "fed_power", "ridge_scores", "sgd", "lora_up"] {
        assert!(malformed.iter().any(|name| name.contains(task)), "{task}: {malformed:?}");
    }
    let (open, body) = round(900_000, fed_rep(EXACT));
    assert!(matches!(send(&mut device, &open, &body), Some(ToServer::Update(_))));
    let gradient = HeadSolve::Gradient { steps: 1, step_size: 0.1 };
    let (open, body) = round(900_001, fed_rep(gradient));
    let before = device.counters().malformed;
    assert_eq!(send(&mut device, &open, &body), None);
    assert_eq!(device.counters().malformed, before + 1);
}
