//! `adapter_config.json`, as far as two adapters must agree in it to be averaged.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::short;
use super::json::Json;
use super::meaning::{KEYS, KeyUse, known, normal, stated};
use super::pattern::Patterns;
use super::{AdapterError, Fault};

/// Its name beside an adapter's file.
pub(super) const CONFIG: &str = "adapter_config.json";

/// Longest configuration that is read.
const CONFIG_MAX: u64 = 1 << 20;

/// Greatest rank: exact in f64.
const RANK_MAX: i128 = 1 << 32;

/// The contents of a configuration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Only LORA is known here.
    pub peft_type: String,
    /// The rank of modules that have no other.
    pub r: u64,
    /// The alpha of modules that have no other.
    pub lora_alpha: f64,
    /// Whether `B A` is multiplied with alpha/sqrt(r) instead of alpha/r.
    pub use_rslora: bool,
    /// Why the product of the two factors is not the update itself, if it is not.
    pub(super) other_product: Option<&'static str>,
    ranks: Patterns,
    alphas: Patterns,
    /// Names of parameters that are wrapped themselves.
    parameters: Vec<String>,
    /// All keys, as they are in the file.
    values: BTreeMap<String, Json>,
}

/// Two values of one key that do not mean the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigDifference {
    /// The key.
    pub key: String,
    /// Value in this configuration.
    pub found: String,
    /// Value in the other one.
    pub expected: String,
    /// Whether it is known what the key means.
    pub is_known: bool,
}

impl Config {
    /// Takes a file apart.
    ///
    /// # Errors
    /// A fault of form; a kind of adapter that is not supported.
    pub fn parse(text: &[u8]) -> Result<Self, Fault> {
        let json: Json = serde_json::from_slice(text)?;
        let Json::Map(entries) = json else {
            return Err(Fault::ConfigValue {
                field: "all of it",
                found: short(&json.to_string()),
                expected: "a map of settings",
            });
        };
        let values: BTreeMap<String, Json> = entries.into_iter().collect();
        let wrong = |field, expected| {
            let found =
                values.get(field).map_or_else(|| "missing".to_owned(), |value| short(&value.to_string()));
            Fault::ConfigValue { field, found, expected }
        };
        let of = |key: &str| match known(key) {
            Some(KeyUse::MustAgree(form)) => normal(form, values.get(key)),
            _ => Json::Null,
        };
        let peft_type = match values.get("peft_type") {
            Some(Json::Text(text)) if text == "LORA" => text.clone(),
            _ => return Err(wrong("peft_type", "\"LORA\"")),
        };
        let flag = |key| match of(key) {
            Json::Flag(flag) => Ok(flag),
            _ => Err(wrong(key, "true or false")),
        };
        if flag("use_dora")? {
            return Err(wrong("use_dora", "false"));
        }
        let use_rslora = flag("use_rslora")?;
        let r = rank(&of("r")).ok_or_else(|| wrong("r", "a whole number from 1 on"))?;
        let lora_alpha = of("lora_alpha").number().ok_or_else(|| wrong("lora_alpha", "a number"))?;
        let parameters = match of("target_parameters") {
            Json::List(names) => names.into_iter().map(|name| match name {
                Json::Text(name) => Ok(name),
                _ => Err(wrong("target_parameters", "a list of names")),
            }),
            _ => return Err(wrong("target_parameters", "a list of names")),
        };
        let parameters = parameters.collect::<Result<_, _>>()?;
        let patterns = |key, is_sound: fn(&Json) -> bool, expected| {
            let entries = match values.get(key) {
                None | Some(Json::Null) => &[][..],
                Some(Json::Map(entries)) if entries.iter().all(|(_, value)| is_sound(value)) => entries,
                _ => return Err(wrong(key, expected)),
            };
            let entries = entries.iter().filter_map(|(key, value)| Some((key.as_str(), value.number()?)));
            Ok(Patterns::new(entries))
        };
        let ranks =
            patterns("rank_pattern", |value| rank(value).is_some(), "a map of whole numbers from 1 on")?;
        let alphas = patterns("alpha_pattern", |value| value.number().is_some(), "a map of numbers")?;
        let other_product = (of("use_bdlora") != Json::Null).then_some("use_bdlora makes factors of blocks");
        Ok(Self { peft_type, r, lora_alpha, use_rslora, other_product, ranks, alphas, parameters, values })
    }

