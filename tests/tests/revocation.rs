//! Revocation of a key over the control socket in the middle of a round, with devices over TCP.

use std::path::Path;

use fedspan_aggregator::server::query;
use fedspan_protocol::message::{RoundOpen, ToDevice};
use fedspan_tests::load::{Device, Plan, Shape};
use fedspan_tests::start_with;

/// Receives messages until a round opens.
async fn next_round(device: &mut Device) -> RoundOpen {
    loop {
        if let ToDevice::RoundOpen(open) = device.receive().await.unwrap() {
            return open;
        }
    }
}

/// Sends a request to the control socket and returns the answer.
async fn request(state: &Path, request: &str) -> String {
    let mut answer = String::new();
    let result = query(state, request, |line| {
        answer.push_str(line);
        Ok(())
    });
    assert_eq!(result.await.unwrap(), Some(()), "{request}");
    answer
}

/// The round has no deadline, and absent devices are waited for almost four months, so that nothing but the
/// revocation closes it.
#[tokio::test]
async fn round_that_waits_for_revoked_device_alone_closes() {
    for is_connected in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let plan = Plan {
            devices: 2,
            insiders: 0,
            frame_limit: 4096,
            shape: Shape::default(),
            seed: 1,
            limits: String::new(),
        };
        let (fleet, identities) = plan.prepare(directory.path()).unwrap();
        let fleet = fleet
            .replace("policy = \"first-arrivals\"\nn = 2", "policy = \"full\"")
            .replace("[devices]\n", "[devices]\nabsence = 1e7\n");
        assert!(fleet.contains("\"full\"") && fleet.contains("absence") && fleet.contains("deadline = 0"));
        let server =
            start_with(&fleet, plan.protection(directory.path()).unwrap(), Vec::new(), false).await.unwrap();
        let state = directory.path().join("state");
        let mut devices = Vec::new();
        for identity in identities {
            devices.push(Device::join(server.address, None, identity, 0).await.unwrap());
        }
        let [honest, revoked] = &mut devices[..] else { panic!("two devices") };
        let round = next_round(honest).await;
        assert_eq!(next_round(revoked).await.id, round.id);
        honest.answer(round.id).await.unwrap();
        assert!(matches!(honest.receive().await.unwrap(), ToDevice::Ack(_)));
        if !is_connected {
            drop(devices.pop());
            while !request(&state, "status").await.contains("\"connected\":1") {
                tokio::task::yield_now().await;
            }
        }
        assert!(request(&state, "status").await.contains("\"round\":0,"));
        assert!(request(&state, "keys {\"revoke\":[[2,2]]}").await.contains("revoked"));
        let next = next_round(&mut devices[0]).await;
        assert!(next.id.round > round.id.round);
        assert!(request(&state, "status").await.contains("\"round\":1,"));
        if let Some(revoked) = devices.get_mut(1) {
            while revoked.receive().await.is_ok() {}
        }
        server.stop.send(()).unwrap();
        assert_eq!(server.end.await.unwrap().unwrap().round, 1);
    }
}
