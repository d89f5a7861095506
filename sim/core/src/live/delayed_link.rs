//! Link that simulates the computation time of a device: the opening of a round is delivered to the session
//! only after the computation time has passed. If the server closes the round earlier, only the close is
//! delivered and the session computes nothing.

use std::time::Duration;

use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::message::{RoundId, RoundOpen, ToDevice, decode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// Number of bytes per read.
const READ_SIZE: usize = 4096;

/// Longest delay, about 34 years, which does not overflow the clock.
const MAX_DELAY: Duration = Duration::from_secs(1 << 30);

/// Delayed round with its opening frame and all later frames.
struct HeldRound {
    id: RoundId,
    until: Instant,
    frames: Vec<u8>,
}

/// Relays frames of at most `limit` bytes between a server and a session until either end closes. The opening
/// of a round is delayed by `sleep`.
pub(super) async fn relay(
    server: impl AsyncRead + AsyncWrite,
    session: impl AsyncRead + AsyncWrite,
    limit: usize,
    sleep: impl Fn(&RoundOpen) -> Duration,
) -> std::io::Result<()> {
    let (from_server, mut to_server) = tokio::io::split(server);
    let (mut from_session, to_session) = tokio::io::split(session);
    tokio::select! {
        down = relay_down(from_server, to_session, limit, sleep) => down,
        up = tokio::io::copy(&mut from_session, &mut to_server) => up.map(|_| ()),
    }
}

/// Relays frames from the server to the session, and delays the openings of rounds.
async fn relay_down(
    mut server: impl AsyncRead + Unpin,
    mut session: impl AsyncWrite + Unpin,
    limit: usize,
    sleep: impl Fn(&RoundOpen) -> Duration,
) -> std::io::Result<()> {
    let mut decoder = Decoder::new(vec![0; limit]);
    // Encoded bytes of the frame that is being received.
    let mut frame = Vec::new();
    let mut held_round: Option<HeldRound> = None;
    let mut bytes = [0u8; READ_SIZE];
    loop {
        let until = held_round.as_ref().map(|held_round| held_round.until);
        let read = tokio::select! {
            read = server.read(&mut bytes) => read?,
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                if let Some(held_round) = held_round.take() {
                    session.write_all(&held_round.frames).await?;
                }
                continue;
            }
        };
        if read == 0 {
            return Ok(());
        }
        let mut input = bytes.get(..read).unwrap_or_default();
        while !input.is_empty() {
            let message_start = input;
            let message = match decoder.feed(&mut input) {
                FeedResult::Message(message) => decode::<ToDevice>(message).ok().map(|(message, _)| message),
                FeedResult::NeedMore | FeedResult::Dropped(_) | FeedResult::Sealed(_) => None,
            };
            frame.extend_from_slice(
                message_start.get(..message_start.len() - input.len()).unwrap_or_default(),
            );
            if frame.last() != Some(&0) {
                continue;
            }
            match message {
                Some(ToDevice::RoundOpen(open)) => {
                    // If the opening is repeated, the delivery time of the first opening is kept.
                    let same_round = held_round.take().filter(|held_round| held_round.id == open.id);
                    let until = same_round.map_or_else(
                        || Instant::now() + sleep(&open).min(MAX_DELAY),
                        |held_round| held_round.until,
                    );
                    held_round = Some(HeldRound { id: open.id, until, frames: Vec::new() });
                }
                Some(ToDevice::RoundClosed(_)) => held_round = None,
                _ => {}
            }
            match &mut held_round {
                Some(held_round) => held_round.frames.append(&mut frame),
                None => session.write_all(&frame).await?,
            }
            frame.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use fedspan_protocol::frame::encode;
    use fedspan_protocol::message::{Descriptors, HeadSolve, Task, Welcome};
    use tokio::io::DuplexStream;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn frame(message: &ToDevice) -> Vec<u8> {
        let mut out = vec![0; 256];
        let length = encode(message, 0, |_| {}, &mut out).unwrap();
        out.truncate(length);
        out
    }

    fn id(round: u32) -> RoundId {
        RoundId { round, stage: 0 }
    }

    fn open(round: u32) -> Vec<u8> {
        let head = HeadSolve::LeastSquares { ridge: 0.0 };
        let task = Task::FitHead { head };
        frame(&ToDevice::RoundOpen(RoundOpen { id: id(round), task, tensors: Descriptors::new() }))
    }

    /// Creates a link on which round n takes n hours. Returns the server's end and the session's end.
    fn delayed_link() -> (DuplexStream, DuplexStream) {
        let (server, server_side) = tokio::io::duplex(1 << 12);
        let (session_side, session) = tokio::io::duplex(1 << 12);
        tokio::spawn(relay(server_side, session_side, 256, |open| HOUR * open.id.round));
        (server, session)
    }

    async fn time_until_received(session: &mut DuplexStream, expected: &[u8]) -> Duration {
        let began = Instant::now();
        let mut received = vec![0; expected.len()];
        session.read_exact(&mut received).await.unwrap();
        assert_eq!(received, expected);
        began.elapsed()
    }

    fn assert_close(elapsed: Duration, expected: Duration) {
        assert!(elapsed >= expected && elapsed < expected + Duration::from_secs(1), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn opened_round_and_later_frames_are_delayed() {
        let (mut server, mut session) = delayed_link();
        let welcome = frame(&ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: 1 }));
        let bytes = [welcome.clone(), open(2), welcome.clone()].concat();
        // Chunks of three bytes, so that chunk boundaries differ from frame boundaries.
        for part in bytes.chunks(3) {
            server.write_all(part).await.unwrap();
        }
        assert_close(time_until_received(&mut session, &welcome).await, Duration::ZERO);
        assert_close(time_until_received(&mut session, &[open(2), welcome].concat()).await, 2 * HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn closed_round_is_not_delivered() {
        let (mut server, mut session) = delayed_link();
        let closed = frame(&ToDevice::RoundClosed(id(9)));
        server.write_all(&[open(9), closed.clone(), open(1)].concat()).await.unwrap();
        assert_close(time_until_received(&mut session, &closed).await, Duration::ZERO);
        assert_close(time_until_received(&mut session, &open(1)).await, HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn reopened_round_keeps_its_time() {
        let (mut server, mut session) = delayed_link();
        server.write_all(&open(2)).await.unwrap();
        tokio::time::sleep(HOUR).await;
        server.write_all(&open(2)).await.unwrap();
        assert_close(time_until_received(&mut session, &open(2)).await, HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn session_output_passes_while_round_waits() {
        let (mut server, mut session) = delayed_link();
        server.write_all(&open(2)).await.unwrap();
        session.write_all(b"alive").await.unwrap();
        assert_close(time_until_received(&mut server, b"alive").await, Duration::ZERO);
    }
}
