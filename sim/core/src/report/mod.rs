//! Results: figures ([`summary`]), files ([`files`]), tables ([`table`]), curves ([`plot`]) and the page
//! that shows all of it ([`html`]). What the files hold is listed in `RESULTS.md`.

pub mod files;
pub mod html;
pub mod plot;
pub mod summary;
pub mod table;
