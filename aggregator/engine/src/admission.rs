//! Admission of devices: checks a hello against the requirements of the campaign, and answers each unmet
//! requirement with its own kind of refusal.

use fedspan_protocol::assembly::plan;
use fedspan_protocol::limits::{
    DESCRIPTOR_MAX, FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, HEADER, OPEN_HEAD_MAX, SEAL_MAX,
};
use fedspan_protocol::message::{
    Descriptors, FITS_BY_STEPS, HeadSolve, Hello, Model, Numeric, Privacy, Refusal, Requirement, Task,
};
use fedspan_protocol::tensor::{Encoding, Role};

use crate::types::{DeviceId, Request};

/// Capabilities that a campaign requires of its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirements {
    model: Model,
    tasks: u32,
    roles: u32,
    encodings: u8,
    /// Largest number of tensors in one direction of a round. A device declares its limit in the same unit.
    tensors: u8,
    tensor_elements: u32,
    total_elements: u32,
    /// Arithmetic of the updates; `None` if each device may compute in its own.
    numeric: Option<Numeric>,
    /// Smallest frame limit at which the tensors fit the number of chunks that the protocol allows.
    frame_limit: usize,
    /// Bytes of the longest frame that holds a whole update.
    longest_upload: usize,
    /// Largest privacy budget of a device, if updates must carry noise; `None` leaves noise and budget to the
    /// devices.
    privacy: Option<u64>,
    /// Devices that may join; `None` if every device may.
    allowed: Option<Vec<DeviceId>>,
}

impl Requirements {
    /// Derives the requirements from `requests`, one for each kind of round, for devices with this model.
    #[must_use]
    pub fn new(model: Model, requests: &[Request], allowed: Option<Vec<DeviceId>>) -> Self {
        let mut needs = Self {
            model,
            tasks: 0,
            roles: 0,
            encodings: Encoding::F32.bit(),
            tensors: 0,
            tensor_elements: 0,
            total_elements: 0,
            numeric: Some(Numeric::F32),
            frame_limit: FRAME_LIMIT_MIN,
            longest_upload: 0,
            privacy: None,
            allowed,
        };
        for request in requests {
            let down: Descriptors =
                request.tensors.iter().map(|tensor| tensor.descriptor(request.encoding)).collect();
            let up: Descriptors = request.expects.iter().copied().collect();
            for tensors in [&down, &up] {
                needs.frame_limit = needs.frame_limit.max(least_frame_limit(tensors));
                needs.tensors = needs.tensors.max(u8::try_from(tensors.len()).unwrap_or(u8::MAX));
                let elements = tensors.iter().map(|t| u32::try_from(t.elements()).unwrap_or(u32::MAX));
                needs.tensor_elements = elements.clone().fold(needs.tensor_elements, u32::max);
                needs.total_elements = needs.total_elements.max(elements.fold(0, u32::saturating_add));
            }
            let tensors: usize = up.iter().map(|t| t.encoding.byte_len(t.elements())).sum();
            let frame_len = HEADER + OPEN_HEAD_MAX + up.len() * DESCRIPTOR_MAX + tensors + SEAL_MAX;
            needs.longest_upload = needs.longest_upload.max(frame_len);
            needs.tasks |= Task::bit(&request.task);
            needs.encodings |= request.encoding.bit();
            // A device that cannot scale its samples would train on other data than the rest of the fleet.
            if request.tensors.iter().any(|tensor| tensor.role == Role::Scale) {
                needs.roles |= Role::Scale.bit();
            }
            // A device without this solver could not read the task.
            if let Some(HeadSolve::Gradient { .. }) = request.task.head() {
                needs.roles |= FITS_BY_STEPS;
            }
            for tensor in &request.expects {
                needs.roles |= Role::bit(tensor.role);
                needs.encodings |= tensor.encoding.bit();
            }
        }
        needs
    }

