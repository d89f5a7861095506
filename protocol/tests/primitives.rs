//! Tests of the key schedule's hash functions against the vectors of NIST and Wycheproof, valid and invalid,
//! and RFC 5869. The module of ChaCha20-Poly1305 contains its own tests.

use hkdf::hmac::{Hmac, KeyInit, Mac};
use hkdf::{Hkdf, HkdfExtract};
use sha2::{Digest, Sha256};

/// Decodes a hexadecimal string.
fn decode_hex(hex: &str) -> Vec<u8> {
    let digits = hex.trim_start_matches('-').as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Splits each line of a file into its fields.
fn parse_vectors<const N: usize>(file: &str) -> Vec<[&str; N]> {
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(' ').collect::<Vec<_>>().try_into().unwrap()).collect()
}

#[test]
fn sha256_passes_the_nist_vectors() {
    let tests = parse_vectors(include_str!("data/sha256.txt"));
    for [number, text, digest] in &tests {
        let text = decode_hex(text);
        assert_eq!(Sha256::digest(&text).to_vec(), decode_hex(digest), "{number}");
        // Hashed in two pieces, like a transcript.
        let (first, second) = text.split_at(text.len() / 3);
        assert_eq!(
            Sha256::new().chain_update(first).chain_update(second).finalize().to_vec(),
            decode_hex(digest)
        );
    }
    println!("SHA-256: {} valid", tests.len());
    assert_eq!(tests.len(), 65);
}

#[test]
fn hmac_passes_the_wycheproof_vectors() {
    let (mut valid, mut invalid) = (0, 0);
    for [number, result, key, text, tag] in parse_vectors(include_str!("data/hmac_sha256.txt")) {
        let mut mac = Hmac::<Sha256>::new_from_slice(&decode_hex(key)).unwrap();
        mac.update(&decode_hex(text));
        let accepted = mac.verify_truncated_left(&decode_hex(tag)).is_ok();
        assert_eq!(accepted, result == "valid", "{number}");
        *if accepted { &mut valid } else { &mut invalid } += 1;
    }
    println!("HMAC-SHA256: {valid} valid, {invalid} invalid");
    assert_eq!((valid, invalid), (66, 108));
}

/// Tests against values computed with Python's `hmac` and `hashlib`, and that the split of `info` into parts
/// has no effect.
#[test]
fn derived_secret_matches_python() {
    let secret = std::array::from_fn(|i| i as u8);
    let expected = decode_hex("1424d0f742e3a99ee776da30cc08a7b5fefd4b434522dd9e771c548f9c529f16");
    for info in [&[&b"a purpose"[..]][..], &[b"a ", b"", b"purpose"]] {
        assert_eq!(fedspan_protocol::secure::derive(&secret, info).to_vec(), expected);
    }
    assert_ne!(fedspan_protocol::secure::derive(&secret, &[b"another"]).to_vec(), expected);
}

#[test]
fn hkdf_passes_the_wycheproof_vectors() {
    let (mut valid, mut invalid) = (0, 0);
    for [number, result, key, salt, info, length, output] in
        parse_vectors(include_str!("data/hkdf_sha256.txt"))
    {
        let mut okm = vec![0; length.parse().unwrap()];
        let expanded = Hkdf::<Sha256>::new(Some(&decode_hex(salt)), &decode_hex(key))
            .expand(&decode_hex(info), &mut okm);
        // The invalid cases request more than 255 blocks.
        assert_eq!(expanded.is_ok(), result == "valid", "{number}");
        *if expanded.is_ok() { &mut valid } else { &mut invalid } += 1;
        if expanded.is_ok() {
            assert_eq!(okm, decode_hex(output), "{number}");
            // Called in the same way as in the key schedule, with `info` in parts.
            let (first, second) = (&decode_hex(info)[..info.len() / 4], &decode_hex(info)[info.len() / 4..]);
            let mut extract = HkdfExtract::<Sha256>::new(Some(&decode_hex(salt)));
            extract.input_ikm(&decode_hex(key));
            okm.fill(0);
            extract.finalize().1.expand_multi_info(&[first, second], &mut okm).unwrap();
            assert_eq!(okm, decode_hex(output), "{number}");
        }
    }
    println!("HKDF-SHA256: {valid} valid, {invalid} invalid");
    assert_eq!((valid, invalid), (83, 3));
}
