//! FedRep's figures with synthetic data (Collins et al. 2021, section 5.1), and its table of real data.

use std::sync::atomic::AtomicBool;

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::progress::Progress;
use fedspan_sim_core::report::plot::{Axis, Loss, Point, Series};
use fedspan_sim_core::report::summary::Spread;
use fedspan_sim_core::report::table::{Table, figure};

use super::simulated::{Curve, Simulated, shown};
use super::{Finding, Measured, Reproduced, Reproduction, Request};

/// Figure 3: distance against rounds for four numbers of clients.
pub const FIGURE_3: Reproduction = Reproduction {
    name: "fedrep-figure-3",
    title: "FedRep and gradient steps on heads: distance to the true representation, for four numbers of clients",
    paper: "Collins et al. 2021, Exploiting Shared Representations for Personalized Federated Learning, Figure 3",
    claim: "With more clients FedRep converges to the true representation faster. The best head in each round beats ten gradient steps \
            on it, and ten beat one; methods with gradient steps do not scale properly with the number of clients.",
    stand_ins: "d = 10, k = 2, m = 5, a tenth of the clients in a round and noise of variance 0.001 are the paper's. The numbers of \
                clients, the step sizes and the start (by moments) are ours: the text does not give them.",
    duration: "5 s",
    seeds: 10,
    measure: figure_3,
};

/// Numbers of clients.
const CLIENTS: [u32; 4] = [20, 100, 500, 1000];
/// Methods, with their changes of the scenario.
const METHODS: [(&str, &[&str]); 3] = [
    ("FedRep", &[]),
    ("10GD-GD", &["algorithm.name=gd-gd", "algorithm.head_steps=10", "algorithm.head_step_size=0.25"]),
    ("GD-GD", &["algorithm.name=gd-gd", "algorithm.head_step_size=0.25"]),
];
/// Round after which methods are compared. Later all of them approach a floor that the noise sets.
const COMPARED: u32 = 50;

fn figure_3(request: &Request, stop: &AtomicBool, progress: &dyn Progress) -> Measured {
    let label = |method: &str, clients: u32| format!("{method}, n = {clients}");
    let mut curves = Vec::new();
    for clients in CLIENTS {
        for (method, changes) in METHODS {
            let clients_change = format!("data.clients={clients}");
            let changes: Vec<&str> =
                changes.iter().copied().chain([clients_change.as_str(), "evaluate_every=10"]).collect();
            curves.push(Curve::new(label(method, clients), "linear", &changes)?);
        }
    }
    let Some(runs) = Simulated::run(curves, request, stop, progress)? else { return Ok(None) };
    let distance = |method: &str, clients: u32| runs.after(&label(method, clients), COMPARED, |s| s.distance);
    let row = |method: &str| CLIENTS.map(|clients| distance(method, clients));
    let text = |spreads: &[Spread]| {
        spreads.iter().map(|spread| figure("distance", spread.mean)).collect::<Vec<_>>().join(", ")
    };
    let falls = |spreads: &[Spread]| spreads.iter().zip(spreads.iter().skip(1)).all(|(a, b)| b.mean < a.mean);
    let numbers = CLIENTS.map(|clients| clients.to_string()).join(", ");
    let [fedrep, ten, one] = ["FedRep", "10GD-GD", "GD-GD"].map(row);
    // Differences of the same seeds, in standard errors: below -2 it is unlikely to be luck.
    let compared = |better: &str, worse: &str| {
        let errors = CLIENTS.map(|clients| {
            let [better, worse] = [better, worse].map(|method| label(method, clients));
            runs.standard_errors(&better, &worse, COMPARED, |scores| scores.distance)
        });
        let text = errors.map(|errors| format!("{errors:.1}")).join(", ");
        (format!("difference in standard errors: {text}"), errors.iter().all(|errors| *errors < -2.0))
    };
    let (best_text, is_best) = compared("FedRep", "10GD-GD");
    let (ten_text, is_ten) = compared("10GD-GD", "GD-GD");
    let scaling = |spreads: &[Spread]| match spreads {
        [first, .., last] => first.mean / last.mean,
        _ => f64::NAN,
    };
    let findings = vec![
        Finding::new(
            "FedRep converges faster with more clients",
            format!("distance after {COMPARED} rounds for n = {numbers}: {}", text(&fedrep)),
            falls(&fedrep),
        ),
        Finding::new(
            "the best head beats ten gradient steps, at every number of clients",
            format!("10GD-GD: {}; {best_text}", text(&ten)),
            is_best,
        ),
        Finding::new(
            "ten gradient steps beat one, at every number of clients",
            format!("GD-GD: {}; {ten_text}", text(&one)),
            is_ten,
        ),
        Finding::new(
            "with gradient steps more clients help less than with the best head",
            format!(
                "from n = {} to {} the distance of GD-GD falls by a factor of {:.1}, of 10GD-GD by {:.1}, of FedRep by {:.1}",
                CLIENTS[0],
                CLIENTS[3],
                scaling(&one),
                scaling(&ten),
                scaling(&fedrep)
            ),
            scaling(&one) < scaling(&fedrep) && scaling(&ten) < scaling(&fedrep),
        ),
    ];
    let rows = METHODS.iter().map(|(method, _)| {
        let cells = row(method).map(|spread| shown("distance", &spread));
        std::iter::once((*method).to_owned()).chain(cells).collect()
    });
    let columns = CLIENTS.map(|clients| format!("n = {clients}"));
    let table = Table {
        title: format!(
            "distance after {COMPARED} rounds, mean +- standard deviation over {} seeds",
            request.seeds
        ),
        columns: std::iter::once("method".to_owned()).chain(columns).collect(),
        rows: rows.collect(),
        notes: Vec::new(),
    };
    let panels = CLIENTS.map(|clients| {
        let belongs = |name: &str| METHODS.iter().any(|(method, _)| name == label(method, clients));
        (format!("n = {clients}"), runs.series(belongs))
    });
    let panels = panels.to_vec();
    let (summaries, scenarios) = runs.into_parts();
    let axes = vec![Axis::Round];
    Ok(Some(Reproduced { panels, axes, tables: vec![table], findings, summaries, scenarios }))
}

