//! Beacons: one frame with a checksum that opens a round on many devices. Each device also gets an announcement that is sealed for
//! it, with a tag of the beacon.

use fedspan_engine::{Request, RoundBroadcast};
use fedspan_protocol::limits::{CHECK, FRAME_LIMIT_MAX, HEADER};
use fedspan_protocol::message::RoundId;

/// Returns the beacon of a round, as on a stream; `None` if it is longer than the longest frame.
#[must_use]
pub fn beacon(round: &RoundBroadcast) -> Option<&[u8]> {
    round.opening().map(|opening| opening.frame.as_slice())
}

/// Returns the message and body of a round's beacon, of which the tag is computed.
pub(super) fn beacon_message(round: &RoundBroadcast) -> Option<&[u8]> {
    round.opening().map(|opening| opening.message.as_slice())
}

/// Returns the length of the decoded frame with this message and body, in bytes.
pub(super) const fn frame_length(message: usize) -> usize {
    HEADER + message + CHECK
}

/// Returns a warning to the operator if rounds of one of these requests cannot open by a beacon, because it does not fit a packet of
/// `packet` bytes.
#[must_use]
pub fn beacon_warning(requests: &[Request], packet: usize) -> Option<String> {
    let id = RoundId { round: u32::MAX, stage: 0 };
    let longest = requests.iter().map(|request| {
        let round = RoundBroadcast::new(id, request.clone()).ok();
        round.and_then(|round| beacon_message(&round).map(<[u8]>::len)).map_or(usize::MAX, frame_length)
    });
    let needed = longest.max().filter(|&length| length > packet)?;
    let needed =
        if needed > FRAME_LIMIT_MAX { "more than a frame".to_owned() } else { format!("{needed} bytes") };
    Some(format!(
        "the opening of a round takes {needed}, and a beacon has to fit a packet of {packet} bytes (packet in section listen): such \
         rounds open on each device alone"
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use fedspan_engine::Tensor;
    use fedspan_protocol::message::{HeadSolve, Task, Upload};
    use fedspan_protocol::tensor::{Encoding, Role};

    use super::*;

    fn request(rows: u16) -> Request {
        let head = HeadSolve::LeastSquares { ridge: 0.1 };
        let encoding = Encoding::F32;
        let values = vec![0.5; usize::from(rows) * 4];
        Request {
            task: Task::FedRep { step_size: 0.1, head, upload: Upload::Gradient, encoding },
            tensors: vec![Tensor { role: Role::Representation, rows, cols: 4, values }],
            encoding,
            expects: Vec::new(),
        }
    }

    /// Tests that the warning appears exactly if a round of the campaign has no beacon within the packet.
    #[test]
    fn warning_appears_if_a_beacon_does_not_fit_its_packet() {
        let length = |rows| {
            let round = RoundBroadcast::new(RoundId { round: 7, stage: 0 }, request(rows)).unwrap();
            frame_length(beacon_message(&round).unwrap().len())
        };
        // A later round has a longer number.
        let (short, long) = (length(8) + 4, length(16) + 4);
        assert_eq!(beacon_warning(&[request(8), request(16)], long), None);
        assert_eq!(beacon_warning(&[request(8)], short), None);
        let warning = beacon_warning(&[request(16), request(8)], short).unwrap();
        assert!(warning.contains(&format!("{long} bytes")), "{warning}");
        let warning = beacon_warning(&[request(u16::MAX)], long).unwrap();
        assert!(warning.contains("more than a frame"), "{warning}");
        assert_eq!(beacon_warning(&[], long), None);
    }
}
