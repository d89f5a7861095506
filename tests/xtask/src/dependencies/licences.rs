//! Command `cargo xtask licences`: checks licences and sources of every crate that is built against
//! `deny.toml`.

use std::collections::{BTreeMap, BTreeSet};

use toml_edit::{DocumentMut, Value};

use super::{Package, RULES, manifests, not_run, packages, report, spdx};
use crate::process::{Context, Failure};

/// Rules for licences and sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rules {
    licences: BTreeSet<String>,
    /// Licences that are allowed for one crate in addition.
    exceptions: BTreeMap<String, BTreeSet<String>>,
    /// Allowed registries. `None` has the same meaning as for cargo-deny: only the registry that needs no
    /// name is allowed.
    registries: Option<BTreeSet<String>>,
}

/// Runs the command.
///
/// # Errors
/// Exit code 1 if a crate has another licence or source, 77 if crates of a manifest are not available.
pub fn run(context: &Context) -> Result<(), Failure> {
    let text = std::fs::read_to_string(context.root.join(RULES))
        .map_err(|error| Failure::new(format!("{RULES}: {error}")))?;
    let rules = Rules::parse(&text).map_err(|fault| Failure::new(format!("{RULES}: {fault}")))?;
    let (mut failed, mut unavailable) = (false, 0);
    for manifest in manifests(context)? {
        let packages = match packages(context, &manifest) {
            Ok(Some(packages)) => packages,
            Ok(None) => {
                report("licences", &manifest, "not run: its crates are not here");
                unavailable += 1;
                continue;
            }
            Err(failure) => {
                report("licences", &manifest, &format!("FAILED\n  {}", failure.message));
                failed = true;
                continue;
            }
        };
        let faults: Vec<String> = packages.iter().filter_map(|package| rules.find_fault(package)).collect();
        let result = if faults.is_empty() { "ok" } else { "FAILED" };
        report("licences", &manifest, &format!("{:4} crates  {result}", packages.len()));
        for fault in &faults {
            println!("  {fault}");
        }
        failed |= !faults.is_empty();
    }
    match (failed, unavailable) {
        (true, _) => Err(Failure::printed()),
        (false, 0) => Ok(()),
        (false, _) => Err(not_run("licences", unavailable)),
    }
}

impl Rules {
    /// Parses the rules in the text of `deny.toml`.
    fn parse(text: &str) -> Result<Self, String> {
        let document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
        let list = |table: &str, key: &str| {
            let Some(words) = document.get(table).and_then(|table| table.get(key)) else { return Ok(None) };
            let list = words.as_array().and_then(|list| {
                list.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<BTreeSet<String>>>()
            });
            list.map(Some).ok_or_else(|| format!("{table}.{key} must be a list of words"))
        };
        let licences = list("licenses", "allow")?.ok_or("found no licenses.allow, a list of words")?;
        let exceptions = document.get("licenses").and_then(|table| table.get("exceptions"));
        let exceptions = exceptions.map_or(Some(BTreeMap::new()), |exceptions| {
            exceptions.as_array()?.iter().map(parse_exception).collect()
        });
        let exceptions = exceptions
            .ok_or("licenses.exceptions must be a list like [{ crate = \"a\", allow = [\"MIT\"] }]")?;
        Ok(Self { licences, exceptions, registries: list("sources", "allow-registry")? })
    }

    /// Returns the reason why a crate may not be used, or `None`.
    fn find_fault(&self, package: &Package) -> Option<String> {
        let Package { name, version, licence, source, is_of_default_registry, .. } = package;
        if let Some(source) = source {
            let registry = source.strip_prefix("registry+");
            let (is_allowed, allowed) = match &self.registries {
                Some(registries) => {
                    (registry.is_some_and(|registry| registries.contains(registry)), "a registry of")
                }
                None => (
                    *is_of_default_registry,
                    "the default registry, as there is no sources.allow-registry in",
                ),
            };
            if !is_allowed {
                return Some(format!(
                    "{name} {version}: found source {source:?}, allowed: {allowed} {RULES}"
                ));
            }
        }
        let Some(licence) = licence else {
            return Some(format!("{name} {version}: states no licence"));
        };
        let exceptions = self.exceptions.get(name).into_iter().flatten();
        let allowed = self.licences.iter().chain(exceptions).cloned().collect();
        match spdx::is_allowed(licence, &allowed) {
            Ok(true) => None,
            Ok(false) => Some(format!(
                "{name} {version}: found licence {licence:?}, allowed: those of {RULES}, licenses.allow"
            )),
            Err(fault) => {
                Some(format!("{name} {version}: {licence:?} is no expression of licences: {fault}"))
            }
        }
    }
}

