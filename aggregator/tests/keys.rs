//! Tests of keys: the key table is compared with a model, and revocations take effect while connections hold
//! keys.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fedspan_aggregator::keys::{
    AcceptedKey, ActiveKeys, Entropy, KeyError, KeyState, KeyTable, LineMistake, LookupError, parse_keys,
};
use fedspan_engine::DeviceId;
use fedspan_protocol::secure::Key;
use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

const NOW: u64 = 1_700_000_000;

fn seeded_entropy(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

/// Source of randomness that always fails.
struct FailingEntropy;

impl Entropy for FailingEntropy {
    fn fill(&mut self, _: &mut [u8]) -> Result<(), KeyError> {
        Err(KeyError::NoEntropy)
    }
}

/// Model of the rules, without keys: the epochs that each device has had, and those that are accepted.
#[derive(Default)]
struct Model {
    last_epochs: BTreeMap<DeviceId, u16>,
    current_epochs: BTreeMap<DeviceId, u16>,
    previous_epochs: BTreeMap<DeviceId, u16>,
    /// Devices whose newest key is sent to them.
    sent: BTreeSet<DeviceId>,
    /// Keys that devices have used.
    used: BTreeSet<(DeviceId, u16)>,
}

/// Operation on a key table.
#[derive(Clone, Debug)]
enum Step {
    Add(Vec<DeviceId>, bool),
    Revoke(Vec<DeviceId>),
    Rotate(Vec<DeviceId>),
    Send(Vec<DeviceId>),
    /// A device uses its newest key.
    Use(DeviceId),
    RoundClosed,
    SentKeyUsed(DeviceId),
}

impl Model {
    /// Applies a step, and returns whether it is allowed.
    fn apply_step(&mut self, step: &Step) -> bool {
        let devices = match step {
            Step::Add(devices, _) | Step::Revoke(devices) | Step::Rotate(devices) | Step::Send(devices) => {
                devices
            }
            Step::Use(device) => {
                self.used.extend(self.current_epochs.get(device).map(|epoch| (*device, *epoch)));
                return true;
            }
            Step::RoundClosed | Step::SentKeyUsed(_) => {
                for device in self.replaced(step) {
                    self.previous_epochs.remove(&device);
                }
                return true;
            }
        };
        let distinct: BTreeSet<DeviceId> = devices.iter().copied().collect();
        let fits = !devices.is_empty()
            && distinct.len() == devices.len()
            && devices.iter().all(|device| {
                let (had_key, has_key) =
                    (self.last_epochs.contains_key(device), self.current_epochs.contains_key(device));
                match step {
                    Step::Add(_, renews) => !has_key && (!had_key || *renews),
                    Step::Revoke(_) => has_key,
                    Step::Rotate(_) if self.sent.contains(device) => has_key,
                    _ => has_key && !self.previous_epochs.contains_key(device),
                }
            });
        for device in devices.iter().filter(|_| fits) {
            let next_epoch = self.last_epochs.get(device).map_or(0, |epoch| epoch + 1);
            match step {
                Step::Revoke(_) => {
                    self.current_epochs.remove(device);
                    self.previous_epochs.remove(device);
                    continue;
                }
                // The key that is being sent stays the new one.
                Step::Rotate(_) if self.previous_epochs.contains_key(device) => {
                    self.sent.remove(device);
                    continue;
                }
                Step::Rotate(_) | Step::Send(_) => {
                    self.sent.remove(device);
                    if matches!(step, Step::Send(_)) {
                        self.sent.insert(*device);
                    }
                    self.previous_epochs.insert(*device, self.current_epochs[device]);
                }
                _ => {}
            }
            self.last_epochs.insert(*device, next_epoch);
            self.current_epochs.insert(*device, next_epoch);
        }
        fits
    }

    /// Returns the devices whose previous key a step revokes.
    fn replaced(&self, step: &Step) -> Vec<DeviceId> {
        let is_replaced = |device: &&DeviceId| {
            let is_sent = self.sent.contains(device);
            let is_used =
                self.current_epochs.get(device).is_some_and(|epoch| self.used.contains(&(**device, *epoch)));
            match step {
                Step::SentKeyUsed(used) => is_sent && is_used && *used == **device,
                _ => !is_sent || is_used,
            }
        };
        self.previous_epochs.keys().filter(is_replaced).copied().collect()
    }

    /// Returns true if the key of this epoch is accepted.
    fn accepts(&self, device: DeviceId, epoch: u16) -> bool {
        self.current_epochs.get(&device) == Some(&epoch) || self.previous_epochs.get(&device) == Some(&epoch)
    }
}

fn random_steps() -> impl Strategy<Value = Vec<Step>> {
    let devices = || prop::collection::vec((0..4u64).prop_map(DeviceId), 0..3);
    let step = prop_oneof![
        (devices(), any::<bool>()).prop_map(|(devices, renews)| Step::Add(devices, renews)),
        devices().prop_map(Step::Revoke),
        devices().prop_map(Step::Rotate),
        devices().prop_map(Step::Send),
        (0..4u64).prop_map(|device| Step::Use(DeviceId(device))),
        Just(Step::RoundClosed),
        (0..4u64).prop_map(|device| Step::SentKeyUsed(DeviceId(device))),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn key_table_matches_model(steps in random_steps()) {
        let mut table = KeyTable::new();
        let mut model = Model::default();
        let mut entropy = seeded_entropy(1);
        // Every key that ever existed, shared with the table like the key of a connection.
        let mut known_keys: BTreeMap<(DeviceId, u16), Arc<AcceptedKey>> = BTreeMap::new();
        for (now, step) in (NOW..).zip(&steps) {
            let rows_before: Vec<_> = table.list().collect();
            let result = match step {
                Step::Add(devices, renews) => table.add(devices, *renews, now, &mut entropy),
                Step::Revoke(devices) => table.revoke(devices, now),
                Step::Rotate(devices) => table.rotate(devices, now, &mut entropy),
                Step::Send(devices) => table.send(devices, now, &mut entropy),
                Step::Use(device) => {
                    if let Some(row) = table.get(*device).filter(|row| row.state != KeyState::Revoked) {
                        table.lookup(*device, row.epoch).unwrap().mark_used();
                    }
                    Ok(())
                }
                Step::RoundClosed => {
                    prop_assert_eq!(table.round_closed(), model.replaced(step).len());
                    Ok(())
                }
                Step::SentKeyUsed(device) => {
                    prop_assert_eq!(table.sent_key_used(*device), !model.replaced(step).is_empty());
                    Ok(())
                }
            };
            prop_assert_eq!(result.is_ok(), model.apply_step(step), "{:?}: {:?}", step, result);
            if result.is_err() {
                prop_assert_eq!(&rows_before, &table.list().collect::<Vec<_>>());
            }
            for device in (0..4).map(DeviceId) {
                for epoch in 0..60 {
                    let lookup = table.lookup(device, epoch);
                    prop_assert_eq!(lookup.is_ok(), model.accepts(device, epoch));
                    if let Ok(key) = lookup {
                        prop_assert_eq!((key.device(), key.epoch()), (device, epoch));
                        let known_key = known_keys.entry((device, epoch)).or_insert_with(|| key.clone());
                        prop_assert!(Arc::ptr_eq(known_key, &key), "an epoch has two keys");
                    }
                }
            }
            for ((device, epoch), key) in &known_keys {
                prop_assert_eq!(key.is_accepted(), model.accepts(*device, *epoch));
            }
            for row in table.list() {
                let (current, previous) =
                    (
                        model.current_epochs.contains_key(&row.device),
                        model.previous_epochs.contains_key(&row.device),
                    );
                let state = if previous && model.sent.contains(&row.device) {
                    KeyState::Sending
                } else if previous {
                    KeyState::Rotating
                } else if current {
                    KeyState::Active
                } else {
                    KeyState::Revoked
                };
                let to_send = row.epoch.checked_sub(1).and_then(|epoch| table.key_to_send(row.device, epoch));
                prop_assert_eq!(to_send.is_some(), state == KeyState::Sending);
                prop_assert_eq!((row.epoch, row.state), (model.last_epochs[&row.device], state));
                prop_assert_eq!(row.revoked.is_some(), state == KeyState::Revoked);
                prop_assert_eq!(row.rotated.is_some(), row.epoch > 0);
            }
            prop_assert_eq!(table.accepted(), model.current_epochs.keys().copied().collect::<Vec<_>>());
        }
        let distinct: BTreeSet<[u8; 32]> = known_keys.values().map(|key| *key.key().expose()).collect();
        prop_assert_eq!(distinct.len(), known_keys.len(), "a key was given twice");
    }

    #[test]
    fn any_key_text_is_read_or_refused(text in "[ -~\n#]{0,300}") {
        let _ = parse_keys(&text);
    }
}

#[test]
fn connection_sees_revocation_before_next_frame() {
    let mut table = KeyTable::new();
    table.add(&[DeviceId(7), DeviceId(8)], false, NOW, &mut seeded_entropy(1)).unwrap();
    let keys = ActiveKeys::new(table.clone());
    let (seven, eight) = (keys.lookup(DeviceId(7), 0).unwrap(), keys.lookup(DeviceId(8), 0).unwrap());
    // Clones of a table share the keys, so a revocation in any clone affects connections.
    table.revoke(&[DeviceId(7)], NOW + 1).unwrap();
    assert!(!seven.is_accepted() && eight.is_accepted());
    assert_eq!(table.lookup(DeviceId(7), 0).unwrap_err(), LookupError::Revoked);
    assert_eq!(table.lookup(DeviceId(9), 0).unwrap_err(), LookupError::Unknown);
    assert_eq!(table.lookup(DeviceId(8), 1).unwrap_err(), LookupError::Epoch { current: 0 });
    assert_eq!(
        table.add(&[DeviceId(7)], false, NOW, &mut seeded_entropy(2)),
        Err(KeyError::Revoked { device: DeviceId(7), epoch: 0 })
    );
    table.add(&[DeviceId(7)], true, NOW + 2, &mut seeded_entropy(2)).unwrap();
    assert!(!seven.is_accepted(), "a revoked key is accepted again");
    let row = table.get(DeviceId(7)).unwrap();
    assert_eq!((row.epoch, row.state, row.created, row.revoked), (1, KeyState::Active, NOW, None));
}

/// The old key is accepted until the first round that closes after the rotation.
#[test]
fn rotation_accepts_both_keys_until_round_closes() {
    let keys = ActiveKeys::default();
    assert_eq!(keys.round_closed(), 0);
    let mut table = KeyTable::new();
    table.add(&[DeviceId(7), DeviceId(8)], false, NOW, &mut seeded_entropy(1)).unwrap();
    table.rotate(&[DeviceId(7)], NOW, &mut seeded_entropy(2)).unwrap();
    let keys = ActiveKeys::new(table);
    let (old_key, new_key) = (keys.lookup(DeviceId(7), 0).unwrap(), keys.lookup(DeviceId(7), 1).unwrap());
    assert!(old_key.is_accepted() && new_key.is_accepted());
    assert_eq!(keys.round_closed(), 1);
    assert!(!old_key.is_accepted() && new_key.is_accepted());
    assert_eq!(keys.find(DeviceId(7), 0).unwrap_err(), LookupError::Epoch { current: 1 });
    assert_eq!(keys.round_closed(), 0);
    assert!(new_key.is_accepted() && keys.lookup(DeviceId(8), 0).is_some());
}

#[test]
fn refusals_name_numbers_and_change_nothing() {
    let mut table = KeyTable::new();
    let mut entropy = seeded_entropy(1);
    table.insert(DeviceId(7), Key::new(u16::MAX - 1, [7; 32]), NOW).unwrap();
    table.rotate(&[DeviceId(7)], NOW, &mut entropy).unwrap();
    let rotating = KeyError::Rotating { device: DeviceId(7), epoch: u16::MAX };
    assert_eq!(table.rotate(&[DeviceId(7)], NOW, &mut entropy), Err(rotating));
    table.round_closed();
    assert_eq!(
        table.rotate(&[DeviceId(7)], NOW, &mut entropy),
        Err(KeyError::UsedUp { device: DeviceId(7) })
    );
    let exists = KeyError::Exists { device: DeviceId(7), epoch: u16::MAX };
    assert_eq!(table.add(&[DeviceId(6), DeviceId(7)], true, NOW, &mut entropy), Err(exists));
    assert_eq!(table.insert(DeviceId(7), Key::new(0, [0; 32]), NOW), Err(exists));
    table.revoke(&[DeviceId(7)], NOW).unwrap();
    assert_eq!(
        table.add(&[DeviceId(7)], true, NOW, &mut entropy),
        Err(KeyError::UsedUp { device: DeviceId(7) })
    );
    let revoked = KeyError::Revoked { device: DeviceId(7), epoch: u16::MAX };
    assert_eq!(table.revoke(&[DeviceId(7)], NOW), Err(revoked));
    assert_eq!(table.insert(DeviceId(7), Key::new(0, [0; 32]), NOW), Err(revoked));
    assert_eq!(table.export(&[DeviceId(7)]).unwrap_err(), revoked);
    assert_eq!(table.add(&[], false, NOW, &mut entropy), Err(KeyError::NoDevices));
    assert_eq!(
        table.add(&[DeviceId(5), DeviceId(5)], false, NOW, &mut entropy),
        Err(KeyError::Twice { device: DeviceId(5) })
    );
    assert_eq!(table.add(&[DeviceId(5)], false, NOW, &mut FailingEntropy), Err(KeyError::NoEntropy));
    assert_eq!(table.export(&[DeviceId(5)]).unwrap_err(), KeyError::Unknown { device: DeviceId(5) });
    assert_eq!(table.len(), 1);
}

/// A revocation does not wait for connections. Once the call has returned, no connection accepts a frame
/// under the key.
#[test]
fn other_threads_see_revocation_at_once() {
    let mut table = KeyTable::new();
    let devices: Vec<DeviceId> = (0..64).map(DeviceId).collect();
    table.add(&devices, false, NOW, &mut seeded_entropy(1)).unwrap();
    let is_revoked = std::sync::atomic::AtomicBool::new(false);
    let start = std::sync::Barrier::new(3);
    let keys: Vec<_> = devices.iter().map(|device| table.lookup(*device, 0).unwrap()).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                while !is_revoked.load(std::sync::atomic::Ordering::SeqCst) {
                    keys.iter().for_each(|key| _ = std::hint::black_box(key.is_accepted()));
                }
                assert!(keys.iter().all(|key| !key.is_accepted()));
            });
        }
        start.wait();
        table.revoke(&devices, NOW).unwrap();
        is_revoked.store(true, std::sync::atomic::Ordering::SeqCst);
    });
}

