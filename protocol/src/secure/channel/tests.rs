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

/// Seals Alive and returns the frame without COBS.
fn alive(sender: &mut Channel) -> std::vec::Vec<u8> {
    let mut out = [0; ROOM];
    let sent = sender.seal(&ToServer::Alive, 0, |_| {}, &mut out).unwrap();
    cobs::decode_vec(&out[..sent - 1]).unwrap()
}

/// Tests the sizes of both forms, and that a server answers in the form of the device.
#[test]
fn short_frames_save_fourteen_bytes() {
    let (mut device, server) = channel_pair();
    let mut server = server.with_seals(Seals::Either);
    let full = alive(&mut device);
    assert_eq!(full.len(), HEADER + COUNTER + 1 + TAG);
    assert!(server.open(&mut full.clone()).is_ok());
    assert_eq!(alive(&mut server).len(), full.len());
    let mut device = device.with_seals(Seals::Short);
    let mut short = alive(&mut device);
    assert_eq!((short[0], short.len()), (HEADER_SHORT, full.len() - 14));
    assert!(server.open(&mut short.clone()).is_ok());
    assert_eq!(server.open(&mut short), Err(OpenError::Replayed));
    let mut answer = alive(&mut server);
    assert_eq!(answer.len(), full.len() - 14);
    assert!(device.open(&mut answer).is_ok());
}

/// Tests that a forged short frame does not make a server send short tags, and that one that only accepts full tags drops them.
#[test]
fn short_frames_are_accepted_only_where_they_are_allowed() {
    let (device, mut strict) = channel_pair();
    let mut device = device.with_seals(Seals::Short);
    let frame = alive(&mut device);
    assert_eq!(strict.open(&mut frame.clone()), Err(OpenError::Forged));
    let mut server = channel_pair().1.with_seals(Seals::Either);
    for bit in 0..8 * frame.len() {
        let mut forged = frame.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(server.open(&mut forged).is_err(), "bit {bit}");
    }
    for length in 0..frame.len() {
        assert!(server.open(&mut frame[..length].to_vec()).is_err(), "{length} bytes");
    }
    assert_eq!(server.seals, Seals::Either);
    assert!(server.open(&mut frame.clone()).is_ok());
}

/// Tests the expansion of counters: up to 2^15 - 1 frames in a row may be lost; frames behind are replays; every wrap of the 16 bits is
/// followed; and neither a replay of the frame 2^16 before nor one far ahead opens.
#[test]
fn short_counters_expand_to_the_sender_s() {
    let (device, server) = channel_pair();
    let (mut device, mut server) = (device.with_seals(Seals::Short), server.with_seals(Seals::Either));
    let first = alive(&mut device);
    assert!(server.open(&mut first.clone()).is_ok());
    for lost in [0, 1, 63, 64, 1000, 0x7ffe, 0x7ffe, 0x7ffe, 0x7ffe, 3] {
        device.next += lost;
        let mut late = alive(&mut device);
        let mut frame = alive(&mut device);
        assert!(server.open(&mut frame.clone()).is_ok(), "{lost} lost at {}", device.next);
        assert_eq!(server.open(&mut frame), Err(OpenError::Replayed));
        assert!(server.open(&mut late).is_ok());
    }
    assert!(device.next > 0x1_0000);
    assert!(server.open(&mut first.clone()).is_err());
    // More frames are lost than 15 bits can count: the frame is dropped, and so are the following until the handshake is repeated.
    device.next += 0x8000;
    assert!(server.open(&mut alive(&mut device)).is_err());
}
