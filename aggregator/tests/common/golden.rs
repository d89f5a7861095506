//! Test helpers for golden files: they write, read and resume campaigns of a server that stopped in the
//! middle of a round.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::durable_engine::{Campaign, DurableEngine};
use fedspan_aggregator::store::Store;
use fedspan_engine::Tensor;
use fedspan_engine::linalg::{orthonormal, to_f32};
use fedspan_engine::random::{Purpose, stream};
use fedspan_engine::{Action, DeviceId, Event, Millis, Phase, RoundBroadcast, Update};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::message::{HeadSolve, Privacy, RoundId, Task, Upload};
use fedspan_protocol::tensor::Role;
use getrandom::SysRng;

use super::campaign::honest_update;

/// Names of the files that a server leaves.
pub const FILES: [&str; 3] = ["campaign.redb", "round.key", "arrivals.jsonl"];

/// Name of the configuration file, which lacks the line with the state directory.
pub const CONFIGURATION: &str = "fleet.toml";

/// Name of the file with the results after the restart, one line per round.
pub const RESUMED: &str = "resumed.txt";

/// Returns a directory in `tests/golden`.
pub fn golden_directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Returns the configuration of a golden directory whose copy is in `state`.
pub fn golden_configuration(name: &str, state: &Path) -> String {
    let configuration_text = std::fs::read_to_string(golden_directory(name).join(CONFIGURATION)).unwrap();
    format!("state = {:?}\n{configuration_text}", state.display().to_string())
}

/// Copies the files of a golden directory to `state`.
pub fn copy_golden_files(name: &str, state: &Path) {
    std::fs::create_dir_all(state).unwrap();
    for file in FILES {
        std::fs::copy(golden_directory(name).join(file), state.join(file)).unwrap();
    }
}

/// Returns the response time of a device in ms.
fn response_time(device: DeviceId) -> u64 {
    50 + 2 * device.0
}

/// Returns the update of a device. For FedRep the update is an honest gradient. For other tasks the update
/// consists of random numbers that depend on the round; tensors that must be orthonormal are orthonormalised.
fn update_of(device: DeviceId, opening: &RoundBroadcast) -> Update {
    if let Task::FedRep { upload: Upload::Gradient, .. } = opening.request.task {
        return honest_update(device, opening);
    }
    let RoundId { round, .. } = opening.id;
    let random = &mut stream(u64::from(round), Purpose::Truth, device.0);
    let tensors = opening.request.expects.iter().map(|descriptor| {
        let matrix = super::gaussian(descriptor.rows.into(), descriptor.cols.into(), random) * 0.25;
        let matrix = match descriptor.role {
            Role::Subspace | Role::Representation => orthonormal(&matrix).unwrap(),
            _ => matrix,
        };
        Tensor {
            role: descriptor.role,
            rows: descriptor.rows,
            cols: descriptor.cols,
            values: to_f32(&matrix),
        }
    });
    super::create_update(opening.id, 1 + device.0 as u32 % 5, &opening.request.expects, tensors.collect())
}

/// Campaign of a durable engine with simulated devices.
pub struct GoldenCampaign {
    pub durable_engine: DurableEngine,
    fleet: Fleet,
    now: u64,
    /// Requests that are open, with the time at which each device answers.
    open_requests: BTreeMap<DeviceId, (u64, Arc<RoundBroadcast>)>,
    /// Lines of the journal.
    pub lines: Vec<String>,
    /// One line per committed round.
    pub rounds: String,
}

impl GoldenCampaign {
    /// Begins or resumes the campaign.
    pub fn new(text: &str) -> Self {
        let fleet = Fleet::parse("fleet.toml", text).unwrap();
        let store = Store::open(&fleet.state, SysRng).unwrap();
        // Like a server, the campaign resumes with the stored settings.
        let fleet = match store.settings().unwrap() {
            Some(stored_settings) => fleet.resumed(&stored_settings).unwrap().fleet,
            None => fleet,
        };
        let campaign = Campaign {
            configuration: fleet.fingerprint(),
            number: 7,
            expected: fleet.expected,
            journal: Some(0),
        };
        let (durable_engine, now) = DurableEngine::new(fleet.engine(), store, &campaign).unwrap();
        let open_requests = BTreeMap::new();
        let lines = Vec::new();
        let rounds = String::new();
        Self { durable_engine, fleet, now: now.as_u64(), open_requests, lines, rounds }
    }

