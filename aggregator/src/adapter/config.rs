//! `adapter_config.json`, as far as two adapters must agree in it to be averaged.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::error::short;
use super::{AdapterError, Fault};

/// Its name beside an adapter's file.
pub(super) const CONFIG: &str = "adapter_config.json";

/// Longest configuration that is read.
const CONFIG_MAX: u64 = 1 << 20;

/// What it says; what is not there is what PEFT takes it to be.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Only LORA is known here.
    pub peft_type: String,
    /// The rank.
    pub r: u64,
    /// What `B A` is multiplied with, times the rank.
    pub lora_alpha: f64,
    /// Or times its square root.
    #[serde(default)]
    pub use_rslora: bool,
    /// A kind of adapter with a third factor.
    #[serde(default)]
    pub use_dora: bool,
    /// Names, or a pattern of names, of the modules that are adapted.
    #[serde(default)]
    pub target_modules: Value,
    /// Names of the modules that are trained whole.
    #[serde(default)]
    pub modules_to_save: Value,
    /// Ranks of modules that have another.
    #[serde(default)]
    pub rank_pattern: Option<BTreeMap<String, Value>>,
    /// Alphas of modules that have another.
    #[serde(default)]
    pub alpha_pattern: Option<BTreeMap<String, Value>>,
}

impl Config {
    /// Takes a file apart.
    ///
    /// # Errors
    /// What is not of that form, or not supported.
    pub fn parse(text: &[u8]) -> Result<Self, Fault> {
        let config: Self = serde_json::from_slice(text)?;
        if config.peft_type != "LORA" {
            let found = short(&format!("{:?}", config.peft_type));
            return Err(Fault::Config { field: "peft_type", found, expected: "LORA" });
        }
        if config.use_dora {
            return Err(Fault::Config { field: "use_dora", found: "true".to_owned(), expected: "false" });
        }
        Ok(config)
    }

    /// Whether every module has the rank `r`.
    #[must_use]
    pub fn has_one_rank(&self) -> bool {
        self.rank_pattern.as_ref().is_none_or(BTreeMap::is_empty)
    }

    /// The first setting in which another one differs, with its value here and there.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let (ours, theirs) = (self.settings(), other.settings());
        let mut pairs = ours.into_iter().zip(theirs);
        pairs
            .find(|((_, ours), (_, theirs))| ours != theirs)
            .map(|((field, ours), (_, theirs))| (field, short(&ours.to_string()), short(&theirs.to_string())))
    }

    fn settings(&self) -> [(&'static str, Value); 7] {
        let pattern = |pattern: &Option<BTreeMap<String, Value>>| {
            Value::Object(pattern.iter().flatten().map(|(k, v)| (k.clone(), plain(v))).collect())
        };
        [
            ("r", self.r.into()),
            ("lora_alpha", self.lora_alpha.into()),
            ("use_rslora", self.use_rslora.into()),
            ("rank_pattern", pattern(&self.rank_pattern)),
            ("alpha_pattern", pattern(&self.alpha_pattern)),
            ("target_modules", set(&self.target_modules)),
            ("modules_to_save", set(&self.modules_to_save)),
        ]
    }
}

/// 16 and 16.0 are one number.
fn plain(value: &Value) -> Value {
    value.as_f64().map_or_else(|| value.clone(), Value::from)
}

/// Names have no order, and none is as good as an empty list.
fn set(value: &Value) -> Value {
    let Value::Array(names) = value else {
        return if value.is_null() { Value::Array(Vec::new()) } else { value.clone() };
    };
    let mut names = names.clone();
    names.sort_by_key(ToString::to_string);
    names.dedup();
    Value::Array(names)
}

/// The configuration beside an adapter's file, its path and its bytes, if there is one.
pub(super) fn beside(file: &Path) -> Result<Option<(PathBuf, Vec<u8>, Config)>, AdapterError> {
    let path = file.with_file_name(CONFIG);
    let wrong = |fault: Fault| AdapterError::file(&path, fault);
    match std::fs::metadata(&path) {
        Ok(about) if about.is_file() => {}
        Ok(_) => return Err(wrong(Fault::NotRegular)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(error.into())),
    }
    let file = std::fs::File::open(&path).map_err(|error| wrong(error.into()))?;
    let mut bytes = Vec::new();
    file.take(CONFIG_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(error.into()))?;
    if bytes.len() as u64 > CONFIG_MAX {
        return Err(wrong(Fault::LongConfig { most: CONFIG_MAX }));
    }
    let config = Config::parse(&bytes).map_err(wrong)?;
    Ok(Some((path, bytes, config)))
}