/// Figure 4: error of new clients against their number of labelled samples.
pub const FIGURE_4: Reproduction = Reproduction {
    name: "fedrep-figure-4",
    title: "FedRep for new clients: test error against the number of their labelled samples",
    paper: "Collins et al. 2021, Exploiting Shared Representations for Personalized Federated Learning, Figure 4",
    claim: "On FedRep's representation a new client has an accurate model as soon as it has k labelled samples; alone it needs in the order of \
            d. The representation of one model for all has a large error.",
    stand_ins: "d = 20, k = 2 and 100 training clients are the paper's. FedSGD is FedAvg with one step in each round. The numbers of \
                labelled samples and the bounds of the errors are ours, and errors are medians over the seeds, since some have no finite mean.",
    duration: "10 s",
    seeds: 5,
    measure: figure_4,
};

/// Numbers of labelled samples of a new client.
const LABELS: [u32; 6] = [2, 3, 5, 10, 20, 40];

fn figure_4(request: &Request, stop: &AtomicBool, progress: &dyn Progress) -> Measured {
    let methods: [(&str, &[&str]); 3] = [
        ("FedRep", &[]),
        (
            "one model for all, own head",
            &["algorithm.name=fedavg", "algorithm.step_size=0.1", "model.init=random"],
        ),
        ("alone", &["algorithm.name=local-only"]),
    ];
    let label = |method: &str, labels: u32| format!("{method}, m = {labels}");
    let mut curves = Vec::new();
    for (method, changes) in methods {
        for labels in LABELS {
            let samples = format!("data.new_samples={labels}");
            let changes: Vec<&str> =
                changes.iter().copied().chain([samples.as_str(), "evaluate_every=1000"]).collect();
            curves.push(Curve::new(label(method, labels), "new-clients", &changes)?);
        }
    }
    let Some(runs) = Simulated::run(curves, request, stop, progress)? else { return Ok(None) };
    let error = |method: &str, labels: u32| runs.last(&label(method, labels), "test_mse_new_clients").median;
    let text = |method: &str| {
        LABELS.map(|labels| format!("{} with {labels}", figure("test_mse", error(method, labels)))).join(", ")
    };
    let [fedrep, single, alone] = methods.map(|(method, _)| method);
    let is_accurate = |labels: u32| error(fedrep, labels) < 0.01 * error(alone, labels);
    let findings = vec![
        Finding::new(
            "with k labelled samples the error on FedRep's representation is below a hundredth of that alone",
            format!("k = 2; error {}", text(fedrep)),
            is_accurate(2),
        ),
        Finding::new(
            "with k + 1 it is",
            format!("error {} with 3", figure("test_mse", error(fedrep, 3))),
            is_accurate(3),
        ),
        Finding::new(
            "alone, a client needs in the order of d samples: up to d the error is above 0.1, with 2 d below",
            format!("d = 20; error {}", text(alone)),
            LABELS.iter().filter(|labels| **labels <= 20).all(|labels| error(alone, *labels) > 0.1)
                && error(alone, 40) < 0.1,
        ),
        Finding::new(
            "with more than k samples the error on the representation of one model for all is more than a hundred times that \
             on FedRep's",
            format!("error {}", text(single)),
            LABELS
                .iter()
                .filter(|labels| **labels > 2)
                .all(|labels| error(single, *labels) > 100.0 * error(fedrep, *labels)),
        ),
    ];
    let series = methods.map(|(method, _)| {
        let point = |labels: u32| {
            let scores = Scores { test_mse: Some(error(method, labels)), ..Scores::default() };
            Point { round: labels.into(), time: 0.0, bytes: 0.0, scores }
        };
        Series {
            label: method.to_owned(),
            family: method.to_owned(),
            loss: Loss::default(),
            every: 1,
            runs: vec![LABELS.map(point).to_vec()],
        }
    });
    let rows = methods.map(|(method, _)| {
        let cells = LABELS.map(|labels| figure("test_mse", error(method, labels)));
        std::iter::once(method.to_owned()).chain(cells).collect()
    });
    let columns = LABELS.map(|labels| format!("m = {labels}"));
    let table = Table {
        title: format!("squared error of a new client, median over {} seeds", request.seeds),
        columns: std::iter::once("model".to_owned()).chain(columns).collect(),
        rows: rows.to_vec(),
        notes: Vec::new(),
    };
    let (summaries, scenarios) = runs.into_parts();
    Ok(Some(Reproduced {
        panels: vec![(String::new(), series.to_vec())],
        axes: vec![Axis::NewSamples],
        tables: vec![table],
        findings,
        summaries,
        scenarios,
    }))
}

