//! Tests of the builders of servers and configurations: defaults as in the file, custom parts, and the
//! resumption of stored campaigns with custom parts.

use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use fedspan_aggregator::check::check;
use fedspan_aggregator::config::{Fleet, FleetBuilder, Problem};
use fedspan_aggregator::durable_engine::ResumeError;
use fedspan_aggregator::server::{Protection, ServeError, Server, ServerBuilder, Status, query};
use fedspan_aggregator::store;
use fedspan_engine::aggregate::{AggregationRule, Rule, UpdateWeight, Weighted};
use fedspan_engine::algorithm::{Algorithm, FedRep, FedRepParameters, random_start};
use fedspan_engine::linalg::{Matrix, RankDeficient};
use fedspan_engine::{
    Action, Cohort, CustomError, CustomParts, DeviceId, Engine, Event, Millis, Participation, Phase, Request,
    Tensor, Weighting,
};
use fedspan_protocol::message::{HeadSolve, Task, Upload};
use fedspan_protocol::tensor::Encoding;
use getrandom::SysRng;
use tokio::sync::oneshot;

use crate::common::campaign::honest_update;
use crate::common::{Scratch, bits};
use crate::examples::own_algorithm::Momentum;
use crate::server::{Devices, Hold, PATIENCE, on_disk, status};

const BETA: f64 = 0.5;

/// Number of rounds of a campaign that is interrupted; so large that the campaign does not end before.
const ROUNDS: u32 = 400;

/// Builder of the configuration of these tests, which is equal to [`TEXT`].
fn fleet_builder(state: &Path) -> FleetBuilder {
    let fleet = Fleet::builder().seed(5).state(state).tcp("127.0.0.1:0").plaintext().devices(3);
    let fleet = fleet.features(6).width(2).algorithm("fedrep").rounds(4).step_size(0.25);
    fleet.set("rounds.deadline", 0)
}

const TEXT: &str = "seed = 5\n[listen]\ntcp = \"127.0.0.1:0\"\nplaintext = true\n[devices]\nexpected = 3\n[data]\nd = 6\n\
                    [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.25\n[rounds]\ndeadline = 0\n";

fn create_momentum(fleet: &Fleet) -> Box<Momentum> {
    Box::new(Momentum::new((6, 2), 0.25, BETA, fleet.seed))
}

fn with_momentum(state: &Path) -> ServerBuilder {
    let fleet = fleet_builder(state).build().unwrap();
    let algorithm = create_momentum(&fleet);
    Server::builder(fleet).algorithm("momentum", algorithm).setting("beta", BETA)
}

/// Runs a campaign in an engine without a server, with devices that answer at once.
fn run_without_server(mut engine: Engine) -> Engine {
    let mut queue: Vec<Event> = (0..3).rev().map(|device| Event::Joined(DeviceId(device))).collect();
    while let Some(event) = queue.pop() {
        let mut actions = Vec::new();
        engine.handle(Millis::ZERO, event, &mut actions);
        for action in actions {
            if let Action::Open(device, opening) = action {
                queue.insert(0, Event::Update(device, honest_update(device, &opening)));
            }
        }
    }
    assert_eq!(engine.phase(), Phase::Finished);
    engine
}

/// Runs a server until the end of its campaign, with three devices.
async fn serve_to_end(builder: ServerBuilder) -> Status {
    let server = builder.bind().await.unwrap();
    let mut devices = Devices::new(server.address().unwrap());
    (0..3).for_each(|id| devices.add_device(id, false));
    let served = tokio::time::timeout(PATIENCE, server.serve(std::future::pending(), true));
    served.await.expect("the campaign did not finish in time").unwrap()
}

/// Returns the error of a server that cannot start, as one text.
async fn start_error(builder: ServerBuilder) -> String {
    match builder.bind().await.unwrap_err() {
        ServeError::Resume(ResumeError::Changed { difference }) => difference,
        error => error.to_string(),
    }
}

