//! Reader of stored settings: builds a configuration from them, with the parser of `fleet.toml`.

use super::super::fleet::{Fleet, read_data};
use super::super::limits::{Limits, NORM, SAMPLES};
use super::text::Settings;
use super::write::{AGGREGATION, CUSTOM, DERIVED};
use fedspan_engine::aggregate::Rule;
use fedspan_engine::config::read_server_stop;
use fedspan_engine::config::{Init, ModelSection, read_algorithm, read_model};
use fedspan_engine::config::{Problem, Source};
use fedspan_engine::config::{read_aggregation, read_bounds};
use fedspan_engine::participation::Policy;

/// Name of the stored settings in error messages.
const NAME: &str = "the stored settings";

impl Fleet {
    /// Returns this configuration with the campaign's settings replaced by `settings`.
    ///
    /// # Errors
    /// [`Problem`] if the settings cannot be read or do not fit this fleet.
    pub(super) fn with_settings(&self, settings: &Settings) -> Result<Self, Problem> {
        let mut settings = settings.clone();
        DERIVED.iter().for_each(|key| drop(settings.take(key)));
        // The custom parts of this configuration are kept: the caller has checked that they equal the stored
        // ones.
        settings.take_all(CUSTOM);
        if matches!(self.rule, Rule::Custom(_)) {
            settings.take_all(AGGREGATION);
        }
        let source = Source::parse(NAME, &settings.to_string(), &[])?;
        let root = source.root();
        let rule = match self.rule {
            rule @ Rule::Custom(_) => rule,
            _ => read_aggregation(&root.section("aggregation")?)?,
        };
        let limits = root.section("limits")?;
        let (norm, samples) = read_bounds(&limits, NORM, SAMPLES, rule)?;
        limits.finish()?;
        let model = read_model(&root.section("model")?)?;
        let (shape, scale) = read_data(&root.section("data")?)?;
        let fleet = Self {
            seed: root.integer("seed", Some(0), 0..=i64::MAX as u64)?,
            shape,
            scale,
            algorithm: read_algorithm(&root.section("algorithm")?, &model)?,
            model: self.complete_model(model),
            rule,
            participation: Policy::read(&root.section("participation")?, None)?,
            stop_change: read_server_stop(&root.section("stop")?)?,
            limits: Limits { norm, samples, ..self.limits },
            ..self.clone()
        };
        root.finish()?;
        let allowed_count = fleet.allowed.as_ref().map_or(usize::MAX, Vec::len);
        let participation = root.section("participation")?;
        let fits = fleet.participation.fits(fleet.expected, allowed_count);
        fits.map_err(|(key, message)| participation.problem(key, message))?;
        Ok(fleet)
    }

    /// Adds the model's settings that are not stored from this configuration: noise of the start, target and
    /// base.
    fn complete_model(&self, stored: ModelSection) -> ModelSection {
        let needs_noise = self.privacy.is_some() || matches!(self.model.init, Init::NoisyPower { .. });
        let init = match stored.init {
            Init::Power { iterations } if needs_noise => Init::NoisyPower { iterations },
            init => init,
        };
        let target = if self.model.k == stored.k { self.model.target } else { stored.target };
        ModelSection { init, target, base: self.model.base.clone(), ..stored }
    }
}