/// Returns the crate and the licences of an exception.
fn parse_exception(exception: &Value) -> Option<(String, BTreeSet<String>)> {
    let exception = exception.as_inline_table()?;
    let allowed = exception.get("allow")?.as_array()?.iter();
    let allowed: Option<BTreeSet<String>> = allowed.map(|word| word.as_str().map(str::to_owned)).collect();
    Some((exception.get("crate")?.as_str()?.to_owned(), allowed?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LICENCES: &str = "[licenses]\nallow = [\"MIT\"]\n";

    fn fault(licence: Option<&str>, source: Option<&str>) -> Option<String> {
        fault_by(&format!("{LICENCES}[sources]\nallow-registry = [\"https://x\"]"), licence, source)
    }

    /// Checks a crate with the given licence and source. The default registry is `https://d`.
    fn fault_by(rules: &str, licence: Option<&str>, source: Option<&str>) -> Option<String> {
        let rules = Rules::parse(rules).unwrap();
        let (licence, source) = (licence.map(str::to_owned), source.map(str::to_owned));
        rules.find_fault(&Package {
            name: "a".to_owned(),
            version: "1.0.0".to_owned(),
            licence,
            rust_version: None,
            is_of_default_registry: source.as_deref() == Some("registry+https://d"),
            source,
        })
    }

    #[test]
    fn other_licences_and_sources_are_faults() {
        assert_eq!(fault(Some("MIT"), Some("registry+https://x")), None);
        assert_eq!(fault(Some("MIT"), None), None);
        for (licence, source, part) in [
            (Some("GPL-3.0"), None, "found licence \"GPL-3.0\""),
            (Some("MIT"), Some("registry+https://y"), "found source"),
            (Some("MIT"), Some("git+https://x"), "found source"),
            (None, None, "states no licence"),
            (Some("MIT OR"), None, "is no expression"),
        ] {
            assert!(fault(licence, source).unwrap().contains(part));
        }
    }

    #[test]
    fn default_registry_is_allowed_unless_others_are_listed() {
        let mit = |source: &str| fault_by(LICENCES, Some("MIT"), Some(source));
        assert_eq!(mit("registry+https://d"), None);
        for other in ["registry+https://x", "git+https://d"] {
            assert!(mit(other).unwrap().contains("allowed: the default registry"), "{other}");
        }
        assert!(fault(Some("MIT"), Some("registry+https://d")).is_some());
        assert!(Rules::parse("[sources]\nallow-registry = []").is_err());
        assert!(Rules::parse(&format!("{LICENCES}[sources]\nallow-registry = \"https://x\"")).is_err());
    }

    #[test]
    fn exceptions_are_for_one_crate_and_one_licence() {
        let with = |exceptions: &str| format!("{LICENCES}exceptions = {exceptions}\n");
        for (exception, is_allowed) in [
            ("[{ crate = \"a\", allow = [\"MPL-2.0\"] }]", true),
            ("[{ crate = \"b\", allow = [\"MPL-2.0\"] }]", false),
            ("[{ crate = \"a\", allow = [\"GPL-3.0\"] }]", false),
            ("[]", false),
        ] {
            assert_eq!(
                fault_by(&with(exception), Some("MPL-2.0"), None).is_none(),
                is_allowed,
                "{exception}"
            );
        }
        for wrong in ["1", "[1]", "[{ crate = \"a\" }]", "[{ crate = 1, allow = [] }]"] {
            assert!(Rules::parse(&with(wrong)).is_err(), "{wrong}");
        }
    }
}
