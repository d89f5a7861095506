//! The ends of a channel's life, which take too long to reach from outside.

use super::*;
use crate::message::{ToDevice, ToServer, Welcome};

const ROOM: usize = 64;

fn ends() -> (Channel, Channel) {
    let (key, transcript, nonce) = (Key::new(0, [7; KEY]), [1; 32], [2; NONCE]);
    (Channel::device(&key, &transcript, &nonce), Channel::server(&key, &transcript, &nonce))
}

/// The last counter that is used is 2^64 - 2, and nothing is sealed after it: no nonce comes again.
#[test]
fn counters_end_and_do_not_wrap() {
    let (mut device, _) = ends();
    let mut out = [0; ROOM];
    device.next = u64::MAX - 1;
    assert!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out).is_ok());
    for _ in 0..3 {
        assert_eq!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out), Err(Error::Exhausted));
    }
    assert_eq!(device.next, u64::MAX);
}

/// The answer is counter 0 and nothing else is.
#[test]
fn there_is_one_answer_and_it_is_the_first_frame() {
    let (_, mut server) = ends();
    let mut out = [0; ROOM];
    let welcome = ToDevice::Welcome(Welcome { campaign: 1, idle_milliseconds: 2 });
    assert!(server.seal_answer(&[2; NONCE], &welcome, &mut out).is_ok());
    assert_eq!(server.next, 1);
    assert_eq!(server.seal_answer(&[2; NONCE], &welcome, &mut out), Err(Error::Exhausted));
    // Nothing can be encrypted under a counter twice: what failed has used its own up.
    let (mut device, mut server) = ends();
    assert!(server.seal_answer(&[2; NONCE], &welcome, &mut out[..20]).is_err());
    assert_eq!(server.seal_answer(&[2; NONCE], &welcome, &mut out), Err(Error::Exhausted));
    assert!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out[..20]).is_err());
    assert!(device.seal(&ToServer::Alive, 0, |_| {}, &mut out).is_ok());
    assert_eq!(device.next, 2);
}
