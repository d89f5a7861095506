//! Federated fine-tuning of a BERT encoder with low-rank adapters, by the algorithms LoRA, FFA-LoRA and
//! RoLoRA.
//!
//! ```text
//!  weights ---- Shape, Model (frozen) ---+
//!  vocabulary - Tokenizer                +-- Model::gradient --- Adam: a client's round --- files --- adapter::average
//!  sentences -- Clients ---- Batch ------+                                  ^                              |
//!                                                                           +------------ next round ------+
//! ```
//!
//! The forward and backward passes are implemented without an automatic differentiation library. The weights
//! of the encoder are frozen, so only gradients with respect to activations, adapters and head are computed.
//! Matrix products use the dense kernels of the client crate, every sum has a fixed order, and transcendental
//! functions have the bits of libm. Results therefore have the same bits on every machine and for any number of
//! threads. `ENCODER.md` is the user's guide.

mod adam;
mod adapter;
mod attention;
mod clients;
mod error;
mod error_function;
mod layer;
mod local;
mod low_rank;
mod model;
mod network;
mod pointwise;
mod report;
mod rounds;
mod sentences;
mod shape;
mod speed;
mod tensors;
mod tokenizer;

pub use adam::Adam;
pub use adapter::{Adapter, CLASSES, Part, Target};
pub use clients::{Clients, HeldOut, TestBatch};
pub use error::EncoderError;
pub use local::{ClientRound, LocalTraining};
pub use model::{Dense, Layer, Model, Norm};
pub use network::Batch;
pub use report::{Bytes, Counts, Final, Report, RunInfo, Timing};
pub use rounds::{Campaign, LoraMethod, Row, Score, Trained, score};
pub use sentences::{Corpus, Group, ReadOptions, Sentence};
pub use shape::Shape;
pub use speed::{Speed, measure};
pub use tensors::Tensors;
pub use tokenizer::Tokenizer;
