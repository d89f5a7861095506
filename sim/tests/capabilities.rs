//! Tests of the declared capabilities of simulated devices: they match the tensors and tasks of the server's
//! rounds and the uploads of the devices, for every algorithm and many sizes.

use fedspan_client::Task;
use fedspan_client::session::{Config, Protection};
use fedspan_engine::Request;
use fedspan_engine::admission::Requirements;
use fedspan_engine::config::names_for_model;
use fedspan_protocol::message::{Capabilities, Descriptors, Hello, RoundId, RoundOpen, Task as Wire};
use fedspan_protocol::tensor::TensorDescriptor;
use fedspan_sim_core::fleet::{DeviceFactory, deterministic_rng};
use fedspan_sim_core::network::JoinTime;
use fedspan_sim_core::noise::SeedSource;
use fedspan_sim_core::run::engine;
use fedspan_sim_core::scenario::Scenario;
use proptest::prelude::*;

/// Sizes of a model: number of features, width (of the representation or hidden layer), and number of
/// outputs.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    d: usize,
    k: usize,
    c: usize,
}

/// Strategy for the sizes of a model.
fn sizes() -> impl Strategy<Value = Sizes> {
    (1usize..40, 1usize..40, 1usize..90).prop_map(|(d, k, c)| Sizes { d, k: k.min(d), c })
}

/// Asserts that the capabilities of a device permit the tensors that a round sends in one direction.
fn assert_fit(capabilities: &Capabilities, tensors: &[TensorDescriptor], outgoing: bool, context: &str) {
    let elements: Vec<u32> = tensors.iter().map(|tensor| u32::try_from(tensor.elements()).unwrap()).collect();
    assert!(tensors.len() <= usize::from(capabilities.tensors), "{context}: {tensors:?} {capabilities:?}");
    for (tensor, elements) in tensors.iter().zip(&elements) {
        assert!(*elements <= capabilities.tensor_elements, "{context}: {tensor:?} {capabilities:?}");
        assert!(tensor.encoding.bit() & capabilities.encodings != 0, "{context}: {tensor:?}");
        assert!(!outgoing || tensor.role.bit() & capabilities.roles != 0, "{context}: {tensor:?}");
    }
    assert!(elements.iter().sum::<u32>() <= capabilities.total_elements, "{context}: {tensors:?}");
}

/// Capabilities that the rounds require, as number of tensors, elements of the largest tensor, and elements
/// of all tensors, with true. Also returns, with false, three variants in which one of these numbers is
/// smaller by one.
fn required_capabilities(requests: &[Request]) -> Vec<([u32; 3], bool)> {
    let mut tensors = 0;
    let mut largest = 0;
    let mut total = 0;
    for request in requests {
        let down = request.tensors.iter().map(|tensor| tensor.descriptor(request.encoding));
        for tensors_of_one_way in [down.collect::<Vec<_>>(), request.expects.clone()] {
            let elements =
                || tensors_of_one_way.iter().map(|tensor| u32::try_from(tensor.elements()).unwrap());
            tensors = tensors.max(u32::try_from(tensors_of_one_way.len()).unwrap());
            largest = largest.max(elements().max().unwrap_or(0));
            total = total.max(elements().sum());
        }
    }
    let with_one_less = |index: usize| {
        let mut needs = [tensors, largest, total];
        needs[index] = needs[index].saturating_sub(1);
        (needs, [tensors, largest, total][index] == 0)
    };
    [([tensors, largest, total], true)].into_iter().chain((0..3).map(with_one_less)).collect()
}

