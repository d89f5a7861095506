//! Tests of hostile HTTP peers: wrong lengths, invalid HTTP, slow peers.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use fedspan_adapters::files::RoundKind;

use crate::common::http::{read_response, send_raw};
use crate::common::live::{CLIENTS, RunningServer, ServerDirectory, list_files};

/// Head of an upload, with the given header for the length.
fn upload_head(length: &str) -> String {
    format!(
        "PUT /round/1/adapter_model.safetensors?samples=3 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer anton\r\n{length}\r\n\r\n"
    )
}

/// Asserts that no temporary files exist and that the round still accepts updates.
fn assert_clean(directory: &ServerDirectory, server: &RunningServer) {
    // The task that removes temporary files may end shortly after the connection.
    while list_files(&directory.file_path("state")).iter().any(|file| file.starts_with("incoming/")) {
        std::thread::yield_now();
    }
    assert_eq!(server.get(CLIENTS[0], "/round").expect_json(200)["updates"], 0);
    server.put(CLIENTS[0], 1, 1, &directory.base.trained(RoundKind::Up, 1).bytes()).expect_status(201);
}

#[test]
fn wrong_body_lengths_are_refused() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let body = directory.base.trained(RoundKind::Up, 1).bytes();
    let max_len = body.len() + (1 << 16);
    // A Content-Length above the limit is refused before the body is read.
    let response =
        send_raw(server.address, &[upload_head(&format!("Content-Length: {}", max_len + 1)).as_bytes()]);
    assert_eq!(response.unwrap().expect_error(413).0, "too-long");
    let expect_continue = format!("Content-Length: {}\r\nExpect: 100-continue", max_len + 1);
    let response = send_raw(server.address, &[upload_head(&expect_continue).as_bytes()]);
    assert_eq!(response.unwrap().expect_error(413).0, "too-long");
    // A chunked body above the limit is refused.
    let mut chunked = upload_head("Transfer-Encoding: chunked\r\nConnection: close").into_bytes();
    let block = vec![b'x'; 1 << 14];
    for _ in 0..=max_len / block.len() {
        chunked.extend_from_slice(format!("{:x}\r\n", block.len()).as_bytes());
        chunked.extend_from_slice(&block);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(send_raw(server.address, &[&chunked]).unwrap().expect_error(413).0, "too-long");
    // A connection that is closed in the middle of the body is not an update.
    let length = format!("Content-Length: {}", body.len());
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(upload_head(&length).as_bytes()).unwrap();
    stream.write_all(&body[..body.len() / 2]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_response(stream).is_none_or(|response| response.status == 400));
    while server.status_count("truncated") < 1 {
        std::thread::yield_now();
    }
    // Contradicting or negative lengths are invalid HTTP.
    for length in ["Content-Length: 5\r\nContent-Length: 6", "Content-Length: -1", "Content-Length: 5, 6"] {
        assert_eq!(
            send_raw(server.address, &[upload_head(length).as_bytes(), &body])
                .map(|response| response.status),
            Some(400)
        );
    }
    assert_eq!(server.status_count("too-long"), 3);
    assert_clean(&directory, &server);
}

#[test]
fn invalid_http_is_refused() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&[]);
    let long_header = format!("GET /round HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 18));
    let many_headers = format!("GET /round HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for (bytes, status) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], 400),
        (b"GET\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (long_header.as_bytes(), 431),
        (many_headers.as_bytes(), 431),
    ] {
        let response = send_raw(server.address, &[bytes]);
        assert!(response.as_ref().is_none_or(|response| response.status == status), "{response:?}");
    }
    assert!(server.status_count("connections-broken") > 0);
    assert_clean(&directory, &server);
}

#[test]
fn slow_peers_are_disconnected() {
    let directory = ServerDirectory::new();
    let server = directory.start_server(&["limits.head=0.05", "limits.transfer=0.1"]);
    let mut incomplete_request = TcpStream::connect(server.address).unwrap();
    incomplete_request.write_all(b"GET /round HT").unwrap();
    assert!(read_response(incomplete_request).is_none_or(|response| response.status == 408));
    let body = directory.base.trained(RoundKind::Up, 1).bytes();
    let mut slow_upload = TcpStream::connect(server.address).unwrap();
    slow_upload.write_all(upload_head(&format!("Content-Length: {}", body.len())).as_bytes()).unwrap();
    slow_upload.write_all(&body[..100]).unwrap();
    let response = read_response(slow_upload);
    assert!(response.as_ref().is_none_or(|response| response.status == 408), "{response:?}");
    assert_eq!(server.status_count("slow"), 1);
    drop(server);
    assert_clean(&directory, &directory.start_server(&[]));
}
