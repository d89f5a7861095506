//! Tests of AES-128-CCM against an example of NIST SP 800-38C and against the `ccm` crate.

extern crate std;

use std::vec::Vec;

use ccm::aead::inout::InOutBuf;
use ccm::consts::{U8, U12, U16};
use ccm::{AeadInOut, Ccm, KeyInit};
use proptest::prelude::*;

use super::super::{AEAD_NONCE, Aead};
use super::{Aes128Ccm, KEY, SHORT_TAG, SoftwareAes, TAG, TEXT_MAX};

fn aead() -> Aes128Ccm<SoftwareAes> {
    Aes128Ccm::default()
}

/// Tests example 3 of the standard's appendix C, which has the nonce's and the short tag's lengths.
#[test]
fn example_of_the_standard() {
    let bytes = |first: u8, count: u8| (first..first + count).collect::<Vec<u8>>();
    let mut key = [0; KEY];
    key[..16].copy_from_slice(&bytes(0x40, 16));
    // Only the first half of a direction's key is used.
    key[16..].fill(0xEE);
    let nonce: [u8; AEAD_NONCE] = bytes(0x10, 12).try_into().unwrap();
    let (head, mut text) = (bytes(0, 20), bytes(0x20, 24));
    let tag = aead().encrypt_short(&key, &nonce, &head, &mut text).unwrap();
    let expected = [
        0xe3, 0xb2, 0x01, 0xa9, 0xf5, 0xb7, 0x1a, 0x7a, 0x9b, 0x1c, 0xea, 0xec, 0xcd, 0x97, 0xe7, 0x0b, 0x61,
        0x76, 0xaa, 0xd9, 0xa4, 0x42, 0x8a, 0xa5,
    ];
    assert_eq!(text, expected);
    assert_eq!(tag, [0x48, 0x43, 0x92, 0xfb, 0xc1, 0xb0, 0x99, 0x51]);
    assert!(aead().decrypt_short(&key, &nonce, &head, &mut text, &tag));
    assert_eq!(text, bytes(0x20, 24));
}

#[test]
fn text_whose_length_does_not_fit_is_refused() {
    let mut text = std::vec![0; TEXT_MAX + 1];
    assert_eq!(aead().encrypt(&[0; KEY], &[0; AEAD_NONCE], &[], &mut text), None);
    assert!(!aead().decrypt(&[0; KEY], &[0; AEAD_NONCE], &[], &mut text, &[0; TAG]));
    assert!(text.iter().all(|byte| *byte == 0));
    assert_eq!(aead().encrypt(&[0; KEY], &[0; AEAD_NONCE], &[0; 0xFF00], &mut []), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn composition_matches_the_ccm_crate(
        key: [u8; KEY],
        nonce: [u8; AEAD_NONCE],
        head in prop::collection::vec(any::<u8>(), 0..80),
        text in prop::collection::vec(any::<u8>(), 0..600),
        flip: prop::sample::Index,
    ) {
        let aes: [u8; 16] = key[..16].try_into().unwrap();
        let mut expected = text.clone();
        let full = Ccm::<aes::Aes128, U16, U12>::new(&aes.into())
            .encrypt_inout_detached(&nonce.into(), &head, InOutBuf::from(expected.as_mut_slice()))
            .unwrap();
        let mut again = text.clone();
        let short = Ccm::<aes::Aes128, U8, U12>::new(&aes.into())
            .encrypt_inout_detached(&nonce.into(), &head, InOutBuf::from(again.as_mut_slice()))
            .unwrap();

        let (mut sealed, mut sealed_short) = (text.clone(), text.clone());
        let tag = aead().encrypt(&key, &nonce, &head, &mut sealed).unwrap();
        let short_tag = aead().encrypt_short(&key, &nonce, &head, &mut sealed_short).unwrap();
        prop_assert_eq!((&sealed, &tag[..]), (&expected, &full[..]));
        prop_assert_eq!((&sealed_short, &short_tag[..]), (&again, &short[..]));

        // One flipped bit prevents the decryption and leaves the text unchanged.
        for length in [TAG, SHORT_TAG] {
            let mut all = [&head[..], &sealed, if length == TAG { &tag[..] } else { &short_tag[..] }].concat();
            let bit = flip.index(8 * all.len());
            all[bit / 8] ^= 1 << (bit % 8);
            let (changed_head, rest) = all.split_at(head.len());
            let (ciphertext, changed_tag) = rest.split_at(sealed.len());
            let mut opened = ciphertext.to_vec();
            let is_open = match <[u8; TAG]>::try_from(changed_tag) {
                Ok(tag) => aead().decrypt(&key, &nonce, changed_head, &mut opened, &tag),
                Err(_) => {
                    aead().decrypt_short(&key, &nonce, changed_head, &mut opened, &changed_tag.try_into().unwrap())
                }
            };
            prop_assert!(!is_open);
            prop_assert_eq!(&opened, &ciphertext);
        }
        prop_assert!(aead().decrypt(&key, &nonce, &head, &mut sealed, &tag));
        prop_assert!(aead().decrypt_short(&key, &nonce, &head, &mut sealed_short, &short_tag));
        prop_assert_eq!((&sealed, &sealed_short), (&text, &text));
    }
}