/// Checks the device of a scenario against the server. If `resized` is given, the data set has these numbers
/// of features and outputs. Returns the tasks that the server requested and the tasks that the device
/// declares.
fn check_scenario(scenario: &Scenario, resized: Option<(usize, usize)>, context: &str) -> (u32, u32) {
    let mut dataset = scenario.dataset(1).unwrap();
    if let Some((d, c)) = resized {
        (dataset.features, dataset.outputs) = (d, c);
    }
    let engine = engine(scenario, &dataset, 1, None);
    let build = DeviceFactory::new(scenario, &dataset, 1, SeedSource::Deterministic(1)).unwrap();
    let client = &dataset.clients[0];
    let config = Config { frame_limit: build.frame_limit(), ..Config::new(0) };
    let random = deterministic_rng(1, 0);
    let mut session =
        build.session(config, Protection::Plaintext, client, JoinTime::BeforeTraining, random).unwrap();
    let capabilities = session.task().capabilities();
    let mut requested_tasks = 0;
    for request in engine.requests() {
        let context = format!("{context}, {:?}", request.task);
        let down: Descriptors =
            request.tensors.iter().map(|tensor| tensor.descriptor(request.encoding)).collect();
        requested_tasks |= request.task.bit();
        assert!(capabilities.tasks & request.task.bit() != 0, "{context}: {capabilities:?}");
        assert_fit(&capabilities, &down, false, &context);
        let open = RoundOpen { id: RoundId::default(), task: request.task, tensors: down };
        assert_eq!(session.task_mut().open(&open), Ok(()), "{context}");
        let up = session.task().upload();
        assert_eq!(up.to_vec(), request.expects, "{context}");
        assert_fit(&capabilities, &up, true, &context);
    }
    let requirements = Requirements::new(build.model(), &engine.requests(), None);
    let requirements = requirements.with_numeric(scenario.algorithm.numeric);
    let declared = Capabilities { frame_limit: build.frame_limit(), ..capabilities };
    assert_eq!(requirements.admit(&Hello::new(0, declared)), Ok(()), "{context}");
    for (capabilities_needed, is_enough) in required_capabilities(&engine.requests()) {
        let [tensors, largest, total] = capabilities_needed;
        let declared = Capabilities {
            tensors: u8::try_from(tensors).unwrap(),
            tensor_elements: largest,
            total_elements: total,
            ..declared
        };
        assert_eq!(
            requirements.admit(&Hello::new(0, declared)).is_ok(),
            is_enough,
            "{context}: {declared:?}"
        );
    }
    (requested_tasks, capabilities.tasks)
}

fn parse(text: &str) -> Scenario {
    Scenario::parse("capabilities", text, &[]).unwrap_or_else(|problem| panic!("{problem}: {text}"))
}

/// Checks linear models with every algorithm, start and arithmetic, on regression with `c` targets.
fn linear(Sizes { d, k, c }: Sizes) {
    let data =
        format!("[data]\nkind = \"low-rank-regression\"\nclients = 1\nd = {d}\noutputs = {c}\nsamples = 1\n");
    let (mut requested_tasks, mut claimed_tasks) = (0, 0);
    for (model, algorithm) in [
        ("init = \"random\"", "name = \"fedrep\"\nsend = \"representation\""),
        ("init = \"power\"", "name = \"fedrep\"\nupload = \"i8\"\ndownload = \"f16\""),
        ("init = \"moments\"", "name = \"gd-gd\""),
        ("init = \"power\"", "name = \"fedrep\"\nupload = \"i8-top-k\"\nnumeric = \"i16\""),
        ("init = \"power\"", "name = \"fedrep\"\nnumeric = \"i16\""),
        ("", "name = \"fedavg\""),
        ("", "name = \"learned-prior\""),
        ("", "name = \"learned-prior\"\nlearned-prior = { second_moments = true }"),
        ("init = \"power\"", "name = \"fedavg\"\nupload = \"f16\"\ndownload = \"f16\""),
    ] {
        let text = format!(
            "{data}[model]\nk = {k}\n{model}\n[algorithm]\nrounds = 1\nstep_size = 0.1\n{algorithm}\n"
        );
        let (of_server, of_device) =
            check_scenario(&parse(&text), None, &format!("d {d}, k {k}, c {c}, {algorithm}"));
        (requested_tasks, claimed_tasks) = (requested_tasks | of_server, claimed_tasks | of_device);
    }
    for name in ["rolora", "ffa-lora"] {
        let model = format!("[model]\nkind = \"lora-linear\"\nrank = {k}\n");
        let text = format!("{data}{model}[algorithm]\nname = \"{name}\"\nrounds = 2\nstep_size = 0.1\n");
        let (of_server, of_device) =
            check_scenario(&parse(&text), None, &format!("d {d}, k {k}, c {c}, {name}"));
        (requested_tasks, claimed_tasks) = (requested_tasks | of_server, claimed_tasks | of_device);
    }
    for power in ["procrustes = true\nlocal_steps = 2", "procrustes = false\nlocal_steps = 1"] {
        let text =
            format!("{data}[model]\nk = {k}\n[algorithm]\nname = \"fedpower\"\niterations = 4\n{power}\n");
        let (of_server, of_device) =
            check_scenario(&parse(&text), None, &format!("d {d}, k {k}, c {c}, {power}"));
        (requested_tasks, claimed_tasks) = (requested_tasks | of_server, claimed_tasks | of_device);
    }
    // Servers request ridge scores only for classification, and gradients of newcomers only with several outputs.
    let scores = Wire::RidgeScores { labels_per_class: 1, first: 1.0, factor: 1.0, count: 1 }.bit();
    let newcomers = Wire::NewcomerGradient { labels: 1, draws: 1, first: 0 }.bit();
    let optional = if c == 1 { scores | newcomers } else { scores };
    assert_eq!(
        requested_tasks | optional,
        claimed_tasks | optional,
        "devices claim other tasks than servers request"
    );
}

