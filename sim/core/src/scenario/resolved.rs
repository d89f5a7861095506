//! Text of a scenario as a run used it, for result files.

use toml_edit::{DocumentMut, Item, Value};

use super::Scenario;

/// Keys that name files or directories, with their tables.
const FILE_KEYS: [(&str, &str); 9] = [
    ("fleet", "trace"),
    ("data", "path"),
    ("data", "test_path"),
    ("data", "vectors"),
    ("data", "images"),
    ("data", "labels"),
    ("data", "test_images"),
    ("data", "test_labels"),
    ("model", "base"),
];

impl Scenario {
    /// Text of the scenario with the seed of a run, and with the paths at which its files were found, so that the same
    /// run can be repeated from the same directory.
    #[must_use]
    pub fn resolved(&self, seed: u64) -> String {
        let Ok(mut document) = self.text.parse::<DocumentMut>() else { return self.text.clone() };
        replace(document.entry("seed").or_insert(Item::None), i64::try_from(seed).unwrap_or(i64::MAX).into());
        for (table, key) in FILE_KEYS {
            let item = document.get_mut(table).and_then(|table| table.get_mut(key));
            let Some((item, path)) =
                item.and_then(|item| item.as_str().map(str::to_owned).map(|path| (item, path)))
            else {
                continue;
            };
            let located = self.locate(&path);
            if located != path {
                replace(item, located.into());
            }
        }
        // A start from a file is written as its path behind a word.
        let init = document.get_mut("model").and_then(|table| table.get_mut("init"));
        let located =
            init.as_ref().and_then(|item| item.as_str()?.strip_prefix("npy:").map(|path| self.locate(path)));
        if let (Some(item), Some(path)) = (init, located) {
            replace(item, format!("npy:{path}").into());
        }
        document.to_string()
    }
}

/// Replaces a value and keeps the comment after it.
fn replace(item: &mut Item, mut value: Value) {
    if let Some(old) = item.as_value() {
        *value.decor_mut() = old.decor().clone();
    }
    *item = Item::Value(value);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn resolved_scenario_has_the_seed_and_keeps_comments() {
        let text = Scenario::built_in("linear").unwrap();
        let scenario = Scenario::parse("linear", text, &["algorithm.rounds=3".to_owned()]).unwrap();
        let resolved = Scenario::parse("linear", &scenario.resolved(77), &[]).unwrap();
        assert_eq!((resolved.seed, resolved.algorithm.rounds), (77, 3));
        assert_eq!(Scenario { seed: scenario.seed, text: scenario.text.clone(), ..resolved }, scenario);
        let comments = |text: &str| text.lines().filter(|line| line.contains('#')).count();
        assert_eq!(comments(&scenario.resolved(77)), comments(text));
    }

    #[test]
    fn scenario_without_a_seed_gets_one() {
        let scenario = Scenario::parse("linear", Scenario::built_in("linear").unwrap(), &[]).unwrap();
        let without: String = scenario
            .text
            .lines()
            .filter(|line| !line.starts_with("seed"))
            .fold(String::new(), |text, line| text + line + "\n");
        let scenario = Scenario::parse("linear", &without, &[]).unwrap();
        assert_eq!(Scenario::parse("linear", &scenario.resolved(5), &[]).unwrap().seed, 5);
    }
}
