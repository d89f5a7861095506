//! A transformer encoder of the BERT family with low-rank adapters, fine-tuned by a fleet: LoRA, FFA-LoRA, RoLoRA.
//!
//! ```text
//!  weights ---- Shape, Model (frozen) ---+
//!  vocabulary - Tokenizer                +-- Model::gradient --- Adam: a client's round --- files --- adapter::average
//!  sentences -- Clients ---- Batch ------+                                  ^                              |
//!                                                                           +------------ next round ------+
//! ```
//!
//! Forward and backward are written out, over frozen weights: only errors of activations and gradients of adapters and head are
//! computed. Products are the client crate's dense kernels, every sum runs in a fixed order, transcendental functions are
//! libm's: results have the same bits on every machine and for any number of threads. `ENCODER.md` is for users.

mod adam;
mod adapter;
mod attention;
mod clients;
mod error;
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
pub use clients::{Clients, Held, Tested};
pub use error::EncoderError;
pub use local::{Local, Visit};
pub use model::{Dense, Layer, Model, Norm};
pub use network::Batch;
pub use report::{About, Bytes, Counts, Final, Report, Timing};
pub use rounds::{Campaign, Method, Row, Score, Trained, score};
pub use sentences::{Corpus, Group, Reading, Sentence};
pub use shape::Shape;
pub use speed::{Speed, measure};
pub use tensors::Tensors;
pub use tokenizer::Tokenizer;
