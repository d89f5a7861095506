//! Result files and reports: figures ([`summary`]), files ([`files`]), tables ([`table`]), curves ([`plot`])
//! and the page that shows them ([`html`]). `RESULTS.md` lists the contents of the files.

pub mod files;
pub mod html;
pub mod plot;
pub mod summary;
pub mod table;
