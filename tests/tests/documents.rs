//! Tests that the files, anchors and test commands that documents cite exist.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use toml_edit::DocumentMut;

/// Endings of file names that are checked in all documents.
const ENDINGS: [&str; 5] = [".c", ".h", ".py", ".rs", ".sh"];

/// Endings of files that documents also name as examples or results (`my.toml`, `table.md`). They are checked
/// only in a path with a folder, or with a capital letter (`SPEC.md`).
const ALSO_EXAMPLES: [&str; 2] = [".md", ".toml"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Every file of the repository, as a path from the root, without build output and hidden files.
pub struct Repository {
    files: Vec<String>,
    crates: BTreeMap<String, PathBuf>,
}

impl Repository {
    /// Reads the names of all files and crates.
    pub fn read() -> Self {
        let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                let path = folder.join(&name);
                match entry.file_type().unwrap().is_dir() {
                    true if !name.starts_with('.') && name != "target" => folders.push(path),
                    true => {}
                    false => files.push(path.to_str().unwrap().to_owned()),
                }
            }
        }
        files.sort();
        let crates = files
            .iter()
            .filter(|file| Path::new(file).ends_with("Cargo.toml"))
            .filter_map(|file| {
                let manifest: DocumentMut = read_file(file).parse().unwrap();
                let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
                Some((name, Path::new(file).parent().unwrap().to_owned()))
            })
            .collect();
        Self { files, crates }
    }

    /// Returns all pages.
    pub fn documents(&self) -> impl Iterator<Item = &String> {
        self.files.iter().filter(|file| file.ends_with(".md"))
    }

    fn exists(&self, path: &Path) -> bool {
        root().join(path).exists()
    }

    /// Returns the reason why a document may not cite a file by this name, or `None`. A path may begin at the
    /// root or at the document's folder, or may be the end of a file's path, unless it begins with a folder
    /// of the root. A name without a folder may be the name of any file.
    fn fault_of_file(&self, document: &str, cited: &str) -> Option<String> {
        let folder = Path::new(document).parent().unwrap();
        let from_root = normalise(Path::new(cited));
        let from_folder = normalise(&folder.join(cited));
        if [from_root, from_folder].into_iter().flatten().any(|path| self.exists(&path)) {
            return None;
        }
        let (first_folder, is_path) =
            cited.split_once('/').map_or((cited, false), |(first_folder, _)| (first_folder, true));
        let is_end_of_path = self.files.iter().any(|file| file.ends_with(&format!("/{cited}")));
        match is_path && self.exists(Path::new(first_folder)) {
            false if is_end_of_path => None,
            true if is_end_of_path => {
                Some(format!("cites {cited}, which is neither below the root nor below {folder:?}"))
            }
            _ => Some(format!("cites {cited}, and no file has this name")),
        }
    }

    /// Returns the reason why a document may not have this target of a link, or `None`.
    fn fault_of_link(&self, document: &str, target: &str) -> Option<String> {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = match file {
            "" => PathBuf::from(document),
            _ => match normalise(&Path::new(document).parent().unwrap().join(file)) {
                Some(path) if self.exists(&path) => path,
                _ => return Some(format!("links {target}, and there is no such file")),
            },
        };
        let is_document = path.extension().is_some_and(|ending| ending == "md");
        if anchor.is_empty() || !is_document {
            return None;
        }
        let document = read_file(path.to_str().unwrap());
        let has_heading = headings_in(&document).any(|heading| anchor_of(heading) == anchor);
        (!has_heading).then(|| format!("links {target}, and {} has no such heading", path.display()))
    }

    /// Returns the reason why a cargo command would run nothing: it names a crate, a test program or a test
    /// that does not exist.
    fn fault_of_command(&self, command: &str) -> Option<String> {
        let words: Vec<&str> = command.split_whitespace().take_while(|word| *word != "#").collect();
        let values_of = |option: &str| {
            words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]).collect::<Vec<_>>()
        };
        let packages = values_of("-p");
        let unknown = packages.iter().find(|name| !self.crates.contains_key(**name));
        if let Some(name) = unknown {
            return Some(format!("{command:?}: no crate is called {name}"));
        }
        let (Some(program), Some(package)) = (values_of("--test").pop(), packages.last()) else {
            return None;
        };
        let folder = &self.crates[*package];
        let Some(main) = self.test_program(folder, program) else {
            return Some(format!("{command:?}: {package} has no test program {program}"));
        };
        let modules = read_file(main.to_str().unwrap());
        let tests = main.parent().unwrap().to_str().unwrap().to_owned();
        let sources: String = self
            .files
            .iter()
            .filter(|file| file.starts_with(&tests) && file.ends_with(".rs"))
            .map(|file| read_file(file))
            .collect();
        let filters = words.iter().skip_while(|word| **word != "--test").skip(2);
        for filter in filters.filter(|word| !word.starts_with('-')) {
            let exists = match filter.split_once("::") {
                // `NAME` is a placeholder that the document explains.
                Some(("NAME", _)) => true,
                Some((module, _)) => modules.lines().any(|line| line == format!("mod {module};")),
                None => {
                    sources.lines().any(|line| line.trim_start().starts_with("fn ") && line.contains(filter))
                }
            };
            if !exists {
                return Some(format!("{command:?}: no test of {package} is called {filter}"));
            }
        }
        None
    }

    /// Returns the main file of a test program.
    fn test_program(&self, folder: &Path, program: &str) -> Option<PathBuf> {
        let manifest: DocumentMut = read_file(folder.join("Cargo.toml").to_str().unwrap()).parse().unwrap();
        let listed = manifest.get("test").and_then(|tests| tests.as_array_of_tables());
        let listed = listed.into_iter().flatten();
        let path = listed
            .filter(|test| test.get("name").and_then(|name| name.as_str()) == Some(program))
            .find_map(|test| test.get("path")?.as_str().map(str::to_owned))
            .unwrap_or_else(|| format!("tests/{program}.rs"));
        Some(folder.join(path)).filter(|path| self.exists(path))
    }
}

