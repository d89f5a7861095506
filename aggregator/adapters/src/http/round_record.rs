//! Record of a committed round, `round.json`: the inputs of the round, and the digests of its files and of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::disk::finish_hex;

/// Text before the digest of the record. The digest covers all bytes before this text.
const DIGEST_KEY: &str = r#","digest":""#;
/// Text after the digest.
const END: &str = "\"}\n";
/// Number of hexadecimal digits of SHA-256.
const DIGITS: usize = 64;

/// Content of `round.json`: the inputs of a committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundRecord {
    /// Round number; 0 is the base.
    pub round: u32,
    /// Name of the LoRA method, which is the same in all rounds.
    pub method: String,
    /// Name of the round kind; empty for the base.
    pub trained: String,
    /// SHA-256 of the base's adapter file, in hexadecimal digits.
    pub base: String,
    /// Number of samples and SHA-256 of the accepted update of every client.
    pub clients: BTreeMap<String, (u32, String)>,
    /// `|mean(B_i A_i) - mean(B) mean(A)| / |mean(B_i A_i)|`, Frobenius norms. `None` if it was not computed.
    pub interference: Option<f64>,
    /// Largest number of samples that counted; larger numbers in `clients` counted as this one. `None` for the base
    /// and in records of earlier versions, which had no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_max: Option<u32>,
    /// SHA-256 of every file of the round, by name, in hexadecimal digits. Empty in records of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// SHA-256 of the record before this key, in hexadecimal digits. Empty in records of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// Reason why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordFault {
    /// The text is not a record.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The text is not the one whose digest was recorded.
    #[error("found SHA-256 {found} of the record, recorded was {recorded}")]
    Digest {
        /// Digest of the text, in hexadecimal digits.
        found: String,
        /// Digest in the text, shortened to the length of a digest.
        recorded: String,
    },
    /// The record names digests of files and has none itself.
    #[error("the digest of the record is missing or cannot be read")]
    NoDigest,
}

impl RoundRecord {
    /// Text of `round.json`, which ends with the digest of everything before it.
    ///
    /// # Errors
    /// The error of the serialiser.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string(&Self { digest: String::new(), ..self.clone() })?;
        text.pop();
        let digest = finish_hex(Sha256::new_with_prefix(&text));
        Ok(text + DIGEST_KEY + &digest + END)
    }

    /// Parses a record and verifies its digest. A record of an earlier version has no digests; [`Self::files`] is
    /// then empty.
    ///
    /// # Errors
    /// `RecordFault` if the text is not exactly what [`Self::to_text`] or an earlier version wrote.
    pub fn parse(text: &[u8]) -> Result<Self, RecordFault> {
        let covered = text.len().checked_sub(DIGEST_KEY.len() + DIGITS + END.len());
        let (covered, tail) = text.split_at(covered.unwrap_or(0));
        let recorded =
            tail.strip_prefix(DIGEST_KEY.as_bytes()).and_then(|tail| tail.strip_suffix(END.as_bytes()));
        if let Some(recorded) = recorded {
            let found = finish_hex(Sha256::new_with_prefix(covered));
            if found.as_bytes() != recorded {
                let recorded = String::from_utf8_lossy(recorded).escape_debug().to_string();
                return Err(RecordFault::Digest { found, recorded });
            }
        }
        let record: Self = serde_json::from_slice(text)?;
        let is_of_earlier_version =
            record.files.is_empty() && record.digest.is_empty() && record.samples_max.is_none();
        if recorded.is_none() && !is_of_earlier_version { Err(RecordFault::NoDigest) } else { Ok(record) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn record() -> RoundRecord {
        RoundRecord {
            round: 1,
            method: "rolora".to_owned(),
            trained: "up".to_owned(),
            base: "ab".repeat(32),
            clients: [("anton".to_owned(), (5, "cd".repeat(32)))].into(),
            interference: Some(0.1),
            samples_max: Some(100_000),
            files: [("adapter_model.safetensors".to_owned(), "ef".repeat(32))].into(),
            digest: String::new(),
        }
    }

    #[test]
    fn record_is_parsed_as_it_was_written() {
        let text = record().to_text().unwrap();
        let parsed = RoundRecord::parse(text.as_bytes()).unwrap();
        assert_eq!(RoundRecord { digest: String::new(), ..parsed }, record());
        // Programs that read the record see JSON.
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&json["round"], &json["clients"]["anton"][0]), (&1.into(), &5.into()));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let text = record().to_text().unwrap().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(RoundRecord::parse(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..text.len() {
            assert!(RoundRecord::parse(&text[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn record_of_earlier_version_has_no_digests() {
        let text =
            br#"{"base":"ab","clients":{},"interference":null,"method":"lora","round":0,"trained":""}"#;
        let record = RoundRecord::parse(text).unwrap();
        assert!(record.files.is_empty() && record.digest.is_empty());
        assert!(matches!(RoundRecord::parse(b"{"), Err(RecordFault::Json(_))));
    }
}