/// Table 1: personalised methods on images.
pub const TABLE_1: Reproduction = Reproduction {
    name: "fedrep-table-1",
    title: "FedRep among personalised methods: accuracy on images, clients with few classes",
    paper: "Collins et al. 2021, Exploiting Shared Representations for Personalized Federated Learning, Table 1 (CIFAR-10, 100 clients)",
    claim: "FedRep is best or close to it, FedPer follows, one model for all is far behind, and tuning its head makes it competitive. In the paper, \
            with 2 and 5 classes a client: FedRep 0.877 and 0.757, FedPer 0.871 and 0.738, FedAvg with tuning 0.877 and 0.737, alone 0.898 and \
            0.707, FedAvg 0.427 and 0.518.",
    stand_ins: "5000 digits of MNIST for CIFAR-10, a fully connected network (128, 64) for the paper's of five layers, 50 clients of 80 images \
                for 100 of 500. A tenth takes part in each round and 100 rounds are the paper's.",
    duration: "90 s",
    seeds: 3,
    measure: table_1,
};

fn table_1(request: &Request, stop: &AtomicBool, progress: &dyn Progress) -> Measured {
    let methods = [
        ("FedRep", "fedrep"),
        ("FedPer", "fedper"),
        ("FedAvg", "fedavg"),
        ("FedAvg, tuned", "fedavg+ft"),
        ("APFL", "apfl"),
        ("Ditto", "ditto"),
        ("alone", "local-only"),
    ];
    let classes = [2, 5];
    let label = |method: &str, classes: u32| format!("{method}, {classes} classes a client");
    let mut curves = Vec::new();
    for classes in classes {
        for (method, algorithm) in methods {
            let changes =
                [format!("algorithm.name={algorithm}"), format!("data.partition.classes={classes}")];
            let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
            curves.push(Curve::new(label(method, classes), "mnist", &changes)?);
        }
    }
    let Some(runs) = Simulated::run(curves, request, stop, progress)? else { return Ok(None) };
    let accuracy = |method: &str, classes: u32| runs.final_accuracy(&label(method, classes));
    let both = |method: &str| format!("{method} {:.3} and {:.3}", accuracy(method, 2), accuracy(method, 5));
    let everywhere = |better: &str, worse: &str, by: f64| {
        classes.iter().all(|classes| accuracy(better, *classes) > accuracy(worse, *classes) + by)
    };
    let best = |classes: u32| {
        methods.iter().map(|(method, _)| accuracy(method, classes)).fold(f64::NEG_INFINITY, f64::max)
    };
    let findings = vec![
        Finding::new(
            "FedRep is best, or within 0.01 of the best",
            format!("{}; the best {:.3} and {:.3}", both("FedRep"), best(2), best(5)),
            classes.iter().all(|classes| accuracy("FedRep", *classes) > best(*classes) - 0.01),
        ),
        Finding::new("FedRep is ahead of FedPer", both("FedPer"), everywhere("FedRep", "FedPer", 0.0)),
        Finding::new(
            "with 5 classes a client, training alone is behind FedRep",
            both("alone"),
            accuracy("FedRep", 5) > accuracy("alone", 5),
        ),
        Finding::new(
            "one model for all is far behind: by more than 0.2",
            both("FedAvg"),
            everywhere("FedRep", "FedAvg", 0.2),
        ),
        Finding::new(
            "tuning its head makes it competitive: within 0.03 of FedRep, or ahead",
            both("FedAvg, tuned"),
            classes
                .iter()
                .all(|classes| accuracy("FedAvg, tuned", *classes) > accuracy("FedRep", *classes) - 0.03),
        ),
    ];
    let rows = methods.map(|(method, _)| {
        let cells = classes.map(|classes| format!("{:.4}", accuracy(method, classes)));
        std::iter::once(method.to_owned()).chain(cells).collect()
    });
    let table = Table {
        title: format!("accuracy, mean over the last ten rounds and {} seeds", request.seeds),
        columns: ["method", "2 classes a client", "5 classes a client"].map(str::to_owned).to_vec(),
        rows: rows.to_vec(),
        notes: Vec::new(),
    };
    let panels = classes.map(|classes| {
        let belongs = |name: &str| methods.iter().any(|(method, _)| name == label(method, classes));
        (format!("{classes} classes a client"), runs.series(belongs))
    });
    let panels = panels.to_vec();
    let (summaries, scenarios) = runs.into_parts();
    let axes = vec![Axis::Round, Axis::Bytes];
    Ok(Some(Reproduced { panels, axes, tables: vec![table], findings, summaries, scenarios }))
}
