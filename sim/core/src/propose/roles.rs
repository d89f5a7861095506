//! Roles of the columns of a table, by name and content: whose row it is, what is predicted, and from what.

use crate::data::table::profile::{Column, Profile};

use super::Answers;

/// Names of columns that say whose row it is.
const CLIENT_NAMES: [&str; 34] = [
    "client",
    "user",
    "subject",
    "speaker",
    "person",
    "participant",
    "patient",
    "wearer",
    "device",
    "node",
    "sensor",
    "station",
    "writer",
    "author",
    "customer",
    "account",
    "household",
    "home",
    "house",
    "building",
    "site",
    "hospital",
    "clinic",
    "bank",
    "store",
    "shop",
    "machine",
    "engine",
    "vehicle",
    "driver",
    "meter",
    "unit",
    "school",
    "group",
];
/// Names of columns that are predicted.
const TARGET_NAMES: [&str; 16] = [
    "target",
    "label",
    "labels",
    "class",
    "y",
    "outcome",
    "response",
    "activity",
    "gesture",
    "category",
    "species",
    "diagnosis",
    "exercise",
    "vowel",
    "digit",
    "output",
];
/// Names of columns with times.
const TIME_NAMES: [&str; 6] = ["time", "timestamp", "date", "datetime", "seconds", "millis"];
/// Names of columns that number the parts of a recording.
const PART_NAMES: [&str; 12] = [
    "session", "trial", "take", "block", "run", "day", "sequence", "segment", "fold", "split", "window",
    "frame",
];
/// Words in the names of columns that number the rows.
const ROW_WORDS: [&str; 4] = ["index", "row", "unnamed", "rownum"];
/// Words in the names of columns that number things.
const NUMBER_WORDS: [&str; 9] = ["id", "ids", "name", "no", "nr", "num", "number", "index", "key"];

/// Largest number of whole numbers that are taken for classes in a column without a telling name.
const FEW_CLASSES: usize = 20;
/// Smallest mean number of rows of a class, for whole numbers.
const ROWS_OF_A_CLASS: usize = 5;
/// Number of rows of a table in which numbers that count up may be measurements.
const FEW_ROWS: usize = 10;
/// Smallest mean number of rows of a client, for columns without a telling name.
const ROWS_OF_A_CLIENT: usize = 5;
/// Largest number of classes.
const CLASSES: usize = crate::data::table::CLASSES;

/// Roles of the columns of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Column that says whose row it is; `None` if no column does.
    pub client: Option<String>,
    /// Column that is predicted.
    pub target: String,
    /// True if the target is a class.
    pub classification: bool,
    /// Columns from which the target is predicted, in the order of the file.
    pub features: Vec<String>,
    /// Columns without a role, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// Column with the time of each row, if there is one.
    pub time: Option<String>,
}

impl Roles {
    /// Finds the roles; `answers` go before what names and content suggest.
    ///
    /// # Errors
    /// A one-line message that names the column and the reason if a role cannot be filled.
    pub fn find(profile: &Profile, answers: &Answers) -> Result<Self, String> {
        let columns = &profile.columns;
        if let Some(column) = columns.iter().enumerate().find_map(|(index, column)| {
            columns.iter().take(index).any(|earlier| earlier.name == column.name).then_some(column)
        }) {
            return Err(format!("found column {:?} twice in the header; rename one of them", column.name));
        }
        let named_target = match &answers.target {
            Some(name) => Some(find(columns, name, "target")?),
            None => columns.iter().find(|column| is_called_target(column, columns)),
        };
        let client = match &answers.client {
            Some(None) => None,
            Some(Some(name)) => Some(find(columns, name, "client")?),
            None => guess_client(profile, named_target),
        };
        if client.is_some() && client.map(|c| &c.name) == named_target.map(|target| &target.name) {
            return Err(format!(
                "column {:?} cannot be client and target at once; give another --client or --target",
                client.map_or("", |column| &column.name)
            ));
        }
        let is_client = |column: &Column| client.is_some_and(|client| client.name == column.name);
        let is_possible = |column: &&Column| {
            !is_client(column)
                && column.missing.0 == 0
                && !column.counts_rows
                && column.distinct > 1
                && !has_name(&column.name, &TIME_NAMES)
                && !column.name.is_empty()
        };
        let target = named_target.or_else(|| columns.iter().rev().find(is_possible)).ok_or_else(|| {
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            format!("found no column to predict among {names:?}; name one with --target")
        })?;
        let classification = match answers.classification {
            Some(classification) => classification,
            None => is_class(target, profile.rows),
        };
        check_target(target, classification)?;
        let mut features = Vec::new();
        let mut left_out = Vec::new();
        for column in columns.iter().filter(|column| !is_client(column) && column.name != target.name) {
            let other_target = is_called_target(column, columns)
                .then(|| "perhaps another target; list it in features if it may be known".to_owned());
            match reason_to_leave_out(column, profile.rows).or(other_target) {
                Some(reason) => left_out.push((column.name.clone(), reason)),
                None => features.push(column.name.clone()),
            }
        }
        if features.is_empty() {
            let reasons: Vec<String> =
                left_out.iter().map(|(name, reason)| format!("{name:?} ({reason})")).collect();
            let reasons = if reasons.is_empty() {
                "there is no other column".to_owned()
            } else {
                format!("left out: {}", reasons.join(", "))
            };
            return Err(format!("found no column to predict {:?} from; {reasons}", target.name));
        }
        let time = columns.iter().find(|column| has_name(&column.name, &TIME_NAMES));
        Ok(Self {
            client: client.map(|column| column.name.clone()),
            target: target.name.clone(),
            classification,
            features,
            left_out,
            time: time.map(|column| column.name.clone()),
        })
    }
}

