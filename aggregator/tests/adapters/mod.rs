//! Files of adapters: laws of the mean, what is refused, what the command says; rounds of them over HTTP.

mod bad;
mod buffers;
mod command;
mod experts;
mod files;
mod headers;
mod laws;
mod live;
mod meaning;
