//! Registry of clients: the names and the digests of the bearer tokens.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use fedspan_files::hex;

/// Longest client name, in bytes.
pub const NAME_MAX: usize = 64;

/// Shortest token, in bytes. 16 characters of `openssl rand -hex` contain 64 random bits.
pub const TOKEN_MIN: usize = 16;

/// Largest number of clients.
pub const CLIENTS_MAX: usize = 100_000;

/// Invalid line of a token file, or invalid client name of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct RegistryError {
    /// Number of the line, counted from 1; for names of the configuration, the position in the list.
    pub line: usize,
    /// Description of the problem, without the token.
    pub problem: &'static str,
}

/// Index of a client in the sorted list of client names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientIndex(pub usize);

/// Names of all clients with the SHA-256 digests of their tokens.
#[derive(Clone, Debug)]
pub struct ClientRegistry {
    /// Client names, in ascending order.
    names: Vec<String>,
    /// Digest of each client's token, in the order of the names.
    digests: Vec<[u8; 32]>,
}

impl ClientRegistry {
    /// Parses lines `CLIENT TOKEN` or `CLIENT sha256:DIGEST`, with the digest of the token in hexadecimal
    /// digits. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// [`RegistryError`] for the first invalid line.
    pub fn parse(text: &str) -> Result<Self, RegistryError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let entries =
            lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(line, text)| {
                let invalid = |problem| RegistryError { line, problem };
                let (name, token) = text
                    .split_once(char::is_whitespace)
                    .ok_or_else(|| invalid("found a name without a token, allowed: CLIENT TOKEN"))?;
                let token = token.trim();
                let digest = match token.strip_prefix("sha256:") {
                    Some(digits) => *hex::decode(digits)
                        .ok_or_else(|| invalid("sha256: must be followed by 64 hexadecimal digits"))?,
                    None if token.len() < TOKEN_MIN => {
                        return Err(invalid("a token must have at least 16 characters"));
                    }
                    None if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                        return Err(invalid("a token must be printable ASCII without spaces"));
                    }
                    None => digest(token),
                };
                Ok((line, name.to_owned(), digest))
            });
        Self::from_entries(entries.collect::<Result<_, _>>()?)
    }

    /// Creates a registry without secrets, in which the token of a client is its name.
    ///
    /// # Errors
    /// [`RegistryError`] for the first invalid name.
    pub fn from_names(names: &[String]) -> Result<Self, RegistryError> {
        Self::from_entries(
            names.iter().enumerate().map(|(index, name)| (index + 1, name.clone(), digest(name))).collect(),
        )
    }

    /// Creates a registry from line numbers, names and digests; names and tokens must be unique.
    fn from_entries(mut entries: Vec<(usize, String, [u8; 32])>) -> Result<Self, RegistryError> {
        if entries.is_empty() || entries.len() > CLIENTS_MAX {
            return Err(RegistryError { line: 1, problem: "allowed: from 1 to 100000 clients" });
        }
        let mut names = BTreeSet::new();
        let mut digests = BTreeSet::new();
        for (line, name, digest) in &entries {
            let invalid = |problem| Err(RegistryError { line: *line, problem });
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_allowed) {
                return invalid("a name must have 1 to 64 letters, digits, '-' or '_'");
            }
            if !names.insert(name.clone()) {
                return invalid("this name occurs twice");
            }
            if !digests.insert(*digest) {
                return invalid("another client has the same token");
            }
        }
        entries.sort_by(|(_, first, _), (_, second, _)| first.cmp(second));
        let (names, digests) = entries.into_iter().map(|(_, name, digest)| (name, digest)).unzip();
        Ok(Self { names, digests })
    }

    /// Index of the client with this token; `None` if there is no such client. All digests are compared, each
    /// in constant time, so that the timing reveals no information about tokens.
    #[must_use]
    pub fn identify(&self, token: &str) -> Option<ClientIndex> {
        let presented = digest(token);
        let mut client = None;
        for (index, stored) in self.digests.iter().enumerate() {
            let differs =
                stored.iter().zip(presented).fold(0, |differs, (stored, byte)| differs | (stored ^ byte));
            if differs == 0 {
                client = Some(ClientIndex(index));
            }
        }
        client
    }

    /// Name of a client.
    #[must_use]
    pub fn name(&self, client: ClientIndex) -> &str {
        self.names.get(client.0).map_or("", String::as_str)
    }

    /// Names of all clients, in ascending order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// SHA-256 of a token.
fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{ClientIndex, ClientRegistry};

    #[test]
    fn token_identifies_exactly_one_client() {
        let text = "# fleet\n\nbeate 0123456789abcdef\nanton sha256:39b6834aab7350c2bd68f0f1efb72f1df57f9869fd3cd60155bac185216751ce\n";
        let registry = ClientRegistry::parse(text).unwrap();
        assert_eq!(registry.names(), ["anton", "beate"]);
        assert_eq!(registry.identify("0123456789abcdef"), Some(ClientIndex(1)));
        assert_eq!(registry.identify("abcdefabcdefabcd"), Some(ClientIndex(0)));
        for unknown in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0", "anton"] {
            assert_eq!(registry.identify(unknown), None, "{unknown}");
        }
        let name_registry = ClientRegistry::from_names(&["b".to_owned(), "a".to_owned()]).unwrap();
        assert_eq!(
            (name_registry.identify("a"), name_registry.identify("b"), name_registry.identify("c")),
            (Some(ClientIndex(0)), Some(ClientIndex(1)), None)
        );
    }

    #[test]
    fn error_names_the_invalid_line() {
        for (text, line) in [
            ("", 1),
            ("anton", 1),
            ("# a\nanton short", 2),
            ("../anton 0123456789abcdef", 1),
            ("a.b 0123456789abcdef", 1),
            ("a 0123456789abcdef\na 1123456789abcdef", 2),
            ("a 0123456789abcdef\nb 0123456789abcdef", 2),
            ("a sha256:12", 1),
            ("a 0123456789abcdef 0123456789abcdef", 1),
        ] {
            assert_eq!(ClientRegistry::parse(text).unwrap_err().line, line, "{text:?}");
        }
        assert!(ClientRegistry::from_names(&["a/b".to_owned()]).is_err());
    }
}
