//! Tests of the structure of the report page: labels, styles, axes, losses and small multiples.

use std::collections::{BTreeMap, BTreeSet};

use fedspan_sim_core::evaluate::Scores;
use fedspan_sim_core::report::html::Page;
use fedspan_sim_core::report::plot::{
    Axis, Figure, Loss, Metric, Point, Series, distinct_styles, figures, style_of,
};
use fedspan_sim_core::report::table::Table;
use fedspan_sim_core::scenario::Scenario;

/// Widest average width of a bold character of 12 px, in common fonts.
const CHARACTER: f64 = 7.3;

/// Curve with a value of each round from 0 to `rounds`.
fn points(rounds: u32, value: impl Fn(f64) -> f64) -> Vec<Point> {
    let point = |round: u32| {
        let round = f64::from(round);
        let value = value(round);
        let scores = Scores { accuracy: Some(value), loss: Some(value), ..Scores::default() };
        Point { round, time: 1.5 * round, bytes: 4000.0 * round, scores }
    };
    (0..=rounds).map(point).collect()
}

/// Series of a family whose accuracy rises to `end`.
fn series(label: &str, family: &str, end: f64) -> Series {
    let runs = vec![points(20, |round| end * (round + 1.0) / 21.0)];
    Series { label: label.to_owned(), family: family.to_owned(), runs, ..Series::default() }
}

/// Thirty series: two families, whose final accuracies are close together.
fn thirty() -> Vec<Series> {
    let entry = |index: usize| {
        let family = if index < 15 { "digits" } else { "digits classes=5" };
        series(&format!("{family} algorithm-{}", index % 15), family, 0.9 + 0.0001 * index as f64)
    };
    (0..30).map(entry).collect()
}

fn page(series: &[Series]) -> String {
    Page { title: "Test".to_owned(), curves: vec![(String::new(), series.to_vec())], ..Page::default() }
        .html()
}

/// Parts of a text between two marks.
fn between<'a>(text: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    text.split(from).skip(1).map(|part| part.split(to).next().unwrap()).collect()
}

fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    between(element, &format!(" {name}=\""), "\"").first().copied().unwrap_or_default()
}

/// All figures of all metrics on an axis.
fn all_figures(series: &[Series], axis: Axis) -> Vec<(Metric, Figure)> {
    let of = |metric| figures(series, metric, axis).into_iter().map(move |figure| (metric, figure));
    Metric::of(series).into_iter().flat_map(of).collect()
}

/// Position, classes and content of the texts of a picture that are not rotated.
fn texts(picture: &str) -> Vec<(f64, f64, &str, &str)> {
    let mut texts = Vec::new();
    for element in between(picture, "<text", "</text>") {
        let (tag, content) = element.split_once('>').unwrap();
        if let (Ok(x), Ok(y)) = (attribute(tag, "x").parse(), attribute(tag, "y").parse()) {
            texts.push((x, y, attribute(tag, "class"), content));
        }
    }
    texts
}

fn picture_width(picture: &str) -> f64 {
    attribute(picture, "viewBox").split(' ').nth(2).unwrap().parse().unwrap()
}

#[test]
fn direct_labels_do_not_overlap() {
    let few: Vec<Series> = thirty().into_iter().take(8).collect();
    let ends = [0.1, 0.1, 0.9, 0.9001];
    let equal: Vec<Series> =
        ends.iter().enumerate().map(|(n, end)| series(&format!("curve {n}"), "", *end)).collect();
    let long = [
        series("a label that is much longer than the picture has room for, one", "", 0.5),
        series("a label that is much longer than the picture has room for, two", "", 0.5),
    ];
    let mut checked = 0;
    for series in [&few[..], &equal, &long, &thirty()] {
        for (_, figure) in Axis::ALL.into_iter().flat_map(|axis| all_figures(series, axis)) {
            for picture in &figure.pictures {
                let width = picture_width(picture);
                let labels: Vec<_> =
                    texts(picture).into_iter().filter(|text| text.2.starts_with("label")).collect();
                assert!((1..=8).contains(&labels.len()), "{}: {labels:?}", figure.name);
                for (number, (x, y, _, label)) in labels.iter().enumerate() {
                    let right = x + CHARACTER * label.chars().count() as f64;
                    assert!(right <= width, "{label} ends at {right} of {width}");
                    for (_, other, ..) in labels.iter().skip(number + 1) {
                        assert!((y - other).abs() >= 13.9, "{}: {label} overlaps another one", figure.name);
                    }
                    checked += 1;
                }
                let names: BTreeSet<_> = labels.iter().map(|label| label.3).collect();
                assert_eq!(names.len(), labels.len(), "{}: two curves have one label", figure.name);
            }
        }
    }
    assert!(checked > 200, "only {checked} labels were checked");
}

