//! Fuzz targets for readers of key material: the provisioning record in a board's flash, and the text of
//! `keys export`.

use std::collections::BTreeMap;

use fedspan_aggregator::keys::{LineMistake, parse_keys};
use fedspan_protocol::secure::{
    Key, PROVISION, PROVISION_MAX, PROVISION_WITH_NOISE, Provision, ProvisionedNoise,
};

use crate::Work;
use crate::reference::crc32c;
use crate::script::Script;

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

/// Fields of a record: device, epoch, key, and the bytes of the noise entry.
type Fields = (u64, u16, [u8; 32], Option<[u8; 30]>);

/// Reads a record with a second implementation of SPEC.md, section 13.
fn read_reference(bytes: &[u8]) -> Option<Fields> {
    let length = usize::from(u16::from_le_bytes(bytes_at(bytes, 6)?));
    let record = bytes.get(..length).filter(|_| (54..=512).contains(&length))?;
    let (content, check) = record.split_last_chunk::<4>()?;
    let is_valid = content.starts_with(b"FSPV\x01\x00") && crc32c(content).to_le_bytes() == *check;
    let mut entries = content.get(50..)?;
    let mut last_tag = None;
    let mut noise = None;
    while let Some((&tag, after_tag)) = entries.split_first() {
        let (&length, after_tag) = after_tag.split_first()?;
        entries = after_tag.get(usize::from(length)..)?;
        if last_tag.is_some_and(|last_tag| last_tag >= tag) || tag < 0x80 && (tag, length) != (1, 30) {
            return None;
        }
        if tag == 1 {
            // The sign bit must be clear; an exponent of all ones means a number that is not finite.
            noise = bytes_at(after_tag, 0)
                .filter(|noise: &[u8; 30]| noise[27] < 0x7F || noise[27] == 0x7F && noise[26] < 0x80);
            noise?;
        }
        last_tag = Some(tag);
    }
    let fields = (bytes_at(bytes, 8)?, bytes_at(bytes, 16)?, bytes_at(bytes, 18)?);
    is_valid.then_some((u64::from_le_bytes(fields.0), u16::from_le_bytes(fields.1), fields.2, noise))
}

