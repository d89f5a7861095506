//! Horizontal axes, and scales with ticks.

use fedspan_engine::participation::Policy;

use super::Point;
use crate::scenario::Scenario;

/// Quantity on the horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Number of the round.
    Round,
    /// Simulated time.
    Time,
    /// Number of uploaded and downloaded bytes.
    Bytes,
    /// Number of labelled samples of a new client, in place of the round.
    NewSamples,
    /// Number of the exchange, in place of the round.
    Exchange,
}

impl Axis {
    /// All axes, in the order of a report.
    pub const ALL: [Self; 3] = [Self::Round, Self::Time, Self::Bytes];

    /// Axes in the order in which a report of these scenarios has them. Simulated time is the first axis if the
    /// participation doubles or differs between scenarios, since rounds then do not take the same time.
    #[must_use]
    pub fn order<'a>(scenarios: impl IntoIterator<Item = &'a Scenario>) -> Vec<Self> {
        let mut first = None;
        let mut by_time = false;
        for scenario in scenarios.into_iter().filter(|scenario| scenario.is_federated()) {
            let participation = scenario.participation;
            by_time |= matches!(participation, Policy::Doubling(_));
            by_time |= *first.get_or_insert(participation) != participation;
        }
        if by_time { vec![Self::Time, Self::Round, Self::Bytes] } else { Self::ALL.to_vec() }
    }

    /// Title of the axis, without the unit of bytes, which depends on their number.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::Time => "simulated time (mean computations)",
            Self::Bytes => "bytes sent, both directions, all clients",
            Self::NewSamples => "labelled samples of a new client",
            Self::Exchange => "exchange",
        }
    }

    /// Short name for the axis selector.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Round => "rounds",
            Self::Time => "simulated time",
            Self::Bytes => "bytes",
            Self::NewSamples => "samples",
            Self::Exchange => "exchanges",
        }
    }

    /// Position of a point on the axis.
    pub(super) const fn position(self, point: &Point) -> f64 {
        match self {
            Self::Round | Self::NewSamples | Self::Exchange => point.round,
            Self::Time => point.time,
            Self::Bytes => point.bytes,
        }
    }

    /// Unit in which positions up to `largest` are shown, with its number of bytes.
    pub(super) fn unit(self, largest: f64) -> (&'static str, f64) {
        match self {
            Self::Bytes if largest >= 1e9 => ("GB", 1e9),
            Self::Bytes if largest >= 1e6 => ("MB", 1e6),
            Self::Bytes if largest >= 1e3 => ("kB", 1e3),
            Self::Bytes => ("B", 1.0),
            _ => ("", 1.0),
        }
    }
}

/// Map from values to pixels, with the values of the ticks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    pub low: f64,
    pub high: f64,
    pub ticks: Vec<f64>,
    pub logarithmic: bool,
    /// Pixels of `low` and `high`.
    pub pixels: (f64, f64),
}

impl Scale {
    /// Linear scale with about `count` ticks.
    pub fn linear(low: f64, high: f64, count: f64, pixels: (f64, f64)) -> Self {
        Self { low, high, ticks: ticks(low, high, count), logarithmic: false, pixels }
    }

    /// Logarithmic scale. Ticks are at 1, 2 and 5 times powers of ten for a range of up to three decades,
    /// otherwise at powers of ten. A short range has further ticks.
    pub fn logarithmic(low: f64, high: f64, pixels: (f64, f64)) -> Self {
        let decades = high.log10().ceil() - low.log10().floor();
        let digits: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let stride = (decades / 8.0).ceil().max(1.0);
        let mut ticks = multiples(low, high, digits, stride);
        if ticks.len() < 3 {
            ticks = multiples(low, high, &DIGITS, 1.0);
        }
        if ticks.len() < 3 {
            ticks = self::ticks(low, high, 5.0);
        }
        Self { low, high, ticks, logarithmic: true, pixels }
    }

    /// Values at which a logarithmic scale has marks without labels; none if there are very many.
    pub fn minor_ticks(&self) -> Vec<f64> {
        let minor = if self.logarithmic { multiples(self.low, self.high, &DIGITS, 1.0) } else { Vec::new() };
        if minor.len() > 60 { Vec::new() } else { minor }
    }

    /// Pixel of a value.
    pub fn at(&self, value: f64) -> f64 {
        let height = |value: f64| if self.logarithmic { value.log10() } else { value };
        let part = (height(value) - height(self.low)) / (height(self.high) - height(self.low));
        self.pixels.0 + (self.pixels.1 - self.pixels.0) * part
    }

    /// Text from which the page's script reads the map.
    pub fn attribute(&self) -> String {
        let kind = if self.logarithmic { "log" } else { "linear" };
        let (from, to) = self.pixels;
        format!("{from:.2} {to:.2} {:e} {:e} {kind}", self.low, self.high)
    }
}

/// Digits of the marks of a logarithmic scale.
const DIGITS: [f64; 9] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];

/// Values from `low` to `high` that are one of the digits times every `stride`-th power of ten.
fn multiples(low: f64, high: f64, digits: &[f64], stride: f64) -> Vec<f64> {
    let mut values = Vec::new();
    let mut power = low.log10().floor();
    while power <= high.log10().ceil() {
        values.extend(digits.iter().map(|digit| digit * 10f64.powf(power)));
        power += stride;
    }
    values.retain(|value| (low..=high).contains(value));
    values
}

/// Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about `count` of them.
pub(super) fn ticks(low: f64, high: f64, count: f64) -> Vec<f64> {
    let rough = (high - low) / count;
    if !rough.is_finite() || rough <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough);
    let step = step.unwrap_or(power);
    let mut ticks = Vec::new();
    let mut multiple = (low / step - 1e-9).ceil();
    while multiple <= (high / step + 1e-9).floor() {
        // Adding 0 turns -0 into 0.
        ticks.push(multiple * step + 0.0);
        multiple += 1.0;
    }
    ticks
}

/// Text of a tick.
pub(super) fn tick_label(value: f64) -> String {
    if value == 0.0 || (1e-3..1e5).contains(&value.abs()) {
        let text = format!("{value:.4}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let text = format!("{value:.1e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    let superscript = |c: char| match c {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '0' => '⁰',
        c => char::from_u32(u32::from(c) - u32::from('0') + 0x2070).unwrap_or(c),
    };
    let power: String = power.chars().map(superscript).collect();
    if digits == "1" { format!("10{power}") } else { format!("{digits}·10{power}") }
}
