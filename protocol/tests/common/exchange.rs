//! Test helpers: the sealed vectors, which are one exchange under a key, from hello to acknowledgement,
//! with fixed nonces.

use fedspan_protocol::limits::wire_capacity;
use fedspan_protocol::message::{Message, ToServer};
use fedspan_protocol::secure::{Aead, Channel, HandshakeInit, Key, Seals, Suite, encode_hello};

use hkdf::Hkdf;
use sha2::{Digest, Sha256};

use super::golden::{self, Golden};

/// Returns the key `00 01 02 .. 1f` of SPEC.md.
pub fn example_key() -> Key {
    Key::new(0, std::array::from_fn(|i| i as u8))
}

/// Returns the device's handshake initiation. Every field has a different value, so that swapped fields are
/// detected.
pub fn handshake_init() -> HandshakeInit {
    HandshakeInit {
        epoch: 0,
        handshake: 0x0102_0304_0506_0708,
        nonce: std::array::from_fn(|i| 0xA0 + i as u8),
    }
}

/// Returns the server's nonce, which contains a zero byte that COBS must encode.
pub fn server_nonce() -> [u8; 16] {
    std::array::from_fn(|i| 0x10 * i as u8)
}

/// Frame of the exchange, as sent.
#[derive(Clone, Debug)]
pub struct Sealed {
    pub name: &'static str,
    pub meaning: &'static str,
    /// Content of the frame: message and body.
    pub payload: Vec<u8>,
    pub wire: Vec<u8>,
}

/// Returns the golden message with this name.
fn golden_message(name: &str) -> Golden {
    golden::all_messages().into_iter().find(|golden| golden.name == name).unwrap()
}

/// Seals one message and its body, and returns the bytes on the wire.
pub fn seal_frame<A: Aead>(channel: &mut Channel<A>, message: &impl Message, body: &[u8]) -> Vec<u8> {
    let mut wire = vec![0xAA; wire_capacity(4096)];
    let sent = channel.seal(message, body.len(), |buffer| buffer.copy_from_slice(body), &mut wire).unwrap();
    wire.truncate(sent);
    wire
}

/// Returns the device's and the server's channel after the handshake, and the two frames of the handshake:
/// hello and answer.
pub fn run_handshake() -> (Channel, Channel, Vec<u8>, Vec<u8>) {
    let golden::Message::Up(ToServer::Hello(hello)) = golden_message("to_server_hello").message else {
        panic!()
    };
    let golden::Message::Down(welcome) = golden_message("to_device_welcome").message else { panic!() };
    let (mut hello_bytes, mut answer) = (vec![0; 256], vec![0; 256]);
    let (sent, transcript) = encode_hello(hello, &handshake_init(), &mut hello_bytes).unwrap();
    hello_bytes.truncate(sent);
    let device = Channel::device(&example_key(), &transcript, &server_nonce());
    let mut server = Channel::server(&example_key(), &transcript, &server_nonce());
    let sent = server.seal_answer(&server_nonce(), &welcome, &mut answer).unwrap();
    answer.truncate(sent);
    (device, server, hello_bytes, answer)
}

/// Computes the transcript and the up and down keys of the exchange from the text of SPEC.md, with the crates
/// of the primitives.
pub fn expected_keys() -> [[u8; 32]; 3] {
    let mut hello_bytes = golden_message("to_server_hello").payload();
    hello_bytes.extend_from_slice(&handshake_init().to_bytes());
    let transcript: [u8; 32] = Sha256::digest(&hello_bytes).into();
    let expand = Hkdf::<Sha256>::new(Some(&transcript), &std::array::from_fn::<u8, 32, _>(|i| i as u8));
    let mut up_and_down = [0; 64];
    expand.expand(&[b"fedspan 1".as_slice(), &server_nonce()].concat(), &mut up_and_down).unwrap();
    [transcript, up_and_down[..32].try_into().unwrap(), up_and_down[32..].try_into().unwrap()]
}

