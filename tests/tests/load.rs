//! A small load: devices whose updates all count, while everybody else does what they can. Every connection that
//! ends is counted by its reason. `load` is the large one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::Server;
use fedspan_tests::load::{Choir, Device, Ground, Hostile, Kind, Pace, Plan};
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const DEVICES: usize = 300;
const EACH: usize = 30;
const PER_ADDRESS: usize = 80;
/// More from one address than it has places.
const TOO_MANY: usize = 20;

const ALL: [Kind; 7] =
    [Kind::Drip, Kind::Stall, Kind::Loris, Kind::Noise, Kind::Endless, Kind::Junk, Kind::Stranger];

/// Connects, says nothing, and waits until the server has had enough. What it was told.
async fn crowd(address: SocketAddr, from: Ipv4Addr) -> usize {
    let mut waiting = JoinSet::new();
    for _ in 0..PER_ADDRESS + TOO_MANY {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        waiting.spawn(async move {
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard).await;
            usize::from(!heard.is_empty())
        });
    }
    waiting.join_all().await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_among_hostile_peers_and_all_of_them_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan {
        devices: DEVICES,
        traitors: 2 * EACH,
        frame_limit: 256,
        seed: 1,
        limits: format!("connections = 2000\nper_address = {PER_ADDRESS}\nhello = 3.0\nframe = 2.0\n"),
    };
    let (fleet, mut identities) = plan.prepare(directory.path()).unwrap();
    let traitors = identities.split_off(DEVICES);
    let fleet = Fleet::parse("fleet.toml", &fleet).unwrap();
    let server = Server::bind(fleet, 1, plan.protection(directory.path()).unwrap()).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }, false));

    let mut choir = Choir::new(DEVICES);
    for (index, identity) in identities.into_iter().enumerate() {
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 1, u8::try_from(index / 60 + 1).unwrap()));
        choir.join(index, Device::join(address, Some(from), identity, 0).await.expect("welcome"));
    }
    let pace = Pace { step: Duration::from_millis(1), hold: Duration::ZERO };
    assert_eq!(choir.round(pace, || Ok(())).await.unwrap().counted, DEVICES);

    let mut hostile = JoinSet::new();
    let mut identities = traitors.into_iter();
    for (kind, net) in ALL.into_iter().zip(1..) {
        for index in 0..EACH {
            let identity = if kind.has_key() { identities.next() } else { None };
            let index = u64::from(net) * 1000 + index as u64;
            let one = Hostile { kind, index, from: Some(Ipv4Addr::new(127, 0, 2, net)), identity };
            hostile.spawn(async move { one.once(Ground { address, seed: 1 }, 0).await });
        }
    }
    let crowded = tokio::spawn(crowd(address, Ipv4Addr::new(127, 0, 3, 1)));
    let (mut rounds, mut ended) = (1, 0);
    while ended < EACH * ALL.len() {
        assert_eq!(choir.round(pace, || Ok(())).await.unwrap().counted, DEVICES);
        rounds += 1;
        while let Some(one) = hostile.try_join_next() {
            one.expect("no panic").expect("a connection");
            ended += 1;
        }
    }
    assert_eq!(crowded.await.unwrap(), TOO_MANY, "who is turned away is told");
    // What ended last may still be on its way to the host.
    assert_eq!(choir.round(pace, || Ok(())).await.unwrap().counted, DEVICES);
    rounds += 1;

    stop.send(()).unwrap();
    let status = serving.await.unwrap().unwrap();
    let (counters, updates) = (status.connections, status.updates);
    assert_eq!(updates.counted, (rounds * DEVICES) as u64);
    let each = EACH as u64;
    // What stalls has begun an update of the first round.
    assert_eq!((updates.duplicate, updates.late, updates.declined), (0, each, 0));
    assert_eq!(counters.welcomed, DEVICES as u64 + 2 * each, "{counters:?}");
    assert_eq!(counters.slow, 2 * each, "{counters:?}");
    assert_eq!(counters.refused, each, "{counters:?}");
    assert_eq!((counters.turned_away, counters.dropped), (TOO_MANY as u64, 0), "{counters:?}");
    // On a slow machine junk comes so slowly that its time to say hello is over first.
    assert_eq!(counters.no_hello + counters.flood, 4 * each + PER_ADDRESS as u64, "{counters:?}");
    assert!(counters.no_hello >= each + PER_ADDRESS as u64, "{counters:?}");
    assert!(counters.dropped_frames > 0 && counters.forged_frames > 0 && counters.unsealed_frames > 0);
    // The devices are still there; everybody else has one reason.
    let ended = counters.closed
        + counters.no_hello
        + counters.idle
        + counters.slow
        + counters.flood
        + counters.refused
        + counters.revoked
        + counters.ended;
    assert_eq!(ended, EACH as u64 * ALL.len() as u64 + (PER_ADDRESS + TOO_MANY) as u64, "{counters:?}");
}
