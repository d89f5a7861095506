//! Space of fleets in which the spectral filter was measured, and the distance of a fleet from it. `POISON.md`
//! has the measurements.

/// Smallest number of devices of a round, as a multiple of the width k of the representation.
pub const DEVICES_PER_WIDTH: u32 = 10;
/// Smallest number of samples of a device, as a multiple of the width k.
pub const SAMPLES_PER_WIDTH: u32 = 4;
/// Smallest number of samples of all devices of a round, as a multiple of the number d k of values of the
/// representation.
pub const SAMPLES_PER_VALUE: u32 = 7;

/// Largest width of the measured models.
pub const LARGEST_WIDTH: u32 = 8;

/// Number of outputs of the measured models.
const OUTPUTS: u32 = 1;

/// Size of a fleet and its model, as far as a robust rule depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetSize {
    /// Number of devices of a round, n.
    pub devices: u32,
    /// Number of samples of the median device, m; `None` if it is not known yet.
    pub samples: Option<u32>,
    /// Number of features, d.
    pub features: u32,
    /// Width of the representation, k.
    pub width: u32,
    /// Number of outputs, C.
    pub outputs: u32,
}

impl FleetSize {
    /// Conditions of the measured space that the fleet does not meet, each with the number found and the number
    /// that is needed. Conditions on samples count as met while their number is not known.
    #[must_use]
    pub fn unmet_conditions(&self) -> Vec<String> {
        let Self { devices, samples, features, width, outputs } = *self;
        let mut unmet = Vec::new();
        let mut require = |what: &str, found: u64, needed: u64| {
            if found < needed {
                unmet.push(format!("{what}: {found}, measured from {needed}"));
            }
        };
        let product = |a: u32, b: u32| u64::from(a) * u64::from(b);
        require("devices of a round", devices.into(), product(DEVICES_PER_WIDTH, width));
        if let Some(samples) = samples {
            require("samples of the median device", samples.into(), product(SAMPLES_PER_WIDTH, width));
            let values = product(features, width);
            require("samples of a round", product(devices, samples), values * u64::from(SAMPLES_PER_VALUE));
        }
        if width > LARGEST_WIDTH {
            unmet.push(format!("width of the representation: {width}, measured up to {LARGEST_WIDTH}"));
        }
        if outputs != OUTPUTS {
            unmet.push(format!("outputs: {outputs}, measured with {OUTPUTS}"));
        }
        unmet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_is_measured_from_the_smallest_numbers_on() {
        let enough = FleetSize { devices: 40, samples: Some(28), features: 40, width: 4, outputs: 1 };
        assert_eq!(enough.unmet_conditions(), Vec::<String>::new());
        assert_eq!(
            FleetSize { devices: 39, ..enough }.unmet_conditions(),
            ["devices of a round: 39, measured from 40", "samples of a round: 1092, measured from 1120"]
        );
        assert_eq!(
            FleetSize { samples: Some(15), features: 20, ..enough }.unmet_conditions(),
            ["samples of the median device: 15, measured from 16"]
        );
        assert_eq!(
            FleetSize { width: 9, devices: 90, samples: Some(36), ..enough }.unmet_conditions(),
            ["width of the representation: 9, measured up to 8"]
        );
        assert_eq!(FleetSize { outputs: 6, ..enough }.unmet_conditions(), ["outputs: 6, measured with 1"]);
        assert_eq!(FleetSize { samples: None, ..enough }.unmet_conditions(), Vec::<String>::new());
    }
}
