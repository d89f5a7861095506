//! How the host begins: a new campaign, or the committed one where it ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use fedspan_protocol::message::Welcome;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::Host;
use crate::admission::Requirements;
use crate::config::{Fleet, difference};
use crate::connection::Gate;
use crate::engine::Phase;
use crate::journal::{self, Journal, Line, Scribe};
use crate::keys::{Entropy, KeyDesk};
use crate::privacy::{Delta, Minimum};
use crate::server::ServeError;
use crate::server::log::Throttle;
use crate::server::status::{ConnectionCounters, Status};
use crate::store::{Committed, Store};

impl Host {
    pub(in crate::server) fn new(
        fleet: &Fleet,
        store: Store,
        entropy: u64,
        keys: Option<(KeyDesk, Box<dyn Entropy>)>,
    ) -> Result<Self, ServeError> {
        let mut engine = fleet.engine();
        let fingerprint = fleet.fingerprint();
        let requirements = Requirements::new(fleet.model(), &engine.requests(), fleet.allowed.clone())
            .with_numeric(fleet.algorithm.numeric)
            .with_privacy(fleet.privacy.map(Minimum::budget));
        let mut campaign = entropy;
        let mut done = 0;
        let mut trained = false;
        let mut resumed = None;
        // Where no round was finished there is nothing that another configuration could spoil.
        let begun =
            |stored: &Committed| stored.configuration == fingerprint || stored.phase() != Phase::Waiting;
        if let Some(committed) = store.load()?.filter(begun) {
            if committed.configuration != fingerprint {
                let difference = difference(&committed.configuration, &fingerprint);
                return Err(ServeError::Changed { difference });
            }
            if !engine.resume(committed.round(), committed.phase(), &committed.state) {
                let difference = "the stored state has another size\n".to_owned();
                return Err(ServeError::Changed { difference });
            }
            campaign = committed.campaign;
            resumed = Some(committed.id.0);
            trained = committed.ends_training();
            if trained {
                // Nobody is connected: there is nothing to do yet.
                engine.finish_training(0, &mut Vec::new());
            }
            if let Phase::Train(number) = committed.phase() {
                done = number.min(fleet.algorithm.rounds);
            }
            if committed.phase() != Phase::Waiting {
                tracing::info!(round = done, "resuming after the last committed round");
            }
        }
        // Before any device sees a number: the next start must not use it again, even if nothing is
        // committed until then.
        let (id, phase, state) = engine.snapshot();
        let begun = Committed::new(fingerprint.clone(), campaign, id, phase, state);
        store.commit(&begun.ending_training(trained))?;
        let mut journal = match fleet.journal {
            true => Some(Journal::open(store.directory())?),
            false => None,
        };
        if let Some(journal) = &mut journal {
            let after = resumed.unwrap_or(0);
            let server =
                journal::Server { after, expected: fleet.expected, configuration: fingerprint.clone() };
            journal.append(&[if resumed.is_some() { Line::Resumed(server) } else { Line::Began(server) }]);
            journal.flush();
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
            engine,
            store,
            scribe: Scribe::default(),
            journal,
            gate: Arc::new(gate),
            desk,
            fingerprint,
            campaign,
            rounds: fleet.algorithm.rounds,
            done,
            peers: BTreeMap::new(),
            current: BTreeMap::new(),
            updates: BTreeMap::new(),
            updates_most: fleet.limits.updates,
            counted_in: None,
            rounds_over: false,
            cut_off: Vec::new(),
            connections: ConnectionCounters::default(),
            log: Throttle::default(),
            delta: fleet.privacy.map_or(Delta::USUAL, |minimum| minimum.delta),
            privacy: None,
            began: Instant::now(),
            status,
            round_lines,
            failure: None,
        };
        if trained {
            host.rounds_are_over();
        }
        host.publish();
        Ok(host)
    }
}