/// True if a column has the name of a target. The second of three coordinates is none.
fn is_called_target(column: &Column, columns: &[Column]) -> bool {
    let is_coordinate =
        words(&column.name) == ["y"] && columns.iter().any(|other| words(&other.name) == ["z"]);
    has_name(&column.name, &TARGET_NAMES) && !is_coordinate
}

/// Column of this name.
fn find<'a>(columns: &'a [Column], name: &str, role: &str) -> Result<&'a Column, String> {
    columns.iter().find(|column| column.name == name).ok_or_else(|| {
        let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        format!("--{role}: found no column {name:?}, allowed: {}", names.join(", "))
    })
}

/// Lower-case words of a column name: `userId` and `user_id` are `user` and `id`.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || (was_lower && c.is_uppercase()) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// True if a column name is one of `known`, perhaps in the plural, or with words that stand for a number or a name.
fn has_name(name: &str, known: &[&str]) -> bool {
    let words = words(name);
    let is_known = |word: &str| known.contains(&word);
    let (known_words, others): (Vec<&String>, Vec<&String>) =
        words.iter().partition(|word| is_known(word) || word.strip_suffix('s').is_some_and(is_known));
    !known_words.is_empty() && others.iter().all(|word| NUMBER_WORDS.contains(&word.as_str()))
}

/// True if a column or an array has a name that says whose row it is.
pub fn is_client_name(name: &str) -> bool {
    has_name(name, &CLIENT_NAMES)
}

/// Column that says whose row it is, by its name or else because it repeats texts.
fn guess_client<'a>(profile: &'a Profile, target: Option<&Column>) -> Option<&'a Column> {
    let others = || {
        let is_target = |column: &Column| target.is_some_and(|target| target.name == column.name);
        profile
            .columns
            .iter()
            .filter(move |column| !is_target(column) && column.missing.0 == 0 && column.distinct > 1)
    };
    let repeats = |column: &&Column, rows: usize| column.distinct.saturating_mul(rows) <= profile.rows;
    let by_name = others().filter(|column| repeats(column, 2)).find(|column| is_client_name(&column.name));
    by_name
        .or_else(|| others().filter(|column| repeats(column, 2)).find(|column| words(&column.name) == ["id"]))
        .or_else(|| {
            // Without a target that is known by its name, a column of texts may as well be the target.
            target?;
            others()
                .filter(|column| !column.is_numeric() && repeats(column, ROWS_OF_A_CLIENT))
                .max_by_key(|column| column.distinct)
        })
}

/// True if the values of the target are classes.
fn is_class(target: &Column, rows: usize) -> bool {
    let is_truth = target.distinct == 2 && target.examples.iter().all(|text| text.parse::<f64>().is_err());
    let words = words(&target.name);
    let is_called_class = words.iter().any(|word| word == "class" || word == "label" || word == "labels");
    let largest = if is_called_class { CLASSES } else { FEW_CLASSES };
    !target.is_numeric()
        || is_truth
        || target.is_whole
            && target.distinct <= largest
            && target.distinct.saturating_mul(ROWS_OF_A_CLASS) <= rows
}