/// A configuration from the builder equals that of a file with the same keys, so every default is the same.
#[test]
fn builder_equals_file_of_the_same_keys() {
    let built = fleet_builder(Path::new("fedspan-state")).build().unwrap();
    let parsed = Fleet::parse("fleet.toml", TEXT).unwrap();
    // Only the sets of given keys differ: the builder sets the state directory, although to the default.
    let built = Fleet { given: parsed.given.clone(), ..built };
    assert_eq!(built, parsed);
    assert_eq!(built.fingerprint(), parsed.fingerprint());

    let minimal =
        Fleet::builder().devices(1).features(2).width(1).algorithm("fedavg").rounds(1).step_size(0.5);
    let required_keys = "[devices]\nexpected = 1\n[data]\nd = 2\n[model]\nk = 1\n[algorithm]\nname = \"fedavg\"\nrounds = 1\nstep_size = 0.5\n";
    assert_eq!(minimal.build().unwrap(), Fleet::parse("fleet.toml", required_keys).unwrap());
}

#[test]
fn builder_errors_name_key_and_value() {
    let state = Path::new("state");
    let build_error = |fleet: FleetBuilder| fleet.build().unwrap_err().to_string();
    assert_eq!(
        build_error(Fleet::builder().devices(2).features(6).width(2).algorithm("fedrep")),
        "Fleet::builder(): algorithm.rounds is missing, allowed: an integer from 1 to 10000000"
    );
    assert_eq!(
        build_error(fleet_builder(state).width(7)),
        "model.k: found 7, allowed: an integer from 1 to 6, the number of features"
    );
    assert_eq!(
        build_error(fleet_builder(state).algorithm("fedrap")),
        "algorithm.name: found \"fedrap\", allowed: \"fedrep\", \"gd-gd\", \"fedavg\", \"fedpower\", \"learned-prior\", \"local-only\", \"pooled\" (did \
         you mean \"fedrep\"?)"
    );
    let unknown_key = build_error(fleet_builder(state).set("rounds.dedline", 3.0));
    assert!(
        unknown_key.starts_with("rounds.dedline: unknown key (did you mean \"deadline\"?)"),
        "{unknown_key}"
    );
}

/// A server with the defaults of the builder behaves like one from [`Server::bind`]: the stored models are
/// bit-identical, and [`Server::bind`] resumes the campaign of the builder's server.
#[tokio::test(flavor = "multi_thread")]
async fn default_builder_serves_the_configuration() {
    let state = Scratch::new();
    let fleet = fleet_builder(state.path()).build().unwrap();
    serve_to_end(Server::builder(fleet.clone())).await;
    let expected = bits(run_without_server(fleet.engine()).representation());
    assert_eq!(on_disk(state.path()), expected);
    let stored = store::read(state.path()).unwrap().unwrap().configuration;
    assert_eq!(stored, fleet.fingerprint());
    assert!(!stored.contains("custom"), "{stored}");
    let resumed = Server::bind(fleet, 1, SysRng, Protection::Plaintext).await.unwrap();
    assert_eq!(resumed.status().round, 4);
}

