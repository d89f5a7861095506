//! Labelled tables: rows of numbers with a target, and whose each row is. Readers make them of CSV files ([`delimited`])
//! and NumPy archives ([`super::npz`]); what becomes of them from there on is the same for both ([`super::pool`]).

pub mod columns;
pub mod delimited;
pub mod names;
pub mod number;
pub mod text;

pub use delimited::{Columns, LARGEST_FILE, parse};

use super::pool::{Pool, User};
use super::{Labels, Layout, Set};

/// Most clients that a table may name: as many as other data are cut into.
pub const CLIENTS: usize = 100_000;
/// Most features: devices are told of them in 16 bits.
pub const FEATURES: usize = 65_535;
/// Most classes: labels of devices are bytes.
pub const CLASSES: usize = 256;

/// A labelled table, its rows in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The file, for messages.
    pub name: String,
    /// Names of the columns of `x`.
    pub features: Vec<String>,
    /// Row-major, rows x features: finite, and within the range of an f32.
    pub x: Vec<f64>,
    /// The target of each row.
    pub target: Target,
    /// Whose each row is, where the file says so.
    pub clients: Option<Coded>,
    /// Rows from this one on are the test part of the file; the number of rows where it has none.
    pub tests_from: usize,
    /// Remarks for whoever runs it, one line each.
    pub warnings: Vec<String>,
}

/// The targets of all rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Numbers, within the range of an f32.
    Values(Vec<f64>),
    /// Classes, at most [`CLASSES`].
    Classes(Coded),
}

/// A name for each row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coded {
    /// The place of each row's name in `names`.
    pub of: Vec<u32>,
    /// The names that occur, in order.
    pub names: Vec<String>,
}

impl Table {
    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        match &self.target {
            Target::Values(values) => values.len(),
            Target::Classes(classes) => classes.of.len(),
        }
    }

    /// The rows as samples that are to become clients', with a constant 1 as last feature where that is asked for. Their
    /// values are in f64 alone: [`super::scale::Scale::finish`] rounds them.
    #[must_use]
    pub fn pool(self, constant: bool) -> Pool {
        let rows = self.rows();
        let d = self.features.len();
        let wide = if constant {
            self.x.chunks_exact(d.max(1)).flat_map(|row| row.iter().copied().chain([1.0])).collect()
        } else {
            self.x
        };
        let (y, wide_y, class_names) = match self.target {
            Target::Values(values) => (
                Labels::values(values.iter().map(|value| narrow(*value)).collect()),
                Some(values),
                Vec::new(),
            ),
            Target::Classes(Coded { of, names }) => {
                let class = |code: &u32| u8::try_from(*code).unwrap_or(u8::MAX);
                (Labels::Classes(of.iter().map(class).collect()), None, names)
            }
        };
        let users = self.clients.map_or_else(Vec::new, |Coded { of, names }| {
            let user = |name| User { name, samples: Vec::new() };
            let mut users: Vec<User> = names.into_iter().map(user).collect();
            for (row, code) in of.into_iter().enumerate() {
                if let Some(user) = users.get_mut(code as usize) {
                    user.samples.push(row);
                }
            }
            users
        });
        Pool {
            name: self.name,
            features: d + usize::from(constant),
            classes: class_names.len().max(1),
            set: Set { x: Vec::new(), y, wide: Some(wide), wide_y },
            tests_from: self.tests_from.min(rows),
            users,
            layout: Layout { shape: None, constant },
            feature_names: self.features,
            class_names,
            warnings: self.warnings,
        }
    }
}

/// The value that devices hold.
#[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}
