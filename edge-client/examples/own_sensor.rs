//! Example of a custom `SampleSource`: a vibration sensor on a pump that keeps its last labelled windows.
//!
//! The labels come from a technician who inspects the pump and sends `h` (healthy) or `w` (worn) by serial
//! line or button. The interrupt handler puts the window and the command into a queue. The source reads that
//! queue and calls `labelled` for each entry when `rewind` gets a new round, because samples must not change
//! within a round.
//!
//! A sensor that keeps no samples needs no source: use `StreamingWorkspace` and `Sampling::Stream`, implement
//! `link::Sensor`, and pass the sensor to `link::run_with_sensor`.

use fedspan_client::{Linear, SampleSource, Samples, SourceError, Targets, Workspace};
use fedspan_protocol::message::{HeadSolve, RoundId};

const D: usize = 3; // mean, standard deviation, and a constant 1 for the offset
/// Number of windows that are kept.
const KEEP: usize = 32;

/// Source with the last labelled windows.
#[derive(Default)]
struct Pump {
    x: [[f32; D]; KEEP],
    class: [u8; KEEP],
    labelled: usize, // total so far; the oldest window is overwritten
    done: bool,
}

/// Computes the features of a window of accelerations.
fn features(g: &[f32]) -> [f32; D] {
    let mean = g.iter().sum::<f32>() / g.len() as f32;
    [mean, (g.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / g.len() as f32).sqrt(), 1.0]
}

impl Pump {
    /// Stores the features of a window with the class of the technician's command, and overwrites the oldest
    /// window if all places are used.
    fn labelled(&mut self, x: [f32; D], command: u8) {
        let Some(class) = b"hw".iter().position(|&known| known == command) else { return };
        (self.x[self.labelled % KEEP], self.class[self.labelled % KEEP]) = (x, class as u8);
        self.labelled += 1;
    }
}

impl SampleSource for Pump {
    fn rewind(&mut self, _round: RoundId) -> Result<(), SourceError> {
        self.done = self.labelled == 0;
        Ok(())
    }
    fn next(&mut self) -> Option<Samples<'_>> {
        let n = self.labelled.min(KEEP);
        let samples = Samples { x: self.x[..n].as_flattened(), targets: Targets::Classes(&self.class[..n]) };
        (!std::mem::replace(&mut self.done, true)).then_some(samples)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let window = |n: usize, g: f32| std::array::from_fn::<f32, 16, _>(|i| g * ((i * n) as f32).sin());
    let mut pump = Pump::default();
    (1..=20).for_each(|n| pump.labelled(features(&window(n, 0.2)), b'h'));
    (1..=20).for_each(|n| pump.labelled(features(&window(n, 0.9)), b'w'));
    let mut model = Linear::new(Workspace::<D, 2, 2>::new());
    model.set_representation(&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0])?; // in a fleet the server sends it, 3 x 2
    let used = model.fit_head(HeadSolve::LeastSquares { ridge: 0.0 }, &mut pump)?;
    let mut score = [0.0; 2];
    model.predict(&features(&window(50, 0.9)), &mut score)?;
    println!("{} windows; now healthy {:.2}, worn {:.2}", used.samples, score[0], score[1]);
    Ok(())
}
