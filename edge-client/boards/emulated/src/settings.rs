//! Settings of an emulated device: `key=value` words on the semihosting command line, after the program's
//! name.
//!
//! | word | meaning |
//! | --- | --- |
//! | `provision=PATH` | host file with the provisioning record: the device's number and key; required |
//! | `protection=plaintext` | instead of a key: unencrypted frames, for the bench |
//! | `device=7` | the device's number with `protection=plaintext`, unique in the fleet |
//! | `link=uart` | the serial line (default) |
//! | `link=pipes` | two named pipes, with `receive=PATH` and `transmit=PATH` as the firmware sees them |
//! | `samples=cached` | features are computed once and kept in RAM if they fit (default) |
//! | `samples=streamed` | features are computed from raw samples on every pass |
//! | `flash=PATH` | host file of 8 KiB (`network_client`: 128 KiB) for the flash with the record; created if missing. Required with a key, since handshakes are numbered in it; without it nothing survives a reset |
//! | `resets=N` | the board resets itself N times: after the first message since its start, in either direction, then after two, up to N |
//! | `end-after=N` | the emulator exits with code 3 after N messages, like a power cut |
//!
//! Words are separated by blanks, so values cannot contain any.

use core::ffi::CStr;
use core::fmt;

/// Longest file name in bytes, with its terminating zero.
pub const NAME: usize = 160;

/// Name of a file on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name([u8; NAME]);

impl Name {
    fn new(text: &str) -> Option<Self> {
        let mut name = [0; NAME];
        let (_, target) = name.split_last_mut()?;
        target.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self(name))
    }

    /// Returns the name as a C string.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// The link to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one, and no heap to put it on")]
pub enum LinkSettings {
    /// The board's serial line.
    Uart,
    /// Two named pipes of the host.
    Pipes {
        /// Pipe from the server.
        receive: Name,
        /// Pipe to the server.
        transmit: Name,
    },
}

/// Source of the device's number and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one, and no heap to put it on")]
pub enum Identity {
    /// The provisioning record in this host file.
    Provision(Name),
    /// This device number, with unencrypted frames and no key.
    Plaintext(u64),
}

/// All settings of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Source of the device's number and key.
    pub identity: Identity,
    /// Link to the server.
    pub link: LinkSettings,
    /// True if the features are computed once and kept in RAM.
    pub cached: bool,
    /// Host file with the content of the flash. `None` if the device has no flash.
    pub flash: Option<Name>,
    /// Number of times that the board resets itself during the campaign.
    pub resets: u32,
    /// Number of messages after which a power cut is simulated. `None` for no power cut.
    pub end_after: Option<u32>,
}

/// Error in the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake<'a> {
    /// A word is not of the form `key=value`.
    NotAPair(&'a str),
    /// The key is unknown.
    Key(&'a str),
    /// The key is given twice.
    Twice(&'a str),
    /// The value is not allowed for the key.
    Value {
        /// The key of the word.
        key: &'a str,
        /// The rejected value.
        found: &'a str,
        /// Description of the allowed values.
        allowed: &'static str,
    },
    /// A required key is missing.
    Missing(&'static str),
    /// The key is given without the word that it belongs to.
    Unused {
        /// The key without effect.
        key: &'static str,
        /// The word that is missing.
        only: &'static str,
    },
}

impl fmt::Display for Mistake<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotAPair(word) => write!(f, "'{word}' is not key=value"),
            Self::Key(key) => {
                let known = "provision, protection, device, link, receive, transmit, samples, flash, resets, end-after";
                write!(f, "unknown key '{key}'; allowed: {known}")
            }
            Self::Twice(key) => write!(f, "'{key}' is given twice"),
            Self::Value { key, found, allowed } => write!(f, "{key}={found}: use {allowed}"),
            Self::Missing(key) => write!(f, "'{key}' is missing: give arg={key}=... in -semihosting-config"),
            Self::Unused { key, only } => write!(f, "'{key}' is allowed only with {only}"),
        }
    }
}

