//! Tasks that serve persistent links such as serial ports, which outlast peer sessions. A persistent link has
//! no connect and close events, only bytes while a device is attached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serial2_tokio::SerialPort;
use tokio::io::{AsyncRead, AsyncWrite};

use super::peer::{self, PeerContext};
use crate::core::DisconnectReason;

/// Interval between attempts to open a missing port.
const PORT_RETRY: Duration = Duration::from_secs(1);

/// Pause between two sessions, which limits the rate of sessions that end because of line noise.
const NOISE_PAUSE: Duration = Duration::from_millis(100);

/// Generator of peer session numbers, shared by all links of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerIds(Arc<AtomicU64>);

impl PeerIds {
    /// Returns a number that has not been used before.
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Serves a serial port until the server stops. A missing port is opened again when it is plugged in.
pub(super) async fn serve_port(path: String, baud: u32, peer_ids: PeerIds, context: PeerContext) {
    let mut is_missing = false;
    loop {
        match SerialPort::open(&path, baud) {
            Ok(port) => {
                is_missing = false;
                tracing::info!(port = path, baud, "serial port opened");
                serve_stream(&path, port, &peer_ids, &context).await;
                tracing::warn!(port = path, "serial port closed");
            }
            Err(error) if !is_missing => {
                is_missing = true;
                tracing::warn!(port = path, %error, "serial port cannot be opened; retrying every second");
            }
            Err(_) => {}
        }
        if context.inbox.is_closed() {
            return;
        }
        tokio::time::sleep(PORT_RETRY).await;
    }
}

/// Serves one session after another on a stream, until the stream ends.
pub(super) async fn serve_stream(
    name: &str,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    peer_ids: &PeerIds,
    context: &PeerContext,
) {
    let link_name: Arc<str> = name.into();
    loop {
        let number = peer_ids.next();
        let reason = peer::run_on_link(number, Arc::clone(&link_name), &mut stream, context.clone()).await;
        tracing::debug!(peer = number, link = name, ?reason, "session ended");
        if reason == DisconnectReason::Closed || context.inbox.is_closed() {
            return;
        }
        tokio::time::sleep(NOISE_PAUSE).await;
    }
}
