//! Benchmarks that are compared with other implementations of the same work.
//!
//! ```text
//!  registry -- a figure: our side, its rivals, their amount of work
//!     |
//!  pairs ----- starts both sides as processes and runs them in turns: ours, rival, ours, rival, ...
//!     |           process - one side, seen from the outside; side - the same, from the inside
//!     v
//!  interval -- ratios of the pairs: median and its interval
//!     |
//!     +------- history - one line per figure, rival and recording; verdict - comparison with the newest
//!     v
//!  page ------ table of BENCHMARKS.md
//! ```
//!
//! A side is a program that prints its [`side::Facts`] in one line, then answers each line with a number of repeats
//! by the seconds that they took and a check value. Sides of one figure must do the same work: their sizes must be
//! equal, and their check values must agree. [`peak`] and [`bandwidth`] measure the machine's limits.

pub mod arguments;
pub mod bandwidth;
pub mod figures;
pub mod history;
pub mod interval;
pub mod machine;
pub mod page;
pub mod pairs;
pub mod peak;
pub mod process;
pub mod registry;
pub mod report;
pub mod side;
pub mod verdict;
