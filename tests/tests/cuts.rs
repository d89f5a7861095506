//! Devices that live through a private, encrypted campaign against the real server, whose power goes in every write and
//! every erasure of their flash, and again in every one of the start that follows: no nonce comes twice, no handshake, no
//! round is computed twice, the ledger is never below what has left, and the campaign goes on.
//!
//! `cargo test` takes some of the pairs of cuts; all of them, some minutes long:
//! `cargo test --release -p fedspan-tests --test all -- cuts:: --ignored --nocapture`.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;

use crate::common::{Board, DEVICE, Host, gate, keys, opening, protected, uncobs};
use crate::torn::{Tear, Torn, WORD, torn_erasures, torn_writes};
use fedspan_aggregator::connection::PeerMessage;
use fedspan_client::memory::StreamingWorkspace;
use fedspan_client::privacy::{
    Clip, Clipped, EntropySource, Gaussian, MinEntropy, NoiseMultiplier, Settings,
};
use fedspan_client::session::Config;
use fedspan_client::store::{FlashStore, record_len};
use fedspan_client::{Event, Linear};
use fedspan_hostile::Random;
use fedspan_protocol::message::{Ack, AckOutcome, Privacy, ToDevice, ToServer, decode};

const PAGES: usize = 2;
const BYTES: usize = record_len(2, 1).next_multiple_of(WORD);
const SLOT: u64 = 5_000;
const ROUNDS: u32 = 3;

/// Entropy of a test: the same after every start, as it must never be.
struct Repeated(Random);

impl EntropySource for Repeated {
    type Error = Infallible;

    fn read(&mut self, samples: &mut [u8]) -> Result<(), Infallible> {
        samples.iter_mut().for_each(|sample| *sample = self.0.below(256) as u8);
        Ok(())
    }
}

type Task = Linear<StreamingWorkspace<20, 2>, Clipped<Gaussian<Repeated>>>;
type Device = Board<FlashStore<Torn, BYTES>, Task>;

fn settings() -> Settings {
    Settings::new(NoiseMultiplier::from_square(1 << 16).unwrap(), 1 << 50, 100, SLOT).unwrap()
}

fn device(flash: &Torn) -> Device {
    let noise = Gaussian::new(settings(), Repeated(Random(5)), MinEntropy::new(6).unwrap());
    let clipped = Clipped::new(noise, Clip::new(1.0).unwrap());
    let task = Linear::private(StreamingWorkspace::new(), clipped).unwrap();
    let end = u32::try_from(flash.image().len()).unwrap();
    let store = FlashStore::new(flash.clone(), 0..end).unwrap();
    // The same randomness every time.
    Board::of(Config::new(DEVICE), protected(), task, store, 7)
}

/// What somebody knows who has heard all that has left the device, and the server.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// Hellos of earlier links.
    hellos: HashSet<Vec<u8>>,
    /// The hello of this link, and the server's answer: together they name the key.
    hello: Vec<u8>,
    answer: Vec<u8>,
    /// Keys and counters of frames.
    nonces: HashSet<(Vec<u8>, Vec<u8>, u64)>,
    /// What hello has said that was spent.
    told: u64,
    /// Updates by their rounds: samples and bits.
    updates: BTreeMap<u32, Vec<u32>>,
    counted: u32,
}

impl Heard {
    fn link(&mut self) {
        let hello = std::mem::take(&mut self.hello);
        self.hellos.insert(hello);
        self.answer.clear();
    }

    /// A frame that the device has sent.
    fn up(&mut self, frame: &[u8]) -> Result<(), String> {
        let plain = uncobs(frame);
        if plain[0] == 0x10 {
            if self.hellos.contains(frame) {
                return Err("a hello is that of another link".into());
            }
            self.hello = frame.to_vec();
            let Ok((ToServer::Hello(hello), _)) = decode::<ToServer>(&plain[1..plain.len() - 4]) else {
                return Err("something else than a hello is in the clear".into());
            };
            let Privacy::Gaussian { spent, release, .. } = hello.capabilities.privacy else {
                return Err("not private".into());
            };
            let left = self.updates.len() as u64 * u64::from(release);
            if spent < self.told.max(left) || spent == u64::MAX {
                return Err(format!("{spent} is spent, {left} have left, {} was said", self.told));
            }
            self.told = spent;
            return Ok(());
        }
        let counter = u64::from_le_bytes(plain[1..9].try_into().unwrap());
        if self.nonces.insert((self.hello.clone(), self.answer.clone(), counter)) {
            Ok(())
        } else {
            Err("a nonce comes twice".into())
        }
    }

    fn said(&mut self, said: &PeerMessage) -> Result<(), String> {
        let PeerMessage::Update(update) = said else { return Ok(()) };
        let bits: Vec<u32> =
            update.tensors.iter().flat_map(|tensor| tensor.values.iter().map(|v| v.to_bits())).collect();
        let known = self.updates.entry(update.id.round).or_insert_with(|| bits.clone());
        if *known == bits { Ok(()) } else { Err(format!("round {} was computed twice", update.id.round)) }
    }
}

