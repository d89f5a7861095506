//! Labelled table: rows of numbers with a target, and optionally the client of each row. Tables are read from
//! CSV files ([`delimited`]) and NumPy archives ([`super::npz`]), and divided among clients by
//! [`super::pool`].

pub mod columns;
pub mod delimited;
pub mod names;
pub mod number;
pub mod profile;
pub mod text;

pub use delimited::{Columns, LARGEST_FILE, parse};
pub use names::CodedNames;

use super::pool::{Pool, User};
use super::{Labels, Layout, Set};

/// Largest number of features, which is a 16-bit number in the protocol.
pub const FEATURES: usize = 65_535;
/// Largest number of classes: devices store a label in one byte.
pub const CLASSES: usize = 256;

/// A labelled table, with its rows in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Path of the file, for messages.
    pub name: String,
    /// Names of the columns of `x`.
    pub features: Vec<String>,
    /// Values, rows x features, row-major. All values are finite and within the range of an f32.
    pub x: Vec<f64>,
    /// Target of each row.
    pub target: Target,
    /// Client of each row; `None` if the file names no clients.
    pub clients: Option<CodedNames>,
    /// Index of the first row of the test part of the file; the number of rows if there is no test part.
    pub tests_from: usize,
    /// Warnings for the user of the program, one line each.
    pub warnings: Vec<String>,
}

/// Targets of all rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// Real values, within the range of an f32.
    Values(Vec<f64>),
    /// Classes, at most [`CLASSES`].
    Classes(CodedNames),
}

impl Table {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        match &self.target {
            Target::Values(values) => values.len(),
            Target::Classes(classes) => classes.codes.len(),
        }
    }

    /// Converts the table to a pool of samples, with a constant 1 as last feature if `constant` is true.
    /// Values are kept only in f64 until [`super::scale::Scale::apply`] rounds them.
    #[must_use]
    pub fn pool(self, constant: bool) -> Pool {
        let rows = self.rows();
        let d = self.features.len();
        let wide = if constant {
            self.x.chunks_exact(d.max(1)).flat_map(|row| row.iter().copied().chain([1.0])).collect()
        } else {
            self.x
        };
        let (y, y_f64, class_names) = match self.target {
            Target::Values(values) => (
                Labels::values(values.iter().map(|value| narrow(*value)).collect()),
                Some(values),
                Vec::new(),
            ),
            Target::Classes(CodedNames { codes, names }) => {
                let class = |code: &u32| u8::try_from(*code).unwrap_or(u8::MAX);
                (Labels::Classes(codes.iter().map(class).collect()), None, names)
            }
        };
        let users = self.clients.map_or_else(Vec::new, |CodedNames { codes, names }| {
            let user = |name| User { name, samples: Vec::new() };
            let mut users: Vec<User> = names.into_iter().map(user).collect();
            for (row, code) in codes.into_iter().enumerate() {
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
            set: Set { x_f64: Some(wide), y_f64, ..Set::new(Vec::new(), y) },
            tests_from: self.tests_from.min(rows),
            users,
            layout: Layout { shape: None, constant },
            feature_names: self.features,
            class_names,
            warnings: self.warnings,
        }
    }
}

/// Rounds a value to f32, the type that devices use.
#[allow(clippy::cast_possible_truncation, reason = "devices hold f32")]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}
