//! Seeded bugs ("mutants") that `cargo xtask mutants` and `cargo xtask threads --bugs` insert into copies of
//! the sources.
//!
//! A mutant is a text file: lines that describe the bug, then one or more replacements.
//!
//! ```text
//! The privacy account of a device is not stored.
//! <<<<<<<
//! accounts.insert(device, encode(account)?.as_slice())?;
//! =======
//! let _ = (&accounts, device, account);
//! >>>>>>>
//! ```
//!
//! The old code is compared token by token, without comments and white space, and must occur exactly once in
//! the sources of the crates. A mutant therefore names no file, and remains valid when comments change or
//! files move. When its code changes, [`Mutant::apply`] reports an error.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// Folders of the crates whose sources are searched, without their tests.
const CRATES: [&str; 4] = ["protocol", "edge-client", "aggregator", "sim"];

/// A seeded bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Description of the bug.
    pub about: String,
    /// Pairs of old and new code.
    replacements: Vec<(String, String)>,
}

/// A source file with its tokens.
struct Source {
    path: PathBuf,
    text: String,
    tokens: Vec<Range<usize>>,
}

impl Mutant {
    /// Parses the text of a mutant.
    ///
    /// # Errors
    /// If a replacement is incomplete or has no old code, or if there is no replacement.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split("<<<<<<<\n");
        let about = parts.next().unwrap_or_default().trim().to_owned();
        let replacement = |part: &str| {
            let (old, after_old) = part.split_once("=======\n").ok_or("found no line =======")?;
            let (new, _) = after_old.split_once(">>>>>>>").ok_or("found no line >>>>>>>")?;
            if tokens(old).is_empty() {
                return Err("found no code between <<<<<<< and =======");
            }
            Ok((old.to_owned(), new.to_owned()))
        };
        let replacements: Vec<(String, String)> = parts.map(replacement).collect::<Result<_, _>>()?;
        if replacements.is_empty() {
            return Err("found no line <<<<<<<".to_owned());
        }
        Ok(Self { about, replacements })
    }

    /// Finds the changes in the sources below `root`; returns paths with new texts. Writes nothing.
    ///
    /// # Errors
    /// If the old code of a replacement does not occur exactly once, or a file cannot be read.
    pub fn apply(&self, root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
        let mut sources = Vec::new();
        for directory in CRATES.map(|name| root.join(name)) {
            // The copy for `tests/threads` contains only some of the crates.
            if directory.exists() {
                read_sources(&directory, &mut sources)?;
            }
        }
        let mut changed: Vec<(PathBuf, String)> = Vec::new();
        for (old, new) in &self.replacements {
            let old_tokens: Vec<&str> = tokens(old).into_iter().map(|token| &old[token]).collect();
            let mut occurrences = Vec::new();
            for (index, source) in sources.iter().enumerate() {
                occurrences.extend(source.find_tokens(&old_tokens).into_iter().map(|range| (index, range)));
            }
            let [(index, range)] = occurrences.as_slice() else {
                let files: Vec<_> =
                    occurrences.iter().map(|(index, _)| sources[*index].path.display().to_string()).collect();
                return Err(format!(
                    "found {} times, allowed: once {files:?}; adapt the mutant: {}",
                    occurrences.len(),
                    old.trim()
                ));
            };
            let source = &mut sources[*index];
            source.text.replace_range(range.clone(), new.trim());
            source.tokens = tokens(&source.text);
            changed.retain(|(path, _)| *path != source.path);
            changed.push((source.path.clone(), source.text.clone()));
        }
        Ok(changed)
    }
}

impl Source {
    /// Returns the byte ranges of every occurrence of the given tokens.
    fn find_tokens(&self, wanted: &[&str]) -> Vec<Range<usize>> {
        let is_equal = |window: &&[Range<usize>]| {
            window.iter().zip(wanted).all(|(token, wanted)| self.text[token.clone()] == **wanted)
        };
        let bytes = |window: &[Range<usize>]| {
            let (first, last) = (window.first()?, window.last()?);
            Some(first.start..last.end)
        };
        self.tokens.windows(wanted.len()).filter(is_equal).filter_map(bytes).collect()
    }
}

/// Reads all `.rs` files in the `src` directories below a directory.
fn read_sources(directory: &Path, sources: &mut Vec<Source>) -> Result<(), String> {
    let with_path = |error: std::io::Error| format!("{}: {error}", directory.display());
    for entry in std::fs::read_dir(directory).map_err(with_path)? {
        let path = entry.map_err(with_path)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !["target", "tests", "boards"].contains(&name.as_str()) {
            read_sources(&path, sources)?;
        } else if name.ends_with(".rs") && path.components().any(|part| part.as_os_str() == "src") {
            let text = std::fs::read_to_string(&path).map_err(with_path)?;
            let tokens = tokens(&text);
            sources.push(Source { path, text, tokens });
        }
    }
    Ok(())
}

/// Returns the byte ranges of the tokens of a text: words, and single characters of everything else.
/// Comments, white space and commas before closing brackets are omitted; the text of string literals is split
/// like code.
fn tokens(text: &str) -> Vec<Range<usize>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
    let bytes = text.as_bytes();
    let (mut tokens, mut position): (Vec<Range<usize>>, usize) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(position) {
        let start = position;
        if bytes[position..].starts_with(b"//")
            && start.checked_sub(1).is_none_or(|before| bytes[before] != b':')
        {
            position +=
                bytes[position..].iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len() - position);
            continue;
        }
        position += 1;
        if byte.is_ascii_whitespace() {
            continue;
        }
        while is_word(byte) && bytes.get(position).is_some_and(|next| is_word(*next)) {
            position += 1;
        }
        // rustfmt adds commas where it breaks lines.
        if matches!(byte, b')' | b']' | b'}') && tokens.last().is_some_and(|last| &text[last.clone()] == ",")
        {
            tokens.pop();
        }
        tokens.push(start..position);
    }
    tokens
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::Mutant;

    const MUTANT: &str = "A bug.\n<<<<<<<\na( b )\n=======\nc()\n>>>>>>>\n";

    #[test]
    fn mutant_replaces_code_that_differs_in_comments_and_layout() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("sim/src")).unwrap();
        let path = root.path().join("sim/src/lib.rs");
        let mutant = Mutant::parse(MUTANT).unwrap();
        assert_eq!(mutant.about, "A bug.");
        std::fs::write(&path, "fn f() {\n    a(\n        // Why.\n        b)\n}\n").unwrap();
        assert_eq!(mutant.apply(root.path()).unwrap(), [(path.clone(), "fn f() {\n    c()\n}\n".to_owned())]);
        for (text, count) in [("a(b); a(b)", "found 2 times"), ("aa(b)", "found 0 times")] {
            std::fs::write(&path, text).unwrap();
            assert!(mutant.apply(root.path()).unwrap_err().starts_with(count));
        }
    }

    #[test]
    fn incomplete_mutant_is_rejected() {
        assert!(Mutant::parse("A bug.\n").is_err());
        assert!(Mutant::parse("<<<<<<<\n=======\n>>>>>>>\n").is_err());
        assert!(Mutant::parse("<<<<<<<\na\n>>>>>>>\n").is_err());
    }
}
