//! Draft for the JSON files of LEAF, in which users are clients.

use std::path::Path;

use super::draft::{Draft, Section, cut, splits, with_test_part};
use crate::data::DataError;
use crate::data::file::Files;
use crate::data::leaf::Leaf;

/// Drafts a scenario for a file or directory of LEAF.
///
/// # Errors
/// [`DataError`] naming the file, and the user or line that cannot be understood.
pub fn draft(path: &str) -> Result<Draft, DataError> {
    let test = test_path(path);
    let leaf = Leaf { path: path.to_owned(), test_path: test.clone(), ..Leaf::default() };
    let pool = leaf.read(&mut Files::new("", &[]))?;
    let mut data = Section::default().text("kind", "leaf", "").text("path", path, "");
    if let Some(test) = &test {
        data = data.text("test_path", test, "the same users' test samples");
    }
    let base = if test.is_some() { with_test_part() } else { cut(None, true) };
    let facts = vec![format!(
        "{path}: {} samples of {} users, {} classes",
        pool.set.len(),
        pool.users.len(),
        pool.classes
    )];
    let partition = Section::default().text("kind", "natural", "users are clients");
    let splits = splits(&base, pool.users.len(), "holdout_clients", true);
    Ok(Draft {
        facts,
        roles: None,
        data,
        partition: Some(partition),
        splits,
        classification: true,
        is_images: true,
    })
}

/// Test part in LEAF's layout: `test` in the directory of `train`.
fn test_path(path: &str) -> Option<String> {
    let path = Path::new(path);
    let name = path.file_name()?.to_str()?;
    let test = path.with_file_name(name.replace("train", "test"));
    (name.contains("train") && test.exists()).then(|| test.display().to_string())
}
