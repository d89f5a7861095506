//! Protocol state of a session, independent of the task and the samples.

use fedspan_protocol::assembly::Assembly;
#[cfg(feature = "beacons")]
use fedspan_protocol::message::Announced;
use fedspan_protocol::message::{
    Ack, AckOutcome, Decline, DeclineReason, Descriptors, Fault, Missing, Refusal, RoundId, ToDevice,
};

use super::counters::count;
#[cfg(feature = "reports")]
use super::secure_layer::{Aead, SecureLayer};
use super::{Config, Counters, Sleep, Timers};
use crate::event_log::log_event;
use crate::store::RecordHeader;
use crate::task::Usage;
use crate::time::Millis;

/// True if this build has tasks whose answers wait for a slot.
pub const SLOTS_ENABLED: bool = cfg!(feature = "privacy");

/// Phase of a session; see the diagram in [`session`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// There is no link.
    Offline,
    /// The link is connected, and the Welcome has not arrived yet.
    Greeting { hello_sent: bool },
    /// No round is open, or its update is finished.
    Idle,
    /// Tensors of the open round are missing. `ask_missing` is true if the next frame requests them.
    Receiving { ask_missing: bool },
    /// The open round collects samples ([`Sampling::Stream`](super::Sampling::Stream)).
    Collecting,
    /// The update is computed and will be sent at the end of the slot.
    AwaitingSlot,
    /// The update is being sent.
    Sending { next: UploadCursor },
    /// The update has been sent.
    AwaitingAck,
}

/// Position in the outgoing update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadCursor {
    /// Update message.
    Update,
    /// Chunk of one of the update's tensors.
    Chunk { tensor: u8, index: u16 },
}

/// State of a session, except its keys and its privacy ledger.
#[derive(Clone, Debug)]
pub struct SessionState {
    /// Current phase.
    pub phase: Phase,
    /// Time at which the current phase acts: connects, or sends its hello, request or update again.
    pub timeout_at: Millis,
    /// Identifier of the open round, or of the last computed round.
    pub round: RoundId,
    /// Record of the tensors of the open round that have arrived.
    pub assembly: Assembly,
    /// Tensors of the update.
    pub upload: Descriptors,
    /// Usage of samples that the update reports.
    pub usage: Usage,
    /// Cost of the open round's update, in units of the privacy budget.
    pub cost: u64,
    /// True if the update is charged to the budget and no part of it has been sent.
    pub charged_unsent: bool,
    /// Last charged round, with the decline to send if the server opens the round again and there is no
    /// update to send. The value is kept when the link is lost.
    pub charged_round: Option<Decline>,
    /// True if the last record could not be written to storage.
    pub save_failed: bool,
    /// True if the task's buffers hold the update of `round`, which may be sent, also repeatedly.
    pub update_ready: bool,
    /// Decline to be sent.
    pub decline: Option<Decline>,
    /// Chunks of the update that the server has requested again.
    pub resend: Option<Missing>,
    /// Campaign of the server.
    pub campaign: u64,
    /// Number of the last finished round of the campaign.
    pub last_round: u32,
    /// Number of the last round of which any part of an update was sent, whether or not the round was
    /// finished.
    pub last_sent_round: u32,
    /// True if the session still has to send Alive to prove that the device has the key.
    pub send_key_proof: bool,
    /// True if the next hello must begin a new handshake.
    pub rehandshake: bool,
    /// Longest time without sending. The session then sends Alive.
    pub alive_interval: Millis,
    /// Time at which the last frame was sent.
    pub last_sent_at: Millis,
    /// Time of the last Welcome.
    pub welcomed_at: Millis,
    /// Number of connection attempts since the last Welcome.
    pub connect_attempts: u32,
    /// True if the driver must close the link.
    pub close: bool,
    /// Time from the start of a private computation to its answer; zero if updates are not private.
    pub slot: Millis,
    /// End of the last response slot. Before this time nothing is sent, and all input is dropped.
    pub silent_until: Millis,
    /// True from the start of a computation until the next event, at which [`check_slot`](Self::check_slot)
    /// compares the duration with the slot.
    pub computing: bool,
    /// True if the session closes the link once the final head is fitted and acknowledged.
    pub leave_when_fitted: bool,
    /// Number of heads that were fitted, modulo 2^32.
    pub heads: u32,
    /// True if the open round fits the final head.
    pub fitting: bool,
    /// True once the final head is fitted and acknowledged.
    pub fitted: bool,
    /// Times after which messages are repeated.
    pub timers: Timers,
    /// Times of a device that sleeps between rounds.
    pub sleep: Option<Sleep>,
    /// True if the session closed the last link in order to sleep.
    pub has_left: bool,
    /// Number of messages repeated on this link since the server's last message.
    pub repeats: u32,
    /// Number of rounds answered or declined on this link.
    pub rounds_on_link: u32,
    /// Time of the Welcome, or of the end of the last round on this link.
    pub idle_since: Millis,
    /// Earliest opening of the next round, as far as the server has named one on this link.
    pub next_round_at: Millis,
    /// True if this device reports about itself.
    #[cfg(feature = "reports")]
    pub reports: bool,
    /// True if a report is due.
    #[cfg(feature = "reports")]
    pub report_due: bool,
    /// Round whose beacon is awaited.
    #[cfg(feature = "beacons")]
    pub announced: Option<Announced>,
    /// True if a new key is stored that no handshake has used.
    #[cfg(feature = "key-rotation")]
    pub has_new_key: bool,
    /// True once the stored key has been read.
    #[cfg(feature = "key-rotation")]
    pub is_key_read: bool,
    /// Outcome of an update that is not passed to the task yet.
    #[cfg(feature = "top-k")]
    pub acknowledged: Option<AckOutcome>,
    /// Refusal of this device by the server, authenticated if the link has a key.
    pub refusal: Option<Refusal>,
    /// Counters of events.
    pub counters: Counters,
}

