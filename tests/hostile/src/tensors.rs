//! Checks of tensor descriptors that a peer has sent.

use fedspan_protocol::assembly::{Assembly, plan, split_body};
use fedspan_protocol::limits::{CHUNK_OVERHEAD, CHUNKS_MAX, FRAME_LIMIT_MAX, TENSORS_MAX};
use fedspan_protocol::message::{Chunk, Descriptors, RoundId};
use fedspan_protocol::tensor::TensorDescriptor;

const ID: RoundId = RoundId { round: 1, stage: 0 };

/// Checks the invariants that every receiver relies on, for descriptors and the body that arrived with them.
pub fn check(tensors: &Descriptors, body: &[u8]) {
    assert!(tensors.len() <= TENSORS_MAX);
    tensors.iter().filter(|tensor| tensor.validate().is_ok()).for_each(check_chunks);
    if let Ok(assembly) = Assembly::new(tensors) {
        check_assembly(assembly);
    }
    if let Ok(parts) = split_body(tensors, body) {
        let joined: Vec<u8> = parts.flat_map(|(_, _, bytes)| bytes.iter().copied()).collect();
        assert_eq!(joined, body, "the parts differ from the body");
    }
    for limit in [0, 64, 128, 256, 1000, FRAME_LIMIT_MAX, usize::from(u16::MAX)] {
        let mut planned = tensors.clone();
        if plan(&mut planned, limit).is_ok() {
            for tensor in planned.iter().filter(|tensor| tensor.chunk > 0) {
                let longest = usize::from(tensor.chunk).min(tensor.elements());
                assert!(CHUNK_OVERHEAD + tensor.encoding.byte_len(longest) <= limit, "{tensor:?} in {limit}");
            }
        }
    }
}

/// Checks that the chunks of a tensor cover all elements, in order, without a gap, and that each fits one
/// frame.
fn check_chunks(tensor: &TensorDescriptor) {
    let count = tensor.chunks();
    assert!(count <= CHUNKS_MAX, "{tensor:?}");
    let mut next = 0;
    for index in 0..count {
        let range = tensor.chunk_range(index).expect("a chunk below the count");
        assert_eq!(range.start, next, "{tensor:?}");
        assert!(tensor.encoding.byte_len(range.len()) <= FRAME_LIMIT_MAX);
        next = range.end;
    }
    assert!(count == 0 || next == tensor.elements(), "{tensor:?}");
    assert_eq!(tensor.chunk_range(count), None, "{tensor:?}");
}

/// Delivers the chunks from last to first. Each must be accepted once, and `missing` must name some chunks
/// until all have arrived.
fn check_assembly(mut assembly: Assembly) {
    let tensors = assembly.tensors().to_vec();
    let chunk_count: usize = tensors.iter().map(TensorDescriptor::chunks).sum();
    assert!(chunk_count <= CHUNKS_MAX);
    for (tensor, descriptor) in tensors.iter().enumerate().rev() {
        for index in (0..descriptor.chunks()).rev() {
            if index % 32 == 0 {
                let missing = assembly.missing(ID).expect("some chunks are missing");
                assert!(!missing.chunks.is_empty());
            }
            let range = descriptor.chunk_range(index).expect("a chunk below the count");
            let chunk = Chunk { id: ID, tensor: tensor as u8, offset: range.start as u32 };
            let length = descriptor.encoding.byte_len(range.len());
            assert!(assembly.accept(&chunk, length + 1).is_err());
            let position = assembly.accept(&chunk, length).expect("announced").expect("new");
            assert_eq!((position.tensor, position.elements), (tensor, range));
            assert_eq!(assembly.accept(&chunk, length), Ok(None));
        }
    }
    assert!(assembly.is_complete() && assembly.missing(ID).is_none());
}
