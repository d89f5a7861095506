//! Contents of the message that opens a round on the devices.

use fedspan_protocol::Error;
use fedspan_protocol::message::RoundId;
use fedspan_protocol::tensor::Role;

use crate::types::{Request, Tensor};

/// Broadcast of a round: the contents of its opening message, encoded once for all devices.
#[derive(Debug, PartialEq)]
pub struct RoundBroadcast {
    /// Id of the round.
    pub id: RoundId,
    /// Task, tensors and expected reply.
    pub request: Request,
    /// Tensors of the request in their wire encoding.
    pub encoded: Vec<Vec<u8>>,
}

impl RoundBroadcast {
    /// Encodes a request.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if a value is not finite or too large for the encoding, for example because the
    /// shared model has diverged.
    pub fn new(id: RoundId, request: Request) -> Result<Self, Error> {
        let encode = |tensor: &Tensor| {
            let encoding = tensor.descriptor(request.encoding).encoding;
            let mut bytes = vec![0; encoding.byte_len(tensor.values.len())];
            encoding.encode(&tensor.values, &mut bytes).map(|()| bytes)
        };
        let encoded = request.tensors.iter().map(encode).collect::<Result<_, _>>()?;
        Ok(Self { id, request, encoded })
    }

    /// Copy of the broadcast under another id.
    pub(super) fn with_id(&self, id: RoundId) -> Self {
        let Request { task, ref tensors, encoding, ref expects } = self.request;
        let request = Request { task, tensors: tensors.clone(), encoding, expects: expects.clone() };
        Self { id, request, encoded: self.encoded.clone() }
    }

    /// Copy of the broadcast without the tensors of these roles; `None` if it has no such tensors.
    pub(super) fn without_roles(&self, roles: &[Role]) -> Option<Self> {
        let sent = |tensor: &Tensor| !roles.contains(&tensor.role);
        if self.request.tensors.iter().all(sent) {
            return None;
        }
        let (tensors, encoded) = self
            .request
            .tensors
            .iter()
            .zip(&self.encoded)
            .filter(|(tensor, _)| sent(tensor))
            .map(|(tensor, bytes)| (tensor.clone(), bytes.clone()))
            .unzip();
        let Request { task, encoding, ref expects, .. } = self.request;
        let request = Request { task, tensors, encoding, expects: expects.clone() };
        Some(Self { id: self.id, request, encoded })
    }
}
