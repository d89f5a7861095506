//! Test helpers for FedRep with noise: rounds with a known noise seed and without a session, and the
//! integers of the clipped gradient in wide arithmetic.

use fedspan_client::memory::Memory;
use fedspan_client::privacy::{Clip, Clipped, Seed, noise};
use fedspan_client::source::SampleSource;
use fedspan_client::task::Usage;
use fedspan_client::{Linear, Mechanism};
use fedspan_protocol::message::{DeclineReason, Task as Wire};

use super::private::{Known, LEAST, settings};
use super::{Heap, Sliced, fed_rep_round, fed_rep_stream};

/// Model with a clipping mechanism whose seed is known.
pub type Device<'a> = Linear<&'a mut Heap, Clipped<Known>>;

/// Returns a mechanism with the smallest noise and the seed of this number.
pub fn known_mechanism(number: u64) -> Known {
    Known::new(settings(LEAST, 1), number)
}

/// Creates a device in this memory.
pub fn clipping_device(memory: &mut Heap, known: Known, clip: Clip) -> Device<'_> {
    Linear::private(memory, Clipped::new(known, clip)).unwrap()
}

/// Results of a round: the usage of samples, the upload, and its integers without noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    pub usage: Usage,
    pub sent: Vec<f32>,
    pub integers: Vec<i128>,
}

/// Runs a round on a new device.
pub fn run_new_device(
    samples: &Sliced,
    clip: Clip,
    task: Wire,
    b: &[f32],
    streamed: bool,
) -> Result<Round, DeclineReason> {
    let d = samples.features;
    let mut memory = Heap::streaming(d, b.len() / d, samples.outputs);
    let mut device = clipping_device(&mut memory, known_mechanism(1), clip);
    run_device(&mut device, task, b, &mut samples.clone(), streamed)
}

/// Runs a round on this device.
pub fn run_device(
    device: &mut Device<'_>,
    task: Wire,
    b: &[f32],
    samples: &mut Sliced,
    streamed: bool,
) -> Result<Round, DeclineReason> {
    let (usage, sent) = if streamed {
        fed_rep_stream(device, task, b, samples)?
    } else {
        fed_rep_round(device, task, b, samples as &mut dyn SampleSource)?
    };
    let mechanism = device.mechanism();
    let integers = without_noise(&sent, mechanism.mechanism(), *mechanism.clipping().unwrap().clip());
    Ok(Round { usage, sent, integers })
}

/// Returns the integers of the upload minus its noise. They are exact, because with so little noise they have
/// fewer than 24 bits.
pub fn without_noise(sent: &[f32], known: &Known, clip: Clip) -> Vec<i128> {
    let variance = known.settings.multiplier().variance(clip.sensitivity()).unwrap();
    let seed = Seed::new(known.seed);
    (0..)
        .zip(sent)
        .map(|(coordinate, &value)| {
            let noisy = f64::from(value) / f64::from(clip.unit());
            assert!(noisy == noisy.round() && noisy.abs() < f64::from(1 << 24), "{noisy}");
            noisy as i128 - i128::from(noise(&seed, coordinate, &variance))
        })
        .collect()
}

/// Returns the sum of squares.
pub fn squared_norm(integers: &[i128]) -> i128 {
    integers.iter().map(|q| q * q).sum()
}

/// Computes the integers of the clipped gradient `S W^T / m` of `m` samples from the sums in a device's
/// memory, and whether they were clipped. Returns `None` if no clipping factor exists.
pub fn expected_clipped(memory: &mut Heap, m: u32, clip: Clip) -> Option<(Vec<i128>, bool)> {
    let parts = memory.parts();
    let (s, w, c) = (&*parts.residual, &*parts.head, parts.shape.outputs);
    let element = |factor: f32, s: &[f32], w: &[f32]| match (s, w) {
        ([s], [w]) => factor * s * w,
        _ => factor * s.iter().zip(w).fold(0.0f32, |sum, (a, b)| sum + a * b),
    };
    let elements = |factor: f32| -> Vec<f32> {
        s.chunks(c).flat_map(|s| w.chunks(c).map(move |w| element(factor, s, w))).collect()
    };
    // Rounds to the nearest integer, and halves away from zero.
    let rounded = |v: &f32| (f64::from(*v).clamp(-65_535.0, 65_535.0)).round() as i128;
    let mut factor = 2f32.powi(-i32::from(clip.exponent())) / m as f32;
    let first = elements(factor);
    if m == 0 || first.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let peak = first.iter().fold(0.0f32, |peak, v| peak.max(v.abs()));
    let mut is_clipped = peak > 32_768.0;
    if is_clipped {
        factor *= 32_768.0 / peak;
    }
    let radius = i128::from(clip.units());
    for step in 0..8 {
        let integers: Vec<i128> = elements(factor).iter().map(rounded).collect();
        let square = squared_norm(&integers);
        if square <= radius * radius {
            return Some((integers, is_clipped));
        }
        is_clipped = true;
        factor *= radius as f32 / (square as f32).sqrt() * (1.0 - 2f32.powi(step - 14));
    }
    None
}
