//! How the host begins: a new campaign, or the committed one where it ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_protocol::message::Welcome;
use tokio::sync::{broadcast, watch};

use super::log_limiter::Throttle;
use super::update_quota::Quota;
use super::{ConnectionCounters, Host, HostError, Status};
use crate::config::{Fleet, Resumed};
use crate::connection::Gate;
use crate::durable_engine::{Campaign, Coordinator, ResumeError, resumed};
use crate::journal::Journal;
use crate::keys::{Entropy, KeyDesk};
use crate::store::Store;
use fedspan_engine::Phase;
use fedspan_engine::admission::Requirements;
use fedspan_engine::privacy::{Delta, Minimum};

impl Host {
    /// A host for the campaign of a store, or for a new one, which gets this number. Without `keys`, and the source of the
    /// server's nonces, frames are not encrypted and every device is believed. `file` is where a journal is also written for
    /// other programs, if one is kept at all.
    ///
    /// Its caller's clock stands at 0 when this is done.
    ///
    /// # Errors
    /// [`HostError`] if the stored campaign cannot be taken up.
    pub fn new(
        fleet: &Fleet,
        store: Store,
        campaign: u64,
        keys: Option<(KeyDesk, Box<dyn Entropy>)>,
        file: Option<Journal>,
    ) -> Result<Self, HostError> {
        let fleet = &going_on(fleet, &store)?;
        let engine = fleet.engine();
        let requirements = Requirements::new(fleet.model(), &engine.requests(), fleet.allowed.clone())
            .with_numeric(fleet.algorithm.numeric)
            .with_privacy(fleet.privacy.map(Minimum::budget));
        let mut journal = file.filter(|_| fleet.journal);
        let about = Campaign {
            configuration: fleet.fingerprint(),
            number: campaign,
            expected: fleet.expected,
            journal: fleet.journal.then(|| journal.as_ref().map_or(0, Journal::lines)),
        };
        let (coordinator, clock) = Coordinator::new(engine, store, &about)?;
        let campaign = coordinator.campaign();
        if let Some(journal) = &mut journal {
            // What is durable and had not come to the file.
            let missing = coordinator.store().journal(journal.lines()).map_err(ResumeError::from)?;
            journal.catch_up(&missing);
        }
        let checkpoint = coordinator.engine().checkpoint();
        let done = match checkpoint.done {
            Phase::Train(number) => number,
            Phase::RidgeScores | Phase::FitHead => checkpoint.rounds,
            _ => 0,
        };
        if checkpoint.done != Phase::Waiting {
            tracing::info!(round = done, "resuming after the last committed round");
        }
        let counted = coordinator.engine().open_round().map_or(0, |round| round.participants.len());
        if counted > 0 {
            tracing::info!(counted, "resuming in the middle of a round");
        }
        let (status, _) = watch::channel(Status::default());
        let (round_lines, _) = broadcast::channel(64);
        let idle_milliseconds = u32::try_from(fleet.limits.idle.as_millis()).unwrap_or(u32::MAX);
        let welcome = Welcome { campaign, idle_milliseconds };
        let desk = keys.as_ref().map(|(desk, _)| desk.clone());
        let gate = match keys {
            None => {
                tracing::warn!(
                    "PLAINTEXT: frames are not encrypted, and every device is believed; for the bench only"
                );
                Gate::plaintext(requirements, welcome)
            }
            Some((desk, nonces)) => Gate::encrypted(requirements, welcome, desk.keys(), nonces),
        };
        let mut host = Self {
            coordinator,
            journal,
            gate: Arc::new(gate),
            desk,
            rounds: fleet.algorithm.rounds,
            done,
            peers: BTreeMap::new(),
            current: BTreeMap::new(),
            quota: Quota::new(fleet.limits.updates),
            rounds_over: false,
            cut_off: Vec::new(),
            connections: ConnectionCounters::default(),
            log: Throttle::default(),
            delta: fleet.privacy.map_or(Delta::USUAL, |minimum| minimum.delta),
            privacy: None,
            clock,
            stood: 0,
            status,
            round_lines,
            failure: None,
            stalled: None,
            stalls: 0,
            advice: fleet.advice(),
        };
        // The journal's first line, and a round that only waited for its end to be told.
        host.settle(0)?;
        Ok(host)
    }
}

/// The configuration under the settings with which the stored campaign began; a store in which no round was opened begins one under
/// today's defaults.
fn going_on(fleet: &Fleet, store: &Store) -> Result<Fleet, ResumeError> {
    let Some(stored) = store.settings()? else { return Ok(fleet.clone()) };
    let Resumed { fleet, kept } = resumed(fleet, &stored)?;
    if !kept.is_empty() {
        let settings = kept.join(", ");
        tracing::info!(%settings, "going on under settings that the campaign began with and the file does not say");
    }
    Ok(fleet)
}
