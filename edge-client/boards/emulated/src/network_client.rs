//! Complete device of the program `network_client`: trains the network of the image in its flash on the
//! samples there, takes part in a campaign, and prints the score of its personal network on its own test
//! samples as one line of JSON. With the feature `learned-prior` its last layer may have a prior that the fleet learns.

use bytemuck::{cast_slice_mut, try_cast_slice};
use fedspan_client::kernel::frozen::Frozen;
use fedspan_client::link::Buffers;
use fedspan_client::memory::NetworkSlices;
use fedspan_client::recording::network::{NetworkImage, memory_size};
use fedspan_client::recording::table::{ClassRows, Split};
use fedspan_client::session::Config;
use fedspan_client::source::{SampleSource, Samples, Targets};
use fedspan_client::store::record_len;
#[cfg(feature = "learned-prior")]
use fedspan_client::task::{PriorNetwork, prior_network_values};
use fedspan_client::{Network, Task};
use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::limits::{FRAME_LIMIT_MAX, wire_capacity};

use crate::board::Board;
use crate::campaign::{CONFIG, session, take_part};
use crate::client::{exit_without_data, index_of_largest, read_settings};
use crate::fault;
use crate::identity::identify;
use crate::nor::WORD;
use crate::report::{Accuracy, Report, print_and_exit};
use crate::stack::Painted;

/// Size of the memory for a network and two samples, in bytes: 3.75 MiB of the board's 4 MiB.
pub const ARENA: usize = 15 << 18;
/// Largest number of weights and biases of a head: enough for images of 28 x 28 pixels and ten classes, 785 x 10.
const HEAD_MAX: usize = 8 << 10;
/// Size of the largest stored record in bytes, in whole flash words.
const RECORD: usize = record_len(HEAD_MAX, 1).next_multiple_of(WORD);
/// Size of a page of the flash for records in bytes.
const PAGE: usize = 64 << 10;
/// Largest number of classes.
const CLASSES_MAX: usize = 256;

/// Runs the client of a device whose network and samples are in flash, in the memory `arena`.
pub fn run<B: Board>(board: &B, stack: Painted, arena: &'static mut [f32]) -> ! {
    let settings = read_settings();
    let identity = identify(&settings.identity);
    let image = match NetworkImage::parse(fedspan_memory_map::recording()) {
        Ok(image) => image,
        Err(problem) => exit_without_data("network", problem),
    };
    let (shape, available) = (image.shape, size_of_val(arena));
    let d = shape.features;
    let head = shape.layer(shape.layers() - 1).parameters();
    if head > HEAD_MAX || shape.outputs > CLASSES_MAX {
        refuse(&format_args!(
            "the head has {head} values for {} classes, allowed: {HEAD_MAX} values, {CLASSES_MAX} classes",
            shape.outputs
        ));
    }
    let needed = memory_size(shape, image.settings.momentum);
    let too_small = || -> ! {
        refuse(&format_args!("the network takes {needed} bytes of RAM, this firmware has {available} for it"))
    };
    let mut rest = arena;
    let mut take = |length: usize| {
        let Some((taken, after)) = core::mem::take(&mut rest).split_at_mut_checked(length) else {
            too_small()
        };
        rest = after;
        taken
    };
    let (training_row, test_row) = (take(d), take(d));
    #[cfg(feature = "learned-prior")]
    let prior = take(prior_network_values(shape, true));
    let bytes = cast_slice_mut(take(shape.bytes().div_ceil(size_of::<f32>())));
    let memory = match NetworkSlices::new(shape, image.settings.momentum, rest, bytes) {
        Ok(memory) => memory.with_frozen(frozen_layer(image.frozen)),
        Err(_) => too_small(),
    };
    let mut network = Network::new(memory, image.settings.seed);
    if let Err(mismatch) = network.set_parameters(values(image.start)) {
        refuse(&mismatch);
    }
    #[cfg(feature = "learned-prior")]
    let network = match PriorNetwork::new(network, prior) {
        Ok(network) => network,
        Err(mismatch) => refuse(&mismatch),
    };
    let rows = |part, row| match ClassRows::new(&image.samples, part, row) {
        Ok(rows) => rows,
        Err(mismatch) => refuse(&mismatch),
    };
    let (training, mut test) = (rows(Split::Training, training_row), rows(Split::Test, test_row));
    let config = Config { frame_limit: image.settings.frame_limit, ..CONFIG };
    let mut session = session::<_, _, RECORD, PAGE>(&settings, config, identity, network, training);
    let (mut receive, mut transmit) = ([0; FRAME_LIMIT_MAX], [0; wire_capacity(FRAME_LIMIT_MAX)]);
    let buffers = Buffers {
        receive: receive.get_mut(..config.frame_limit.into()).unwrap_or_default(),
        transmit: transmit.get_mut(..config.transmit_capacity()).unwrap_or_default(),
    };
    let traffic = take_part(board, &settings, &mut session, buffers);

    let mut out = [0.0; CLASSES_MAX];
    let out = out.get_mut(..shape.outputs).unwrap_or_default();
    let (mut tested, mut correct) = (0u32, 0u32);
    while let Some(Samples { x, targets }) = test.next() {
        if let Err(problem) = session.task_mut().predict(x, out) {
            refuse(&problem);
        }
        let class = if let Targets::Classes(&[class]) = targets { Some(usize::from(class)) } else { None };
        correct += u32::from(Some(index_of_largest(out)) == class);
        tested += 1;
    }
    let (trained, score) = (image.samples.rows(Split::Training), Accuracy { correct, tested });
    #[cfg(feature = "learned-prior")]
    let network = session.task().network();
    #[cfg(not(feature = "learned-prior"))]
    let network = session.task();
    let (parameters, head) = (network.parameters(), network.head());
    let (parameters, head) = (crc32c_f32(parameters), crc32c_f32(head));
    let model = format_args!("\"arena\":{ARENA},\"parameters\":\"{parameters:08x}\",\"head\":\"{head:08x}\"");
    let score = format_args!("{score}");
    print_and_exit(board, &session, &Report { stack, traffic, trained, tested, score, model })
}

/// Returns the frozen layer that these bytes contain.
fn frozen_layer(bytes: &'static [u8]) -> Frozen<'static> {
    if bytes.is_empty() { Frozen::Nothing } else { Frozen::F32(values(bytes)) }
}

/// Returns the values that these bytes contain, without a copy. All emulated cores are little endian.
fn values(bytes: &'static [u8]) -> &'static [f32] {
    match try_cast_slice(bytes) {
        Ok(values) => values,
        Err(error) => refuse(&error),
    }
}

/// Exits because of the content of the partition.
fn refuse(problem: &dyn core::fmt::Display) -> ! {
    fault::exit(fault::WRONG, problem)
}
