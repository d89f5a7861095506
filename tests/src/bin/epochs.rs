//! Program `epochs` that measures client updates per second on one core, compared with the same work in numpy
//! and with the machine's peak rate.

use std::io::{Error, Result};
use std::process::ExitCode;
use std::time::Instant;

use fedspan_tests::epochs::network::Network;
use fedspan_tests::epochs::numpy::Numpy;
use fedspan_tests::epochs::peak::peak;
use fedspan_tests::epochs::{median, operations};

const USAGE: &str = "usage: epochs [PAIRS [PYTHON]]

Times epochs of a network (784-128-64-10, 80 images, batches of 10, SGD with momentum) in our kernels and in numpy on
one thread, PAIRS times in turns (100). PYTHON (python3) needs numpy; without it only our kernels are timed.
exit: 0 done, 1 training diverged or the two losses differ, 2 wrong arguments";

/// Epochs of one turn; a turn takes tens of milliseconds.
const TURN_EPOCHS: usize = 30;

/// Largest allowed difference of the two losses after one epoch. They differ because sums are in another
/// order.
const LOSS_TOLERANCE: f64 = 1e-5;

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

/// Measures the epochs in turns and prints rates and ratios.
fn compare(pairs: usize, python: &str) -> Result<()> {
    let mut network = Network::default();
    run_epoch(&mut network)?;
    let loss = network.loss();
    let mut numpy = match Numpy::start(python) {
        Ok(numpy) => Some(numpy),
        Err(error) => {
            println!("numpy was not timed: {error}");
            None
        }
    };
    if let Some(numpy) = &numpy {
        println!("loss after one epoch: {loss:.7}, {}: {:.7}", numpy.version, numpy.loss);
        // This form of the condition rejects NaN.
        let agree = (loss - numpy.loss).abs() <= LOSS_TOLERANCE;
        if !agree {
            return Err(Error::other("our loss and numpy's differ by more than the tolerance"));
        }
    }
    // Epochs per second: our kernels, numpy, and our kernels on two threads.
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let mut two_threads = Vec::new();
    let (mut second_network, mut fastest) = (Network::default(), f64::INFINITY);
    for _ in 0..pairs {
        let (seconds, fastest_epoch) = run_turn(&mut network)?;
        ours.push(TURN_EPOCHS as f64 / seconds);
        fastest = fastest_epoch.min(fastest);
        if let Some(numpy) = &mut numpy {
            theirs.push(TURN_EPOCHS as f64 / numpy.epochs(TURN_EPOCHS)?);
        }
        two_threads
            .push((2 * TURN_EPOCHS) as f64 / run_turn_on_two_threads([&mut network, &mut second_network])?);
    }
    let divide = |numerators: &[f64], denominators: &[f64]| {
        numerators.iter().zip(denominators).map(|(a, b)| a / b).collect::<Vec<_>>()
    };
    // The peak is measured over a few undisturbed milliseconds, so it is compared with the fastest epoch.
    let (flops, peak) = (operations() / fastest, peak());
    println!("ours:  {:7.0} updates/s, {:.0} by the fastest epoch", median(ours.clone()), 1.0 / fastest);
    println!("       {:7.1} GFLOP/s in that epoch", flops / 1e9);
    println!("       {:7.2} of the peak without fused multiply-add, {:.1} GFLOP/s", flops / peak, peak / 1e9);
    if numpy.is_some() {
        let ratios = divide(&ours, &theirs);
        let min_ratio = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        println!("numpy: {:7.0} updates/s", median(theirs));
        println!("ratio: {:7.2} median of {pairs} pairs, {min_ratio:.2} at least", median(ratios));
    }
    println!("two threads: {:.2} times one, in the middle", median(divide(&two_threads, &ours)));
    Ok(())
}

/// Runs one epoch; returns its seconds.
fn run_epoch(network: &mut Network) -> Result<f64> {
    let start = Instant::now();
    if network.epoch() { Ok(start.elapsed().as_secs_f64()) } else { Err(Error::other("training diverged")) }
}

/// Runs one turn; returns its time and the time of its fastest epoch, in seconds.
fn run_turn(network: &mut Network) -> Result<(f64, f64)> {
    let (mut sum, mut fastest) = (0.0, f64::INFINITY);
    for _ in 0..TURN_EPOCHS {
        let seconds = run_epoch(network)?;
        (sum, fastest) = (sum + seconds, seconds.min(fastest));
    }
    Ok((sum, fastest))
}

/// Runs a turn on each of two threads at once; returns the time in seconds.
fn run_turn_on_two_threads(networks: [&mut Network; 2]) -> Result<f64> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads = networks.map(|network| scope.spawn(|| run_turn(network)));
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result.map(|_| ()),
            Err(_) => Err(Error::other("a thread failed")),
        })
    })?;
    Ok(start.elapsed().as_secs_f64())
}
