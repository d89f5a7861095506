//! Command `serve`: runs the campaign of a configuration until Ctrl-C or SIGTERM.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use fedspan_aggregator::check::locate_error;
use fedspan_aggregator::config::{Fleet, Security};
use fedspan_aggregator::keys::{KeyStore, KeyStoreError};
use fedspan_aggregator::server::{Protection, ServeError, Server, Status};
use fedspan_aggregator::store::{OfflineStore, StoreError};
use fedspan_engine::{Checkpoint, Phase};
use fedspan_files::FileError;
use getrandom::SysRng;

use super::keys::{STORE_RETRY_INTERVAL, STORE_WAIT_MAX};
use super::unlock::Sources;
use crate::{FAILED, WRONG, fail, print, shutdown_signal};

/// Runs the server. Prints the address at the start and the outcome at the end.
pub async fn serve(fleet: Fleet, passphrase_file: Option<PathBuf>, exit_when_finished: bool) -> ExitCode {
    let (expected, state) = (fleet.expected, fleet.state.clone());
    let protection = match open_protection(&fleet, passphrase_file) {
        Ok(protection) => protection,
        Err((code, message)) => return fail(code, &message),
    };
    // The handler is installed before the address is printed, because a script may stop the server as soon as
    // it sees the address.
    let interrupted = match shutdown_signal() {
        Ok(interrupted) => interrupted,
        Err(error) => return fail(FAILED, &format!("cannot handle signals: {error}")),
    };
    let server = match Server::builder(fleet).protection(protection).bind().await {
        Ok(server) => server,
        Err(ServeError::Resume(error)) => return fail(FAILED, &locate_error(&error, &state)),
        Err(error) => return fail(FAILED, &error.to_string()),
    };
    let progress = match server.resume_checkpoint() {
        Some(checkpoint) => resume_message(&checkpoint, server.status().rounds),
        None => format!("waiting for {expected} devices"),
    };
    // Standard output may be closed, which does not stop the server.
    match server.address() {
        Ok(address) => drop(print(&format!("listening on {address}, {progress}"))),
        Err(error) => return fail(FAILED, &error.to_string()),
    }
    match server.serve(interrupted, exit_when_finished).await {
        Ok(status) => {
            let Status { phase, round, rounds, .. } = status;
            let _ = print(&format!("stopped: {phase} after round {round} of {rounds}"));
            ExitCode::SUCCESS
        }
        Err(error) => fail(FAILED, &error.to_string()),
    }
}

/// Describes the round from which a campaign continues.
fn resume_message(checkpoint: &Checkpoint, rounds: u32) -> String {
    match checkpoint.done {
        Phase::Train(number) if checkpoint.ends_training() => {
            format!("resuming after round {number} of {rounds}: heads are fitted")
        }
        Phase::RidgeScores => format!("resuming after round {rounds} of {rounds}: heads are fitted"),
        Phase::Train(number) => format!("resuming with round {} of {rounds}", number.saturating_add(1)),
        _ => format!("resuming with the start, before round 1 of {rounds}"),
    }
}

/// Opens the key store of the configuration. An error contains the exit code and a message.
fn open_protection(fleet: &Fleet, passphrase_file: Option<PathBuf>) -> Result<Protection, (u8, String)> {
    let Security::Keys { store, key_file } = &fleet.security else { return Ok(Protection::Plaintext) };
    let invalid_input = |message| (WRONG, message);
    let key_store_failure = |error: KeyStoreError| match error {
        KeyStoreError::File(FileError::Io { .. }) | KeyStoreError::Locked { .. } => {
            (FAILED, error.to_string())
        }
        error => invalid_input(error.to_string()),
    };
    fleet.security.check_store().map_err(invalid_input)?;
    let derivation = KeyStore::derivation(store).map_err(key_store_failure)?;
    let sources = Sources { passphrase_file, key_file: key_file.clone() };
    let unlock = sources.unlock(store, derivation).map_err(invalid_input)?;
    let began = Instant::now();
    let mut is_first = true;
    loop {
        let error = match KeyStore::open(store, &unlock, SysRng) {
            Ok(keys) => return Ok(Protection::Keys(keys, Box::new(SysRng))),
            Err(error @ KeyStoreError::Locked { .. }) => error,
            Err(error) => return Err(key_store_failure(error)),
        };
        // A locked key store is used by a command, which ends soon, or by another server. A server locks the
        // state directory shortly after the key store, so the state directory shows which of the two it is.
        let is_late = began.elapsed() > STORE_WAIT_MAX;
        if (is_first || is_late)
            && let Err(error @ StoreError::Locked { .. }) = OfflineStore::open(&fleet.state)
        {
            return Err((FAILED, error.to_string()));
        }
        if is_late {
            return Err(key_store_failure(error));
        }
        if std::mem::take(&mut is_first) {
            tracing::info!(path = %store.display(), "waiting for a command that uses the key store");
        }
        std::thread::sleep(STORE_RETRY_INTERVAL);
    }
}