/// Runs one input: a byte of settings, then a raw record, an honest record with extra bytes, or a damaged
/// honest record with its old CRC or with a recomputed one.
pub fn provision(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = script.byte();
    let mut page = match settings % 4 {
        0 => script.rest().to_vec(),
        1 => {
            let mut page = honest_record(&mut script);
            page.extend_from_slice(script.rest());
            page
        }
        2 => {
            let mut page = honest_record(&mut script);
            script.damage(&mut page);
            page
        }
        _ => {
            // A recomputed CRC lets the damaged record reach the code after the check.
            let mut page = honest_record(&mut script);
            script.damage(&mut page);
            let end = page.len() - 4;
            let check = crc32c(&page[..end]).to_le_bytes();
            page[end..].copy_from_slice(&check);
            page
        }
    };
    if settings / 4 % 2 == 1 {
        page.resize(page.len().max(1024), 0xFF);
    }
    let result = Provision::read(&page);
    let fields = |provision: &Provision| {
        let noise = provision.noise.map(|noise| bytes_of(&noise));
        (provision.device, provision.key.epoch(), *provision.key.expose(), noise)
    };
    assert_eq!(result.as_ref().ok().map(fields), read_reference(&page), "{result:?}");
    match &result {
        Ok(provision) => {
            let mut rewritten = [0; PROVISION_WITH_NOISE];
            assert_eq!(provision.write(&mut rewritten), Ok(provision.length()));
            assert_eq!(Provision::read(&rewritten).as_ref(), Ok(provision));
            // Bytes after the record must not matter.
            let length = usize::from(u16::from_le_bytes([page[6], page[7]]));
            assert!(length <= PROVISION_MAX);
            assert_eq!(Provision::read(&page[..length]).as_ref(), Ok(provision));
            assert!(Provision::read(&page[..length - 1]).is_err());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Work { frames: 1, refused: u64::from(result.is_err()), steps: 1 }
}

/// Returns the bytes of a noise entry.
fn bytes_of(noise: &ProvisionedNoise) -> [u8; 30] {
    let ProvisionedNoise { multiplier_square, budget, rows_max, slot, clip, iterations_max } = noise;
    let mut bytes = [0; 30];
    bytes[..8].copy_from_slice(&multiplier_square.to_le_bytes());
    bytes[8..16].copy_from_slice(&budget.to_le_bytes());
    bytes[16..20].copy_from_slice(&rows_max.to_le_bytes());
    bytes[20..24].copy_from_slice(&slot.to_le_bytes());
    bytes[24..28].copy_from_slice(&clip.to_le_bytes());
    bytes[28..].copy_from_slice(&iterations_max.to_le_bytes());
    bytes
}

/// Creates a record with a device, a key and entries from the script, and a correct CRC.
fn honest_record(script: &mut Script<'_>) -> Vec<u8> {
    let device = script.word();
    let epoch = script.word();
    let key = script.byte();
    let provision = Provision { device: device.into(), key: Key::new(epoch, [key; 32]), noise: None };
    let mut page = vec![0; PROVISION];
    provision.write(&mut page).expect("room");
    page.truncate(PROVISION - 4);
    let length = script.index();
    page.extend_from_slice(script.take(length));
    let length = (page.len() + 4) as u16;
    page[6..8].copy_from_slice(&length.to_le_bytes());
    let check = crc32c(&page).to_le_bytes();
    page.extend(check);
    page
}

/// Runs one input: any text, or honest lines with damage. In an accepted text every line is one key, and no
/// device occurs twice.
pub fn key_lines(bytes: &[u8]) -> Work {
    let mut script = Script::new(bytes);
    let settings = script.byte();
    let mut text = Vec::new();
    if settings % 2 == 1 {
        for _ in 0..script.byte() % 8 {
            text.extend(key_line(script.byte().into(), script.byte().into(), script.byte()).into_bytes());
        }
        script.damage(&mut text);
    }
    text.extend_from_slice(script.rest());
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let read = parse_keys(&text);
    match &read {
        Ok(keys) => {
            let content = lines.iter().map(|line| line.trim_ascii());
            let key_count = content.filter(|line| !line.is_empty() && !line.starts_with('#')).count();
            assert_eq!(keys.len(), key_count);
            let rewritten: String = keys.iter().map(|(device, key)| format_key(device.0, key)).collect();
            assert_eq!(parse_keys(&rewritten).as_ref(), Ok(keys));
        }
        Err((number, mistake)) => {
            let line = lines.get(number - 1).expect("the number of an existing line");
            assert!(!line.trim_ascii().is_empty() && !line.trim_ascii().starts_with('#'));
            // The lines before the faulty one must be valid.
            let earlier_lines: String = lines[..number - 1].iter().flat_map(|line| [line, "\n"]).collect();
            let earlier_lines =
                parse_keys(&earlier_lines).unwrap_or_else(|fault| panic!("{fault:?} before {number}"));
            let single_line: Result<BTreeMap<_, _>, _> = parse_keys(line);
            match mistake {
                LineMistake::Twice => {
                    let device = single_line.expect("a line by itself").into_keys().next();
                    assert!(device.is_some_and(|device| earlier_lines.contains_key(&device)));
                }
                mistake => assert_eq!(single_line, Err((1, *mistake))),
            }
        }
    }
    Work { frames: 1, refused: u64::from(read.is_err()), steps: 1 }
}

fn key_line(device: u64, epoch: u16, key: u8) -> String {
    format_key(device, &Key::new(epoch, [key; 32]))
}

fn format_key(device: u64, key: &Key) -> String {
    let digits: String = key.expose().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{device} {} {digits}\n", key.epoch())
}

/// Returns records with valid, unknown and malformed entries, in every setting.
pub fn provision_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for settings in 1..8u8 {
        let noise = [&[1, 30][..], &[7; 30], &[0x80, 0]].concat();
        for entries in
            [&[][..], &[0x80, 1, 7], &[0x80, 0, 0xFF, 2, 1, 1], &[0x80, 0, 0x80, 0], &[5, 0], &[0x80], &noise]
        {
            let length = entries.len() as u8;
            seeds.push([&[settings, 9, 0, 1, 0, 0x42, length], entries, &[1, 8, 0, 1, 0, 0]].concat());
            if settings == 4 {
                // A valid record in an erased page.
                let honest = [&[9, 0, 1, 0, 0x42, length], entries].concat();
                seeds.push([&[4][..], &self::honest_record(&mut Script::new(&honest))].concat());
            }
        }
    }
    seeds
}

/// Returns key lists with comments, damage and repeated devices.
pub fn key_lines_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for count in 0..8u8 {
        let devices: Vec<u8> = (0..count).flat_map(|index| [index, count, 0x42]).collect();
        for damage in [&[0][..], &[1, 3, 0, 1], &[2, 0, 0, 0x20, 70, 0, 0x11]] {
            seeds.push([&[1, count], &devices[..], damage, b"# a comment\n\n 700 0 "].concat());
            let text = [b"# fedspan keys 1\n\n", key_line(count.into(), 0, 7).as_bytes()].concat();
            seeds.push([&[1, count], &devices[..], damage, &text[..]].concat());
        }
        let repeated_device =
            [key_line(7, 0, count), "\t".to_owned() + &key_line(7 + u64::from(count % 2), 1, 1)].concat();
        seeds.push([&[0][..], repeated_device.as_bytes()].concat());
    }
    seeds
}
