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

/// Makes the row of a privacy account.
fn account(device: u64, spent: u64) -> Row {
    let mut account = Account::default();
    (account.release, account.budget, account.spent) = (3, 1_000, spent);
    Row::Engine(Record::Account(DeviceId(device), account))
}

/// Writes `count` transactions with one account and one journal line each. Returns the durations in ascending
/// order.
fn write(store: &mut Store, count: u64, first: u64) -> Vec<Duration> {
    let mut durations: Vec<Duration> = (first..first + count)
        .map(|line| {
            let began = Instant::now();
            store
                .apply(&[account(line % DEVICES, line), Row::JournalEntry(line, format!("after {line}"))])
                .unwrap();
            began.elapsed()
        })
        .collect();
    durations.sort();
    durations
}

/// Prints the number, the median and the maximum of durations.
fn print_durations(what: &str, durations: &[Duration]) {
    println!(
        "{what}: {} writes, {:?} in the middle, {:?} at most",
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
    let accounts = (0..DEVICES).map(|device| account(device, device));
    let lines = (0..LINES)
        .map(|line| Row::JournalEntry(line, format!("{{\"event\":\"answered\",\"device\":{line}}}")));
    store.apply(&accounts.chain(lines).collect::<Vec<_>>()).unwrap();
    print_durations("without a reader", &write(&mut store, 200, LINES));

    let known = store.load().unwrap().unwrap();
    let began = Instant::now();
    let past = store.read_snapshot().unwrap();
    println!("a moment is held after {:?}", began.elapsed());
    let (reads, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(past.campaign().unwrap().unwrap(), known);
                let mut seen = 0;
                past.journal(|_| {
                    seen += 1;
                    true
                })
                .unwrap();
                assert_eq!(seen, LINES + 200);
                if !reads.swap(true, Ordering::Relaxed) {
                    println!("all of it is read in {:?}", began.elapsed());
                }
            }
        });
        while !reads.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        print_durations("with a reader", &write(&mut store, 200, LINES + 200));
        over.store(true, Ordering::Relaxed);
    });
    let mut seen = 0;
    past.journal(|_| {
        seen += 1;
        seen < 5
    })
    .unwrap();
    assert_eq!(seen, 5, "it returned false");
    drop(past);
    assert_eq!(store.load().unwrap().unwrap().next_journal_line, LINES + 400);
}
