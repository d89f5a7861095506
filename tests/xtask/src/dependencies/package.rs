//! Command `cargo xtask package`: checks that every crate that is meant to be published can be packed.

use std::path::Path;

use clap::Args;
use serde_json::Value;

use super::metadata;
use crate::process::{Context, Failure};

/// Arguments of `cargo xtask package`.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(
    after_help = "Packs each crate of the workspace without `publish = false`, and builds it from its package alone.
Prints which of description, license, repository, readme, keywords and categories a crate lacks.

exit: 0 all can be packed · 1 one cannot, or (with --strict) lacks something · 2 wrong arguments"
)]
pub struct Pack {
    /// Pack only; build nothing.
    #[arg(long)]
    no_verify: bool,
    /// Pack files that are not committed, too.
    #[arg(long)]
    allow_dirty: bool,
    /// Fail if a crate lacks a field that describes it.
    #[arg(long)]
    strict: bool,
}

impl Pack {
    /// Returns arguments that pack without a build, because CI has no time for a build.
    #[must_use]
    pub fn of_ci() -> Self {
        Self { no_verify: true, ..Self::default() }
    }
}

/// Fields that describe a crate to its users.
const FIELDS: [&str; 6] = ["description", "license", "repository", "readme", "keywords", "categories"];

/// Runs the command.
///
/// # Errors
/// A crate cannot be packed or built, or lacks a required field.
pub fn run(context: &Context, arguments: Pack) -> Result<(), Failure> {
    let document = metadata(context, Path::new(""), &["--no-deps"])?;
    let document = document.ok_or_else(|| Failure::new("package: cargo metadata failed"))?;
    let mut cargo = context.cargo(&["package", "--locked", "--quiet"]);
    let mut failed = false;
    for package in
        document["packages"].as_array().into_iter().flatten().filter(|package| is_published(package))
    {
        let name = package["name"].as_str().unwrap_or_default();
        let lacking: Vec<&str> = FIELDS.into_iter().filter(|field| is_empty(&package[*field])).collect();
        let result =
            if lacking.is_empty() { "ok".to_owned() } else { format!("lacks {}", lacking.join(", ")) };
        println!("package {name:<24} {result}");
        failed |= arguments.strict && !lacking.is_empty();
        cargo.args(["-p", name]);
    }
    cargo
        .args(arguments.no_verify.then_some("--no-verify"))
        .args(arguments.allow_dirty.then_some("--allow-dirty"));
    failed |= !context.succeeds(&mut cargo);
    if failed { Err(Failure::printed()) } else { Ok(()) }
}

/// Returns whether a package may be published. In cargo's metadata `publish = false` is an empty list of
/// registries.
fn is_published(package: &Value) -> bool {
    !package["publish"].as_array().is_some_and(Vec::is_empty)
}

fn is_empty(field: &Value) -> bool {
    match field {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpublished_crates_and_empty_fields_are_found() {
        let package: Value =
            serde_json::json!({ "publish": [], "keywords": [], "readme": null, "license": "MIT" });
        assert!(!is_published(&package));
        assert!(is_published(&serde_json::json!({ "publish": null })));
        assert_eq!(
            ["keywords", "readme", "license"].map(|field| is_empty(&package[field])),
            [true, true, false]
        );
    }
}
