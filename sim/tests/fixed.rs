//! Tests of campaigns in 16-bit fixed point: results agree with those of f32 up to rounding, and unsupported
//! options are refused.

use crate::common::{empty_directory, exit_code, run_program, stderr_text};
use fedspan_client::memory::Shape;
use fedspan_client::secure::Suite;
use fedspan_client::session::{Config, Protection};
use fedspan_client::{Linear, Task};
use fedspan_engine::admission::Requirements;
use fedspan_engine::algorithm::random_start;
use fedspan_engine::linalg::to_f32;
use fedspan_protocol::message::{
    Capabilities, HeadSolve, Hello, Model, Numeric, Refusal, Requirement, RoundId, RoundOpen, Task as Wire,
    Upload,
};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use fedspan_sim_core::data::shape_of;
use fedspan_sim_core::device::{Identity, client_session};
use fedspan_sim_core::fleet::{DeviceFactory, FleetArithmetic, HeapWorkspace, deterministic_rng};
use fedspan_sim_core::network::JoinTime;
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::run::{NoProgress, Outcome, run};
use fedspan_sim_core::scenario::Scenario;

fn scenario(name: &str, changes: &[&str]) -> Scenario {
    let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
    Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap()
}

fn outcome(name: &str, numeric: &str, changes: &[&str]) -> Outcome {
    let changes = [changes, &[numeric, "evaluate_every=1000000"]].concat();
    run(&scenario(name, &changes), 7, &mut NoProgress).unwrap()
}

const F32: &str = "algorithm.numeric=\"f32\"";
const I16: &str = "algorithm.numeric=\"i16\"";

#[test]
fn fixed_point_with_noise_reaches_the_distance_of_f32() {
    for changes in [&["model.init=random"][..], &["model.init=power", "algorithm.send=\"representation\""]] {
        let float = outcome("linear", F32, changes);
        let fixed = outcome("linear", I16, changes);
        assert_ne!(
            float.representation, fixed.representation,
            "fixed-point arithmetic gave the same representation"
        );
        let (float, fixed) = (float.scores.distance.unwrap(), fixed.scores.distance.unwrap());
        assert!((fixed / float - 1.0).abs() < 0.05, "{fixed} against {float}");
    }
}

/// Without noise the distance decreases to the rounding level, which is about 2^-15 for fixed point.
#[test]
fn fixed_point_without_noise_ends_at_rounding_level() {
    let exact = ["data.noise_std=0", "algorithm.rounds=1000", "participation.r=1", "data.samples=10"];
    let float = outcome("linear", F32, &exact).scores.distance.unwrap();
    let fixed = outcome("linear", I16, &exact).scores.distance.unwrap();
    assert!(float < 1e-5 && fixed < 1e-4, "{fixed} against {float}");
}

#[test]
fn gradient_heads_and_newcomers_work_in_fixed_point() {
    let ended = outcome("linear", I16, &["algorithm.name=gd-gd", "algorithm.head_steps=3"]);
    assert!(ended.scores.distance.unwrap() < 0.7);
    let changes = ["algorithm.rounds=5"];
    let (float, fixed) = (outcome("new-clients", F32, &changes), outcome("new-clients", I16, &changes));
    let mean = |outcome: &Outcome| {
        outcome.newcomers.iter().map(|new| new.test_mse.or(new.accuracy).unwrap()).sum::<f64>()
            / outcome.newcomers.len() as f64
    };
    assert!((mean(&fixed) / mean(&float) - 1.0).abs() < 0.05, "{} against {}", mean(&fixed), mean(&float));
}

