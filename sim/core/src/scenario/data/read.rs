//! Readers of the sections `[data]` and `[split]`, one for each kind of data.

use fedspan_engine::config::{Problem, Section};

use super::{DataSection, PoolSource, PooledSection, TableSection};
use crate::data::eigenspace::LARGEST_FEATURES;
use crate::data::idx::Bundled;
use crate::data::low_rank::LowRankRegression;
use crate::data::sizes::Sizes;
use crate::data::spiked_covariance::SpikedCovariance;
use crate::data::stochastic_block_model::StochasticBlockModel;
use crate::data::synthetic::{HeadNorm, LinearRegression};
use crate::data::watch::windows::DECIMATIONS;
use crate::data::watch::{self, Validation, WatchSettings};

/// Kinds of data without a section `[split]`, since their test samples are generated.
const SYNTHETIC_KINDS: [&str; 4] =
    ["linear-regression", "low-rank-regression", "spiked-covariance", "stochastic-block-model"];

/// Function that reads the sections `[data]` and `[split]` for one kind of data.
type Reader = fn(&Section<'_>, &Section<'_>) -> Result<DataSection, Problem>;

/// Reads the sections `[data]` and `[split]`.
///
/// # Errors
/// [`Problem`] for the first error.
pub fn read_data(section: &Section<'_>, split: &Section<'_>) -> Result<DataSection, Problem> {
    let kinds: [(&str, Reader); 12] = [
        ("linear-regression", |section, _| read_linear(section)),
        ("low-rank-regression", |section, _| read_low_rank(section)),
        ("spiked-covariance", |section, _| read_spiked(section)),
        ("stochastic-block-model", |section, _| read_blocks(section)),
        ("npz", |section, split| TableSection::read_npz(section, split).map(DataSection::Table)),
        ("csv", |section, split| TableSection::read_csv(section, split).map(DataSection::Table)),
        ("watch-imu", read_watch),
        ("digits", |section, split| read_pooled(PoolSource::Bundled(Bundled::Digits), section, split)),
        ("mnist5k", |section, split| read_pooled(PoolSource::Bundled(Bundled::Mnist5k), section, split)),
        ("idx", |section, split| read_pooled(PoolSource::read_idx(section)?, section, split)),
        ("cifar", |section, split| read_pooled(PoolSource::read_cifar(section)?, section, split)),
        ("leaf", |section, split| read_pooled(PoolSource::read_leaf(section)?, section, split)),
    ];
    let (keyword, read) =
        section.choice("kind", None, &kinds.map(|(keyword, read)| (keyword, (keyword, read))))?;
    let data = read(section, split)?;
    section.finish()?;
    if let Some(key) = split.first_key().filter(|_| SYNTHETIC_KINDS.contains(&keyword)) {
        let kinds_with_split: Vec<&str> = kinds
            .iter()
            .map(|(keyword, _)| *keyword)
            .filter(|keyword| !SYNTHETIC_KINDS.contains(keyword))
            .collect();
        let message = format!(
            "kind = {keyword:?} has no [split]: leave the section out; kinds that have one: {kinds_with_split:?}"
        );
        return Err(split.problem(&key, message));
    }
    split.finish()?;
    Ok(data)
}

fn read_pooled(
    source: PoolSource,
    section: &Section<'_>,
    split: &Section<'_>,
) -> Result<DataSection, Problem> {
    PooledSection::read(source, section, split).map(DataSection::Pooled)
}

/// Reads the keys of `kind = "linear-regression"`.
fn read_linear(section: &Section<'_>) -> Result<DataSection, Problem> {
    let norms = [("sqrt-k", HeadNorm::SqrtK), ("gaussian", HeadNorm::Gaussian), ("qr", HeadNorm::Qr)];
    let d = section.size("d", None, 1..=65_535)?;
    let k = section.size("k", None, 1..=d)?;
    let minority = section.number("minority", Some(0.0), 0.0..=1.0)?;
    if minority > 0.0 && k == 1 {
        let message =
            format!("found {minority}, but with data.k = 1 all clients share one direction; allowed: 0");
        return Err(section.problem("minority", message));
    }
    Ok(DataSection::Linear(LinearRegression {
        clients: section.size("clients", None, 1..=1_000_000)?,
        d,
        k,
        minority,
        minority_strength: section.number("minority_strength", Some(1.0), 1e-9..=1e9)?,
        samples: section.size("samples", None, 0..=1_000_000)?,
        sizes: Sizes::read(section)?,
        fresh: section.boolean("fresh", false)?,
        feature_std: section.number("feature_std", Some(1.0), 1e-9..=1e9)?,
        blind_clients: section.number("blind_clients", Some(0.0), 0.0..=1.0)?,
        noise_std: section.number("noise_std", Some(0.0), 0.0..=f64::MAX)?,
        head_norm: section.choice("head_norm", Some("sqrt-k"), &norms)?,
        new_clients: section.size("new_clients", Some(0), 0..=1_000_000)?,
        new_samples: section.size("new_samples", Some(10), 0..=1_000_000)?,
        test_samples: section.size("test_samples", Some(0), 0..=1_000_000)?,
    }))
}

