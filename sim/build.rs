//! Records the commit of the sources in the program, for result files. Without git, or outside a repository, the commit
//! is unknown.

use std::process::Command;

/// Directories with the sources of the program.
const SOURCES: [&str; 5] = [".", "../aggregator", "../edge-client/src", "../protocol/src", "../Cargo.lock"];

fn main() {
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    for name in ["HEAD", "index"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    if let Some(revision) = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) {
        println!("cargo:rustc-env=FEDSPAN_REVISION={revision}");
    }
}

/// Output of git; `None` if git fails.
fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
