//! The line of a device that takes its time: a round that opens is kept from the session until the device would have
//! computed it. If the server closes the round before, the session hears of that alone, and computes nothing.

use std::time::Duration;

use fedspan_protocol::frame::{Decoder, FeedResult};
use fedspan_protocol::message::{RoundId, RoundOpen, ToDevice, decode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// Bytes read at once.
const READ: usize = 4096;

/// As good as for ever, and still a time.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// A round that waits for its time, with everything that came after its opening.
struct Held {
    id: RoundId,
    until: Instant,
    frames: Vec<u8>,
}

/// Carries frames of at most `limit` bytes between a server and a session until either end closes; what opens a round
/// comes `sleep` later.
pub(super) async fn carry(
    server: impl AsyncRead + AsyncWrite,
    session: impl AsyncRead + AsyncWrite,
    limit: usize,
    sleep: impl Fn(&RoundOpen) -> Duration,
) -> std::io::Result<()> {
    let (from_server, mut to_server) = tokio::io::split(server);
    let (mut from_session, to_session) = tokio::io::split(session);
    tokio::select! {
        down = delay(from_server, to_session, limit, sleep) => down,
        up = tokio::io::copy(&mut from_session, &mut to_server) => up.map(|_| ()),
    }
}

async fn delay(
    mut server: impl AsyncRead + Unpin,
    mut session: impl AsyncWrite + Unpin,
    limit: usize,
    sleep: impl Fn(&RoundOpen) -> Duration,
) -> std::io::Result<()> {
    let mut decoder = Decoder::new(vec![0; limit]);
    // The frame that is coming in, as it is on the wire.
    let mut frame = Vec::new();
    let mut held: Option<Held> = None;
    let mut bytes = [0u8; READ];
    loop {
        let until = held.as_ref().map(|held| held.until);
        let read = tokio::select! {
            read = server.read(&mut bytes) => read?,
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                if let Some(held) = held.take() {
                    session.write_all(&held.frames).await?;
                }
                continue;
            }
        };
        if read == 0 {
            return Ok(());
        }
        let mut input = bytes.get(..read).unwrap_or_default();
        while !input.is_empty() {
            let before = input;
            let message = match decoder.feed(&mut input) {
                FeedResult::Message(message) => decode::<ToDevice>(message).ok().map(|(message, _)| message),
                FeedResult::NeedMore | FeedResult::Dropped(_) | FeedResult::Sealed(_) => None,
            };
            frame.extend_from_slice(before.get(..before.len() - input.len()).unwrap_or_default());
            if frame.last() != Some(&0) {
                continue;
            }
            match message {
                Some(ToDevice::RoundOpen(open)) => {
                    // The same again keeps its time.
                    let same = held.take().filter(|held| held.id == open.id);
                    let until =
                        same.map_or_else(|| Instant::now() + sleep(&open).min(FOR_EVER), |held| held.until);
                    held = Some(Held { id: open.id, until, frames: Vec::new() });
                }
                Some(ToDevice::RoundClosed(_)) => held = None,
                _ => {}
            }
            match &mut held {
                Some(held) => held.frames.append(&mut frame),
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

    /// The server's end and the session's end of a line on which a round takes as many hours as its number.
    fn line() -> (DuplexStream, DuplexStream) {
        let (server, ours) = tokio::io::duplex(1 << 12);
        let (theirs, session) = tokio::io::duplex(1 << 12);
        tokio::spawn(carry(ours, theirs, 256, |open| HOUR * open.id.round));
        (server, session)
    }

    async fn hears(session: &mut DuplexStream, expected: &[u8]) -> Duration {
        let began = Instant::now();
        let mut heard = vec![0; expected.len()];
        session.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, expected);
        began.elapsed()
    }

    fn about(elapsed: Duration, expected: Duration) {
        assert!(elapsed >= expected && elapsed < expected + Duration::from_secs(1), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_takes_its_time_and_what_follows_it_stays_behind_it() {
        let (mut server, mut session) = line();
        let welcome = frame(&ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: 1 }));
        let bytes = [welcome.clone(), open(2), welcome.clone()].concat();
        // However the stream is cut.
        for part in bytes.chunks(3) {
            server.write_all(part).await.unwrap();
        }
        about(hears(&mut session, &welcome).await, Duration::ZERO);
        about(hears(&mut session, &[open(2), welcome].concat()).await, 2 * HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_is_closed_is_not_heard() {
        let (mut server, mut session) = line();
        let closed = frame(&ToDevice::RoundClosed(id(9)));
        server.write_all(&[open(9), closed.clone(), open(1)].concat()).await.unwrap();
        about(hears(&mut session, &closed).await, Duration::ZERO);
        about(hears(&mut session, &open(1)).await, HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_is_opened_again_keeps_its_time() {
        let (mut server, mut session) = line();
        server.write_all(&open(2)).await.unwrap();
        tokio::time::sleep(HOUR).await;
        server.write_all(&open(2)).await.unwrap();
        about(hears(&mut session, &open(2)).await, HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_session_says_is_heard_while_a_round_waits() {
        let (mut server, mut session) = line();
        server.write_all(&open(2)).await.unwrap();
        session.write_all(b"alive").await.unwrap();
        about(hears(&mut server, b"alive").await, Duration::ZERO);
    }
}
