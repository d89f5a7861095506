//! State directory of a campaign of five devices in its third round, which two have answered.

use std::path::Path;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::durable_engine::{Campaign, DurableEngine};
use fedspan_aggregator::store::Store;
use fedspan_engine::{Action, Event};
use getrandom::SysRng;

use super::campaign::honest;
use super::closed;

/// Returns the configuration for a state directory.
pub fn configuration(state: &Path) -> String {
    format!(
        "seed = 3\nstate = {:?}\n[listen]\ntcp = \"127.0.0.1:0\"\nplaintext = true\n[devices]\nexpected = 5\n[data]\nd = 6\n\
         [model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 4\nstep_size = 0.25\n",
        state.display().to_string()
    )
}

/// Begins or resumes its campaign.
pub fn coordinator(state: &Path) -> DurableEngine {
    kept_or_not(state, Some(0))
}

/// Begins or resumes it, with or without a journal.
fn kept_or_not(state: &Path, journal: Option<u64>) -> DurableEngine {
    let fleet = Fleet::parse("fleet.toml", &configuration(state)).unwrap();
    let store = Store::open(&fleet.state, SysRng).unwrap();
    // As a server does: resume under the stored settings.
    let fleet = match store.settings().unwrap() {
        Some(stored) => fleet.resumed(&stored).unwrap().fleet,
        None => fleet,
    };
    let about = Campaign { configuration: fleet.fingerprint(), number: 7, expected: 5, journal };
    DurableEngine::new(fleet.engine(), store, &about).unwrap().0
}

/// Makes the directory; returns the configuration, and the representation after two rounds in row-major order.
pub fn keep(state: &Path) -> (String, Vec<f64>) {
    let mut coordinator = coordinator(state);
    (0..5).for_each(|device| coordinator.handle(0, Event::Joined(device)));
    let mut lines = Vec::new();
    for round in 1..=3 {
        let settled = coordinator.flush().unwrap();
        lines.extend(settled.lines);
        let opening = settled.actions.into_iter().find_map(|action| match action {
            Action::Open(_, opening) => Some(opening),
            _ => None,
        });
        let opening = opening.unwrap();
        for device in 0..if round < 3 { 5 } else { 2 } {
            coordinator.handle(round, Event::Update(device, honest(device, &opening)));
        }
    }
    lines.extend(coordinator.flush().unwrap().lines);
    let representation = coordinator.engine().representation().transpose().iter().copied().collect();
    let text: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
    std::fs::write(state.join("arrivals.jsonl"), text).unwrap();
    closed(coordinator);
    (configuration(state), representation)
}

/// Begins or resumes the campaign with or without a journal, and counts this many updates in each of the next
/// rounds.
pub fn go_on(state: &Path, journal: bool, counted: &[usize]) {
    let mut coordinator = kept_or_not(state, journal.then_some(0));
    (0..5).for_each(|device| coordinator.handle(10, Event::Joined(device)));
    for wanted in counted {
        let actions = coordinator.flush().unwrap().actions.into_iter();
        let openings = actions.filter_map(|action| match action {
            Action::Open(_, opening) => Some(opening),
            _ => None,
        });
        let opening = openings.last().unwrap();
        let had = coordinator.engine().open_round().unwrap().participants.clone();
        let others = (0..5).filter(|device| !had.contains(device));
        for device in others.take(wanted - had.len()) {
            coordinator.handle(11, Event::Update(device, honest(device, &opening)));
        }
    }
    coordinator.flush().unwrap();
    closed(coordinator);
}
