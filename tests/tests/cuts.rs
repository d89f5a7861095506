//! Tests of power cuts of a device in a private, encrypted campaign with the real server: at every write and
//! every erasure of its flash, and again at every write and erasure during the following start. No nonce and
//! no handshake may be used twice, no round may be computed twice, the ledger must never be below what has
//! been sent, and the campaign must continue.
//!
//! `cargo test` runs a sample of the pairs of cuts. To run all of them, which takes some minutes:
//! `cargo test --release -p fedspan-tests --test all -- cuts:: --ignored --nocapture`.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;

use crate::common::{
    Board, DEVICE, ServerEnd, active_keys, decode_cobs, encrypted_acceptor, key_protection, round_broadcast,
};
use crate::torn_flash::{Tear, Torn, WORD, torn_erasures, torn_writes};
use fedspan_aggregator::connection::PeerMessage;
use fedspan_client::Millis;
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::privacy::{
    Clip, Clipped, EntropySource, Gaussian, MinEntropy, NoiseMultiplier, PrivacySettings,
};
use fedspan_client::session::Config;
use fedspan_client::store::{FlashStore, record_len};
use fedspan_client::{Event, Linear};
use fedspan_hostile::Random;
use fedspan_protocol::frame::{HEADER_ANSWER, HEADER_CRC32C};
use fedspan_protocol::message::{Ack, AckOutcome, Privacy, ToDevice, ToServer, decode};

/// Number of flash pages.
const PAGES: usize = 2;
/// Size of the device's saved state (its record) in flash, in bytes.
const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);
/// Time of a slot in which the device computes silently, in milliseconds.
const SLOT: u64 = 5_000;
/// Number of rounds of a life.
const ROUNDS: u32 = 3;

/// Entropy source that repeats its numbers after every start, which a real one must never do.
struct Repeated(Random);

impl EntropySource for Repeated {
    type Error = Infallible;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
        samples.iter_mut().for_each(|sample| *sample = self.0.below(256) as u8);
        Ok(())
    }
}

/// Task of the device.
type Task = Linear<StreamingWorkspace<20, 2>, Clipped<Gaussian<Repeated>>>;
/// Device with the flash store.
type Device = Board<FlashStore<Torn, BYTES>, Task>;

fn privacy_settings() -> PrivacySettings {
    PrivacySettings::new(NoiseMultiplier::from_square(1 << 16).unwrap(), 1 << 50, 100, Millis::new(SLOT))
        .unwrap()
}

/// Starts a device with the contents of a flash.
fn start_device(flash: &Torn) -> Device {
    let noise = Gaussian::new(privacy_settings(), Repeated(Random(5)), MinEntropy::new(6).unwrap());
    let clipped = Clipped::new(noise, Clip::new(1.0).unwrap());
    let task = Linear::private(StreamingWorkspace::new(), clipped).unwrap();
    let end = u32::try_from(flash.image().len()).unwrap();
    let store = FlashStore::new(flash.clone(), 0..end).unwrap();
    // The session, too, has the same random numbers after every start.
    Board::with_task(Config::new(DEVICE), key_protection(), task, store, 7)
}

/// Everything that an observer of the link and of the server has seen.
#[derive(Clone, Debug, Default)]
struct Observer {
    /// Hellos of earlier connections.
    hellos: HashSet<Vec<u8>>,
    /// Hello of this connection.
    hello: Vec<u8>,
    /// Server's answer to the hello. Hello and answer together determine the session key.
    answer: Vec<u8>,
    /// Hello, answer and counter of each encrypted frame. A repeated entry means a reused nonce.
    nonces: HashSet<(Vec<u8>, Vec<u8>, u64)>,
    /// Spent budget that the last hello reported.
    stated: u64,
    /// Bits of each round's update.
    updates: BTreeMap<u32, Vec<u32>>,
    counted: u32,
}

impl Observer {
    /// Forgets hello and answer of the last connection, because another one begins.
    fn begin_connection(&mut self) {
        let hello = std::mem::take(&mut self.hello);
        self.hellos.insert(hello);
        self.answer.clear();
    }

