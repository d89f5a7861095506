//! Section `[aggregation]` of configuration files: reads the aggregation rule and checks it against the
//! algorithm.

use super::algorithm::{AlgorithmSection, Method};
use crate::aggregate::{Rule, SampleCap};
use crate::algorithm::Uploads;
use crate::reader::Problem;
use crate::reader::Section;
use crate::types::Weighting;
use fedspan_protocol::tensor::Encoding;

/// Reads the section `[aggregation]`.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_aggregation(section: &Section<'_>) -> Result<Rule, Problem> {
    let names: Vec<(&str, &str)> = Rule::NAMES.iter().map(|(name, _)| (*name, *name)).collect();
    let rule = Rule::read(section.choice("rule", Some("mean"), &names)?, section)?;
    section.finish()?;
    Ok(rule)
}

/// Checks a rule against the uploads of the algorithm; `section` is `[aggregation]`.
///
/// # Errors
/// [`Problem`] with the allowed rules, if this rule cannot combine the uploads.
pub fn check_aggregation(
    rule: Rule,
    algorithm: &AlgorithmSection,
    section: &Section<'_>,
) -> Result<(), Problem> {
    let name = algorithm.name();
    let vector_rules: Vec<String> = Rule::names_for_vectors().map(|name| format!("{name:?}")).collect();
    let vector_rules = vector_rules.join(", ");
    let mismatch = |reason: String| {
        let message = format!("found {:?}, {reason}", rule.as_str());
        Err(section.problem("rule", message))
    };
    if !algorithm.is_federated() && rule != Rule::MEAN {
        return mismatch(format!("but {name:?} uploads nothing; allowed: \"mean\""));
    }
    let method = match algorithm.method {
        Method::Network(network) => {
            if network.method.needs_mean() && rule != Rule::MEAN {
                return mismatch(format!("but {name:?} is a mean of products; allowed: \"mean\""));
            }
            if rule.is_for_subspaces() {
                return mismatch(format!(
                    "a rule for subspaces, but networks upload layers; allowed: {vector_rules}"
                ));
            }
            return Ok(());
        }
        Method::Linear(method) => method,
    };
    if algorithm.upload == Encoding::I8TopK && algorithm.is_federated() && !matches!(rule, Rule::Mean(_)) {
        return mismatch(
            "but with upload = \"i8-top-k\" three quarters of each upload are zero, which this rule would take for values; \
             allowed: \"mean\""
                .to_owned(),
        );
    }
    if !rule.is_for_subspaces() {
        return Ok(());
    }
    match method.uploads(&algorithm.linear_settings()) {
        Uploads::Bases | Uploads::Nothing => Ok(()),
        Uploads::Vectors(upload_kind) => mismatch(format!(
            "a rule for subspaces, but {name:?} uploads {upload_kind}; allowed: {vector_rules}"
        )),
        Uploads::Gradients => mismatch(format!(
            "a rule for subspaces, but {name:?} with send = \"gradient\" uploads gradients; allowed: {vector_rules} (or send = \
             \"representation\")"
        )),
    }
}

/// Checks that a rule does not reject the noise that devices add under `[privacy]`; `section` is
/// `[aggregation]`.
///
/// # Errors
/// [`Problem`] with the remedy.
pub fn check_private_rule(
    rule: Rule,
    algorithm: &AlgorithmSection,
    section: &Section<'_>,
) -> Result<(), Problem> {
    let uploads = algorithm.linear().map(|method| method.uploads(&algorithm.linear_settings()));
    if rule.rank_tolerance() >= 1.0 || uploads != Some(Uploads::Gradients) {
        return Ok(());
    }
    let message = format!(
        "found {}, but with [privacy] devices send gradients with noise, whose rank is full; allowed: 1",
        rule.rank_tolerance()
    );
    Err(section.problem("rank_tolerance", message))
}

/// Warning for the operator of a server about the weaknesses of this rule, if any.
#[must_use]
pub fn rule_advice(rule: Rule, algorithm: &AlgorithmSection) -> Option<String> {
    let uploads = algorithm.linear().map(|method| method.uploads(&algorithm.linear_settings()));
    match (rule, algorithm.weighting) {
        (Rule::Mean(_), _) if uploads == Some(Uploads::Bases) => Some(format!(
            "aggregation.rule is \"mean\": one bad device can steer the model; {:?} withstands more with k <= 2, but can be worse \
             with larger k or few samples (aggregator/POISON.md)",
            Rule::PROJECTOR_GEOMETRIC_MEDIAN.as_str()
        )),
        (Rule::Mean(_), _) => Some(format!(
            "aggregation.rule is \"mean\": one bad device can steer the model; {:?} withstands a fifth of attackers in fleets \
             that are large enough (aggregator/POISON.md)",
            Rule::SPECTRAL_FILTER.as_str()
        )),
        (Rule::GeometricMedian(_), Weighting::Uniform) => Some(format!(
            "aggregation.rule is \"geometric-median\", which can be worse than the mean with k >= 4 or few samples; {:?} \
             withstands more (aggregator/POISON.md)",
            Rule::SPECTRAL_FILTER.as_str()
        )),
        (_, Weighting::Samples) => Some(format!(
            "algorithm.weighting is \"samples\": a fifth of the devices can have a quarter of the weight by declaring \
             many, which {:?} does not always withstand; \"uniform\" is safer (aggregator/POISON.md)",
            rule.as_str()
        )),
        _ => None,
    }
}

/// Reads the bounds of an update: the largest Frobenius norm, and the cap of the declared sample count under
/// `rule`. `norm` and `samples` are the default values.
///
/// # Errors
/// [`Problem`] for the first mistake.
pub fn read_bounds(
    section: &Section<'_>,
    norm: f64,
    samples: u32,
    rule: Rule,
) -> Result<(f32, SampleCap), Problem> {
    let max_samples = section.integer("samples", Some(samples.into()), 1..=u32::MAX.into())?;
    #[allow(clippy::cast_possible_truncation, reason = "a bound")]
    let norm = section.number("norm", Some(norm), f64::MIN_POSITIVE..=4_194_304.0)? as f32;
    Ok((
        norm,
        SampleCap {
            max_samples: u32::try_from(max_samples).unwrap_or(u32::MAX),
            relative: rule.needs_all_updates(),
        },
    ))
}
