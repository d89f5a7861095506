//! Check of the headers `Host` and `Origin`, which keeps web pages away: a page can make a browser send requests to
//! this server, under a name of the page's own that leads to this machine (DNS rebinding).

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{StatusCode, Version};

use super::response::HttpError;

/// Names of this machine, under which a server on the loopback interface is reached.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Largest number of characters of a header that an error text quotes.
const SHOWN: usize = 60;

/// Host names under which the server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNames {
    /// Names of the configuration, in lower case.
    names: Vec<String>,
    /// True if every name is allowed: the server listens on a network, and the configuration has no names.
    allows_all: bool,
}

impl HostNames {
    /// Creates the names of the configuration for a server that listens on the loopback interface or on a network.
    #[must_use]
    pub fn new(names: &[String], is_loopback: bool) -> Self {
        let allows_all = names.is_empty() && !is_loopback;
        Self { names: names.iter().map(|name| name.to_ascii_lowercase()).collect(), allows_all }
    }

    /// Checks the headers of a request. An `Origin` is allowed if it is the requested host, or a name of the
    /// configuration.
    ///
    /// # Errors
    /// Response 400 without exactly one `Host`, 421 for a name that is not allowed, 403 for another origin.
    pub fn check(&self, headers: &HeaderMap, version: Version) -> Result<(), HttpError> {
        let host = match single(headers, &HOST)? {
            Some(host) => host,
            // A browser sends the header in every request.
            None if version == Version::HTTP_10 => "",
            None => {
                let text = "found no header Host, allowed: one; HTTP/1.1 requires it";
                return Err(HttpError::new(StatusCode::BAD_REQUEST, "bad-request", text));
            }
        };
        if !host.is_empty() && !self.allows_all && !self.is_named(host) && !is_loopback_name(host) {
            let text = format!(
                "the host {} is not allowed; add its name to the key hosts of the server's configuration",
                quote(host)
            );
            return Err(HttpError::new(StatusCode::MISDIRECTED_REQUEST, "host", text));
        }
        let Some(origin) = single(headers, &ORIGIN)? else { return Ok(()) };
        let from = origin.split_once("://").map(|(_, host)| host);
        if from.is_some_and(|from| from.eq_ignore_ascii_case(host) || self.is_named(from)) {
            return Ok(());
        }
        let text = format!(
            "requests of web pages from {} are not allowed; add its host to the key hosts of the server's configuration",
            quote(origin)
        );
        Err(HttpError::new(StatusCode::FORBIDDEN, "origin", text))
    }

    /// True if the configuration has the name of this host, with any port.
    fn is_named(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        self.names.contains(&name)
    }
}

/// True if a host is a name of this machine on the loopback interface.
fn is_loopback_name(host: &str) -> bool {
    LOOPBACK.iter().any(|name| name.eq_ignore_ascii_case(without_port(host)))
}

/// Host without its port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

/// Value of a header that may occur once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, HttpError> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    let error = |text| HttpError::new(StatusCode::BAD_REQUEST, "bad-request", text);
    match (first, second) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(error(format!("found several headers {name}, allowed: one"))),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| error(format!("the header {name} is not ASCII")))?;
            Ok(Some(text.trim()))
        }
    }
}

/// Quotes a value for an error text; long values are shortened.
fn quote(value: &str) -> String {
    let text: String = value.chars().take(SHOWN).collect();
    format!("{text:?}{}", if text.len() < value.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn check(names: &HostNames, headers: &[(&'static str, &'static str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        names.check(&map, Version::HTTP_11).map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    #[test]
    fn loopback_server_answers_its_own_names_only() {
        let names = HostNames::new(&["Proxy.example".to_owned()], true);
        for (host, status) in [
            ("localhost:4480", 200),
            ("LOCALHOST", 200),
            ("127.0.0.1:4480", 200),
            ("[::1]:4480", 200),
            ("[::1]", 200),
            ("proxy.example", 200),
            ("proxy.EXAMPLE:443", 200),
            ("evil.example:4480", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("x", 421),
        ] {
            assert_eq!(check(&names, &[("host", host)]), status, "{host}");
        }
        assert_eq!(check(&names, &[]), 400);
        assert_eq!(check(&names, &[("host", "localhost"), ("host", "localhost")]), 400);
        assert!(names.check(&HeaderMap::new(), Version::HTTP_10).is_ok());
    }

    #[test]
    fn network_server_answers_all_names_unless_they_are_configured() {
        let all = HostNames::new(&[], false);
        assert_eq!(check(&all, &[("host", "any.example")]), 200);
        let one = HostNames::new(&["one.example".to_owned()], false);
        assert_eq!(check(&one, &[("host", "any.example")]), 421);
        assert_eq!(check(&one, &[("host", "one.example")]), 200);
    }

    #[test]
    fn other_origins_are_refused() {
        let names = HostNames::new(&["proxy.example".to_owned()], true);
        for (origin, status) in [
            ("http://localhost:4480", 200),
            ("http://LOCALHOST:4480", 200),
            ("https://proxy.example", 200),
            ("http://localhost:8888", 403),
            ("http://evil.example", 403),
            ("null", 403),
            ("", 403),
        ] {
            assert_eq!(check(&names, &[("host", "localhost:4480"), ("origin", origin)]), status, "{origin}");
        }
        let two = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://localhost")];
        assert_eq!(check(&names, &two), 400);
        let all = HostNames::new(&[], false);
        assert_eq!(check(&all, &[("host", "any.example"), ("origin", "http://evil.example")]), 403);
        assert_eq!(check(&all, &[("host", "any.example"), ("origin", "http://any.example")]), 200);
    }
}