    /// Checks a frame that the device has sent.
    fn check_frame(&mut self, frame: &[u8]) -> Result<(), String> {
        let decoded = decode_cobs(frame);
        if decoded[0] == HEADER_CRC32C {
            if self.hellos.contains(frame) {
                return Err("a hello was sent on two connections".into());
            }
            self.hello = frame.to_vec();
            let Ok((ToServer::Hello(hello), _)) = decode::<ToServer>(&decoded[1..decoded.len() - 4]) else {
                return Err("a plain frame is not a hello".into());
            };
            let Privacy::Gaussian { spent, release, .. } = hello.capabilities.privacy else {
                return Err("the hello states no privacy".into());
            };
            let sent = self.updates.len() as u64 * u64::from(release);
            if spent < self.stated.max(sent) || spent == u64::MAX {
                return Err(format!(
                    "the hello states {spent} spent, {sent} were sent, {} were stated before",
                    self.stated
                ));
            }
            self.stated = spent;
            return Ok(());
        }
        let counter = u64::from_le_bytes(decoded[1..9].try_into().unwrap());
        if self.nonces.insert((self.hello.clone(), self.answer.clone(), counter)) {
            Ok(())
        } else {
            Err("a nonce was used twice".into())
        }
    }

    fn check_event(&mut self, event: &PeerMessage) -> Result<(), String> {
        let PeerMessage::Update(update) = event else { return Ok(()) };
        let bits: Vec<u32> =
            update.tensors.iter().flat_map(|tensor| tensor.values.iter().map(|v| v.to_bits())).collect();
        let known = self.updates.entry(update.id.round).or_insert_with(|| bits.clone());
        if *known == bits { Ok(()) } else { Err(format!("round {} was computed twice", update.id.round)) }
    }
}

/// Exchanges frames until both ends are silent or the power has failed. The server acknowledges updates only
/// if `acks` is set.
fn exchange_until_silent(
    device: &mut Device,
    server: &mut ServerEnd,
    observer: &mut Observer,
    flash: &Torn,
    mut up: Vec<Vec<u8>>,
    acks: bool,
) -> Result<(), String> {
    loop {
        // Frames of the call in which the power failed are never sent.
        if flash.is_dead() {
            return Ok(());
        }
        up.iter().try_for_each(|frame| observer.check_frame(frame))?;
        let mut down = server.receive(&up);
        for event in std::mem::take(&mut server.events) {
            observer.check_event(&event)?;
            if let (PeerMessage::Update(update), true) = (event, acks) {
                server.connection.send(ToDevice::Ack(Ack { id: update.id, outcome: AckOutcome::Counted }));
                observer.counted += 1;
            }
        }
        down.extend(server.take_frames());
        if let Some(answer) = down.iter().find(|frame| decode_cobs(frame)[0] == HEADER_ANSWER) {
            observer.answer.clone_from(answer);
        }
        up = device.receive_all(&down);
        if device.session.silent_until().as_u64() > device.now && !flash.is_dead() {
            up.extend(device.wait(SLOT));
        }
        if up.is_empty() {
            return Ok(());
        }
    }
}

/// Runs one start of the device and some rounds. The second round is acknowledged only on a new connection.
/// Returns false if the power failed.
fn run_device_life(flash: &Torn, observer: &mut Observer, rounds: u32) -> Result<bool, String> {
    let acceptor = encrypted_acceptor(&active_keys(), observer.hellos.len() as u64);
    let mut device = start_device(flash);
    let counted_before = observer.counted;
    let last_sent = observer.updates.keys().next_back().copied().unwrap_or(0);
    if device.session.last_round() < last_sent && !flash.is_dead() {
        return Err(format!(
            "round {last_sent} was sent, but the device knows only round {}",
            device.session.last_round()
        ));
    }
    let first = device.session.last_round().max(last_sent) + 1;
    let mut server = ServerEnd::new(&acceptor);
    for round in first..first + rounds {
        let is_retried = round == first + 1;
        for link in 0..=u32::from(is_retried) {
            if round == first || link > 0 {
                observer.begin_connection();
                device.handle_event(Event::LinkDown);
                server = ServerEnd::new(&acceptor);
                let hello = device.link_up();
                exchange_until_silent(&mut device, &mut server, observer, flash, hello, true)?;
            }
            server.connection.open(&round_broadcast(round));
            exchange_until_silent(
                &mut device,
                &mut server,
                observer,
                flash,
                Vec::new(),
                !is_retried || link > 0,
            )?;
        }
    }
    let counters = device.session.counters();
    if device.session.store().erased() > 0 {
        return Err("the store erased everything".into());
    }
    if flash.is_dead() {
        return Ok(false);
    }
    if observer.counted < counted_before + rounds || counters.storage + counters.ledger_lost > 0 {
        return Err(format!(
            "{} of {rounds} rounds counted, {counters:?}",
            observer.counted - counted_before
        ));
    }
    Ok(true)
}

