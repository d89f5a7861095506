//! Golden tests: every message variant has a frame in `vectors/`, and a change of any byte fails a test. With
//! the environment variable `FEDSPAN_REGENERATE_VECTORS=1` the tests rewrite the files instead.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::path::{Path, PathBuf};

use crate::common::exchange;
use crate::common::golden::{
    self, Golden, Message, encode_values, provision_record, provision_with_noise, representation,
};
use crate::common::{Event, cobs_frame, decode_stream, encode_message, plain_frame};
use fedspan_protocol::frame::crc32c;
use fedspan_protocol::limits::{HEADER, SCHEMA_HASH, WIRE_VERSION};
use fedspan_protocol::message::{
    AckOutcome, DeclineReason, Fault, HeadSolve, Model, Numeric, Refusal, Rejection, Requirement, Task,
    ToDevice, ToServer, Upload, decode,
};
use fedspan_protocol::orthonormal::orthonormalise;
use fedspan_protocol::tensor::{Encoding, Role};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Environment variable with which the tests rewrite the files.
const REGENERATE: &str = "FEDSPAN_REGENERATE_VECTORS";

/// Returns the folder of the golden vectors.
fn vectors_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// Bytes of a golden vector, with its name and description.
struct Pinned {
    name: &'static str,
    meaning: &'static str,
    bytes: Vec<u8>,
}

/// Returns the frames of all golden messages.
fn golden_frames() -> Vec<Pinned> {
    let pin = |g: Golden| Pinned { name: g.name, meaning: g.meaning, bytes: g.frame() };
    golden::all_messages().into_iter().map(pin).collect()
}

/// Returns the vectors that are not frames of section 1: the decoded body of `to_device_round_open_i8` as
/// f32, little endian, the provisioning records, and an exchange under a key.
fn other_vectors() -> Vec<Pinned> {
    let mut b = vec![0.0; 40];
    Encoding::I8.decode(&encode_values(Encoding::I8, &representation()), &mut b).unwrap();
    let decoded = encode_values(Encoding::F32, &b);
    orthonormalise(&mut b, 2).unwrap();
    let mut vectors = vec![
        Pinned {
            name: "representation_i8_decoded",
            meaning: "not a frame: the 20 x 2 body of to_device_round_open_i8, decoded, as f32",
            bytes: decoded,
        },
        Pinned {
            name: "representation_i8_orthonormal",
            meaning: "not a frame: the same after the QR, as f32: B of the round, to the last bit",
            bytes: encode_values(Encoding::F32, &b),
        },
        Pinned {
            name: "provision_record",
            meaning: "not a frame: the provisioning record of device 0x0123456789abcdef with key 40 41 .. 5f, epoch 515",
            bytes: provision_record(),
        },
        Pinned {
            name: "provision_with_noise",
            meaning: "not a frame: the same with an entry for noise",
            bytes: provision_with_noise(),
        },
    ];
    let pin = |s: exchange::Sealed| Pinned { name: s.name, meaning: s.meaning, bytes: s.wire };
    vectors.extend(exchange::sealed_vectors().into_iter().chain(exchange::other_forms()).map(pin));
    vectors.push(Pinned {
        name: "sealed_keys",
        meaning: "not a frame: transcript, up and down of the sealed frames, 32 bytes each",
        bytes: exchange::expected_keys().concat(),
    });
    vectors
}

/// Appends a vector to `text` as a C array.
fn append_c_array(text: &mut String, pinned: &Pinned) {
    let Pinned { name, meaning, bytes } = pinned;
    write!(text, "/* {meaning}. */\nstatic const uint8_t {name}[{}] = {{", bytes.len()).unwrap();
    for line in bytes.chunks(16) {
        text.push_str("\n   ");
        line.iter().for_each(|byte| write!(text, " 0x{byte:02x},").unwrap());
    }
    text.push_str("\n};\n\n");
}

