//! Scenario for a data file: looks at the file, guesses whose each row is, what is predicted and from what, and writes
//! a commented scenario that has been tried on the file.

mod draft;
mod images;
mod npz;
mod roles;
mod table;
mod users;

use std::path::Path;

use fedspan_engine::config::Problem;

pub use roles::Roles;

use crate::data::{DataError, Dataset};
use crate::scenario::Scenario;
use draft::Draft;

/// Answers of the user about the file. Answers that are `None` are guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Name of the column or array that says whose each row is; `Some(None)` if no column does.
    pub client: Option<Option<String>>,
    /// Name of the column or array that is predicted.
    pub target: Option<String>,
    /// File of the labels of images; by default it is found by its name.
    pub labels: Option<String>,
    /// True if the target is a class, false if it is a number.
    pub classification: Option<bool>,
    /// True for a network, false for a linear model.
    pub network: Option<bool>,
}

/// Largest number of folds that a proposal has.
const FOLDS: usize = 5;

/// A scenario for a data file.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Facts about the file and the choices that were made, one line each.
    pub facts: Vec<String>,
    /// Roles of columns, if the file is a table with a header.
    pub roles: Option<Roles>,
    /// Number of folds, each of which holds out other clients, at most 5; `None` if no clients are held out.
    pub folds: Option<usize>,
    /// Text of the scenario file.
    pub text: String,
}

/// Error of [`propose`].
#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// The file cannot be read, or cannot be understood.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The proposal itself is refused: a fault of this program, not of the file.
    #[error("the proposed scenario is refused: {0}; please report this, with the header of the file")]
    Refused(#[from] Problem),
}

/// Proposes a scenario for the data at `path`: a table with a header (CSV), an archive of arrays (npz), images (IDX), or
/// a file or directory of LEAF. `scenario` is the path at which the scenario will be written; the scenario refers to
/// the data as `path`.
///
/// # Errors
/// [`ProposeError::Data`] naming the file, and the column, line or array that cannot be understood.
pub fn propose(scenario: &str, path: &str, answers: &Answers) -> Result<Proposal, ProposeError> {
    let draft = if Path::new(path).is_dir() {
        users::draft(path)?
    } else {
        let bytes = crate::data::file::read(path, crate::data::npz::LARGEST_FILE)?;
        match Format::of(&bytes, path)? {
            Format::Npz => npz::draft(&bytes, path, answers)?,
            Format::Idx => images::draft(path, answers)?,
            Format::Leaf => users::draft(path)?,
            Format::Table => table::draft(&bytes, path, answers)?,
        }
    };
    tried(scenario, path, draft, answers)
}

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Npz,
    Idx,
    Leaf,
    Table,
}

impl Format {
    /// Format of a file's content.
    fn of(bytes: &[u8], path: &str) -> Result<Self, DataError> {
        if bytes.starts_with(b"PK\x03\x04")
            && Path::new(path).extension().is_some_and(|ending| ending == "npz")
        {
            return Ok(Self::Npz);
        }
        let plain = crate::data::file::unpack(bytes, path, crate::data::table::LARGEST_FILE)?;
        Ok(match plain.as_ref() {
            [0, 0, 8, 1 | 3, ..] => Self::Idx,
            content if content.trim_ascii_start().first() == Some(&b'{') => Self::Leaf,
            _ => Self::Table,
        })
    }
}

/// Completes a draft: tries the proposed splits on the data, and takes the first that the data allow.
fn tried(scenario: &str, path: &str, draft: Draft, answers: &Answers) -> Result<Proposal, ProposeError> {
    let network = answers.network.unwrap_or(draft.is_images);
    if network && !draft.classification {
        let message =
            "a network predicts classes, and the target is a number; use a linear model, or another target";
        return Err(DataError::new(path, message).into());
    }
    let mut failure = None;
    for split in &draft.splits {
        let probe = draft.text(path, &split.keys, &draft.model(network, None));
        match Scenario::parse(scenario, &probe, &[])?.dataset(1) {
            Ok(dataset) if split.is_modest(&dataset) => {
                let text = draft.text(path, &split.keys, &draft.model(network, Some(&dataset)));
                Scenario::parse(scenario, &text, &[])?;
                let facts = draft.facts.iter().cloned().chain(facts(&dataset));
                let facts = facts.map(|fact| draft::one_line(&fact)).collect();
                let held = dataset.newcomers.len();
                let folds = (dataset.clients.len() + held).checked_div(held).map(|folds| folds.min(FOLDS));
                return Ok(Proposal { facts, roles: draft.roles, folds, text });
            }
            Ok(_) => {}
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| DataError::new(path, "found no way to split these data")).into())
}

/// Facts about a data set as it is divided among clients.
fn facts(dataset: &Dataset) -> Vec<String> {
    let mut sizes: Vec<usize> = dataset.clients.iter().map(|client| client.train.len()).collect();
    sizes.sort_unstable();
    let (least, most) = (sizes.first().copied().unwrap_or(0), sizes.last().copied().unwrap_or(0));
    let samples = if least == most { format!("{least}") } else { format!("{least} to {most}") };
    let tests: usize = dataset.clients.iter().map(|client| client.test.len()).sum();
    let clients = |count: usize| if count == 1 { "1 client".to_owned() } else { format!("{count} clients") };
    let mut facts = vec![format!(
        "clients   that train: {}, of {samples} samples each; {tests} samples test them",
        dataset.clients.len()
    )];
    if !dataset.newcomers.is_empty() {
        facts.push(format!(
            "          that come after training and fit only a head: {}",
            dataset.newcomers.len()
        ));
    }
    if dataset.dropped_users > 0 {
        facts.push(format!(
            "          {} without samples to train on: left out",
            clients(dataset.dropped_users)
        ));
    }
    facts.extend(dataset.warnings.iter().cloned());
    facts
}
