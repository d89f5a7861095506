//! Command `cargo xtask advisories`: checks every locked crate against a copy of the RustSec database.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Args;
use semver::{Version, VersionReq};
use toml_edit::{DocumentMut, Item};

use super::{RULES, manifests, report};
use crate::process::{Context, Failure, NOT_RUN, variable};

/// Arguments of `cargo xtask advisories`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "The database is a copy of https://github.com/RustSec/advisory-db: --database, FEDSPAN_ADVISORY_DB, or
where cargo-audit and cargo-deny keep theirs. Without one nothing is checked (exit code 77). All crates
of all lock files count, also those of other systems. Advisories that do not apply are listed in
deny.toml, advisories.ignore, each with its reason.

exit: 0 no advisory applies · 1 one does · 2 wrong arguments · 77 not run: there is no database"
)]
pub struct Advisories {
    /// Folder of the database.
    #[arg(long, value_name = "FOLDER")]
    database: Option<PathBuf>,
}

/// One advisory about a crate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Advisory {
    id: String,
    package: String,
    title: String,
    /// Versions to which the advisory does not apply.
    fixed: Vec<VersionReq>,
}

/// Runs the command.
///
/// # Errors
/// Exit code 1 if an advisory applies or a file cannot be read, 77 if there is no database.
pub fn run(context: &Context, arguments: &Advisories) -> Result<(), Failure> {
    let Some(database) = find_database(arguments.database.as_deref()) else {
        return Err(Failure::with_code(
            NOT_RUN,
            "advisories: not run: there is no copy of the database here (git clone --depth 1 \
             https://github.com/RustSec/advisory-db, then --database FOLDER)",
        ));
    };
    let ignored = read_ignored_ids(context)?;
    let mut advisories_of_crate: BTreeMap<String, Vec<Advisory>> = BTreeMap::new();
    let mut applied_ids = BTreeSet::new();
    let mut failed = false;
    for manifest in manifests(context)? {
        let file = context.root.join(&manifest.folder).join("Cargo.lock");
        let text = std::fs::read_to_string(&file)
            .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
        let locked = read_locked_crates(&text)
            .map_err(|fault| Failure::new(format!("{}: {fault}", file.display())))?;
        let mut applicable = Vec::new();
        for (name, version) in &locked {
            if !advisories_of_crate.contains_key(name) {
                advisories_of_crate.insert(name.clone(), read_advisories(&database, name)?);
            }
            applicable.extend(
                advisories_of_crate[name]
                    .iter()
                    .filter(|advisory| advisory.applies_to(version))
                    .map(|advisory| (advisory.clone(), version)),
            );
        }
        applied_ids.extend(applicable.iter().map(|(advisory, _)| advisory.id.clone()));
        applicable.retain(|(advisory, _)| !ignored.contains(&advisory.id));
        let result = if applicable.is_empty() { "ok" } else { "FAILED" };
        report("advisories", &manifest, &format!("{:4} crates  {result}", locked.len()));
        for (Advisory { id, package, title, fixed }, version) in &applicable {
            let fixed: Vec<_> = fixed.iter().map(VersionReq::to_string).collect();
            let fixed = if fixed.is_empty() { "none".to_owned() } else { fixed.join(", ") };
            println!("  {package} {version}: {id}: {title}; allowed versions: {fixed}");
        }
        failed |= !applicable.is_empty();
    }
    for id in ignored.difference(&applied_ids) {
        println!("advisories: {RULES} ignores {id}, which applies to no crate; remove it");
        failed = true;
    }
    if failed { Err(Failure::printed()) } else { Ok(()) }
}

/// Finds the folder of the database, which contains a folder `crates`.
fn find_database(argument: Option<&Path>) -> Option<PathBuf> {
    let home = variable("CARGO_HOME").or_else(|| variable("HOME").map(|home| format!("{home}/.cargo")));
    let home = PathBuf::from(home.unwrap_or_default());
    let mut candidates: Vec<PathBuf> = argument.map(Path::to_owned).into_iter().collect();
    candidates.extend(variable("FEDSPAN_ADVISORY_DB").map(PathBuf::from));
    candidates.push(home.join("advisory-db"));
    // cargo-deny has a folder for each database.
    let folders = std::fs::read_dir(home.join("advisory-dbs")).into_iter().flatten().flatten();
    candidates.extend(folders.map(|folder| folder.path()));
    candidates.into_iter().find(|folder| folder.join("crates").is_dir())
}

/// Returns the ids of the advisories that `deny.toml` ignores.
fn read_ignored_ids(context: &Context) -> Result<BTreeSet<String>, Failure> {
    let failed = |fault: String| Failure::new(format!("{RULES}: {fault}"));
    let text =
        std::fs::read_to_string(context.root.join(RULES)).map_err(|error| failed(error.to_string()))?;
    let document: DocumentMut = text.parse().map_err(|error| failed(format!("{error}")))?;
    let list = document.get("advisories").and_then(|table| table.get("ignore")).and_then(Item::as_array);
    let list = list.ok_or_else(|| failed("advisories.ignore must be a list".to_owned()))?;
    let id = |entry: &toml_edit::Value| {
        let table = entry.as_inline_table();
        let has_reason = table.is_some_and(|table| table.contains_key("reason"));
        let id = table.and_then(|table| table.get("id")).and_then(|id| id.as_str()).map(str::to_owned);
        id.filter(|_| has_reason)
            .ok_or_else(|| failed("advisories.ignore must hold { id, reason }".to_owned()))
    };
    list.iter().map(id).collect()
}

