//! Tests of the last counters of a channel, which take too long to reach through the public interface.

use super::*;
use crate::message::{ToDevice, ToServer, Welcome};

const ROOM: usize = 64;

/// Returns the two ends of a channel: the device and the server.
fn channel_pair() -> (Channel, Channel) {
    let (key, transcript, nonce) = (Key::new(0, [7; KEY]), [1; 32], [2; NONCE]);
    (Channel::device(&key, &transcript, &nonce), Channel::server(&key, &transcript, &nonce))
}

/// Tests that the last used counter is 2^64 - 2, and that no frame is sealed after it, so that no nonce
/// repeats.
#[test]
fn counters_do_not_wrap() {
    let (mut device, _) = channel_pair();
    let mut out = [0; ROOM];
    device.next = u64::MAX - 1;
    assert!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out).is_ok());
    for _ in 0..3 {
        assert_eq!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out), Err(Error::Exhausted));
    }
    assert_eq!(device.next, u64::MAX);
}

/// Tests that only the answer has counter 0.
#[test]
fn answer_is_sealed_once_and_first() {
    let (_, mut server) = channel_pair();
    let mut out = [0; ROOM];
    let welcome = ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: 2 });
    assert!(server.seal_answer(&[2; NONCE], &welcome, &mut out).is_ok());
    assert_eq!(server.next, 1);
    assert_eq!(server.seal_answer(&[2; NONCE], &welcome, &mut out), Err(Error::Exhausted));
    // A failed encryption uses up its counter, so no counter is used for two encryptions.
    let (mut device, mut server) = channel_pair();
    assert!(server.seal_answer(&[2; NONCE], &welcome, &mut out[..20]).is_err());
    assert_eq!(server.seal_answer(&[2; NONCE], &welcome, &mut out), Err(Error::Exhausted));
    assert!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out[..20]).is_err());
    assert!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out).is_ok());
    assert_eq!(device.next, 2);
}
