//! Writer of `report.html`: one self-contained page without external fonts or network access. All of it is visible
//! without a script; a script in the page lets readers hide curves, read values and save figures.

use std::fmt::Write;

use super::plot::{Axis, Figure, Metric, Series, curves_explained, figures, legend};
use super::table::{Table, escape};

/// Content of a report.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Heading of the page.
    pub title: String,
    /// Introduction below the heading; each line is a paragraph.
    pub intro: String,
    /// Tables of metrics.
    pub tables: Vec<Table>,
    /// Groups of curves, each with a heading; an empty heading is omitted.
    pub curves: Vec<(String, Vec<Series>)>,
    /// Horizontal axes that can be selected on the page; the first axis is selected initially. All axes if
    /// empty.
    pub axes: Vec<Axis>,
    /// Further figures, in groups with headings.
    pub figures: Vec<(String, Vec<Figure>)>,
    /// Paragraphs below the curves.
    pub notes: Vec<String>,
    /// Texts in collapsed sections, each with a heading, such as the text of the scenario.
    pub texts: Vec<(String, String)>,
}

/// Layout of the page.
const STYLE: &str = include_str!("style.css");
/// Colours and lines of figures, which saved figures contain too.
const FIGURE_STYLE: &str = include_str!("figure.css");
const SCRIPT: &str = include_str!("page.js");
/// Largest number of texts that the page lists; more of them are in one collapsed section.
const TEXTS: usize = 4;

impl Page {
    /// Renders the page.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style id=\"figure-style\">\n{FIGURE_STYLE}</style>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n<main>\n<h1>{title}</h1>\n"
        );
        for paragraph in self.intro.lines() {
            let _ = writeln!(out, "<p class=\"intro\">{}</p>", escape(paragraph));
        }
        for table in &self.tables {
            let _ = writeln!(out, "<section>\n{}</section>", table.html());
        }
        let axes = if self.axes.is_empty() { &Axis::ALL[..] } else { &self.axes };
        for (group, (heading, series)) in self.curves.iter().enumerate() {
            out.push_str(&curves(group, heading, series, axes));
        }
        for (heading, figures) in self.figures.iter().filter(|(_, figures)| !figures.is_empty()) {
            let figures: String = figures.iter().map(figure).collect();
            let _ = writeln!(
                out,
                "<section>\n<h2>{}</h2>\n<div class=\"small figures\">\n{figures}</div>\n</section>",
                escape(heading)
            );
        }
        if !self.notes.is_empty() {
            let notes = self.notes.iter().map(|note| format!("<p>{}</p>\n", escape(note)));
            let _ = writeln!(out, "<section>\n{}</section>", notes.collect::<String>());
        }
        out.push_str(&self.collapsed_texts());
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            out,
            "<footer>FedSpan {version}</footer>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>"
        );
        out
    }

    fn collapsed_texts(&self) -> String {
        let mut out = String::new();
        for (heading, text) in &self.texts {
            let _ = writeln!(
                out,
                "<details>\n<summary>{}</summary>\n<pre>{}</pre>\n</details>",
                escape(heading),
                escape(text)
            );
        }
        if self.texts.len() > TEXTS {
            let scenarios = self.texts.iter().all(|(heading, _)| heading.starts_with("Scenario"));
            let (count, what) = (self.texts.len(), if scenarios { "scenarios" } else { "texts" });
            return format!("<details>\n<summary>{count} {what}</summary>\n{out}</details>\n");
        }
        out
    }
}

/// Renders a figure with its pictures, of which the page shows one, and its note.
fn figure(Figure { name, description, pictures, note }: &Figure) -> String {
    let pictures = pictures.concat();
    let caption = match note.as_str() {
        "" => String::new(),
        note => format!("<figcaption>{}</figcaption>\n", escape(note)),
    };
    format!(
        "<figure data-file=\"{}\">\n<div class=\"scroll\" role=\"img\" aria-label=\"{}\">\n{pictures}</div>\n{caption}</figure>\n",
        escape(name),
        escape(description)
    )
}

/// Start of the names of files for the figures of a group.
fn file_name(heading: &str) -> String {
    let words = heading.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| format!("{word}-")).collect()
}

/// Renders the charts of all metrics that apply. The horizontal axis is selected with radio buttons and CSS,
/// without a script.
fn curves(group: usize, heading: &str, series: &[Series], axes: &[Axis]) -> String {
    let mut panels: Vec<(Axis, String)> = Vec::new();
    for axis in axes.iter().copied() {
        let metrics = Metric::of(series).into_iter();
        let named = |chart: Figure| Figure { name: format!("{}{}", file_name(heading), chart.name), ..chart };
        let charts: String = metrics
            .flat_map(|metric| figures(series, metric, axis))
            .map(|chart| figure(&named(chart)))
            .collect();
        if !charts.is_empty() {
            panels.push((axis, charts));
        }
    }
    if panels.is_empty() {
        return String::new();
    }
    let mut out = String::from("<section class=\"curves\">\n");
    if !heading.is_empty() {
        let _ = writeln!(out, "<h2>{}</h2>", escape(heading));
    }
    for (index, (axis, _)) in panels.iter().enumerate() {
        let name = axis.name();
        let checked = if index == 0 { " checked" } else { "" };
        let hidden = if panels.len() == 1 { " hidden" } else { "" };
        let id = format!("axis-{group}-{index}");
        let _ = writeln!(
            out,
            "<input type=\"radio\" name=\"axis-{group}\" class=\"pick-{index}\" id=\"{id}\"{checked}>\
             <label for=\"{id}\"{hidden}>{name}</label>"
        );
    }
    out.push_str(&legend(series));
    out.push_str(curves_explained(series));
    for (index, (_, charts)) in panels.iter().enumerate() {
        let _ = writeln!(out, "<div class=\"panel figures panel-{index}\">\n{charts}</div>");
    }
    out.push_str("</section>\n");
    out
}
