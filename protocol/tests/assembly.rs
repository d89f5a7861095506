//! Property tests of chunk bookkeeping against a model. Chunks complete in any order, duplicates are counted
//! once, unannounced chunks are rejected, and requests contain exactly the missing chunks.

use std::collections::BTreeSet;

use crate::common::{Random, strategies};
use fedspan_protocol::Error;
use fedspan_protocol::assembly::{Assembly, TensorRange, plan, split_body};
use fedspan_protocol::limits::{
    CHUNK_OVERHEAD, CHUNKS_MAX, DESCRIPTOR_MAX, FRAME_LIMIT_MAX, FRAME_LIMIT_MIN, HEADER, MISSING_MAX,
    OPEN_HEAD_MAX, SEAL_MAX,
};
use fedspan_protocol::message::{Chunk, Descriptors, Missing, RoundId};
use fedspan_protocol::tensor::{Encoding, Role, TensorDescriptor};
use proptest::prelude::*;

const ID: RoundId = RoundId { round: 3, stage: 0 };

/// Returns a descriptor of `elements` elements in chunks of `chunk`.
fn f32_descriptor(chunk: u16, elements: u16) -> TensorDescriptor {
    TensorDescriptor { chunk, ..TensorDescriptor::inline(Role::Moment, Encoding::F32, elements, 1) }
}

/// Returns all chunks of all tensors, as pairs of tensor index and chunk number.
fn all_chunks(tensors: &[TensorDescriptor]) -> Vec<(usize, usize)> {
    let numbers = |(t, d): (usize, &TensorDescriptor)| (0..d.chunks()).map(move |c| (t, c));
    tensors.iter().enumerate().flat_map(numbers).collect()
}

