//! Legend of curves.

use std::fmt::Write;

use super::super::table::escape;
use super::Series;
use super::colours::classes;

/// Renders the list of all series with their colours and dash patterns; empty for a single series.
#[must_use]
pub fn legend(series: &[Series]) -> String {
    if series.len() < 2 {
        return String::new();
    }
    let mut out = String::from("<ul class=\"legend\">\n");
    for (index, entry) in series.iter().enumerate() {
        let _ = writeln!(
            out,
            "<li data-s=\"{index}\"><span><svg width=\"34\" height=\"10\" aria-hidden=\"true\"><path \
             class=\"line {}\" d=\"M1 5L33 5\"/></svg></span>{}</li>",
            classes(index),
            escape(&entry.label)
        );
    }
    out.push_str("</ul>\n");
    out
}

/// Sentence that says what the curves are; empty if no series has several seeds.
#[must_use]
pub fn curves_explained(series: &[Series]) -> &'static str {
    if series.iter().any(|entry| entry.runs.len() > 1) {
        "<p class=\"explained\">Thin curves: one for each seed. Thick curves: their median.</p>\n"
    } else {
        ""
    }
}
