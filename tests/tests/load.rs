//! Tests of a small load: every device's update counts while hostile peers misbehave, and every connection
//! that ends is counted with its reason. The program `load` runs a large load.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fedspan_aggregator::config::Fleet;
use fedspan_aggregator::server::Server;
use fedspan_protocol::message::ToDevice;
use fedspan_tests::load::{Device, Hostile, Kind, Pace, Plan, Shape, SynchronisedClients, Target};
use getrandom::SysRng;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Number of honest devices.
const DEVICES: usize = 300;
/// Number of hostile peers of each kind.
const PEERS_PER_KIND: usize = 30;
/// Largest number of connections from one address.
const PER_ADDRESS: usize = 80;
/// Connection slots for unauthenticated peers: fewer than needed, and the address of the crowd always
/// occupies most of them.
const UNAUTHENTICATED: usize = 200;
/// Number of connections from one address that send nothing.
const CROWD: usize = 300;

/// Kinds of hostile peers.
const KINDS: [Kind; 7] =
    [Kind::Drip, Kind::Stall, Kind::Loris, Kind::Noise, Kind::Endless, Kind::Junk, Kind::Stranger];

/// Opens connections that send nothing. The returned tasks wait until the server closes each connection, and
/// yield the number of bytes received.
async fn connect_crowd(address: SocketAddr, from: Ipv4Addr) -> JoinSet<usize> {
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

/// Tests that a surplus device must prove its key before the server sends a sealed request to retry.
#[tokio::test]
async fn surplus_device_gets_retry_after() {
    let directory = tempfile::tempdir().unwrap();
    let limits = "connections = 2\n".to_owned();
    let plan = Plan { devices: 2, insiders: 1, frame_limit: 256, shape: Shape::default(), seed: 1, limits };
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
    assert!(devices[2].receive().await.is_err(), "the server did not close the connection");
    drop(devices);
    stop.send(()).unwrap();
    let counters = serving.await.unwrap().unwrap().connections;
    assert_eq!((counters.welcomed, counters.turned_away), (2, 1), "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_peers_cost_no_update_and_are_all_counted() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan {
        devices: DEVICES,
        insiders: 2 * PEERS_PER_KIND + 1,
        frame_limit: 256,
        shape: Shape::default(),
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
    for (kind, net) in KINDS.into_iter().zip(1..) {
        for index in 0..PEERS_PER_KIND {
            let identity = if kind.has_key() { identities.next() } else { None };
            let index = u64::from(net) * 1000 + index as u64;
            let peer = Hostile { kind, index, from: Some(Ipv4Addr::new(127, 0, 2, net)), identity };
            // Peers connect one after another, so that peers with a key are authenticated before others
            // occupy the slots.
            let connected = peer.connect(Target { address, seed: 1 }, 0).await.expect("a connection");
            hostile.spawn(connected.until_closed());
        }
    }
    let crowd = connect_crowd(address, Ipv4Addr::new(127, 0, 3, 1)).await;
    let from = Some(Ipv4Addr::new(127, 0, 4, 1).into());
    let _newcomer = Device::join(address, from, newcomer, 0).await.expect("welcome");
    let (mut rounds, mut ended) = (1, 0);
    while ended < PEERS_PER_KIND * KINDS.len() {
        assert_eq!(clients.round(pace, || Ok(())).await.unwrap().counted, DEVICES);
        rounds += 1;
        while let Some(task) = hostile.try_join_next() {
            task.expect("no panic");
            ended += 1;
        }
    }
    assert!(
        crowd.join_all().await.iter().all(|received| *received == 0),
        "an unauthenticated peer received bytes"
    );
    // One more round, because the server core may not have received the end of the last connection yet.
    assert_eq!(clients.round(pace, || Ok(())).await.unwrap().counted, DEVICES);
    rounds += 1;

    stop.send(()).unwrap();
    let status = serving.await.unwrap().unwrap();
    let (counters, updates) = (status.connections, status.updates);
    assert_eq!(updates.counted, (rounds * DEVICES) as u64);
    let peers = PEERS_PER_KIND as u64;
    // `Stall` peers have started an update of the first round.
    assert_eq!((updates.duplicate, updates.late, updates.declined), (0, peers, 0));
    assert_eq!(counters.welcomed, DEVICES as u64 + 2 * peers + 1, "{counters:?}");
    assert_eq!(counters.slow, 2 * peers, "{counters:?}");
    assert_eq!(counters.refused, peers, "{counters:?}");
    assert_eq!(counters.turned_away, 0, "{counters:?}");
    // On a slow machine the hello timeout of a `Junk` peer may expire before its flood limit.
    let strangers = counters.no_hello + counters.flood + counters.evicted + counters.dropped;
    assert_eq!(strangers, 4 * peers + CROWD as u64, "{counters:?}");
    assert!(counters.no_hello >= peers, "{counters:?}");
    assert!(counters.evicted >= (CROWD - UNAUTHENTICATED) as u64, "{counters:?}");
    assert!(counters.dropped_frames > 0 && counters.forged_frames > 0 && counters.unsealed_frames > 0);
    // The devices are still connected; every other connection ended for exactly one reason.
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
    assert_eq!(ended, PEERS_PER_KIND as u64 * KINDS.len() as u64 + CROWD as u64, "{counters:?}");
}
