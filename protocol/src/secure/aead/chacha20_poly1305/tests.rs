//! Tests of ChaCha20-Poly1305 against Wycheproof's vectors, valid and invalid, and against the
//! `chacha20poly1305` crate.

extern crate std;

use std::vec::Vec;

use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
use proptest::prelude::*;

use super::super::nonce;
use super::{KEY, NONCE, TAG, decrypt, decrypt_short, encrypt, shorten_tag};

const VECTORS: &str = include_str!("../../../../tests/data/chacha20_poly1305.txt");

/// Decodes a hexadecimal string.
fn decode_hex(hex: &str) -> Vec<u8> {
    let digits = hex.trim_start_matches('-').as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn wycheproof_vectors_pass() {
    let mut valid = 0;
    let mut invalid = 0;
    let mut skipped = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [number, result, key, nonce, head, text, secret, tag] = fields.try_into().unwrap();
        let [key, nonce, head, text, secret, tag] = [key, nonce, head, text, secret, tag].map(decode_hex);
        let Ok(nonce) = <[u8; NONCE]>::try_from(nonce) else {
            // The nonce type has a fixed length, so other lengths cannot be tested.
            assert_eq!(result, "invalid", "{number}");
            skipped += 1;
            continue;
        };
        let key: [u8; KEY] = key.try_into().unwrap();
        let tag: [u8; TAG] = tag.try_into().unwrap();
        let mut buffer = secret.clone();
        let opened = decrypt(&key, &nonce, &head, &mut buffer, &tag);
        let mut sealed = text.clone();
        let computed_tag = encrypt(&key, &nonce, &head, &mut sealed).unwrap();
        if result == "valid" {
            valid += 1;
            assert!(opened && buffer == text, "{number}");
            assert!(sealed == secret && computed_tag == tag, "{number}");
        } else {
            invalid += 1;
            assert!(!opened && buffer == secret, "{number}: a forged text was decrypted");
            assert!(sealed != secret || computed_tag != tag, "{number}");
        }
    }
    std::println!("ChaCha20-Poly1305: {valid} valid, {invalid} invalid, {skipped} nonces of another length");
    assert_eq!((valid, invalid, skipped), (256, 60, 9));
}

#[test]
fn nonce_is_four_zeros_and_the_counter() {
    assert_eq!(nonce(0), [0; NONCE]);
    assert_eq!(nonce(0x0807_0605_0403_0201), [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(nonce(u64::MAX), [0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Tests short tags against the stream cipher of the `chacha20` crate, and that no flipped bit is accepted.
    #[test]
    fn short_tag_is_a_key_stream_under_a_key_of_the_frame(
        key: [u8; KEY],
        counter: u64,
        head in prop::collection::vec(any::<u8>(), 0..20),
        text in prop::collection::vec(any::<u8>(), 0..300),
        flip: prop::sample::Index,
    ) {
        use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
        let nonce = nonce(counter);
        let mut ciphertext = text.clone();
        let full = encrypt(&key, &nonce, &head, &mut ciphertext).unwrap();
        let tag = shorten_tag(&key, &nonce, full).unwrap();

        let mut first = [0; 64];
        chacha20::ChaCha20::new(&key.into(), &nonce.into()).apply_keystream(&mut first);
        let input: [u8; NONCE] = full[..NONCE].try_into().unwrap();
        let frame_key: [u8; KEY] = first[KEY..].try_into().unwrap();
        let mut cipher = chacha20::ChaCha20::new(&frame_key.into(), &input.into());
        let block = u32::from_le_bytes(full[NONCE..].try_into().unwrap());
        let mut expected = [0; 8];
        if cipher.try_seek(64 * u64::from(block)).is_ok() && cipher.try_apply_keystream(&mut expected).is_ok() {
            prop_assert_eq!(tag, expected);
        }

        let (mut changed_head, mut changed, mut changed_tag) = (head.clone(), ciphertext.clone(), tag);
        let bit = flip.index(8 * (head.len() + ciphertext.len() + tag.len()));
        let all_bytes = changed_head.iter_mut().chain(&mut changed).chain(&mut changed_tag);
        *all_bytes.into_iter().nth(bit / 8).unwrap() ^= 1 << (bit % 8);
        let before = changed.clone();
        prop_assert!(!decrypt_short(&key, &nonce, &changed_head, &mut changed, &changed_tag));
        prop_assert_eq!(changed, before);
        prop_assert!(decrypt_short(&key, &nonce, &head, &mut ciphertext, &tag));
        prop_assert_eq!(ciphertext, text);
    }

    #[test]
    fn composition_matches_the_chacha20poly1305_crate(
        key: [u8; KEY],
        counter: u64,
        head in prop::collection::vec(any::<u8>(), 0..80),
        text in prop::collection::vec(any::<u8>(), 0..600),
        flip: prop::sample::Index,
    ) {
        let nonce = nonce(counter);
        let oracle = ChaCha20Poly1305::new(&key.into());
        let mut expected = text.clone();
        let expected_tag = oracle
            .encrypt_inout_detached(&nonce.into(), &head, InOutBuf::from(expected.as_mut_slice()))
            .unwrap();
        let mut ciphertext = text.clone();
        let tag = encrypt(&key, &nonce, &head, &mut ciphertext).unwrap();
        prop_assert_eq!(&ciphertext, &expected);
        prop_assert_eq!(&tag[..], &expected_tag[..]);

        // Flipping one bit of the header, the ciphertext or the tag must prevent the decryption.
        let (mut changed_head, mut changed, mut changed_tag) = (head.clone(), ciphertext.clone(), tag);
        let bits = 8 * (head.len() + ciphertext.len() + TAG);
        let bit = flip.index(bits);
        let all_bytes = changed_head.iter_mut().chain(&mut changed).chain(&mut changed_tag);
        *all_bytes.into_iter().nth(bit / 8).unwrap() ^= 1 << (bit % 8);
        let before = changed.clone();
        prop_assert!(!decrypt(&key, &nonce, &changed_head, &mut changed, &changed_tag));
        prop_assert_eq!(changed, before);

        prop_assert!(decrypt(&key, &nonce, &head, &mut ciphertext, &tag));
        prop_assert_eq!(ciphertext, text);
    }
}
