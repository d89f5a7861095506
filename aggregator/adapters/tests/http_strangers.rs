//! Tests of peers that have no token, a wrong token, or too many connections: clients are answered meanwhile.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::http::{Response, read_response, send_raw, send_request};
use crate::common::live::{CLIENTS, ServerDirectory};

/// Number of requests of honest clients during a flood.
const REQUESTS: usize = 100;

/// Sends a GET request with these header lines on a new connection.
fn get(address: SocketAddr, path: &str, headers: &str) -> Option<Response> {
    send_raw(address, &[format!("GET {path} HTTP/1.1\r\n{headers}\r\n").as_bytes()])
}

/// Keeps connections open that send these bytes and nothing more, and opens each again when the server closes it.
/// Returns the number of connections that were opened.
fn hold_connections(address: SocketAddr, count: usize, bytes: &[u8], stop: &AtomicBool) -> usize {
    let mut opened = 0;
    let connect = |opened: &mut usize| {
        *opened += 1;
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(bytes).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    let mut streams: Vec<Option<TcpStream>> = (0..count).map(|_| connect(&mut opened)).collect();
    let mut buffer = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        for stream in &mut streams {
            let is_open = stream.as_mut().is_some_and(|stream| match stream.read(&mut buffer) {
                Ok(count) => count > 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            });
            if !is_open {
                *stream = connect(&mut opened);
            }
        }
        std::thread::yield_now();
    }
    opened
}

/// Sends requests of two honest clients while other connections send `bytes`. All must be answered.
fn assert_clients_are_answered(connections: usize, bytes: &[u8]) {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["limits.head=2.0"]);
    let stop = AtomicBool::new(false);
    let address = server.address;
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| hold_connections(address, connections, bytes, &stop));
        let statuses: Vec<u16> =
            (0..REQUESTS).map(|request| server.get(CLIENTS[1 + request % 2], "/round").status).collect();
        stop.store(true, Ordering::Relaxed);
        let opened = flood.join().unwrap();
        assert!(opened >= connections);
        assert_eq!(statuses, vec![200; REQUESTS]);
    });
}

#[test]
fn connections_without_token_lock_no_client_out() {
    for connections in [64, 300] {
        assert_clients_are_answered(connections, b"GET /round HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
}

#[test]
fn silent_connections_lock_no_client_out() {
    for connections in [64, 300] {
        assert_clients_are_answered(connections, b"");
    }
}

#[test]
fn polls_of_one_client_lock_no_other_out() {
    let poll =
        "GET /round?after=1&wait=60 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anton\r\n\r\n";
    assert_clients_are_answered(80, poll.as_bytes());
}

#[test]
fn connection_without_a_token_is_closed_after_the_response() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    for headers in ["Host: localhost\r\n", "Host: localhost\r\nAuthorization: Bearer dora\r\n"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(format!("GET /round HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 401") && text.contains("connection: close"), "{text}");
    }
    // A client's connection stays open after an error of its own.
    let mut stream = TcpStream::connect(server.address).unwrap();
    for (path, status) in [("/nothing", 404), ("/round", 200)] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anton\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(read_response(stream.try_clone().unwrap()).unwrap().status, status);
    }
}

/// The oldest connection of the address with most connections makes room for the newest, and is counted.
#[test]
fn stranger_is_evicted_by_a_newer_one() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["limits.unauthenticated=2"]);
    let mut oldest = TcpStream::connect(server.address).unwrap();
    let _newer = TcpStream::connect(server.address).unwrap();
    let _newest = TcpStream::connect(server.address).unwrap();
    // Reading ends only when the server closes the connection.
    oldest.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(oldest.read(&mut [0; 16]).unwrap(), 0);
    server.wait_for_count("connections-evicted", 1);
}

#[test]
fn connections_of_one_client_are_bounded() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["limits.connections=3", "limits.per_client=2"]);
    let wait =
        "GET /round?after=1&wait=60 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anton\r\n\r\n";
    let waiting: Vec<TcpStream> = (0..2)
        .map(|polls| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(wait.as_bytes()).unwrap();
            while server_waiting(&server) <= polls {
                std::thread::yield_now();
            }
            stream
        })
        .collect();
    let response = server.get("anton", "/round");
    assert_eq!(response.header("retry-after"), Some("5"));
    let (kind, text) = response.expect_error(429);
    assert!(kind == "too-many" && text.contains("2 connections") && text.contains("allowed: 2"), "{text}");
    // Another client takes the last slot, and then all are taken.
    let mut last = TcpStream::connect(server.address).unwrap();
    last.write_all(wait.replace("anton", "beate").as_bytes()).unwrap();
    let response = loop {
        let response = server.get("carla", "/round");
        if response.status != 200 {
            break response;
        }
    };
    assert_eq!(response.header("retry-after"), Some("5"));
    assert_eq!(response.expect_error(503).0, "connections-refused");
    drop((waiting, last));
    // Closed connections free their slots.
    while server.get("carla", "/round").status != 200 {
        std::thread::yield_now();
    }
    assert!(server.status_count("too-many") >= 1 && server.status_count("connections-refused") >= 1);
}

