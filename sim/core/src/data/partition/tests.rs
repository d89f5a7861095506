//! Tests of partitions: no sample belongs to two clients, and classes and sizes are as configured.

use super::*;

const DISTRIBUTIONS: [Sizes; 3] = [Sizes::Equal, Sizes::Uniform, Sizes::LogNormal { sigma: 3.0 }];

/// Labels of 1000 samples of 10 classes, in mixed order.
fn labels() -> Vec<u8> {
    (0..1000).map(|i| u8::try_from(i * 7 % 10).unwrap_or(0)).collect()
}

fn partitioned(method: Partition) -> Vec<Vec<usize>> {
    partition(&labels(), method, 3).unwrap()
}

fn lengths(parts: &[Vec<usize>]) -> Vec<usize> {
    parts.iter().map(Vec::len).collect()
}

/// Counts the samples of all clients, and checks that no sample occurs twice.
fn checked_count(parts: &[Vec<usize>]) -> usize {
    let mut sorted: Vec<usize> = parts.iter().flatten().copied().collect();
    let count = sorted.len();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), count, "a sample belongs to two clients");
    assert!(sorted.last() < Some(&1000));
    count
}

fn kinds(shares: ClientSizes) -> [Partition; 2] {
    [Partition::Iid { clients: 40, shares }, Partition::Shards { clients: 40, classes: 2, shares }]
}

#[test]
fn every_sample_has_one_client_and_every_client_a_sample() {
    for sizes in DISTRIBUTIONS {
        for method in kinds(ClientSizes { sizes, samples: 0 }) {
            let parts = partitioned(method);
            assert_eq!((parts.len(), checked_count(&parts)), (40, 1000), "{method:?}");
            let lengths = lengths(&parts);
            assert!(lengths.iter().all(|length| *length > 0), "{method:?}: {lengths:?}");
            let (shortest, longest) = (lengths.iter().min().copied(), lengths.iter().max().copied());
            match sizes {
                Sizes::Equal => {
                    assert!(shortest >= Some(24) && longest <= Some(26), "{method:?}: {lengths:?}")
                }
                // 25 samples on average times weights from 1 to 1.5, with mean 1.25: 20 to 30 samples. Two
                // shards are rounded, which adds or removes up to two samples.
                Sizes::Uniform => {
                    assert!(shortest >= Some(18) && longest <= Some(32) && longest > Some(26), "{lengths:?}");
                }
                Sizes::LogNormal { .. } => assert!(longest > Some(100), "{lengths:?}"),
            }
        }
    }
}

#[test]
fn clients_have_the_configured_number_of_samples() {
    for method in kinds(ClientSizes { sizes: Sizes::Equal, samples: 17 }) {
        let parts = partitioned(method);
        assert_eq!(checked_count(&parts), 40 * 17);
        assert_eq!(lengths(&parts), [17; 40], "{method:?}");
    }
    // The sizes of SRPFL, 100 + uniform[0, 50], divided by about six.
    for method in kinds(ClientSizes { sizes: Sizes::Uniform, samples: 16 }) {
        let lengths = lengths(&partitioned(method));
        assert!(lengths.iter().all(|length| (16..=24).contains(length)), "{lengths:?}");
        assert!(lengths.iter().any(|length| *length > 20) && lengths.contains(&16), "{lengths:?}");
    }
}

#[test]
fn shards_that_divide_a_class_have_one_class() {
    let labels = labels();
    for samples in [0, 20] {
        let shares = ClientSizes { sizes: Sizes::Equal, samples };
        // Each class has 10 shards: of 10 samples each, or of 8 samples if a fifth of the samples is unused.
        let method = Partition::Shards {
            clients: 50,
            classes: 2,
            shares: ClientSizes { samples: samples * 4 / 5, ..shares },
        };
        for part in partitioned(method) {
            let mut classes: Vec<u8> = part.iter().map(|&i| labels[i]).collect();
            classes.sort_unstable();
            let runs: Vec<usize> = classes.chunk_by(|a, b| a == b).map(<[u8]>::len).collect();
            assert!(runs.iter().all(|run| *run * 2 == part.len() || *run == part.len()), "{runs:?}");
        }
    }
}

#[test]
fn dirichlet_uses_all_samples_and_small_alpha_gives_few_classes() {
    let labels = labels();
    let largest_class = |alpha| {
        let parts = partitioned(Partition::Dirichlet { clients: 10, alpha, min_samples: 5 });
        assert_eq!((parts.len(), checked_count(&parts)), (10, 1000));
        assert!(parts.iter().all(|part| part.len() >= 5));
        let largest = |part: &Vec<usize>| {
            let count = |class| part.iter().filter(|i| labels[**i] == class).count();
            (0..10).map(count).max().unwrap_or(0) as f64 / part.len() as f64
        };
        parts.iter().map(largest).sum::<f64>() / 10.0
    };
    let (concentrated, uniform) = (largest_class(0.1), largest_class(1000.0));
    assert!(concentrated > 0.4 && uniform < 0.15, "{concentrated}, {uniform}");
}

#[test]
fn impossible_partition_is_an_error_with_numbers() {
    let shares = ClientSizes::default();
    let counted = ClientSizes { samples: 101, ..shares };
    for (method, parts) in [
        (Partition::Iid { clients: 1001, shares }, ["1001 clients", "1000 samples"]),
        (Partition::Iid { clients: 10, shares: counted }, ["found 1000 samples", "needed: 1010"]),
        (
            Partition::Shards { clients: 10, classes: 2, shares: counted },
            ["found 1000 samples", "needed: 1010"],
        ),
        (Partition::Shards { clients: 10, classes: 11, shares }, ["classes = 11", "at most 10"]),
        (
            Partition::Shards { clients: 10, classes: 3, shares: ClientSizes { samples: 2, ..shares } },
            ["2 samples", "at least 3"],
        ),
        (Partition::Dirichlet { clients: 20, alpha: 1e-3, min_samples: 1 }, ["alpha = 0.001", "20 clients"]),
        (Partition::Dirichlet { clients: 20, alpha: 1.0, min_samples: 51 }, ["51 samples", "1000"]),
    ] {
        let message = partition(&labels(), method, 1).unwrap_err();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
