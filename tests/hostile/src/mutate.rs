//! Inputs that are created without a fuzzer: mutated seeds, and noise.

use crate::Random;

/// Largest length of an input, in bytes.
pub const LENGTH_MAX: usize = 2048;

/// Byte values at the boundaries of varints, COBS codes and delimiters.
const EDGES: [u8; 10] = [0, 1, 2, 4, 0x10, 0x11, 0x7F, 0x80, 0xFE, 0xFF];

/// Writes the next input: noise, or a seed with one to four mutations.
pub fn next(random: &mut Random, seeds: &[Vec<u8>], out: &mut Vec<u8>) {
    out.clear();
    if seeds.is_empty() || random.below(16) == 0 {
        let length = random.below(300);
        out.extend((0..length).map(|_| random.byte()));
        return;
    }
    out.extend_from_slice(&seeds[random.below(seeds.len())]);
    for _ in 0..=random.below(4) {
        damage(random, seeds, out);
    }
    out.truncate(LENGTH_MAX);
}

/// Applies one mutation to an input.
fn damage(random: &mut Random, seeds: &[Vec<u8>], out: &mut Vec<u8>) {
    let position = random.below(out.len() + 1);
    let end = (position + 1 + random.below(16)).min(out.len());
    match random.below(9) {
        0 | 1 => {
            if let Some(byte) = out.get_mut(position) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => {
            if let Some(byte) = out.get_mut(position) {
                *byte = random.byte();
            }
        }
        3 => {
            if let Some(byte) = out.get_mut(position) {
                *byte = EDGES[random.below(EDGES.len())];
            }
        }
        4 => drop(out.drain(position..end)),
        5 => {
            let noise: Vec<u8> = (0..1 + random.below(8)).map(|_| random.byte()).collect();
            out.splice(position..position, noise);
        }
        6 => {
            let repeated = out[position..end].to_vec();
            out.splice(position..position, repeated);
        }
        7 => {
            // Joins the beginning of one seed and the end of another.
            let other = &seeds[random.below(seeds.len())];
            out.truncate(position);
            out.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        _ => out.truncate(position),
    }
}

/// Shortens a failing input by removing pieces, as long as the input still fails.
pub fn shrink(mut input: Vec<u8>, fails: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut piece = input.len() / 2;
    while piece > 0 {
        let mut position = 0;
        while position < input.len() {
            let mut shorter = input.clone();
            shorter.drain(position..(position + piece).min(input.len()));
            if fails(&shorter) {
                input = shorter;
            } else {
                position += piece;
            }
        }
        piece /= 2;
    }
    input
}
