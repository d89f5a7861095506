//! Authentication settings: the key store of the devices, or plaintext on a test bench.

use std::path::{Path, PathBuf};

use fedspan_engine::config::Problem;
use fedspan_engine::config::Section;

/// Default file name of the key store, in the state directory.
const STORE: &str = "keys";

/// Authentication of devices, from `[listen] plaintext`, `[devices] keys` and `key_file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// No authentication and no encryption, for test benches.
    Plaintext,
    /// Every frame is sealed with the device's key.
    Keys {
        /// Path of the key store.
        store: PathBuf,
        /// Path of the key file that unlocks the key store; `None` if a passphrase unlocks it.
        key_file: Option<PathBuf>,
    },
}

impl Security {
    /// Returns the paths of the key store and its key file. In plaintext, returns the default path of the key
    /// store.
    #[must_use]
    pub fn store(&self, state: &Path) -> (PathBuf, Option<PathBuf>) {
        match self {
            Self::Plaintext => (state.join(STORE), None),
            Self::Keys { store, key_file } => (store.clone(), key_file.clone()),
        }
    }

    /// Checks that the key store exists unless plaintext is configured.
    ///
    /// # Errors
    /// A message with the two remedies if the key store does not exist. If the path cannot be examined the
    /// check passes; opening the key store then reports the error.
    pub fn check_store(&self) -> Result<(), String> {
        match self {
            Self::Keys { store, .. } if matches!(store.try_exists(), Ok(false)) => Err(format!(
                "{}: no key store, so that no device could join. Either make one, `fedspan-aggregator keys add \
                 DEVICE...` with the same --config; or, on a test bench, admit every device that can reach the port: \
                 `plaintext = true` in [listen]",
                store.display()
            )),
            _ => Ok(()),
        }
    }
}

/// Reads `plaintext` of `[listen]`; `None` if the key is absent.
pub(super) fn read_plaintext(listen: &Section<'_>) -> Result<Option<bool>, Problem> {
    let plaintext = listen.boolean("plaintext", false)?;
    Ok(listen.has("plaintext").then_some(plaintext))
}

/// Reads the paths `keys` and `key_file` of `[devices]`.
pub(super) fn read_key_files(devices: &Section<'_>) -> Result<(Option<PathBuf>, Option<PathBuf>), Problem> {
    let read_path = |key: &str, allowed: &str| -> Result<Option<PathBuf>, Problem> {
        match devices.optional_string(key, allowed)? {
            Some(path) if path.is_empty() => {
                Err(devices.problem(key, format!("found \"\", allowed: {allowed}")))
            }
            path => Ok(path.map(PathBuf::from)),
        }
    };
    Ok((
        read_path("keys", "a file: the key store, made by `keys add`")?,
        read_path("key_file", "a file of 32 random bytes that opens the key store")?,
    ))
}

/// Decides between plaintext and keys.
///
/// # Errors
/// [`Problem`] if the configuration asks for both.
pub(super) fn choose_security(
    listen: &Section<'_>,
    plaintext: Option<bool>,
    (store, key_file): (Option<PathBuf>, Option<PathBuf>),
    state: &Path,
) -> Result<Security, Problem> {
    let key_setting = match (&store, &key_file) {
        (Some(_), _) => Some("keys"),
        (None, Some(_)) => Some("key_file"),
        (None, None) => None,
    };
    match (plaintext, key_setting) {
        (Some(true), Some(key)) => Err(listen.problem(
            "plaintext",
            format!("found true, but devices.{key} asks for keys: remove one of the two"),
        )),
        (Some(true), None) => Ok(Security::Plaintext),
        _ => Ok(Security::Keys { store: store.unwrap_or_else(|| state.join(STORE)), key_file }),
    }
}