/// Returns the names and versions of the crates in a lock file that are from registries.
fn read_locked_crates(text: &str) -> Result<Vec<(String, Version)>, String> {
    let document: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let packages = document.get("package").and_then(Item::as_array_of_tables).ok_or("it has no packages")?;
    let mut crates = Vec::new();
    for package in packages.iter().filter(|package| package.contains_key("source")) {
        let word = |key: &str| {
            package.get(key).and_then(Item::as_str).ok_or_else(|| format!("a package has no {key}"))
        };
        let (name, version) = (word("name")?, word("version")?);
        crates
            .push((name.to_owned(), version.parse().map_err(|error| format!("{name} {version}: {error}"))?));
    }
    Ok(crates)
}

/// Reads the advisories about a crate. There are none if the database has no folder for the crate.
fn read_advisories(database: &Path, name: &str) -> Result<Vec<Advisory>, Failure> {
    let Ok(folder) = std::fs::read_dir(database.join("crates").join(name)) else { return Ok(Vec::new()) };
    let mut advisories = Vec::new();
    for entry in folder {
        let file = entry?.path();
        let text = std::fs::read_to_string(&file)?;
        let advisory =
            Advisory::parse(&text).map_err(|fault| Failure::new(format!("{}: {fault}", file.display())))?;
        advisories.extend(advisory);
    }
    Ok(advisories)
}

impl Advisory {
    /// Parses a file of the database: a block of TOML, then text with a heading. Returns `None` if the
    /// advisory was withdrawn.
    fn parse(text: &str) -> Result<Option<Self>, String> {
        let block =
            text.trim_start().strip_prefix("```toml").and_then(|after_fence| after_fence.split_once("\n```"));
        let (toml, prose) = block.ok_or("found no block of TOML at the beginning")?;
        let document: DocumentMut = toml.parse().map_err(|error| format!("{error}"))?;
        let advisory = document.get("advisory").ok_or("[advisory] is missing")?;
        if advisory.get("withdrawn").is_some() {
            return Ok(None);
        }
        let word = |key: &str| {
            let word = advisory.get(key).and_then(Item::as_str);
            word.map(str::to_owned).ok_or_else(|| format!("advisory.{key} is missing"))
        };
        let mut fixed = Vec::new();
        for key in ["patched", "unaffected"] {
            let list =
                document.get("versions").and_then(|versions| versions.get(key)).and_then(Item::as_array);
            for range in list.into_iter().flat_map(|list| list.iter()) {
                let range = range.as_str().ok_or_else(|| format!("versions.{key} must hold words"))?;
                fixed.push(range.parse().map_err(|error| format!("{range}: {error}"))?);
            }
        }
        let title =
            prose.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("without a title").to_owned();
        Ok(Some(Self { id: word("id")?, package: word("package")?, title, fixed }))
    }

    fn applies_to(&self, version: &Version) -> bool {
        !self.fixed.iter().any(|range| range.matches(version))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const FILE: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2020-0001\"\npackage = \"a\"\ndate = \"2020-01-01\"\n\n[versions]\n\
                        patched = [\"^0.4.5\", \">= 0.5.2\"]\nunaffected = [\"< 0.3\"]\n```\n\n# It leaks\n\nText.\n";

    #[test]
    fn advisory_applies_to_versions_that_are_neither_patched_nor_unaffected() {
        let advisory = Advisory::parse(FILE).unwrap().unwrap();
        assert_eq!((advisory.id.as_str(), advisory.title.as_str()), ("RUSTSEC-2020-0001", "It leaks"));
        let applies = |version: &str| advisory.applies_to(&version.parse().unwrap());
        for version in ["0.3.0", "0.4.4", "0.5.1"] {
            assert!(applies(version), "{version}");
        }
        for version in ["0.2.9", "0.4.5", "0.4.9", "0.5.2", "1.0.0"] {
            assert!(!applies(version), "{version}");
        }
    }

    #[test]
    fn withdrawn_advisories_are_left_out_and_other_files_are_errors() {
        let withdrawn = FILE.replace("\n[versions]", "withdrawn = \"2021-01-01\"\n[versions]");
        assert_eq!(Advisory::parse(&withdrawn), Ok(None));
        assert!(Advisory::parse("text").is_err());
        assert!(Advisory::parse(&FILE.replace("package = \"a\"\n", "")).is_err());
        assert!(Advisory::parse(&FILE.replace("^0.4.5", "what")).is_err());
    }

    #[test]
    fn only_crates_of_registries_are_looked_up() {
        let text = "[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\
                    source = \"registry+x\"\n";
        assert_eq!(read_locked_crates(text).unwrap(), [("a".to_owned(), "1.2.3".parse().unwrap())]);
        assert!(read_locked_crates("").is_err());
    }
}
