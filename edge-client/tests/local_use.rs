//! Tests of values that a firmware passes to a linear model without a server: a representation, and the settings of a head.

use fedspan_client::memory::Memory;
use fedspan_client::{Linear, Recording, RepresentationError, Workspace};
use fedspan_protocol::message::{DeclineReason, HeadSolve};

use crate::common::{EXACT, Heap, identity};

const UNUSABLE: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Passes unusable values to a model of two features with a width of two.
fn refuses_unusable_values<M: Memory>(mut model: Linear<M>) {
    let (x, y) = ([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0]);
    let mut samples = Recording::regression(&x, &y, 2, 1);
    let wrong_length = RepresentationError::Length { expected: 4, got: 3 };
    assert_eq!(model.set_representation(&[1.0; 3]), Err(wrong_length));
    for (value, index) in UNUSABLE.into_iter().zip(1..) {
        let mut b = identity(2);
        b[index] = value;
        assert_eq!(model.set_representation(&b), Err(RepresentationError::NonFinite { index }));
        assert_eq!(model.representation(), None);
        assert_eq!(model.fit_head(EXACT, &mut samples), Err(DeclineReason::Tensors));
    }
    // The model keeps what it has.
    model.set_representation(&identity(2)).unwrap();
    model.fit_head(EXACT, &mut samples).unwrap();
    let mut prediction = [0.0];
    for value in UNUSABLE {
        assert!(model.set_representation(&[1.0, 0.0, 0.0, value]).is_err());
        assert_eq!(model.representation(), Some(&identity(2)[..]));
    }
    for ridge in UNUSABLE.into_iter().chain([-1.0, -f32::MIN_POSITIVE]) {
        let head = HeadSolve::LeastSquares { ridge };
        assert_eq!(model.fit_head(head, &mut samples), Err(DeclineReason::Parameter), "ridge {ridge}");
        #[cfg(feature = "ridge-choice")]
        {
            let head = HeadSolve::LeaveOneOut { fallback_ridge: ridge };
            assert_eq!(model.fit_head(head, &mut samples), Err(DeclineReason::Parameter), "ridge {ridge}");
        }
    }
    #[cfg(feature = "gradient-head")]
    for (steps, step_size) in [(0, 0.1), (1, f32::NAN), (1, f32::INFINITY), (1, -0.1)] {
        let head = HeadSolve::Gradient { steps, step_size };
        assert_eq!(model.fit_head(head, &mut samples), Err(DeclineReason::Parameter), "step {step_size}");
    }
    model.predict(&[2.0, 1.0], &mut prediction).unwrap();
    assert!((prediction[0] - 4.0).abs() < 1e-3, "{prediction:?}");
    let ridges = [0.0, -0.0, 0.5];
    assert!(
        ridges.iter().all(|&ridge| model.fit_head(HeadSolve::LeastSquares { ridge }, &mut samples).is_ok())
    );
}

#[test]
fn model_refuses_unusable_values() {
    refuses_unusable_values(Linear::new(Heap::new(2, 2, 1)));
    refuses_unusable_values(Linear::new(Workspace::<2, 2>::new()));
}

#[cfg(feature = "i16")]
#[test]
fn model_in_fixed_point_refuses_unusable_values() {
    refuses_unusable_values(Linear::new(fedspan_client::memory::FixedWorkspace::<2, 2>::new()));
}