    /// Replaces the arithmetic of updates, which is f32 by default. With `None` each device may compute in its own.
    #[must_use]
    pub fn with_numeric(self, numeric: Option<Numeric>) -> Self {
        Self { numeric, ..self }
    }

    /// Requires devices to add noise and to have a privacy budget of at most `budget` ledger units; `None`
    /// requires neither.
    #[must_use]
    pub fn with_privacy(self, budget: Option<u64>) -> Self {
        Self { privacy: budget, ..self }
    }

    /// Bytes of the longest frame that a device needs to send: a whole update. If the frame limit is smaller,
    /// a device splits its update into chunks within that limit.
    #[must_use]
    pub fn longest_upload(&self) -> usize {
        self.longest_upload
    }

    /// Checks a hello of this wire version, over a link that carries frames of any length.
    ///
    /// # Errors
    /// The [`Refusal`] to send to the device, for the first requirement that it does not meet.
    pub fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        self.admit_over(hello, FRAME_LIMIT_MAX)
    }

    /// Checks a hello of this wire version, over a link that carries frames of at most `longest_frame` bytes.
    ///
    /// # Errors
    /// The [`Refusal`] to send to the device, for the first requirement that it does not meet. A device whose frame limit is longer than
    /// the link's frames is refused: it would send frames that the link cannot carry.
    pub fn admit_over(&self, hello: &Hello, longest_frame: usize) -> Result<(), Refusal> {
        let device = &hello.capabilities;
        if self.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&DeviceId(hello.device))) {
            return Err(Refusal::UnknownDevice);
        }
        if device.model != self.model {
            return Err(Refusal::Model { expected: self.model });
        }
        let limits = self.frame_limit..=longest_frame;
        if !limits.contains(&usize::from(device.frame_limit)) {
            let to_u16 = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
            let (min, max) = (to_u16(self.frame_limit), to_u16(longest_frame));
            return Err(Refusal::FrameLimit { min, max });
        }
        if let Some(numeric) = self.numeric.filter(|numeric| *numeric != device.numeric) {
            return Err(Refusal::Capability(Requirement::Numeric(numeric)));
        }
        let missing = |needed: u32, offered: u32| needed & !offered;
        if let Some(max_budget) = self.privacy
            && !matches!(device.privacy, Privacy::Gaussian { budget, .. } if budget <= max_budget)
        {
            return Err(Refusal::Capability(Requirement::Privacy(max_budget)));
        }
        if missing(self.tasks, device.tasks) != 0 {
            return Err(Refusal::Capability(Requirement::Tasks(missing(self.tasks, device.tasks))));
        }
        if missing(self.roles, device.roles) != 0 {
            return Err(Refusal::Capability(Requirement::Roles(missing(self.roles, device.roles))));
        }
        if self.encodings & !device.encodings != 0 {
            return Err(Refusal::Capability(Requirement::Encodings(self.encodings & !device.encodings)));
        }
        if device.tensor_elements < self.tensor_elements {
            return Err(Refusal::Capability(Requirement::TensorElements(self.tensor_elements)));
        }
        if device.tensors < self.tensors {
            return Err(Refusal::Capability(Requirement::Tensors(self.tensors)));
        }
        if device.total_elements < self.total_elements {
            return Err(Refusal::Capability(Requirement::TotalElements(self.total_elements)));
        }
        Ok(())
    }
}

/// Smallest frame limit at which these tensors can be sent; above [`FRAME_LIMIT_MAX`] if no limit suffices.
#[must_use]
pub fn least_frame_limit(tensors: &Descriptors) -> usize {
    let mut least = FRAME_LIMIT_MIN;
    let mut above = FRAME_LIMIT_MAX + 1;
    while least < above {
        let limit = least + (above - least) / 2;
        match plan(&mut tensors.clone(), limit) {
            Ok(()) => above = limit,
            Err(_) => least = limit + 1,
        }
    }
    least
}
