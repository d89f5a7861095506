//! Complete device of the program `prior_client`: as `client`, with heads that have a prior which the fleet learns.

use fedspan_client::features::FEATURES;
use fedspan_client::memory::Shape;
use fedspan_client::store::record_len;
use fedspan_client::task::{LearnedPrior, learned_prior_values};
use fedspan_client::{NotReady, Task};
use fedspan_protocol::frame::crc32c_f32;

use crate::board::Board;
use crate::client::{
    PersonalModel, SMALL_FEATURES, SMALL_WIDTH, WATCH_CLASSES, WATCH_WIDTH, run_model_with_recording,
    run_model_with_table,
};
use crate::fault;
use crate::nor::WORD;
use crate::once::Once;
use crate::report::LinearBits;
use crate::stack::Painted;

/// Sizes of the smartwatch demonstration.
const WATCH: Shape = Shape { features: FEATURES, width: WATCH_WIDTH, outputs: WATCH_CLASSES };
/// Number of values of the demonstration's model.
const WATCH_VALUES: usize = learned_prior_values(WATCH, true);
/// Size of the stored record of the demonstration in bytes, in whole flash words: a head acts on all features.
const WATCH_RECORD: usize = record_len(FEATURES, WATCH_CLASSES).next_multiple_of(WORD);
/// Memory of the demonstration's model.
static WATCH_MEMORY: Once<[f32; WATCH_VALUES]> = Once::new([0.0; WATCH_VALUES]);
/// Sizes of the model on the smallest board.
const SMALL: Shape = Shape { features: SMALL_FEATURES, width: SMALL_WIDTH, outputs: 1 };
/// Number of values of the model on the smallest board.
const SMALL_VALUES: usize = learned_prior_values(SMALL, true);
/// Size of the stored record on the smallest board in bytes, in whole flash words.
const SMALL_RECORD: usize = record_len(SMALL_FEATURES, 1).next_multiple_of(WORD);
/// Memory of the model on the smallest board.
static SMALL_MEMORY: Once<[f32; SMALL_VALUES]> = Once::new([0.0; SMALL_VALUES]);

impl<V: AsRef<[f32]> + AsMut<[f32]>> PersonalModel for LearnedPrior<V> {
    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        Self::predict(self, x, out)
    }

    /// The representation is not kept after a round: devices receive the whole prior with the task that fits the head.
    fn bits(&self) -> LinearBits {
        LinearBits { representation: crc32c_f32(&[]), head: crc32c_f32(self.head()) }
    }
}

/// Runs the client of a smartwatch wearer whose recording is in flash.
pub fn run_with_recording<B: Board>(board: &B, stack: Painted, cache: &'static mut [[f32; FEATURES]]) -> ! {
    let Some(memory) = WATCH_MEMORY.take() else { fault::exit(fault::FAULT, &"started twice") };
    run_model_with_recording::<_, _, WATCH_RECORD>(board, stack, cache, model(WATCH, memory))
}

/// Runs the client of a device whose samples are a table in flash, for the board with the least memory.
pub fn run_with_table<B: Board>(board: &B, stack: Painted) -> ! {
    let Some(memory) = SMALL_MEMORY.take() else { fault::exit(fault::FAULT, &"started twice") };
    run_model_with_table::<_, _, SMALL_RECORD>(board, stack, model(SMALL, memory))
}

/// Creates a model in this memory.
fn model<const N: usize>(shape: Shape, memory: &'static mut [f32; N]) -> LearnedPrior<&'static mut [f32]> {
    match LearnedPrior::new(shape, memory.as_mut_slice()) {
        Ok(model) => model,
        Err(mismatch) => fault::exit(fault::WRONG, &mismatch),
    }
}
