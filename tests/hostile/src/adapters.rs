//! Fuzz target for adapter files: readers of safetensors headers and of adapter configurations, and the
//! weighted mean. An accepted header must agree with the `safetensors` crate, and a mean must not depend on
//! the order of the clients.

use fedspan_adapters::files::{Config, Dtype, Fault, Header, Layout, MeanBuffers, weighted_mean};
use safetensors::SafeTensors;

use crate::{Random, Work};

/// Runs one input. The first byte selects the kind of data: a whole file, a header followed by as many zeros
/// as the second byte states, a configuration, or numbers to average.
pub fn adapter_files(bytes: &[u8]) -> Work {
    let Some(([kind, count], content)) = bytes.split_first_chunk() else {
        return Work { frames: 1, refused: 1, steps: 1 };
    };
    let is_accepted = match kind % 4 {
        0 => read_file(content),
        1 => {
            let length = (content.len() as u64).to_le_bytes();
            read_file(&[&length[..], content, &vec![0; usize::from(*count)]].concat())
        }
        2 => parse_config(content),
        _ => average_numbers(*count, content),
    };
    Work { frames: 1, refused: u64::from(!is_accepted), steps: 1 }
}

/// Checks that an error message is not much longer than the input that it quotes.
fn check_message(tensor: Option<&str>, fault: &Fault, length: usize) {
    let text = fault.to_string();
    assert!(!text.is_empty() && text.len() <= 4 * length + 1000, "a message of {} bytes", text.len());
    assert!(tensor.is_none_or(|name| name.len() <= 4 * length), "a name that was not there");
}

/// Reads a safetensors file and compares an accepted header with the `safetensors` crate. Returns false if
/// the file is rejected.
fn read_file(bytes: &[u8]) -> bool {
    let header = match Header::read(bytes, bytes.len() as u64) {
        Ok(header) => header,
        Err((tensor, fault)) => {
            check_message(tensor.as_deref(), &fault, bytes.len());
            return false;
        }
    };
    let safetensors =
        SafeTensors::deserialize(bytes).expect("this crate accepts a file that safetensors rejects");
    assert_eq!(safetensors.len(), header.tensors.len());
    let mut end = header.bytes.len() as u64;
    for tensor in &header.tensors {
        let view = safetensors.tensor(&tensor.name).expect("the crates read different names");
        assert!(view.shape().iter().map(|side| *side as u64).eq(tensor.shape.iter().copied()));
        assert_eq!(view.dtype().to_string(), tensor.dtype.to_string());
        let begin = usize::try_from(tensor.begin).expect("within the file");
        assert_eq!(view.data().len() as u64, tensor.bytes());
        assert_eq!(view.data().as_ptr(), bytes[begin..].as_ptr());
        assert_eq!(tensor.begin, end, "there is a hole between two tensors");
        end += tensor.bytes();
    }
    assert_eq!(end, bytes.len() as u64);
    match Layout::from_header(&header) {
        Ok(layout) => {
            assert_eq!(layout.tensors.len(), header.tensors.len());
            assert_eq!(layout.bytes() + header.bytes.len() as u64, bytes.len() as u64);
            assert!(layout.pairs.iter().all(|pair| pair.rank > 0 && pair.up != pair.down));
            true
        }
        Err((tensor, fault)) => {
            check_message(tensor.as_deref(), &fault, bytes.len());
            false
        }
    }
}

/// Parses a configuration; returns false if it is rejected.
fn parse_config(bytes: &[u8]) -> bool {
    match Config::parse(bytes) {
        Ok(config) => {
            assert_eq!(config.difference(&config), None);
            assert_eq!(config.peft_type, "LORA");
            true
        }
        Err(fault) => {
            check_message(None, &fault, bytes.len());
            false
        }
    }
}

