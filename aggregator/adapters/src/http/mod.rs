//! HTTP server for federated rounds of adapter files, for clients that train elsewhere, for example with
//! PEFT.
//!
//! ```text
//!  HTTP request -> Route -> AppState --- admit --------------> RoundState (state machine)
//!                              |
//!                              +-------- validate_and_merge --> RoundStore (files)
//!  close_rounds --- close -> files::average -> commit by a rename -> next round
//! ```
//!
//! Adapters of language models are too large for the device protocol, and the clients that train them run
//! Python. This server therefore uses HTTP/1.1 with bodies in the safetensors format. Bodies are copied
//! between sockets and files block by block, so the memory does not grow with the model. `EXCHANGE.md` is the
//! user's guide.

mod app_state;
mod client_registry;
mod counters;
mod disk;
mod error;
mod exchange_check;
mod handlers;
mod host_check;
mod lora_method;
mod response;
mod round_record;
mod round_state;
mod round_store;
mod route;
mod server;
mod settings;
mod stored_state;
mod token_brake;
mod update_file;
mod upload;

pub use client_registry::{ClientIndex, ClientRegistry, NAME_MAX, RegistryError, TOKEN_MIN};
pub use error::ServerError;
pub use exchange_check::{ExchangeReport, check_exchange};
pub use host_check::HostNames;
pub use lora_method::LoraMethod;
pub use round_record::RoundRecord;
pub use round_state::{
    AcceptedUpdates, Admission, OpenRound, Refusal, RoundRules, RoundState, UpdateSummary,
};
pub use server::{AdapterServer, ServeSummary};
pub use settings::{Limits, Settings};