/// Number of polls that have begun to wait; 0 while the connection of the request before is still closing, so that none is
/// left for this one.
fn server_waiting(server: &crate::common::live::RunningServer) -> u64 {
    let response = server.get("carla", "/status");
    if response.status == 503 {
        return 0;
    }
    response.expect_json(200)["counts"]["waiting"].as_u64().unwrap_or(0)
}

#[test]
fn wrong_tokens_are_throttled_and_right_ones_are_not() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    // Neither right tokens nor missing ones are counted.
    assert!((0..40).all(|_| server.get("anton", "/round").status == 200));
    let without_token = || get(server.address, "/round", "Host: localhost\r\n").unwrap().status;
    assert!((0..40).all(|_| without_token() == 401));
    let statuses: Vec<u16> = (0..40)
        .map(|token| send_request(server.address, "GET", &format!("wrong{token}"), "/round", &[]).status)
        .collect();
    assert!(statuses[..20].iter().all(|status| *status == 401), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    let response = (0..40)
        .map(|_| send_request(server.address, "GET", "wrong", "/round", &[]))
        .find(|response| response.status == 429)
        .unwrap();
    let wait: u32 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    assert_eq!(response.expect_error(429).0, "throttled");
    assert!((0..40).all(|_| server.get("anton", "/round").status == 200));
    assert_eq!(without_token(), 401);
    assert!(server.status_count("throttled") >= 2);
    // Another address has a bucket of its own.
    let stream = connect_from([127, 0, 0, 2], server.address);
    let head = "GET /round HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n";
    (&stream).write_all(head.as_bytes()).unwrap();
    assert_eq!(read_response(stream).unwrap().status, 401);
}

/// Opens a connection from an address of this machine.
fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["hosts=[\"proxy.example\"]"]);
    let token = "Authorization: Bearer anton\r\n";
    for (headers, status, kind) in [
        ("Host: evil.example\r\n", 421, "host"),
        ("Host: localhost\r\nOrigin: http://evil.example\r\n", 403, "origin"),
        ("Host: localhost\r\nHost: localhost\r\n", 400, "bad-request"),
        ("Host: localhost\r\nAuthorization: Bearer dora\r\n", 400, "bad-request"),
        ("", 400, "bad-request"),
    ] {
        let response = get(server.address, "/round", &format!("{headers}{token}")).unwrap();
        assert_eq!(response.header("connection"), Some("close"), "{headers:?}");
        assert_eq!(response.expect_error(status).0, kind, "{headers:?}");
    }
    for headers in [
        "Host: proxy.example\r\n",
        "Host: 127.0.0.1:1\r\n",
        "Host: localhost\r\nOrigin: https://proxy.example\r\n",
    ] {
        assert_eq!(
            get(server.address, "/round", &format!("{headers}{token}")).unwrap().status,
            200,
            "{headers:?}"
        );
    }
    assert_eq!((server.status_count("host"), server.status_count("origin")), (1, 1));
    drop(server);
    // Without names in the configuration, a server on the loopback interface has those of the interface.
    let server = directory.start_server(&[]);
    for (host, status) in [("evil.example", 421), ("proxy.example", 421), ("localhost", 200)] {
        let headers = format!("Host: {host}\r\n{token}");
        assert_eq!(get(server.address, "/round", &headers).unwrap().status, status, "{host}");
    }
}

/// Attacks and faults are in the status before they occur, so that an operator sees what is watched.
#[test]
fn status_shows_every_counter_of_attacks() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let counts = server.get("anton", "/status").expect_json(200)["counts"].clone();
    for name in [
        "connections-evicted",
        "connections-refused",
        "counted-capped",
        "damaged",
        "host",
        "origin",
        "throttled",
        "too-many",
        "unauthorized",
    ] {
        assert_eq!(counts[name], 0, "{name}");
    }
}
