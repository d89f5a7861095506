//! Command `cargo xtask commands`: runs the shell blocks of the documentation as they are printed. `tests/commands.toml` says of
//! each block how it is tested.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use toml_edit::{DocumentMut, Table};

use crate::process::{Context, Failure};

/// Largest number of blocks that are never run. It only shrinks.
const NEVER: usize = 8;
/// Longest time of a block.
const LIMIT: Duration = Duration::from_secs(2 * 3600);
/// Folder below the build in which a block runs.
const BLOCK: &str = "commands/block";
/// File with the way in which each block is tested.
const MANIFEST: &str = "tests/commands.toml";

/// Arguments of `cargo xtask commands`.
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "Runs each block in an empty directory with links to the folders of this repository and to `target`; cargo
builds and runs this repository's packages. Without --all: those that take seconds.

exit: 0 every block ended with 0 · 1 one did not · 2 wrong arguments, or a block without an entry in tests/commands.toml"
)]
pub struct Commands {
    /// Run the blocks that take minutes, too.
    #[arg(long)]
    pub all: bool,
    /// Print the blocks and how they are tested, and run nothing.
    #[arg(long)]
    pub list: bool,
    /// Pages whose blocks are run; all if there are none.
    #[arg(value_name = "PAGE")]
    pub pages: Vec<String>,
}

/// Way in which a block is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Run {
    /// In every run of this command.
    Always,
    /// With `--all`.
    Nightly,
    /// By another test.
    Elsewhere(String),
    /// Not at all, for this reason.
    Never(String),
}

/// Entry of the manifest.
#[derive(Clone, Debug)]
struct Entry {
    page: String,
    begins: String,
    before: String,
    run: Run,
}

/// Shell block of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    page: String,
    text: String,
}

/// Runs the command.
///
/// # Errors
/// Exit code 2 if the manifest does not fit the pages, 1 if a block fails.
pub fn run(context: &Context, arguments: &Commands) -> Result<(), Failure> {
    let blocks = blocks(&context.root)?;
    let matched = matched(&entries(&context.root)?, &blocks)?;
    let is_named = |page: &String| arguments.pages.is_empty() || arguments.pages.contains(page);
    let selected: Vec<&(Entry, Block)> = matched.iter().filter(|(entry, _)| is_named(&entry.page)).collect();
    if arguments.list {
        for (Entry { page, begins, run, .. }, _) in selected {
            println!("{page}: {begins}\n    {run:?}");
        }
        return Ok(());
    }
    let bin = programs(context)?;
    let mut failed = Vec::new();
    for (entry, block) in selected {
        let is_run = entry.run == Run::Always || (arguments.all && entry.run == Run::Nightly);
        if !is_run {
            continue;
        }
        let began = Instant::now();
        let result = run_block(context, &bin, entry, block);
        let seconds = began.elapsed().as_secs();
        let title = format!("{}: {}", entry.page, entry.begins);
        match result {
            Ok(()) => println!("commands {title:<80} {seconds:>5} s  ok"),
            Err(reason) => {
                println!("commands {title:<80} {seconds:>5} s  FAILED");
                println!("{reason}");
                failed.push(title);
            }
        }
    }
    match failed.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("commands: {count} blocks failed: {}", failed.join("; ")))),
    }
}

/// Shell blocks of all pages, in the order of their paths.
fn blocks(root: &Path) -> Result<Vec<Block>, Failure> {
    let listed = Command::new("git").args(["ls-files", "*.md"]).current_dir(root).output()?;
    let pages = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut blocks = Vec::new();
    for page in pages.lines() {
        let text = fs::read_to_string(root.join(page))?;
        blocks.extend(blocks_in(page, &text)?);
    }
    Ok(blocks)
}