/// Reads the keys of `kind = "low-rank-regression"`.
fn read_low_rank(section: &Section<'_>) -> Result<DataSection, Problem> {
    let d = section.size("d", None, 1..=65_535)?;
    let outputs = section.size("outputs", Some(d), 1..=65_535)?;
    Ok(DataSection::LowRank(LowRankRegression {
        clients: section.size("clients", None, 1..=1_000_000)?,
        d,
        outputs,
        rank: section.size("rank", Some(1), 1..=d.min(outputs))?,
        samples: section.size("samples", None, 0..=1_000_000)?,
        fresh: section.boolean("fresh", false)?,
        strength: section.number("strength", Some(1.0), 1e-9..=1e9)?,
        heterogeneity: section.number("heterogeneity", Some(0.0), 0.0..=1e9)?,
        noise_std: section.number("noise_std", Some(0.0), 0.0..=1e9)?,
        test_samples: section.size("test_samples", Some(0), 0..=1_000_000)?,
    }))
}

/// Reads the keys of `kind = "spiked-covariance"`.
fn read_spiked(section: &Section<'_>) -> Result<DataSection, Problem> {
    let d = section.size("d", None, 1..=LARGEST_FEATURES)?;
    Ok(DataSection::Spiked(SpikedCovariance {
        clients: section.size("clients", None, 1..=1_000_000)?,
        d,
        k: section.size("k", None, 1..=d)?,
        samples: section.size("samples", None, 1..=1_000_000)?,
        noise_std: section.number("noise_std", Some(0.6), 0.0..=1e6)?,
    }))
}

fn read_blocks(section: &Section<'_>) -> Result<DataSection, Problem> {
    let d = section.size("d", None, 1..=LARGEST_FEATURES)?;
    Ok(DataSection::Blocks(StochasticBlockModel {
        clients: section.size("clients", None, 1..=1_000_000)?,
        d,
        k: section.size("k", None, 1..=d)?,
    }))
}

/// Reads the keys of the smartwatch recordings.
fn read_watch(section: &Section<'_>, split: &Section<'_>) -> Result<DataSection, Problem> {
    let programmes = section.boolean("programmes", false)?;
    let head_samples_per_class = section.size("head_samples_per_class", Some(0), 0..=1000)?;
    split.choice("by", Some("time"), &[("time", ())])?;
    let holdout_users = split.size("holdout_users", Some(0), 0..=watch::PEOPLE - 1)?;
    let folds = watch::PEOPLE.checked_div(holdout_users).unwrap_or(1);
    // Number of groups of the same size among the people who remain when one group is held out.
    let inner = (watch::PEOPLE - holdout_users).checked_div(holdout_users).unwrap_or(1).max(1);
    let fraction = split.number("validation", Some(0.0), 0.0..=0.9)?;
    let validation_fold = split.size("validation_fold", Some(0), 0..=inner - 1)?;
    if fraction == 0.0 && validation_fold > 0 {
        let message = format!(
            "found {validation_fold}, but there is no validation: set split.validation, or leave it out"
        );
        return Err(split.problem("validation_fold", message));
    }
    let settings = WatchSettings {
        test: split.number("test", Some(0.5), 0.05..=0.95)?,
        gap: split.size("gap", Some(3), 1..=100)?,
        holdout_users,
        fold: split.size("fold", Some(0), 0..=folds - 1)?,
        labels_per_class: split.size("labels_per_class", Some(1), 1..=1000)?,
        programmes,
        head_samples_per_class,
        validation: (fraction > 0.0).then_some(Validation { fraction, fold: validation_fold }),
    };
    let inputs = [("features", false), ("windows", true)];
    if !section.choice("inputs", Some("features"), &inputs)? {
        return Ok(DataSection::Watch(settings));
    }
    let decimation = section.size("decimation", Some(1), 1..=10)?;
    if !DECIMATIONS.contains(&decimation) {
        let message = format!("found {decimation}, allowed: what divides a window, {DECIMATIONS:?}");
        return Err(section.problem("decimation", message));
    }
    Ok(DataSection::WatchWindows(settings, decimation))
}