/// Reads a file by its path from the root.
pub fn read_file(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the path without `.` and `..`; `None` if the path leaves the repository.
pub fn normalise(path: &Path) -> Option<PathBuf> {
    let mut normalised = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !normalised.pop() {
                    return None;
                }
            }
            Component::Normal(name) => normalised.push(name),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normalised)
}

/// Returns the headings of a document, without lines of code blocks that begin with the same sign.
fn headings_in(document: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    document.lines().filter(move |line| {
        in_block ^= line.trim_start().starts_with("```");
        !in_block && line.starts_with('#')
    })
}

/// Returns the anchor that repository hosts generate for a heading.
fn anchor_of(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Returns the targets of the links in a line, except those with a scheme.
pub fn links_in(line: &str) -> impl Iterator<Item = &str> {
    let targets = line
        .split("](")
        .skip(1)
        .filter_map(|after_text| after_text.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://"))
}

/// Returns the names of files in a line. A list such as `{a,b}` gives one name for each element.
fn file_names_in(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !(c.is_alphanumeric() || "_-./{,}:".contains(c)));
    let words = words.map(|word| word.trim_end_matches(['.', ',', ':'])).filter(|word| !word.contains(':'));
    let words = words.flat_map(|word| match (word.split_once('{'), word.rsplit_once('}')) {
        (Some((before, _)), Some((list, after))) => {
            let list = list.split_once('{').map_or("", |(_, list)| list);
            list.split(',').map(|part| format!("{before}{part}{after}")).collect()
        }
        _ => word.split(',').map(str::to_owned).collect::<Vec<_>>(),
    });
    let is_file = |word: &String| {
        let name = word.rsplit_once('/').map_or(word.as_str(), |(_, name)| name);
        let ends = |ending: &str| name.strip_suffix(ending).is_some_and(|stem| !stem.is_empty());
        let is_example = !word.contains('/') && !word.starts_with(char::is_uppercase);
        ENDINGS.into_iter().any(ends) || (!is_example && ALSO_EXAMPLES.into_iter().any(ends))
    };
    words.filter(is_file).collect()
}

/// Returns the cargo commands of a document: lines of code blocks, and words between backquotes.
fn cargo_commands_in(document: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut prose = String::new();
    let mut in_block = false;
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block || line.starts_with("    ") {
            commands.push(line.to_owned());
        } else {
            prose = format!("{prose}{line}\n");
        }
    }
    commands.extend(prose.split('`').skip(1).step_by(2).map(|words| words.replace('\n', " ")));
    commands.retain(|command| command.contains("cargo "));
    commands
}