/// Returns the C header with all vectors.
fn c_header() -> String {
    let mut text = format!(
        "/* Golden vectors of the FedSpan wire, version {WIRE_VERSION}. See README.md beside this file.\n   \
         Written by tests/golden.rs; do not edit. */\n\
         #ifndef FEDSPAN_VECTORS_H\n#define FEDSPAN_VECTORS_H\n\n\
         #include <stddef.h>\n#include <stdint.h>\n\n\
         #define FEDSPAN_WIRE_VERSION {WIRE_VERSION}u\n\
         #define FEDSPAN_SCHEMA_HASH 0x{SCHEMA_HASH:08x}u\n\n"
    );
    let frames = golden_frames();
    frames.iter().chain(&other_vectors()).for_each(|pinned| append_c_array(&mut text, pinned));
    text.push_str("struct fedspan_vector {\n    const char *name;\n    const uint8_t *bytes;\n");
    text.push_str("    size_t length;\n};\n\n/* All frames, in the order of their names. */\n");
    text.push_str("static const struct fedspan_vector fedspan_vectors[] = {\n");
    for Pinned { name, bytes, .. } in &frames {
        writeln!(text, "    {{\"{name}\", {name}, {}}},", bytes.len()).unwrap();
    }
    text.push_str("};\n\n#endif\n");
    text
}

/// Returns the list of all vectors in Markdown.
fn format_manifest() -> String {
    let mut text = String::from(
        "# Golden vectors\n\n\
         The bytes that `../SPEC.md` describes. Each `.bin` file is one complete frame as it crosses the wire,\n\
         delimiter included, unless the table says otherwise. `vectors.h` holds the same bytes as C arrays,\n\
         `check.c` reads frames and messages with nothing but libc, `check_sealed.c` opens and seals those under a\n\
         key, `check_qr.c` runs the QR:\n\n\
         ```sh\ncc -std=c99 check.c -o check && ./check\n\
         cc -std=c99 check_sealed.c -o check_sealed && ./check_sealed\n\
         cc -std=c99 -ffp-contract=off check_qr.c -lm -o check_qr && ./check_qr\n```\n\n\
         `protocol/tests/golden.rs` fails when a byte changes. Written anew by\n\n\
         ```sh\nFEDSPAN_REGENERATE_VECTORS=1 cargo test -p fedspan-protocol --test all -- golden::\n```\n\n\
         | file | bytes | meaning |\n| --- | ---: | --- |\n",
    );
    for Pinned { name, meaning, bytes } in golden_frames().iter().chain(&other_vectors()) {
        writeln!(text, "| `{name}.bin` | {} | {meaning} |", bytes.len()).unwrap();
    }
    text
}

/// Returns the names and contents of all generated files.
fn generated_files() -> Vec<(String, Vec<u8>)> {
    let bin = |p: Pinned| (format!("{}.bin", p.name), p.bytes);
    let mut files: Vec<_> = golden_frames().into_iter().chain(other_vectors()).map(bin).collect();
    files.push(("vectors.h".into(), c_header().into_bytes()));
    files.push(("README.md".into(), format_manifest().into_bytes()));
    files
}

#[test]
fn files_match_the_golden_bytes() {
    let files = generated_files();
    let expected: BTreeSet<_> = files.iter().map(|(name, _)| name.as_str()).collect();
    let stale: Vec<String> = std::fs::read_dir(vectors_folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".bin") && !expected.contains(name.as_str()))
        .collect();
    if std::env::var_os(REGENERATE).is_some_and(|value| value == "1") {
        stale.iter().for_each(|name| std::fs::remove_file(vectors_folder().join(name)).unwrap());
        files.iter().for_each(|(name, bytes)| std::fs::write(vectors_folder().join(name), bytes).unwrap());
        return;
    }
    let mut changed: Vec<&str> = stale.iter().map(String::as_str).collect();
    for (name, bytes) in &files {
        if std::fs::read(vectors_folder().join(name)).ok().as_ref() != Some(bytes) {
            changed.push(name);
        }
    }
    assert!(
        changed.is_empty(),
        "these files in protocol/vectors differ from what the code writes: {changed:?}\n\
         If the wire was meant to change, raise WIRE_VERSION where SPEC.md asks for it, put the new\n\
         SCHEMA_HASH into limits.rs, and run again with {REGENERATE}=1."
    );
}

