//! Writer of `report.html`: a self-contained page without scripts, external fonts or network access.

use std::fmt::Write;

use super::plot::{Axis, Metric, SERIES_COLOURS, Series, chart};
use super::table::{Table, escape};

/// Content of a report.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Heading of the page.
    pub title: String,
    /// Introduction below the heading.
    pub intro: String,
    /// Tables of metrics.
    pub tables: Vec<Table>,
    /// Groups of curves, each with a heading; an empty heading is omitted.
    pub curves: Vec<(String, Vec<Series>)>,
    /// Horizontal axes that can be selected on the page; the first axis is selected initially. All axes if
    /// empty.
    pub axes: Vec<Axis>,
    /// Paragraphs below the curves.
    pub notes: Vec<String>,
    /// Texts in collapsed sections, each with a heading, such as the text of the scenario.
    pub texts: Vec<(String, String)>,
}

const STYLE: &str = include_str!("style.css");

impl Page {
    /// Renders the page.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        );
        if !self.intro.is_empty() {
            let _ = writeln!(out, "<p class=\"intro\">{}</p>", escape(&self.intro));
        }
        for table in &self.tables {
            let _ = writeln!(out, "<section>\n{}</section>", table.html());
        }
        let axes = if self.axes.is_empty() { &Axis::ALL[..] } else { &self.axes };
        for (group, (heading, series)) in self.curves.iter().enumerate() {
            out.push_str(&curves(group, heading, series, axes));
        }
        if !self.notes.is_empty() {
            let notes = self.notes.iter().map(|note| format!("<p>{}</p>\n", escape(note)));
            let _ = writeln!(out, "<section>\n{}</section>", notes.collect::<String>());
        }
        for (heading, text) in &self.texts {
            let _ = writeln!(
                out,
                "<details>\n<summary>{}</summary>\n<pre>{}</pre>\n</details>",
                escape(heading),
                escape(text)
            );
        }
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(out, "<footer>FedSpan {version}</footer>\n</main>\n</body>\n</html>");
        out
    }
}

/// Renders the charts of all metrics that apply. The horizontal axis is selected with radio buttons and CSS,
/// without a script.
fn curves(group: usize, heading: &str, series: &[Series], axes: &[Axis]) -> String {
    let mut panels = String::new();
    for (index, axis) in axes.iter().copied().enumerate() {
        let mut charts = String::new();
        for metric in Metric::ALL {
            if let Some(svg) = chart(series, metric, axis) {
                let title = metric.title();
                let _ = writeln!(
                    charts,
                    "<figure role=\"img\" aria-label=\"{title} against {}\">\n<figcaption>{title}</figcaption>\n{svg}\n</figure>",
                    axis.title()
                );
            }
        }
        if charts.is_empty() {
            return String::new();
        }
        let _ = writeln!(panels, "<div class=\"panel panel-{index}\">\n{charts}</div>");
    }
    let mut out = String::from("<section class=\"curves\">\n");
    if !heading.is_empty() {
        let _ = writeln!(out, "<h2>{}</h2>", escape(heading));
    }
    if series.len() > 1 {
        out.push_str("<ul class=\"legend\">");
        for (index, entry) in series.iter().enumerate() {
            let _ = write!(
                out,
                "<li><span style=\"background:var(--series-{})\"></span>{}</li>",
                index % SERIES_COLOURS,
                escape(&entry.label)
            );
        }
        out.push_str("</ul>\n");
    }
    for (index, axis) in axes.iter().enumerate() {
        let name = axis.name();
        let checked = if index == 0 { " checked" } else { "" };
        let id = format!("axis-{group}-{index}");
        let _ = writeln!(
            out,
            "<input type=\"radio\" name=\"axis-{group}\" class=\"pick-{index}\" id=\"{id}\"{checked}>\
             <label for=\"{id}\">{name}</label>"
        );
    }
    out.push_str(&panels);
    out.push_str("</section>\n");
    out
}
