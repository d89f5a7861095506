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

mod app_state;
mod client_registry;
mod counters;
mod error;
mod handlers;
mod lora_method;
mod response;
mod round_state;
mod round_store;
mod route;
mod server;
mod settings;
mod upload;

pub use client_registry::{ClientRegistry, NAME_MAX, RegistryError, TOKEN_MIN};
pub use error::ServerError;
pub use lora_method::LoraMethod;
pub use round_state::{
    AcceptedUpdates, Admission, ClientIndex, OpenRound, Refusal, RoundRules, RoundState, UpdateSummary,
};
pub use round_store::RoundRecord;
pub use server::{AdapterServer, ServeSummary};
pub use settings::{Limits, Settings};
