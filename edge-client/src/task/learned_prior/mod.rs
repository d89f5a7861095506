//! Linear models whose head acts on all features and has a prior that the fleet has learned: [`LearnedPrior`], with its functions
//! for local use. Its rounds are in `rounds`, its computations in `posterior`.

mod draws;
mod posterior;
mod rounds;

use fedspan_protocol::limits::PRIORS_MAX;
use fedspan_protocol::message::{DeclineReason, RoundId, Task as Wire};

#[cfg(feature = "network")]
pub(super) use rounds::TASKS;

use super::Usage;
use crate::error::{NotReady, ShapeMismatch, check_finite, check_length, check_prediction};
use crate::kernel::posterior::packed_len;
use crate::kernel::vector::squares;
use crate::memory::Shape;
use crate::source::SampleSource;

/// Linear model `y = V^T x` whose head V (d x C) is the posterior mean under a prior that the fleet has learned
/// (`sim/PERSONAL.md`): each column of V is drawn from a normal distribution with mean M (or 0) and covariance
/// `B diag(a) B^T + f T`, where B is d x k, and T is the identity or the inverse of the fleet's second moments (the *metric*). Samples
/// have noise of one variance. The posterior of a linear mixed-effects model is that of Laird and Ware (1982, Biometrics 38).
///
/// The caller owns the memory `V` of [`learned_prior_values`] values, such as an array.
///
/// ```
/// use fedspan_client::memory::Shape;
/// use fedspan_client::task::{LearnedPrior, learned_prior_values};
/// use fedspan_client::Task;
///
/// const SHAPE: Shape = Shape { features: 20, width: 2, outputs: 1 };
/// const VALUES: usize = learned_prior_values(SHAPE, false);
/// let model = LearnedPrior::new(SHAPE, [0.0; VALUES])?;
/// assert!(model.capabilities().tensors >= 3);
/// # Ok::<(), fedspan_client::ShapeMismatch>(())
/// ```
///
/// All samples are read in one to three passes a round, and for each prior of a
/// [`PriorEvidence`](fedspan_protocol::message::Task::PriorEvidence) in one pass. A pass takes about `d^2 / 2 + d C` multiplications
/// a sample, and the factor `d^3 / 6`. Rounds have no pauses, and samples cannot be streamed.
#[derive(Clone, Debug)]
pub struct LearnedPrior<V> {
    values: V,
    state: State,
}

/// State of a model in addition to its buffers.
#[derive(Clone, Copy, Debug)]
struct State {
    shape: Shape,
    /// True if the memory has room for the metric.
    has_metric_buffer: bool,
    /// Task of the open round.
    task: Option<Wire>,
    /// True if the open round sends the mean.
    receives_mean: bool,
    /// True if the open round sends the metric.
    receives_metric: bool,
    /// Hash of the prior in memory; `None` while it is invalid.
    prior: Option<u32>,
    /// Hash of the prior that the head was fitted under; `None` if the head is not fitted.
    head: Option<u32>,
    /// Variance of the noise, if the factor in memory is that of the head; otherwise `None`.
    noise: Option<f32>,
    /// Numbers of used and skipped samples of the last round.
    usage: Usage,
    /// Number of values of [`Buffers::scores`] to send.
    scored: usize,
}

/// Number of values of [`Buffers::scores`].
const SCORES: usize = 3 * PRIORS_MAX + 2;

/// Number of buffers.
const BUFFERS: usize = 12;

/// Returns the lengths of the buffers, in the order of [`Buffers`].
const fn lengths(shape: Shape, has_metric: bool) -> [usize; BUFFERS] {
    let Shape { features: d, width: k, outputs: c } = shape;
    let packed = packed_len(d);
    [
        packed,
        d.saturating_mul(k),
        d.saturating_mul(c),
        k.saturating_add(1),
        if has_metric { packed } else { 0 },
        d.saturating_mul(c),
        d,
        c,
        SCORES,
        draws::COUNTERS.saturating_mul(c),
        d.saturating_mul(c),
        d.saturating_mul(k),
    ]
}

/// Returns the number of values that a [`LearnedPrior`] needs for a shape; saturating. `has_metric` is whether it has room for the
/// fleet's second moments, as the metric of the prior.
#[must_use]
pub const fn learned_prior_values(shape: Shape, has_metric: bool) -> usize {
    let lengths = lengths(shape, has_metric);
    let (mut sum, mut index) = (0usize, 0);
    while index < BUFFERS {
        sum = sum.saturating_add(lengths[index]);
        index += 1;
    }
    sum
}