/// On recorded data, the updates of each wearer in both arithmetics from the same representation are close.
#[test]
fn update_is_close_to_that_of_f32() {
    let scenario = scenario("demo", &[]);
    let dataset = scenario.dataset(1).unwrap();
    let shape = shape_of(&dataset, scenario.model.k);
    let mut b = to_f32(&random_start(shape.features, shape.width, 1));
    orthonormalise(&mut b, shape.width).unwrap();
    let tensor = TensorDescriptor::inline(
        Role::Representation,
        Encoding::F32,
        shape.features as u16,
        shape.width as u16,
    );
    let head = HeadSolve::LeastSquares { ridge: 0.01 };
    let task = Wire::FedRep { step_size: 1.0, head, upload: Upload::Gradient, encoding: Encoding::F32 };
    let id = RoundId { round: 1, stage: 0 };
    let mut largest_errors = [0.0f64; 2];
    for client in &dataset.clients {
        let [float, fixed] = [Numeric::F32, Numeric::I16].map(|numeric| {
            let mut model = Linear::new(HeapWorkspace::new(shape, numeric));
            model.open(&RoundOpen { id, task, tensors: [tensor].into_iter().collect() }).unwrap();
            model.tensor_mut(0).unwrap().copy_from_slice(&b);
            model.verify().unwrap();
            model.run(id, &mut client.source()).unwrap();
            let mut gradient = vec![0.0; b.len()];
            model.emit(0, 0, &mut gradient);
            [model.head().to_vec(), gradient]
        });
        for ((largest_errors, float), fixed) in largest_errors.iter_mut().zip(&float).zip(&fixed) {
            let norm = |values: &mut dyn Iterator<Item = f32>| {
                values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
            };
            let difference = norm(&mut float.iter().zip(fixed).map(|(a, b)| a - b));
            *largest_errors = largest_errors.max(difference / norm(&mut float.iter().copied()));
        }
    }
    let [head, gradient] = largest_errors;
    println!("worst of {} wearers: head {head:.1e}, gradient {gradient:.1e}", dataset.clients.len());
    assert!(head < 2e-3 && gradient < 2e-3, "head {head:e}, gradient {gradient:e}");
}

#[test]
fn device_declares_its_arithmetic() {
    let shape = Shape { features: 20, width: 2, outputs: 1 };
    let model = Model::linear(20, 2, 1);
    for (device_numeric, campaign_numeric) in [(Numeric::F32, Numeric::I16), (Numeric::I16, Numeric::F32)] {
        let scenario = scenario("linear", &[]);
        let dataset = scenario.dataset(1).unwrap();
        let client = &dataset.clients[0];
        let build = DeviceFactory {
            shape,
            arithmetic: FleetArithmetic { numeric: Some(device_numeric), ..FleetArithmetic::F32 },
            extra_matrix: false,
            privacy: None,
            seeds: SeedSource::System,
            network: None,
            learned_prior: false,
            scale: false,
            error_feedback: false,
            suite: Suite::default(),
            longest_frame: 16_384,
        };
        let session = build
            .session(
                Config::new(1),
                Protection::Plaintext,
                client,
                JoinTime::BeforeTraining,
                deterministic_rng(1, 1),
            )
            .unwrap();
        let capabilities = session.task().capabilities();
        assert_eq!(capabilities.numeric, device_numeric);
        let hello = Hello {
            capabilities: Capabilities { frame_limit: 256, ..capabilities },
            ..Hello::new(1, capabilities)
        };
        let needs = Requirements::new(model, &[], None);
        assert_eq!(needs.clone().with_numeric(Some(device_numeric)).admit(&hello), Ok(()));
        let refusal = Refusal::Capability(Requirement::Numeric(campaign_numeric));
        assert_eq!(needs.with_numeric(Some(campaign_numeric)).admit(&hello), Err(refusal));
    }
    // The device of a scenario uses the arithmetic of the scenario.
    let scenario = scenario("linear", &[I16]);
    let dataset = scenario.dataset(1).unwrap();
    let session = client_session(&scenario, &dataset, 0, Identity::plaintext(1), false).unwrap();
    assert_eq!(session.task().capabilities().numeric, Numeric::I16);
}

