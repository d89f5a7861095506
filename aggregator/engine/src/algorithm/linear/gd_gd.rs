//! GD-GD: FedRep with one gradient step on the head (Collins et al. 2021, section 6).

use fedspan_protocol::message::HeadSolve;

use super::fedrep::{server, uploads};
use super::{LinearAlgorithm, LinearSettings, LinearStart, Noise, Uploads};
use crate::algorithm::Algorithm;
use crate::reader::{Problem, Section};

/// Settings of GD-GD: FedRep with one gradient step on the head instead of the exact solution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GdGdSettings;

impl LinearAlgorithm for GdGdSettings {
    const NAME: &'static str = "gd-gd";
    const SUMMARY: &'static str = "FedRep with one gradient step on the head instead of the exact solution";
    const NOISE: Noise = Noise::Gradients;
    const SUPPORTS_I16: bool = true;
    const DEFAULT_HEAD: &'static str = "gradient";

    fn read(_section: &Section<'_>) -> Result<Self, Problem> {
        Ok(Self)
    }

    fn check(&self, settings: &LinearSettings) -> Result<(), (&'static str, String)> {
        if matches!(settings.head, HeadSolve::Gradient { .. }) {
            return Ok(());
        }
        let message = "found \"least-squares\", which is \"fedrep\"; gd-gd takes gradient steps";
        Err(("head", message.to_owned()))
    }

    fn uploads(&self, settings: &LinearSettings) -> Uploads {
        uploads(settings)
    }

    fn server(&self, start: LinearStart<'_>) -> Box<dyn Algorithm> {
        server(start)
    }
}