/// Buffers of the model.
struct Buffers<'a> {
    /// Precision of the posterior in units of the noise's, then its Cholesky factor; packed.
    precision: &'a mut [f32],
    /// Representation, d x k; then the head moments.
    basis: &'a mut [f32],
    /// Prior mean, d x C.
    mean: &'a mut [f32],
    /// Prior variances in units of the noise's, k + 1 values.
    variances: &'a mut [f32],
    /// Second moments of the fleet, packed; empty without room for them.
    metric: &'a mut [f32],
    /// Head, d x C; during a round the right-hand side, then the head's deviation from the mean.
    head: &'a mut [f32],
    /// One sample, d values.
    x: &'a mut [f32],
    /// One target, C values.
    y: &'a mut [f32],
    /// Sums and evidence to send.
    scores: &'a mut [f32],
    /// Counters of each class.
    counters: &'a mut [f32],
    /// Derivative of a newcomer's error by the head, d x C.
    gradient: &'a mut [f32],
    /// Sum of its products with the representation, d x k.
    products: &'a mut [f32],
}

/// Splits the memory into its buffers.
fn split(values: &mut [f32], shape: Shape, has_metric: bool) -> Buffers<'_> {
    let mut rest = values;
    let [precision, basis, mean, variances, metric, head, x, y, scores, counters, gradient, products] =
        lengths(shape, has_metric).map(|length| {
            let (taken, after) = core::mem::take(&mut rest).split_at_mut_checked(length).unwrap_or_default();
            rest = after;
            taken
        });
    Buffers { precision, basis, mean, variances, metric, head, x, y, scores, counters, gradient, products }
}

impl<V: AsRef<[f32]> + AsMut<[f32]>> LearnedPrior<V> {
    /// Creates a model without a prior and a head. If there are enough values for it, the prior may have the metric of the fleet's
    /// second moments.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if there are fewer values than [`learned_prior_values`] for the shape without a metric.
    pub fn new(shape: Shape, values: V) -> Result<Self, ShapeMismatch> {
        let got = values.as_ref().len();
        let expected = learned_prior_values(shape, false);
        if got < expected {
            return Err(ShapeMismatch { expected, got });
        }
        let state = State {
            shape,
            has_metric_buffer: got >= learned_prior_values(shape, true),
            task: None,
            receives_mean: false,
            receives_metric: false,
            prior: None,
            head: None,
            noise: None,
            usage: Usage { samples: 0, skipped: 0 },
            scored: 0,
        };
        let mut model = Self { values, state };
        model.buffers().head.fill(0.0);
        Ok(model)
    }

    /// Returns the sizes of the model.
    pub fn shape(&self) -> Shape {
        self.state.shape
    }

    /// Returns the numbers of used and skipped samples of the last round.
    pub fn usage(&self) -> Usage {
        self.state.usage
    }