/// A campaign with a custom algorithm continues after crashes with the same bits as without crashes. With
/// another algorithm, setting or policy the campaign is not resumed.
#[tokio::test(flavor = "multi_thread")]
async fn custom_algorithm_is_resumed_under_its_own_name_only() {
    let state = Scratch::new();
    let path = state.path();
    let parse_fleet = || fleet_builder(path).rounds(ROUNDS).build().unwrap();
    let with_momentum = || {
        Server::builder(parse_fleet())
            .algorithm("momentum", create_momentum(&parse_fleet()))
            .setting("beta", BETA)
    };
    let mut server = with_momentum().bind().await.unwrap();
    let mut devices = Devices::new(server.address().unwrap());
    (0..3).for_each(|id| devices.add_device(id, id == 2));
    // The third device keeps a round open when the server crashes.
    for round in [1, 9] {
        let running = tokio::spawn(server.serve(std::future::pending(), true));
        devices.hold.send_replace(Hold::Nothing);
        while status(path).await["round"].as_u64() < Some(round) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        devices.hold.send_replace(Hold::All);
        while status(path).await["answers"].as_u64() != Some(2) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());

        let lines = "- custom.algorithm = \"momentum\"\n- custom.settings.beta = 0.5\n";
        assert_eq!(start_error(Server::builder(parse_fleet())).await, lines);
        let changed_builder = Server::builder(parse_fleet())
            .algorithm("momenta", create_momentum(&parse_fleet()))
            .setting("beta", BETA);
        let lines = "- custom.algorithm = \"momentum\"\n+ custom.algorithm = \"momenta\"\n";
        assert_eq!(start_error(changed_builder).await, lines);
        let changed_builder = with_momentum().setting("beta", 0.25);
        let lines = "- custom.settings.beta = 0.5\n+ custom.settings.beta = 0.25\n";
        assert_eq!(start_error(changed_builder).await, lines);
        let changed_builder = with_momentum().participation("pairs", Box::new(Pairs::default()));
        assert_eq!(start_error(changed_builder).await, "+ custom.participation = \"pairs\"\n");
        // The check without the custom algorithm also names the algorithm.
        let faults = check(&parse_fleet()).unwrap().unwrap().faults;
        assert!(faults.iter().any(|fault| fault.contains("- custom.algorithm = \"momentum\"")), "{faults:?}");

        server = with_momentum().bind().await.unwrap();
        devices.address.send_replace(server.address().unwrap());
    }
    devices.hold.send_replace(Hold::Nothing);
    let ended = tokio::time::timeout(PATIENCE, server.serve(std::future::pending(), true));
    assert_eq!(ended.await.expect("the campaign did not finish in time").unwrap().round, ROUNDS);

    let fleet = parse_fleet();
    let custom = CustomParts::default().with_algorithm("momentum", create_momentum(&fleet));
    let uninterrupted = run_without_server(fleet.custom_engine(custom));
    let without_momentum = run_without_server(fleet.engine());
    assert_eq!(on_disk(path)[..12], bits(uninterrupted.representation()));
    assert_ne!(
        bits(uninterrupted.representation()),
        bits(without_momentum.representation()),
        "momentum had no effect"
    );
    // With momentum 0 the algorithm equals FedRep up to rounding.
    let zero_momentum =
        CustomParts::default().with_algorithm("none", Box::new(Momentum::new((6, 2), 0.25, 0.0, 5)));
    let zero_momentum = run_without_server(fleet.custom_engine(zero_momentum));
    assert!((zero_momentum.representation() - without_momentum.representation()).amax() < 1e-12);
}

/// Policy that selects two devices in turn. The state of the policy is the number of rounds so far.
#[derive(Debug, Default)]
struct Pairs {
    rounds: usize,
}

impl Participation for Pairs {
    fn cohort(&mut self, _round: u32, fleet: &[DeviceId]) -> Cohort {
        let pair = [0, 1].map(|step| fleet[(self.rounds + step) % fleet.len()]);
        self.rounds += 1;
        // The cohort is unsorted and contains a device that is not in the fleet; the engine must correct
        // both.
        Cohort::new(vec![pair[1], DeviceId(99), pair[0]])
    }

    fn state(&self) -> Vec<f64> {
        vec![self.rounds as f64]
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        let &[rounds] = state else { return false };
        self.rounds = rounds as usize;
        true
    }
}

/// Policy whose first call of `state`, while the server starts, waits for a message.
struct Slow(Mutex<Option<(Sender<()>, Receiver<()>)>>);

impl Participation for Slow {
    fn cohort(&mut self, _round: u32, fleet: &[DeviceId]) -> Cohort {
        Cohort::new(fleet.to_vec())
    }

    fn state(&self) -> Vec<f64> {
        if let Some((reached, go)) = self.0.lock().unwrap().take() {
            reached.send(()).unwrap();
            go.recv().unwrap();
        }
        Vec::new()
    }
}

