//! Fuzz target for the device's session: runs a script of events, which are link changes, passing time, a clock that jumps,
//! samples, resets, storage that fails, and messages that are honest, damaged or random. At the end the server must
//! reach the device again.

mod bench;
mod messages;
mod models;
mod parts;
mod server;

use fedspan_client::{Linear, Mechanism, Memory};

use crate::Work;
use crate::script::Script;
use bench::{Bench, Settings};
use models::{
    AnyMemory, Buffers, Model, PRIOR_LINEAR, PRIOR_NETWORK, with_error_feedback, with_prior, with_scale,
};
use parts::Entropy;

/// Runs a script: three bytes of settings, then events. Some settings give the device a key, and the honest server
/// then seals its messages.
pub fn device_session(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = Settings { first: script.byte(), second: script.byte(), third: script.byte() };
    let has_metric = settings.has_metric_buffer();
    if settings.model() == PRIOR_LINEAR {
        let new = move || models::prior_model(has_metric);
        return match settings.is_scaled() {
            false => run_events(script, Bench::new(settings, Box::new(move || Some(new())))),
            true => run_events(script, Bench::new(settings, Box::new(move || Some(with_scale(new()))))),
        };
    }
    if settings.model() > 0 {
        let mut buffers = Buffers::new(settings.model());
        let mut networks = buffers.networks();
        if settings.model() == PRIOR_NETWORK {
            let mut new = move || networks.next().map(|network| with_prior(network, has_metric));
            return match settings.is_scaled() {
                false => run_events(script, Bench::new(settings, Box::new(new))),
                true => run_events(script, Bench::new(settings, Box::new(move || new().map(with_scale)))),
            };
        }
        return match settings.is_scaled() {
            false => run_events(script, Bench::new(settings, Box::new(move || networks.next()))),
            true => {
                let scaled = move || networks.next().map(with_scale);
                run_events(script, Bench::new(settings, Box::new(scaled)))
            }
        };
    }
    let memory = move || AnyMemory::new(settings.memory(), settings.first);
    if settings.is_private() {
        let entropy = move || Entropy::new(settings.has_stuck_entropy());
        return run_linear(script, settings, move || models::private_model(memory(), entropy()));
    }
    run_linear(script, settings, move || Linear::new(memory()))
}

/// Runs a script on a linear model, in the tasks that the settings wrap around it.
fn run_linear<M: Memory, P: Mechanism>(
    script: Script<'_>,
    settings: Settings,
    new: impl Fn() -> Linear<M, P> + 'static,
) -> Work {
    match (settings.has_error_feedback(), settings.is_scaled()) {
        (false, false) => run_events(script, Bench::new(settings, Box::new(move || Some(new())))),
        (true, false) => {
            run_events(script, Bench::new(settings, Box::new(move || Some(with_error_feedback(new())))))
        }
        (false, true) => run_events(script, Bench::new(settings, Box::new(move || Some(with_scale(new()))))),
        (true, true) => {
            let wrapped = move || Some(with_error_feedback(with_scale(new())));
            run_events(script, Bench::new(settings, Box::new(wrapped)))
        }
    }
}

