//! As much HTTP as a test needs, by hand: what is sent is what stands here.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

/// An answer, taken apart.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The body, of an answer with this status.
    pub fn ok(self, status: u16) -> Vec<u8> {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.body
    }

    pub fn json(self, status: u16) -> Value {
        serde_json::from_slice(&self.ok(status)).unwrap()
    }

    /// What a refusal is called, and says.
    pub fn refusal(self, status: u16) -> (String, String) {
        let json = self.json(status);
        let text = |key: &str| json[key].as_str().unwrap().to_owned();
        (text("error"), text("text"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

/// A request on a connection of its own.
pub fn ask(address: SocketAddr, method: &str, token: &str, path: &str, body: &[u8]) -> Answer {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    raw(address, &[head.as_bytes(), body]).unwrap_or_else(|| panic!("{method} {path}: no answer"))
}

/// Bytes as they are, and what comes back; `None` if that is nothing.
pub fn raw(address: SocketAddr, parts: &[&[u8]]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    // A server that does not want the rest may have closed.
    for part in parts {
        drop(stream.write_all(part));
    }
    finish(stream)
}

/// What comes until an answer is whole, or the other side closes.
pub fn finish(mut stream: TcpStream) -> Option<Answer> {
    let (mut bytes, mut block) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        // What came before a reset counts.
        let read = stream.read(&mut block).unwrap_or(0);
        bytes.extend_from_slice(&block[..read]);
        let answer = parse(&bytes);
        if read == 0 || answer.is_some() {
            return answer;
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer { status, head, body: Vec::new() };
    let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
    answer.body = bytes.get(end + 4..end + 4 + length)?.to_vec();
    Some(answer)
}