    /// Returns the buffers.
    fn buffers(&mut self) -> Buffers<'_> {
        split(self.values.as_mut(), self.state.shape, self.state.has_metric_buffer)
    }

    /// Returns one buffer, by its number in the order of [`Buffers`].
    fn buffer(&self, number: usize) -> &[f32] {
        let lengths = lengths(self.state.shape, self.state.has_metric_buffer);
        let first: usize = lengths.iter().take(number).sum();
        let length = lengths.get(number).copied().unwrap_or(0);
        self.values.as_ref().get(first..first + length).unwrap_or_default()
    }

    /// Returns the number of values of a prior in one tensor ([`Role::HeadPrior`](fedspan_protocol::tensor::Role::HeadPrior)): the
    /// representation, the mean and the variances, and the metric if `has_metric` is set.
    #[cfg(feature = "network")]
    pub(super) fn prior_len(&self, has_metric: bool) -> usize {
        let lengths = lengths(self.state.shape, has_metric);
        lengths.iter().take(METRIC + 1).skip(BASIS).fold(0, |sum, length| sum.saturating_add(*length))
    }

    /// Returns the buffer of a prior in one tensor, which invalidates the prior until `verify`.
    #[cfg(feature = "network")]
    pub(super) fn prior_mut(&mut self) -> Option<&mut [f32]> {
        self.state.prior = None;
        let first = lengths(self.state.shape, false).first().copied()?;
        let len = self.prior_len(self.state.receives_metric);
        self.values.as_mut().get_mut(first..first.checked_add(len)?)
    }

    /// Returns whether the memory has room for a metric.
    #[cfg(feature = "network")]
    pub(super) fn has_metric_buffer(&self) -> bool {
        self.state.has_metric_buffer
    }

    /// Fits the head again under the prior in memory, from `samples`.
    ///
    /// # Errors
    /// [`DeclineReason::Tensors`] if the last round has not left a prior in memory, [`DeclineReason::NoSamples`] without a usable
    /// sample, [`DeclineReason::Device`] if the source fails, [`DeclineReason::UpdateNonFinite`] if the head would not be finite.
    pub fn fit(&mut self, samples: &mut dyn SampleSource) -> Result<Usage, DeclineReason> {
        let (Some(Wire::FitHead { head }), Some(_)) = (self.state.task, self.state.prior) else {
            return Err(DeclineReason::Tensors);
        };
        let (id, shape) = (RoundId::default(), self.state.shape);
        posterior::count_samples(&mut self.buffers(), shape, id, samples)?;
        self.fit_posterior(head, id, samples)
    }

    /// Computes the prediction for one sample: `out = V^T x`.
    ///
    /// # Errors
    /// [`NotReady`] if no head is fitted, if a value of `x` or of the prediction is not finite, or if a length does not match.
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        let shape = self.state.shape;
        if self.state.head.is_none() {
            return Err(NotReady::NoHead);
        }
        check_length(shape.features, x.len())?;
        check_length(shape.outputs, out.len())?;
        check_finite(x)?;
        let head = self.buffer(HEAD);
        for (output, value) in out.iter_mut().enumerate() {
            *value = posterior::column_dot(x, head, output, shape.outputs);
        }
        check_prediction(out)
    }

    /// Computes the prediction for one sample, and returns its variance, which is the same for every output: that of the noise and
    /// that of the head's posterior.
    ///
    /// # Errors
    /// [`NotReady`] as for [`Self::predict`]; and [`NotReady::NoHead`] if another round has been opened, or the device restarted,
    /// since the head was fitted: only the head is stored. [`NotReady::Overflow`] also if the variance is not
    /// finite.
    pub fn predict_with_variance(&mut self, x: &[f32], out: &mut [f32]) -> Result<f32, NotReady> {
        let noise = self.state.noise.ok_or(NotReady::NoHead)?;
        self.predict(x, out)?;
        let buffers = self.buffers();
        posterior::whiten(buffers.precision, x, buffers.x);
        let variance = noise * (1.0 + squares(buffers.x, 0, 1));
        check_prediction(&[variance])?;
        Ok(variance)
    }

    /// Returns the standard noise variance of a target, if it is known.
    pub fn noise(&self) -> Option<f32> {
        self.state.noise
    }
}

/// Number of the buffer [`Buffers::precision`].
const PRECISION: usize = 0;
/// Number of the buffer [`Buffers::basis`].
const BASIS: usize = 1;
/// Number of the buffer [`Buffers::metric`].
#[cfg(feature = "network")]
const METRIC: usize = 4;
/// Number of the buffer [`Buffers::head`].
const HEAD: usize = 5;
/// Number of the buffer [`Buffers::scores`].
const SCORE: usize = 8;
/// Number of the buffer [`Buffers::products`].
const PRODUCTS: usize = 11;

/// Returns true if the variances of a prior are possible: finite, none negative, and that of all other directions, the floor, not too
/// small for its inverse. The least and the largest factor are given for the variances and for the floor.
fn are_variances(variances: &[f32], [span, floor]: [(f32, f32); 2]) -> bool {
    let is_possible = |value: f32, factor: f32| value >= 0.0 && (factor * value).is_finite();
    let Some((&last, others)) = variances.split_last() else { return false };
    others.iter().all(|value| is_possible(*value, span.1.max(1.0)))
        && is_possible(last, floor.1.max(1.0))
        && floor.0.min(1.0) * last >= LEAST_FLOOR
}

/// Smallest floor, in units of the noise's variance.
const LEAST_FLOOR: f32 = 1e-30;
