//! Draft for images in IDX files, as MNIST has them: a file of images and the file of their labels.

use std::path::Path;

use super::Answers;
use super::draft::{Draft, Section, cut, with_test_part, without_newcomers};
use crate::data::DataError;

/// Parts of the names of files of images, each with the part that the file of labels has in its place.
const NAMES: [(&str, &str); 2] = [("images-idx3", "labels-idx1"), ("images", "labels")];

/// Drafts a scenario for a file of images or of labels.
///
/// # Errors
/// [`DataError`] naming the file if the other file is missing.
pub fn draft(path: &str, answers: &Answers) -> Result<Draft, DataError> {
    let found = match &answers.labels {
        Some(labels) => Some((path.to_owned(), labels.clone())),
        None => pair(path),
    };
    let Some((images, labels)) = found else {
        return Err(DataError::new(
            path,
            "an IDX file; expected its labels beside it under a name that has \"labels\" where this one has \"images\" \
             (and idx1 for idx3); another name can be given with --labels",
        ));
    };
    let mut data =
        Section::default().text("kind", "idx", "").text("images", &images, "").text("labels", &labels, "");
    let test = ["t10k", "test"].into_iter().find_map(|part| {
        let test = (renamed(&images, "train", part)?, renamed(&labels, "train", part)?);
        (Path::new(&test.0).exists() && Path::new(&test.1).exists()).then_some(test)
    });
    if let Some((test, test_labels)) = &test {
        data = data.text("test_images", test, "").text("test_labels", test_labels, "");
    }
    let partition = Section::default()
        .text(
            "kind",
            "shards",
            "everyone is dealt images of few classes; \"iid\" and \"dirichlet\" are others",
        )
        .number("clients", 20, "")
        .number("classes", 2, "shards of a client, each of mostly one class");
    let split = if test.is_some() { with_test_part() } else { cut(None, true) };
    Ok(Draft {
        facts: vec![format!("{images}: images; labels in {labels}")],
        roles: None,
        data,
        partition: Some(partition),
        splits: vec![without_newcomers(&split)],
        classification: true,
        is_images: true,
    })
}

/// Path with a part of the file's name replaced; `None` if the name does not contain it.
fn renamed(path: &str, part: &str, by: &str) -> Option<String> {
    let name = Path::new(path).file_name()?.to_str()?;
    name.contains(part).then(|| Path::new(path).with_file_name(name.replace(part, by)).display().to_string())
}

/// Paths of images and labels, if one of them is `path` and both exist.
fn pair(path: &str) -> Option<(String, String)> {
    let file = Path::new(path).file_name()?.to_str()?;
    let beside = |name: String| Path::new(path).with_file_name(name).display().to_string();
    NAMES.into_iter().find_map(|(images, labels)| {
        let pair = if file.contains(images) {
            (path.to_owned(), beside(file.replace(images, labels)))
        } else if file.contains(labels) {
            (beside(file.replace(labels, images)), path.to_owned())
        } else {
            return None;
        };
        (Path::new(&pair.0).exists() && Path::new(&pair.1).exists()).then_some(pair)
    })
}