impl core::error::Error for Mistake<'_> {}

impl Settings {
    /// Parses the words of a command line. The first word, the program's name, is skipped.
    ///
    /// # Errors
    /// The first [`Mistake`] found.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, Mistake<'a>> {
        let (mut provision, mut protection, mut device) = (None, None, None);
        let (mut link, mut receive, mut transmit, mut samples) = (None, None, None, None);
        let (mut flash, mut resets, mut end_after) = (None, None, None);
        for word in words.into_iter().skip(1).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').ok_or(Mistake::NotAPair(word))?;
            let slot = match key {
                "provision" => &mut provision,
                "protection" => &mut protection,
                "device" => &mut device,
                "link" => &mut link,
                "receive" => &mut receive,
                "transmit" => &mut transmit,
                "samples" => &mut samples,
                "flash" => &mut flash,
                "resets" => &mut resets,
                "end-after" => &mut end_after,
                _ => return Err(Mistake::Key(key)),
            };
            if slot.replace(value).is_some() {
                return Err(Mistake::Twice(key));
            }
        }
        let identity = parse_identity(protection, provision, device)?;
        let link = match link {
            None | Some("uart") => match (receive, transmit) {
                (None, None) => LinkSettings::Uart,
                (Some(_), _) => return Err(Mistake::Unused { key: "receive", only: "link=pipes" }),
                (None, Some(_)) => return Err(Mistake::Unused { key: "transmit", only: "link=pipes" }),
            },
            Some("pipes") => LinkSettings::Pipes {
                receive: parse_pipe("receive", receive)?,
                transmit: parse_pipe("transmit", transmit)?,
            },
            Some(found) => {
                return Err(Mistake::Value { key: "link", found, allowed: "'uart' or 'pipes'" });
            }
        };
        let cached = match samples {
            None | Some("cached") => true,
            Some("streamed") => false,
            Some(found) => {
                return Err(Mistake::Value { key: "samples", found, allowed: "'cached' or 'streamed'" });
            }
        };
        let flash = flash.map(|found| parse_name("flash", found)).transpose()?;
        if flash.is_none() && matches!(identity, Identity::Provision(_)) {
            return Err(Mistake::Missing("flash"));
        }
        let resets = resets.map_or(Ok(0), |found| parse_count("resets", found))?;
        let end_after = end_after.map(|found| parse_count("end-after", found)).transpose()?;
        Ok(Self { identity, link, cached, flash, resets, end_after })
    }
}

/// Returns the identity that the three words describe.
fn parse_identity<'a>(
    protection: Option<&'a str>,
    provision: Option<&'a str>,
    device: Option<&'a str>,
) -> Result<Identity, Mistake<'a>> {
    match (protection, provision, device) {
        (None | Some("key"), _, Some(_)) => {
            Err(Mistake::Unused { key: "device", only: "protection=plaintext" })
        }
        (None | Some("key"), record, None) => {
            let found = record.ok_or(Mistake::Missing("provision"))?;
            Ok(Identity::Provision(parse_name("provision", found)?))
        }
        (Some("plaintext"), Some(_), _) => Err(Mistake::Unused { key: "provision", only: "protection=key" }),
        (Some("plaintext"), None, device) => {
            let found = device.ok_or(Mistake::Missing("device"))?;
            let allowed = "a number from 0 to 18446744073709551615";
            let device = found.parse().map_err(|_| Mistake::Value { key: "device", found, allowed })?;
            Ok(Identity::Plaintext(device))
        }
        (Some(found), ..) => {
            Err(Mistake::Value { key: "protection", found, allowed: "'key' or 'plaintext'" })
        }
    }
}

fn parse_pipe<'a>(key: &'static str, value: Option<&'a str>) -> Result<Name, Mistake<'a>> {
    parse_name(key, value.ok_or(Mistake::Missing(key))?)
}

fn parse_name<'a>(key: &'static str, found: &'a str) -> Result<Name, Mistake<'a>> {
    let name = if found.is_empty() { None } else { Name::new(found) };
    name.ok_or(Mistake::Value { key, found, allowed: "the name of a file or pipe, 1 to 159 bytes" })
}

