//! Adapters over the wire: rounds of files, for clients that train elsewhere, such as with PEFT.
//!
//! ```text
//!  HTTP request -> route -> Desk --- judge ---> Course     rounds and who counts: no clock, no files, no sockets
//!                            |
//!                            +---- adopt ----> Shelf       files: received, checked, counted by a rename
//!  closer ---- close -> mean of files (adapter::average) -> commit by a rename -> next round
//! ```
//!
//! Adapters of language models are too long for the devices' protocol, and who trains them has Python: so this is HTTP/1.1
//! with bodies in the safetensors format. Bodies go to files block by block, and files to bodies: memory does not depend on a
//! model's size. `EXCHANGE.md` is for users.

mod answer;
mod course;
mod desk;
mod error;
mod method;
mod receive;
mod roster;
mod route;
mod serve;
mod service;
mod settings;
mod shelf;
mod tally;

pub use course::{Client, Counted, Course, Open, Refusal, Rules, Updates, Verdict};
pub use error::ExchangeError;
pub use method::Method;
pub use roster::{NAME_MAX, Roster, RosterError, TOKEN_MIN};
pub use serve::{Ended, Exchange};
pub use settings::{Limits, Settings};
pub use shelf::Record;
