//! Draft for a table with a header: CSV and its relatives.

use toml_edit::Value;

use super::draft::{Draft, Section, cut, dealt, splits};
use super::{Answers, Roles};
use crate::data::DataError;
use crate::data::table::profile::{Column, Profile, Related, Relations, profile, relations};

/// Number of names that a fact lists.
const LISTED: usize = 8;

/// Drafts a scenario for the content of a file.
///
/// # Errors
/// [`DataError`] naming the file, and the line or column that cannot be understood.
pub fn draft(bytes: &[u8], path: &str, answers: &Answers) -> Result<Draft, DataError> {
    let profile = profile(bytes, path)?;
    let mut roles = Roles::find(&profile, answers).map_err(|message| DataError::new(path, message))?;
    let unordered_time = leave_out_copies(&mut roles, &profile, bytes, path)?;
    let column = |name: &str| profile.columns.iter().find(|column| column.name == name);
    let mut facts = vec![format!(
        "{path}: {} rows, {} columns, cut at {:?}",
        profile.rows,
        profile.columns.len(),
        profile.delimiter
    )];
    let clients = roles.client.as_deref().and_then(column).map_or(0, |column| column.distinct);
    facts.push(match &roles.client {
        Some(name) => format!("client    {name}, {clients} of them"),
        None => {
            "client    no column says whose each row is: rows are dealt at random; --client names a column"
                .to_owned()
        }
    });
    let target =
        column(&roles.target).map_or(String::new(), |target| described_target(target, roles.classification));
    facts.push(format!("target    {}, {target}", roles.target));
    facts.push(format!("features  {}: {}", roles.features.len(), listed(&roles.features)));
    // A linear model with fewer inputs than classes can hide a class behind others.
    let (inputs, classes) =
        (roles.features.len() + 1, column(&roles.target).map_or(0, |target| target.distinct));
    if roles.classification && classes > inputs && answers.network != Some(true) {
        facts.push(format!(
            "note      {classes} classes from {inputs} inputs: a linear model may never predict some of them (classes.csv shows it); --model mlp \
             proposes a network"
        ));
    }
    if let Some(time) = unordered_time {
        facts.push(format!(
            "time      the rows are not in the order of {time}: a random part tests; sort the file for split.by = \"time\""
        ));
    }
    facts.extend(roles.left_out.iter().map(|(name, reason)| format!("left out  {name}: {reason}")));
    Ok(Draft {
        facts,
        data: data(path, &profile, &roles, &target),
        partition: roles.client.is_none().then(|| dealt(profile.rows)),
        splits: splits(
            &cut(roles.time.as_deref(), roles.classification),
            clients,
            "holdout_users",
            roles.classification,
        ),
        classification: roles.classification,
        is_images: false,
        roles: Some(roles),
    })
}

/// Leaves features out whose values stand for the classes. Rows that are not in the order of the column of times are cut as if
/// there were none, whose name is returned.
fn leave_out_copies(
    roles: &mut Roles,
    profile: &Profile,
    bytes: &[u8],
    path: &str,
) -> Result<Option<String>, DataError> {
    let column = |name: &str| profile.columns.iter().find(|column| column.name == name);
    let classes = column(&roles.target).map_or(0, |target| target.distinct);
    let may_stand =
        |name: &&str| roles.classification && column(name).is_some_and(|column| column.distinct == classes);
    let candidates: Vec<&str> = roles.features.iter().map(String::as_str).filter(may_stand).collect();
    if candidates.is_empty() && roles.time.is_none() {
        return Ok(None);
    }
    let columns = Related {
        client: roles.client.as_deref(),
        time: roles.time.as_deref(),
        target: &roles.target,
        candidates: &candidates,
    };
    let Relations { is_ordered, copies } = relations(bytes, path, columns)?;
    // If nothing else is left, the copies are what the user wants.
    if copies.len() < roles.features.len() {
        roles.features.retain(|name| !copies.contains(name));
        let reason = "each of its values stands for one class of the target";
        roles.left_out.extend(copies.into_iter().map(|name| (name, reason.to_owned())));
    }
    Ok(if is_ordered { None } else { roles.time.take() })
}

/// Keys of `[data]`.
fn data(path: &str, profile: &Profile, roles: &Roles, target: &str) -> Section {
    let mut data = Section::default().text("kind", "csv", "").text("path", path, "");
    if let Some(client) = &roles.client {
        data = data.text("client", client, "whose each row is");
    }
    data = data.text("target", &roles.target, &format!("what is predicted: {target}"));
    let task = if roles.classification { "classes" } else { "regression" };
    data = data.text("task", task, "\"regression\" for numbers, \"classes\" for names");
    // All columns but those that are left out; columns without a name are no features anyway.
    let excluded =
        roles.left_out.iter().filter(|(name, _)| !name.is_empty()).map(|(name, _)| format!("!{name}"));
    // A column may itself be called "*" or "!name".
    let is_called = |name: &str| profile.columns.iter().any(|column| column.name == name);
    let needs_list = is_called("*") || roles.left_out.iter().any(|(name, _)| is_called(&format!("!{name}")));
    let features: Value = match needs_list {
        true => roles.features.iter().map(String::as_str).collect(),
        false => std::iter::once("*".to_owned()).chain(excluded).collect(),
    };
    data = data.key("features", &features, "\"*\": all other columns; \"!name\" leaves one out");
    for (name, reason) in &roles.left_out {
        data = data.comment(&format!("left out: {name:?}, {reason}"));
    }
    data.text("scale", "standard", "to mean 0 and deviation 1 of the training rows; \"none\": as they are")
}

/// Description of a target.
fn described_target(target: &Column, classification: bool) -> String {
    if !classification {
        return "a number".to_owned();
    }
    let further = if target.distinct > target.examples.len() { ", ..." } else { "" };
    format!("{} classes: {}{further}", target.distinct, target.examples.join(", "))
}

/// List of names, of which the first are shown.
pub fn listed(names: &[String]) -> String {
    let first: Vec<&str> = names.iter().take(LISTED).map(String::as_str).collect();
    match names.len().checked_sub(LISTED) {
        Some(further @ 1..) => format!("{} and {further} more", first.join(", ")),
        _ => first.join(", "),
    }
}
