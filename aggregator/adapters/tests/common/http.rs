//! Test helpers: a minimal HTTP client that sends exactly the given bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

/// Parsed response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    /// Body of the response, which must have this status.
    pub fn expect_status(self, status: u16) -> Vec<u8> {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.body
    }

    /// JSON body of the response, which must have this status.
    pub fn expect_json(self, status: u16) -> Value {
        serde_json::from_slice(&self.expect_status(status)).unwrap()
    }

    /// Kind and text of the error response, which must have this status.
    pub fn expect_error(self, status: u16) -> (String, String) {
        let json = self.expect_json(status);
        let string_field = |key: &str| json[key].as_str().unwrap().to_owned();
        (string_field("error"), string_field("text"))
    }

    /// Value of a header of the response.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// Sends a request on a new connection.
pub fn send_request(address: SocketAddr, method: &str, token: &str, path: &str, body: &[u8]) -> Response {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    send_raw(address, &[head.as_bytes(), body]).unwrap_or_else(|| panic!("{method} {path}: no response"))
}

/// Sends raw bytes on a new connection. Returns `None` if the connection closes without a response.
pub fn send_raw(address: SocketAddr, chunks: &[&[u8]]) -> Option<Response> {
    let mut stream = TcpStream::connect(address).unwrap();
    // Write errors are ignored, because a server that refuses the request may have closed the connection.
    for chunk in chunks {
        drop(stream.write_all(chunk));
    }
    read_response(stream)
}

/// Reads until a response is complete or the peer closes the connection.
pub fn read_response(mut stream: TcpStream) -> Option<Response> {
    let (mut bytes, mut block) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        // A reset of the connection is handled like a close; the bytes before it are kept.
        let count = stream.read(&mut block).unwrap_or(0);
        bytes.extend_from_slice(&block[..count]);
        let response = parse_response(&bytes);
        if count == 0 || response.is_some() {
            return response;
        }
    }
}

fn parse_response(bytes: &[u8]) -> Option<Response> {
    let head_len = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..head_len].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut response = Response { status, head, body: Vec::new() };
    let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
    response.body = bytes.get(head_len + 4..head_len + 4 + length)?.to_vec();
    Some(response)
}
