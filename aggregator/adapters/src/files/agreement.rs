//! Comparison of the PEFT configurations of all input files: each must have the same meaning as the first.
//! Differences that may be intended become warnings.

use std::path::{Path, PathBuf};

use super::config::{self, Config};
use super::config_keys::{KEYS, KeyUse};
use super::scaling::{ModuleScalings, module_scalings};
use super::{AdapterError, Fault, Layout};

/// Set of the configurations read so far. The first configuration applies to all files.
#[derive(Default)]
pub(super) struct ConfigSet {
    /// Path, contents and module scalings of the first configuration.
    first: Option<(PathBuf, Config, ModuleScalings)>,
    /// Values of the keys that name the model, one entry per key.
    statements: Vec<ModelStatement>,
}

/// Values of one key that names the model.
struct ModelStatement {
    key: &'static str,
    reason: &'static str,
    /// Path, canonical form and text of the first value.
    first: (PathBuf, String, String),
    /// Path and text of the first different value.
    other: Option<(PathBuf, String)>,
    /// Number of files whose value differs from the first.
    differing: usize,
}

impl ConfigSet {
    /// Checks the configuration of an adapter file against the first configuration. Returns the bytes of the
    /// configuration; `None` if the file has none.
    ///
    /// # Errors
    /// [`AdapterError::File`] if the configuration is invalid, differs in meaning from the first one, or
    /// contradicts the rank of a factor.
    pub(super) fn check(&mut self, file: &Path, layout: &Layout) -> Result<Option<Vec<u8>>, AdapterError> {
        let Some((path, bytes, config)) = config::read_beside(file)? else { return Ok(None) };
        self.add_statements(&path, &config);
        let Some((first_path, first_config, first_scalings)) = &self.first else {
            let scalings =
                module_scalings(Some(&config), layout).map_err(|fault| AdapterError::located(file, fault))?;
            self.first = Some((path, config, scalings));
            return Ok(Some(bytes));
        };
        if let Some(difference) = config.difference(first_config) {
            let fault = Fault::ConfigMismatch { difference: Box::new(difference), first: first_path.clone() };
            return Err(AdapterError::file(&path, fault));
        }
        if !config.has_order_of(first_config) {
            let scalings =
                module_scalings(Some(&config), layout).map_err(|fault| AdapterError::located(file, fault))?;
            let differing = scalings.iter().zip(first_scalings).position(|(scaling, first)| scaling != first);
            if let Some(index) = differing {
                let format_scaling = |scalings: &ModuleScalings| match scalings.get(index) {
                    Some(Ok(scaling)) => format!("{} and scale {}", scaling.rank, scaling.scale),
                    _ => "unknown".to_owned(),
                };
                let fault = Fault::PatternOrderMismatch {
                    found: format_scaling(&scalings),
                    expected: format_scaling(first_scalings),
                    first: first_path.clone(),
                };
                let name = layout.pairs.get(index).map_or("", |pair| pair.module.as_str());
                return Err(AdapterError::tensor(&path, name, fault));
            }
        }
        Ok(Some(bytes))
    }

    /// First configuration; `None` if no file has one.
    pub(super) fn first_config(&self) -> Option<&Config> {
        self.first.as_ref().map(|(_, config, _)| config)
    }

    /// Module scalings of the first configuration.
    pub(super) fn scalings(&self) -> Option<ModuleScalings> {
        self.first.as_ref().map(|(_, _, scalings)| scalings.clone())
    }

    /// Compares the keys that name the model with the values of earlier configurations.
    fn add_statements(&mut self, path: &Path, config: &Config) {
        for (key, reason) in KEYS.iter().filter_map(|(key, kind)| match kind {
            KeyUse::Warn(reason) => Some((*key, *reason)),
            _ => None,
        }) {
            let Some((form, text)) = config.model_statement(key) else { continue };
            match self.statements.iter_mut().find(|statement| statement.key == key) {
                None => {
                    let first = (path.to_owned(), form, text);
                    self.statements.push(ModelStatement { key, reason, first, other: None, differing: 0 });
                }
                Some(statement) if statement.first.1 != form => {
                    statement.differing += 1;
                    statement.other.get_or_insert_with(|| (path.to_owned(), text));
                }
                Some(_) => {}
            }
        }
    }

    /// Warnings about differences that may be intended, one line for each key.
    pub(super) fn warnings(&self) -> Vec<String> {
        let line = |statement: &ModelStatement| {
            let ModelStatement { key, reason, first: (first, _, expected), other, differing } = statement;
            let (path, found) = other.as_ref()?;
            let others_text = match differing - 1 {
                0 => String::new(),
                1 => ", and 1 more file differs".to_owned(),
                count => format!(", and {count} more files differ"),
            };
            let (path, first) = (path.display(), first.display());
            Some(format!("{path}: {key} is {found}, but {expected} in {first}{others_text}: {reason}"))
        };
        self.statements.iter().filter_map(line).collect()
    }
}
