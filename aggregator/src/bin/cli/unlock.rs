//! Sources of the key store's passphrase or key file. A passphrase on the command line is not supported,
//! because every user of the machine can read it there.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use fedspan_aggregator::keys::{Derivation, PASSPHRASE_MIN, Unlock};
use zeroize::Zeroizing;

/// Environment variable with the path of a passphrase file.
pub const VARIABLE: &str = "FEDSPAN_PASSPHRASE_FILE";

/// Configured sources: `--passphrase-file` and `key_file`.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Path given by `--passphrase-file`.
    pub passphrase_file: Option<PathBuf>,
    /// Path given by `key_file` in `[devices]`.
    pub key_file: Option<PathBuf>,
}

impl Sources {
    /// Returns the passphrase or key for the store at `path`. `derivation` is the derivation of an existing
    /// store, or `None` for a new store.
    ///
    /// # Errors
    /// A message that names the missing or wrong source.
    pub fn unlock(&self, path: &Path, derivation: Option<Derivation>) -> Result<Unlock, String> {
        let by_key_file = match derivation {
            Some(derivation) => derivation == Derivation::KeyFile,
            None => self.key_file.is_some(),
        };
        match (&self.key_file, by_key_file) {
            (Some(file), true) => Unlock::from_key_file(file).map_err(|error| error.to_string()),
            (None, true) => {
                Err(format!("{}: opens with a key file; set key_file in [devices]", path.display()))
            }
            (Some(file), false) => Err(format!(
                "{}: opens with a passphrase, but [devices] sets key_file = {:?}",
                path.display(),
                file.display().to_string()
            )),
            (None, false) => self.passphrase(path, derivation.is_none()),
        }
    }

    /// Reads the passphrase from the configured file, the file that [`VARIABLE`] names, or the terminal.
    fn passphrase(&self, path: &Path, is_new_store: bool) -> Result<Unlock, String> {
        let variable = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
        if let Some(file) = self.passphrase_file.clone().or(variable) {
            return Unlock::from_passphrase_file(&file).map_err(|error| error.to_string());
        }
        if !std::io::stdin().is_terminal() {
            return Err(format!(
                "{}: no passphrase: give --passphrase-file FILE, set {VARIABLE}, or run this on a terminal; a key \
                 file is set as key_file in [devices]",
                path.display()
            ));
        }
        let prompt_user = |prompt: &str| {
            let passphrase = rpassword::prompt_password(prompt).map(Zeroizing::new);
            passphrase.map_err(|error| format!("no passphrase: {error}"))
        };
        let passphrase = match is_new_store {
            true => prompt_user(&format!(
                "New passphrase for {}, at least {PASSPHRASE_MIN} bytes: ",
                path.display()
            ))?,
            false => prompt_user(&format!("Passphrase of {}: ", path.display()))?,
        };
        if is_new_store && *prompt_user("Repeat the passphrase: ")? != *passphrase {
            return Err("the two passphrases differ".to_owned());
        }
        Unlock::passphrase(&passphrase).map_err(|error| error.to_string())
    }
}
