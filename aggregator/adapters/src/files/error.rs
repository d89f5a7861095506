//! Error types of adapter files. An error names the file, the tensor and the fault.

use std::path::{Path, PathBuf};

use super::dtype::Dtype;
use super::limits::{DIMENSIONS_MAX, NAME_MAX, SAMPLES_MAX};
use super::role::Role;

/// Largest number of characters of a name or value that an error text quotes.
const QUOTE_MAX: usize = 200;

/// End of the error text for a configuration key that is unknown to this version.
const UNKNOWN_KEY: &str = "; the meaning of this key is unknown here, so it must be the same in all files";

/// Fault of a file, with the name of the tensor if the fault belongs to a tensor.
pub type LocatedFault = (Option<String>, Fault);

/// Reason why adapters cannot be averaged or compared. No output was written, except with
/// [`Self::NotDurable`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// An input file is invalid or does not fit the others.
    #[error("{}: {}{fault}", file.display(), tensor_prefix(tensor.as_deref()))]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Name of the tensor, if the fault belongs to a tensor.
        tensor: Option<String>,
        /// Description of the fault.
        fault: Box<Fault>,
    },
    /// The list of clients is empty.
    #[error("found no client files; give the file of at least one client")]
    NoClients,
    /// The number of sample counts differs from the number of clients.
    #[error("found {given} numbers of samples for {clients} clients; give one for each client")]
    Samples {
        /// Number of sample counts.
        given: usize,
        /// Number of clients.
        clients: usize,
    },
    /// The weight of every client is 0.
    #[error("every number of samples is 0; at least one must be from 1 to {SAMPLES_MAX}")]
    NoSamples,
    /// A number of samples is too large for exact products.
    #[error("{}: {found} samples of one client, allowed: 0 to {SAMPLES_MAX}", file.display())]
    TooManySamples {
        /// Path of the client's file.
        file: PathBuf,
        /// Number of samples.
        found: u64,
    },
    /// The output cannot be written.
    #[error("{}: {error}", file.display())]
    Output {
        /// Path of the output.
        file: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The output was written and renamed, but its directory could not be synced.
    #[error("{}: written, but a power failure may undo it: {error}", file.display())]
    NotDurable {
        /// Path of the output.
        file: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The progress function has returned false.
    #[error("interrupted, nothing was written")]
    Interrupted,
}

impl AdapterError {
    /// Error for a file.
    pub(super) fn file(path: &Path, fault: impl Into<Fault>) -> Self {
        Self::File { file: path.to_owned(), tensor: None, fault: Box::new(fault.into()) }
    }

    /// Error for a file, with the tensor of the fault.
    pub(super) fn located(path: &Path, (tensor, fault): LocatedFault) -> Self {
        Self::File { file: path.to_owned(), tensor, fault: Box::new(fault) }
    }

    /// Error for a tensor of a file.
    pub(super) fn tensor(path: &Path, tensor: &str, fault: impl Into<Fault>) -> Self {
        Self::File { file: path.to_owned(), tensor: Some(tensor.to_owned()), fault: Box::new(fault.into()) }
    }

    /// Path of the input file that is invalid or cannot be read; `None` for other errors.
    #[must_use]
    pub fn input_file(&self) -> Option<&Path> {
        match self {
            Self::File { file, .. } | Self::TooManySamples { file, .. } => Some(file),
            Self::NoClients
            | Self::Samples { .. }
            | Self::NoSamples
            | Self::Output { .. }
            | Self::NotDurable { .. }
            | Self::Interrupted => None,
        }
    }

    /// Error of the system with which an input could not be read; `None` for other errors.
    #[must_use]
    pub fn io_error(&self) -> Option<&std::io::Error> {
        match self {
            Self::File { fault, .. } => match &**fault {
                Fault::Io(error) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// True if a file could not be read, or changed meanwhile: the next attempt may succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::File { fault, .. } => matches!(**fault, Fault::Io(_) | Fault::ChangedDuringRead),
            Self::NoClients | Self::Samples { .. } | Self::NoSamples | Self::TooManySamples { .. } => false,
            Self::Output { .. } | Self::NotDurable { .. } | Self::Interrupted => true,
        }
    }

    /// True if a file or an argument is wrong; false if an operation failed.
    #[must_use]
    pub fn is_invalid_input(&self) -> bool {
        !matches!(self, Self::Output { .. } | Self::NotDurable { .. } | Self::Interrupted)
    }
}

/// Quotes a tensor name for an error text. Control characters are escaped and long names are shortened,
/// because names come from files.
fn tensor_prefix(name: Option<&str>) -> String {
    let Some(name) = name else { return String::new() };
    format!("tensor {}: ", shortened(&name.escape_debug().to_string()))
}

/// Shortens a text from a file for an error text.
pub(super) fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTE_MAX).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}

