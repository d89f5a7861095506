//! Draft of a scenario, and its text.

use toml_edit::Value;

use super::Roles;
use crate::data::{Dataset, Labels};

/// Column at which comments begin.
const COMMENTS_AT: usize = 34;
/// Largest width of a proposed representation.
const LARGEST_WIDTH: usize = 16;
/// Smallest width of a proposed representation, if there are as many features.
const SMALLEST_WIDTH: usize = 4;
/// Mean number of rows of a client, where rows are dealt to clients.
const ROWS_OF_A_CLIENT: usize = 50;
/// Largest number of clients to which rows are dealt.
const MOST_CLIENTS: usize = 20;

/// Parts of a scenario that depend on the data.
pub struct Draft {
    /// Facts about the file, one line each.
    pub facts: Vec<String>,
    /// Roles of columns, if the file has a header.
    pub roles: Option<Roles>,
    /// Keys of `[data]`.
    pub data: Section,
    /// Keys of `[data.partition]`, if rows are dealt to clients.
    pub partition: Option<Section>,
    /// Proposed sections `[split]`, in the order in which they are tried.
    pub splits: Vec<Split>,
    /// True if targets are classes.
    pub classification: bool,
    /// True if samples are images.
    pub is_images: bool,
}

/// Keys of a section with comments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section(String);

/// Text without control characters: a name from the data must not end a comment, nor a line on a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl Section {
    /// Adds a key whose value is text.
    #[must_use]
    pub fn text(self, key: &str, value: &str, comment: &str) -> Self {
        self.key(key, &Value::from(value), comment)
    }

    /// Adds a key.
    #[must_use]
    pub fn key(mut self, key: &str, value: &Value, comment: &str) -> Self {
        let line = format!("{key} = {}", value.to_string().trim());
        let line = match comment {
            "" => line,
            comment if line.len() < COMMENTS_AT => format!("{line:<COMMENTS_AT$}# {}", one_line(comment)),
            comment => format!("{line} # {}", one_line(comment)),
        };
        self.0 += &(line + "\n");
        self
    }

    /// Adds a line that is only a comment.
    #[must_use]
    pub fn comment(mut self, comment: &str) -> Self {
        self.0 += &format!("{:<COMMENTS_AT$}# {}\n", "", one_line(comment));
        self
    }

    /// Adds a number.
    #[must_use]
    pub fn number(self, key: &str, value: usize, comment: &str) -> Self {
        self.key(key, &Value::from(i64::try_from(value).unwrap_or(i64::MAX)), comment)
    }
}

/// Keys of `[data.partition]` if the data do not say whose a row is.
pub fn dealt(rows: usize) -> Section {
    let clients = (rows / ROWS_OF_A_CLIENT).clamp(2, MOST_CLIENTS);
    let kinds = "rows are dealt at random; \"dirichlet\" and \"shards\" deal classes unevenly";
    Section::default().text("kind", "iid", kinds).number("clients", clients, "")
}

/// Keys of `[split]` that cut each client's samples: in the order of time if they have a column of times.
pub fn cut(time: Option<&str>, classification: bool) -> Section {
    let (by, comment) = match (time, classification) {
        (Some(time), _) => {
            ("time", format!("the last samples of each client test, since they have a {time:?}"))
        }
        (None, true) => (
            "stratified",
            "a random part of each class of a client tests; \"random\": of all its samples".to_owned(),
        ),
        (None, false) => {
            ("random", "a random part of each client's samples tests; \"time\": the last".to_owned())
        }
    };
    Section::default().text("by", by, &comment).key(
        "test",
        &Value::from(0.2),
        "fraction of samples that test",
    )
}

/// Keys of `[split]` if the data come with a test part.
pub fn with_test_part() -> Section {
    Section::default().text("by", "files", "what tests is a part of the data")
}

/// Proposed section `[split]`.
#[derive(Clone, Debug)]
pub struct Split {
    /// Keys of the section.
    pub keys: Section,
    /// Number of samples of each class that clients label who come after training, if the split has such clients.
    pub labels_per_class: Option<usize>,
}

/// Alternatives of `[split]` for clients that the data name. A fifth of the clients come after training if there are at
/// least five; `key` is the name of their number.
pub fn splits(base: &Section, clients: usize, key: &str, classification: bool) -> Vec<Split> {
    let held = clients / 5;
    let (labels, comment, numbers) = match classification {
        true => {
            ("labels_per_class", "samples of each class that they label; 0: all that they have", [5, 1, 0])
        }
        false => ("new_samples", "samples that each of them has", [10, 5, 1]),
    };
    let with_newcomers = numbers.map(|number| {
        let split = base.clone().number(key, held, "clients that come after training and fit only a head: the first by name; fold = 1 takes the next");
        let keys = split.number(labels, number, comment);
        Split { keys, labels_per_class: classification.then_some(number) }
    });
    let with_newcomers = with_newcomers.into_iter().filter(|_| held > 0);
    with_newcomers.chain([without_newcomers(base)]).collect()
}

