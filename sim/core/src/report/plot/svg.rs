//! Parts of an SVG picture: sizes, text and numbers.

use super::super::table::escape;

/// Size of text in CSS pixels. Pictures are shown at their natural size or larger, but for a few per cent.
pub(super) const TEXT: f64 = 12.0;
/// Mean width of a character of this size.
pub(super) const CHARACTER: f64 = 7.0;
/// Mean width of a bold character.
const BOLD: f64 = 7.7;
/// Distance between two lines of text.
pub(super) const LINE: f64 = 16.0;

/// Formats a coordinate in hundredths of a pixel, without trailing zeros.
pub(super) fn px(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Width of a text in pixels, estimated from its number of characters.
#[allow(clippy::cast_precision_loss, reason = "a number of characters")]
pub(super) fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// Number of characters that fit into a width.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of characters")]
pub(super) fn characters(width: f64) -> usize {
    (width / CHARACTER).max(1.0) as usize
}

/// Width of a bold text in pixels.
pub(super) fn bold_width(text: &str) -> f64 {
    width(text) * BOLD / CHARACTER
}

/// Number of bold characters that fit into a width.
pub(super) fn bold_characters(width: f64) -> usize {
    characters(width * CHARACTER / BOLD)
}

/// Renders a text. `classes` may name an anchor (`middle`, `end`).
pub(super) fn text(x: f64, y: f64, classes: &str, content: &str) -> String {
    let class = if classes.is_empty() { String::new() } else { format!(" class=\"{classes}\"") };
    format!("<text x=\"{}\" y=\"{}\"{class}>{}</text>\n", px(x), px(y), escape(content))
}

/// Wraps a text into lines of at most `limit` characters, if its words allow that.
pub(super) fn wrapped(content: &str, limit: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in content.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= limit => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter().map(|line| shortened(&line, limit)).collect()
}

/// Shortens a text to `limit` characters: an ellipsis replaces its middle.
pub(super) fn shortened(content: &str, limit: usize) -> String {
    let characters: Vec<char> = content.chars().collect();
    if characters.len() <= limit {
        return content.to_owned();
    }
    let kept = limit.saturating_sub(1);
    let (head, tail) = (kept - kept / 2, kept / 2);
    let (head, tail) = (characters.iter().take(head), characters.iter().skip(characters.len() - tail));
    head.chain(&['…']).chain(tail).collect()
}
