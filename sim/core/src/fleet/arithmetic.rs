//! Arithmetic of the clients of a fleet: f32 or 16-bit fixed point, and the solver of their heads.

use fedspan_client::{Linear, Mechanism, Shape};
use fedspan_protocol::message::Numeric;

use super::HeapWorkspace;
use crate::scenario::Scenario;

/// Arithmetic of the clients of a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FleetArithmetic {
    /// Arithmetic of all clients; `None` if a share of them computes in fixed point.
    pub numeric: Option<Numeric>,
    /// Share of the clients that compute in fixed point if `numeric` is `None`.
    pub i16_share: f64,
    /// True if the clients decline rounds that need the solver of minimum norm.
    pub normal_equations_only: bool,
}

impl FleetArithmetic {
    /// All clients compute in f32, with every solver.
    pub const F32: Self = Self { numeric: Some(Numeric::F32), i16_share: 0.0, normal_equations_only: false };

    /// Returns the arithmetic of a scenario's clients.
    #[must_use]
    pub fn of_scenario(scenario: &Scenario) -> Self {
        Self {
            numeric: scenario.algorithm.numeric,
            i16_share: scenario.fleet.i16_share,
            normal_equations_only: scenario.fleet.normal_equations_only,
        }
    }

    /// Returns the arithmetic of a client. Those in fixed point are spread evenly over the clients' numbers.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "numbers of clients are below 2^53")]
    pub fn numeric_of(&self, client: u64) -> Numeric {
        // A share such as 0.29 is stored rounded, and 100 times it is a little less than 29.
        let count_before = |number: u64| (number as f64 * self.i16_share + 1e-9).floor();
        match self.numeric {
            Some(numeric) => numeric,
            None if count_before(client.saturating_add(1)) > count_before(client) => Numeric::I16,
            None => Numeric::F32,
        }
    }

    /// Returns the memory of a client's model.
    #[must_use]
    pub fn memory(&self, client: u64, shape: Shape) -> HeapWorkspace {
        HeapWorkspace::new(shape, self.numeric_of(client))
    }

    /// Returns `model` with the solver of the fleet.
    #[must_use]
    pub fn with_solver<P: Mechanism>(&self, model: Linear<HeapWorkspace, P>) -> Linear<HeapWorkspace, P> {
        if self.normal_equations_only { model.with_normal_equations_only() } else { model }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_in_fixed_point_are_spread_evenly() {
        for (share, expected) in
            [(0.0, 0), (0.25, 25), (0.29, 29), (0.5, 50), (0.57, 57), (0.58, 58), (0.9, 90), (1.0, 100)]
        {
            let fleet = FleetArithmetic { numeric: None, i16_share: share, normal_equations_only: false };
            let in_fixed_point: Vec<_> =
                (0..100).map(|client| fleet.numeric_of(client) == Numeric::I16).collect();
            assert_eq!(in_fixed_point.iter().filter(|is| **is).count(), expected);
            for window in in_fixed_point.windows(20) {
                let count = window.iter().filter(|is| **is).count() as f64;
                assert!((count - 20.0 * share).abs() <= 1.0, "{share}: {count} of 20");
            }
        }
        let all = FleetArithmetic { numeric: Some(Numeric::I16), ..FleetArithmetic::F32 };
        assert_eq!(all.numeric_of(7), Numeric::I16);
    }
}