#[test]
fn documents_cite_existing_files_and_tests() {
    let repository = Repository::read();
    let mut faults = Vec::new();
    let mut checked_links = 0;
    let mut checked_files = 0;
    let mut checked_commands = 0;
    for document in repository.documents() {
        let text = read_file(document);
        for (number, line) in (1..).zip(text.lines()) {
            let (links, files): (Vec<_>, _) = (links_in(line).collect(), file_names_in(line));
            checked_links += links.len();
            checked_files += files.len();
            let links = links.into_iter().filter_map(|target| repository.fault_of_link(document, target));
            let files = files.iter().filter_map(|file| repository.fault_of_file(document, file));
            faults.extend(links.chain(files).map(|fault| format!("{document}:{number}: {fault}")));
        }
        let commands = cargo_commands_in(&text);
        checked_commands += commands.len();
        let commands = commands.iter().filter_map(|command| repository.fault_of_command(command));
        faults.extend(commands.map(|fault| format!("{document}: {fault}")));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(
        checked_links > 50 && checked_files > 150 && checked_commands > 40,
        "too few citations: {checked_links} links, {checked_files} files, {checked_commands} commands"
    );
}

#[test]
fn missing_files_and_tests_are_faults() {
    let repository = Repository::read();
    let document = "tests/fuzz/README.md";
    for file in ["README.md", "../DISASTERS.md", "sim/SCENARIOS.md", "SCENARIOS.md", "src/lib.rs"] {
        assert_eq!(repository.fault_of_file(document, file), None);
    }
    // The file frame.rs exists in tests/fuzz/fuzz_targets and golden.rs in protocol/tests, but
    // tests/golden.rs is a path from the root.
    for file in ["no_such_file.rs", "sim/no_such_file.md", "tests/golden.rs", "../../../README.md"] {
        assert!(repository.fault_of_file(document, file).is_some(), "{file}");
    }
    for (target, is_fault) in [
        ("../DISASTERS.md", false),
        ("../../README.md#one-round", false),
        ("../../README.md#two-rounds", true),
        ("#proofs", false),
        ("SCENARIOS.md", true),
    ] {
        assert_eq!(repository.fault_of_link(document, target).is_some(), is_fault, "{target}");
    }
    for (command, is_fault) in [
        ("cargo test -p fedspan-sim --test all -- rolora:: fixed:: --nocapture  # nothing:: here", false),
        ("cargo test -p fedspan-sim --features encoder --test encoder", false),
        ("cargo test -p fedspan-aggregator --test all -- memory_does", false),
        ("cargo test -p fedspan-nothing", true),
        ("cargo test -p fedspan-sim --test nothing", true),
        ("cargo test -p fedspan-engine --test all -- ledger::", true),
        ("cargo test -p fedspan-engine --test all -- accountant:: no_such_test", true),
    ] {
        assert_eq!(repository.fault_of_command(command).is_some(), is_fault, "{command}");
    }
    assert_eq!(
        file_names_in("see `a/{b,c}.rs`, D.md; my.toml, x/y.toml."),
        ["a/b.rs", "a/c.rs", "D.md", "x/y.toml"]
    );
    assert_eq!(cargo_commands_in("Run `cargo\ntest -p a`.\n```sh\ncargo b\n```\n").len(), 2);
    assert_eq!(headings_in("# A\n```\n# b\n```\n## C\n").collect::<Vec<_>>(), ["# A", "## C"]);
    assert_eq!(anchor_of("## Cores without floating-point (M0)"), "cores-without-floating-point-m0");
}
