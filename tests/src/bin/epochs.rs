//! `epochs`: client updates a second on one core, beside the same work in numpy and the machine's peak.

use std::io::Result;
use std::process::ExitCode;
use std::time::Instant;

use fedspan_tests::epochs::network::Network;
use fedspan_tests::epochs::numpy::Numpy;
use fedspan_tests::epochs::peak::peak;
use fedspan_tests::epochs::{median, operations};

const USAGE: &str = "usage: epochs [PAIRS [PYTHON]]

Times epochs of a network (784-128-64-10, 80 images, batches of 10, SGD with momentum) in our kernels and in numpy on
one thread, PAIRS times in turns (100). PYTHON (python3) needs numpy; without it only ours is timed.
exit: 0 done, 1 it diverged or the two do not agree, 2 wrong arguments";

/// Epochs of one turn: tens of milliseconds, so that some turns are not disturbed.
const TURN: usize = 30;

/// How far the losses after one epoch may differ: sums in another order.
const AGREEMENT: f64 = 1e-5;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let pairs = arguments.next().map_or(Ok(100), |pairs| pairs.parse::<usize>());
    let python = arguments.next().unwrap_or_else(|| "python3".to_owned());
    let (Ok(pairs), None) = (pairs, arguments.next()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match compare(pairs.max(1), &python) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("epochs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(pairs: usize, python: &str) -> Result<()> {
    let mut network = Network::default();
    turn(&mut network, 1)?;
    let loss = network.loss();
    let numpy = Numpy::start(python);
    let mut numpy = match numpy {
        Ok(numpy) => Some(numpy),
        Err(error) => {
            println!("numpy is not timed: {error}");
            None
        }
    };
    if let Some(numpy) = &numpy {
        println!("loss after one epoch: {loss:.7}, {}: {:.7}", numpy.version, numpy.loss);
        // Not a number is no agreement.
        let agree = (loss - numpy.loss).abs() <= AGREEMENT;
        if !agree {
            return Err(std::io::Error::other("the two do not agree"));
        }
    }
    let (mut ours, mut theirs, mut both) = (Vec::new(), Vec::new(), Vec::new());
    let mut second = Network::default();
    for _ in 0..pairs {
        ours.push(TURN as f64 / turn(&mut network, TURN)?);
        if let Some(numpy) = &mut numpy {
            theirs.push(TURN as f64 / numpy.epochs(TURN)?);
        }
        both.push((2 * TURN) as f64 / on_two_threads([&mut network, &mut second])?);
    }
    let ratios = |over: &[f64], under: &[f64]| over.iter().zip(under).map(|(a, b)| a / b).collect::<Vec<_>>();
    // The peak is one of undisturbed loops, so the part of it is the best turn's.
    let (best, peak) = (greatest(&ours), peak());
    println!("ours:  {:7.0} updates/s, {best:.0} in the best turn", median(ours.clone()));
    println!(
        "       {:7.1} GFLOP/s then, {:.2} of the peak without fused multiply-add ({:.1})",
        best * operations() / 1e9,
        best * operations() / peak,
        peak / 1e9
    );
    if numpy.is_some() {
        let ratios = ratios(&ours, &theirs);
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "numpy: {:7.0} updates/s, {:.0} in the best turn",
            median(theirs.clone()),
            greatest(&theirs)
        );
        println!("ratio: {:7.2} in the middle of {pairs} pairs, {least:.2} at least", median(ratios));
    }
    println!(
        "two threads: {:.2} times one, in the middle; {:.2}, best turn over best turn",
        median(ratios(&both, &ours)),
        greatest(&both) / best
    );
    Ok(())
}

/// Seconds that so many epochs take.
fn turn(network: &mut Network, epochs: usize) -> Result<f64> {
    let start = Instant::now();
    let finite = (0..epochs).all(|_| network.epoch());
    if finite { Ok(start.elapsed().as_secs_f64()) } else { Err(std::io::Error::other("training diverged")) }
}

/// Seconds that so many epochs take on two threads with a client each.
fn on_two_threads(networks: [&mut Network; 2]) -> Result<f64> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads = networks.map(|network| scope.spawn(|| turn(network, TURN)));
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result.map(|_| ()),
            Err(_) => Err(std::io::Error::other("a thread failed")),
        })
    })?;
    Ok(start.elapsed().as_secs_f64())
}

fn greatest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
