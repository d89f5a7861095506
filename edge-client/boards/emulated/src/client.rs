//! Complete device of the programs `client` and `prior_client`: reads its settings, takes part in a campaign, and prints the
//! score of its personal model on its own test samples as one line of JSON.

use fedspan_client::features::FEATURES;
use fedspan_client::link::Buffers;
use fedspan_client::memory::{Gathering, Memory};
use fedspan_client::recording::table::{Rows, Split, Table};
use fedspan_client::recording::{FormatError, Recording, WearerSource};
use fedspan_client::source::{SampleSource, Targets};
use fedspan_client::store::record_len;
use fedspan_client::task::ErrorFeedback;
use fedspan_client::{Linear, NotReady, Task, Workspace};
use fedspan_protocol::frame::crc32c_f32;
use semihosting::eprintln;

use crate::board::Board;
use crate::campaign::{CONFIG, RECEIVE, TRANSMIT, session, take_part};
use crate::fault;
use crate::identity::identify;
use crate::nor::{PAGE, WORD};
use crate::once::Once;
use crate::report::{Accuracy, LinearBits, Report, print_and_exit};
use crate::settings::Settings;
use crate::stack::Painted;

/// Width of the representation in the bundled smartwatch demonstration.
pub const WATCH_WIDTH: usize = 24;
/// Number of classes (exercises) in the demonstration.
pub const WATCH_CLASSES: usize = 7;
/// Size of the stored record of the demonstration in bytes, in whole flash words.
const WATCH_RECORD: usize = record_len(WATCH_WIDTH, WATCH_CLASSES).next_multiple_of(WORD);
/// Memory of the model, with room in which single windows are collected into groups of four.
type WatchMemory = Gathering<Workspace<FEATURES, WATCH_WIDTH, WATCH_CLASSES>, FEATURES>;

/// The model's memory, initialised in place: its twelve kilobytes would otherwise be built on the stack and moved.
static WATCH_MEMORY: Once<WatchMemory> = Once::new(Gathering::new(Workspace::new()));
/// Residual of error feedback of the demonstration.
static WATCH_RESIDUAL: Once<[f32; FEATURES * WATCH_WIDTH]> = Once::new([0.0; FEATURES * WATCH_WIDTH]);
/// Features per sample on the smallest board.
pub const SMALL_FEATURES: usize = 20;
/// Width of the representation on the smallest board; the head has one output.
pub const SMALL_WIDTH: usize = 2;
/// Size of the stored record on the smallest board in bytes, in whole flash words.
const SMALL_RECORD: usize = record_len(SMALL_WIDTH, 1).next_multiple_of(WORD);

/// Longest command line in bytes.
const COMMAND_LINE: usize = 512;

/// A personal linear model of a device.
pub trait PersonalModel: Task {
    /// Predicts the targets of a sample.
    ///
    /// # Errors
    /// [`NotReady`] if there is no prediction.
    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady>;

    /// Returns the checksums of the representation and of the head.
    fn bits(&self) -> LinearBits;
}

impl<M: Memory, V: AsRef<[f32]> + AsMut<[f32]>> PersonalModel for ErrorFeedback<Linear<M>, V> {
    fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        self.task_mut().predict(x, out)
    }

    fn bits(&self) -> LinearBits {
        let model = self.task();
        LinearBits {
            representation: crc32c_f32(model.representation().unwrap_or_default()),
            head: crc32c_f32(model.head()),
        }
    }
}

/// Runs the client of a smartwatch wearer whose recording is in flash. `cache` holds the features of all
/// training windows if they fit, and of none otherwise.
pub fn run_with_recording<B: Board>(board: &B, stack: Painted, cache: &'static mut [[f32; FEATURES]]) -> ! {
    let (Some(memory), Some(residual)) = (WATCH_MEMORY.take(), WATCH_RESIDUAL.take()) else {
        fault::exit(fault::FAULT, &"started twice")
    };
    let model = with_feedback(Linear::new(memory), residual.as_mut_slice());
    run_model_with_recording::<_, _, WATCH_RECORD>(board, stack, cache, model)
}

/// Runs the client of a smartwatch wearer with this model, whose stored record has at most `N` bytes.
pub fn run_model_with_recording<B: Board, M: PersonalModel, const N: usize>(
    board: &B,
    stack: Painted,
    cache: &'static mut [[f32; FEATURES]],
    model: M,
) -> ! {
    let settings = read_settings();
    let identity = identify(&settings.identity);
    let recording = match Recording::parse(fedspan_memory_map::recording()) {
        Ok(recording) if usize::from(recording.header().classes) <= WATCH_CLASSES => recording,
        Ok(recording) => fault::exit(
            fault::WRONG,
            &format_args!(
                "the recording has {} classes; this firmware supports up to {WATCH_CLASSES}",
                recording.header().classes
            ),
        ),
        Err(problem) => exit_without_data("recording", problem),
    };
    let windows = recording.training_windows();
    let cache = if settings.cached { cache } else { Default::default() };
    let source = WearerSource::new(recording, cache);
    if settings.cached && !source.is_cached() {
        eprintln!("the features of {windows} windows do not fit in RAM; computing them on every pass");
    }
    let windows = source.windows();
    let mut session = session::<_, _, N, PAGE>(&settings, CONFIG, identity, model, source);
    let buffers = Buffers { receive: &mut [0; RECEIVE], transmit: &mut [0; TRANSMIT] };
    let traffic = take_part(board, &settings, &mut session, buffers);

    let (mut x, mut out) = ([0.0; FEATURES], [0.0; WATCH_CLASSES]);
    let (mut tested, mut correct) = (0u32, 0u32);
    while let Some(window) = usize::try_from(tested).ok().and_then(|number| recording.test(number)) {
        recording.features(&window, &mut x);
        if let Err(problem) = session.task_mut().predict(&x, &mut out) {
            fault::exit(fault::WRONG, &problem);
        }
        correct += u32::from(index_of_largest(&out) == usize::from(window.class));
        tested += 1;
    }
    let (score, model) = (Accuracy { correct, tested }, session.task().bits());
    let (score, model) = (format_args!("{score}"), format_args!("{model}"));
    print_and_exit(board, &session, &Report { stack, traffic, trained: windows, tested, score, model })
}

