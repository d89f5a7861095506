//! `mutate MUTANT TREE`: puts a seeded bug into a copy of the sources.

use std::path::Path;
use std::process::ExitCode;

// Not by way of the library, so that rustc can compile this program alone, without the workspace.
#[path = "../mutants.rs"]
mod mutants;

const USAGE: &str = "usage: mutate MUTANT TREE

Puts the bug of the file MUTANT into the sources below the directory TREE. Prints the changed files.
exit: 0 done, 1 the old code does not occur exactly once, 2 wrong arguments";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mutant, tree] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match mutate(Path::new(mutant), Path::new(tree)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutate: {mutant}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn mutate(mutant: &Path, tree: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(mutant).map_err(|error| error.to_string())?;
    for (path, text) in mutants::Mutant::parse(&text)?.apply(tree)? {
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.strip_prefix(tree).unwrap_or(&path).display());
    }
    Ok(())
}