/// Carries frames to and fro until nobody has anything to say, or the power is gone. Acks leave with `acks`.
fn exchange(
    device: &mut Device,
    host: &mut Host,
    heard: &mut Heard,
    flash: &Torn,
    mut up: Vec<Vec<u8>>,
    acks: bool,
) -> Result<(), String> {
    loop {
        // What was said in the moment of its death has not left.
        if flash.is_dead() {
            return Ok(());
        }
        up.iter().try_for_each(|frame| heard.up(frame))?;
        let mut down = host.hear(&up);
        for said in std::mem::take(&mut host.said) {
            heard.said(&said)?;
            if let (PeerMessage::Update(update), true) = (said, acks) {
                host.connection.send(ToDevice::Ack(Ack { id: update.id, outcome: AckOutcome::Counted }));
                heard.counted += 1;
            }
        }
        down.extend(host.frames());
        if let Some(answer) = down.iter().find(|frame| uncobs(frame)[0] == 0x12) {
            heard.answer.clone_from(answer);
        }
        up = device.hear_all(&down);
        if device.session.quiet_until() > device.now && !flash.is_dead() {
            up.extend(device.wait(SLOT));
        }
        if up.is_empty() {
            return Ok(());
        }
    }
}

/// One start, and rounds: the second is acknowledged only after a new link. False if the power went.
fn live(flash: &Torn, heard: &mut Heard, rounds: u32) -> Result<bool, String> {
    let gate = gate(&keys(), heard.hellos.len() as u64);
    let mut device = device(flash);
    let before = heard.counted;
    let newest = heard.updates.keys().next_back().copied().unwrap_or(0);
    if device.session.last_round() < newest && !flash.is_dead() {
        return Err(format!("round {newest} has left, {} is known", device.session.last_round()));
    }
    let first = device.session.last_round().max(newest) + 1;
    let mut host = Host::new(&gate);
    for round in first..first + rounds {
        let retried = round == first + 1;
        for link in 0..=u32::from(retried) {
            if round == first || link > 0 {
                heard.link();
                device.event(Event::LinkDown);
                host = Host::new(&gate);
                let hello = device.link_up();
                exchange(&mut device, &mut host, heard, flash, hello, true)?;
            }
            host.connection.open(&opening(round));
            exchange(&mut device, &mut host, heard, flash, Vec::new(), !retried || link > 0)?;
        }
    }
    let own = device.session.counters();
    if device.session.store().erased() > 0 {
        return Err("all was given up".into());
    }
    if flash.is_dead() {
        return Ok(false);
    }
    if heard.counted < before + rounds || own.storage + own.ledger_lost > 0 {
        return Err(format!("{} of {rounds} rounds counted, {own:?}", heard.counted - before));
    }
    Ok(true)
}

/// What is left of a life, for each of its wanted cuts.
fn cuts(
    image: &[u8],
    heard: &Heard,
    rounds: u32,
    wanted: impl Fn(usize, usize) -> bool,
    mut each: impl FnMut(usize, Tear, &Torn, Heard, Result<bool, String>),
) {
    let whole = Torn::with(image.to_vec());
    live(&whole, &mut heard.clone(), rounds).expect("it lives without a cut");
    for (at, erases) in whole.done().into_iter().enumerate() {
        let tears = if erases { torn_erasures(at as u64) } else { torn_writes(at as u64) };
        for (_, tear) in tears.into_iter().enumerate().filter(|(turn, _)| wanted(at, *turn)) {
            let (flash, mut heard) = (Torn::cut(image, at, tear), heard.clone());
            let ended = live(&flash, &mut heard, rounds);
            each(at, tear, &flash, heard, ended);
        }
    }
}

fn cut_everywhere(all: bool) {
    let (flash, mut heard) = (Torn::new(PAGES), Heard::default());
    let (mut once, mut twice, mut lives, mut violations) = (0, 0, 0, 0);
    let mut check = |ended: &Result<bool, String>, context: &dyn Fn() -> String| {
        if let Err(law) = ended {
            violations += 1;
            println!("{}: {law}", context());
        }
        ended.is_ok()
    };
    while flash.erased() < PAGES + 2 {
        cuts(
            &flash.image(),
            &heard,
            ROUNDS,
            |_, _| true,
            |at, tear, flash, heard, ended| {
                once += 1;
                let context = || format!("life {lives}, {at}, {tear:?}");
                let whole = Torn::with(flash.image());
                if !check(&ended, &context) || !check(&live(&whole, &mut heard.clone(), 1), &context) {
                    return;
                }
                // Of the start that follows, and its first round.
                let wanted = |second, turn| all || turn % 9 == (once + second) % 9;
                cuts(&flash.image(), &heard, 1, wanted, |second, again, flash, mut heard, ended| {
                    twice += 1;
                    let context = || format!("{}, {second}, {again:?}", context());
                    let whole = Torn::with(flash.image());
                    let _ = check(&ended, &context) && check(&live(&whole, &mut heard, 1), &context);
                });
            },
        );
        assert_eq!(live(&flash, &mut heard, ROUNDS), Ok(true));
        lives += 1;
    }
    println!(
        "{lives} lives of {ROUNDS} rounds, {} erasures: {once} cuts, {twice} pairs of cuts, {violations} violations",
        flash.erased()
    );
    assert_eq!(violations, 0);
    assert!(once > 1_000 && twice > 10_000);
}

#[test]
fn no_cut_takes_back_what_has_left_the_device() {
    cut_everywhere(false);
}

#[test]
#[ignore = "minutes"]
fn no_pair_of_cuts_takes_back_what_has_left_the_device() {
    cut_everywhere(true);
}