/// Text has 12 px, and no picture is shown so much smaller than it is drawn that this would be less than 11 px.
#[test]
fn text_is_never_smaller_than_eleven_pixels() {
    let page = page(&thirty());
    let size = |text: &str| -> f64 {
        let number = text.trim_start();
        let unit = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
        let value: f64 = number[..unit].parse().unwrap();
        if number[unit..].starts_with("rem") { 16.0 * value } else { value }
    };
    let sizes: Vec<f64> = ["font-size=\"", "font-size:", "font:"]
        .into_iter()
        .flat_map(|mark| between(&page, mark, ";").into_iter().chain(between(&page, mark, "\"")))
        .filter(|text| text.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '.'))
        .map(size)
        .collect();
    assert!(sizes.len() > 20 && sizes.iter().all(|size| *size >= 11.0), "{sizes:?}");
    let least = |rule: &str| {
        size(between(&between(&page, rule, "}")[0].replace("min-width: ", "\u{1}"), "\u{1}", ";")[0])
    };
    let (narrow, wide) = (least("\n.plot { width"), least("\n.plot.wide {"));
    for svg in between(&page, "<svg class=\"plot", "</svg>") {
        let shown = if svg.starts_with(" wide") { wide } else { narrow };
        let drawn: f64 = attribute(svg, "font-size").parse().unwrap();
        assert!(drawn * shown / picture_width(svg) >= 11.0, "{shown} of {}", picture_width(svg));
    }
}

#[test]
fn thirty_curves_have_distinct_styles() {
    let styles: BTreeSet<_> = (0..30).map(style_of).collect();
    assert_eq!((styles.len(), distinct_styles()), (30, 30));
    let page = page(&thirty());
    let lines: BTreeSet<_> = between(&page, "<li data-s=", "</li>")
        .into_iter()
        .map(|item| between(item, "class=\"line ", "\"")[0].to_owned())
        .collect();
    assert_eq!(lines.len(), 30);
    for colour in 0..10 {
        let defined = page.matches(&format!("--c{colour}: #")).count();
        assert_eq!(defined, 2, "colour {colour} is not defined for light and dark pages");
    }
}

