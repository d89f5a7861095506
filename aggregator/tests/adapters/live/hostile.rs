//! Peers that are slow, that lie about lengths, that are too many.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use fedspan_adapters::files::RoundKind;

use super::http::{finish, raw};
use super::{CLIENTS, Live, Place, files, part};

fn head(length: &str) -> String {
    format!(
        "PUT /round/1/adapter_model.safetensors?samples=3 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer anton\r\n{length}\r\n\r\n"
    )
}

fn nothing_is_left(place: &Place, live: &Live) {
    // What was received goes when its task ends, which may be a moment after the connection has.
    while files(&place.at("state")).iter().any(|file| file.starts_with("incoming/")) {
        std::thread::yield_now();
    }
    assert_eq!(live.get(CLIENTS[0], "/round").json(200)["updates"], 0);
    live.put(CLIENTS[0], 1, 1, &place.base.trained(RoundKind::Up, 1).bytes()).ok(201);
}

#[test]
fn bodies_that_are_not_as_long_as_they_say() {
    let place = Place::new();
    let live = place.serve(&[]);
    let body = place.base.trained(RoundKind::Up, 1).bytes();
    let most = body.len() + (1 << 16);
    // Too long, by its own words: not a byte is wanted.
    let answer = raw(live.address, &[head(&format!("Content-Length: {}", most + 1)).as_bytes()]);
    assert_eq!(answer.unwrap().refusal(413).0, "too-long");
    let asks_first = format!("Content-Length: {}\r\nExpect: 100-continue", most + 1);
    let answer = raw(live.address, &[head(&asks_first).as_bytes()]);
    assert_eq!(answer.unwrap().refusal(413).0, "too-long");
    // Too long, and it does not say so.
    let mut chunked = head("Transfer-Encoding: chunked\r\nConnection: close").into_bytes();
    let block = vec![b'x'; 1 << 14];
    for _ in 0..=most / block.len() {
        chunked.extend_from_slice(format!("{:x}\r\n", block.len()).as_bytes());
        chunked.extend_from_slice(&block);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(raw(live.address, &[&chunked]).unwrap().refusal(413).0, "too-long");
    // Shorter than it says: the connection ends, and so does the file.
    let length = format!("Content-Length: {}", body.len());
    let mut cut = TcpStream::connect(live.address).unwrap();
    cut.write_all(head(&length).as_bytes()).unwrap();
    cut.write_all(&body[..body.len() / 2]).unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert!(finish(cut).is_none_or(|answer| answer.status == 400));
    while live.count("truncated") < 1 {
        std::thread::yield_now();
    }
    // Two lengths, none, a negative one: not HTTP.
    for length in ["Content-Length: 5\r\nContent-Length: 6", "Content-Length: -1", "Content-Length: 5, 6"] {
        assert_eq!(
            raw(live.address, &[head(length).as_bytes(), &body]).map(|answer| answer.status),
            Some(400)
        );
    }
    assert_eq!(live.count("too-long"), 3);
    nothing_is_left(&place, &live);
}

#[test]
fn what_is_no_http_ends() {
    let place = Place::new();
    let live = place.serve(&[]);
    let long = format!("GET /round HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 18));
    let many = format!("GET /round HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for (bytes, status) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], 400),
        (b"GET\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (long.as_bytes(), 431),
        (many.as_bytes(), 431),
    ] {
        let answer = raw(live.address, &[bytes]);
        assert!(answer.as_ref().is_none_or(|answer| answer.status == status), "{answer:?}");
    }
    assert!(live.count("connections-broken") > 0);
    nothing_is_left(&place, &live);
}

#[test]
fn who_is_too_slow_is_let_go() {
    let place = Place::new();
    let live = place.serve(&["limits.head=0.05", "limits.transfer=0.1"]);
    let mut silent = TcpStream::connect(live.address).unwrap();
    silent.write_all(b"GET /round HT").unwrap();
    assert!(finish(silent).is_none_or(|answer| answer.status == 408));
    let body = place.base.trained(RoundKind::Up, 1).bytes();
    let mut slow = TcpStream::connect(live.address).unwrap();
    slow.write_all(head(&format!("Content-Length: {}", body.len())).as_bytes()).unwrap();
    slow.write_all(&body[..100]).unwrap();
    let answer = finish(slow);
    assert!(answer.as_ref().is_none_or(|answer| answer.status == 408), "{answer:?}");
    assert_eq!(live.count("slow"), 1);
    drop(live);
    nothing_is_left(&place, &place.serve(&[]));
}

#[test]
fn no_more_connections_than_are_allowed() {
    let place = Place::new();
    let live = place.serve(&["limits.connections=2"]);
    let wait = "GET /round?after=1&wait=60 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer anton\r\n\r\n";
    let mut held: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(live.address).unwrap()).collect();
    held.iter_mut().for_each(|stream| stream.write_all(wait.as_bytes()).unwrap());
    // Connections are accepted in their order: those two have the places.
    let answer = raw(live.address, &[]).unwrap();
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("5")));
    drop(held);
    // Places come back.
    let update = part(&place.base.trained(RoundKind::Up, 1), RoundKind::Up).bytes();
    let request =
        [head(&format!("Content-Length: {}\r\nConnection: close", update.len())).into_bytes(), update]
            .concat();
    let status = loop {
        match raw(live.address, &[&request]) {
            Some(answer) if answer.status != 503 => break answer.status,
            _ => std::thread::yield_now(),
        }
    };
    // A place may have been had, and the answer lost.
    assert!([200, 201].contains(&status), "{status}");
    assert!(live.count("connections-refused") >= 1);
}