/// Proposed section `[split]` without clients that come after training.
pub fn without_newcomers(base: &Section) -> Split {
    Split { keys: base.clone(), labels_per_class: None }
}

impl Split {
    /// True if clients that come after training label at most half of the samples of a class that others have.
    pub fn is_modest(&self, dataset: &Dataset) -> bool {
        let wanted = self.labels_per_class.map_or(0, |labels| if labels > 1 { 2 * labels } else { 0 });
        dataset.clients.iter().all(|client| {
            let Labels::Classes(classes) = &client.train.y else { return true };
            let mut counts = [0_usize; 256];
            classes.iter().for_each(|class| counts[usize::from(*class)] += 1);
            counts.into_iter().all(|count| count == 0 || count >= wanted)
        })
    }
}

/// Largest number of features for which heads with a learned prior are proposed: a device computes with a matrix of that many rows and
/// columns.
const MOST_FEATURES_WITH_PRIOR: usize = 100;

/// Comment on the name of the algorithm.
const OTHER_ALGORITHMS: &str = "`fedspan-sim list --algorithms` names the others";

impl Draft {
    /// Sections `[model]` and `[algorithm]`, for the data set if it is known.
    pub fn model(&self, network: bool, dataset: Option<&Dataset>) -> String {
        let (features, outputs) = dataset.map_or((1, 1), |dataset| (dataset.features, dataset.outputs));
        if network {
            let hidden: Value = if self.is_images {
                [64_i64, 32].into_iter().collect()
            } else {
                [32_i64].into_iter().collect()
            };
            let model = Section::default().text(
                "kind",
                "mlp",
                "dense layers with ReLU; \"linear\", \"cnn\" and \"lstm\" are others",
            );
            let model =
                model.key("hidden", &hidden, "widths of the hidden layers; the last layer is personal");
            let algorithm = Self::learned_prior("devices send second moments of the last layer's inputs once; false: heads have no mean in common")
                .number("rounds", 100, "that train all layers; those of the prior follow")
                .number("batch", 10, "samples of a step")
                .key("step_size", &Value::from(0.05), "of stochastic gradient descent; try 0.01 and 0.2");
            return format!("[model]\n{}\n[algorithm]\n{}", model.0, algorithm.0);
        }
        let wanted = outputs.clamp(SMALLEST_WIDTH, LARGEST_WIDTH);
        let model = Section::default().text(
            "kind",
            "linear",
            "for classes also a network: `fedspan-sim init --model mlp` proposes one",
        );
        let model = model.number(
            "k",
            wanted.min(features.saturating_sub(1)).max(1),
            "width of the shared representation, below the number of features and the constant 1",
        );
        let step = "one over the curvature of the loss at the start";
        if features > MOST_FEATURES_WITH_PRIOR {
            let algorithm =
                Section::default().text("name", "fedrep", OTHER_ALGORITHMS).number("rounds", 100, "");
            let algorithm = algorithm.text("step_size", "auto", step);
            return format!("[model]\n{}\n[algorithm]\n{}", model.0, algorithm.0);
        }
        let algorithm = Self::learned_prior(
            "devices send second moments of their samples once; false: heads have no mean in common",
        )
        .number("rounds", 100, "of other algorithms, such as \"fedrep\", as is step_size")
        .text("step_size", "auto", step);
        format!("[model]\n{}\n[algorithm]\n{}", model.0, algorithm.0)
    }

    /// Keys of heads with a learned prior, of which devices send second moments.
    fn learned_prior(moments_comment: &str) -> Section {
        let moments: Value = std::iter::once(("second_moments", Value::from(true))).collect();
        Section::default().text("name", "learned-prior", OTHER_ALGORITHMS).key(
            "learned-prior",
            &moments,
            moments_comment,
        )
    }

    /// Text of the scenario.
    pub fn text(&self, path: &str, split: &Section, model: &str) -> String {
        let path = one_line(path);
        let top = Section::default()
            .number("seed", 1, "of everything random; --seeds 5 runs seeds 1 to 5")
            .number("evaluate_every", 10, "rounds from one evaluation to the next");
        let partition =
            self.partition.as_ref().map_or(String::new(), |keys| format!("[data.partition]\n{}\n", keys.0));
        format!(
            "# Proposed by `fedspan-sim init` for {path}. Every key is described in sim/SCENARIOS.md.\n{}\n[data]\n{}\n{partition}[split]\n{}\n{model}",
            top.0, self.data.0, split.0
        )
    }
}