/// Shell blocks of a page. Every block must name its language.
fn blocks_in(page: &str, text: &str) -> Result<Vec<Block>, Failure> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(""), Some(_)) => {
                if let Some((true, text)) = open.take() {
                    blocks.push(Block { page: page.to_owned(), text });
                }
                open = None;
            }
            (Some(""), None) => {
                return Err(Failure::with_code(
                    2,
                    format!("{page}: a block has no language; write ```sh or ```text"),
                ));
            }
            (Some(language), None) => open = Some((language == "sh", String::new())),
            (_, Some((_, text))) => {
                let _ = writeln!(text, "{line}");
            }
            (None, None) => {}
        }
    }
    Ok(blocks)
}

/// Entries of the manifest.
fn entries(root: &Path) -> Result<Vec<Entry>, Failure> {
    let unusable = |reason: String| Failure::with_code(2, format!("{MANIFEST}: {reason}"));
    let document: DocumentMut =
        fs::read_to_string(root.join(MANIFEST))?.parse().map_err(|error| unusable(format!("{error}")))?;
    let tables = document.get("block").and_then(|item| item.as_array_of_tables());
    let entry = |table: &Table| {
        let text = |key: &str| table.get(key).and_then(|item| item.as_str()).unwrap_or_default().to_owned();
        let (page, begins) = (text("page"), text("begins"));
        let run = match (text("run").as_str(), text("by"), text("reason")) {
            ("ci", ..) => Run::Always,
            ("nightly", ..) => Run::Nightly,
            ("elsewhere", by, _) if !by.is_empty() => Run::Elsewhere(by),
            ("never", _, reason) if !reason.is_empty() => Run::Never(reason),
            (run, ..) => {
                return Err(unusable(format!(
                    "{page}: {begins}: found run = {run:?}, allowed: \"ci\", \"nightly\", \"elsewhere\" with by, \"never\" with reason"
                )));
            }
        };
        Ok(Entry { page, begins, before: text("before"), run })
    };
    let entries: Vec<Entry> = tables.into_iter().flatten().map(entry).collect::<Result<_, Failure>>()?;
    let never = entries.iter().filter(|entry| matches!(entry.run, Run::Never(_))).count();
    if never > NEVER {
        return Err(unusable(format!("found {never} blocks that are never run, allowed: {NEVER}")));
    }
    Ok(entries)
}

/// Entries with their blocks. Each block has one entry, and each entry one block.
fn matched(entries: &[Entry], blocks: &[Block]) -> Result<Vec<(Entry, Block)>, Failure> {
    let mut pairs = Vec::new();
    let mut faults = Vec::new();
    for block in blocks {
        let fits = |entry: &&Entry| entry.page == block.page && block.text.starts_with(&entry.begins);
        // The entry with the longest beginning is that of the block.
        match entries.iter().filter(fits).max_by_key(|entry| entry.begins.len()) {
            Some(entry) => pairs.push((entry.clone(), block.clone())),
            None => {
                let first = block.text.lines().next().unwrap_or_default();
                faults.push(format!("{}: no entry for the block that begins with {first:?}", block.page));
            }
        }
    }
    for Entry { page, begins, .. } in entries {
        let count = pairs.iter().filter(|(entry, _)| entry.page == *page && entry.begins == *begins).count();
        if count != 1 {
            faults.push(format!("{page}: {count} blocks begin with {begins:?}, allowed: one"));
        }
    }
    if faults.is_empty() {
        return Ok(pairs);
    }
    Err(Failure::with_code(2, format!("{MANIFEST}:\n{}", faults.join("\n"))))
}

