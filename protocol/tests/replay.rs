//! Tests that no frame is accepted twice, in any order of arrival, by comparing the window with the set of
//! all accepted counters.

use std::collections::HashSet;

use crate::common::exchange::{run_handshake, seal_frame};
use crate::common::{Event, Random, decode_stream};
use fedspan_protocol::message::ToServer;
use fedspan_protocol::secure::{OpenError, WINDOW, Window};

/// Returns the next counter of a hostile sequence: forwards, backwards, repeated, at the edges, or far away.
fn hostile_counter(random: &mut Random, largest: u64, sent: &[u64]) -> u64 {
    let distance = random.next() % 70;
    match random.below(16) {
        0..=4 => largest.saturating_add(1),
        5..=6 => largest.saturating_sub(distance),
        7..=8 => sent.get(random.below(sent.len().max(1))).copied().unwrap_or(0),
        9 => largest,
        10 => largest.saturating_sub(WINDOW - 1),
        11 => largest.saturating_sub(WINDOW),
        12 => largest.saturating_sub(WINDOW + 1),
        13 => largest.saturating_add(distance),
        14 if random.below(40) > 0 => largest.saturating_add(1 + distance / 32),
        14 => [random.next(), u64::MAX, u64::MAX - 1, u64::MAX - WINDOW, 0][random.below(5)],
        _ => largest.saturating_add(WINDOW - 2 + random.next() % 5),
    }
}

/// Tests the rule of SPEC.md: a counter is accepted if it was not accepted before, is less than 64 below the
/// largest, and is not 2^64 - 1.
#[test]
fn window_accepts_no_counter_twice_in_ten_million_steps() {
    const STEPS: usize = 10_000_000;
    const RUN: usize = 1_000;
    let mut random = Random(5);
    let mut accepted = 0u64;
    let mut refused = 0u64;
    let mut replays = 0u64;
    let mut ends = 0u64;
    for run in 0..STEPS / RUN {
        let mut window = Window::default();
        let (mut seen, mut sent) = (HashSet::new(), Vec::new());
        let mut largest = match run % 4 {
            0 => 0,
            1 => u64::MAX - random.next() % 3_000,
            2 => random.next() >> random.below(64),
            _ => random.next() % 200,
        };
        let mut has_accepted = false;
        for _ in 0..RUN {
            let counter = hostile_counter(&mut random, largest, &sent);
            sent.push(counter);
            let is_admissible = counter != u64::MAX
                && !seen.contains(&counter)
                && (!has_accepted || counter > largest || largest - counter < WINDOW);
            let before = window;
            assert_eq!(window.admits(counter), is_admissible, "{counter} after {largest}");
            assert_eq!(window, before);
            if random.below(10) == 0 {
                // The frame is forged, so its counter is not accepted.
                continue;
            }
            window.accept(counter);
            if is_admissible {
                replays += u64::from(!seen.insert(counter));
                accepted += 1;
                ends += u64::from(counter == u64::MAX - 1);
                largest = if has_accepted { largest.max(counter) } else { counter };
                has_accepted = true;
            } else {
                assert_eq!(window, before, "a rejected counter changed the window");
                refused += 1;
            }
        }
    }
    println!(
        "{STEPS} steps: {accepted} accepted, {refused} refused, {replays} replays accepted, {ends} at the end"
    );
    assert_eq!(replays, 0);
    assert!(accepted > 3_000_000 && refused > 3_000_000 && ends > 100);
}

/// Tests sealed frames in a stream that is shuffled, repeated and damaged: each frame opens at most once, and
/// every frame that arrives in time opens.
#[test]
fn sealed_frames_open_once_in_any_order() {
    let mut random = Random(6);
    let mut opened = 0u32;
    let mut replayed = 0u32;
    let mut forged = 0u32;
    for _ in 0..40 {
        let (mut device, mut server, ..) = run_handshake();
        let frames: Vec<Vec<u8>> = (0..1_500)
            .map(|_| {
                let wire = seal_frame(&mut device, &ToServer::Alive, &[]);
                let (mut events, _) = decode_stream(128, &wire, &[usize::MAX]);
                let Some(Event::Sealed(frame)) = events.pop() else { panic!() };
                frame
            })
            .collect();
        let mut seen = HashSet::new();
        let mut largest = 0usize;
        let mut has_opened = false;
        for _ in 0..3_000 {
            let index = match random.below(4) {
                0 => largest + 1 + random.below(2),
                1 => random.below(largest + 1),
                2 => (largest + 3).saturating_sub(random.below(12)),
                _ => (largest + 1).saturating_sub(random.below(80)),
            };
            let Some(frame) = frames.get(index) else { continue };
            let mut frame = frame.clone();
            let in_time = !seen.contains(&index)
                && (!has_opened || index > largest || largest - index < WINDOW as usize);
            if random.below(4) == 0 {
                // Flips a random bit after the header.
                let bit = 8 + random.below(8 * frame.len() - 8);
                frame[bit / 8] ^= 1 << (bit % 8);
                let before = format!("{server:?}");
                let error = server.open(&mut frame).unwrap_err();
                assert!(matches!(error, OpenError::Forged | OpenError::Replayed));
                assert_eq!(format!("{server:?}"), before, "a forged frame moved a counter");
                assert!(frame.iter().all(|byte| *byte == 0), "not zeroed");
                forged += 1;
                continue;
            }
            match server.open(&mut frame) {
                Ok(message) => {
                    assert!(in_time);
                    assert_eq!(message, [5], "Alive");
                    assert!(seen.insert(index), "accepted twice");
                    largest = largest.max(index);
                    has_opened = true;
                    opened += 1;
                }
                Err(error) => {
                    assert_eq!((error, in_time), (OpenError::Replayed, false));
                    assert!(frame.iter().all(|byte| *byte == 0), "not zeroed");
                    replayed += 1;
                }
            }
        }
    }
    println!("sealed: {opened} opened, {replayed} replayed, {forged} forged and dropped");
    assert!(opened > 20_000 && replayed > 20_000 && forged > 10_000);
}
