//! Tests that a board with the recording of a wearer in flash has the same samples, in the same order and in
//! every round, as the simulated client of this wearer.

use fedspan_client::features::FEATURES;
use fedspan_client::recording::table::{Rows, Split, Table};
use fedspan_client::recording::{Recording, WearerSource};
use fedspan_client::source::{SampleSource, Targets};
use fedspan_protocol::message::RoundId;
use fedspan_sim_core::data::flash::{ImageError, image, table};
use fedspan_sim_core::data::watch::{self, Validation, WatchSettings};
use fedspan_sim_core::data::{Client, Dataset, Labels, Set};
use fedspan_sim_core::scenario::Scenario;

/// Settings of the recordings.
const SETTINGS: WatchSettings = WatchSettings {
    test: 0.5,
    gap: 3,
    holdout_users: 2,
    fold: 1,
    labels_per_class: 1,
    programmes: false,
    head_samples_per_class: 2,
    validation: None,
};

/// Class of a sample and bits of its features.
type Sample = (u8, Vec<u32>);

/// All samples of one pass over a source.
fn read_pass(source: &mut dyn SampleSource) -> Vec<Sample> {
    let mut all_samples = Vec::new();
    while let Some(samples) = source.next() {
        let Targets::Classes(classes) = samples.targets else { panic!("classes") };
        for (x, class) in samples.x.chunks_exact(FEATURES).zip(classes) {
            all_samples.push((*class, x.iter().map(|v| v.to_bits()).collect()));
        }
    }
    all_samples
}

/// Samples of a set.
fn rows(set: &Set) -> Vec<Sample> {
    let Labels::Classes(classes) = &set.y else { panic!("classes") };
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect();
    set.x.chunks_exact(FEATURES).map(bits).zip(classes).map(|(x, class)| (*class, x)).collect()
}

/// Asserts that a board with the flash image `bytes` has the samples of a simulated client.
fn assert_same_samples(client: &Client, bytes: &[u8]) {
    let recording = Recording::parse(bytes).unwrap();
    let mut board = WearerSource::new(recording, &mut []);
    let mut simulated = client.source();
    for round in [1, 2, 77] {
        let id = RoundId { round, stage: 0 };
        let selected = (board.rewind_for_head(id).unwrap(), simulated.rewind_for_head(id).unwrap());
        assert_eq!(selected.0, selected.1);
        if selected.0 {
            assert_eq!(read_pass(&mut board), read_pass(&mut simulated), "round {round}");
        }
        board.rewind(id).unwrap();
        simulated.rewind(id).unwrap();
        assert_eq!(read_pass(&mut board), read_pass(&mut simulated));
    }
    let mut x = [0.0; FEATURES];
    let tests: Vec<Sample> = (0..)
        .map_while(|number| recording.test(number))
        .map(|window| {
            recording.features(&window, &mut x);
            (window.class, x.iter().map(|v| v.to_bits()).collect())
        })
        .collect();
    assert_eq!(tests, rows(&client.test));
}

#[test]
fn board_has_the_samples_of_its_simulated_client() {
    let validation = Some(Validation { fraction: 0.4, fold: 2 });
    let variants = [
        SETTINGS,
        WatchSettings { programmes: true, head_samples_per_class: 1, fold: 4, ..SETTINGS },
        WatchSettings { head_samples_per_class: 0, labels_per_class: 3, validation, ..SETTINGS },
    ];
    for settings in variants {
        let Dataset { clients, newcomers, .. } = watch::dataset(&settings, 5).unwrap();
        for (index, client) in clients.iter().chain(&newcomers).enumerate() {
            assert_same_samples(client, &image(&settings, 5, index + 1).unwrap());
        }
    }
}

#[test]
fn impossible_boards_are_errors() {
    let wearer = |wearer| image(&SETTINGS, 5, wearer).unwrap_err();
    assert_eq!(wearer(0), ImageError::Wearer { wearer: 0, count: 10 });
    assert_eq!(wearer(11).to_string(), "found wearer 11, allowed: 1 to 10");
    let too_many_labels = WatchSettings { head_samples_per_class: 9, ..SETTINGS };
    let error = image(&too_many_labels, 5, 1).unwrap_err().to_string();
    assert_eq!(
        error,
        "data.head_samples_per_class is 9, allowed: at most 8, the windows of a class that a board can draw"
    );
}

/// The flash table of a regression client contains the samples of the client in the same order, bit for bit.
#[test]
fn table_has_the_samples_of_its_client() {
    let scenario = Scenario::parse("smallest", Scenario::built_in("smallest").unwrap(), &[]).unwrap();
    let dataset = scenario.dataset(scenario.seed).unwrap();
    assert_eq!((dataset.features, dataset.outputs, dataset.clients.len()), (20, 1, 8));
    for client in &dataset.clients {
        let image = table(client, 20);
        let read = Table::parse(&image).unwrap();
        for (part, set) in [(Split::Training, &client.train), (Split::Test, &client.test)] {
            let (mut x, mut y) = (Vec::new(), Vec::new());
            let mut rows = Rows::<20>::new(&read, part).unwrap();
            while let Some(samples) = rows.next() {
                let Targets::Values(values) = samples.targets else { panic!("values") };
                x.extend_from_slice(samples.x);
                y.extend_from_slice(values);
            }
            assert_eq!((x, Labels::values(y)), (set.x.clone(), set.y.clone()));
            assert_eq!(set.len(), 20);
        }
    }
}
