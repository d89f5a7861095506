//! Helpers for error messages: the text of the value found, and the known word nearest to an unknown word.

use toml_edit::Item;

/// Text of a value for an error message.
pub(super) fn show(item: &Item) -> String {
    // The comment after the value is removed.
    let text = match item.as_value() {
        Some(value) => value.clone().decorated("", "").to_string(),
        None => item.to_string(),
    };
    let text = text.trim();
    if item.is_table_like() && !item.is_value() { "a table".to_owned() } else { shortened(text, 60) }
}

/// Shortens a text to fit a message of one line: control characters become spaces, and a text longer than
/// `max_len` characters is truncated.
#[must_use]
pub fn shortened(text: &str, max_len: usize) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    match text.char_indices().nth(max_len) {
        None => line.collect(),
        Some(_) => line.take(max_len.saturating_sub(3)).chain("...".chars()).collect(),
    }
}

/// Known word that is nearest to `word` by edit distance; `None` if no known word is similar.
#[must_use]
pub fn nearest<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    known
        .iter()
        .map(|candidate| (edit_distance(word, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(word.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance of two words.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut previous = i;
        let mut left_cell = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or(0);
            let substitute = previous + usize::from(x != *y);
            let best = substitute.min(above + 1).min(left_cell + 1);
            previous = above;
            if let Some(cell) = row.get_mut(j) {
                *cell = left_cell;
            }
            left_cell = best;
        }
        if let Some(cell) = row.last_mut() {
            *cell = left_cell;
        }
    }
    row.last().copied().unwrap_or(0)
}
