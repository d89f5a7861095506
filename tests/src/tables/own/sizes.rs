//! Table of the memory of a model on a device.

use fedspan_client::Workspace;
use fedspan_client::memory::{FixedWorkspace, Memory, StreamingWorkspace};

/// Returns the table of the sizes of workspaces of several shapes, in bytes, compared with the arithmetic
/// minimum.
pub fn memory_table() -> String {
    let rows = [
        format_row::<20, 2, 1>(),
        format_row::<57, 8, 7>(),
        format_row::<64, 4, 1>(),
        format_row::<128, 8, 1>(),
    ];
    "| (d, k, C) | RAM of the model | the least that the arithmetic needs | with a stream of samples | in i16 |\n\
     | --- | --- | --- | --- | --- |\n"
        .to_owned()
        + &rows.concat()
}

/// Returns the row of one shape.
fn format_row<const D: usize, const K: usize, const C: usize>() -> String {
    let bytes = [
        size_of::<Workspace<D, K, C>>(),
        Workspace::<D, K, C>::new().parts_ref().shape.arithmetic_minimum(),
        size_of::<StreamingWorkspace<D, K, C>>(),
        size_of::<FixedWorkspace<D, K, C>>(),
    ];
    let cells: String = bytes.iter().map(|bytes| format!(" {bytes} B |")).collect();
    format!("| ({D}, {K}, {C}) |{cells}\n")
}