/// Averages one to four clients of equal length. The mean must have the same bits in any order of the
/// clients, and whether it is computed over whole blocks or element by element; values that are not finite
/// must be found.
fn average_numbers(count: u8, bytes: &[u8]) -> bool {
    let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][usize::from(count / 4) % 3];
    let (clients, size) = (usize::from(count % 4) + 1, dtype.size());
    let elements = bytes.len() / (clients * size);
    let mut blocks: Vec<(f64, &[u8])> = bytes
        .chunks_exact((elements * size).max(1))
        .take(clients)
        .zip([1.0, 3.0, 536_870_911.0, 7.0])
        .map(|(block, weight)| (weight, block))
        .collect();
    if elements == 0 || blocks.len() != clients {
        return false;
    }
    let total = blocks.iter().map(|(weight, _)| weight).sum();
    let (mut buffers, mut means) = (MeanBuffers::default(), vec![0.0; elements]);
    let mut value = [0.0];
    let mut finite = |block: &[u8], element: usize| {
        dtype.decode(&block[element * size..], &mut value);
        value[0].is_finite()
    };
    let result = weighted_mean(&blocks, dtype, total, &mut means, &mut buffers);
    let all_finite = (0..elements).all(|element| blocks.iter().all(|(_, block)| finite(block, element)));
    assert_eq!(result.is_ok(), all_finite);
    if let Err((client, element)) = result {
        assert!(
            !finite(blocks[client].1, element) && (0..element).all(|before| finite(blocks[client].1, before))
        );
        return false;
    }
    let bits: Vec<u64> = means.iter().map(|mean| mean.to_bits()).collect();
    for _ in 0..clients {
        blocks.rotate_left(1);
        for (element, bits) in bits.iter().enumerate() {
            let element_blocks: Vec<(f64, &[u8])> =
                blocks.iter().map(|(weight, block)| (*weight, &block[element * size..][..size])).collect();
            let mut single_mean = [0.0];
            weighted_mean(&element_blocks, dtype, total, &mut single_mean, &mut buffers)
                .expect("a value became infinite or NaN");
            assert_eq!(single_mean[0].to_bits(), *bits);
        }
    }
    true
}

/// Returns files of all dtypes, configurations, and numbers to average.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut random = Random(6);
    let mut seeds = Vec::new();
    for (dtype, size) in [("F32", 4), ("F16", 2), ("BF16", 2)] {
        for (down, up) in [(".lora_A.weight", ".lora_B.weight"), (".lora_embedding_A", ".lora_embedding_B.x")]
        {
            // Offsets of the ends of the tensors, which have the shapes [2, 3], [1, 2] and [].
            let first_end = 2 * 3 * size;
            let second_end = first_end + 2 * size;
            let third_end = second_end + size;
            let up = if down.contains("embedding") { up.trim_end_matches(".x") } else { up };
            let text = format!(
                r#"{{"__metadata__":{{"format":"pt"}},"m{down}":{{"dtype":"{dtype}","shape":[2,3],"data_offsets":[0,{first_end}]}},
                "m{up}":{{"dtype":"{dtype}","shape":[1,2],"data_offsets":[{first_end},{second_end}]}},
                "score":{{"dtype":"{dtype}","shape":[],"data_offsets":[{second_end},{third_end}]}}}}"#
            );
            let length = u8::try_from(third_end).expect("a short file");
            seeds.push([&[1, length], text.as_bytes()].concat());
            let bytes = (text.len() as u64).to_le_bytes();
            seeds.push([&[0, 0], &bytes[..], text.as_bytes(), &vec![0; third_end]].concat());
        }
    }
    for config in [
        r#"{"peft_type":"LORA","r":8,"lora_alpha":16,"target_modules":["q","v"],"modules_to_save":null}"#,
        r#"{"peft_type":"LORA","r":1,"lora_alpha":0.5,"use_rslora":true,"rank_pattern":{"a":2,"[ab]|c":3},"alpha_pattern":{"b":1}}"#,
        r#"{"r":4,"lora_alpha":1e3,"peft_type":"LORA","target_modules":".*","bias":"none","use_dora":false}"#,
    ] {
        seeds.push([&[2, 0], config.as_bytes()].concat());
    }
    for count in 0..12 {
        // Random values with exponents of medium size, then equal values.
        let drawn: Vec<u8> = (0..48).map(|_| random.byte() & 0xBF).collect();
        seeds.push([&[3, count], &drawn[..]].concat());
        seeds.push([&[3, count], &[0x3C; 40][..]].concat());
    }
    seeds
}
