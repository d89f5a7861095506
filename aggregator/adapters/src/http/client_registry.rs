//! Who may take part, and how they prove it: one bearer token a client.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use fedspan_files::hex;

/// Longest name of a client.
pub const NAME_MAX: usize = 64;

/// Shortest token: 16 characters of `openssl rand -hex` are 64 bits.
pub const TOKEN_MIN: usize = 16;

/// Most clients.
pub const CLIENTS_MAX: usize = 100_000;

/// A line of a roster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct RegistryError {
    /// Which, from 1 on; of names that stand in the configuration, which of them.
    pub line: usize,
    /// What is wrong. Tokens are not in it.
    pub what: &'static str,
}

/// Clients, and the digests of their tokens.
#[derive(Clone, Debug)]
pub struct ClientRegistry {
    /// Ascending.
    names: Vec<String>,
    /// In the order of the names.
    digests: Vec<[u8; 32]>,
}

impl ClientRegistry {
    /// Reads lines of a name and a token, or of a name and `sha256:` with the digits of a token's digest; `#` begins a
    /// comment line.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, RegistryError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let entries =
            lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(line, text)| {
                let wrong = |what| RegistryError { line, what };
                let (name, token) =
                    text.split_once(char::is_whitespace).ok_or_else(|| wrong("a name without a token"))?;
                let token = token.trim();
                let digest = match token.strip_prefix("sha256:") {
                    Some(digits) => *hex::decode(digits)
                        .ok_or_else(|| wrong("sha256: is followed by 64 hexadecimal digits"))?,
                    None if token.len() < TOKEN_MIN => {
                        return Err(wrong("a token has at least 16 characters"));
                    }
                    None if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                        return Err(wrong("a token is printable ASCII without spaces"));
                    }
                    None => digest(token),
                };
                Ok((line, name.to_owned(), digest))
            });
        Self::from_entries(entries.collect::<Result<_, _>>()?)
    }

    /// Clients without secrets: the token of each is its name.
    ///
    /// # Errors
    /// The first name that is wrong.
    pub fn from_names(names: &[String]) -> Result<Self, RegistryError> {
        Self::from_entries(
            names.iter().enumerate().map(|(index, name)| (index + 1, name.clone(), digest(name))).collect(),
        )
    }

    fn from_entries(mut entries: Vec<(usize, String, [u8; 32])>) -> Result<Self, RegistryError> {
        if entries.is_empty() || entries.len() > CLIENTS_MAX {
            return Err(RegistryError { line: 1, what: "from 1 to 100000 clients" });
        }
        let (mut names, mut digests) = (BTreeSet::new(), BTreeSet::new());
        for (line, name, digest) in &entries {
            let wrong = |what| Err(RegistryError { line: *line, what });
            let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(known) {
                return wrong("a name is 1 to 64 letters, digits, '-' and '_'");
            }
            if !names.insert(name.clone()) {
                return wrong("the name is there twice");
            }
            if !digests.insert(*digest) {
                return wrong("another client has this token");
            }
        }
        entries.sort_by(|(_, left, _), (_, right, _)| left.cmp(right));
        let (names, digests) = entries.into_iter().map(|(_, name, digest)| (name, digest)).unzip();
        Ok(Self { names, digests })
    }

    /// Whose token it is. What is compared are digests, all of them and whole: time says nothing of a token.
    #[must_use]
    pub fn identify(&self, token: &str) -> Option<usize> {
        let presented = digest(token);
        let mut found = None;
        for (index, known) in self.digests.iter().enumerate() {
            let differs =
                known.iter().zip(presented).fold(0, |differs, (known, byte)| differs | (known ^ byte));
            if differs == 0 {
                found = Some(index);
            }
        }
        found
    }

    /// What a client is called.
    #[must_use]
    pub fn name(&self, client: usize) -> &str {
        self.names.get(client).map_or("", String::as_str)
    }

    /// Names of clients, ascending.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::ClientRegistry;

    #[test]
    fn a_token_is_one_clients() {
        let text = "# fleet\n\nbeate 0123456789abcdef\nanton sha256:39b6834aab7350c2bd68f0f1efb72f1df57f9869fd3cd60155bac185216751ce\n";
        let registry = ClientRegistry::parse(text).unwrap();
        assert_eq!(registry.names(), ["anton", "beate"]);
        assert_eq!(registry.identify("0123456789abcdef"), Some(1));
        assert_eq!(registry.identify("abcdefabcdefabcd"), Some(0));
        for stranger in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0", "anton"] {
            assert_eq!(registry.identify(stranger), None, "{stranger}");
        }
        let named = ClientRegistry::from_names(&["b".to_owned(), "a".to_owned()]).unwrap();
        assert_eq!((named.identify("a"), named.identify("b"), named.identify("c")), (Some(0), Some(1), None));
    }

    #[test]
    fn wrong_lines_are_named() {
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
