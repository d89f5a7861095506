//! Who may take part: hello against what the campaign needs. Every refusal is typed.

use fedspan_protocol::limits::{FRAME_LIMIT_MAX, FRAME_LIMIT_MIN};
use fedspan_protocol::message::{Hello, Model, Need, Refusal, Task};
use fedspan_protocol::tensor::{Encoding, Role};

use crate::algorithm::Request;
use crate::engine::DeviceId;

/// What a campaign asks of its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirements {
    model: Model,
    tasks: u16,
    roles: u16,
    encodings: u8,
    tensor_elements: u32,
    /// The devices that may join; `None` for all.
    allowed: Option<Vec<DeviceId>>,
}

impl Requirements {
    /// What `requests` (one for each kind of round) need on devices with this model.
    #[must_use]
    pub fn new(model: Model, requests: &[Request], allowed: Option<Vec<DeviceId>>) -> Self {
        let mut needs =
            Self { model, tasks: 0, roles: 0, encodings: Encoding::F32.bit(), tensor_elements: 0, allowed };
        for request in requests {
            needs.tasks |= Task::bit(&request.task);
            needs.encodings |= request.encoding.bit();
            for tensor in &request.expects {
                needs.roles |= Role::bit(tensor.role);
                needs.encodings |= tensor.encoding.bit();
            }
            for tensor in &request.tensors {
                let elements = u32::try_from(tensor.values.len()).unwrap_or(u32::MAX);
                needs.tensor_elements = needs.tensor_elements.max(elements);
            }
        }
        needs
    }

    /// Judges a hello of this wire version.
    ///
    /// # Errors
    /// The [`Refusal`] to answer with.
    pub fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        let device = &hello.capabilities;
        if self.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&hello.device)) {
            return Err(Refusal::UnknownDevice);
        }
        let limits = FRAME_LIMIT_MIN..=FRAME_LIMIT_MAX;
        if !limits.contains(&usize::from(device.frame_limit)) {
            #[allow(clippy::cast_possible_truncation, reason = "constants of 128 and 4096")]
            let (least, most) = (FRAME_LIMIT_MIN as u16, FRAME_LIMIT_MAX as u16);
            return Err(Refusal::FrameLimit { least, most });
        }
        if device.model != self.model {
            return Err(Refusal::Model { expected: self.model });
        }
        let missing = |needed: u16, there: u16| needed & !there;
        if missing(self.tasks, device.tasks) != 0 {
            return Err(Refusal::Capability(Need::Tasks(missing(self.tasks, device.tasks))));
        }
        if missing(self.roles, device.roles) != 0 {
            return Err(Refusal::Capability(Need::Roles(missing(self.roles, device.roles))));
        }
        if self.encodings & !device.encodings != 0 {
            return Err(Refusal::Capability(Need::Encodings(self.encodings & !device.encodings)));
        }
        if device.tensor_elements < self.tensor_elements {
            return Err(Refusal::Capability(Need::TensorElements(self.tensor_elements)));
        }
        Ok(())
    }
}
