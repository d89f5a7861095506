//! Tests of the rows that store the updates of the open round: several updates of one write share a row.

use crate::common::Scratch;
use fedspan_aggregator::store::{FILE, OfflineStore, Row, Store};
use fedspan_engine::{
    Checkpoint, CountedUpdate, DeviceId, Millis, OpenRoundCheckpoint, Phase, Record, Tensor, Update,
};
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;
use getrandom::SysRng;
use proptest::prelude::*;
use redb::{ReadableDatabase, ReadableTableMetadata, TableDefinition};

const UPDATES: TableDefinition<'_, (u32, u16, u64), &[u8]> = TableDefinition::new("updates");
const ABOUT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");

const ROUND: RoundId = RoundId { round: 7, stage: 3 };

/// Returns the checkpoint of the opened round.
fn opened_row() -> Row {
    let open = Some(OpenRoundCheckpoint { opened_at: Millis::new(17), fleet: Vec::new() });
    let checkpoint = Checkpoint { id: ROUND, done: Phase::Train(6), rounds: 50, state: vec![1.0], open };
    Row::Engine(Record::Checkpoint(checkpoint))
}

/// Returns an update with this number of values.
fn counted_update(order: u32, values: usize) -> CountedUpdate {
    let tensor = Tensor { role: Role::Gradient, rows: 1, cols: 1, values: vec![0.5; values] };
    let update =
        Update { id: ROUND, samples: order, skipped: 0, descriptors: Vec::new(), tensors: vec![tensor] };
    CountedUpdate { order, at: Millis::new(20), update }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Updates of any number and length are loaded in the order in which they counted. A repeated write changes nothing.
    #[test]
    fn written_updates_are_loaded(
        writes in prop::collection::vec((1u32..150, any::<bool>()), 1..5),
        lengths in prop::collection::vec(0usize..20_000, 1..4),
    ) {
        let scratch = Scratch::new();
        let mut store = Store::open(scratch.path(), SysRng).unwrap();
        store.begin(1, "").unwrap();
        store.apply(&[opened_row()]).unwrap();
        let mut expected = Vec::new();
        for (count, is_repeated) in writes {
            let first = expected.len();
            for _ in 0..count {
                let order = u32::try_from(expected.len()).unwrap();
                // Devices answer in another order than that of their numbers.
                let device = DeviceId(u64::from(order) * 7_919 % 10_007);
                expected.push((device, counted_update(order, lengths[expected.len() % lengths.len()])));
            }
            let rows: Vec<Row> = expected[first..]
                .iter()
                .map(|(device, counted)| Row::Engine(Record::Counted(ROUND, *device, counted.clone())))
                .collect();
            store.apply(&rows).unwrap();
            if is_repeated {
                store.apply(&rows).unwrap();
            }
            prop_assert!(store.load().unwrap().unwrap().updates == expected);
        }
        drop(store);
        let offline = OfflineStore::open(scratch.path()).unwrap().unwrap();
        prop_assert_eq!(offline.count_updates().unwrap(), expected.len() as u64);
        prop_assert!(offline.load().unwrap().unwrap().updates == expected);
        drop(offline);
        let mut store = Store::open(scratch.path(), SysRng).unwrap();
        store.apply(&[opened_row()]).unwrap();
        drop(store);
        prop_assert_eq!(OfflineStore::open(scratch.path()).unwrap().unwrap().count_updates().unwrap(), 0);
    }
}

/// Small updates of one write share rows.
#[test]
fn small_updates_share_rows() {
    let scratch = Scratch::new();
    let mut store = Store::open(scratch.path(), SysRng).unwrap();
    store.begin(1, "").unwrap();
    let counted = |order: u32| {
        Row::Engine(Record::Counted(ROUND, DeviceId(u64::from(order)), counted_update(order, 256)))
    };
    let rows: Vec<Row> = std::iter::once(opened_row()).chain((0..1_000).map(counted)).collect();
    store.apply(&rows).unwrap();
    drop(store);
    let database = redb::Database::open(scratch.path().join(FILE)).unwrap();
    let rows = database.begin_read().unwrap().open_table(UPDATES).unwrap().len().unwrap();
    assert_eq!(rows, 1_000_u64.div_ceil(62));
}

/// A store of the version before, with a row for each update and no number of updates, is loaded, counted and
/// continued.
#[test]
fn stores_with_a_row_for_each_update_are_continued() {
    let scratch = Scratch::new();
    let mut store = Store::open(scratch.path(), SysRng).unwrap();
    store.begin(1, "").unwrap();
    store.apply(&[opened_row()]).unwrap();
    let expected: Vec<_> =
        (0..9).map(|order| (DeviceId(u64::from(order) * 7 % 9), counted_update(order, 8))).collect();
    let rows: Vec<Row> = expected
        .iter()
        .map(|(device, counted)| Row::Engine(Record::Counted(ROUND, *device, counted.clone())))
        .collect();
    let (earlier, later) = rows.split_at(5);
    for row in earlier {
        store.apply(std::slice::from_ref(row)).unwrap();
    }
    drop(store);
    let database = redb::Database::open(scratch.path().join(FILE)).unwrap();
    assert_eq!(database.begin_read().unwrap().open_table(UPDATES).unwrap().len().unwrap(), 5);
    let write = database.begin_write().unwrap();
    assert!(write.open_table(ABOUT).unwrap().remove("counted").unwrap().is_some());
    write.commit().unwrap();
    drop(database);

    let offline = OfflineStore::open(scratch.path()).unwrap().unwrap();
    assert_eq!(offline.count_updates().unwrap(), 5);
    assert!(offline.load().unwrap().unwrap().updates == expected[..5]);
    drop(offline);
    let mut store = Store::open(scratch.path(), SysRng).unwrap();
    assert!(store.load().unwrap().unwrap().updates == expected[..5]);
    store.apply(later).unwrap();
    assert!(store.load().unwrap().unwrap().updates == expected);
    drop(store);
    assert_eq!(OfflineStore::open(scratch.path()).unwrap().unwrap().count_updates().unwrap(), 9);
}