    /// The first key in which another one means something else: those that are known in the order of the table in
    /// `ADAPTERS.md`, then all others.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<ConfigDifference> {
        let value = |config: &Self, key: &str| {
            let value = config.values.get(key);
            match known(key) {
                Some(KeyUse::MustAgree(form)) => normal(form, value),
                Some(_) => Json::Null,
                None => value.filter(|value| !value.is_off()).map_or(Json::Null, Json::sorted),
            }
        };
        let unknown = self.values.keys().chain(other.values.keys()).filter(|key| known(key).is_none());
        let mut unknown: Vec<&str> = unknown.map(String::as_str).collect();
        unknown.sort_unstable();
        let known_ones = KEYS.iter().map(|(key, _)| *key);
        let mut pairs = known_ones.chain(unknown).map(|key| (key, value(self, key), value(other, key)));
        let (key, ours, theirs) = pairs.find(|(_, ours, theirs)| ours != theirs)?;
        let shown = |config: &Self, value: &Json| match (config.values.contains_key(key), known(key)) {
            (false, None) => "missing".to_owned(),
            (true, None) => short(&config.values.get(key).unwrap_or(&Json::Null).to_string()),
            (false, _) if !value.is_off() => format!("{} by default", short(&value.to_string())),
            _ => short(&value.to_string()),
        };
        let (found, expected) = (shown(self, &ours), shown(other, &theirs));
        Some(ConfigDifference { key: key.to_owned(), found, expected, is_known: known(key).is_some() })
    }

    /// Statement of a key that tells the model: in a form to compare, and to print.
    pub(super) fn stated(&self, key: &str) -> Option<(String, String)> {
        let value = self.values.get(key);
        let shown = value.map_or_else(|| "true by default".to_owned(), |value| short(&value.to_string()));
        Some((stated(key, value)?, shown))
    }

    /// Whether the patterns have their keys in the same order: the first one that matches counts.
    pub(super) fn has_order_of(&self, other: &Self) -> bool {
        let keys = |config: &Self, key: &str| match config.values.get(key) {
            Some(Json::Map(entries)) => entries.iter().map(|(key, _)| key.clone()).collect(),
            _ => Vec::new(),
        };
        ["rank_pattern", "alpha_pattern"].iter().all(|key| keys(self, key) == keys(other, key))
    }

    /// The rank and the alpha of a module or parameter by its name in the model.
    ///
    /// # Errors
    /// The key of a pattern that is not read here and may be that of the module.
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

    /// Names in the model of the parameters of a module that are wrapped, as far as the configuration knows them.
    pub(super) fn parameters_of(&self, module: &str) -> Vec<String> {
        let own = |target: &String| match target.rsplit_once('.') {
            Some((owner, parameter)) => is_end(module, owner).then(|| format!("{module}.{parameter}")),
            None => Some(format!("{module}.{target}")),
        };
        self.parameters.iter().filter_map(own).collect()
    }

    /// Whether a parameter that is wrapped is named together with this module.
    pub(super) fn names_module(&self, module: &str) -> bool {
        self.parameters
            .iter()
            .any(|target| target.rsplit_once('.').is_some_and(|(owner, _)| is_end(module, owner)))
    }
}

/// Whether a name is this end of it, or has it behind a point.
fn is_end(name: &str, end: &str) -> bool {
    name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn rank(value: &Json) -> Option<u64> {
    match value {
        Json::Whole(rank @ 1..=RANK_MAX) => u64::try_from(*rank).ok(),
        _ => None,
    }
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
        return Err(wrong(Fault::ConfigTooLong { most: CONFIG_MAX }));
    }
    let config = Config::parse(&bytes).map_err(wrong)?;
    Ok(Some((path, bytes, config)))
}
