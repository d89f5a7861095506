//! Participation in a campaign over the configured link, until the final head is fitted.

use chacha20::ChaCha8Rng;
use embedded_io::ErrorKind;
use fedspan_client::link::{Buffers, run};
use fedspan_client::session::{About, Config, Protection, ResetReason};
use fedspan_client::{SampleSource, Session, Task};
use rand_core::SeedableRng;
use semihosting::{eprintln, process};

use crate::board::Board;
use crate::link::{Link, Traffic};
use crate::nor::PAGE;
use crate::pipes::Pipes;
use crate::serial::Serial;
use crate::settings::{LinkSettings, Settings};
use crate::storage::Storage;
use crate::{fault, reset_count};

/// Session of an emulated device, with records of at most `N` bytes in pages of `P` bytes.
pub type BoardSession<T, S, const N: usize, const P: usize = PAGE> = Session<T, S, Storage<N, P>, ChaCha8Rng>;

/// Session settings; the device number is filled in by [`session`].
pub const CONFIG: Config = Config { leave_when_fitted: true, ..Config::new(0) };
/// Size of the receive buffer of [`CONFIG`] in bytes.
pub const RECEIVE: usize = CONFIG.frame_limit as usize;
/// Size of the transmit buffer of [`CONFIG`] in bytes.
pub const TRANSMIT: usize = CONFIG.transmit_capacity();

/// Creates the session of a device and restores its stored record.
///
/// The random numbers repeat after each start, since an emulated board has no entropy source. The keys of two
/// handshakes still differ, because handshakes are numbered in flash, as on a board with untrusted entropy.
pub fn session<T: Task, S: SampleSource, const N: usize, const P: usize>(
    settings: &Settings,
    config: Config,
    (device, protection): (u64, Protection),
    task: T,
    source: S,
) -> BoardSession<T, S, N, P> {
    let reset = if reset_count::resets() > 0 { ResetReason::Software } else { ResetReason::PowerOn };
    let about = Some(About { firmware: fedspan_client::firmware!(), reset });
    let config = Config { device, about, ..config };
    let random = ChaCha8Rng::seed_from_u64(device);
    Session::new(config, protection, task, source, Storage::open(settings, device), random)
}

/// Connects as often as necessary and returns the traffic once the final head is fitted. Exits if the server
/// refuses this device, or if a pipe cannot be opened or is closed by the server. Does not return if the
/// settings demand a reset or a power cut before the end. The buffers have the lengths of the session's frame
/// limit.
pub fn take_part<B: Board, T: Task, S: SampleSource, const N: usize, const P: usize>(
    board: &B,
    settings: &Settings,
    session: &mut BoardSession<T, S, N, P>,
    Buffers { receive, transmit }: Buffers<'_>,
) -> Traffic {
    let resets = reset_count::resets();
    let last_message = settings.end_after.or((resets < settings.resets).then_some(resets.saturating_add(1)));
    let mut traffic = Traffic::default();
    loop {
        let mut link = match open::<B>(settings, traffic, last_message) {
            Ok(link) => link,
            Err(error) => fault::exit(fault::WRONG, &format_args!("cannot open the pipes: {error:?}")),
        };
        let buffers = Buffers { receive: &mut *receive, transmit: &mut *transmit };
        let closed = run(session, &mut link, buffers, || board.now(), |until| board.wait(until));
        if link.is_over() {
            if settings.end_after.is_some() {
                process::exit(fault::POWER_GONE);
            }
            reset_count::count_reset();
            board.reset();
        }
        traffic = link.traffic;
        if let Some(refusal) = session.refusal() {
            fault::exit(fault::WRONG, &format_args!("the server refused this device: {refusal}"));
        }
        if session.is_fitted() {
            return traffic;
        }
        // Opening the pipes again would block forever, even if the process that started the emulator has
        // died.
        let link_closed = link.has_ended() || closed.error.is_some();
        if link_closed && matches!(settings.link, LinkSettings::Pipes { .. }) {
            fault::exit(fault::WRONG, &"the other end of the pipes was closed");
        }
        eprintln!("device {}: connection lost, reconnecting", session.config().device);
        while board.now() < closed.retry_at {
            board.wait(closed.retry_at);
        }
    }
}

/// Opens the link named in the settings. `last_message` is the number of the message after which the link fails.
fn open<B: Board>(
    settings: &Settings,
    traffic: Traffic,
    last_message: Option<u32>,
) -> Result<Link<Serial<B::Uart>, Pipes>, ErrorKind> {
    Ok(match &settings.link {
        LinkSettings::Uart => Link::serial(Serial::new(), traffic, last_message),
        LinkSettings::Pipes { receive, transmit } => {
            Link::pipes(Pipes::open(receive, transmit)?, traffic, last_message)
        }
    })
}