/// Each curve is drawn in colour in one panel and in grey in the others.
#[test]
fn many_curves_are_small_multiples_by_family() {
    let series = thirty();
    let figures = figures(&series, Metric::Accuracy, Axis::Round);
    assert_eq!(figures.len(), 4);
    let mut coloured = BTreeMap::new();
    for figure in &figures {
        for picture in &figure.pictures {
            let groups: Vec<usize> =
                between(picture, "<g data-s=\"", "\"").iter().map(|index| index.parse().unwrap()).collect();
            assert!(groups.len() <= 8);
            assert_eq!(picture.matches("class=\"other\"").count(), 30 - groups.len());
            let families: BTreeSet<_> = groups.iter().map(|index| &series[*index].family).collect();
            assert_eq!(families.len(), 1, "a panel has curves of two families");
            let heading = texts(picture)[0];
            assert_eq!(heading.2, "head");
            assert!(heading.3.starts_with(families.first().unwrap().as_str()), "{heading:?}");
            for group in groups {
                *coloured.entry(group).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(coloured, (0..30).map(|index| (index, 2)).collect(), "a curve is not in one panel");
    let scales: BTreeSet<_> =
        figures.iter().map(|figure| attribute(&figure.pictures[0], "data-y").to_owned()).collect();
    let ranges: BTreeSet<_> =
        scales.iter().map(|scale| scale.split(' ').skip(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(ranges.len(), 1, "the panels have different axes");
    // Without families, panels have curves in order.
    let single: Vec<Series> =
        (0..9).map(|n| self::series(&format!("curve {n}"), &format!("{n}"), 0.5)).collect();
    let figures = self::figures(&single, Metric::Accuracy, Axis::Round);
    assert!(figures[0].pictures[0].contains("curves 1 to 5 of 9"), "{}", figures[0].pictures[0]);
}

#[test]
fn logarithmic_axes_are_marked() {
    for (metric, figure) in all_figures(&thirty(), Axis::Time) {
        for picture in &figure.pictures {
            let title: String =
                texts(picture).iter().filter(|text| text.2 == "title").map(|text| text.3).collect();
            let logarithmic = attribute(picture, "data-y").ends_with("log");
            assert_eq!(logarithmic, title.contains("logscale") || title.contains("log scale"), "{title}");
            assert_eq!(logarithmic, matches!(metric, Metric::Loss(_)));
            assert!(picture.contains(">simulated time (mean computations)</text>"));
        }
    }
}

#[test]
fn losses_of_different_kinds_share_no_figure() {
    let kinds: Vec<Series> = Loss::ALL
        .into_iter()
        .flat_map(|loss| [0.4, 0.8].map(|end| Series { loss, ..series(&format!("{loss:?} {end}"), "", end) }))
        .collect();
    let drawn = all_figures(&kinds, Axis::Round);
    let mut losses = 0;
    for (metric, figure) in &drawn {
        let Metric::Loss(loss) = metric else { continue };
        losses += 1;
        for picture in &figure.pictures {
            for index in between(picture, "data-s=\"", "\"") {
                assert_eq!(kinds[index.parse::<usize>().unwrap()].loss, *loss);
            }
        }
        assert!(figure.description.contains(loss.title()));
    }
    assert_eq!(losses, Loss::ALL.len());
    let networks = Loss::ALL.iter().filter(|loss| loss.title().contains("cross-entropy in nats"));
    assert_eq!(networks.count(), 3);
}

#[test]
fn loss_is_that_of_the_scored_model() {
    let loss = |name: &str, algorithm: &str| {
        let change = format!("algorithm.name={algorithm:?}");
        Loss::of(&Scenario::parse(name, Scenario::built_in(name).unwrap(), &[change]).unwrap())
    };
    for (name, algorithm, expected) in [
        ("linear", "fedrep", Loss::Squared),
        ("linear", "fedavg", Loss::SquaredShared),
        ("digits", "pooled", Loss::SquaredShared),
        ("digits", "local-only", Loss::Squared),
        ("digits-network", "fedrep", Loss::CrossEntropy),
        ("digits-network", "fedavg", Loss::CrossEntropyShared),
        ("digits-network", "scaffold", Loss::CrossEntropyShared),
        ("digits-network", "fedavg+ft", Loss::CrossEntropyTuned),
        ("digits-network", "perfedavg", Loss::CrossEntropy),
    ] {
        assert_eq!(loss(name, algorithm), expected, "{name}, {algorithm}");
    }
}

#[test]
fn axes_begin_with_time_if_participation_doubles_or_differs() {
    let scenario = |name: &str, changes: &[&str]| {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        Scenario::parse(name, Scenario::built_in(name).unwrap(), &changes).unwrap()
    };
    let full = scenario("linear", &["participation={ policy = \"full\" }"]);
    let linear = scenario("linear", &[]);
    let local = scenario("linear", &["algorithm.name=\"local-only\""]);
    assert_eq!(Axis::order([&linear, &linear, &local]), Axis::ALL);
    assert_eq!(Axis::order([&linear, &full])[0], Axis::Time);
    assert_eq!(Axis::order([&scenario("stragglers", &[])])[0], Axis::Time);
    assert_eq!(Axis::order([]), Axis::ALL);
}

#[test]
fn figures_without_curves_are_left_out() {
    let level = Series { runs: vec![points(0, |_| 0.5)], ..series("level", "", 0.5) };
    let nothing = Series { runs: vec![Vec::new()], ..series("nothing", "", 0.5) };
    let undefined = Series { runs: vec![points(9, |_| f64::NAN)], ..series("undefined", "", 0.5) };
    for empty in [
        &[level.clone()][..],
        &[level.clone(), nothing.clone()],
        &[nothing],
        std::slice::from_ref(&undefined),
        &[],
    ] {
        assert!(!page(empty).contains("<svg class=\"plot"), "{empty:?}");
    }
    let one_round = Series { runs: vec![points(1, |round| 0.5 + round / 4.0)], ..series("one", "", 0.5) };
    let page = page(&[one_round, level, undefined]);
    let svg: String = between(&page, "<svg class=\"plot", "</svg>").concat();
    assert!(svg.contains("level\" d=\"M") && !svg.contains("NaN") && !svg.contains("inf"));
    assert!(
        !page.contains("distance to the true representation: sine"),
        "a metric without values has a figure"
    );
}

#[test]
fn special_characters_in_labels_are_escaped() {
    let page = page(&[series("a <i>&\"b\"", "<i>", 0.5), series("c <i>&\"d\"", "<i>", 0.6)]);
    let body = page.split("<script>").next().unwrap();
    assert!(!body.contains("<i>") && body.contains("&lt;i&gt;&amp;"));
}

/// The last rounds of a network are evaluated one by one; only those of the interval are drawn, and the last.
#[test]
fn drawn_points_have_the_interval_of_evaluations() {
    let mut entry = series("one", "", 0.5);
    let kept = |point: &Point| point.round % 10.0 == 0.0 || point.round > 10.0;
    entry.runs = vec![points(25, |round| 0.5 + round / 100.0).into_iter().filter(kept).collect()];
    entry.every = 10;
    let figures = figures(&[entry], Metric::Accuracy, Axis::Round);
    let line = between(&figures[0].pictures[0], "class=\"line c0 d0\" d=\"", "\"")[0];
    assert_eq!(line.matches(['M', 'L']).count(), 4, "rounds 0, 10, 20 and 25: {line}");
}

/// Seeds that stopped after different rounds have a median of the rounds that all of them have.
#[test]
fn median_is_that_of_common_rounds() {
    let mut entry = series("one", "", 0.5);
    entry.runs = vec![points(10, |_| 0.1), points(4, |_| 0.3), points(6, |_| 0.2)];
    let figures = figures(&[entry], Metric::Accuracy, Axis::Round);
    let picture = &figures[0].pictures[0];
    let line = between(picture, "class=\"line c0 d0\" d=\"", "\"")[0];
    assert_eq!(line.matches(['M', 'L']).count(), 5);
    assert_eq!(picture.matches("class=\"seed c0 d0\"").count(), 3);
}

#[test]
fn page_is_complete_without_its_script() {
    let page = page(&thirty());
    let without_script = page.split("<script>").next().unwrap();
    assert_eq!(page.matches("<script").count(), 1);
    assert!(
        without_script.contains("<svg class=\"plot wide\"") && without_script.contains("<li data-s=\"29\">")
    );
    assert!(!without_script.contains("<button"), "a button does nothing without the script");
    assert_eq!(page, self::page(&thirty()), "the page is not the same twice");
}

#[test]
fn wide_table_is_transposed_on_the_page() {
    let cells = |from: u32| (from..from + 9).map(|n| n.to_string()).collect::<Vec<_>>();
    let table = Table { columns: cells(0), rows: vec![cells(100), cells(200)], ..Table::default() };
    let html = table.html();
    assert_eq!(html.matches("<tr>").count(), 9);
    assert!(html.contains("<th>1</th><td class=\"figure\">101</td><td class=\"figure\">201</td>"), "{html}");
}