#[test]
fn schema_hash_covers_the_golden_messages() {
    // The excluded hello contains the hash itself; other hellos cover its layout. Peers do not need to
    // support the tasks for private use or the messages that can be ignored, and builds with and without these
    // accept each other.
    let excluded = |name: &str| {
        name == "to_server_hello"
            || name.contains(golden::PRIVATE_USE)
            || name.contains(golden::LEARNED_PRIOR)
            || golden::OPTIONAL.contains(&name)
    };
    let hashed = golden::all_messages().into_iter().filter(|g| !excluded(g.name));
    let bytes: Vec<u8> = hashed.flat_map(|golden| golden.payload()).collect();
    let hash = crc32c(&bytes);
    assert_eq!(
        hash, SCHEMA_HASH,
        "put `pub const SCHEMA_HASH: u32 = {hash:#x};` into limits.rs, then run with {REGENERATE}=1"
    );
}

/// Tests that the frames equal those of an independent encoder and checksum, and that they decode to the
/// message.
#[test]
fn golden_frames_agree_with_independent_framing() {
    for golden in golden::all_messages() {
        let (payload, frame) = (golden.payload(), golden.frame());
        assert_eq!(frame, cobs_frame(&plain_frame(&payload)), "{}", golden.name);
        let (events, _) = decode_stream(plain_frame(&payload).len(), &frame, &[1]);
        assert_eq!(events, [Event::Message(payload.clone())], "{}", golden.name);
        let (head, body) = match &golden.message {
            Message::Up(message) => {
                let (decoded, body) = decode::<ToServer>(&payload).unwrap();
                assert_eq!(decoded, *message);
                (encode_message(message), body)
            }
            Message::Down(message) => {
                let (decoded, body) = decode::<ToDevice>(&payload).unwrap();
                assert_eq!(decoded, *message);
                (encode_message(message), body)
            }
        };
        assert_eq!(body, golden.body);
        assert_eq!(head.len() + body.len() + HEADER + 4, plain_frame(&payload).len());
    }
}

#[test]
fn names_are_distinct_c_identifiers() {
    let names: BTreeSet<_> = golden::all_messages().iter().map(|g| g.name).collect();
    assert_eq!(names.len(), golden::all_messages().len());
    assert!(
        names.iter().all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'))
    );
}

/// Returns the text of SPEC.md.
fn read_specification() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("SPEC.md")).unwrap()
}

/// Tests that the hex dumps in SPEC.md are the vectors: `wire` is the whole frame, `plain` the frame before
/// COBS encoding.
#[test]
fn specification_shows_the_golden_bytes() {
    let specification = read_specification();
    let mut shown_vectors = 0;
    for block in specification.split("```").skip(1).step_by(2) {
        let (info, lines) = block.split_once('\n').unwrap();
        let Some((kind, name)) = info.split_once(' ') else { continue };
        let hex = lines.lines().flat_map(|line| line.split(';').next().unwrap().split_whitespace());
        let bytes: Vec<u8> = hex.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        if kind == "sealed" {
            let pinned = other_vectors().into_iter().find(|pinned| pinned.name == name).unwrap();
            assert_eq!(bytes, pinned.bytes, "{name}");
            continue;
        }
        let golden = golden::all_messages().into_iter().find(|golden| golden.name == name).unwrap();
        match kind {
            "wire" => assert_eq!(bytes, golden.frame(), "{name}"),
            "plain" => assert_eq!(bytes, plain_frame(&golden.payload()), "{name}"),
            other => panic!("unknown kind of block: {other}"),
        }
        shown_vectors += 1;
    }
    assert!(shown_vectors >= 10);
    assert!(specification.contains(&format!("| Wire version | {WIRE_VERSION} |")));
    assert!(
        specification.contains(&format!("| Schema hash | `{SCHEMA_HASH:#010x}` ")),
        "SPEC.md names another schema hash than {SCHEMA_HASH:#010x}"
    );
}

