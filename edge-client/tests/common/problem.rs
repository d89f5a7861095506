//! Test helpers for the session: a regression problem with its devices and servers.

use fedspan_client::session::Config;
use fedspan_client::{Linear, NotReady, Task};
use fedspan_protocol::message::{DeclineReason, Task as Wire, ToDevice, ToServer, Upload};
use fedspan_protocol::tensor::{Encoding, Role};

use super::server::{Bench, Fate, Flash, Server, is_readable, run_link};
use super::{EXACT, Heap, Random, Sliced, bits, collect_upload, flat, open, receive};

pub const ALL_ENCODINGS: [Encoding; 3] = [Encoding::F32, Encoding::F16, Encoding::I8];

/// Returns the settings of a session with this frame limit.
pub fn session_config(limit: u16) -> Config {
    Config { frame_limit: limit, ..Config::new(0xABCD) }
}

/// Regression problem: 30 samples and an orthonormal representation `b` (d x k).
pub struct Problem {
    pub d: usize,
    pub k: usize,
    pub c: usize,
    pub b: Vec<f32>,
    pub samples: Sliced,
}

/// Creates the problem of this shape.
pub fn create_problem(d: usize, k: usize, c: usize) -> Problem {
    let mut random = Random((d * 100 + k * 10 + c) as u64);
    let b = flat(&random.orthonormal(d, k));
    let samples = Sliced::regression(random.normals(30 * d), random.normals(30 * c), d, c);
    Problem { d, k, c, b, samples }
}

impl Problem {
    /// Creates a device with a new store.
    pub fn bench(&self, limit: u16) -> Bench<Sliced> {
        self.bench_with(limit, Flash::default())
    }

    /// Creates a device with this store.
    pub fn bench_with(&self, limit: u16, flash: Flash) -> Bench<Sliced> {
        Bench::new(session_config(limit), Heap::new(self.d, self.k, self.c), self.samples.clone(), flash)
    }

    /// Creates a server with a round that sends the problem's representation.
    pub fn server(&self, round: u32, task: Wire, encoding: Encoding, limit: u16) -> Server {
        self.server_of(round, task, encoding, limit, self.b.clone())
    }

    /// Creates a server with a round that sends the representation `b`.
    pub fn server_of(&self, round: u32, task: Wire, encoding: Encoding, limit: u16, b: Vec<f32>) -> Server {
        Server::new(round, task, encoding, limit.into(), vec![(Role::Representation, self.d, self.k, b)])
    }

    /// Computes the head and the decoded upload of a round without a session.
    pub fn expected_result(&self, task: Wire, encoding: Encoding) -> (Vec<f32>, Vec<f32>) {
        let mut model = Linear::new(Heap::new(self.d, self.k, self.c));
        let round = open(1, task, Role::Representation, encoding, self.d, self.k);
        receive(&mut model, &round, &[&self.b]).unwrap();
        model.run(round.id, &mut self.samples.clone()).unwrap();
        let mut sent = collect_upload(&model, 32);
        if let Wire::FedRep { encoding, .. } = task {
            let mut bytes = vec![0; encoding.byte_len(sent.len())];
            encoding.encode(&sent, &mut bytes).unwrap();
            encoding.decode(&bytes, &mut sent).unwrap();
        }
        (model.head().to_vec(), sent)
    }
}

/// Returns a FedRep task with an exact head.
pub fn fed_rep_task(upload: Upload, encoding: Encoding) -> Wire {
    Wire::FedRep { step_size: 0.2, head: EXACT, upload, encoding }
}

/// Returns a FedRep task that uploads the gradient in f32.
pub fn gradient_task() -> Wire {
    fed_rep_task(Upload::Gradient, Encoding::F32)
}

/// Returns a device that has finished round 5.
pub fn trained_bench(problem: &Problem, limit: u16, flash: Flash) -> Bench<Sliced> {
    let mut bench = problem.bench_with(limit, flash);
    let mut server = problem.server(5, gradient_task(), Encoding::F32, limit);
    run_link(&mut bench, &mut server, 10_000, |_| Fate::Deliver);
    assert_eq!(bench.session.counters().counted, 1);
    bench
}

/// Returns the bits of the device's prediction for the first sample.
pub fn predict_first_sample(bench: &mut Bench<Sliced>, problem: &Problem) -> Result<Vec<u32>, NotReady> {
    let mut out = vec![0.0; problem.c];
    bench.session.task_mut().predict(&problem.samples.x[..problem.d], &mut out)?;
    Ok(bits(&out))
}

/// Opens a round whose task the device lacks: it declines for this reason, or counts a message that it cannot read.
pub fn check_lacking_task(bench: &mut Bench<Sliced>, message: &ToDevice, body: &[u8], reason: DeclineReason) {
    let before = bench.session.counters();
    let sent = bench.receive_message(message, body);
    let after = bench.session.counters();
    if is_readable(message, body) {
        assert_eq!(decline_reason(&sent), reason, "{message:?}");
        assert_eq!((after.declined, after.malformed), (before.declined + 1, before.malformed));
    } else {
        assert!(sent.is_empty(), "{sent:?}");
        assert_eq!((after.declined, after.malformed), (before.declined, before.malformed + 1));
    }
}

/// Returns the reason for which a round was declined. Panics if the device sent any other message.
pub fn decline_reason(sent: &[(ToServer, Vec<u8>)]) -> DeclineReason {
    match sent {
        [(ToServer::Decline(decline), _)] => decline.reason,
        other => panic!("{other:?}"),
    }
}