/// A server answers `status` as soon as it has locked its directory. Other requests are refused until it has
/// started.
#[tokio::test(flavor = "multi_thread")]
async fn starting_server_reports_that_it_starts() {
    let scratch = Scratch::new();
    let state = scratch.path().to_owned();
    let (reached, is_reached) = channel();
    let (go, may_go) = channel();
    let client = std::thread::spawn(move || {
        is_reached.recv().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answers = runtime.block_on(async {
            let mut answers = Vec::new();
            for request in ["status", "export", "watch", "keys {}"] {
                let answered = query(&state, request, |line| {
                    answers.push(line.to_owned());
                    Ok(())
                });
                assert_eq!(answered.await.unwrap(), Some(()));
            }
            answers
        });
        go.send(()).unwrap();
        answers
    });
    let policy = Slow(Mutex::new(Some((reached, may_go))));
    let fleet = fleet_builder(scratch.path()).build().unwrap();
    let server = Server::builder(fleet).participation("slow", Box::new(policy)).bind().await.unwrap();
    let answers = client.join().unwrap();
    assert_eq!(answers[0], "{\"phase\":\"starting\"}");
    for answer in &answers[1..] {
        assert_eq!(answer, "{\"error\":\"the server is starting; try again\"}");
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }, false));
    assert_eq!(status(scratch.path()).await["phase"], "waiting");
    drop(stop);
    serving.await.unwrap().unwrap();
    assert!(!scratch.path().join("control.sock").exists());
}

/// The engine asks the cohorts that the policy selects, after a correction of invalid cohorts. A resumed
/// policy continues from its state.
#[test]
fn custom_policy_chooses_the_cohorts() {
    let fleet = Fleet::parse("fleet.toml", TEXT).unwrap();
    let engine_with_pairs = || {
        let pairs = Box::new(Pairs::default());
        fleet.custom_engine(CustomParts::default().with_participation("pairs", pairs))
    };
    let mut uninterrupted = engine_with_pairs();
    let mut interrupted = engine_with_pairs();
    let (mut queue, mut cohorts) =
        (Vec::from([2, 1, 0].map(|device| Event::Joined(DeviceId(device)))), Vec::new());
    while let Some(event) = queue.pop() {
        let mut actions = Vec::new();
        uninterrupted.handle(Millis::ZERO, event, &mut actions);
        let Some(round) =
            uninterrupted.open_round().filter(|_| matches!(uninterrupted.phase(), Phase::Train(_)))
        else {
            continue;
        };
        if actions.iter().any(|action| matches!(action, Action::Open(..))) {
            let cohort: Vec<DeviceId> = round.cohort.iter().copied().collect();
            interrupted = engine_with_pairs();
            assert!(interrupted.resume(Millis::ZERO, &uninterrupted.checkpoint()));
            assert_eq!(interrupted.open_round().unwrap().cohort, round.cohort);
            // The target of three updates is limited to the two devices of the cohort.
            queue.extend(
                cohort.iter().rev().map(|id| Event::Update(*id, honest_update(*id, &round.broadcast))),
            );
            cohorts.push(cohort);
        }
    }
    assert_eq!(cohorts, [[0, 1], [1, 2], [0, 2], [0, 1]].map(|pair| pair.map(DeviceId).to_vec()));
    assert_eq!(interrupted.phase(), Phase::Train(4));
}

