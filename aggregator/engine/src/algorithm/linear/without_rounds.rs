//! Baselines on linear models that have no federated rounds: local training on each device, and training on
//! all data in one place.

use super::fedrep::server;
use super::{LinearAlgorithm, LinearSettings, LinearStart, Uploads};
use crate::algorithm::Algorithm;
use crate::reader::{Problem, Section};

/// Settings of local training without communication. The server side is the same as for FedRep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalOnlySettings;

impl LinearAlgorithm for LocalOnlySettings {
    const NAME: &'static str = "local-only";
    const SUMMARY: &'static str = "each client on its own samples, no communication";
    const IS_FEDERATED: bool = false;

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn uploads(&self, _settings: &LinearSettings) -> Uploads {
        Uploads::Nothing
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        server(start)
    }
}

/// Settings of least squares on all data in one place. The server side is the same as for FedRep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PooledSettings;

impl LinearAlgorithm for PooledSettings {
    const NAME: &'static str = "pooled";
    const SUMMARY: &'static str = "least squares on all clients' samples in one place, no federation";
    const IS_FEDERATED: bool = false;

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn uploads(&self, _settings: &LinearSettings) -> Uploads {
        Uploads::Nothing
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        server(start)
    }
}
