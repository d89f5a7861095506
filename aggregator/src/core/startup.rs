//! Startup of the server core: begins a campaign or resumes the stored one.

use std::collections::HashMap;
use std::sync::Arc;

use fedspan_protocol::message::Welcome;
use tokio::sync::{broadcast, watch};

use super::device_table::DeviceTable;
use super::held_out::HeldOut;
use super::log_limiter::LogRateLimiter;
use super::robustness::Robustness;
use super::sleepers::Sleepers;
use super::update_quota::UpdateQuota;
use super::{ConnectionCounters, CoreError, ServerCore, Status};
use crate::config::{Fleet, Resumed};
use crate::connection::{Acceptor, beacon_warning};
use crate::durable_engine::{Campaign, DurableEngine, ResumeError, with_stored_settings};
use crate::journal::Journal;
use crate::keys::{Entropy, SharedKeyStore};
use crate::store::Store;
use fedspan_engine::admission::Requirements;
use fedspan_engine::algorithm::ScaleSource;
use fedspan_engine::privacy::{Delta, PrivacyRequirement};
use fedspan_engine::{CustomParts, Millis, Phase};

impl ServerCore {
    /// Creates a server core. Resumes the campaign in the store, or begins a new one with the number
    /// `campaign`. `keys` holds the key store and the source of the server's nonces; without `keys` frames
    /// are not encrypted and device identities are not verified. `file` is the journal file to keep up to
    /// date, if the configuration keeps a journal.
    ///
    /// The times that the caller passes to the core must count from the return of this function.
    ///
    /// # Errors
    /// [`CoreError`] if the stored campaign cannot be resumed.
    pub fn new(
        fleet: &Fleet,
        store: Store,
        campaign: u64,
        keys: Option<(SharedKeyStore, Box<dyn Entropy>)>,
        file: Option<Journal>,
    ) -> Result<Self, CoreError> {
        Self::with_custom_parts(fleet, store, campaign, keys, file, CustomParts::default())
    }

    /// Creates a server core as [`Self::new`] does, with custom parts in place of the configuration's
    /// algorithm and participation policy. A custom rule must be in `fleet` already ([`Fleet::with_rule`]).
    ///
    /// # Errors
    /// [`CoreError`] if the stored campaign cannot be resumed, or a part does not fit the configuration.
    pub fn with_custom_parts(
        fleet: &Fleet,
        store: Store,
        campaign: u64,
        keys: Option<(SharedKeyStore, Box<dyn Entropy>)>,
        file: Option<Journal>,
        mut custom: CustomParts,
    ) -> Result<Self, CoreError> {
        let fleet = Fleet { custom: custom.names().clone(), ..fleet.clone() };
        let fleet = &resumed_fleet(&fleet, &store)?;
        let shape = || fleet.engine().representation().shape();
        custom.check(shape, fleet.scale != ScaleSource::None, fleet.privacy.is_some())?;
        let engine = fleet.custom_engine(custom);
        let requests = engine.requests();
        if let Some(warning) = fleet.beacon.as_ref().and_then(|_| beacon_warning(&requests, fleet.packet)) {
            tracing::warn!(warning, "beacons");
        }
        let requirements = Requirements::new(fleet.model(), &requests, fleet.allowed.clone())
            .with_numeric(fleet.algorithm.numeric)
            .with_privacy(fleet.privacy.map(PrivacyRequirement::budget));
        let mut journal = file.filter(|_| fleet.journal);
        let about = Campaign {
            configuration: fleet.fingerprint(),
            number: campaign,
            expected: fleet.expected,
            journal: fleet.journal.then(|| journal.as_ref().map_or(0, Journal::lines)),
        };
        let (durable, clock) = DurableEngine::new(engine, store, &about)?;
        let campaign = durable.campaign();
        if let Some(journal) = &mut journal {
            // Entries that are in the database but missing from the journal file.
            let missing = durable.store().journal(journal.lines()).map_err(ResumeError::from)?;
            journal.catch_up(&missing);
        }
        let checkpoint = durable.engine().checkpoint();
        let done = match checkpoint.done {
            Phase::Train(number) => number,
            Phase::RidgeScores | Phase::FitHead => checkpoint.rounds,
            _ => 0,
        };
        if checkpoint.done != Phase::Waiting {
            tracing::info!(round = done, "resuming after the last committed round");
        }
        let counted = durable.engine().open_round().map_or(0, |round| round.participants.len());
        if counted > 0 {
            tracing::info!(counted, "resuming an open round");
        }
        let (status, _) = watch::channel(Status::default());
        let (round_feed_sender, _) = broadcast::channel(64);
        let idle_milliseconds = u32::try_from(fleet.limits.idle.as_millis()).unwrap_or(u32::MAX);
        let welcome = Welcome { campaign, idle_milliseconds };
        let key_store = keys.as_ref().map(|(key_store, _)| key_store.clone());
        if key_store.as_ref().is_some_and(|store| !store.keys().is_durable()) {
            tracing::warn!(
                "the folder of the key store cannot be synced: no new keys are sent to devices until it can be"
            );
        }
        let acceptor = match keys {
            None => {
                tracing::warn!(
                    "PLAINTEXT: frames are not encrypted and device identities are not verified; for test benches only"
                );
                Acceptor::plaintext(requirements, welcome)
            }
            Some((key_store, nonces)) => Acceptor::encrypted(requirements, welcome, key_store.keys(), nonces)
                .with_short_tags(fleet.short_tags),
        };
        let acceptor = match &fleet.beacon {
            Some(_) => acceptor.with_beacons(fleet.packet),
            None => acceptor,
        };
        let mut core = Self {
            durable,
            journal,
            acceptor: Arc::new(acceptor),
            key_store,
            rounds: fleet.algorithm.rounds,
            done,
            peers: HashMap::new(),
            current: HashMap::new(),
            quota: UpdateQuota::new(fleet.limits.updates),
            rounds_over: false,
            cut_off: Vec::new(),
            connections: ConnectionCounters::default(),
            packets: None,
            log: LogRateLimiter::default(),
            delta: fleet.privacy.map_or(Delta::DEFAULT, |minimum| minimum.delta),
            privacy: None,
            clock,
            paused_for: Millis::ZERO,
            status,
            round_feed_sender,
            failure: None,
            write_stall: None,
            stalls: 0,
            robustness: Robustness::new(fleet),
            advice: fleet.advice(),
            not_awaited: Arc::default(),
            held_out: HeldOut::new(&fleet.held_out),
            sleepers: Sleepers::new(fleet.absence, fleet.rounds.deadline),
            devices: DeviceTable::default(),
        };
        core.update_not_awaited();
        if let Some(robustness) = &core.robustness {
            robustness.log();
        }
        core.remove_revoked(Millis::ZERO);
        // Writes the first journal entry of this server, and the commit of a round if that commit was
        // interrupted.
        core.flush(Millis::ZERO)?;
        Ok(core)
    }
}

/// Returns the configuration with the settings of the stored campaign; returns the configuration unchanged if
/// no round of the campaign was opened.
fn resumed_fleet(fleet: &Fleet, store: &Store) -> Result<Fleet, ResumeError> {
    let Some(stored) = store.settings()? else { return Ok(fleet.clone()) };
    let Resumed { fleet, kept } = with_stored_settings(fleet, &stored)?;
    if !kept.is_empty() {
        let settings = kept.join(", ");
        tracing::info!(%settings, "resuming with stored settings that the file does not set");
    }
    Ok(fleet)
}