/// Delivers the events of a script to a device.
fn run_events<T: Model>(mut script: Script<'_>, mut bench: Bench<'_, T>) -> Work {
    let honest = &bench.messages.all;
    let kinds = if bench.server.is_some() { 25 } else { 14 };
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
                for message in bench.messages.round(script.index()) {
                    bench.deliver_honest(message);
                }
            }
            11 => bench.reset_device(),
            // A time on any clock, which may be before the last one.
            12 => {
                let milliseconds = u32::from(script.word()) << 16 | u32::from(script.word());
                bench.set_clock(milliseconds.into());
            }
            // The numbers of writes and reads after and during which the storage fails.
            13 => bench.fail_storage(script.byte(), script.byte()),
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
            // Models, contents of samples, clocks and entropy in turn.
            let second = settings.wrapping_mul(messages::ROUNDS as u8).wrapping_add(round);
            let mut seed = vec![settings, second, 0];
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
            // The clock goes back, and the storage fails in the next round.
            seed.extend([12, 0, 0, 9, 0, 13, 1, 0, 10, round.wrapping_add(1), 3, 3]);
            seeds.push(seed);
        }
    }
    // With a key: the answer twice, a round, replays, frames of other connections, plaintext messages; then
    // the same events again.
    for (index, settings) in [48, 49, 50, 55, 193, 198, 240, 243].into_iter().enumerate() {
        for round in 0..messages::ROUNDS as u8 {
            let handshake = [0, 14, 0, 15, 0, 16, 5, 0, 19, round, 2, 3];
            let mut seed = vec![settings, (32 * index) as u8 + round % 10, 0];
            seed.extend(handshake);
            seed.extend([
                10, round, 9, 0, 9, 0, 9, 0, 9, 0, 9, 0, 15, 3, 17, 7, 7, 0, 20, 4, 0, 5, 7, 0, 15, 1, 3,
            ]);
            seed.extend([1]);
            seed.extend(handshake);
            seed.extend([10, round, 15, 9, 18, 6, 0, 1, 2, 4, 21, 3, 19, 11]);
            seed.extend(handshake);
            seed.extend([10, round, 16, 6, 0, 14, 1, 10, round, 3, 3]);
            seeds.push(seed);
        }
    }
    // New keys: in the middle of a round, repeated, of an earlier epoch, with an announced round before and
    // after its beacon, while the storage fails, damaged, and before the Welcome.
    for settings in [48u8, 60, 192, 240] {
        for second in [160u8, 161, 192, 224, 226, 254] {
            for round in [0u8, 5, 17] {
                let handshake = [0, 14, 0];
                let mut seed = vec![settings, second, 0];
                seed.extend(handshake);
                seed.extend([10, round, 24, 1, 24, 1, 24, 0, 3, 14, 0]);
                seed.extend([22, round + 1, 24, 2, 23, 14, 0, 22, round + 3, 23, 24, 3, 23]);
                seed.extend([13, 1, 0, 24, 4, 13, 0, 0, 24, 5, 19, 0, 1, 9, 0, 1, 1]);
                seed.extend(handshake);
                seed.extend([13, 0, 2, 11, 0, 24, 6, 14, 0, 3, 1]);
                seed.extend(handshake);
                seed.extend([11]);
                seed.extend(handshake);
                seed.extend([10, round + 2, 24, 9, 12, 0, 0, 0, 0, 1]);
                seeds.push(seed);
            }
        }
    }
    seeds.extend(variant_seeds());
    seeds
}

/// Returns scripts for every third byte of settings: wrapped tasks, memories with room for groups or products, noise, short tags, and the
/// other algorithm of seals. Rounds are acknowledged and rejected, so that what is kept between rounds is used; links are lost in the
/// silence of a device with noise.
fn variant_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for third in 0..128u8 {
        // Without and with a key; replayed and streamed samples.
        for (first, second) in [(6, 5 * (third % 16)), (48 + third % 2, 0), (52, third % 5)] {
            let mut seed = vec![first, second, third];
            let round = |seed: &mut Vec<u8>, round: u8, answer: u8| {
                seed.extend([10, round, 9, 0, 9, 0, 9, 0, 3, 3]);
                seed.extend([5, answer, 0, 2, 50, 0]);
            };
            // Without a key, the answer to a hello is a welcome; the acknowledgements are the messages from the eighth on.
            let welcome: &[u8] = if first < 48 { &[0, 5, 0, 0] } else { &[0, 14, 0] };
            seed.extend(welcome);
            round(&mut seed, 4 * (third % 12), 7);
            round(&mut seed, 4 * (third % 12) + 5, 15);
            seed.extend([10, 16 + third % 8, 1]);
            seed.extend(welcome);
            seed.extend([10, 16 + third % 8, 3, 6, 7, 0, 11]);
            seed.extend(welcome);
            round(&mut seed, 17 + third % 16, 10);
            seed.extend([12, 0, 0, 0, 0, 13, 2, 1, 10, 18, 3, 0, 3]);
            seeds.push(seed);
        }
    }
    seeds
}