fn parse_count<'a>(key: &'static str, found: &'a str) -> Result<u32, Mistake<'a>> {
    let count = found.parse().ok().filter(|count| *count > 0);
    count.ok_or(Mistake::Value { key, found, allowed: "a number from 1 to 4294967295" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Settings, Mistake<'_>> {
        Settings::parse(line.split(' '))
    }

    #[test]
    fn words_are_parsed_into_settings() -> Result<(), Mistake<'static>> {
        let plain = parse_line("client protection=plaintext device=7")?;
        let identity = Identity::Plaintext(7);
        let link = LinkSettings::Uart;
        let flash = None;
        assert_eq!(plain, Settings { identity, link, cached: true, flash, resets: 0, end_after: None });
        let reset_count = parse_line("client provision=/a/record flash=/a/flash resets=3 end-after=4")?;
        assert_eq!(
            reset_count,
            parse_line("client protection=key provision=/a/record flash=/a/flash resets=3 end-after=4")?
        );
        let Identity::Provision(record) = reset_count.identity else {
            return Err(Mistake::Missing("provision"));
        };
        assert_eq!(record.as_c_str(), c"/a/record");
        assert_eq!(reset_count.flash.as_ref().map(Name::as_c_str), Some(c"/a/flash"));
        assert_eq!((reset_count.resets, reset_count.end_after), (3, Some(4)));
        let piped = parse_line(
            "client samples=streamed device=8 protection=plaintext link=pipes receive=/a/in transmit=/a/out",
        )?;
        let LinkSettings::Pipes { receive, transmit } = piped.link else {
            return Err(Mistake::Missing("link"));
        };
        assert_eq!((receive.as_c_str(), transmit.as_c_str()), (c"/a/in", c"/a/out"));
        assert!(!piped.cached);
        Ok(())
    }

    #[test]
    fn error_names_the_mistake() {
        let long = format!("bench device=1 link=pipes transmit=b receive={}", "x".repeat(NAME));
        for (line, message) in [
            ("client", "'provision' is missing"),
            ("client provision=a", "'flash' is missing"),
            ("client provision= flash=b", "provision=: use the name of a file"),
            ("client provision=a flash=b device=7", "'device' is allowed only with protection=plaintext"),
            ("client protection=none", "protection=none: use 'key' or 'plaintext'"),
            ("client protection=plaintext", "'device' is missing"),
            (
                "client protection=plaintext device=1 provision=a",
                "'provision' is allowed only with protection=key",
            ),
            ("client device", "'device' is not key=value"),
            ("bench device=-1", "device=-1: use a number from 0"),
            ("client device=1 device=2", "'device' is given twice"),
            ("client device=1 colour=red", "unknown key 'colour'; allowed: provision, protection, device"),
            ("bench device=1 link=usb", "link=usb: use 'uart' or 'pipes'"),
            ("bench device=1 link=pipes", "'receive' is missing"),
            ("bench device=1 link=pipes receive=a", "'transmit' is missing"),
            ("bench device=1 link=pipes receive= transmit=b", "receive=: use the name of a file"),
            ("bench device=1 receive=a", "'receive' is allowed only with link=pipes"),
            ("bench device=1 samples=some", "samples=some: use 'cached' or 'streamed'"),
            ("bench device=1 flash=", "flash=: use the name of a file"),
            ("bench device=1 resets=0", "resets=0: use a number from 1"),
            ("bench device=1 resets=-1", "resets=-1: use a number from 1"),
            ("bench device=1 end-after=4294967296", "end-after=4294967296: use a number from 1"),
            (long.as_str(), "the name of a file or pipe, 1 to 159 bytes"),
        ] {
            let line = line.replace("bench ", "client protection=plaintext ");
            let text = parse_line(&line).map_or_else(|mistake| mistake.to_string(), |_| String::new());
            assert!(text.contains(message), "{line}: '{text}' does not say '{message}'");
        }
    }
}
