//! Tests that the status states where the fleet is outside the space in which its aggregation rule was measured.

use super::*;

#[test]
fn status_states_unmeasured_conditions_of_the_configuration_and_of_rounds() {
    let state = tempfile::tempdir().unwrap();
    let configuration = configuration_text(state.path()) + "[aggregation]\nrule = \"spectral-filter\"\n";
    let start = |configuration: &str| {
        let fleet = Fleet::parse("fleet.toml", configuration).unwrap();
        let store = Store::open(state.path(), SysRng).unwrap();
        ServerCore::new(&fleet, store, 1, None, None).unwrap()
    };
    let mut core = start(&configuration);
    // Before a round only the expected number of devices is known.
    assert_eq!(core.status().unmeasured, ["devices of a round: 2, measured from 20"]);
    let [(first, mut commands), (second, _unread)] = [command_queue(16), command_queue(16)];
    handle_and_flush(&mut core, 0, PeerEventKind::Hello(DeviceId(0), Privacy::None, first));
    handle_and_flush(&mut core, 1, PeerEventKind::Hello(DeviceId(1), Privacy::None, second));
    let round = take_opened_rounds(&mut commands).pop().expect("a round");
    handle_and_flush(&mut core, 0, zero_update(&round));
    handle_and_flush(&mut core, 1, zero_update(&round));
    assert_eq!(core.done, 1);
    let unmeasured = core.status().unmeasured;
    assert_eq!(unmeasured.len(), 3, "{unmeasured:?}");
    assert!(unmeasured[1].starts_with("samples of the median device: "), "{unmeasured:?}");
    assert!(unmeasured[2].starts_with("samples of a round: "), "{unmeasured:?}");
}

#[test]
fn nothing_is_stated_for_other_rules() {
    let state = tempfile::tempdir().unwrap();
    let fleet = Fleet::parse("fleet.toml", &configuration_text(state.path())).unwrap();
    let store = Store::open(state.path(), SysRng).unwrap();
    assert_eq!(
        ServerCore::new(&fleet, store, 1, None, None).unwrap().status().unmeasured,
        Vec::<String>::new()
    );
}
