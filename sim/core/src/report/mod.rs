//! Result files and reports: summaries of the metrics ([`summary`], [`results`]), result files ([`files`]), tables
//! ([`table`]), predictions ([`predictions`]), times to accuracies ([`accuracy_times`]), figures of runs ([`plot`]) and of their clients ([`clients`]), and
//! the report page ([`html`]). `RESULTS.md` lists the contents of the files.

pub mod accuracy_times;
pub mod clients;
mod energy;
pub mod files;
pub mod html;
pub(crate) mod interned;
pub mod plot;
pub mod predictions;
pub mod results;
pub mod summary;
pub mod table;