/// Runs the device once for each of the wanted cuts.
fn for_each_cut(
    image: &[u8],
    observer: &Observer,
    rounds: u32,
    wanted: impl Fn(usize, usize) -> bool,
    mut handle_cut: impl FnMut(usize, Tear, &Torn, Observer, Result<bool, String>),
) {
    let uncut_flash = Torn::with(image.to_vec());
    run_device_life(&uncut_flash, &mut observer.clone(), rounds)
        .expect("the campaign succeeds without a cut");
    for (operation, erases) in uncut_flash.done().into_iter().enumerate() {
        let tears = if erases { torn_erasures(operation as u64) } else { torn_writes(operation as u64) };
        for (_, tear) in tears.into_iter().enumerate().filter(|(turn, _)| wanted(operation, *turn)) {
            let (flash, mut observer) = (Torn::cut(image, operation, tear), observer.clone());
            let outcome = run_device_life(&flash, &mut observer, rounds);
            handle_cut(operation, tear, &flash, observer, outcome);
        }
    }
}

/// Cuts the power at every operation of several lives, and at pairs of operations. Without `every_pair`, at a
/// sample of the pairs.
fn cut_everywhere(every_pair: bool) {
    let (flash, mut observer) = (Torn::new(PAGES), Observer::default());
    let mut single_cuts = 0;
    let mut double_cuts = 0;
    let mut lives = 0;
    let mut violations = 0;
    let mut check = |outcome: &Result<bool, String>, context: &dyn Fn() -> String| {
        if let Err(violation) = outcome {
            violations += 1;
            println!("{}: {violation}", context());
        }
        outcome.is_ok()
    };
    while flash.erased() < PAGES + 2 {
        for_each_cut(
            &flash.image(),
            &observer,
            ROUNDS,
            |_, _| true,
            |operation, tear, flash, observer, outcome| {
                single_cuts += 1;
                let context = || format!("life {lives}, {operation}, {tear:?}");
                let flash_copy = Torn::with(flash.image());
                if !check(&outcome, &context)
                    || !check(&run_device_life(&flash_copy, &mut observer.clone(), 1), &context)
                {
                    return;
                }
                // The second cut occurs during the following start and its first round. The sample has one of
                // nine tears per pair of operations.
                let is_sampled =
                    |second_operation, turn| every_pair || turn % 9 == (single_cuts + second_operation) % 9;
                for_each_cut(
                    &flash.image(),
                    &observer,
                    1,
                    is_sampled,
                    |second_operation, second_tear, flash, mut observer, outcome| {
                        double_cuts += 1;
                        let context = || format!("{}, {second_operation}, {second_tear:?}", context());
                        let flash_copy = Torn::with(flash.image());
                        let _ = check(&outcome, &context)
                            && check(&run_device_life(&flash_copy, &mut observer, 1), &context);
                    },
                );
            },
        );
        assert_eq!(run_device_life(&flash, &mut observer, ROUNDS), Ok(true));
        lives += 1;
    }
    println!(
        "{lives} lives of {ROUNDS} rounds, {} erasures: {single_cuts} cuts, {double_cuts} pairs of cuts, {violations} violations",
        flash.erased()
    );
    assert_eq!(violations, 0);
    assert!(single_cuts > 1_000 && double_cuts > 10_000);
}

#[test]
fn power_cut_never_undoes_what_was_sent() {
    cut_everywhere(false);
}

#[test]
#[ignore = "minutes"]
fn pair_of_power_cuts_never_undoes_what_was_sent() {
    cut_everywhere(true);
}
