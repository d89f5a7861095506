//! Names of the files of accepted updates. A name has the client, its samples, the digest of the request body, and a
//! seal: the digest of the file and of the name before the seal.

use std::io::ErrorKind;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::disk::{Disk, finish_hex, hex_text, is_of_the_system};
use super::round_state::UpdateSummary;
use fedspan_files::hex;

/// End of every name.
const EXTENSION: &str = ".safetensors";

/// Parsed name of an update file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateName {
    /// Name of the client.
    pub client: String,
    /// Samples and digest of the request body.
    pub update: UpdateSummary,
    /// Seal in hexadecimal digits; `None` in names of earlier versions.
    pub seal: Option<String>,
}

/// Result of the verification of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The file and its name are those that were accepted.
    Sound,
    /// An earlier version wrote the file, and its name says nothing about the content.
    Unverifiable,
    /// The file or its name has changed, or the file cannot be read; the text says how.
    Damaged(String),
}

impl UpdateName {
    /// Name of an accepted update of a round, with the seal of the file that `content` is the hash of.
    #[must_use]
    pub fn sealed(round: u32, client: &str, update: UpdateSummary, content: Sha256) -> Self {
        let mut name = Self { client: client.to_owned(), update, seal: None };
        name.seal = Some(name.seal_of(round, content));
        name
    }

    /// Parses a name; `None` if it is invalid.
    #[must_use]
    pub fn parse(file: &str) -> Option<Self> {
        let mut parts = file.strip_suffix(EXTENSION)?.split('.');
        let client = parts.next()?.to_owned();
        let samples = parts.next()?.parse().ok()?;
        let digest = *hex::decode(parts.next()?)?;
        let seal = parts.next().map(str::to_owned);
        let name = Self { client, update: UpdateSummary { samples, digest }, seal };
        // Only the form that this server writes is accepted, such as lower-case digits.
        (parts.next().is_none() && name.file_name() == file).then_some(name)
    }

    /// Name of the file.
    #[must_use]
    pub fn file_name(&self) -> String {
        let seal = self.seal.as_ref().map(|seal| format!(".{seal}")).unwrap_or_default();
        self.stem() + &seal + EXTENSION
    }

    /// Part of the name before the seal.
    fn stem(&self) -> String {
        format!("{}.{}.{}", self.client, self.update.samples, hex_text(&self.update.digest))
    }

    /// Seal of a file with this name.
    fn seal_of(&self, round: u32, mut content: Sha256) -> String {
        content.update(format!("\nround {round}: {}\n", self.stem()));
        finish_hex(content)
    }

    /// Compares the hash of the file with the name.
    #[must_use]
    pub fn verify(&self, round: u32, content: Sha256) -> Verification {
        match &self.seal {
            Some(seal) => match self.seal_of(round, content) {
                found if found == *seal => Verification::Sound,
                found => Verification::Damaged(format!(
                    "found SHA-256 {found} of the file and its name, recorded was {seal}"
                )),
            },
            // The stored file is the request body if the client has sent a whole adapter with the header of the base.
            None if content.finalize()[..] == self.update.digest => Verification::Sound,
            None => Verification::Unverifiable,
        }
    }

    /// Reads and verifies the file. A file that cannot be read is damaged.
    ///
    /// # Errors
    /// The error of the system if the file is missing, or if the error says nothing about this file: see
    /// [`is_of_the_system`].
    pub fn verify_file(&self, round: u32, path: &Path, disk: &Disk) -> std::io::Result<Verification> {
        match disk.hash(path) {
            Ok(content) => Ok(self.verify(round, content)),
            // The next attempt finds that a file is missing.
            Err(error) if is_of_the_system(&error) || error.kind() == ErrorKind::NotFound => Err(error),
            Err(error) => Ok(Verification::Damaged(format!("cannot be read: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn name(client: &str) -> UpdateName {
        let update = UpdateSummary { samples: 5, digest: [0xab; 32] };
        UpdateName::sealed(1, client, update, Sha256::new_with_prefix("content"))
    }

    #[test]
    fn longest_name_fits_a_file_system() {
        let longest = "x".repeat(super::super::NAME_MAX);
        let update = UpdateSummary { samples: u32::MAX, digest: [0; 32] };
        assert!(UpdateName::sealed(1, &longest, update, Sha256::new()).file_name().len() <= 230);
    }

    #[test]
    fn seal_covers_content_client_samples_body_and_round() {
        let sealed = name("anton");
        assert_eq!(UpdateName::parse(&sealed.file_name()), Some(sealed.clone()));
        let content = || Sha256::new_with_prefix("content");
        assert_eq!(sealed.verify(1, content()), Verification::Sound);
        let is_damaged = |name: &UpdateName, round, content| {
            matches!(name.verify(round, content), Verification::Damaged(_))
        };
        assert!(is_damaged(&sealed, 2, content()));
        assert!(is_damaged(&sealed, 1, Sha256::new_with_prefix("contenu")));
        assert!(is_damaged(&UpdateName { client: "beate".to_owned(), ..sealed.clone() }, 1, content()));
        let more = UpdateSummary { samples: 500, ..sealed.update };
        assert!(is_damaged(&UpdateName { update: more, ..sealed.clone() }, 1, content()));
        let other = UpdateSummary { digest: [0; 32], ..sealed.update };
        assert!(is_damaged(&UpdateName { update: other, ..sealed }, 1, content()));
    }

    /// A flipped bit of a name gives another name, no name, or an update that fails verification.
    #[test]
    fn every_flipped_bit_of_a_name_is_found() {
        let file = name("anton").file_name().into_bytes();
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let parsed = std::str::from_utf8(&flipped).ok().and_then(UpdateName::parse);
            let verified = parsed.map(|name| name.verify(1, Sha256::new_with_prefix("content")));
            assert!(matches!(verified, None | Some(Verification::Damaged(_))), "bit {bit}: {verified:?}");
        }
    }

    #[test]
    fn name_of_an_earlier_version_is_verified_if_it_can_be() {
        let body = "content";
        let digest = hex_text(&Sha256::digest(body).into());
        let earlier = UpdateName::parse(&format!("anton.5.{digest}.safetensors")).unwrap();
        assert_eq!(earlier.verify(1, Sha256::new_with_prefix(body)), Verification::Sound);
        assert_eq!(earlier.verify(1, Sha256::new_with_prefix("merged")), Verification::Unverifiable);
    }
}