    /// Lets all devices join.
    pub fn join_all_devices(mut self) -> Self {
        for device in 0..self.fleet.expected as u64 {
            if self.fleet.privacy.is_some() {
                let privacy = Privacy::Gaussian { release: 1000 + device as u32, budget: 1 << 40, spent: 0 };
                self.durable_engine.record_privacy(DeviceId(device), privacy);
            }
            self.durable_engine.handle(Millis::new(self.now), Event::Joined(DeviceId(device)));
        }
        self.handle_flushed();
        self
    }

    /// Flushes the engine and handles the released actions.
    fn handle_flushed(&mut self) {
        let flushed = self.durable_engine.flush().unwrap();
        self.lines.extend(flushed.lines);
        for action in flushed.actions {
            match action {
                Action::Open(device, opening) => {
                    self.open_requests.insert(device, (self.now + response_time(device), opening));
                }
                Action::Commit(record) => {
                    let digest = self.representation_digest();
                    let phase = match record.phase {
                        Phase::Start(number) => format!("start {number}"),
                        Phase::Train(number) => format!("round {number}"),
                        unexpected => panic!("{unexpected:?}"),
                    };
                    let counted = record.participants.iter().map(DeviceId::to_string).collect::<Vec<_>>();
                    let _ = writeln!(self.rounds, "{phase}: {digest} of {}", counted.join(" "));
                }
                _ => {}
            }
        }
    }

    /// Lets the device with the earliest response time answer. Returns false if no request is open.
    pub fn answer_earliest(&mut self) -> bool {
        let earliest = self.open_requests.iter().min_by_key(|(device, (due, _))| (*due, **device));
        let Some((device, due)) = earliest.map(|(device, (due, _))| (*device, *due)) else { return false };
        let (_, opening) = self.open_requests.remove(&device).unwrap();
        self.now = self.now.max(due);
        self.durable_engine.handle(Millis::new(self.now), Event::Update(device, update_of(device, &opening)));
        self.handle_flushed();
        true
    }

    /// Runs until the open round of `phase` has counted `counted` updates.
    pub fn run_until(&mut self, phase: Phase, counted: usize) {
        loop {
            let engine = self.durable_engine.engine();
            let count = engine.open_round().map_or(0, |round| round.participants.len());
            if engine.phase() == phase && count == counted {
                return;
            }
            assert!(self.answer_earliest(), "{phase:?} never counts {counted}");
        }
    }

    /// Runs the campaign to its end. Returns one line per round, and the privacy accounts.
    pub fn run_to_end(mut self) -> String {
        while self.durable_engine.engine().phase() != Phase::FitHead {
            assert!(self.answer_earliest(), "{:?}", self.durable_engine.engine().phase());
        }
        for (device, account) in self.durable_engine.engine().ledger().accounts() {
            let _ = writeln!(self.rounds, "device {device} has spent {}", account.spent);
        }
        let requests = self.durable_engine.engine().requests();
        let heads = requests.iter().find_map(|request| match request.task {
            Task::FitHead { head: HeadSolve::LeastSquares { ridge } } => Some(format!("ridge {ridge}")),
            Task::FitHead { head: HeadSolve::Sgd { epochs, descent } } => {
                let (step_size, momentum, batch) = (descent.step_size, descent.momentum, descent.batch);
                Some(format!("{epochs} epochs of steps {step_size}, momentum {momentum}, batches of {batch}"))
            }
            _ => None,
        });
        let _ = writeln!(self.rounds, "heads: {}", heads.unwrap());
        let rounds = std::mem::take(&mut self.rounds);
        super::close_locked(self);
        rounds
    }

    /// Returns the CRC-32C of the representation, as in the journal.
    pub fn representation_digest(&self) -> String {
        let values = self.durable_engine.engine().representation().iter();
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        format!("{:08x}", crc32c(&bytes))
    }
}

/// Writes a golden directory from its configuration: the files of a server that stopped in the round of
/// `phase` after `counted` updates, and the results of the campaign after a restart.
pub fn write_golden_files(name: &str, (phase, counted): (Phase, usize), state: &Path) {
    let configuration_text = golden_configuration(name, state);
    let mut campaign = GoldenCampaign::new(&configuration_text).join_all_devices();
    campaign.run_until(phase, counted);
    let lines: String = campaign.lines.iter().map(|line| line.clone() + "\n").collect();
    super::close_locked(campaign);
    std::fs::write(state.join("arrivals.jsonl"), lines).unwrap();
    for file in FILES {
        std::fs::copy(state.join(file), golden_directory(name).join(file)).unwrap();
    }
    let resumed = GoldenCampaign::new(&configuration_text).join_all_devices().run_to_end();
    std::fs::write(golden_directory(name).join(RESUMED), resumed).unwrap();
    std::fs::remove_dir_all(state).unwrap();
}
