//! Draft for an archive of NumPy arrays.

use std::collections::BTreeSet;

use super::Answers;
use super::draft::{Draft, Section, cut, dealt, splits, with_test_part};
use super::roles::is_client_name;
use crate::data::DataError;
use crate::data::npz::{Archive, Values};

/// Names of arrays of samples, in lower case.
const SAMPLES: [&str; 8] = ["x", "x_train", "xs", "features", "samples", "data", "inputs", "images"];
/// Names of arrays of targets, in lower case.
const TARGETS: [&str; 9] =
    ["y", "y_train", "ys", "labels", "label", "targets", "target", "classes", "outputs"];
/// Largest number of distinct whole numbers that are taken for classes.
const FEW_CLASSES: usize = 100;

/// Drafts a scenario for the content of an archive.
///
/// # Errors
/// [`DataError`] naming the file and the array that is missing or has the wrong shape.
pub fn draft(bytes: &[u8], path: &str, answers: &Answers) -> Result<Draft, DataError> {
    let mut archive = Archive::open(bytes, path)?;
    let names = archive.names();
    let mut shapes = Vec::new();
    for name in &names {
        // An array that cannot be read may be one that is not needed.
        if let Ok(Some(values)) = archive.get(name, 1 << 28) {
            shapes.push((name.clone(), values));
        }
    }
    let there_are = || {
        let shapes: Vec<String> =
            shapes.iter().map(|(name, values)| format!("{name} {:?}", values.shape())).collect();
        if shapes.is_empty() {
            "the archive has no array".to_owned()
        } else {
            format!("there are: {}", shapes.join(", "))
        }
    };
    let data_error = |message: String| DataError::new(path, message);
    let find = |known: &[&str]| {
        known.iter().find_map(|known| shapes.iter().find(|(name, _)| name.to_lowercase() == *known))
    };
    let named = |name: &String, role: &str| {
        let found = shapes.iter().find(|(array, _)| array == name);
        found.ok_or_else(|| data_error(format!("--{role}: no array named {name:?}; {}", there_are())))
    };
    let (x_name, x) = find(&SAMPLES).ok_or_else(|| {
        data_error(format!("no array of samples, which is called x or features; {}", there_are()))
    })?;
    let (y_name, y) = match &answers.target {
        Some(name) => named(name, "target")?,
        None => find(&TARGETS).ok_or_else(|| {
            data_error(format!("no array of targets, which is called y or labels; {}", there_are()))
        })?,
    };
    let client = match (&answers.client, x.shape()) {
        (Some(Some(name)), _) => Some(named(name, "client")?),
        (Some(None), _) | (None, [_, _, _]) => None,
        (None, shape) => shapes.iter().find(|(name, values)| {
            let name = name.to_lowercase();
            let name = name.strip_suffix("_train").unwrap_or(&name);
            is_client_name(name) && values.shape() == shape.get(..1).unwrap_or_default()
        }),
    };
    let (rows, clients) = match (x.shape(), client) {
        (&[clients, m, _], None) => (clients * m, clients),
        (&[n, _], Some((_, client))) => (n, distinct(client).len()),
        (&[n, _], None) => (n, 0),
        (shape, _) => {
            return Err(data_error(format!(
                "{x_name} has shape {shape:?}, expected (n, d) with one row a sample, or (clients, m, d); {}",
                there_are()
            )));
        }
    };
    let targets = distinct(y);
    let is_whole = |values: &Values| match values {
        Values::Texts { .. } => true,
        Values::Numbers(array) => array.values.iter().all(|value| value.fract() == 0.0),
    };
    let classification = answers.classification.unwrap_or(
        matches!(y, Values::Texts { .. })
            || is_whole(y) && targets.len() <= FEW_CLASSES && targets.len() * 5 <= rows,
    );
    let target = match classification {
        true => format!("{} classes", targets.len()),
        false => "a number".to_owned(),
    };
    let mut data = Section::default().text("kind", "npz", "").text("path", path, "");
    data = data.text("x", x_name, &format!("samples, of shape {:?}", x.shape()));
    data = data.text("y", y_name, &format!("what is predicted: {target}"));
    if let Some((name, _)) = client {
        data = data.text("client", name, "whose each row is");
    }
    let mut has_test = false;
    for (key, name) in [("x_test", x_name), ("y_test", y_name)]
        .into_iter()
        .chain(client.map(|(name, _)| ("client_test", name)))
    {
        let test = match name.to_lowercase().contains("train") {
            true => name.replace("train", "test"),
            false => format!("{name}_test"),
        };
        if names.contains(&test) {
            has_test = true;
            data = data.text(key, &test, "");
        }
    }
    let task = if classification { "classes" } else { "regression" };
    data = data.text("task", task, "\"regression\" for numbers, \"classes\" for names");
    let facts = vec![
        format!("{path}: {}", there_are()),
        match (client, clients) {
            (Some((name, _)), _) => format!("client    {name}, {clients} of them"),
            (None, 0) => {
                "client    no array says whose each row is: rows are dealt at random; --client names an array"
                    .to_owned()
            }
            (None, _) => format!("client    the first axis of {x_name}, {clients} of them"),
        },
        format!("target    {y_name}, {target}"),
        format!("samples   {x_name}, {rows} rows of {} features", x.shape().last().copied().unwrap_or(0)),
    ];
    let partition = (clients == 0).then(|| dealt(rows));
    let base = if has_test { with_test_part() } else { cut(None, classification) };
    let splits = splits(&base, clients, "holdout_users", classification);
    Ok(Draft { facts, roles: None, data, partition, splits, classification, is_images: false })
}

/// Distinct values of an array, as text.
fn distinct(values: &Values) -> BTreeSet<String> {
    match values {
        Values::Texts { texts, .. } => texts.iter().cloned().collect(),
        Values::Numbers(array) => array.values.iter().map(f64::to_string).collect(),
    }
}