/// Checks that a column can be predicted.
fn check_target(target: &Column, classification: bool) -> Result<(), String> {
    let name = &target.name;
    if target.missing.0 > 0 {
        let (count, line) = target.missing;
        return Err(format!(
            "target {name:?}: {count} cells are empty or stand for a missing value, the first in line {line}; remove these rows"
        ));
    }
    if target.distinct < 2 {
        return Err(format!(
            "target {name:?}: all rows have the same value; name another column with --target"
        ));
    }
    match &target.text {
        Some((line, text)) if !classification => Err(format!(
            "target {name:?}: found {text:?} in line {line}, expected a number; leave out --task regression for classes"
        )),
        _ if classification && target.distinct > CLASSES => Err(format!(
            "target {name:?}: found {} classes, allowed: at most {CLASSES}; name another column with --target",
            at_most_counted(target.distinct)
        )),
        _ => Ok(()),
    }
}

/// Number of distinct values as text, which is counted up to a limit.
fn at_most_counted(distinct: usize) -> String {
    if distinct > 100_000 { "more than 100000".to_owned() } else { distinct.to_string() }
}

/// Reason why a column is no feature; `None` if it is one.
fn reason_to_leave_out(column: &Column, rows: usize) -> Option<String> {
    if column.name.is_empty() {
        return Some("it has no name".to_owned());
    }
    if let Some((line, text)) = &column.text {
        let text: String = text.chars().take(30).collect();
        return Some(format!("text, {text:?} in line {line}"));
    }
    if column.missing.0 > 0 {
        let (count, line) = column.missing;
        return Some(format!("{count} of {rows} values are missing, the first in line {line}"));
    }
    if column.distinct < 2 {
        return Some("it has one value".to_owned());
    }
    if column.counts_rows && rows >= FEW_ROWS {
        return Some("it counts the rows".to_owned());
    }
    if has_name(&column.name, &TIME_NAMES) {
        return Some("a time".to_owned());
    }
    let words = words(&column.name);
    if column.is_whole && words.last().is_some_and(|word| word == "id") {
        return Some("an identifier".to_owned());
    }
    if column.is_whole
        && column.distinct == rows
        && words.iter().any(|word| ROW_WORDS.contains(&word.as_str()))
    {
        return Some("it numbers the rows".to_owned());
    }
    if column.is_whole && has_name(&column.name, &PART_NAMES) {
        return Some(
            "perhaps the number of a part of the recording; list it in features if it is measured".to_owned(),
        );
    }
    if column.is_whole && is_client_name(&column.name) {
        return Some("perhaps whose row it is; --client names such a column".to_owned());
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::data::table::profile::profile;

    /// Name of a column, and its cell in a row.
    type NamedCells = (&'static str, fn(usize) -> String);

    /// Table of 60 rows with these columns; a cell is made from the row's number.
    fn table(columns: &[NamedCells]) -> Profile {
        let header: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let mut text = header.join(",") + "\n";
        for row in 0..60 {
            let cells: Vec<String> = columns.iter().map(|(_, cell)| cell(row)).collect();
            text += &(cells.join(",") + "\n");
        }
        profile(text.as_bytes(), "t.csv").unwrap()
    }

    fn number(row: usize) -> String {
        format!("{}.5", row * row % 37)
    }

    fn who(row: usize) -> String {
        format!("p{}", row / 10)
    }

    fn kind(row: usize) -> String {
        ["walk", "run", "rest"][row % 3].to_owned()
    }

    fn find(profile: &Profile) -> Roles {
        Roles::find(profile, &Answers::default()).unwrap()
    }

    #[test]
    fn names_of_clients_are_known_in_the_plural_and_with_numbers() {
        for (name, expected) in [
            ("users", true),
            ("subject_id", true),
            ("PatientNo", true),
            ("houses", true),
            ("user_agent", false),
            ("busers", false),
            ("s", false),
        ] {
            assert_eq!(is_client_name(name), expected, "{name}");
        }
    }

    #[test]
    fn roles_follow_names() {
        for client in ["subject", "user_id", "userId", "Patient No", "DEVICE"] {
            let roles = find(&table(&[("label", kind), (client, who), ("a", number), ("b", number)]));
            assert_eq!(roles.client.as_deref(), Some(client));
            assert_eq!((roles.target.as_str(), roles.classification), ("label", true));
            assert_eq!(roles.features, ["a", "b"]);
        }
    }

    #[test]
    fn last_column_is_the_target_if_no_name_suggests_one() {
        let roles = find(&table(&[("station", who), ("a", number), ("price", number)]));
        assert_eq!((roles.target.as_str(), roles.classification), ("price", false));
        let roles = find(&table(&[("a", number), ("kind", kind), ("station", who)]));
        assert_eq!((roles.target.as_str(), roles.classification), ("kind", true));
    }

    #[test]
    fn second_coordinate_is_no_target_and_a_second_target_no_feature() {
        let roles =
            find(&table(&[("user", who), ("activity", kind), ("x", number), ("y", number), ("z", number)]));
        assert_eq!((roles.target.as_str(), roles.features.len()), ("activity", 3));
        let roles = find(&table(&[("user", who), ("label", kind), ("x1", number), ("outcome", number)]));
        assert_eq!((roles.target.as_str(), roles.features.as_slice()), ("label", &["x1".to_owned()][..]));
    }

    #[test]
    fn repeated_text_is_the_client_only_with_a_named_target() {
        let roles = find(&table(&[("where", who), ("a", number), ("y", number)]));
        assert_eq!(roles.client.as_deref(), Some("where"));
        let roles = find(&table(&[("a", number), ("where", who)]));
        assert_eq!((roles.client, roles.target.as_str()), (None, "where"));
    }

    #[test]
    fn columns_that_cannot_be_features_are_left_out_with_a_reason() {
        let columns: &[NamedCells] = &[
            ("", |row| row.to_string()),
            ("row", |row| row.to_string()),
            ("note", |row| format!("text {row}")),
            ("gap", |row| if row == 7 { "NA".to_owned() } else { number(row) }),
            ("same", |_| "3".to_owned()),
            ("time", number),
            ("session_id", |row| (row % 7).to_string()),
            ("a", number),
            ("y", number),
        ];
        let roles = find(&table(columns));
        assert_eq!(roles.features, ["a"]);
        assert_eq!(roles.time.as_deref(), Some("time"));
        let reasons: Vec<&str> = roles.left_out.iter().map(|(_, reason)| reason.as_str()).collect();
        assert_eq!(reasons[0], "it has no name");
        assert_eq!(reasons[1], "it counts the rows");
        assert!(reasons[2].contains("line 2") && reasons[3].contains("line 9"), "{reasons:?}");
        assert_eq!(reasons[4..], ["it has one value", "a time", "an identifier"]);
    }

    #[test]
    fn numbers_of_rows_and_of_other_clients_are_no_features() {
        let columns: &[NamedCells] = &[
            ("hospital", who),
            ("patient", |row| (row % 9).to_string()),
            ("Unnamed: 0", |row| ((row * 7) % 60).to_string()),
            ("session", |row| (row / 20).to_string()),
            ("a", number),
            ("label", kind),
        ];
        let roles = find(&table(columns));
        assert_eq!(
            (roles.client.as_deref(), roles.features.as_slice()),
            (Some("hospital"), &["a".to_owned()][..])
        );
        assert!(roles.left_out[0].1.contains("--client") && roles.left_out[1].1 == "it numbers the rows");
        assert!(roles.left_out[2].1.contains("part of the recording"));
    }

    #[test]
    fn whole_numbers_are_classes_if_they_are_few() {
        let few: &[NamedCells] = &[("a", number), ("grade", |row| (row % 5).to_string())];
        assert!(find(&table(few)).classification);
        let many: &[NamedCells] = &[("a", number), ("grade", |row| (row % 31).to_string())];
        assert!(!find(&table(many)).classification);
        let as_told = Answers { classification: Some(true), ..Answers::default() };
        assert!(Roles::find(&table(many), &as_told).unwrap().classification);
    }

    #[test]
    fn role_that_cannot_be_filled_is_an_error_with_the_column() {
        let with_gap: &[NamedCells] =
            &[("a", number), ("y", |row| if row == 3 { String::new() } else { number(row) })];
        let text = |_| "x".to_owned();
        let answers = |client: Option<Option<&str>>, target: Option<&str>, classification| Answers {
            client: client.map(|client| client.map(str::to_owned)),
            target: target.map(str::to_owned),
            classification,
            ..Answers::default()
        };
        for (profile, answers, message) in [
            (
                table(with_gap),
                answers(None, None, None),
                "target \"y\": 1 cells are empty or stand for a missing value, the first in line 5",
            ),
            (
                table(&[("a", number), ("y", kind)]),
                answers(None, None, Some(false)),
                "found \"walk\" in line 2",
            ),
            (
                table(&[("a", number), ("y", kind)]),
                answers(None, Some("z"), None),
                "no column \"z\", allowed: a, y",
            ),
            (
                table(&[("a", number), ("y", kind)]),
                answers(Some(Some("y")), None, None),
                "client and target at once",
            ),
            (table(&[("a", text), ("y", text)]), answers(None, None, None), "the same value"),
            (
                table(&[("a", kind), ("y", kind)]),
                answers(Some(None), None, None),
                "\"a\" (text, \"walk\" in line 2)",
            ),
            (table(&[("a", number), ("a", number)]), answers(None, None, None), "column \"a\" twice"),
        ] {
            let error = Roles::find(&profile, &answers).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
