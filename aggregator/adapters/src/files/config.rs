//! Parser of PEFT configurations (`adapter_config.json`): the settings in which adapters must agree to be
//! averaged.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::config_keys::{KEYS, KeyUse, canonical, key_use, model_statement};
use super::error::{ConfigDifference, shortened};
use super::json::Json;
use super::pattern::Patterns;
use super::{AdapterError, Fault};

/// Name of the configuration in the directory of an adapter file.
pub(super) const CONFIG: &str = "adapter_config.json";

/// Longest configuration that is read, in bytes.
const CONFIG_MAX: u64 = 1 << 20;

/// Largest rank; every rank up to this value is exact in f64.
const RANK_MAX: i128 = 1 << 32;

/// Parsed configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Type of adapter, always `LORA`.
    pub peft_type: String,
    /// Rank of modules that no key of `rank_pattern` matches.
    pub r: u64,
    /// Alpha of modules that no key of `alpha_pattern` matches.
    pub lora_alpha: f64,
    /// True if `B A` is multiplied by alpha/sqrt(r) instead of alpha/r.
    pub use_rslora: bool,
    /// Reason why the update of a module is not the product of its factors; `None` if the update is that
    /// product.
    pub(super) other_product: Option<&'static str>,
    ranks: Patterns,
    alphas: Patterns,
    /// Names of `target_parameters`: parameters that PEFT wraps individually instead of their module.
    parameters: Vec<String>,
    /// All keys with their values in the file.
    values: BTreeMap<String, Json>,
}

impl Config {
    /// Parses the bytes of a configuration.
    ///
    /// # Errors
    /// [`Fault::Json`] if the bytes are not a JSON map with unique keys, [`Fault::ConfigValue`] for a value
    /// that is not supported.
    pub fn parse(text: &[u8]) -> Result<Self, Fault> {
        let json: Json = serde_json::from_slice(text)?;
        let Json::Map(entries) = json else {
            return Err(Fault::ConfigValue {
                field: "the configuration",
                found: shortened(&json.to_string()),
                expected: "a map of settings",
            });
        };
        let values: BTreeMap<String, Json> = entries.into_iter().collect();
        let unsupported = |field, expected| {
            let found =
                values.get(field).map_or_else(|| "missing".to_owned(), |value| shortened(&value.to_string()));
            Fault::ConfigValue { field, found, expected }
        };
        let value_of = |key: &str| match key_use(key) {
            Some(KeyUse::MustAgree(form)) => canonical(form, values.get(key)),
            _ => Json::Null,
        };
        let peft_type = match values.get("peft_type") {
            Some(Json::Text(text)) if text == "LORA" => text.clone(),
            _ => return Err(unsupported("peft_type", "\"LORA\"")),
        };
        let flag = |key| match value_of(key) {
            Json::Flag(flag) => Ok(flag),
            _ => Err(unsupported(key, "true or false")),
        };
        if flag("use_dora")? {
            return Err(unsupported("use_dora", "false"));
        }
        let use_rslora = flag("use_rslora")?;
        let r = parse_rank(&value_of("r")).ok_or_else(|| unsupported("r", "a whole number of at least 1"))?;
        let lora_alpha =
            value_of("lora_alpha").number().ok_or_else(|| unsupported("lora_alpha", "a number"))?;
        let parameters = match value_of("target_parameters") {
            Json::List(names) => names.into_iter().map(|name| match name {
                Json::Text(name) => Ok(name),
                _ => Err(unsupported("target_parameters", "a list of names")),
            }),
            _ => return Err(unsupported("target_parameters", "a list of names")),
        };
        let parameters = parameters.collect::<Result<_, _>>()?;
        let patterns = |key, is_valid: fn(&Json) -> bool, expected| {
            let entries = match values.get(key) {
                None | Some(Json::Null) => &[][..],
                Some(Json::Map(entries)) if entries.iter().all(|(_, value)| is_valid(value)) => entries,
                _ => return Err(unsupported(key, expected)),
            };
            let entries = entries.iter().filter_map(|(key, value)| Some((key.as_str(), value.number()?)));
            Ok(Patterns::new(entries))
        };
        let ranks = patterns(
            "rank_pattern",
            |value| parse_rank(value).is_some(),
            "a map of whole numbers of at least 1",
        )?;
        let alphas = patterns("alpha_pattern", |value| value.number().is_some(), "a map of numbers")?;
        let other_product =
            (value_of("use_bdlora") != Json::Null).then_some("use_bdlora makes the factors block-diagonal");
        Ok(Self { peft_type, r, lora_alpha, use_rslora, other_product, ranks, alphas, parameters, values })
    }