/// Aggregation rule that returns the update of the first device.
#[derive(Debug)]
struct First(&'static str);

impl AggregationRule for First {
    fn name(&self) -> &'static str {
        self.0
    }

    fn combine(&self, updates: &[Weighted<'_>], _center: &[f64], out: &mut [f64]) {
        out.iter_mut().zip(updates[0].values).for_each(|(out, value)| *out = f64::from(*value));
    }

    fn parameters(&self) -> Vec<(&'static str, f64)> {
        vec![("device", 0.0)]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_rule_is_resumed_under_its_own_name_only() {
    let state = Scratch::new();
    let stored_fleet = fleet_builder(state.path()).build().unwrap();
    let builder_with_rule =
        |name| Server::builder(stored_fleet.clone()).rule(Rule::custom(Box::new(First(name))));
    serve_to_end(builder_with_rule("first")).await;
    let fleet_with_rule = stored_fleet.clone().with_rule(Rule::custom(Box::new(First("first")))).unwrap();
    assert_eq!(on_disk(state.path()), bits(run_without_server(fleet_with_rule.engine()).representation()));
    assert_ne!(on_disk(state.path()), bits(run_without_server(stored_fleet.engine()).representation()));

    assert_eq!(builder_with_rule("first").bind().await.unwrap().status().round, 4);
    let lines = "- aggregation.rule = \"first\"\n+ aggregation.rule = \"last\"\n";
    assert_eq!(start_error(builder_with_rule("last")).await, lines);
    let lines = "- aggregation.rule = \"first\"\n- aggregation.device = 0.0\n";
    assert_eq!(
        start_error(Server::builder(stored_fleet.clone()))
            .await
            .replace("+ aggregation.rule = \"mean\"\n", ""),
        lines
    );
    // A rule of FedSpan is set in the same way.
    let lines = start_error(Server::builder(stored_fleet.clone()).rule(Rule::GEOMETRIC_MEDIAN)).await;
    assert!(lines.contains("+ aggregation.rule = \"geometric-median\""), "{lines}");

    // A setting that the program does not set keeps the stored value, even with a custom rule.
    let fleet_without_rule =
        Fleet::builder().seed(5).state(state.path()).plaintext().devices(3).features(6).width(2);
    let fleet_without_rule =
        fleet_without_rule.algorithm("fedrep").rounds(4).step_size(0.25).set("limits.norm", 1e4);
    let mut fleet_without_rule = fleet_without_rule.build().unwrap();
    fleet_without_rule.limits.samples.max_samples = 7;
    fleet_without_rule.tcp = "127.0.0.1:0".to_owned();
    let server = Server::builder(fleet_without_rule)
        .rule(Rule::custom(Box::new(First("first"))))
        .bind()
        .await
        .unwrap();
    assert_eq!(server.status().round, 4);
}

/// FedRep with injected faults.
struct Faulty {
    fedrep: FedRep,
    requests: Vec<Request>,
    forgets: bool,
}

impl Faulty {
    fn new(features: usize, width: usize) -> Self {
        let parameters = FedRepParameters {
            step_size: 0.25,
            head: HeadSolve::LeastSquares { ridge: 0.0 },
            upload: Upload::Gradient,
            download_encoding: Encoding::F32,
            upload_encoding: Encoding::F32,
            weighting: Weighting::Uniform,
            rule: Rule::MEAN,
        };
        let fedrep = FedRep::new(random_start(features, width, 1), parameters);
        Self { requests: vec![fedrep.request()], fedrep, forgets: false }
    }

    fn with_request(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.requests[0]);
        self
    }
}

impl Algorithm for Faulty {
    fn request(&self) -> Request {
        self.requests[0].clone()
    }

    fn absorb(&mut self, device: DeviceId, weight: UpdateWeight, tensors: &[Tensor]) {
        self.fedrep.absorb(device, weight, tensors);
    }

    fn finish(&mut self) -> Result<(), RankDeficient> {
        self.fedrep.finish()
    }

    fn representation(&self) -> &Matrix {
        self.fedrep.representation()
    }

    fn fit_request(&self, head: HeadSolve) -> Request {
        self.fedrep.fit_request(head)
    }

    fn state(&self) -> Vec<f64> {
        self.fedrep.state()
    }

    fn restore(&mut self, state: &[f64]) -> bool {
        !self.forgets && self.fedrep.restore(state)
    }
}

#[tokio::test]
async fn parts_that_do_not_fit_are_refused_with_numbers() {
    let state = Scratch::new();
    let default_builder = || Server::builder(fleet_builder(state.path()).build().unwrap());
    let custom_error = async |builder: ServerBuilder| match builder.bind().await.unwrap_err() {
        ServeError::Custom(error) => error,
        unexpected => panic!("{unexpected}"),
    };
    let builder_with = |faulty: Faulty| default_builder().algorithm("faulty", Box::new(faulty));

    let too_wide = custom_error(builder_with(Faulty::new(6, 3))).await;
    assert_eq!(
        too_wide.to_string(),
        "the custom algorithm \"faulty\" has a representation of 6 x 3, allowed: 6 x 2, that of the model"
    );
    let too_many_tensors =
        Faulty::new(6, 2).with_request(|request| request.tensors = vec![request.tensors[0].clone(); 6]);
    let too_many_tensors = custom_error(builder_with(too_many_tensors)).await;
    assert_eq!(too_many_tensors, CustomError::Tensors { algorithm: "faulty".into(), found: 6, allowed: 5 });
    let too_many_values = Faulty::new(6, 2).with_request(|request| {
        let [tensor] = &mut request.tensors[..] else { panic!() };
        (tensor.rows, tensor.cols, tensor.values) = (u16::MAX, 60, vec![0.0; 65_535 * 60]);
    });
    let too_many_values = custom_error(builder_with(too_many_values)).await;
    assert_eq!(too_many_values, CustomError::Frames { algorithm: "faulty".into(), values: 65_535 * 60 });
    let forgets = custom_error(builder_with(Faulty { forgets: true, ..Faulty::new(6, 2) })).await;
    assert_eq!(forgets, CustomError::State { part: "algorithm", values: 12 });

    let nameless = custom_error(default_builder().algorithm("", Box::new(Faulty::new(6, 2)))).await;
    assert_eq!(nameless, CustomError::Name { part: "algorithm" });
    for (key, value) in [("a key", 1.0), ("", 1.0), ("beta", f64::INFINITY)] {
        let error = custom_error(builder_with(Faulty::new(6, 2)).setting(key, value)).await;
        assert_eq!(error, CustomError::Setting { key: key.into(), value });
    }
    let rule = custom_error(default_builder().rule(Rule::custom(Box::new(First("mean"))))).await;
    assert_eq!(rule, CustomError::RuleName { name: "mean".into() });
    let rule_and_algorithm = custom_error(builder_with(Faulty::new(6, 2)).rule(Rule::GEOMETRIC_MEDIAN)).await;
    assert_eq!(
        rule_and_algorithm.to_string(),
        "the aggregation rule \"geometric-median\" has no effect on the custom algorithm \"faulty\", which combines updates \
         itself; give the rule to the algorithm"
    );
    let ServeError::Rule(Problem { message, .. }) =
        default_builder().rule(Rule::PROJECTOR_MEAN).bind().await.unwrap_err()
    else {
        panic!()
    };
    assert!(message.contains("found \"projector-mean\", a rule for subspaces"), "{message}");
}

#[tokio::test]
async fn private_campaign_refuses_tasks_without_noise() {
    let state = Scratch::new();
    let private = || {
        let fleet = fleet_builder(state.path()).set("privacy.epsilon", 2.0).set("privacy.delta", 1e-5);
        Server::builder(fleet.build().unwrap())
    };
    let without_noise = Faulty::new(6, 2).with_request(|request| request.task = Task::PowerStart);
    let ServeError::Custom(error) =
        private().algorithm("open", Box::new(without_noise)).bind().await.unwrap_err()
    else {
        panic!()
    };
    assert_eq!(error, CustomError::NoNoise { algorithm: "open".into() });
    private().algorithm("fedrep", Box::new(Faulty::new(6, 2))).bind().await.unwrap();
}

/// A builder without a key store does not turn a configuration with keys into one with plaintext.
#[tokio::test]
async fn builder_without_keys_refuses_to_serve_in_plaintext() {
    let state = Scratch::new();
    let fleet = fleet_builder(state.path()).set("listen.plaintext", false).build().unwrap();
    let error = Server::builder(fleet).bind().await.unwrap_err();
    assert!(matches!(&error, ServeError::NoKeys { store } if *store == state.path().join("keys")), "{error}");
}

/// A server with an existing listener works like one that binds an address, and ends on shutdown.
#[tokio::test(flavor = "multi_thread")]
async fn builder_serves_over_a_given_listener() {
    let state = Scratch::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = with_momentum(state.path()).campaign(77).entropy(SysRng).over(listener).unwrap();
    assert_eq!(server.address().unwrap(), address);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }, false));
    stop.send(()).unwrap();
    let status = tokio::time::timeout(PATIENCE, serving)
        .await
        .expect("the server did not end in time")
        .unwrap()
        .unwrap();
    assert_eq!(status.phase, "waiting");
    assert_eq!(store::read(state.path()).unwrap().unwrap().campaign, 77);
}