/// Key whose values in two configurations differ in meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDifference {
    /// Key of the setting.
    pub key: String,
    /// Value in this configuration.
    pub found: String,
    /// Value in the other configuration.
    pub expected: String,
    /// True if the key is in the table of known keys.
    pub is_known: bool,
}

/// Fault of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An operation on the file failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The path is a directory, a pipe or a device, or a symbolic link where none is allowed.
    #[error("not a regular file")]
    NotRegular,
    /// The file ends before the end of its header.
    #[error("truncated: found {got} bytes, expected at least {needed} (the end of the header)")]
    Truncated {
        /// End of the header, in bytes.
        needed: u64,
        /// Length of the file, in bytes.
        got: u64,
    },
    /// The header is too long.
    #[error("found a header of {length} bytes, allowed: at most {allowed}; is this a safetensors file?")]
    HeaderTooLong {
        /// Longest header that is read, in bytes.
        allowed: u64,
        /// Length of the header according to the file.
        length: u64,
    },
    /// A header or a configuration is not JSON of the expected form.
    #[error("cannot be parsed: {}", shortened(&.0.to_string()))]
    Json(#[from] serde_json::Error),
    /// A tensor name is longer than [`NAME_MAX`].
    #[error("found a name of {length} bytes, allowed: at most {NAME_MAX}")]
    NameTooLong {
        /// Length of the name, in bytes.
        length: usize,
    },
    /// Two tensors have the same name, or the same factor has two names.
    #[error("the file has this tensor twice")]
    DuplicateName,
    /// A shape has too many dimensions.
    #[error("found a shape with {dimensions} dimensions, allowed: at most {DIMENSIONS_MAX}")]
    TooManyDimensions {
        /// Number of dimensions.
        dimensions: usize,
    },
    /// The dtype is not supported.
    #[error(
        "found dtype {found}, allowed: F32, F16, BF16, F64, I8 to I64, U8 to U64, BOOL, F8_E4M3, F8_E5M2, F8_E8M0, C64"
    )]
    UnknownDtype {
        /// Dtype in the header.
        found: String,
    },
    /// A factor has a dtype that cannot be averaged exactly.
    #[error("found dtype {found}, allowed for lora_A and lora_B: F32, F16, BF16")]
    FactorDtype {
        /// Dtype in the header.
        found: Dtype,
    },
    /// The number of elements or bytes of a tensor overflows 64 bits.
    #[error("the size of shape {shape:?} overflows")]
    Overflow {
        /// Shape in the header.
        shape: Vec<u64>,
    },
    /// Shape, dtype and data offsets contradict each other.
    #[error(
        "data offsets {begin} to {end} do not fit shape {shape:?} of dtype {dtype}, which is {bytes} bytes"
    )]
    SizeMismatch {
        /// Offset of the first byte.
        begin: u64,
        /// Offset after the last byte.
        end: u64,
        /// Shape in the header.
        shape: Vec<u64>,
        /// Dtype in the header.
        dtype: Dtype,
        /// Size of the shape in the dtype, in bytes.
        bytes: u64,
    },
    /// The data of two tensors overlap or have a gap between them.
    #[error("begins at byte {begin} of the data, expected {end}, the end of the previous tensor")]
    NotAdjacent {
        /// Offset of the tensor.
        begin: u64,
        /// End of the previous tensor.
        end: u64,
    },
    /// The length of the data differs from the sum of the tensors.
    #[error("found {found} bytes of data, expected {expected} from the header")]
    DataLength {
        /// Length of the data in the file.
        found: u64,
        /// Length of all tensors in the header.
        expected: u64,
    },
    /// The tensor belongs to a variant of LoRA that is not supported.
    #[error(
        "found a LoRA tensor that is neither lora_A nor lora_B; DoRA and biases of factors are not supported"
    )]
    UnsupportedLora,
    /// A module has only one factor.
    #[error("found the {role} factor of a module without the other factor")]
    Unpaired {
        /// Factor that the file has.
        role: Role,
    },
    /// The file has no factors.
    #[error("found no lora_A and lora_B tensors: not an adapter")]
    NoFactors,
    /// The shape is not allowed for a factor.
    #[error(
        "found shape {shape:?} for the {role} factor, allowed: r x d_in for lora_A, d_out x r for lora_B"
    )]
    FactorShape {
        /// Role of the factor according to its name.
        role: Role,
        /// Shape in the header.
        shape: Vec<u64>,
    },
    /// The two factors of a module have different ranks.
    #[error("found rank {up}, but the module's lora_A has rank {down}")]
    PairRankMismatch {
        /// Rank of the down factor.
        down: u64,
        /// Rank of the up factor.
        up: u64,
    },
    /// The rank in the configuration differs from that of the factors.
    #[error("found rank {found}, but adapter_config.json says r = {expected} for this module{}", if *times {
        ", times the number of experts (target_parameters)"
    } else {
        ""
    })]
    ConfigRankMismatch {
        /// Rank of the factors.
        found: u64,
        /// Rank in the configuration.
        expected: u64,
        /// True if a multiple of the configured rank is allowed too.
        times: bool,
    },
    /// A tensor of the base is missing.
    #[error("missing, but {} has this tensor", base.display())]
    MissingTensor {
        /// Path of the base.
        base: PathBuf,
    },
    /// The base has no tensor of this name.
    #[error("unexpected: {} has no such tensor", base.display())]
    UnexpectedTensor {
        /// Path of the base.
        base: PathBuf,
    },
    /// The rank of a factor differs from that in the base.
    #[error("found rank {found}, expected {expected} as in {}", base.display())]
    RankMismatch {
        /// Rank in this file.
        found: u64,
        /// Rank in the base.
        expected: u64,
        /// Path of the base.
        base: PathBuf,
    },
    /// The shape of a tensor differs from that in the base.
    #[error("found shape {found:?}, expected {expected:?} as in {}", base.display())]
    ShapeMismatch {
        /// Shape in this file.
        found: Vec<u64>,
        /// Shape in the base.
        expected: Vec<u64>,
        /// Path of the base.
        base: PathBuf,
    },
    /// The dtype of a tensor differs from that in the base.
    #[error("found dtype {found}, expected {expected} as in {}", base.display())]
    DtypeMismatch {
        /// Dtype in this file.
        found: Dtype,
        /// Dtype in the base.
        expected: Dtype,
        /// Path of the base.
        base: PathBuf,
    },
    /// A setting of the configuration is not supported.
    #[error("{field} is {found}, allowed: {expected}")]
    ConfigValue {
        /// Key of the setting.
        field: &'static str,
        /// Value in the file.
        found: String,
        /// Supported values.
        expected: &'static str,
    },
    /// The configuration differs in meaning from the first one.
    #[error(
        "{} is {}, but {} in {}{}", difference.key, difference.found, difference.expected, first.display(),
        if difference.is_known { "" } else { UNKNOWN_KEY }
    )]
    ConfigMismatch {
        /// Key with its values in both configurations.
        difference: Box<ConfigDifference>,
        /// Path of the first configuration.
        first: PathBuf,
    },
    /// Two keys of a pattern match a module, and the order of the keys gives the module another rank or scale
    /// than in the first configuration.
    #[error(
        "two keys of rank_pattern or alpha_pattern match this module, in another order than in {}: rank {found}, but {expected} there",
        first.display()
    )]
    PatternOrderMismatch {
        /// Rank and scale from this configuration.
        found: String,
        /// Rank and scale from the first configuration.
        expected: String,
        /// Path of the first configuration.
        first: PathBuf,
    },
    /// The configuration is too long.
    #[error("longer than the allowed {max} bytes")]
    ConfigTooLong {
        /// Largest allowed length, in bytes.
        max: u64,
    },
    /// Two arguments name the same file, which would be counted twice.
    #[error("the same file as {}; give every file once", other.display())]
    DuplicateFile {
        /// Path under which the file was given first.
        other: PathBuf,
    },
    /// The output would replace an input.
    #[error("this file is an input; give the output another name")]
    OutputIsInput,
    /// Another command writes the same output.
    #[error("another command is writing this file; wait for it, or give the output another name")]
    OutputBusy,
    /// An input was modified during the work.
    #[error("the file changed while it was read")]
    ChangedDuringRead,
    /// An element is NaN or infinite.
    #[error("element {index} is {value}, allowed: finite numbers")]
    NotFinite {
        /// Index of the element in the order of the file.
        index: u64,
        /// Value of the element: NaN or an infinity.
        value: f64,
    },
    /// Two files differ in a tensor of a dtype that is not averaged.
    #[error(
        "element {index} of dtype {dtype} is {found}, but {expected} in {}; tensors of this dtype are not averaged and must be equal in all files",
        other.display()
    )]
    ValuesDiffer {
        /// Index of the element in the order of the file.
        index: u64,
        /// Dtype of the tensor.
        dtype: Dtype,
        /// Value in this file.
        found: String,
        /// Value in the other file.
        expected: String,
        /// Path of the other file.
        other: PathBuf,
    },
    /// A frozen factor differs from the base.
    #[error(
        "the {role} factor is frozen in this round, but element {index} differs from {}; did the client train the wrong factor, or both?",
        base.display()
    )]
    FrozenFactorChanged {
        /// Role of the factor.
        role: Role,
        /// Index of the first element that differs.
        index: u64,
        /// Path of the base.
        base: PathBuf,
    },
}