    /// First key whose value differs in meaning from another configuration. Known keys are compared in a
    /// fixed order, then unknown keys in ascending order. `None` if the configurations agree.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<ConfigDifference> {
        let value = |config: &Self, key: &str| {
            let value = config.values.get(key);
            match key_use(key) {
                Some(KeyUse::MustAgree(form)) => canonical(form, value),
                Some(_) => Json::Null,
                None => value.filter(|value| !value.is_off()).map_or(Json::Null, Json::sorted),
            }
        };
        let unknown = self.values.keys().chain(other.values.keys()).filter(|key| key_use(key).is_none());
        let mut unknown: Vec<&str> = unknown.map(String::as_str).collect();
        unknown.sort_unstable();
        let known_keys = KEYS.iter().map(|(key, _)| *key);
        let mut pairs = known_keys.chain(unknown).map(|key| (key, value(self, key), value(other, key)));
        let (key, ours, theirs) = pairs.find(|(_, ours, theirs)| ours != theirs)?;
        let quoted = |config: &Self, value: &Json| match (config.values.contains_key(key), key_use(key)) {
            (false, None) => "missing".to_owned(),
            (true, None) => shortened(&config.values.get(key).unwrap_or(&Json::Null).to_string()),
            (false, _) if !value.is_off() => format!("{} by default", shortened(&value.to_string())),
            _ => shortened(&value.to_string()),
        };
        let (found, expected) = (quoted(self, &ours), quoted(other, &theirs));
        Some(ConfigDifference { key: key.to_owned(), found, expected, is_known: key_use(key).is_some() })
    }

    /// Value of a key that names the model: the canonical form, and the text to print. `None` if the file has
    /// no such value.
    pub(super) fn model_statement(&self, key: &str) -> Option<(String, String)> {
        let value = self.values.get(key);
        let shown = value.map_or_else(|| "true by default".to_owned(), |value| shortened(&value.to_string()));
        Some((model_statement(key, value)?, shown))
    }

    /// True if the patterns of both configurations have their keys in the same order.
    pub(super) fn has_order_of(&self, other: &Self) -> bool {
        let keys = |config: &Self, key: &str| match config.values.get(key) {
            Some(Json::Map(entries)) => entries.iter().map(|(key, _)| key.clone()).collect(),
            _ => Vec::new(),
        };
        ["rank_pattern", "alpha_pattern"].iter().all(|key| keys(self, key) == keys(other, key))
    }

    /// Rank and alpha of a module or parameter, given by its name in the model.
    ///
    /// # Errors
    /// The key of a pattern that is unsupported and might match the name.
    pub(super) fn rank_and_alpha(&self, name: &str) -> Result<(u64, f64), String> {
        let rank = self.ranks.find(name).map_err(str::to_owned)?;
        let alpha = self.alphas.find(name).map_err(str::to_owned)?.unwrap_or(self.lora_alpha);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole numbers up to 2^32"
        )]
        let rank = rank.map_or(self.r, |rank| rank as u64);
        Ok((rank, alpha))
    }

    /// Names of a module's parameters that `target_parameters` selects, as they are in the model.
    pub(super) fn parameters_of(&self, module: &str) -> Vec<String> {
        let parameter_name = |target: &String| match target.rsplit_once('.') {
            Some((owner, parameter)) => {
                has_dotted_end(module, owner).then(|| format!("{module}.{parameter}"))
            }
            None => Some(format!("{module}.{target}")),
        };
        self.parameters.iter().filter_map(parameter_name).collect()
    }

    /// True if an entry of `target_parameters` includes the name of this module.
    pub(super) fn names_module(&self, module: &str) -> bool {
        self.parameters
            .iter()
            .any(|target| target.rsplit_once('.').is_some_and(|(owner, _)| has_dotted_end(module, owner)))
    }
}

/// True if a dotted name is `suffix`, or ends with `.` and `suffix`.
fn has_dotted_end(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|start| start.is_empty() || start.ends_with('.'))
}

/// Rank in a JSON value; `None` if the value is not a rank from 1 to [`RANK_MAX`].
fn parse_rank(value: &Json) -> Option<u64> {
    match value {
        Json::Whole(rank @ 1..=RANK_MAX) => u64::try_from(*rank).ok(),
        _ => None,
    }
}

/// Reads the configuration in the directory of an adapter file. Returns path, bytes and parsed value; `None`
/// if the directory has no configuration.
///
/// # Errors
/// [`AdapterError::File`] if the configuration is not a regular file, is too long, cannot be read, or cannot
/// be parsed ([`Config::parse`]).
pub(super) fn read_beside(file: &Path) -> Result<Option<(PathBuf, Vec<u8>, Config)>, AdapterError> {
    let path = file.with_file_name(CONFIG);
    let config_error = |fault: Fault| AdapterError::file(&path, fault);
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(config_error(Fault::NotRegular)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(config_error(error.into())),
    }
    let file = std::fs::File::open(&path).map_err(|error| config_error(error.into()))?;
    let mut bytes = Vec::new();
    file.take(CONFIG_MAX + 1).read_to_end(&mut bytes).map_err(|error| config_error(error.into()))?;
    if bytes.len() as u64 > CONFIG_MAX {
        return Err(config_error(Fault::ConfigTooLong { max: CONFIG_MAX }));
    }
    let config = Config::parse(&bytes).map_err(config_error)?;
    Ok(Some((path, bytes, config)))
}