/// Checks devices that add noise.
fn private(Sizes { d, k, c }: Sizes) {
    let data =
        format!("[data]\nkind = \"low-rank-regression\"\nclients = 1\nd = {d}\noutputs = {c}\nsamples = 1\n");
    for (clip, algorithm) in [
        ("clip = 0.5", "name = \"fedrep\"\nrounds = 2\nstep_size = 0.1"),
        ("", "name = \"fedpower\"\niterations = 4\nlocal_steps = 1\nprocrustes = true"),
    ] {
        let privacy = format!("[privacy]\nepsilon = 10.0\ndelta = 1e-5\n{clip}\n");
        let init = if clip.is_empty() { "random" } else { "power" };
        let text = format!("{data}[model]\nk = {k}\ninit = \"{init}\"\n[algorithm]\n{algorithm}\n{privacy}");
        check_scenario(&parse(&text), None, &format!("private, d {d}, k {k}, c {c}, {algorithm}"));
    }
}

/// Checks networks with every algorithm and every kind of model, including layers wider than the samples.
fn network(Sizes { d, k, c }: Sizes) {
    let models = [
        format!("kind = \"mlp\"\nhidden = [{k}]"),
        format!("kind = \"mlp\"\nhidden = [{}, 3, {k}]", 2 * d + 1),
        format!("kind = \"lstm\"\ncells = {k}\nhidden = [2, 5, 3]"),
        format!("kind = \"cnn\"\nfilters = [{k}, 2]\nside = 1\npool = 1\nhidden = [3, 70]"),
        format!("kind = \"lora-mlp\"\nrank = {k}\nwidth = {}\nhidden = [4, 2]", d + 3),
    ];
    for model in models {
        let text = |name: &str| {
            format!(
                "[data]\nkind = \"digits\"\n[data.partition]\nclients = 20\n[model]\n{model}\n[algorithm]\nname = \"{name}\"\n\
                 rounds = 1\n"
            )
        };
        let algorithm = if model.contains("lora") { "lora" } else { "fedrep" };
        let section = parse(&text(algorithm)).model;
        for name in names_for_model(&section) {
            check_scenario(&parse(&text(name)), Some((d, c)), &format!("d {d}, c {c}, {model}, {name}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn linear_rounds_fit_declared_capabilities(sizes in sizes()) {
        linear(sizes);
        private(sizes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn network_rounds_fit_declared_capabilities(sizes in sizes()) {
        network(sizes);
    }
}

/// A linear model may have more outputs than features.
#[test]
fn head_may_be_larger_than_the_representation() {
    for (d, k, c) in [(5, 5, 12), (1, 1, 2), (11, 2, 256)] {
        linear(Sizes { d, k, c });
    }
}
