//! Small multiples: the curves of a chart that share a panel.

use super::Series;

/// Largest number of curves of a panel in colour.
pub(super) const CURVES: usize = 8;

/// Panel of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Panel {
    /// Heading; empty if there is one panel.
    pub title: String,
    /// Indices of the series that are drawn in colour.
    pub members: Vec<usize>,
}

/// Distributes series, given by their indices, to panels of at most [`CURVES`]. Series of a family are together
/// unless most families are small.
pub(super) fn panels(series: &[Series], drawn: &[usize]) -> Vec<Panel> {
    if drawn.len() <= CURVES {
        return vec![Panel { title: String::new(), members: drawn.to_vec() }];
    }
    let family = |index: &usize| series.get(*index).map(|entry| entry.family.as_str()).unwrap_or_default();
    let mut families: Vec<(&str, Vec<usize>)> = Vec::new();
    for index in drawn {
        match families.iter_mut().find(|(name, _)| *name == family(index)) {
            Some((_, members)) => members.push(*index),
            None => families.push((family(index), vec![*index])),
        }
    }
    if families.len() * 3 > drawn.len() {
        let chunks = chunks(drawn);
        let mut first = 1;
        let titled = chunks.into_iter().map(|members| {
            let title = format!("curves {first} to {} of {}", first + members.len() - 1, drawn.len());
            first += members.len();
            Panel { title, members }
        });
        return titled.collect();
    }
    let family_panels = |(name, members): (&str, Vec<usize>)| {
        let chunks = chunks(&members);
        let count = chunks.len();
        let titled = chunks.into_iter().enumerate().map(move |(number, members)| {
            let part = if count > 1 { format!("part {} of {count}", number + 1) } else { String::new() };
            let title = [name, &part].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
            Panel { title: title.join(", "), members }
        });
        titled.collect::<Vec<_>>()
    };
    families.into_iter().flat_map(family_panels).collect()
}

/// Cuts a list into parts of about the same length, each of at most [`CURVES`].
fn chunks(members: &[usize]) -> Vec<Vec<usize>> {
    let parts = members.len().div_ceil(CURVES).max(1);
    members.chunks(members.len().div_ceil(parts).max(1)).map(<[usize]>::to_vec).collect()
}
