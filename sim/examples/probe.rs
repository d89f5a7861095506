//! Temporary.
use fedspan_aggregator::linalg::to_f32;
use fedspan_sim::{
    data::{Client, Labels},
    run::{Job, Unwatched},
    scenario::Scenario,
};
use std::io::Write;
fn dump(out: &mut impl Write, kind: &str, i: usize, c: &Client, b: Option<&[f32]>, d: usize, k: usize) {
    for (part, set) in [("train", &c.train), ("test", &c.test)] {
        let Labels::Classes(y) = &set.y else { panic!() };
        for (x, y) in set.x.chunks(d).zip(y) {
            write!(out, "{kind} {i} {part} {y}").unwrap();
            match b {
                Some(b) => {
                    for j in 0..k {
                        let v: f64 =
                            x.iter().enumerate().map(|(r, v)| f64::from(*v) * f64::from(b[r * k + j])).sum();
                        write!(out, " {v}").unwrap();
                    }
                }
                None => {
                    for v in x {
                        write!(out, " {v}").unwrap();
                    }
                }
            }
            writeln!(out).unwrap();
        }
    }
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (file, seed, out) = (&args[1], args[2].parse::<u64>().unwrap(), &args[3]);
    let text = std::fs::read_to_string(file).unwrap();
    let scenario = Scenario::parse(file, &text, &args[4..]).unwrap();
    let job = Job::prepare(&scenario, seed).unwrap();
    let outcome = job.run(&mut Unwatched).unwrap();
    let d = job.dataset.features;
    let b = outcome.representation.map(|b| (to_f32(&b), b.ncols()));
    let mut f = std::io::BufWriter::new(std::fs::File::create(out).unwrap());
    writeln!(f, "outputs {}", job.dataset.outputs).unwrap();
    let k = b.as_ref().map_or(d, |b| b.1);
    let b = b.as_ref().map(|b| b.0.as_slice());
    for (i, c) in job.dataset.clients.iter().enumerate() {
        dump(&mut f, "client", i, c, b, d, k);
    }
    for (i, c) in job.dataset.newcomers.iter().enumerate() {
        dump(&mut f, "new", i, c, b, d, k);
    }
    println!(
        "{:?} {:?}",
        outcome.scores.accuracy,
        outcome.newcomers.iter().map(|c| c.accuracy).collect::<Vec<_>>()
    );
}