/// Runs the client of a device whose samples are a table in flash, for the board with the least memory.
pub fn run_with_table<B: Board>(board: &B, stack: Painted) -> ! {
    let model = Linear::new(Workspace::<SMALL_FEATURES, SMALL_WIDTH>::new());
    let model = with_feedback(model, [0.0; SMALL_FEATURES * SMALL_WIDTH]);
    run_model_with_table::<_, _, SMALL_RECORD>(board, stack, model)
}

/// Runs the client of a device whose samples are a table in flash, with this model, whose stored record has at most `N` bytes.
pub fn run_model_with_table<B: Board, M: PersonalModel, const N: usize>(
    board: &B,
    stack: Painted,
    model: M,
) -> ! {
    let settings = read_settings();
    let identity = identify(&settings.identity);
    let table = match Table::parse(fedspan_memory_map::recording()) {
        Ok(table) => table,
        Err(problem) => exit_without_data("table of samples", problem),
    };
    let part = |part| match Rows::<SMALL_FEATURES>::new(&table, part) {
        Some(rows) => rows,
        None => {
            let feature_count = table.features();
            let message =
                format_args!("the table has {feature_count} features; this firmware needs {SMALL_FEATURES}");
            fault::exit(fault::WRONG, &message)
        }
    };
    let (training, mut test) = (part(Split::Training), part(Split::Test));
    let mut session = session::<_, _, N, PAGE>(&settings, CONFIG, identity, model, training);
    let buffers = Buffers { receive: &mut [0; RECEIVE], transmit: &mut [0; TRANSMIT] };
    let traffic = take_part(board, &settings, &mut session, buffers);

    let (mut tested, mut squares) = (0u32, 0.0f32);
    let mut out = [0.0];
    while let Some(sample) = test.next() {
        let expected = match sample.targets {
            Targets::Values(&[expected]) => expected,
            _ => 0.0,
        };
        if let Err(problem) = session.task_mut().predict(sample.x, &mut out) {
            fault::exit(fault::WRONG, &problem);
        }
        let [prediction] = out;
        squares += (prediction - expected) * (prediction - expected);
        tested += 1;
    }
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small error, to be printed"
    )]
    let millionths = (squares / tested.max(1) as f32 * 1e6 + 0.5) as u32;
    let (integer_part, decimals) = (millionths / 1_000_000, millionths % 1_000_000);
    let score = format_args!("\"squared_error\":{integer_part}.{decimals:06}");
    let (trained, model) = (table.rows(Split::Training), session.task().bits());
    let model = format_args!("{model}");
    print_and_exit(board, &session, &Report { stack, traffic, trained, tested, score, model })
}

/// Adds error feedback to a model, for campaigns in which devices upload only the largest values.
fn with_feedback<M: Memory, V: AsRef<[f32]> + AsMut<[f32]>>(
    model: Linear<M>,
    residual: V,
) -> ErrorFeedback<Linear<M>, V> {
    ErrorFeedback::new(model, residual).unwrap_or_else(|mismatch| fault::exit(fault::WRONG, &mismatch))
}

/// Reports that the data partition holds no usable samples, and exits.
pub(crate) fn exit_without_data(data_name: &str, problem: FormatError) -> ! {
    let partition = fedspan_memory_map::recording().as_ptr();
    let message = format_args!(
        "no {data_name} in the partition at {partition:p}: {problem}. QEMU loads one with \
         -device loader,file=FILE,addr={partition:p},force-raw=on"
    );
    fault::exit(fault::WRONG, &message)
}

/// Reads the settings from the command line. Exits if they are wrong.
pub fn read_settings() -> Settings {
    let Ok(command_line) = semihosting::experimental::env::args::<COMMAND_LINE>() else {
        fault::exit(
            fault::WRONG,
            &format_args!("the command line is missing or has more than {COMMAND_LINE} bytes"),
        )
    };
    // A word that is not UTF-8 becomes `?`, which the parser rejects.
    let parsed = Settings::parse((&command_line).into_iter().map(|word| word.unwrap_or("?")));
    parsed.unwrap_or_else(|mistake| fault::exit(fault::WRONG, &mistake))
}

/// Returns the index of the largest value, the first one on a tie, as the simulator does.
pub(crate) fn index_of_largest(values: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, &value) in values.iter().enumerate() {
        if value > best.1 {
            best = (index, value);
        }
    }
    best.0
}