/// Builds the programs, and makes a directory with them and with a `cargo` that uses the repository's manifest.
fn programs(context: &Context) -> Result<PathBuf, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = target(context);
    let built = Command::new(&cargo)
        .args(["build", "--release", "--locked", "--quiet"])
        .current_dir(&context.root)
        .status()?;
    if !built.success() {
        return Err(Failure::new("commands: the programs cannot be built"));
    }
    let bin = target.join("commands/bin");
    let _ = fs::remove_dir_all(&bin);
    fs::create_dir_all(&bin)?;
    for program in ["fedspan-sim", "fedspan-aggregator"] {
        std::os::unix::fs::symlink(target.join("release").join(program), bin.join(program))?;
    }
    // Only commands of the block itself are redirected, not the builds that programs start in other folders. `xtask` is an
    // alias of the repository's own configuration, which cargo finds in its folder alone.
    let script = format!(
        "#!/bin/sh\n[ \"$PWD\" = {block:?} ] || exec {cargo:?} \"$@\"\ncommand=$1\nshift\n\
         [ \"$command\" != xtask ] || {{ cd {root:?} && exec {cargo:?} xtask \"$@\"; }}\n\
         exec {cargo:?} \"$command\" --manifest-path {root:?}/Cargo.toml \"$@\"\n",
        block = target.join(BLOCK),
        root = context.root,
    );
    let path = bin.join("cargo");
    fs::write(&path, script)?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(bin)
}

/// Folder of the build.
fn target(context: &Context) -> PathBuf {
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| context.root.join("target"), PathBuf::from);
    // A shell's working directory has no symbolic links.
    folder.canonicalize().unwrap_or(folder)
}

/// Runs a block in a directory of its own. The error is the output of the block.
fn run_block(context: &Context, bin: &Path, entry: &Entry, block: &Block) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let target = target(context);
    let directory = target.join(BLOCK);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(failed)?;
    for folder in ["aggregator", "edge-client", "protocol", "sim", "tests"] {
        std::os::unix::fs::symlink(context.root.join(folder), directory.join(folder)).map_err(failed)?;
    }
    std::os::unix::fs::symlink(&target, directory.join("target")).map_err(failed)?;
    let script = format!("set -eu\n{}\n{}", entry.before, block.text);
    let log = target.join("commands/output.log");
    let output = fs::File::create(&log).map_err(failed)?;
    let copy = output.try_clone().map_err(failed)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = Command::new("timeout")
        .arg(LIMIT.as_secs().to_string())
        .args(["bash", "-c", &script])
        .current_dir(&directory)
        .env("PATH", format!("{}:{path}", bin.display()))
        .env_remove("FEDSPAN_PASSPHRASE_FILE")
        .stdin(Stdio::null())
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(copy))
        .spawn()
        .map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let output = fs::read(&log).map_err(failed)?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(30)..).unwrap_or_default();
    Err(format!("{status}; the last lines of its output:\n{}", last.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_blocks_are_found() {
        let page = "a\n```sh\none\ntwo\n```\n```text\nthree\n```\n```sh\nfour\n```\n";
        let texts: Vec<String> =
            blocks_in("page.md", page).unwrap_or_default().into_iter().map(|block| block.text).collect();
        assert_eq!(texts, ["one\ntwo\n", "four\n"]);
        assert!(blocks_in("page.md", "```\none\n```\n").is_err(), "a block without a language");
    }

    #[test]
    fn every_block_needs_an_entry_and_every_entry_a_block() {
        let entry = |begins: &str| Entry {
            page: "page.md".to_owned(),
            begins: begins.to_owned(),
            before: String::new(),
            run: Run::Always,
        };
        let block = |text: &str| Block { page: "page.md".to_owned(), text: text.to_owned() };
        assert!(matched(&[entry("a")], &[block("a b\n")]).is_ok());
        assert!(matched(&[entry("a")], &[block("a b\n"), block("c\n")]).is_err());
        assert!(matched(&[entry("a"), entry("c")], &[block("a b\n")]).is_err());
        assert!(
            matched(&[entry("a")], &[block("a b\n"), block("a c\n")]).is_err(),
            "one entry for two blocks"
        );
        assert!(matched(&[entry("a"), entry("a b")], &[block("a b\n"), block("a c\n")]).is_ok());
    }

    /// The manifest fits the pages.
    #[test]
    fn every_block_of_the_pages_has_an_entry() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let result = blocks(&root).and_then(|blocks| matched(&entries(&root)?, &blocks));
        assert!(result.is_ok(), "{}", result.err().map_or(String::new(), |failure| failure.message));
    }
}
