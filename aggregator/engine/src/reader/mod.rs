//! Reader of TOML files, key by key. Every mistake is reported in one line with the file, the line number,
//! the key, the value found and the values allowed. The reader is independent of the settings of a campaign.

mod depth;
mod file;
mod given_keys;
mod number;
mod section;
mod source;
mod suggestions;
mod values;

pub use file::read_file;
pub use given_keys::GivenKeys;
pub use number::shortest;
pub use section::Section;
pub use source::{Problem, SHOWN_MAX, Source};
pub use suggestions::{nearest, shortened};
pub use values::{SettingValue, Values};