impl SessionState {
    /// Creates the offline state after a restart, from the stored record. `slot` is
    /// [`Task::slot`](crate::Task::slot).
    pub fn new(loaded: RecordHeader, config: &Config, slot: Millis) -> Self {
        Self {
            phase: Phase::Offline,
            timeout_at: Millis::ZERO,
            round: RoundId::default(),
            assembly: Assembly::empty(),
            upload: Descriptors::new(),
            usage: Usage::default(),
            cost: 0,
            charged_unsent: false,
            charged_round: None,
            save_failed: false,
            update_ready: false,
            decline: None,
            resend: None,
            campaign: loaded.campaign,
            last_round: loaded.round,
            last_sent_round: loaded.round,
            send_key_proof: false,
            rehandshake: false,
            alive_interval: Millis::MAX,
            last_sent_at: Millis::ZERO,
            welcomed_at: Millis::ZERO,
            connect_attempts: 0,
            close: false,
            slot: if SLOTS_ENABLED { slot } else { Millis::ZERO },
            silent_until: Millis::ZERO,
            computing: false,
            leave_when_fitted: config.leave_when_fitted,
            heads: 0,
            fitting: false,
            fitted: false,
            timers: config.timers,
            sleep: config.sleep,
            has_left: false,
            repeats: 0,
            rounds_on_link: 0,
            idle_since: Millis::ZERO,
            next_round_at: Millis::ZERO,
            #[cfg(feature = "reports")]
            reports: false,
            #[cfg(feature = "reports")]
            report_due: false,
            #[cfg(feature = "beacons")]
            announced: None,
            #[cfg(feature = "key-rotation")]
            has_new_key: false,
            #[cfg(feature = "key-rotation")]
            is_key_read: false,
            #[cfg(feature = "top-k")]
            acknowledged: None,
            refusal: None,
            counters: Counters::default(),
        }
    }

    /// Enters a phase without a timeout.
    // Not inlined, because it stores a time of two words and the phase, and is called in many places.
    #[inline(never)]
    pub fn enter(&mut self, phase: Phase) {
        self.enter_until(Millis::MAX, phase);
    }

    /// Enters a phase with a timeout.
    pub fn enter_until(&mut self, timeout_at: Millis, phase: Phase) {
        self.timeout_at = timeout_at;
        self.phase = phase;
    }

    /// Returns true once the server's Welcome has been accepted.
    pub fn is_established(&self) -> bool {
        !matches!(self.phase, Phase::Offline | Phase::Greeting { .. })
    }

    /// Handles a message that does not concern the task.
    pub fn handle_control_message(&mut self, now: Millis, message: &ToDevice) {
        match (message, self.phase) {
            (ToDevice::Welcome(welcome), Phase::Greeting { .. }) => {
                if welcome.campaign != self.campaign {
                    self.campaign = welcome.campaign;
                    (self.last_round, self.last_sent_round) = (0, 0);
                    self.charged_round = None;
                    self.drop_update();
                    self.fitted = false;
                }
                self.welcomed(now, welcome.idle_milliseconds);
                log_event!(info, "welcomed to campaign {}", welcome.campaign);
            }
            (ToDevice::Refused(refusal), Phase::Greeting { .. }) => {
                log_event!(error, "refused: {:?}", refusal);
                self.refusal = Some(*refusal);
                self.close = true;
            }
            (ToDevice::RetryAfter { milliseconds }, _) => {
                self.enter_until(now + Millis::from(*milliseconds), Phase::Offline);
                self.close = true;
            }
            (_, Phase::Offline | Phase::Greeting { .. }) => self.unexpected(),
            (ToDevice::Missing(missing), Phase::AwaitingAck | Phase::Sending { .. })
                if missing.id == self.round =>
            {
                self.resend = Some(missing.clone());
            }
            (ToDevice::Ack(ack), _) => self.handle_ack(now, ack),
            #[cfg(feature = "beacons")]
            (ToDevice::Announced(announced), _) => self.announced = Some(*announced),
            (ToDevice::RoundClosed(id), _) => self.handle_round_closed(now, *id),
            (ToDevice::NextRound { milliseconds }, _) => {
                self.next_round_at = now + Millis::from(*milliseconds);
            }
            (ToDevice::Fault(Fault::Greet), _) => self.restart_handshake(),
            // Also handles chunks from before a reconnect, of a round that is not being received.
            _ => self.unexpected(),
        }
    }

