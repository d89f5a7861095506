//! Tests that read snapshots are isolated from later writes, and that writers do not wait for readers, with
//! 10,000 accounts and 110,000 journal lines. `-- --nocapture` prints the durations of writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::Scratch;
use fedspan_aggregator::store::{Row, Store};
use fedspan_engine::privacy::Account;
use fedspan_engine::{DeviceId, Record};
use getrandom::SysRng;

const DEVICES: u64 = 10_000;
const LINES: u64 = 110_000;

/// Returns the row of a privacy account.
fn account_row(device: u64, spent: u64) -> Row {
    let mut account = Account::default();
    (account.release, account.budget, account.spent) = (3, 1_000, spent);
    Row::Engine(Record::Account(DeviceId(device), account))
}

/// Writes `count` transactions with one account and one journal line each. Returns the durations in ascending
/// order.
fn write_transactions(store: &mut Store, count: u64, first_line: u64) -> Vec<Duration> {
    let mut durations: Vec<Duration> = (first_line..first_line + count)
        .map(|line| {
            let began = Instant::now();
            store
                .apply(&[account_row(line % DEVICES, line), Row::JournalEntry(line, format!("after {line}"))])
                .unwrap();
            began.elapsed()
        })
        .collect();
    durations.sort();
    durations
}

/// Prints the number, the median and the maximum of durations.
fn print_durations(label: &str, durations: &[Duration]) {
    println!(
        "{label}: {} writes, {:?} in the middle, {:?} at most",
        durations.len(),
        durations[durations.len() / 2],
        durations[durations.len() - 1]
    );
}

#[test]
fn read_snapshot_is_isolated_from_writers() {
    let scratch = Scratch::new();
    let mut store = Store::open(scratch.path(), SysRng).unwrap();
    store.begin(7, "a = 1").unwrap();
    let accounts = (0..DEVICES).map(|device| account_row(device, device));
    let lines = (0..LINES)
        .map(|line| Row::JournalEntry(line, format!("{{\"event\":\"answered\",\"device\":{line}}}")));
    store.apply(&accounts.chain(lines).collect::<Vec<_>>()).unwrap();
    print_durations("without a reader", &write_transactions(&mut store, 200, LINES));

    let expected = store.load().unwrap().unwrap();
    let began = Instant::now();
    let snapshot = store.read_snapshot().unwrap();
    println!("a moment is held after {:?}", began.elapsed());
    let reads = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(snapshot.campaign().unwrap().unwrap(), expected);
                let mut lines = 0;
                snapshot
                    .journal(|_| {
                        lines += 1;
                        true
                    })
                    .unwrap();
                assert_eq!(lines, LINES + 200);
                if !reads.swap(true, Ordering::Relaxed) {
                    println!("all of it is read in {:?}", began.elapsed());
                }
            }
        });
        while !reads.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        print_durations("with a reader", &write_transactions(&mut store, 200, LINES + 200));
        stop.store(true, Ordering::Relaxed);
    });
    let mut lines = 0;
    snapshot
        .journal(|_| {
            lines += 1;
            lines < 5
        })
        .unwrap();
    assert_eq!(lines, 5, "the reader continued after the callback had returned false");
    drop(snapshot);
    assert_eq!(store.load().unwrap().unwrap().next_journal_line, LINES + 400);
}
