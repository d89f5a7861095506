//! Tests that firmware and host draw the same random numbers. Firmware takes its generator from the crate of the cipher that seals
//! frames, so that ChaCha is in flash once; the host has `rand_chacha`.

use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};

/// One call of a generator.
#[derive(Clone, Copy, Debug)]
enum Call {
    U32,
    U64,
    Bytes(usize),
}

/// Returns the results of calls as bytes.
fn draw(mut generator: impl Rng, calls: &[Call]) -> Vec<u8> {
    let mut drawn = Vec::new();
    for call in calls {
        match *call {
            Call::U32 => drawn.extend(generator.next_u32().to_le_bytes()),
            Call::U64 => drawn.extend(generator.next_u64().to_le_bytes()),
            Call::Bytes(count) => {
                let start = drawn.len();
                drawn.resize(start + count, 0);
                generator.fill_bytes(&mut drawn[start..]);
            }
        }
    }
    drawn
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![Just(Call::U32), Just(Call::U64), (0..300usize).prop_map(Call::Bytes)];
    prop::collection::vec(call, 0..200)
}

proptest! {
    /// A buffer of either generator has 64 words, so the calls begin at every place in it and cross its end.
    #[test]
    fn generators_draw_the_same_numbers(seed: [u8; 32], number: u64, calls in calls()) {
        prop_assert_eq!(
            draw(chacha20::ChaCha8Rng::from_seed(seed), &calls),
            draw(rand_chacha::ChaCha8Rng::from_seed(seed), &calls)
        );
        prop_assert_eq!(
            draw(chacha20::ChaCha20Rng::from_seed(seed), &calls),
            draw(rand_chacha::ChaCha20Rng::from_seed(seed), &calls)
        );
        prop_assert_eq!(
            draw(chacha20::ChaCha8Rng::seed_from_u64(number), &calls),
            draw(rand_chacha::ChaCha8Rng::seed_from_u64(number), &calls)
        );
    }

    /// The same at any place of any stream of a seed.
    #[test]
    fn streams_are_the_same(seed: [u8; 32], stream: u64, word in 0..1u128 << 68, calls in calls()) {
        let mut ours = chacha20::ChaCha8Rng::from_seed(seed);
        let mut other = rand_chacha::ChaCha8Rng::from_seed(seed);
        ours.set_stream(stream);
        other.set_stream(stream);
        prop_assert_eq!(draw(&mut ours, &calls), draw(&mut other, &calls));
        ours.set_word_pos(word);
        other.set_word_pos(word);
        prop_assert_eq!(draw(&mut ours, &calls), draw(&mut other, &calls));
    }
}
