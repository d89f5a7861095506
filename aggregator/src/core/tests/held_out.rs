//! Tests that devices which are held out of training join when it has ended, also after a restart.

use super::*;

const HELD_OUT: DeviceId = DeviceId(5);

/// Starts a core for two devices with a third one held out.
fn start_core_with_held_out(state: &std::path::Path) -> ServerCore {
    let configuration = configuration_text(state).replace("expected = 2\n", "expected = 2\nheld_out = [5]\n");
    let fleet = Fleet::parse("fleet.toml", &configuration).unwrap();
    let file = Journal::open(state).unwrap();
    ServerCore::new(&fleet, Store::open(state, SysRng).unwrap(), 1, None, Some(file)).unwrap()
}

fn handle(core: &mut ServerCore, peer: u64, kind: PeerEventKind) {
    core.handle(Millis::ZERO, peer_event(peer, None, kind));
    core.flush(Millis::ZERO).unwrap();
}

fn join(core: &mut ServerCore, peer: u64, device: DeviceId) -> Receiver<Command> {
    let (sender, receiver) = command_queue(4096);
    handle(core, peer, PeerEventKind::Hello(device, Privacy::None, sender));
    receiver
}

/// Answers the open training round as both training devices.
fn answer(core: &mut ServerCore, peers: [u64; 2]) {
    let round = Arc::clone(&core.engine().open_round().unwrap().broadcast);
    for peer in peers {
        handle(core, peer, zero_update(&round));
    }
}

#[test]
fn held_out_device_joins_after_training() {
    let state = tempfile::tempdir().unwrap();
    let mut core = start_core_with_held_out(state.path());
    let mut waiting = join(&mut core, 1, HELD_OUT);
    let _first = join(&mut core, 2, DeviceId(0));
    assert!(core.engine().open_round().is_none(), "a device that is held out counts as one of the expected");
    assert_eq!(core.status().held_out.as_slice(), [HELD_OUT]);
    assert!(serde_json::to_string(&core.status()).unwrap().contains("\"held_out\":[5]"));
    let _second = join(&mut core, 3, DeviceId(1));
    for round in 1..=2 {
        let cohort: Vec<DeviceId> = core.engine().open_round().unwrap().cohort.iter().copied().collect();
        assert_eq!(cohort, [DeviceId(0), DeviceId(1)]);
        answer(&mut core, [2, 3]);
        assert_eq!(core.done, round);
    }
    assert!(
        take_opened_rounds(&mut waiting).is_empty(),
        "a training round was sent to a device that is held out"
    );
    // The device leaves, comes back and greets again while the campaign trains.
    handle(&mut core, 1, PeerEventKind::Gone(DisconnectReason::Closed));
    assert!(core.status().held_out.is_empty());
    let mut waiting = join(&mut core, 4, HELD_OUT);
    handle(&mut core, 4, PeerEventKind::HelloAgain(Privacy::None, Millis::ZERO));
    drop(core);

    let mut core = start_core_with_held_out(state.path());
    let _devices = (join(&mut core, 5, DeviceId(0)), join(&mut core, 6, DeviceId(1)));
    waiting = {
        drop(waiting);
        join(&mut core, 7, HELD_OUT)
    };
    assert!(take_opened_rounds(&mut waiting).is_empty());
    answer(&mut core, [5, 6]);
    assert_eq!(core.done, 3);
    let rounds = take_opened_rounds(&mut waiting);
    assert_eq!(rounds.len(), 1, "the head fit");
    assert!(matches!(rounds[0].request.task, fedspan_protocol::message::Task::FitHead { .. }));
    assert!(core.status().held_out.is_empty());
    // After training it is a device like any other.
    handle(&mut core, 7, PeerEventKind::Gone(DisconnectReason::Closed));
    let mut returned = join(&mut core, 8, HELD_OUT);
    assert_eq!(take_opened_rounds(&mut returned).len(), 1);
}

#[test]
fn enough_devices_must_remain_to_train() {
    let configuration = |devices: &str| {
        format!(
            "[listen]\nplaintext = true\n[devices]\n{devices}\n[data]\nd = 6\n[model]\nk = 2\n[algorithm]\nname = \"fedrep\"\nrounds = 3\nstep_size = 0.25\n"
        )
    };
    let error = Fleet::parse("f.toml", &configuration("expected = 2\nallow = [1, 2, 3]\nheld_out = [2, 3]"))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "f.toml:5: devices.allow: found 1 without those held out, 2 devices are expected"
    );
    assert!(
        Fleet::parse("f.toml", &configuration("expected = 2\nallow = [1, 2, 3]\nheld_out = [3, 9]")).is_ok()
    );
    let error = Fleet::parse("f.toml", &configuration("expected = 2\nheld_out = [\"a\"]")).unwrap_err();
    assert!(error.to_string().contains("devices.held_out"), "{error}");
}
