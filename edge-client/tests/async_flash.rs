//! Tests of storage in flash with an asynchronous driver: power cuts, futures that are dropped, pages that a blocking store shares, and a
//! session that sends nothing before its storage is written.
#![cfg(feature = "async-flash")]

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use embedded_storage::nor_flash::NorFlashErrorKind;
use embedded_storage_async::nor_flash::{NorFlash, ReadNorFlash};
use fedspan_client::link::{Buffers, Driver, NoSensor, Step};
use fedspan_client::session::Protection;
#[cfg(feature = "key-rotation")]
use fedspan_client::store::StoredKey;
use fedspan_client::store::{
    AsyncFlashStore, Commit, FlashError, FlashStore, Record, RecordHeader, SplitErase, Store, StoreError,
};
use fedspan_client::{Linear, Millis, Session, Task as _};
use fedspan_protocol::tensor::Encoding;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::common::problem::*;
use crate::common::server::*;
use crate::common::*;
use crate::driver::Line;
use crate::power_cuts::{BYTES, DeviceStore, cut_device_kinds, device_kinds};
use crate::torn_flash::{PAGE, Tear, Torn, WORD};

/// Future that is pending once.
async fn yield_once() {
    let mut is_ready = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut is_ready, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Reads take no time, writes and erases are pending once before and once after the change.
impl<const W: usize> ReadNorFlash for Torn<W> {
    const READ_SIZE: usize = 1;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorFlashErrorKind> {
        embedded_storage::nor_flash::ReadNorFlash::read(self, offset, bytes)
    }

    fn capacity(&self) -> usize {
        embedded_storage::nor_flash::ReadNorFlash::capacity(self)
    }
}

impl<const W: usize> NorFlash for Torn<W> {
    const WRITE_SIZE: usize = W;
    const ERASE_SIZE: usize = PAGE;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        yield_once().await;
        let erased = embedded_storage::nor_flash::NorFlash::erase(self, from, to);
        yield_once().await;
        erased
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorFlashErrorKind> {
        yield_once().await;
        let written = embedded_storage::nor_flash::NorFlash::write(self, offset, bytes);
        yield_once().await;
        written
    }
}

/// Polls a future at most `polls` times.
fn poll<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let mut future = pin!(future);
    (0..polls).find_map(|_| match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    poll(future, 1_000_000).expect("the future makes no progress")
}

type AsyncStore<const W: usize> = AsyncFlashStore<Torn<W>, BYTES, 2>;

fn open<const W: usize>(flash: Torn<W>, has_ledger: bool) -> AsyncStore<W> {
    let end = u32::try_from(flash.image().len()).unwrap();
    block_on(AsyncStore::open(flash, 0..end, has_ledger)).unwrap()
}

/// Device that commits each item at once.
struct Committing<const W: usize>(AsyncStore<W>);

impl<const W: usize> Committing<W> {
    fn saved(&mut self, saved: Result<(), StoreError>) -> Result<(), StoreError> {
        saved.and_then(|()| block_on(self.0.commit()))
    }
}

impl<const W: usize> Store for Committing<W> {
    fn save(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let saved = self.0.save(record);
        self.saved(saved)
    }

    fn load(&mut self, head: &mut [f32]) -> Result<Option<RecordHeader>, StoreError> {
        self.0.load(head)
    }

    fn save_handshakes(&mut self, reserved: u64) -> Result<(), StoreError> {
        let saved = self.0.save_handshakes(reserved);
        self.saved(saved)
    }

    fn load_handshakes(&mut self) -> Result<u64, StoreError> {
        self.0.load_handshakes()
    }

    fn save_spent(&mut self, spent: u64) -> Result<(), StoreError> {
        let saved = self.0.save_spent(spent);
        self.saved(saved)
    }

    fn load_spent(&mut self) -> Result<u64, StoreError> {
        self.0.load_spent()
    }

    #[cfg(feature = "key-rotation")]
    fn save_key(&mut self, key: &StoredKey) -> Result<(), StoreError> {
        let saved = self.0.save_key(key);
        self.saved(saved)
    }

    #[cfg(feature = "key-rotation")]
    fn load_key(&mut self) -> Result<Option<StoredKey>, StoreError> {
        self.0.load_key()
    }
}

impl<const W: usize> DeviceStore for Committing<W> {
    fn erased(&self) -> u32 {
        self.0.erased()
    }

    fn erase_ahead(&mut self) -> Result<(), StoreError> {
        block_on(self.0.erase_ahead())
    }
}

#[test]
fn one_or_two_power_cuts_of_asynchronous_flash_lose_nothing() {
    let private = device_kinds(|flash| Box::new(Committing(open(flash, true))), false);
    // Without a ledger nothing is written at the start.
    let keyed = device_kinds(|flash| Box::new(Committing(open(flash, false))), true);
    cut_device_kinds::<WORD>(&[private[0].with_new_keys(), keyed[2]], false);
}

/// Blocking and asynchronous stores of the same pages have the same content, after any number of rounds.
#[test]
fn blocking_store_opens_the_same_pages() {
    let flash = <Torn>::new(2);
    let range = 0..2 * PAGE as u32;
    for round in 1..60_u32 {
        let record = Record { campaign: 9, round, representation: 7, head: &[round as f32, -1.0] };
        let (spent, reserved) = (u64::from(round) * 7, u64::from(round) * 128);
        if round % 2 == 0 {
            let mut store = FlashStore::<_, BYTES>::new(flash.clone(), range.clone()).unwrap();
            assert_eq!(store.load_spent(), Ok(spent - 7));
            assert_eq!(store.load_handshakes(), Ok(reserved - 128));
            store.save_spent(spent).unwrap();
            store.save_handshakes(reserved).unwrap();
            store.save(&record).unwrap();
        } else {
            let mut store = open(flash.clone(), true);
            assert_eq!(store.load_spent(), Ok(spent - 7));
            assert_eq!(store.load_handshakes(), Ok(reserved - 128));
            store.save_spent(spent).unwrap();
            store.save_handshakes(reserved).unwrap();
            store.save(&record).unwrap();
            block_on(store.commit()).unwrap();
        }
        let mut head = [0.0; 2];
        let loaded =
            FlashStore::<_, BYTES>::new(flash.clone(), range.clone()).unwrap().load(&mut head).unwrap();
        assert_eq!(loaded.map(|loaded| loaded.round), Some(round));
        let mut again = [0.0; 2];
        assert_eq!((open(flash.clone(), true).load(&mut again), again), (Ok(loaded), head));
    }
    assert!(flash.erased() > 5, "{}", flash.erased());
}

/// A commit whose future is dropped after any number of polls leaves the old items or the new ones in the flash, and the next
/// commit writes the new ones. After some of the drops the device also loses its power.
#[test]
fn commit_that_is_dropped_is_done_by_the_next_one() {
    let flash = <Torn>::new(2);
    let mut store = open(flash.clone(), true);
    let (mut round, mut drops) = (0, 0);
    for polls in (0..40).cycle().take(4_000) {
        round += 1;
        let record = Record { campaign: 9, round, representation: 7, head: &[round as f32, -1.0] };
        store.save_spent(u64::from(round)).unwrap();
        store.save_handshakes(u64::from(round)).unwrap();
        store.save(&record).unwrap();
        assert!(store.is_dirty());
        let is_done = poll(store.commit(), polls).is_some();
        drops += u32::from(!is_done);
        let mut head = [0.0; 2];
        let mut other = open(<Torn>::with(flash.image()), true);
        let (spent, reserved) = (other.load_spent().unwrap(), other.load_handshakes().unwrap());
        let loaded = other.load(&mut head).unwrap().map_or(0, |loaded| loaded.round);
        for found in [spent, reserved, u64::from(loaded)] {
            let wanted = u64::from(round);
            assert!(found == wanted || !is_done && found + 1 == wanted, "{found} {wanted} {polls}");
        }
        if round % 5 == 0 {
            // The device starts again, and saves what it has lost.
            store = open(flash.clone(), true);
            store.save_spent(u64::from(round)).unwrap();
            store.save_handshakes(u64::from(round)).unwrap();
            store.save(&record).unwrap();
        }
        block_on(store.commit()).unwrap();
        assert!(!store.is_dirty());
        let mut other = open(<Torn>::with(flash.image()), true);
        assert_eq!(other.load(&mut head).unwrap().map(|loaded| loaded.round), Some(round));
        assert_eq!((other.load_spent(), other.load_handshakes()), (Ok(round.into()), Ok(round.into())));
    }
    assert!(drops > 1_000 && flash.erased() > 100, "{drops} {}", flash.erased());
}

/// A second item of a kind is refused until the first is written, so that no driver goes on without commits.
#[test]
fn items_wait_for_a_commit() {
    let mut store = open(<Torn>::new(2), true);
    let record = Record { campaign: 1, round: 1, representation: 1, head: &[1.0, 2.0] };
    assert!(!store.is_dirty());
    store.save(&record).unwrap();
    assert_eq!(store.save(&record), Err(StoreError));
    store.save_handshakes(128).unwrap();
    assert_eq!(store.save_handshakes(256), Err(StoreError));
    // A smaller or equal number changes nothing.
    store.save_handshakes(128).unwrap();
    store.save_spent(7).unwrap();
    assert_eq!(store.save_spent(14), Err(StoreError));
    block_on(store.commit()).unwrap();
    store.save(&record).unwrap();
    // A head of another length is not stored, and not found.
    assert_eq!(store.save(&Record { head: &[1.0], ..record }), Err(StoreError));
    assert_eq!(store.load(&mut [0.0; 3]), Ok(None));
    // A device without a ledger has none.
    assert_eq!(open(<Torn>::new(2), false).load_spent(), Err(StoreError));
    let range = 0..PAGE as u32;
    let refused = block_on(AsyncStore::open(<Torn>::new(2), range, false)).err();
    assert!(matches!(refused, Some(FlashError::Range { .. })), "{refused:?}");
}

/// Flash that cannot be read at the start is read by a later commit.
#[test]
fn flash_that_fails_at_the_start_is_read_later() {
    let flash = <Torn>::new(2);
    let mut store = open(flash.clone(), false);
    store.save_handshakes(128).unwrap();
    block_on(store.commit()).unwrap();
    flash.0.borrow_mut().dead = true;
    let mut store = open(flash.clone(), false);
    assert!(store.is_dirty());
    assert_eq!((store.load_handshakes(), store.load(&mut [0.0; 2])), (Err(StoreError), Err(StoreError)));
    assert_eq!(block_on(store.commit()), Err(StoreError));
    flash.0.borrow_mut().dead = false;
    block_on(store.commit()).unwrap();
    assert_eq!((store.load_handshakes(), store.load(&mut [0.0; 2])), (Ok(128), Ok(None)));
    assert!(!store.is_dirty());
}

/// The documentation of the store says how much RAM it takes besides the flash driver.
#[test]
fn memory_is_as_documented() {
    let keys = if cfg!(feature = "key-rotation") { 90 } else { 0 };
    let driver = size_of::<Torn>();
    for (found, n, h) in [
        (size_of::<AsyncFlashStore<Torn, 44, 2>>(), 44, 2),
        (size_of::<AsyncFlashStore<Torn, 232, 48>>(), 232, 48),
        (size_of::<AsyncFlashStore<Torn, 712, 168>>(), 712, 168),
    ] {
        let documented = n + 4 * h + 200 + keys;
        println!("N = {n}, H = {h}: {} bytes without the driver, documented {documented}", found - driver);
        assert!(found - driver <= documented, "{n} {h}: {}", found - driver);
    }
}

/// Session over an asynchronous link, whose storage is written asynchronously.
type Device = Session<Linear<Heap>, Sliced, AsyncStore<WORD>, ChaCha8Rng>;

/// Runs a round. Returns the session, the server's end, and the number of steps that the driver took. `commits` is false for a driver that
/// does not commit.
fn run_rounds(flash: &Torn, rounds: u32, commits: bool) -> (Device, Line) {
    let problem = create_problem(20, 2, 1);
    let config = session_config(128);
    let server = problem.server(1, gradient_task(), Encoding::F32, config.frame_limit);
    let line = Line::new(server);
    let store = open(flash.clone(), false);
    let model = Linear::new(Heap::new(20, 2, 1));
    let random = ChaCha8Rng::seed_from_u64(1);
    let mut session =
        Session::new(config, Protection::Plaintext, model, problem.samples.clone(), store, random);
    let (mut receive, mut transmit) =
        (vec![0; config.frame_limit.into()], vec![0; config.transmit_capacity()]);
    let now = Cell::new(5_u64);
    let mut driver = Driver::new(Buffers { receive: &mut receive, transmit: &mut transmit });
    let mut io = line.clone();
    for round in 1..=rounds {
        if round > 1 {
            let mut peer = line.0.borrow_mut();
            peer.server = problem.server(round, gradient_task(), Encoding::F32, config.frame_limit);
            let opening = peer.server.opening_messages();
            for (message, body) in opening {
                peer.to_device.extend(encode_frame(&message, &body));
            }
        }
        for _ in 0..5_000 {
            let (mut clock, mut sensor) = (|| Millis::new(now.get()), NoSensor);
            let mut sleep = |until: Millis| {
                let now = &now;
                std::future::poll_fn(move |_| {
                    if now.get() >= until.as_u64() { Poll::Ready(()) } else { Poll::Pending }
                })
            };
            let before = line.0.borrow().server.updates.len();
            let dirty = session.store().is_dirty();
            let step = if commits {
                poll(
                    driver.step_async_with_commit(&mut session, &mut io, &mut clock, &mut sleep, &mut sensor),
                    100,
                )
            } else {
                poll(driver.step_async(&mut session, &mut io, &mut clock, &mut sleep, &mut sensor), 100)
            };
            // No update arrives whose record is not in the flash.
            if commits && line.0.borrow().server.updates.len() > before {
                assert!(!dirty, "an update was sent before its record was written");
                let mut head = [0.0; 2];
                let loaded = open(<Torn>::with(flash.image()), false).load(&mut head).unwrap();
                assert_eq!(loaded.map(|loaded| loaded.round), Some(round));
                assert_eq!(head, session.task().head());
            }
            // Between two steps the firmware may erase the page that is used next.
            block_on(async { session.store_mut().erase_ahead().await }).ok();
            match step {
                Some(Step::Closed(closed)) => now.set(closed.retry_at.as_u64().max(now.get())),
                Some(_) => {}
                None if session.counters().declined + line.0.borrow().server.updates.len() as u32 > 0 => {
                    break;
                }
                None => now.set(now.get() + 10),
            }
        }
    }
    (session, line)
}

#[test]
fn no_frame_leaves_before_its_record_is_written() {
    let flash = <Torn>::new(2);
    let (session, line) = run_rounds(&flash, 1, true);
    assert_eq!(line.0.borrow().server.updates.len(), 1);
    assert_eq!(session.counters().storage, 0);
}

#[test]
fn nothing_is_sent_while_the_flash_fails() {
    let flash = <Torn>::new(2);
    // The third write of the round fails, and everything after it.
    flash.0.borrow_mut().cut = Some((2, Tear::First(2)));
    let (session, line) = run_rounds(&flash, 1, true);
    assert!(line.0.borrow().server.updates.is_empty());
    assert!(session.counters().storage > 1, "{:?}", session.counters());
}

/// Flash that cannot be read when the store is opened is read again at the next link.
#[test]
fn device_whose_flash_failed_at_the_start_takes_part_later() {
    let problem = create_problem(20, 2, 1);
    let config = session_config(128);
    let flash = <Torn>::new(2);
    flash.0.borrow_mut().dead = true;
    let store = open(flash.clone(), false);
    flash.0.borrow_mut().dead = false;
    let model = Linear::new(Heap::new(20, 2, 1));
    let random = ChaCha8Rng::seed_from_u64(1);
    let protection = Protection::Key(fedspan_client::secure::Key::new(0, [1; 32]));
    let mut session = Session::new(config, protection, model, problem.samples.clone(), store, random);
    assert!(session.counters().storage > 0);
    let (mut receive, mut transmit) =
        (vec![0; config.frame_limit.into()], vec![0; config.transmit_capacity()]);
    let mut driver = Driver::new(Buffers { receive: &mut receive, transmit: &mut transmit });
    let sent = Rc::new(Cell::new(0));
    let mut io = Sink(Rc::clone(&sent));
    let (mut clock, mut sensor) = (|| Millis::new(5), NoSensor);
    let mut sleep = |_: Millis| std::future::pending();
    for _ in 0..10 {
        let _ = poll(
            driver.step_async_with_commit(&mut session, &mut io, &mut clock, &mut sleep, &mut sensor),
            100,
        );
    }
    assert!(sent.get() > 0, "the device never sends its hello");
}

/// Link that takes everything and has nothing.
struct Sink(Rc<Cell<usize>>);

impl embedded_io::ErrorType for Sink {
    type Error = embedded_io::ErrorKind;
}

impl embedded_io_async::Read for Sink {
    async fn read(&mut self, _: &mut [u8]) -> Result<usize, Self::Error> {
        std::future::pending().await
    }
}

impl embedded_io_async::Write for Sink {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error> {
        self.0.set(self.0.get() + bytes.len());
        Ok(bytes.len())
    }

    async fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Erasing ahead on new pages writes nothing, so that a ledger can still begin at zero.
#[test]
fn erasing_ahead_leaves_a_new_ledger_at_zero() {
    let flash = <Torn>::new(2);
    let mut store = FlashStore::<_, BYTES>::new(flash.clone(), 0..2 * PAGE as u32).unwrap();
    store.erase_ahead().unwrap();
    assert_eq!((store.load_spent(), flash.erased()), (Ok(0), 0));

    let flash = <Torn>::new(2);
    flash.0.borrow_mut().dead = true;
    let mut store = open(flash.clone(), true);
    flash.0.borrow_mut().dead = false;
    block_on(store.erase_ahead()).unwrap();
    block_on(store.commit()).unwrap();
    assert_eq!(store.load_spent(), Ok(0));
}

#[test]
fn driver_without_commits_gets_no_second_round() {
    let flash = <Torn>::new(2);
    let (session, line) = run_rounds(&flash, 2, false);
    assert!(line.0.borrow().server.updates.is_empty(), "the second round was not declined");
    assert_eq!((session.counters().storage, session.counters().declined), (1, 1));
}

/// Flash of a chip whose pages are erased in eight steps.
#[derive(Clone)]
struct Stepwise {
    flash: Torn,
    /// Page that is being erased, and the number of steps so far.
    erasing: Rc<RefCell<Option<(u32, u32)>>>,
    /// Number of erases that a write had to complete.
    completed: Rc<Cell<u32>>,
}

const STEPS: u32 = 8;

impl embedded_storage::nor_flash::ErrorType for Stepwise {
    type Error = NorFlashErrorKind;
}

impl embedded_storage::nor_flash::ReadNorFlash for Stepwise {
    const READ_SIZE: usize = 1;

    fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorFlashErrorKind> {
        embedded_storage::nor_flash::ReadNorFlash::read(&mut self.flash, offset, bytes)
    }

    fn capacity(&self) -> usize {
        embedded_storage::nor_flash::ReadNorFlash::capacity(&self.flash)
    }
}

impl embedded_storage::nor_flash::NorFlash for Stepwise {
    const WRITE_SIZE: usize = WORD;
    const ERASE_SIZE: usize = PAGE;

    fn erase(&mut self, from: u32, to: u32) -> Result<(), NorFlashErrorKind> {
        *self.erasing.borrow_mut() = None;
        embedded_storage::nor_flash::NorFlash::erase(&mut self.flash, from, to)
    }

    fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorFlashErrorKind> {
        let page = offset - offset % PAGE as u32;
        if self.erasing.borrow().is_some_and(|(erasing, _)| erasing == page) {
            self.completed.set(self.completed.get() + 1);
            self.erase(page, page + PAGE as u32)?;
        }
        embedded_storage::nor_flash::NorFlash::write(&mut self.flash, offset, bytes)
    }
}

impl SplitErase for Stepwise {
    fn erase_step(&mut self, address: u32) -> Result<bool, NorFlashErrorKind> {
        let steps = self.erasing.borrow().map_or(0, |(_, steps)| steps) + 1;
        *self.erasing.borrow_mut() = (steps < STEPS).then_some((address, steps));
        // The page looks erased after the second step, and is so after the last.
        if steps == 2 || steps == STEPS {
            embedded_storage::nor_flash::NorFlash::erase(&mut self.flash, address, address + PAGE as u32)?;
        }
        Ok(steps == STEPS)
    }

    fn erasing(&self) -> Option<u32> {
        self.erasing.borrow().map(|(address, _)| address)
    }
}

/// With erases in steps between rounds, no round erases a page, and an erase that looks complete is completed.
#[test]
fn pages_are_erased_in_steps_between_rounds() {
    let flash = Stepwise { flash: Torn::new(3), erasing: Rc::default(), completed: Rc::default() };
    let mut store = FlashStore::<_, BYTES>::new(flash.clone(), 0..3 * PAGE as u32).unwrap();
    let mut erasures = 0;
    for round in 1..200_u32 {
        let before = flash.flash.erased();
        let record = Record { campaign: 1, round, representation: 1, head: &[round as f32, 0.5] };
        store.save_handshakes(u64::from(round)).unwrap();
        store.save(&record).unwrap();
        assert_eq!(flash.flash.erased(), before, "round {round} had to wait for an erase");
        let mut steps = 1;
        while !store.erase_ahead_step().unwrap() {
            steps += 1;
        }
        assert!(steps == 1 || steps == STEPS, "{steps}");
        erasures += u32::from(steps == STEPS);
        assert_eq!(flash.erasing(), None);
    }
    assert!(erasures > 10, "{erasures}");
    // Rounds that come in the middle of erases complete them.
    for round in 200..400_u32 {
        let record = Record { campaign: 1, round, representation: 1, head: &[round as f32, 0.5] };
        store.save(&record).unwrap();
        if round % 3 == 0 {
            let _ = store.erase_ahead_step().unwrap();
        }
        let mut head = [0.0; 2];
        let mut other =
            FlashStore::<_, BYTES>::new(<Torn>::with(flash.flash.image()), 0..3 * PAGE as u32).unwrap();
        assert_eq!(other.load(&mut head).unwrap().map(|loaded| loaded.round), Some(round));
        assert_eq!(head, [round as f32, 0.5]);
    }
    assert!(flash.completed.get() > 3, "{}", flash.completed.get());
}
