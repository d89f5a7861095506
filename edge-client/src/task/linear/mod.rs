//! [`Linear`]: a linear model and its own use (`fit_head`, `predict`); its rounds are in `rounds`.

mod arithmetic;
mod capabilities;
#[cfg(feature = "privacy")]
mod noise;
mod rounds;

use fedspan_protocol::frame::crc32c_f32;
use fedspan_protocol::message::{DeclineReason, HeadSolve, RoundId, Task as Wire};
use fedspan_protocol::tensor::Encoding;

use super::{HeadFits, Usage};
use crate::error::{NotReady, ShapeMismatch};
use crate::kernel::constant_column::ConstantColumn;
use crate::kernel::project;
use crate::mechanism::{Mechanism, NoPrivacy};
use crate::memory::{Memory, Shape};
#[cfg(feature = "privacy")]
use crate::privacy::PrivacySettingsError;
use crate::source::SampleSource;
#[cfg(feature = "power")]
use crate::task::PowerCounts;

/// A linear model `y = W^T B^T x` with the memory `M`, whose updates leave through the mechanism `P`.
#[derive(Clone, Debug)]
pub struct Linear<M, P = NoPrivacy> {
    memory: M,
    mechanism: P,
    state: State,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Hash of the representation in memory; `None` while it is invalid.
    representation: Option<u32>,
    /// Hash of the representation that the head was fitted on.
    head: Option<u32>,
    /// The open round's task.
    task: Option<Wire>,
    /// How the open round's tensors are encoded.
    received: Encoding,
    /// The open round comes without the adapter's down-projection, which is in memory.
    #[cfg(feature = "shared-head")]
    kept: bool,
    usage: Usage,
    /// What fits of the head left out.
    fits: HeadFits,
    /// The constant column of samples that are seen once, while they come.
    constant: ConstantColumn,
    #[cfg(feature = "power")]
    power: PowerCounts,
}

impl State {
    const fn new() -> Self {
        Self {
            representation: None,
            head: None,
            task: None,
            received: Encoding::F32,
            #[cfg(feature = "shared-head")]
            kept: false,
            usage: Usage { samples: 0, skipped: 0 },
            fits: HeadFits::NONE,
            constant: ConstantColumn::NONE,
            #[cfg(feature = "power")]
            power: PowerCounts::NOTHING,
        }
    }
}

impl<M: Memory> Linear<M> {
    /// A model without representation and head. Its updates leave as they are.
    pub const fn new(memory: M) -> Self {
        Self { memory, mechanism: NoPrivacy, state: State::new() }
    }
}

impl<M: Memory, P: Mechanism> Linear<M, P> {
    /// A model without representation and head, from which only what `mechanism` hides in noise leaves: FedPower (a
    /// feature), FedRep where the mechanism clips ([`Clipped`](crate::privacy::Clipped); not in 16-bit fixed point), both in
    /// memory with room for another d x k ([`PowerWorkspace`](crate::memory::PowerWorkspace)), and
    /// fitting the head are all that it takes part in. It answers at the slots that the settings say.
    ///
    /// # Errors
    /// [`PrivacySettingsError`] if the mechanism's settings do not go with the sizes.
    #[cfg(feature = "privacy")]
    pub fn private(memory: M, mechanism: P) -> Result<Self, PrivacySettingsError> {
        if let Some(settings) = mechanism.settings() {
            noise::variance(&settings, memory.parts_ref().shape)?;
            if let Some(clipping) = mechanism.clipping() {
                noise::gradient_variance(&settings, clipping.clip())?;
            }
        } else if mechanism.clipping().is_some() {
            return Err(PrivacySettingsError::ClipWithoutNoise);
        }
        Ok(Self { memory, mechanism, state: State::new() })
    }

    /// The mechanism, to see how its source of entropy is.
    pub fn mechanism(&self) -> &P {
        &self.mechanism
    }

    /// What the last round used and what it had to skip: for the firmware. What a device with noise reports does not
    /// depend on it.
    pub fn usage(&self) -> Usage {
        self.state.usage
    }

    /// The last fit of the head, and how many fits have cut directions: for the firmware. Nothing of it leaves.
    pub fn head_fits(&self) -> HeadFits {
        self.state.fits
    }

    /// The sizes.
    pub fn shape(&self) -> Shape {
        self.memory.parts_ref().shape
    }

    /// The representation in memory, d x k, or `None` while it is invalid.
    pub fn representation(&self) -> Option<&[f32]> {
        self.state.representation.map(|_| self.memory.parts_ref().representation)
    }

    /// Puts a representation (d x k, row-major, orthonormal columns) into memory without a server.
    ///
    /// # Errors
    /// [`ShapeMismatch`] if it has another number of elements; nothing has changed then.
    pub fn set_representation(&mut self, b: &[f32]) -> Result<(), ShapeMismatch> {
        let parts = self.memory.parts();
        let expected = parts.representation.len();
        if b.len() != expected {
            return Err(ShapeMismatch { expected, got: b.len() });
        }
        for (place, &value) in parts.representation.iter_mut().zip(b) {
            *place = value;
        }
        self.accept_representation();
        Ok(())
    }

    /// What the last FedPower round did with its rows.
    #[cfg(feature = "power")]
    pub fn power_counts(&self) -> PowerCounts {
        self.state.power
    }

    /// The memory itself, for the views.
    #[cfg(feature = "nalgebra")]
    pub(crate) fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Declares what is in the representation buffer valid.
    pub(crate) fn accept_representation(&mut self) {
        arithmetic::accept(&mut self.memory);
        self.state.representation = Some(crc32c_f32(self.memory.parts_ref().representation));
    }

    /// Fits the head on the representation in memory, from `samples`.
    ///
    /// # Errors
    /// [`DeclineReason`]: no representation ([`DeclineReason::Tensors`]), no usable sample, or a source
    /// that failed.
    pub fn fit_head(
        &mut self,
        head: HeadSolve,
        samples: &mut dyn SampleSource,
    ) -> Result<Usage, DeclineReason> {
        let hash = self.state.representation.ok_or(DeclineReason::Tensors)?;
        let Self { memory, state, .. } = self;
        let usage = arithmetic::solve_head(memory, head, &mut state.fits, RoundId::default(), samples)?;
        self.state.head = Some(hash);
        Ok(usage)
    }

    /// The model's answer for one sample: `out = W^T B^T x`.
    ///
    /// # Errors
    /// [`NotReady`] if there is no verified representation or no head that was fitted on it.
    pub fn predict(&mut self, x: &[f32], out: &mut [f32]) -> Result<(), NotReady> {
        let hash = self.state.representation.ok_or(NotReady::NoRepresentation)?;
        if self.state.head != Some(hash) {
            return Err(NotReady::NoHead);
        }
        let shape = self.shape();
        for (expected, got) in [(shape.features, x.len()), (shape.outputs, out.len())] {
            if expected != got {
                return Err(NotReady::Length { expected, got });
            }
        }
        arithmetic::project(&mut self.memory, x);
        let parts = self.memory.parts();
        project::apply_head(parts.head, parts.z, out);
        Ok(())
    }
}