/// Returns the request that the specification demands: for the first tensor with missing chunks, its first 16
/// missing chunks.
fn expected_request(remaining: &BTreeSet<(usize, usize)>) -> Option<Missing> {
    let tensor = remaining.first()?.0;
    let gaps = remaining.iter().filter(|(t, _)| *t == tensor).map(|(_, c)| u16::try_from(*c).unwrap());
    Some(Missing { id: ID, tensor: u8::try_from(tensor).unwrap(), chunks: gaps.take(MISSING_MAX).collect() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_order_with_duplicates_completes_once(tensors in strategies::chunked(), seed: u64) {
        let mut assembly = Assembly::new(&tensors).unwrap();
        let chunks = all_chunks(&tensors);
        let mut remaining: BTreeSet<_> = chunks.iter().copied().collect();
        let mut random = Random(seed);
        let mut order: Vec<_> = (0..chunks.len() / 2).map(|_| chunks[random.below(chunks.len())]).collect();
        let mut unsent = chunks.clone();
        while !unsent.is_empty() {
            order.push(unsent.swap_remove(random.below(unsent.len())));
        }
        for (tensor, number) in order {
            prop_assert_eq!(assembly.is_complete(), remaining.is_empty());
            prop_assert_eq!(assembly.missing(ID), expected_request(&remaining));
            let descriptor = &tensors[tensor];
            let elements = descriptor.chunk_range(number).unwrap();
            let chunk = Chunk {
                id: ID,
                tensor: tensor as u8,
                offset: u32::try_from(elements.start).unwrap(),
            };
            let body = descriptor.encoding.byte_len(elements.len());
            let wrong_length = assembly.accept(&chunk, body + 1);
            prop_assert_eq!(wrong_length, Err(Error::LengthMismatch { expected: body, got: body + 1 }));
            let accepted_range =
                remaining.remove(&(tensor, number)).then_some(TensorRange { tensor, elements });
            prop_assert_eq!(assembly.accept(&chunk, body), Ok(accepted_range));
        }
        prop_assert!(assembly.is_complete());
        prop_assert_eq!(assembly.missing(ID), None);
    }

    /// Tests that only announced chunks are accepted, and that a rejected chunk changes nothing.
    #[test]
    fn unannounced_chunks_change_nothing(
        tensors in strategies::chunked(),
        chunk in prop_oneof![
            strategies::chunk(),
            (0..5u8, 0..600u32).prop_map(|(tensor, offset)| Chunk { id: ID, tensor, offset }),
        ],
        body in 0..400usize,
    ) {
        let mut assembly = Assembly::new(&tensors).unwrap();
        let announced = tensors.get(usize::from(chunk.tensor)).and_then(|d| {
            let index = (0..d.chunks()).find(|i| i * usize::from(d.chunk) == chunk.offset as usize)?;
            let range = d.chunk_range(index)?;
            Some((d.encoding.byte_len(range.len()), range))
        });
        match (announced, assembly.accept(&chunk, body)) {
            (None, refused) => prop_assert_eq!(refused, Err(Error::BadDescriptor)),
            (Some((expected, elements)), Ok(accepted)) => {
                prop_assert_eq!(expected, body);
                prop_assert_eq!(accepted, Some(TensorRange { tensor: chunk.tensor.into(), elements }));
                return Ok(());
            }
            (Some((expected, _)), Err(error)) => {
                prop_assert!(expected != body);
                prop_assert_eq!(error, Error::LengthMismatch { expected, got: body });
            }
        }
        prop_assert_eq!(assembly.missing(ID), Assembly::new(&tensors).unwrap().missing(ID));
    }

    #[test]
    fn descriptors_are_rejected_or_kept(tensors in strategies::descriptors()) {
        if let Ok(assembly) = Assembly::new(&tensors) {
            prop_assert_eq!(assembly.tensors(), &tensors[..]);
            prop_assert!(all_chunks(&tensors).len() <= CHUNKS_MAX);
        }
    }

    /// Tests that the parts of a body are the tensors, in order, without gap or overlap.
    #[test]
    fn body_is_split_exactly(chunked in strategies::chunked(), seed: u64, difference in 1..9usize) {
        let tensors: Vec<_> = chunked.iter().map(|d| TensorDescriptor { chunk: 0, ..*d }).collect();
        let length = tensors.iter().map(TensorDescriptor::byte_len).sum::<usize>();
        let mut random = Random(seed);
        let body: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let parts: Vec<_> = split_body(&tensors, &body).unwrap().collect();
        prop_assert_eq!(parts.len(), tensors.len());
        for (position, (index, descriptor, bytes)) in parts.iter().enumerate() {
            prop_assert_eq!(*index, position);
            prop_assert_eq!(*descriptor, &tensors[position]);
            prop_assert_eq!(bytes.len(), descriptor.byte_len());
        }
        let joined: Vec<u8> = parts.iter().flat_map(|(_, _, bytes)| bytes.to_vec()).collect();
        prop_assert_eq!(&joined, &body);
        let longer = [&body[..], &vec![0; difference]].concat();
        let shorter = &body[..length.saturating_sub(difference)];
        for wrong_body in [&longer[..], shorter] {
            let got = wrong_body.len();
            let refused = split_body(&tensors, wrong_body).map(|_| ()).unwrap_err();
            prop_assert_eq!(refused, Error::LengthMismatch { expected: length, got });
        }
    }

    /// Tests that the other side accepts a plan and that it fits the frame limit. Tensors that cannot be sent
    /// under the limit must be an error.
    #[test]
    fn plan_fits_the_frame_limit(
        tensors in prop_oneof![strategies::chunked(), strategies::descriptors()],
        limit in prop_oneof![0..FRAME_LIMIT_MIN, FRAME_LIMIT_MIN..=FRAME_LIMIT_MAX],
    ) {
        let mut planned = tensors.clone();
        let result = plan(&mut planned, limit);
        let payload_limit = limit.saturating_sub(CHUNK_OVERHEAD);
        let bytes: usize = tensors.iter().map(TensorDescriptor::byte_len).sum();
        let head = HEADER + OPEN_HEAD_MAX + tensors.len() * DESCRIPTOR_MAX + SEAL_MAX;
        let fits_inline = bytes + head <= limit;
        let chunks: usize = tensors
            .iter()
            .map(|t| t.elements().div_ceil(t.encoding.chunk_elements(limit).max(1)))
            .sum();
        let chunks_have_room = tensors.iter().all(|t| t.encoding.chunk_elements(limit) > 0);
        let fits_in_chunks = chunks_have_room && chunks <= CHUNKS_MAX;
        let has_elements = tensors.iter().all(|t| t.elements() > 0);
        prop_assert_eq!(result.is_ok(), has_elements && (fits_inline || fits_in_chunks));
        for (tensor, original) in planned.iter().zip(&tensors).filter(|_| result.is_ok()) {
            prop_assert_eq!(TensorDescriptor { chunk: original.chunk, ..*tensor }, *original);
            prop_assert_eq!(tensor.chunk == 0, fits_inline);
            for index in 0..tensor.chunks() {
                let elements = tensor.chunk_range(index).unwrap();
                prop_assert!(tensor.encoding.byte_len(elements.len()) <= payload_limit);
            }
        }
        prop_assert!(result.is_err() || Assembly::new(&planned).is_ok());
    }

    #[test]
    fn split_body_does_not_panic_on_unchecked_descriptors(
        tensors in strategies::descriptors(),
        body in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        if let Ok(parts) = split_body(&tensors, &body) {
            prop_assert_eq!(parts.map(|(_, _, bytes)| bytes.len()).sum::<usize>(), body.len());
        }
    }
}

#[test]
fn assembly_tracks_256_chunks_at_most() {
    let with_last_tensor = |last: u16| -> Descriptors {
        [f32_descriptor(1, 100), f32_descriptor(1, 100), f32_descriptor(7, 280), f32_descriptor(2, last)]
            .into_iter()
            .collect()
    };
    let tensors = with_last_tensor(32);
    assert_eq!(all_chunks(&tensors).len(), CHUNKS_MAX);
    let mut assembly = Assembly::new(&tensors).unwrap();
    for (tensor, number) in all_chunks(&tensors).into_iter().rev() {
        let elements = tensors[tensor].chunk_range(number).unwrap();
        let offset = u32::try_from(elements.start).unwrap();
        let chunk = Chunk { id: ID, tensor: tensor as u8, offset };
        assert!(!assembly.is_complete());
        assert!(assembly.accept(&chunk, elements.len() * 4).unwrap().is_some());
    }
    assert!(assembly.is_complete());
    assert_eq!(Assembly::new(&with_last_tensor(33)).map(|_| ()), Err(Error::BadDescriptor));
}

#[test]
fn assembly_without_chunks_is_complete() {
    let without_tensors = Assembly::new(&Descriptors::new()).unwrap();
    assert!(without_tensors.is_complete() && without_tensors.missing(ID).is_none());
    let inline = Assembly::new(&[f32_descriptor(0, 40)].into_iter().collect()).unwrap();
    assert!(inline.is_complete() && inline.missing(ID).is_none());
    assert_eq!(split_body(&[], &[]).unwrap().count(), 0);
}

#[test]
fn assembly_rejects_inline_and_chunked_tensors_together() {
    let mixed = [f32_descriptor(0, 40), f32_descriptor(8, 40)].into_iter().collect();
    assert_eq!(Assembly::new(&mixed).map(|_| ()), Err(Error::BadDescriptor));
}

/// Tests that a tensor in the message body has no chunks.
#[test]
fn inline_tensor_accepts_no_chunks() {
    let mut assembly = Assembly::new(&[f32_descriptor(0, 40)].into_iter().collect()).unwrap();
    let chunk = Chunk { id: ID, tensor: 0, offset: 0 };
    assert_eq!(assembly.accept(&chunk, 160), Err(Error::BadDescriptor));
}
