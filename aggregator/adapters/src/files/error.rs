//! Why adapters are refused: one file, one tensor, one reason.

use std::path::{Path, PathBuf};

use super::header::SIDES_MAX;
use super::{ConfigDifference, Dtype, HEADER_MAX, NAME_MAX, Role, SAMPLES_MAX};

/// Characters of a name or a value that are printed.
const SHOWN: usize = 200;

/// Reason and remedy where files differ in a key of another version of PEFT.
const UNKNOWN_KEY: &str =
    ": the key is not known here, and may change what the numbers mean; make it the same in all files";

/// Adapters cannot be averaged or compared; nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A file is not what it should be.
    #[error("{}: {}{fault}", file.display(), in_tensor(tensor.as_deref()))]
    File {
        /// Which.
        file: PathBuf,
        /// Where in it.
        tensor: Option<String>,
        /// What is wrong.
        fault: Box<Fault>,
    },
    /// Nobody to average.
    #[error("no client: give the files of those who trained")]
    NoClients,
    /// There must be a number of samples for every client.
    #[error("{given} numbers of samples for {clients} clients")]
    Samples {
        /// How many numbers.
        given: usize,
        /// How many clients.
        clients: usize,
    },
    /// Nobody would count.
    #[error("every number of samples is 0: one at least must be from 1 to {SAMPLES_MAX}")]
    NoSamples,
    /// More than can be multiplied exactly.
    #[error("{}: {found} samples of one client, allowed: 0 to {SAMPLES_MAX}", file.display())]
    TooManySamples {
        /// The client's file.
        file: PathBuf,
        /// The number that was given.
        found: u64,
    },
    /// The output cannot be written.
    #[error("{}: {error}", file.display())]
    Output {
        /// Where.
        file: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The output is in place, but the system refused to make that durable.
    #[error("{}: it is in place, but may not survive a power cut: {error}", file.display())]
    NotDurable {
        /// Which.
        file: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The caller ended the work.
    #[error("interrupted, nothing was written")]
    Interrupted,
}

impl AdapterError {
    /// Of a file.
    pub(super) fn file(path: &Path, fault: impl Into<Fault>) -> Self {
        Self::File { file: path.to_owned(), tensor: None, fault: Box::new(fault.into()) }
    }

    /// Of what was found in a file.
    pub(super) fn found(path: &Path, (tensor, fault): (Option<String>, Fault)) -> Self {
        Self::File { file: path.to_owned(), tensor, fault: Box::new(fault) }
    }

    /// Of a tensor in a file.
    pub(super) fn tensor(path: &Path, tensor: &str, fault: impl Into<Fault>) -> Self {
        Self::File { file: path.to_owned(), tensor: Some(tensor.to_owned()), fault: Box::new(fault.into()) }
    }

    /// Whether a file or an argument is wrong; otherwise the work failed.
    #[must_use]
    pub fn is_invalid_input(&self) -> bool {
        !matches!(self, Self::Output { .. } | Self::NotDurable { .. } | Self::Interrupted)
    }
}

/// Names come from files: control characters are escaped, and nothing is longer than a line.
fn in_tensor(name: Option<&str>) -> String {
    let Some(name) = name else { return String::new() };
    format!("tensor {}: ", short(&name.escape_debug().to_string()))
}

/// What a message may hold of a file.
pub(super) fn short(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A pipe, a device, a directory without an adapter.
    #[error("not a regular file")]
    NotRegular,
    /// Its header would begin or end after the file does.
    #[error("truncated: {got} bytes, and its header ends at {needed}")]
    Truncated {
        /// Where the header would end.
        needed: u64,
        /// How long the file is.
        got: u64,
    },
    /// A header nobody needs.
    #[error("a header of {length} bytes, at most {HEADER_MAX} are read; is this a safetensors file?")]
    HeaderTooLong {
        /// What the file says.
        length: u64,
    },
    /// Not JSON of the form that headers and configurations have.
    #[error("cannot be read: {}", short(&.0.to_string()))]
    Json(#[from] serde_json::Error),
    /// Names are kept in memory and printed.
    #[error("a name of {length} bytes, at most {NAME_MAX} are read")]
    NameTooLong {
        /// Its length.
        length: usize,
    },
    /// The header has the name twice.
    #[error("it is there twice")]
    DuplicateName,
    /// A shape that no tensor has.
    #[error("a shape of {sides} sides, at most {SIDES_MAX} are read")]
    TooManyDimensions {
        /// How many.
        sides: usize,
    },
    /// Numbers of a type that is not known.
    #[error("dtype {found}; F32, F16, BF16 and F64 can be averaged, integers and BOOL kept")]
    UnknownDtype {
        /// Type that the header says.
        found: String,
    },
    /// Factors of a type that cannot be averaged as factors.
    #[error("dtype {found}; lora_A and lora_B are F32, F16 or BF16")]
    FactorDtype {
        /// Type that the header says.
        found: Dtype,
    },
    /// The number of elements, or of bytes, is none.
    #[error("the product of the shape {shape:?} overflows")]
    Overflow {
        /// What the header says.
        shape: Vec<u64>,
    },
    /// Shape, dtype and offsets do not agree.
    #[error("bytes {begin} to {end} of the data, and shape {shape:?} in {dtype} is {bytes} bytes")]
    SizeMismatch {
        /// First byte.
        begin: u64,
        /// After the last byte.
        end: u64,
        /// What the header says.
        shape: Vec<u64>,
        /// What the header says.
        dtype: Dtype,
        /// What that takes.
        bytes: u64,
    },
    /// Tensors overlap, or something is between them.
    #[error("it begins at byte {begin} of the data, and what is before it ends at {end}")]
    NotAdjacent {
        /// Where it begins.
        begin: u64,
        /// Where it should.
        end: u64,
    },
    /// The file has less than its header says, or more.
    #[error("{found} bytes of data, and its header accounts for {expected}")]
    DataLength {
        /// What there is.
        found: u64,
        /// What the header says.
        expected: u64,
    },
    /// Something of LoRA's that is neither factor.
    #[error("neither lora_A nor lora_B (DoRA and biases of factors are not supported)")]
    UnsupportedLora,
    /// Half an adapter.
    #[error("the {role} factor without the other one")]
    Unpaired {
        /// Which half is there.
        role: Role,
    },
    /// Not an adapter at all.
    #[error("no lora_A and lora_B in it: not an adapter")]
    NoFactors,
    /// A factor of no rank.
    #[error("shape {shape:?} is no {role} factor: lora_A is r x d_in, lora_B is d_out x r")]
    FactorShape {
        /// Which half it would be.
        role: Role,
        /// What the header says.
        shape: Vec<u64>,
    },
    /// The two factors of a target differ in rank.
    #[error("rank {up}, and its lora_A has rank {down}")]
    PairRankMismatch {
        /// Of the down factor.
        down: u64,
        /// Of the up factor.
        up: u64,
    },
    /// The configuration says another rank.
    #[error("rank {found}, and adapter_config.json says r = {expected} for this module{}", if *times {
        ", times the number of experts (target_parameters)"
    } else {
        ""
    })]
    ConfigRankMismatch {
        /// Rank of the factors.
        found: u64,
        /// Rank in the configuration.
        expected: u64,
        /// Whether a multiple of it would do.
        times: bool,
    },
    /// The base has a tensor that this file has not.
    #[error("missing; {} has it", base.display())]
    MissingTensor {
        /// The base.
        base: PathBuf,
    },
    /// The file has a tensor that the base has not.
    #[error("{} has no such tensor", base.display())]
    UnexpectedTensor {
        /// The base.
        base: PathBuf,
    },
    /// Another rank than the base's.
    #[error("rank {found}, and that of {} is {expected}", base.display())]
    RankMismatch {
        /// This file's.
        found: u64,
        /// The base's.
        expected: u64,
        /// The base.
        base: PathBuf,
    },
    /// Another shape than the base's.
    #[error("shape {found:?}, and that in {} is {expected:?}", base.display())]
    ShapeMismatch {
        /// This file's.
        found: Vec<u64>,
        /// The base's.
        expected: Vec<u64>,
        /// The base.
        base: PathBuf,
    },
    /// Another dtype than the base's.
    #[error("dtype {found}, and that in {} is {expected}", base.display())]
    DtypeMismatch {
        /// This file's.
        found: Dtype,
        /// The base's.
        expected: Dtype,
        /// The base.
        base: PathBuf,
    },
    /// A configuration that is none of LoRA.
    #[error("{field} is {found}, and only {expected} is supported")]
    ConfigValue {
        /// The setting.
        field: &'static str,
        /// Value in the file.
        found: String,
        /// Values that it may have.
        expected: &'static str,
    },
    /// Another configuration than the first one's.
    #[error(
        "{} is {}, and {} in {}{}", difference.key, difference.found, difference.expected, first.display(),
        if difference.is_known { "" } else { UNKNOWN_KEY }
    )]
    ConfigMismatch {
        /// The key and both values.
        difference: Box<ConfigDifference>,
        /// The other file.
        first: PathBuf,
    },
    /// A pattern whose keys come in another order, where the first one that matches counts.
    #[error(
        "the keys of rank_pattern or alpha_pattern are in another order than in {}, and two of them match this module: rank {found}, \
         and {expected} there", first.display()
    )]
    PatternOrderMismatch {
        /// Rank and scale here.
        found: String,
        /// Rank and scale there.
        expected: String,
        /// Path of the other file.
        first: PathBuf,
    },
    /// A configuration longer than any.
    #[error("longer than {most} bytes, the most there may be")]
    ConfigTooLong {
        /// The most.
        most: u64,
    },
    /// A client that would count twice.
    #[error("the same file as {}", other.display())]
    DuplicateFile {
        /// What it was called before.
        other: PathBuf,
    },
    /// An output that would replace an input.
    #[error("it is an input; give the output another name")]
    OutputIsInput,
    /// Another command writes the same output.
    #[error("another command is writing it")]
    OutputBusy,
    /// Somebody wrote to an input.
    #[error("it changed while it was read")]
    ChangedDuringRead,
    /// An element that is no number.
    #[error("element {index} is {value}")]
    NotFinite {
        /// Place in the order of the file.
        index: u64,
        /// NaN or an infinity.
        value: f64,
    },
    /// Two files that differ where nothing can be between them.
    #[error(
        "element {index} of dtype {dtype} is {found}, and {expected} in {}: such tensors are not averaged, and must be the same in all",
        other.display()
    )]
    ValuesDiffer {
        /// Place in the order of the file.
        index: u64,
        /// Type of the tensor.
        dtype: Dtype,
        /// The value here.
        found: String,
        /// The value there.
        expected: String,
        /// The other file.
        other: PathBuf,
    },
    /// A factor that was to stay changed.
    #[error(
        "the {role} factor is frozen in this round, and element {index} is not that of {}: did the client train the wrong \
         factor, or both?", base.display()
    )]
    FrozenFactorChanged {
        /// Which factor.
        role: Role,
        /// The first element that differs.
        index: u64,
        /// The base.
        base: PathBuf,
    },
}