/// A fleet may mix both arithmetics: the representation is as good, and the share decides who computes how.
#[test]
fn mixed_fleet_reaches_the_distance_of_f32() {
    let any = "algorithm.numeric=\"any\"";
    let changes = ["algorithm.name=gd-gd", "algorithm.head_steps=3", "algorithm.rounds=40"];
    for changes in [&[][..], &changes] {
        let with = |share: &str| outcome("linear", any, &[changes, &[share]].concat());
        let (float, fixed) = (outcome("linear", F32, changes), outcome("linear", I16, changes));
        let mixed = with("fleet.i16_share=0.5");
        assert_eq!(with("fleet.i16_share=0").representation, float.representation);
        assert_eq!(with("fleet.i16_share=1").representation, fixed.representation);
        assert!(mixed.representation != float.representation && mixed.representation != fixed.representation);
        assert_eq!(mixed.counters.rejected() + mixed.counters.declined, 0);
        let (float, mixed) = (float.scores.distance.unwrap(), mixed.scores.distance.unwrap());
        assert!((mixed / float - 1.0).abs() < 0.05, "{mixed} against {float}");
    }
    // On recordings, personal models are as good in both.
    let accuracy = |numeric| outcome("demo", numeric, &["algorithm.rounds=60"]).scores.accuracy.unwrap();
    let (float, mixed) = (accuracy(F32), accuracy(any));
    assert!((mixed - float).abs() < 0.02, "{mixed} against {float}");
}

/// Every second client of a mixed fleet computes in fixed point, for every number that its device has at a server.
#[test]
fn share_is_of_clients_in_order() {
    let scenario = scenario("linear", &["algorithm.numeric=\"any\""]);
    let dataset = scenario.dataset(1).unwrap();
    for (index, expected) in [Numeric::F32, Numeric::I16, Numeric::F32, Numeric::I16].into_iter().enumerate()
    {
        for device in [index as u64, 900 + 2 * index as u64] {
            let session =
                client_session(&scenario, &dataset, index, Identity::plaintext(device), false).unwrap();
            assert_eq!(session.task().capabilities().numeric, expected, "client {index}, device {device}");
        }
    }
}

#[test]
fn unsupported_options_are_refused_in_fixed_point() {
    let directory = empty_directory("fixed");
    for (name, words) in
        [("fedavg", "\"fedavg\" is computed in \"f32\" only"), ("pooled", "\"pooled\" is computed")]
    {
        let algorithm = format!("algorithm.name=\"{name}\"");
        let output = run_program(&directory, &["run", "linear", "--set", &algorithm, "--set", I16]);
        assert_eq!(exit_code(&output), 2);
        assert!(stderr_text(&output).contains(words), "{}", stderr_text(&output));
    }
    for (changes, words) in [
        (&["fleet.i16_share=0.5"][..], "fleet.i16_share: unknown key"),
        (&["algorithm.numeric=any", "fleet.i16_share=1.5"], "fleet.i16_share: found 1.5"),
        (
            &["algorithm.numeric=any", "attack={ kind = \"sign-flip\", fraction = 0.1 }"],
            "algorithm.numeric: found \"any\"",
        ),
        (&["algorithm.numeric=any", "algorithm.name=fedavg"], "found \"any\", \"fedavg\" is computed"),
    ] {
        let sets = changes.iter().flat_map(|change| ["--set", change]);
        let words_of =
            run_program(&directory, &["run", "linear"].into_iter().chain(sets).collect::<Vec<_>>());
        assert_eq!(exit_code(&words_of), 2);
        assert!(stderr_text(&words_of).contains(words), "{}", stderr_text(&words_of));
    }
    let output = run_program(&directory, &["emulate", "demo", "--set", I16]);
    assert_eq!(exit_code(&output), 2);
    assert!(stderr_text(&output).contains("algorithm.numeric = \"f32\""), "{}", stderr_text(&output));
}