    /// Keeps a refusal of this device's wire version that carries a tag of the server. It is not sealed, because handshakes of different
    /// versions differ.
    #[cfg(feature = "reports")]
    pub fn keep_refusal<A: Aead + Clone>(
        &mut self,
        message: &ToDevice,
        secure: &SecureLayer<A>,
        bytes: &[u8],
        body: &[u8],
    ) {
        let (ToDevice::Refused(refusal), Phase::Greeting { .. }) = (message, self.phase) else { return };
        let Some((refused, _)) = bytes.split_at_checked(bytes.len().saturating_sub(body.len())) else {
            return;
        };
        if secure.verifies_refusal(refused, body) {
            log_event!(error, "refused: {:?}", refusal);
            self.refusal = Some(*refusal);
        }
    }

    /// Handles a message without authentication on a link that has a key. The message can only delay or
    /// repeat the handshake.
    pub fn handle_unauthenticated(&mut self, now: Millis, message: &ToDevice) {
        match (message, self.phase) {
            (ToDevice::Refused(_), Phase::Greeting { .. }) => self.close = true,
            (ToDevice::RetryAfter { milliseconds }, Phase::Greeting { .. }) => {
                let delay = (*milliseconds).min(self.timers.reconnect_max);
                self.enter_until(now + Millis::from(delay), Phase::Offline);
                self.close = true;
            }
            (ToDevice::Fault(Fault::Greet), _) if self.may_rehandshake(now) => self.restart_handshake(),
            _ => {}
        }
    }

    /// Begins a new handshake after a restart of the server without a loss of the link. A finished update is
    /// kept.
    pub fn restart_handshake(&mut self) {
        count(&mut self.counters.rehandshakes);
        self.decline = None;
        self.resend = None;
        #[cfg(feature = "beacons")]
        {
            self.announced = None;
        }
        self.send_key_proof = false;
        self.rehandshake = true;
        self.enter(Phase::Greeting { hello_sent: false });
    }

    /// Handles the acknowledgement of an update: counts the outcome and finishes the round.
    fn handle_ack(&mut self, now: Millis, ack: &Ack) {
        let waiting = matches!(self.phase, Phase::AwaitingAck | Phase::Sending { .. });
        if !waiting || ack.id != self.round {
            return self.unexpected();
        }
        log_event!(info, "round {} stage {} finished: {:?}", ack.id.round, ack.id.stage, ack.outcome);
        let counter = match ack.outcome {
            AckOutcome::Counted | AckOutcome::Duplicate => {
                if self.fitting {
                    log_event!(info, "final head fitted");
                }
                self.fitted |= self.fitting;
                self.close |= self.fitting && self.leave_when_fitted;
                &mut self.counters.counted
            }
            AckOutcome::Late => &mut self.counters.late,
            _ => &mut self.counters.rejected,
        };
        count(counter);
        #[cfg(feature = "top-k")]
        {
            self.acknowledged = Some(ack.outcome);
        }
        self.finish_round(now);
    }

    /// Handles the end of a round on the server.
    fn handle_round_closed(&mut self, now: Millis, id: RoundId) {
        let working = !matches!(self.phase, Phase::Idle);
        #[cfg(feature = "beacons")]
        {
            self.announced = self.announced.filter(|announced| announced.id != id);
        }
        if working && id == self.round {
            count(&mut self.counters.closed);
            log_event!(info, "round {} stage {} closed by the server", id.round, id.stage);
            self.finish_round(now);
        }
    }

    /// Marks the open round as finished.
    fn finish_round(&mut self, now: Millis) {
        self.last_round = self.round.round;
        self.drop_update();
        self.round_ended(now);
        self.enter(Phase::Idle);
    }

    /// Discards the update in the task's buffers.
    pub fn drop_update(&mut self) {
        self.update_ready = false;
        self.resend = None;
        if core::mem::take(&mut self.charged_unsent) {
            count(&mut self.counters.forfeited);
        }
    }

    /// Begins to send the update: at the end of the slot if the update was just computed, else immediately.
    pub fn send_update(&mut self) {
        if SLOTS_ENABLED && self.computing {
            self.enter_until(self.silent_until, Phase::AwaitingSlot);
        } else {
            self.enter(Phase::Sending { next: UploadCursor::Update });
        }
    }

    /// Schedules a decline of a round.
    #[cold]
    pub fn decline_round(&mut self, id: RoundId, reason: DeclineReason) {
        count(&mut self.counters.declined);
        self.decline = Some(Decline { id, reason });
        if let Some(charged) = self.charged_round.as_mut().filter(|charged| SLOTS_ENABLED && charged.id == id)
        {
            charged.reason = reason;
        }
        if id == self.round {
            self.drop_update();
            self.enter(Phase::Idle);
        }
    }

    /// Counts an unexpected message, chunk or sample.
    pub fn unexpected(&mut self) {
        count(&mut self.counters.unexpected);
    }
}
