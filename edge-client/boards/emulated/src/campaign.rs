//! Takes part in a campaign over the link that the settings name, until the final head is fitted.

use embedded_io::ErrorKind;
use fedspan_client::link::{Buffers, run};
use fedspan_client::session::Config;
use fedspan_client::store::NoStore;
use fedspan_client::{SampleSource, Session, Task};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use semihosting::eprintln;

use crate::board::Board;
use crate::fault;
use crate::link::{Link, Traffic};
use crate::pipes::Pipes;
use crate::settings::{LinkSettings, Settings};

/// The device's session. An emulated board has no flash to write to.
pub type BoardSession<T, S> = Session<T, S, NoStore, ChaCha8Rng>;

const CONFIG: Config = Config { leave_when_fitted: true, ..Config::new(0) };
const RECEIVE: usize = CONFIG.frame_limit as usize;
const TRANSMIT: usize = CONFIG.transmit_capacity();

/// Makes a session. Its random numbers spread reconnects in time and need not be secret.
pub fn session<T: Task, S: SampleSource>(settings: &Settings, task: T, source: S) -> BoardSession<T, S> {
    let config = Config { device: settings.device, ..CONFIG };
    Session::new(config, task, source, NoStore, ChaCha8Rng::seed_from_u64(settings.device))
}

/// Connects, as often as it takes, and returns when the final head is fitted. Exits if the server refuses
/// this device, or a pipe cannot be opened.
pub fn take_part<B: Board, T: Task, S: SampleSource>(
    board: &B,
    settings: &Settings,
    session: &mut BoardSession<T, S>,
) -> Traffic {
    let (mut receive, mut transmit) = ([0; RECEIVE], [0; TRANSMIT]);
    let mut traffic = Traffic::default();
    loop {
        let mut link = match open(board, settings, traffic) {
            Ok(link) => link,
            Err(error) => fault::exit(fault::WRONG, &format_args!("cannot open the pipes: {error:?}")),
        };
        let buffers = Buffers { receive: &mut receive, transmit: &mut transmit };
        let closed = run(session, &mut link, buffers, || board.now(), |until| board.wait(until));
        traffic = link.traffic;
        if let Some(refusal) = session.refusal() {
            fault::exit(fault::WRONG, &format_args!("the server refused this device: {refusal}"));
        }
        if session.is_fitted() {
            return traffic;
        }
        eprintln!("device {}: connection lost, reconnecting", settings.device);
        while board.now() < closed.retry_at {
            board.wait(closed.retry_at);
        }
    }
}

fn open<B: Board>(
    board: &B,
    settings: &Settings,
    traffic: Traffic,
) -> Result<Link<B::Serial, Pipes>, ErrorKind> {
    Ok(match &settings.link {
        LinkSettings::Uart => Link::serial(board.serial(), traffic),
        LinkSettings::Pipes { receive, transmit } => Link::pipes(Pipes::open(receive, transmit)?, traffic),
    })
}
