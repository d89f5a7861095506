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
mod error;
mod layer;
mod low_rank;
mod model;
mod network;
mod pointwise;
mod shape;
mod tensors;
mod tokenizer;

pub use adam::Adam;
pub use adapter::{Adapter, CLASSES, Part, Target};
pub use error::EncoderError;
pub use model::{Dense, Layer, Model, Norm};
pub use network::{Batch, loss};
pub use shape::Shape;
pub use tensors::Tensors;
pub use tokenizer::Tokenizer;
