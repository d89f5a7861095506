//! Configurations of the files that are averaged: whether they mean the same, and what is worth a warning.

use std::path::{Path, PathBuf};

use super::config::{self, Config};
use super::meaning::{KEYS, KeyUse};
use super::scaling::{ModuleScalings, shares};
use super::{AdapterError, Fault, Layout};

/// The configurations that were seen: the first is that of all.
#[derive(Default)]
pub(super) struct ConfigSet {
    first: Option<(PathBuf, Config, ModuleScalings)>,
    /// The first statement of every key that tells the model, and others of it.
    told: Vec<ModelStatement>,
}

/// Statements of one key.
struct ModelStatement {
    key: &'static str,
    reason: &'static str,
    /// File, form to compare, and text of the first statement.
    first: (PathBuf, String, String),
    /// The first other one, and how many files differ from the first.
    other: Option<(PathBuf, String)>,
    differing: usize,
}

impl ConfigSet {
    /// Looks at the configuration beside a file, if there is one, and returns its bytes.
    ///
    /// # Errors
    /// A configuration that means something else than the first; one that cannot be used; a rank that is not the factors'.
    pub(super) fn check(&mut self, file: &Path, layout: &Layout) -> Result<Option<Vec<u8>>, AdapterError> {
        let Some((path, bytes, config)) = config::beside(file)? else { return Ok(None) };
        self.tell(&path, &config);
        let Some((first, other, all)) = &self.first else {
            let shares = shares(Some(&config), layout).map_err(|found| AdapterError::found(file, found))?;
            self.first = Some((path, config, shares));
            return Ok(Some(bytes));
        };
        if let Some(difference) = config.difference(other) {
            let fault = Fault::ConfigMismatch { difference: Box::new(difference), first: first.clone() };
            return Err(AdapterError::file(&path, fault));
        }
        if !config.has_order_of(other) {
            let own = shares(Some(&config), layout).map_err(|found| AdapterError::found(file, found))?;
            let differing = own.iter().zip(all).position(|(own, other)| own != other);
            if let Some(place) = differing {
                let text = |shares: &ModuleScalings| match shares.get(place) {
                    Some(Ok(share)) => format!("{} and scale {}", share.rank, share.scale),
                    _ => "not known".to_owned(),
                };
                let fault = Fault::PatternOrderMismatch {
                    found: text(&own),
                    expected: text(all),
                    first: first.clone(),
                };
                let name = layout.pairs.get(place).map_or("", |pair| pair.module.as_str());
                return Err(AdapterError::tensor(&path, name, fault));
            }
        }
        Ok(Some(bytes))
    }

    /// The configuration of all.
    pub(super) fn first(&self) -> Option<&Config> {
        self.first.as_ref().map(|(_, config, _)| config)
    }

    /// Ranks, experts and scales, if there is a configuration.
    pub(super) fn shares(&self) -> Option<ModuleScalings> {
        self.first.as_ref().map(|(_, _, shares)| shares.clone())
    }

    fn tell(&mut self, path: &Path, config: &Config) {
        for (key, reason) in KEYS.iter().filter_map(|(key, kind)| match kind {
            KeyUse::Warn(reason) => Some((*key, *reason)),
            _ => None,
        }) {
            let Some((form, text)) = config.stated(key) else { continue };
            match self.told.iter_mut().find(|told| told.key == key) {
                None => {
                    let first = (path.to_owned(), form, text);
                    self.told.push(ModelStatement { key, reason, first, other: None, differing: 0 });
                }
                Some(told) if told.first.1 != form => {
                    told.differing += 1;
                    told.other.get_or_insert_with(|| (path.to_owned(), text));
                }
                Some(_) => {}
            }
        }
    }

    /// Differences that may be meant, a line for each key.
    pub(super) fn warnings(&self) -> Vec<String> {
        let line = |told: &ModelStatement| {
            let ModelStatement { key, reason, first: (first, _, expected), other, differing } = told;
            let (path, found) = other.as_ref()?;
            let more = match differing - 1 {
                0 => String::new(),
                1 => ", and 1 more file differs from that".to_owned(),
                more => format!(", and {more} more files differ from that"),
            };
            let (path, first) = (path.display(), first.display());
            Some(format!("{path}: {key} is {found}, and {expected} in {first}{more}: {reason}"))
        };
        self.told.iter().filter_map(line).collect()
    }
}
