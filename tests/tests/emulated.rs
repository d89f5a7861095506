//! Tests of firmware on emulated cores as clients of the real server. Fleets must learn the same bits as the
//! simulator, encrypted and in plaintext, also when boards are reset, lose their power, or find noise in
//! their flash. The tests need QEMU and the boards' targets; `tests/run` reports when they are missing.
#![cfg(feature = "emulation")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fedspan_aggregator::store;
use fedspan_client::memory::Shape;
use fedspan_engine::DeviceId;
use fedspan_engine::algorithm::decoded_representation;
use fedspan_engine::linalg::{Matrix, from_f32, orthonormal, to_f32};
use fedspan_engine::random::{Purpose, stream};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_sim_core::data::{Dataset, npz};
use fedspan_sim_core::emulate::{
    BoardFaults, BoardReport, CORES, Core, EmulateError, EmulationResult, EmulationWatcher, Firmware, Link,
    Plan, expected, has_same_participants, run as emulate,
};
use fedspan_sim_core::scenario::Scenario;
use fedspan_tests::replay::replay;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

/// Observer of an emulation that ignores all calls.
struct Silent;

impl EmulationWatcher for Silent {
    fn message(&mut self, _what: &str) {}
    fn status(&mut self, _status: &serde_json::Value) {}
}

/// Firmware of each core, built once and copied, because all cores are built into the same place. The lock
/// also makes fleets run one after another, because two processor cores cannot run more.
static FIRMWARE: Mutex<BTreeMap<String, PathBuf>> = Mutex::const_new(BTreeMap::new());

