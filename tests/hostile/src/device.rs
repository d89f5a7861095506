//! Fuzz target for the device's session: runs a script of events, which are link changes, passing time,
//! samples, resets, and messages that are honest, damaged or random.

mod bench;
mod messages;
mod server;

use fedspan_client::memory::{FixedWorkspace, StreamingWorkspace, Workspace};

use crate::Work;
use crate::script::Script;
use bench::Bench;

/// Feature count `d` of the model. The representation (`d x k`) needs chunks at the smallest frame limit but
/// not at 4096 bytes.
const D: usize = 20;
/// Representation width `k` of the model.
const K: usize = 3;

/// Runs a script: a byte of settings, then events. Some settings give the device a key, and the honest server
/// then seals its messages.
pub fn device_session(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = script.byte();
    match settings % 3 {
        0 => run_events(script, Bench::new(settings, Workspace::<D, K>::new)),
        1 => run_events(script, Bench::new(settings, StreamingWorkspace::<D, K>::new)),
        _ => run_events(script, Bench::new(settings, FixedWorkspace::<D, K>::new)),
    }
}

/// Delivers the events of a script to a device.
fn run_events<M: fedspan_client::Memory>(mut script: Script<'_>, mut bench: Bench<M>) -> Work {
    let honest = messages::all_messages();
    let kinds = if bench.server.is_some() { 20 } else { 12 };
    while let Some(kind) = script.next() {
        match kind % kinds {
            0 => bench.link_up(),
            1 => bench.link_down(),
            2 => {
                let milliseconds = script.word();
                bench.advance_clock(u32::from(milliseconds).into());
            }
            3 => bench.advance_to_wake(),
            4 => {
                let length = script.index();
                bench.deliver_plain(script.take(length));
            }
            5..=7 => {
                let index = usize::from(script.word());
                bench.deliver_honest(&honest[index % honest.len()]);
            }
            8 => {
                let mut message = honest[usize::from(script.word()) % honest.len()].clone();
                script.damage(&mut message);
                bench.deliver_honest(&message);
            }
            9 => bench.deliver_sample(script.byte()),
            // All messages of one round, inline or in chunks.
            10 => {
                for message in messages::round_messages(script.index()) {
                    bench.deliver_honest(message);
                }
            }
            11 => bench.reset_device(),
            kind => bench.encrypted_event(kind, &mut script),
        }
    }
    bench.into_work()
}

/// Returns scripts of rounds as an honest server opens them, for all settings, followed by replays and
/// attacks.
pub fn seeds() -> Vec<Vec<u8>> {
    // Events: link up, then the first honest message, which is a welcome.
    const WELCOME: [u8; 4] = [0, 5, 0, 0];
    let mut seeds = Vec::new();
    for settings in 0..12u8 {
        let samples: Vec<u8> = std::iter::repeat_n([9, 0], 5).flatten().collect();
        for round in 0..messages::ROUNDS as u8 {
            let open = [10, round];
            let mut seed = vec![settings];
            seed.extend(WELCOME);
            seed.extend(open);
            seed.extend(&samples);
            // The link is interrupted and the same round is opened again; then the device is reset and the
            // round is opened once more.
            seed.extend([3, 1]);
            seed.extend(WELCOME);
            seed.extend(open);
            seed.extend([11]);
            seed.extend(WELCOME);
            seed.extend(open);
            seed.extend([10, round.wrapping_add(1), 3, 3]);
            seeds.push(seed);
        }
    }
    // With a key: the answer twice, a round, replays, frames of other connections, plaintext messages; then
    // the same events again.
    for settings in [48, 49, 50, 55, 193, 198, 240, 243].into_iter() {
        for round in 0..messages::ROUNDS as u8 {
            let handshake = [0, 12, 0, 13, 0, 14, 5, 0, 17, round, 2, 3];
            let mut seed = vec![settings];
            seed.extend(handshake);
            seed.extend([
                10, round, 9, 0, 9, 0, 9, 0, 9, 0, 9, 0, 13, 3, 15, 7, 7, 0, 18, 4, 0, 5, 7, 0, 13, 1, 3,
            ]);
            seed.extend([1]);
            seed.extend(handshake);
            seed.extend([10, round, 13, 9, 16, 6, 0, 1, 2, 4, 19, 3, 17, 11]);
            seed.extend(handshake);
            seed.extend([10, round, 14, 6, 0, 12, 1, 10, round, 3, 3]);
            seeds.push(seed);
        }
    }
    seeds
}