#[test]
fn key_text_reports_mistakes_by_line() {
    let key = "0123456789abcdef".repeat(4);
    let key_text =
        format!("# comment\n\n 7  65535\t{key} \r\n18446744073709551615 0 {}\n", key.to_uppercase());
    let keys = parse_keys(&key_text).unwrap();
    assert_eq!(keys.len(), 2);
    assert_eq!(
        (keys[&DeviceId(7)].epoch(), keys[&DeviceId(7)].expose()[..3].to_vec()),
        (u16::MAX, vec![0x01, 0x23, 0x45])
    );
    assert_eq!(keys[&DeviceId(u64::MAX)].expose(), keys[&DeviceId(7)].expose());
    for (line, mistake) in [
        ("7 0".to_owned(), LineMistake::Fields),
        (format!("7 0 {key} more"), LineMistake::Fields),
        (format!("-1 0 {key}"), LineMistake::Device),
        (format!("18446744073709551616 0 {key}"), LineMistake::Device),
        (format!("7 65536 {key}"), LineMistake::Epoch),
        (format!("7 0 {}", &key[1..]), LineMistake::Key),
        (format!("7 0 {key}0"), LineMistake::Key),
        (format!("7 0 g{}", &key[1..]), LineMistake::Key),
        (format!("7 0 +{}", &key[1..]), LineMistake::Key),
        (format!("1 0 {key}"), LineMistake::Twice),
    ] {
        let key_text = format!("# title\n1 0 {key}\n{line}\n");
        assert_eq!(parse_keys(&key_text).unwrap_err(), (3, mistake), "{line}");
    }
}