/// Asserts that every tag which a type decodes (followed by enough zeros) occurs in a golden value, and that
/// SPEC.md has a row with this tag and its name.
fn assert_all_tags_have_vectors<T: Serialize + DeserializeOwned + Debug>(
    values: impl IntoIterator<Item = T>,
) {
    let specification = read_specification();
    let mut golden_tags = BTreeSet::new();
    for value in values {
        let (tag, text) = (encode_message(&value)[0], format!("{value:?}"));
        let name = text.split([' ', '(']).next().unwrap();
        assert!(specification.contains(&format!("| {tag} {name} |")), "SPEC.md has no row for {tag} {name}");
        golden_tags.insert(tag);
    }
    // A byte of 128 or more is not a whole varint.
    let decoded_tags: BTreeSet<u8> = (0..128)
        .filter(|tag| {
            let mut bytes = [0; 64];
            bytes[0] = *tag;
            postcard::take_from_bytes::<T>(&bytes).is_ok()
        })
        .collect();
    assert_eq!(
        golden_tags,
        decoded_tags,
        "variants of {} without a golden vector",
        std::any::type_name::<T>()
    );
}

#[test]
fn every_variant_of_every_enum_has_a_vector() {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for golden in golden::all_messages() {
        match golden.message {
            Message::Up(message) => up.push(message),
            Message::Down(message) => down.push(message),
        }
    }
    let opens: Vec<_> = down
        .iter()
        .filter_map(|m| if let ToDevice::RoundOpen(open) = m { Some(open.clone()) } else { None })
        .collect();
    let updates: Vec<_> = up
        .iter()
        .filter_map(|m| if let ToServer::Update(update) = m { Some(update.clone()) } else { None })
        .collect();
    let hellos: Vec<_> = up
        .iter()
        .filter_map(|m| if let ToServer::Hello(hello) = m { Some(hello.capabilities) } else { None })
        .collect();
    let refusals: Vec<Refusal> =
        down.iter().filter_map(|m| if let ToDevice::Refused(r) = m { Some(*r) } else { None }).collect();
    let outcomes: Vec<AckOutcome> =
        down.iter().filter_map(|m| if let ToDevice::Ack(a) = m { Some(a.outcome) } else { None }).collect();
    let tensors: Vec<_> = opens
        .iter()
        .flat_map(|open| open.tensors.clone())
        .chain(updates.iter().flat_map(|update| update.tensors.clone()))
        .collect();

    assert_all_tags_have_vectors::<Role>(tensors.iter().map(|t| t.role));
    assert_all_tags_have_vectors::<Encoding>(tensors.iter().map(|t| t.encoding));
    assert_all_tags_have_vectors::<Task>(opens.iter().map(|open| open.task));
    assert_all_tags_have_vectors::<HeadSolve>(opens.iter().filter_map(|open| match open.task {
        Task::FedRep { head, .. } | Task::FitHead { head } => Some(head),
        _ => None,
    }));
    assert_all_tags_have_vectors::<Upload>(opens.iter().filter_map(|open| match open.task {
        Task::FedRep { upload, .. } => Some(upload),
        _ => None,
    }));
    assert_all_tags_have_vectors::<Model>(hellos.iter().map(|c| c.model));
    assert_all_tags_have_vectors::<Numeric>(hellos.iter().map(|c| c.numeric));
    assert_all_tags_have_vectors::<Refusal>(refusals.clone());
    assert_all_tags_have_vectors::<Requirement>(refusals.iter().filter_map(|r| match r {
        Refusal::Capability(need) => Some(*need),
        _ => None,
    }));
    assert_all_tags_have_vectors::<AckOutcome>(outcomes.clone());
    assert_all_tags_have_vectors::<Rejection>(outcomes.iter().filter_map(|outcome| match outcome {
        AckOutcome::Rejected(rejection) => Some(*rejection),
        _ => None,
    }));
    assert_all_tags_have_vectors::<DeclineReason>(
        up.iter().filter_map(|m| if let ToServer::Decline(d) = m { Some(d.reason) } else { None }),
    );
    assert_all_tags_have_vectors::<Fault>(
        down.iter().filter_map(|m| if let ToDevice::Fault(f) = m { Some(*f) } else { None }),
    );
    assert_all_tags_have_vectors::<ToServer>(up);
    assert_all_tags_have_vectors::<ToDevice>(down);
}
