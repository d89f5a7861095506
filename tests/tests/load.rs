//! A small load: devices whose updates all count, while everybody else does what they can. Every connection that
//! ends is counted by its reason. `load` is the large one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::Server;
use fedspan_protocol::message::ToDevice;
use fedspan_tests::load::{Device, Hostile, Kind, Pace, Plan, SynchronisedClients, Target};
use getrandom::SysRng;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const DEVICES: usize = 300;
const EACH: usize = 30;
const PER_ADDRESS: usize = 80;
/// Places for who has proved nothing: fewer than are wanted, and at any time more for the crowd than for anybody else.
const UNAUTHENTICATED: usize = 200;
/// Connections from one address that say nothing.
const CROWD: usize = 300;

const ALL: [Kind; 7] =
    [Kind::Drip, Kind::Stall, Kind::Loris, Kind::Noise, Kind::Endless, Kind::Junk, Kind::Stranger];

/// Connects, says nothing, and waits until the server has had enough: how much each was told.
async fn crowd(address: SocketAddr, from: Ipv4Addr) -> JoinSet<usize> {
    let mut waiting = JoinSet::new();
    for _ in 0..CROWD {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        waiting.spawn(async move {
            let mut received = Vec::new();
            let _ = stream.read_to_end(&mut received).await;
            received.len()
        });
    }
    waiting
}

/// A device for which there is no place has proved its key before it hears that, and hears it sealed.
#[tokio::test]
async fn a_device_too_many_is_told_to_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let limits = "connections = 2\n".to_owned();
    let plan = Plan { devices: 2, insiders: 1, frame_limit: 256, seed: 1, limits };
    let (fleet, identities) = plan.prepare(directory.path()).unwrap();
    let fleet = Fleet::parse("fleet.toml", &fleet).unwrap();
    let server = Server::bind(fleet, 1, SysRng, plan.protection(directory.path()).unwrap()).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }, false));
    let mut devices = Vec::new();
    for identity in identities {
        devices.push(Device::join(address, None, identity, 0).await.expect("welcome"));
    }
    for device in devices.iter_mut().take(2) {
        assert!(matches!(device.receive().await, Ok(ToDevice::RoundOpen(_))));
    }
    let received = devices[2].receive().await;
    assert!(matches!(received, Ok(ToDevice::RetryAfter { .. })), "{received:?}");
    assert!(devices[2].receive().await.is_err(), "it is closed");
    drop(devices);
    stop.send(()).unwrap();
    let counters = serving.await.unwrap().unwrap().connections;
    assert_eq!((counters.welcomed, counters.turned_away), (2, 1), "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_update_is_lost_among_hostile_peers_and_all_of_them_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan {
        devices: DEVICES,
        insiders: 2 * EACH + 1,
        frame_limit: 256,
        seed: 1,
        limits: format!(
            "connections = 2000\nper_address = {PER_ADDRESS}\nunauthenticated = {UNAUTHENTICATED}\n\
             hello = 3.0\nframe = 2.0\n"
        ),
    };
    let (fleet, mut identities) = plan.prepare(directory.path()).unwrap();
    let mut insiders = identities.split_off(DEVICES);
    let newcomer = insiders.pop().unwrap();
    let fleet = Fleet::parse("fleet.toml", &fleet).unwrap();
    let server = Server::bind(fleet, 1, SysRng, plan.protection(directory.path()).unwrap()).await.unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve(async { drop(stopped.await) }, false));

    let mut clients = SynchronisedClients::new(DEVICES);
    for (index, identity) in identities.into_iter().enumerate() {
        let from = IpAddr::V4(Ipv4Addr::new(127, 0, 1, u8::try_from(index / 60 + 1).unwrap()));
        clients.join(index, Device::join(address, Some(from), identity, 0).await.expect("welcome"));
    }
    let pace = Pace { step: Duration::from_millis(1), last_delay: Duration::ZERO };
    assert_eq!(clients.round(pace, || Ok(())).await.unwrap().counted, DEVICES);

    let mut hostile = JoinSet::new();
    let mut identities = insiders.into_iter();
    for (kind, net) in ALL.into_iter().zip(1..) {
        for index in 0..EACH {
            let identity = if kind.has_key() { identities.next() } else { None };
            let index = u64::from(net) * 1000 + index as u64;
            let one = Hostile { kind, index, from: Some(Ipv4Addr::new(127, 0, 2, net)), identity };
            // One after the other: those with a key have proved it before anybody takes the places of strangers.
            let connected = one.connect(Target { address, seed: 1 }, 0).await.expect("a connection");
            hostile.spawn(connected.until_closed());
        }
    }
    let crowded = crowd(address, Ipv4Addr::new(127, 0, 3, 1)).await;
    let from = Some(Ipv4Addr::new(127, 0, 4, 1).into());
    let _newcomer = Device::join(address, from, newcomer, 0).await.expect("welcome");
    let (mut rounds, mut ended) = (1, 0);
    while ended < EACH * ALL.len() {
        assert_eq!(clients.round(pace, || Ok(())).await.unwrap().counted, DEVICES);
        rounds += 1;
        while let Some(one) = hostile.try_join_next() {
            one.expect("no panic");
            ended += 1;
        }
    }
    assert!(
        crowded.join_all().await.iter().all(|received| *received == 0),
        "who has proved nothing is told nothing"
    );
    // What ended last may still be on its way to the host.
    assert_eq!(clients.round(pace, || Ok(())).await.unwrap().counted, DEVICES);
    rounds += 1;

    stop.send(()).unwrap();
    let status = serving.await.unwrap().unwrap();
    let (counters, updates) = (status.connections, status.updates);
    assert_eq!(updates.counted, (rounds * DEVICES) as u64);
    let each = EACH as u64;
    // What stalls has begun an update of the first round.
    assert_eq!((updates.duplicate, updates.late, updates.declined), (0, each, 0));
    assert_eq!(counters.welcomed, DEVICES as u64 + 2 * each + 1, "{counters:?}");
    assert_eq!(counters.slow, 2 * each, "{counters:?}");
    assert_eq!(counters.refused, each, "{counters:?}");
    assert_eq!(counters.turned_away, 0, "{counters:?}");
    // On a slow machine junk comes so slowly that its time to say hello is over first.
    let strangers = counters.no_hello + counters.flood + counters.evicted + counters.dropped;
    assert_eq!(strangers, 4 * each + CROWD as u64, "{counters:?}");
    assert!(counters.no_hello >= each, "{counters:?}");
    assert!(counters.evicted >= (CROWD - UNAUTHENTICATED) as u64, "{counters:?}");
    assert!(counters.dropped_frames > 0 && counters.forged_frames > 0 && counters.unsealed_frames > 0);
    // The devices are still there; everybody else has one reason.
    let ended = counters.closed
        + counters.no_hello
        + counters.evicted
        + counters.dropped
        + counters.idle
        + counters.slow
        + counters.flood
        + counters.refused
        + counters.revoked
        + counters.ended;
    assert_eq!(ended, EACH as u64 * ALL.len() as u64 + CROWD as u64, "{counters:?}");
}
