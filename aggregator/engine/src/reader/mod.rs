//! Reader of TOML files, key by key: every mistake is one line with the file, the line, the key, the value found
//! and the values allowed. Nothing here knows a campaign.

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