/// Builds the firmware of a core, or returns the copy of an earlier build.
async fn build_firmware(core: &Core, built: &mut MutexGuard<'_, BTreeMap<String, PathBuf>>) -> PathBuf {
    let root = root();
    let name = core.firmware_name();
    if let Some(firmware) = built.get(&name) {
        return firmware.clone();
    }
    let fresh = core.build(root).await.expect("firmware");
    let copy = root.join(format!("target/boards/{name}"));
    std::fs::copy(fresh, &copy).expect("a copy");
    built.insert(name, copy.clone());
    copy
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// Returns the core with this name.
fn core_named(name: &str) -> Core {
    CORES.into_iter().find(|core| core.name == name).expect("a core")
}

/// A fleet and a scenario that fits the firmware of its core.
struct World {
    core: Core,
    scenario: Scenario,
    boards: usize,
    link: Link,
    plaintext: bool,
    faults: Vec<BoardFaults>,
    scratch: TempDir,
}

impl World {
    /// Creates a fleet with keys whose boards use pipes as links, for the scenario that the core's firmware for
    /// linear models supports.
    fn new(core: &str, boards: usize, rounds: u32) -> Self {
        let core = core_named(core);
        let name = if core.firmware == Firmware::Table { "smallest" } else { "demo" };
        Self::of(core, boards, name, &[&format!("algorithm.rounds={rounds}")])
    }

    /// Creates a fleet like [`Self::new`] with the client in C.
    fn in_c(core: &str, boards: usize, rounds: u32) -> Self {
        Self::of(core_named(core).in_c(), boards, "smallest", &[&format!("algorithm.rounds={rounds}")])
    }

    /// Creates a fleet like [`Self::new`] for a built-in scenario with changes.
    fn of(core: Core, boards: usize, name: &str, changes: &[&str]) -> Self {
        let text = Scenario::built_in(name).expect("a scenario");
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let scenario = Scenario::parse(name, text, &changes).expect("scenario");
        let core = core.for_model(&scenario);
        let scratch = tempfile::tempdir().expect("a directory");
        Self { core, scenario, boards, link: Link::Pipes, plaintext: false, faults: Vec::new(), scratch }
    }

    fn with_link(self, link: Link) -> Self {
        Self { link, ..self }
    }

    fn in_plaintext(self) -> Self {
        Self { plaintext: true, ..self }
    }

    /// Runs the fleet in a temporary folder.
    async fn try_run(&self) -> Result<EmulationResult, EmulateError> {
        let mut built = FIRMWARE.lock().await;
        let firmware = build_firmware(&self.core, &mut built).await;
        let plan = Plan {
            scenario: &self.scenario,
            boards: self.boards,
            faults: &self.faults,
            core: self.core,
            link: self.link,
            plaintext: self.plaintext,
            root: root(),
            firmware: Some(firmware),
            scratch: self.scratch.path(),
        };
        emulate(&plan, std::future::pending(), &mut Silent).await
    }

    /// Returns the error of a fleet that is refused before its firmware is built.
    async fn refusal(&self) -> String {
        let plan = Plan {
            scenario: &self.scenario,
            boards: self.boards,
            faults: &[],
            core: self.core,
            link: self.link,
            plaintext: true,
            root: root(),
            firmware: Some(PathBuf::new()),
            scratch: self.scratch.path(),
        };
        emulate(&plan, std::future::pending(), &mut Silent).await.expect_err("a refusal").to_string()
    }

    /// Runs the fleet and checks the result: the campaign is finished, no update was rejected, and the
    /// representation, or the network of each board, has the same bits as in a replay with the devices that
    /// counted.
    async fn run(&self) -> EmulationResult {
        let word = self.core.name;
        let emulated = self.try_run().await.expect("a fleet");
        let rounds = self.scenario.algorithm.rounds;
        assert_eq!((emulated.status.phase.as_str(), emulated.status.round), ("finished", rounds), "{word}");
        assert_eq!(emulated.status.updates.rejected(), 0, "{:?}", emulated.status);
        assert_eq!(emulated.boards.len() + emulated.dead.len(), self.boards);
        let last = representation_rounds(&emulated).last().expect("no round was recorded");
        assert_eq!(last["round"], rounds, "the last round was not recorded");
        let replayed =
            replay(&self.scenario, &self.board_dataset(), &counted_devices(&emulated)).expect("a campaign");
        let expected = self.core.firmware.shape().map(|shape| {
            let b = &replayed.representation;
            assert_eq!(
                bits(&self.served_representation(shape)),
                bits(b),
                "{word}: the served representation differs from the replay"
            );
            let on_boards = from_f32(shape.features, shape.width, b);
            decoded_representation(&on_boards, self.scenario.algorithm.download).values
        });
        for board in &emulated.boards {
            let line = &board.line;
            assert_eq!(board.number("lost"), 0, "{line}");
            assert_eq!(board.number("storage"), 0, "{line}");
            assert_eq!(line["sealed"], !self.plaintext, "{line}");
            assert_eq!(board.stderr.contains("PLAINTEXT"), self.plaintext, "{}", board.stderr);
            let (key, values) = match &expected {
                Some(representation) => ("representation", representation),
                None => ("parameters", &replayed.networks[board.client - 1]),
            };
            // Heads of linear models with a learned prior need no representation, so boards keep none.
            if expected.is_none() || self.scenario.algorithm.learned_prior().is_none() {
                assert_eq!(line[key], format!("{:08x}", crc32c_f32(values)), "{line}");
            }
        }
        emulated
    }

    /// Returns the data of all clients.
    fn dataset(&self) -> Dataset {
        self.scenario.dataset(self.scenario.seed).expect("data")
    }

    /// Returns the data of the clients that have a board.
    fn board_dataset(&self) -> Dataset {
        let mut dataset = self.dataset();
        assert!(self.boards <= dataset.clients.len());
        dataset.clients.truncate(self.boards);
        dataset
    }

    /// Returns the representation in the server's state, row-major.
    fn served_representation(&self, shape: Shape) -> Vec<f32> {
        let committed =
            store::read(&self.scratch.path().join("state")).expect("readable").expect("committed");
        let (d, k) = (shape.features, shape.width);
        let columns =
            Matrix::from_column_slice(d, k, &committed.checkpoint.expect("a checkpoint").state[..d * k]);
        to_f32(&orthonormal(&columns).expect("full rank"))
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the rounds that change the representation: the initial representation and training.
fn representation_rounds(emulated: &EmulationResult) -> impl Iterator<Item = &serde_json::Value> {
    emulated.rounds.iter().filter(|round| round["phase"] != "ridge")
}

/// Returns the clients that counted in each round, by index.
fn counted_devices(emulated: &EmulationResult) -> Vec<BTreeSet<DeviceId>> {
    let devices_of = |round: &serde_json::Value| {
        let participants = round["participants"].as_array().expect("a list").iter();
        participants.map(|device| DeviceId(device.as_u64().expect("a number") - 1)).collect()
    };
    representation_rounds(emulated).map(devices_of).collect()
}

/// Runs a fleet without faults. Each board must count in every round. If every client has a board, each must
/// learn the same as its simulated client.
async fn run_without_faults(world: World) -> EmulationResult {
    let emulated = world.run().await;
    // Each board computes one update per round (initial representation, training, ridge choice), and the final
    // head.
    let updates_per_board = emulated.rounds.len() as u64 + 1;
    for board in &emulated.boards {
        let line = &board.line;
        assert_eq!(
            (board.number("counted"), board.number("saved")),
            (updates_per_board, updates_per_board),
            "{line}"
        );
        assert_eq!((board.number("restored"), board.number("unusable")), (0, 0), "{line}");
        // On a serial line the server requests a hello in plaintext before it has identified the device.
        assert!(board.number("unopened") == 0 && board.number("unsealed") <= 1, "{line}");
    }
    if world.boards == world.dataset().clients.len() {
        let (_, simulated_clients) = expected(&world.scenario).expect("simulation");
        assert_eq!(simulated_clients.len(), world.boards, "the numbers of clients and boards differ");
        for (board, client) in emulated.boards.iter().zip(&simulated_clients) {
            assert!(client.agrees(board), "{} {client:?}", board.line);
        }
    }
    emulated
}

#[tokio::test(flavor = "multi_thread")]
async fn emulated_fleet_learns_what_the_simulator_learns() {
    run_without_faults(World::new("m4", 8, 20)).await;
    // The same with the UART driver.
    run_without_faults(World::new("m4", 8, 3).with_link(Link::Uart)).await;
    for core in CORES.iter().filter(|core| core.firmware == Firmware::Watch && core.name != "m4") {
        run_without_faults(World::new(core.name, 2, 3)).await;
    }
}

/// Tests a fleet without keys, as used on a test bench: encryption must not change the learnt bits.
#[tokio::test(flavor = "multi_thread")]
async fn plaintext_fleet_learns_the_same_and_reports_plaintext() {
    let plaintext = run_without_faults(World::new("m4", 8, 3).in_plaintext()).await;
    let encrypted = run_without_faults(World::new("m4", 8, 3)).await;
    for (plaintext, encrypted) in plaintext.boards.iter().zip(&encrypted.boards) {
        for result in ["representation", "head", "right"] {
            assert_eq!(plaintext.line[result], encrypted.line[result], "{}", plaintext.line);
        }
        assert!(plaintext.number("up") < encrypted.number("up"), "{} {}", plaintext.line, encrypted.line);
    }
    run_without_faults(World::new("m0", 2, 3).with_link(Link::Uart).in_plaintext()).await;
}

/// Tests the client in C on six cores: it learns the bits of the simulator, and so of the client in Rust.
#[tokio::test(flavor = "multi_thread")]
async fn client_in_c_learns_what_the_simulator_learns() {
    for core in CORES {
        run_without_faults(World::in_c(core.name, 8, 5)).await;
    }
    run_without_faults(World::in_c("m4", 2, 3).with_link(Link::Uart).in_plaintext()).await;
}

/// Tests the smallest board: (20, 2) must train in 16 KiB of RAM in total.
#[tokio::test(flavor = "multi_thread")]
async fn smallest_board_trains_in_16_kib() {
    for (link, rounds) in [(Link::Pipes, 40), (Link::Uart, 5)] {
        let emulated = run_without_faults(World::new("m0", 8, rounds).with_link(link)).await;
        for board in &emulated.boards {
            let (statics, stack) = (board.number("static"), board.number("stack"));
            assert!(statics > 0 && stack > 0 && statics + stack <= 16 << 10, "{}", board.line);
        }
    }
}

/// Tests boards that upload the largest quarter of a gradient, with error feedback, and receive 8 bits a value: the representation,
/// the heads and the scores have the bits of the simulation.
#[tokio::test(flavor = "multi_thread")]
async fn boards_upload_the_largest_values() {
    for (core, rounds) in [("m0", 20), ("m4", 4)] {
        let mut world = World::new(core, 8, rounds);
        let changes = [
            format!("algorithm.rounds={rounds}"),
            "algorithm.upload=i8-top-k".to_owned(),
            "algorithm.download=i8".to_owned(),
        ];
        let name = world.scenario.name.clone();
        let text = Scenario::built_in(&name).expect("a scenario");
        world.scenario = Scenario::parse(&name, text, &changes).expect("scenario");
        run_without_faults(world).await;
    }
}

/// Tests heads with a prior that the fleet learns, which the smallest board trains too: boards in the groups of the simulated devices, their heads
/// and scores have the same bits. A board that was reset at its first messages restores the heads that it has saved.
#[tokio::test(flavor = "multi_thread")]
async fn learned_priors_on_boards_are_those_of_the_simulator() {
    let prior = "algorithm.name=\"learned-prior\"";
    let short = "algorithm.learned-prior={ second_moments = true, groups = 2, learning_rounds = 1, refining_rounds = 2 }";
    for (core, boards, name, changes) in [
        ("m0", 8, "smallest", [prior, "seed=11", "algorithm.learned-prior.refining_rounds=4"]),
        ("m0", 8, "smallest", [prior, "seed=12", short]),
        ("m4", 5, "demo", [prior, "split.holdout_users=5", short]),
    ] {
        let world = World::of(core_named(core), boards, name, &changes);
        let emulated = world.run().await;
        let (outcome, simulated) = expected(&world.scenario).expect("simulation");
        assert!(has_same_participants(&outcome, &emulated), "{name} {changes:?}");
        assert_eq!(simulated.len(), emulated.boards.len());
        for (board, client) in emulated.boards.iter().zip(&simulated) {
            assert!(client.agrees(board), "{} {client:?}", board.line);
            assert_eq!(board.number("declined"), 0, "{}", board.line);
        }
    }
    let mut world =
        World::of(core_named("m0"), 4, "smallest", &[prior, "algorithm.learned-prior.refining_rounds=0"]);
    world.faults = vec![BoardFaults { board: 1, resets: 12, ..BoardFaults::default() }];
    let emulated = world.run().await;
    assert_eq!(emulated.boards[0].number("resets"), 12, "{}", emulated.boards[0].line);
    check_restored_records(&emulated.boards[0]);
}

/// Tests networks whose last layer has a prior that the fleet learns, also on a core without floating point: all layers of each board have
/// the bits of the simulator, with and without second moments.
#[tokio::test(flavor = "multi_thread")]
async fn networks_with_learned_priors_on_boards_are_those_of_the_simulator() {
    let prior = "algorithm.name=\"learned-prior\"";
    for (core, second_moments) in [("m4", true), ("rv32imc", false)] {
        let short = format!(
            "algorithm.learned-prior={{ second_moments = {second_moments}, groups = 2, learning_rounds = 1, refining_rounds = 1 }}"
        );
        let changes = [prior, "split.holdout_users=6", "algorithm.rounds=2", "model.hidden=[8]", &short];
        let world = World::of(core_named(core), 4, "watch-network", &changes);
        let emulated = world.run().await;
        let (outcome, simulated) = expected(&world.scenario).expect("simulation");
        assert!(has_same_participants(&outcome, &emulated), "{core}");
        for (board, client) in emulated.boards.iter().zip(&simulated) {
            assert!(client.agrees(board), "{} {client:?}", board.line);
            assert_eq!(board.number("declined"), 0, "{}", board.line);
        }
    }
}

/// Tests that a board that dies in the middle of a campaign is a dropout: the others finish, with the bits of a replay without it.
#[tokio::test(flavor = "multi_thread")]
async fn board_that_dies_is_a_dropout() {
    for link in [Link::Pipes, Link::Uart] {
        let mut world = World::new("m0", 4, 20).with_link(link);
        // After the fourth message of its fourth life the board stays off.
        world.faults =
            vec![BoardFaults { board: 2, power_cuts: 4, stays_off: true, ..BoardFaults::default() }];
        let emulated = world.run().await;
        assert_eq!(emulated.dead.iter().map(|board| board.device).collect::<Vec<_>>(), [2]);
        assert_eq!(emulated.boards.iter().map(|board| board.device).collect::<Vec<_>>(), [1, 3, 4]);
        let counted = counted_devices(&emulated);
        let with_the_dead = counted.iter().filter(|round| round.contains(&DeviceId(1))).count();
        assert!(with_the_dead < counted.len(), "{with_the_dead} of {} rounds", counted.len());
    }
}

/// Checks that each boot restored the record (the state that the device saves in flash) that was saved last.
/// At least one interrupted life (from a boot to an interruption) must have saved two records, so that lives
/// ended at each message of a round.
fn check_restored_records(board: &BoardReport) {
    let mut last: Option<&serde_json::Value> = None;
    let mut saved = Vec::new();
    for line in &board.record_lines {
        if let Some(start) = line.get("start") {
            assert_eq!(start.get("restored"), last, "{line}");
            saved.push(0);
        }
        if let Some(record) = line.get("saved") {
            last = Some(record);
            *saved.last_mut().expect("the board has started") += 1;
        }
    }
    saved.pop();
    assert!(saved.iter().any(|saved| *saved >= 2), "{saved:?}");
}

/// Interrupts boards `1..=n` after the first message of a life, then after the second, and so on. Each
/// interruption costs at most one round, so the campaign has more rounds than the boards have lives.
async fn run_with_interruptions(mut world: World, interrupted: usize, power_cuts: u32, resets: u32) {
    world.faults = (1..=interrupted)
        .map(|board| BoardFaults { board, power_cuts, resets, ..BoardFaults::default() })
        .collect();
    let emulated = world.run().await;
    let counted = counted_devices(&emulated);
    for board in &emulated.boards[..interrupted] {
        let starts = board.record_lines.iter().filter(|line| line.get("start").is_some()).count();
        assert_eq!(
            starts,
            1 + (power_cuts + resets) as usize,
            "some interruptions did not happen before the end"
        );
        assert_eq!(board.number("resets"), u64::from(resets), "{}", board.line);
        check_restored_records(board);
        // Each board must have counted in some rounds and not in others.
        let missed_rounds =
            counted.iter().filter(|round| !round.contains(&DeviceId(board.device - 1))).count();
        assert!(missed_rounds > 0 && missed_rounds < counted.len(), "{missed_rounds} of {}", counted.len());
    }
    for board in &emulated.boards[interrupted..] {
        assert_eq!(board.number("counted"), emulated.rounds.len() as u64 + 1, "{}", board.line);
        assert_eq!(board.number("declined"), 0, "{}", board.line);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn board_reset_at_any_message_restores_its_record() {
    run_with_interruptions(World::new("m0", 3, 40), 2, 0, 12).await;
    run_with_interruptions(World::new("m0", 3, 40).with_link(Link::Uart), 1, 0, 12).await;
    run_with_interruptions(World::new("m4", 2, 200), 1, 0, 130).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn board_without_power_at_any_message_restores_its_record() {
    run_with_interruptions(World::new("m0", 3, 40), 2, 12, 0).await;
    run_with_interruptions(World::new("m0", 3, 60).with_link(Link::Uart), 1, 12, 12).await;
    run_with_interruptions(World::new("m4", 2, 200), 1, 130, 0).await;
}

/// Tests the client in C on a board without power at any message. `fedspan_emulated::slots` is tested with cuts at any byte.
#[tokio::test(flavor = "multi_thread")]
async fn client_in_c_without_power_at_any_message_restores_its_record() {
    run_with_interruptions(World::in_c("m4", 2, 60), 1, 20, 0).await;
}

/// Returns flash contents that are not a record: noise, all zero, mostly erased, and data of another
/// firmware.
fn invalid_flash_contents(seed: u64) -> Vec<Vec<u8>> {
    const SIZE: usize = 8192;
    let mut random = stream(seed, Purpose::Device, 0);
    let mut draw_bytes =
        |transform: fn(u8) -> u8| (0..SIZE).map(|_| transform(random.bits() as u8)).collect::<Vec<u8>>();
    let random_bytes = draw_bytes(|byte| byte);
    let mostly_erased = draw_bytes(|byte| if byte < 250 { 0xff } else { byte });
    let other_data = b"another program's data\n".iter().copied().cycle().take(SIZE).collect();
    vec![random_bytes, vec![0; SIZE], mostly_erased, other_data]
}

/// Tests that boards with noise in their flash report it, start without a record, and learn the same as with
/// blank flash.
async fn run_with_noise_in_flash(core: &str, rounds: u32, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut world = World::new(core, 4, rounds);
        let faults =
            |(index, flash)| BoardFaults { board: index + 1, flash: Some(flash), ..BoardFaults::default() };
        world.faults = invalid_flash_contents(seed).into_iter().enumerate().map(faults).collect();
        let emulated = world.run().await;
        let updates_per_board = emulated.rounds.len() as u64 + 1;
        for board in &emulated.boards {
            let line = &board.line;
            assert_eq!((board.number("restored"), board.number("unusable")), (0, 1), "{line}");
            assert_eq!(
                (board.number("counted"), board.number("saved")),
                (updates_per_board, updates_per_board),
                "{line}"
            );
            assert!(
                board.stderr.contains("the flash holds no record; starting without one"),
                "{}",
                board.stderr
            );
        }
        assert!(counted_devices(&emulated).iter().all(|round| round.len() == 4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn board_with_noise_in_flash_starts_clean_and_reports_it() {
    run_with_noise_in_flash("m0", 4, 0..4).await;
    run_with_noise_in_flash("m4", 2, 4..6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flash_image_of_wrong_size_is_refused_with_its_size() {
    for length in [0, 8191, 8193] {
        let mut world = World::new("m0", 1, 1);
        world.faults =
            vec![BoardFaults { board: 1, flash: Some(vec![0xff; length]), ..BoardFaults::default() }];
        match world.try_run().await {
            Err(EmulateError::Board { device: 1, last_line, .. }) => {
                assert!(
                    last_line.ends_with(&format!("the file has {length} bytes, the flash has 8192")),
                    "{last_line}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_of_another_shape_is_refused_before_anything_runs() {
    let mut world = World::new("m0", 2, 3);
    world.core = core_named("m4");
    let text = Scenario::built_in("smallest").expect("a scenario");
    for (core, changes) in [
        ("m4", vec![]),
        ("m0", vec!["data.d=21".to_owned()]),
        ("m0", vec!["model.k=3".to_owned()]),
        ("m0", vec!["data.fresh=true".to_owned()]),
    ] {
        world.core = core_named(core);
        world.scenario = Scenario::parse("smallest", text, &changes).expect("scenario");
        let refused = world.try_run().await;
        assert!(matches!(refused, Err(EmulateError::Scenario { .. })), "{core} {changes:?}: {refused:?}");
    }
    world.core = core_named("m0");
    world.scenario = Scenario::parse("smallest", text, &["data.samples=800".to_owned()]).expect("scenario");
    match world.try_run().await {
        Err(EmulateError::Room { client: 1, needed, room: 65536 }) => assert_eq!(needed, 20 + 84 * 820 + 4),
        other => panic!("{other:?}"),
    }
}

/// Short training of the networks of all wearers.
const SHORT: [&str; 2] = ["algorithm.rounds=3", "algorithm.tuning_epochs=5"];

/// Tests networks on boards: dense layers, filters and memory cells learn the bits of the simulator, also on a
/// core without floating point and over the serial line.
#[tokio::test(flavor = "multi_thread")]
async fn networks_on_boards_learn_what_the_simulator_learns() {
    let all = run_without_faults(World::of(core_named("m4"), 8, "watch-network", &SHORT)).await;
    for board in &all.boards {
        let (statics, stack) = (board.number("static"), board.number("stack"));
        assert_eq!(board.number("arena"), core_named("m4").network_memory as u64, "{}", board.line);
        assert!(statics > board.number("arena") && statics + stack < 4 << 20, "{}", board.line);
    }
    let two = |core: &str, name: &str, changes: &[&str]| {
        World::of(core_named(core), 2, name, &[&SHORT, changes].concat())
    };
    run_without_faults(two("m4", "watch-network", &[]).with_link(Link::Uart).in_plaintext()).await;
    run_without_faults(two("rv32imc", "watch-network", &["algorithm.rounds=1"])).await;
    // Momentum, and downloads in eight bits.
    let compressed = ["algorithm.momentum=0.5", "algorithm.download=i8", "algorithm.upload=i8"];
    run_without_faults(two("m4", "watch-network", &compressed)).await;
    run_without_faults(two("m4", "watch-signal", &[])).await;
    let cells = "model={ kind = \"lstm\", cells = 8 }";
    run_without_faults(two("m4", "watch-signal", &[cells, "algorithm.rounds=1"])).await;
    // The layers near the outputs are shared, and the others are personal.
    run_without_faults(two("m4", "watch-network", &["algorithm.name=\"lg-fedavg\""])).await;
}

/// Tests an adapter on boards, without a frozen layer and with one: it learns the bits of the simulator.
#[tokio::test(flavor = "multi_thread")]
async fn adapters_on_boards_learn_what_the_simulator_learns() {
    let short = ["algorithm.rounds=2", "algorithm.body_epochs=1", "algorithm.tuning_epochs=1"];
    run_without_faults(World::of(core_named("m4"), 2, "mnist-lora", &short)).await;
    let base = tempfile::tempdir().expect("a directory");
    for (layer, (rows, columns)) in [(58, 32), (33, 7)].into_iter().enumerate() {
        let mut random = stream(7, Purpose::Network, layer as u64);
        let values: Vec<f64> = (0..rows * columns).map(|_| 0.2 * random.normal()).collect();
        let path = base.path().join(format!("layer-{layer}.npy"));
        npz::write(&path, &[rows, columns], &values).expect("a file");
    }
    let model = format!(
        "model={{ kind = \"lora-mlp\", rank = 4, width = 32, base = \"{}\" }}",
        base.path().display()
    );
    let changes = [SHORT[0], SHORT[1], "algorithm.name=\"rolora\"", &model];
    run_without_faults(World::of(core_named("m4"), 8, "watch-network", &changes)).await;
}

/// Tests networks on boards that are reset or lose their power at any message. All layers are shared, so
/// boards learn the bits of the devices that counted.
#[tokio::test(flavor = "multi_thread")]
async fn interrupted_board_with_network_restores_its_record() {
    let fedavg = |rounds: u32| {
        let rounds = format!("algorithm.rounds={rounds}");
        let changes = [&rounds, "algorithm.name=\"fedavg\"", "algorithm.tuning_epochs=5", "model.hidden=[4]"];
        World::of(core_named("m4"), 2, "watch-network", &changes)
    };
    run_with_interruptions(fedavg(60), 1, 0, 30).await;
    run_with_interruptions(fedavg(60), 1, 30, 0).await;
}

/// Tests that a network that no board or not this board can train is refused before anything runs, with the
/// reason.
#[tokio::test(flavor = "multi_thread")]
async fn network_that_does_not_fit_is_refused_with_its_size() {
    let c = core_named("m4").in_c();
    for (core, name, change, part) in [
        (
            core_named("m0"),
            "watch-network",
            "seed=1",
            "the network takes 23564 bytes, boards with a Cortex-M0",
        ),
        (core_named("m4"), "watch-network", "model.hidden=[4096, 4096]", "have 3932160 for it"),
        (core_named("m4"), "watch-network", "model.hidden=[2000]", "the head in flash takes 56028 bytes"),
        (core_named("m4"), "watch-network", "algorithm.name=\"ditto\"", "only simulated devices train ditto"),
        (core_named("m4"), "watch-network", "data.scale=\"fleet\"", "leave out data.scale"),
        (c, "watch-network", "seed=1", "the client in C has linear models only"),
    ] {
        let refused = World::of(core, 2, name, &[change]).refusal().await;
        assert!(refused.contains(part), "{change}: {refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
}
