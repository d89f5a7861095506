//! x
use fedspan_sim::{run, scenario::Scenario};
fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let changes: Vec<String> = std::env::args().skip(2).collect();
    let s = match Scenario::parse(&name, Scenario::built_in(&name).unwrap_or(""), &changes) {
        Ok(s) => s,
        Err(e) => {
            println!("{e}");
            return;
        }
    };
    match run::run(&s, s.seed, &mut run::Unwatched) {
        Ok(o) => {
            for r in o.rounds.iter().filter(|r| r.round % 20 == 0) {
                println!("{} {:?} up {} down {} t {}", r.round, r.scores, r.bytes_up, r.bytes_down, r.time);
            }
            println!("{:?}", o.scores);
            println!("new {:?}", fedspan_sim::evaluate::average(&o.newcomers));
            println!("{:?} {:?} {:?}", o.counters, o.bytes, o.fit_bytes);
            println!("{:.3} s, {:.0} updates/s", o.seconds, o.counters.counted as f64 / o.seconds);
        }
        Err(e) => println!("error {e}"),
    }
}
