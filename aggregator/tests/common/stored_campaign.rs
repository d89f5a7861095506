//! Test helpers: the state directory of a campaign of five devices in its third round, with the updates
//! of two devices.

use std::path::Path;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::durable_engine::{Campaign, DurableEngine};
use fedspan_aggregator::store::Store;
use fedspan_engine::{Action, DeviceId, Event, Millis};
use getrandom::SysRng;

use super::campaign::honest_update;
use super::close_locked;

/// Returns the configuration for a state directory.
pub fn configuration(state: &Path) -> String {
    format!(
        "seed = 3\nstate = {:?}\n[listen]\ntcp = \"127.0.0.1:0\"\nplaintext = true\n[devices]\nexpected = 5\n[data]\nd = 6\n\
         [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.25\n",
        state.display().to_string()
    )
}

/// Begins or resumes the campaign of a state directory, with a journal.
pub fn durable_engine(state: &Path) -> DurableEngine {
    engine_with_journal(state, Some(0))
}

/// Begins or resumes the campaign of a state directory. `journal` is the number of lines in the journal file,
/// or `None` to keep no journal.
fn engine_with_journal(state: &Path, journal: Option<u64>) -> DurableEngine {
    let fleet = Fleet::parse("fleet.toml", &configuration(state)).unwrap();
    let store = Store::open(&fleet.state, SysRng).unwrap();
    // Like a server, the campaign resumes with the stored settings.
    let fleet = match store.settings().unwrap() {
        Some(stored) => fleet.resumed(&stored).unwrap().fleet,
        None => fleet,
    };
    let campaign = Campaign { configuration: fleet.fingerprint(), number: 7, expected: 5, journal };
    DurableEngine::new(fleet.engine(), store, &campaign).unwrap().0
}

/// Writes the state directory. Returns the configuration, and the representation after two rounds in
/// row-major order.
pub fn create_state(state: &Path) -> (String, Vec<f64>) {
    let mut durable_engine = durable_engine(state);
    (0..5).for_each(|device| durable_engine.handle(Millis::ZERO, Event::Joined(DeviceId(device))));
    let mut lines = Vec::new();
    for round in 1..=3 {
        let flushed = durable_engine.flush().unwrap();
        lines.extend(flushed.lines);
        let opening = flushed.actions.into_iter().find_map(|action| match action {
            Action::Open(_, opening) => Some(opening),
            _ => None,
        });
        let opening = opening.unwrap();
        for device in 0..if round < 3 { 5 } else { 2 } {
            durable_engine.handle(
                Millis::new(round),
                Event::Update(DeviceId(device), honest_update(DeviceId(device), &opening)),
            );
        }
    }
    lines.extend(durable_engine.flush().unwrap().lines);
    let representation = durable_engine.engine().representation().transpose().iter().copied().collect();
    let journal: String = lines.iter().map(|line| line.clone() + "\n").collect();
    std::fs::write(state.join("arrivals.jsonl"), journal).unwrap();
    close_locked(durable_engine);
    (configuration(state), representation)
}

/// Begins or resumes the campaign, with or without a journal. Adds updates to the next rounds until each
/// round has the number of updates in `counted`.
pub fn run_campaign(state: &Path, journal: bool, counted: &[usize]) {
    let mut durable_engine = engine_with_journal(state, journal.then_some(0));
    (0..5).for_each(|device| durable_engine.handle(Millis::new(10), Event::Joined(DeviceId(device))));
    for target in counted {
        let actions = durable_engine.flush().unwrap().actions.into_iter();
        let openings = actions.filter_map(|action| match action {
            Action::Open(_, opening) => Some(opening),
            _ => None,
        });
        let opening = openings.last().unwrap();
        let participants = durable_engine.engine().open_round().unwrap().participants.clone();
        let missing_devices = (0..5).filter(|device| !participants.contains(&DeviceId(*device)));
        for device in missing_devices.take(target - participants.len()) {
            durable_engine.handle(
                Millis::new(11),
                Event::Update(DeviceId(device), honest_update(DeviceId(device), &opening)),
            );
        }
    }
    durable_engine.flush().unwrap();
    close_locked(durable_engine);
}
