//! Columns that a scenario names: by their names, as ranges, and by patterns.

use std::collections::HashMap;

/// Names that a message has, at most.
const SHOWN: usize = 20;

/// The names of all columns, each found without a search.
#[derive(Debug)]
pub struct Header<'a> {
    names: &'a [&'a str],
    /// Where each name stands first, and where it stands again.
    places: HashMap<&'a str, (usize, Option<usize>)>,
}

impl<'a> Header<'a> {
    /// Names in the order of the file.
    #[must_use]
    pub fn new(names: &'a [&'a str]) -> Self {
        let mut places: HashMap<&str, (usize, Option<usize>)> = HashMap::with_capacity(names.len());
        for (place, name) in names.iter().enumerate() {
            let (_, again) = places.entry(name).or_insert((place, Some(place)));
            // The first time it is itself.
            *again = match *again {
                Some(first) if first == place => None,
                None => Some(place),
                before => before,
            };
        }
        Self { names, places }
    }

    /// The place of a column.
    ///
    /// # Errors
    /// A sentence on a column that is not there, or there more than once.
    pub fn find(&self, name: &str) -> Result<usize, String> {
        match self.places.get(name) {
            Some((place, None)) => Ok(*place),
            Some((first, Some(second))) => Err(format!(
                "column {name:?} stands twice, as columns {} and {}: only one can be meant",
                first + 1,
                second + 1
            )),
            None => Err(format!("no column {name:?}, there are: {}", self.list())),
        }
    }

    /// Places of the columns that `entries` name, in the order of the entries, and those of one entry in the order of the
    /// file. An entry is a column's name; or two names with `..` between them, and all columns from the one to the other;
    /// or a pattern, in which `*` is any text and `?` any letter. What begins with `!` is left out, whatever names it.
    /// Ranges and patterns never take `others`, columns without a name, and what is there already.
    ///
    /// # Errors
    /// A sentence on an entry that names nothing, or a column that stands twice.
    pub fn choose(&self, entries: &[String], others: &[&str]) -> Result<Vec<usize>, String> {
        let mut without = vec![false; self.names.len()];
        let mut chosen = Vec::new();
        let mut taken = vec![false; self.names.len()];
        for left_out in entries.iter().filter_map(|entry| self.left_out(entry)) {
            for place in self.named(left_out)?.0 {
                if let Some(without) = without.get_mut(place) {
                    *without = true;
                }
            }
        }
        for entry in entries.iter().filter(|entry| self.left_out(entry).is_none()) {
            let (places, several) = self.named(entry)?;
            for place in places {
                let name = self.names.get(place).copied().unwrap_or_default();
                let not = several && (name.is_empty() || others.contains(&name));
                let before = taken.get(place).copied().unwrap_or(true);
                if not || before || without.get(place).copied().unwrap_or(true) {
                    continue;
                }
                self.find(name)?;
                if let Some(taken) = taken.get_mut(place) {
                    *taken = true;
                }
                chosen.push(place);
            }
        }
        if chosen.is_empty() {
            let (entries, more) = entries.split_at(entries.len().min(SHOWN));
            let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            return Err(format!("data.features = {entries:?}{more} leaves no column of: {}", self.list()));
        }
        Ok(chosen)
    }

    /// The entry after the `!` of one that leaves columns out.
    fn left_out<'e>(&self, entry: &'e str) -> Option<&'e str> {
        entry.strip_prefix('!').filter(|_| !self.places.contains_key(entry))
    }

    /// Columns that an entry names, and whether it may name several.
    fn named(&self, entry: &str) -> Result<(Vec<usize>, bool), String> {
        if self.places.contains_key(entry) {
            return Ok((vec![self.find(entry)?], false));
        }
        if let Some((from, to)) =
            entry.split_once("..").filter(|(from, to)| !from.is_empty() && !to.is_empty())
            && self.places.contains_key(from.trim())
        {
            let (first, last) = (self.find(from.trim())?, self.find(to.trim())?);
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
            return self.find(entry).map(|place| (vec![place], false));
        }
        let pattern: Vec<char> = entry.chars().collect();
        let fits = |name: &str| matches(&pattern, &name.chars().collect::<Vec<char>>());
        let places: Vec<usize> =
            (0..).zip(self.names).filter(|(_, name)| fits(name)).map(|(place, _)| place).collect();
        if places.is_empty() {
            return Err(format!("data.features: no column fits {entry:?}, there are: {}", self.list()));
        }
        Ok((places, true))
    }

    /// Names for a message: all, or the first of many.
    fn list(&self) -> String {
        let first = self.names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        match self.names.len().checked_sub(SHOWN) {
            Some(more @ 1..) => format!("{first} and {more} more"),
            _ => first,
        }
    }
}

/// Whether an entry is one column's name and nothing else.
#[must_use]
pub fn is_plain(entry: &str) -> bool {
    !entry.starts_with('!') && !entry.contains(['*', '?']) && !entry.contains("..")
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const HEADER: [&str; 9] = ["", "who", "acc_x", "acc_y", "gyr_x", "t", "y", "!odd", "a*b"];

    fn names(entries: &[&str]) -> Result<Vec<&'static str>, String> {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let places = Header::new(&HEADER).choose(&entries, &["who", "y"])?;
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
