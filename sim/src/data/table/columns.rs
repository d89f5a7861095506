//! Columns that a scenario names: by their names, as ranges, and by patterns.

/// Places of the columns that `entries` name, in the order of the entries, and those of one entry in the order of the
/// file. An entry is a column's name; or two names with `..` between them, and all columns from the one to the other;
/// or a pattern, in which `*` is any text and `?` any letter. What begins with `!` is left out, whatever names it.
/// Ranges and patterns never take `others`, columns without a name, and what is there already.
///
/// # Errors
/// A sentence on an entry that names nothing, or a column that stands twice.
pub fn choose(header: &[&str], entries: &[String], others: &[&str]) -> Result<Vec<usize>, String> {
    let mut without = vec![false; header.len()];
    let mut chosen = Vec::new();
    let mut taken = vec![false; header.len()];
    for left_out in entries.iter().filter_map(|entry| left_out(header, entry)) {
        for place in named(header, left_out)?.0 {
            if let Some(without) = without.get_mut(place) {
                *without = true;
            }
        }
    }
    for entry in entries.iter().filter(|entry| left_out(header, entry).is_none()) {
        let (places, several) = named(header, entry)?;
        for place in places {
            let name = header.get(place).copied().unwrap_or_default();
            let not = several && (name.is_empty() || others.contains(&name));
            let before = taken.get(place).copied().unwrap_or(true);
            if not || before || without.get(place).copied().unwrap_or(true) {
                continue;
            }
            find(header, name)?;
            if let Some(taken) = taken.get_mut(place) {
                *taken = true;
            }
            chosen.push(place);
        }
    }
    if chosen.is_empty() {
        return Err(format!("data.features = {entries:?} leaves no column of: {}", list(header)));
    }
    Ok(chosen)
}

/// The place of a column.
///
/// # Errors
/// A sentence on a column that is not there, or there more than once.
pub fn find(header: &[&str], name: &str) -> Result<usize, String> {
    let mut places = (0..).zip(header).filter(|(_, column)| **column == name).map(|(place, _)| place);
    match (places.next(), places.next()) {
        (Some(place), None) => Ok(place),
        (Some(first), Some(second)) => Err(format!(
            "column {name:?} stands twice, as columns {} and {}: only one can be meant",
            first + 1,
            second + 1
        )),
        (None, _) => Err(format!("no column {name:?}, there are: {}", list(header))),
    }
}

/// Whether an entry is one column's name and nothing else.
#[must_use]
pub fn is_plain(entry: &str) -> bool {
    !entry.starts_with('!') && !entry.contains(['*', '?']) && !entry.contains("..")
}

/// The entry after the `!` of one that leaves columns out.
fn left_out<'a>(header: &[&str], entry: &'a str) -> Option<&'a str> {
    entry.strip_prefix('!').filter(|_| !header.contains(&entry))
}

/// Columns that an entry names, and whether it may name several.
fn named(header: &[&str], entry: &str) -> Result<(Vec<usize>, bool), String> {
    if header.contains(&entry) {
        return Ok((vec![find(header, entry)?], false));
    }
    if let Some((from, to)) = entry.split_once("..").filter(|(from, to)| !from.is_empty() && !to.is_empty())
        && header.contains(&from.trim())
    {
        let (first, last) = (find(header, from.trim())?, find(header, to.trim())?);
        if first > last {
            return Err(format!(
                "data.features {entry:?}: column {from:?} is number {}, and {to:?} is number {}, before it",
                first + 1,
                last + 1
            ));
        }
        return Ok(((first..=last).collect(), true));
    }
    if !entry.contains(['*', '?']) {
        return find(header, entry).map(|place| (vec![place], false));
    }
    let pattern: Vec<char> = entry.chars().collect();
    let fits = |name: &str| matches(&pattern, &name.chars().collect::<Vec<char>>());
    let places: Vec<usize> =
        (0..).zip(header).filter(|(_, name)| fits(name)).map(|(place, _)| place).collect();
    if places.is_empty() {
        return Err(format!("data.features: no column fits {entry:?}, there are: {}", list(header)));
    }
    Ok((places, true))
}

/// Whether a pattern fits the whole of a text, in time of the product of their lengths.
fn matches(pattern: &[char], text: &[char]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Where the last star stands, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while place < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, place));
                at += 1;
            }
            Some(c) if *c == '?' || text.get(place) == Some(c) => {
                at += 1;
                place += 1;
            }
            _ => match star {
                Some((of, taken)) => {
                    star = Some((of, taken + 1));
                    at = of + 1;
                    place = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|c| *c == '*')
}

/// Names for a message: all, or the first of many.
fn list(header: &[&str]) -> String {
    const SHOWN: usize = 20;
    let first = header.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match header.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{first} and {more} more"),
        _ => first,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const HEADER: [&str; 9] = ["", "who", "acc_x", "acc_y", "gyr_x", "t", "y", "!odd", "a*b"];

    fn names(entries: &[&str]) -> Result<Vec<&'static str>, String> {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let places = choose(&HEADER, &entries, &["who", "y"])?;
        Ok(places.into_iter().map(|place| HEADER[place]).collect())
    }

    #[test]
    fn entries_name_columns_in_the_order_of_the_file() {
        for (entries, expected) in [
            (&["*"][..], &["acc_x", "acc_y", "gyr_x", "t", "!odd", "a*b"][..]),
            (&["acc_*"], &["acc_x", "acc_y"]),
            (&["*_x"], &["acc_x", "gyr_x"]),
            (&["gyr_x", "acc_*"], &["gyr_x", "acc_x", "acc_y"]),
            (&["acc_x..t"], &["acc_x", "acc_y", "gyr_x", "t"]),
            (&["acc_y..!odd"], &["acc_y", "gyr_x", "t", "!odd"]),
            (&["*", "!t", "!acc*"], &["gyr_x", "!odd", "a*b"]),
            (&["!t", "*"], &["acc_x", "acc_y", "gyr_x", "!odd", "a*b"]),
            (&["a*b"], &["a*b"]),
            (&["!odd"], &["!odd"]),
            (&["?cc_?"], &["acc_x", "acc_y"]),
            (&["acc_x", "*"], &["acc_x", "acc_y", "gyr_x", "t", "!odd", "a*b"]),
        ] {
            assert_eq!(names(entries).unwrap(), expected, "{entries:?}");
        }
    }

    #[test]
    fn entries_that_name_nothing_are_refused() {
        for (entries, said) in [
            (&["mag_*"][..], "no column fits \"mag_*\""),
            (&["acc_z"], "no column \"acc_z\""),
            (&["t..acc_x"], "before it"),
            (&["acc_x..nowhere"], "no column \"nowhere\""),
            (&["*", "!nowhere"], "no column \"nowhere\""),
            (&["t", "!t"], "leaves no column"),
        ] {
            let found = names(entries).unwrap_err();
            assert!(found.contains(said), "{entries:?}: {found}");
        }
    }

    #[test]
    fn patterns_with_many_stars_take_no_time() {
        let pattern: Vec<char> = "*a".repeat(1000).chars().collect();
        assert!(!matches(&pattern, &['a'; 900]));
        assert!(matches(&pattern, &['a'; 1000]));
    }
}