/// Returns the vectors in the order in which they are sent. The last vector is a modified frame.
pub fn sealed_vectors() -> Vec<Sealed> {
    let (mut device, mut server, hello, answer) = run_handshake();
    let mut hello_bytes = golden_message("to_server_hello").payload();
    hello_bytes.extend_from_slice(&handshake_init().to_bytes());
    let mut vectors = vec![
        Sealed {
            name: "sealed_hello",
            meaning: "a frame of section 12: Hello as in to_server_hello, with a greeting: epoch 0, \
                      handshake 0x0102030405060708, nonce a0 a1 .. af",
            payload: hello_bytes,
            wire: hello,
        },
        Sealed {
            name: "sealed_answer",
            meaning: "a frame of section 12: the answer to it, Welcome as in to_device_welcome, nonce 00 10 20 .. f0",
            payload: golden_message("to_device_welcome").payload(),
            wire: answer,
        },
    ];
    for (name, meaning, plain) in [
        (
            "sealed_alive",
            "a frame of section 12: Alive, the device's frame 0, with which it confirms",
            "to_server_alive",
        ),
        (
            "sealed_round_open",
            "a frame of section 12: the message and body of to_device_round_open_f32, the server's frame 1",
            "to_device_round_open_f32",
        ),
        (
            "sealed_update",
            "a frame of section 12: the message and body of to_server_update_gradient_f32, the device's frame 1",
            "to_server_update_gradient_f32",
        ),
        (
            "sealed_ack",
            "a frame of section 12: the message of to_device_ack_counted, the server's frame 2",
            "to_device_ack_counted",
        ),
    ] {
        let golden = golden_message(plain);
        let wire = match &golden.message {
            golden::Message::Up(message) => seal_frame(&mut device, message, &golden.body),
            golden::Message::Down(message) => seal_frame(&mut server, message, &golden.body),
        };
        vectors.push(Sealed { name, meaning, payload: golden.payload(), wire });
    }
    vectors.push(forged_ack());
    vectors
}

/// Returns the device's frame 1 of the exchange in the other forms, under the same keys.
pub fn other_forms() -> Vec<Sealed> {
    let [transcript, ..] = expected_keys();
    [
        (
            "sealed_update_short",
            "a frame of section 12: sealed_update as a short seal",
            Suite::ChaCha20Poly1305,
            Seals::Short,
        ),
        (
            "sealed_update_aes_ccm",
            "a frame of section 12: sealed_update with AES-128-CCM",
            Suite::Aes128Ccm,
            Seals::Full,
        ),
        (
            "sealed_update_aes_ccm_short",
            "a frame of section 12: sealed_update with AES-128-CCM as a short seal",
            Suite::Aes128Ccm,
            Seals::Short,
        ),
    ]
    .map(|(name, meaning, suite, seals)| {
        let channel = Channel::device_with(suite, &example_key(), &transcript, &server_nonce());
        let mut channel = channel.with_seals(seals);
        seal_frame(&mut channel, &ToServer::Alive, &[]);
        let golden = golden_message("to_server_update_gradient_f32");
        let golden::Message::Up(message) = &golden.message else { panic!() };
        let wire = seal_frame(&mut channel, message, &golden.body);
        Sealed { name, meaning, payload: golden.payload(), wire }
    })
    .into()
}

/// Returns the acknowledgement with one encrypted bit flipped, which would turn Counted into Duplicate.
fn forged_ack() -> Sealed {
    let (_, mut server, ..) = run_handshake();
    let golden = golden_message("to_device_ack_counted");
    let golden::Message::Down(message) = &golden.message else { panic!() };
    let round_open = golden_message("to_device_round_open_f32");
    let golden::Message::Down(open) = &round_open.message else { panic!() };
    seal_frame(&mut server, open, &round_open.body);
    let wire = seal_frame(&mut server, message, &[]);
    let mut plain = cobs::decode_vec(&wire[..wire.len() - 1]).unwrap();
    // The offset covers the header and the counter, then tag, round and stage of the Ack. The next byte is
    // its outcome.
    plain[1 + 8 + 3] ^= 1;
    Sealed {
        name: "sealed_forged",
        meaning: "a frame of section 12, with one bit changed: sealed_ack whose outcome would be Duplicate. \
                  It must not open",
        payload: Vec::new(),
        wire: super::cobs_frame(&plain),
    }
}
