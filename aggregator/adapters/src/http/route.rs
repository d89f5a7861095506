//! Router of HTTP requests: parses method, path and query. Paths are compared with fixed patterns and are not
//! used as file names.

use std::time::Duration;

use hyper::{Method, StatusCode};

use super::response::HttpError;
use crate::files::SAMPLES_MAX;

/// Longest time that `GET /round` waits for a later round.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Largest number of characters of a query value that an error text quotes.
const VALUE_SHOWN: usize = 40;

/// Request after parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `GET /round`: the open round, after a wait until its number is above `after`.
    Round {
        /// Number of the last round that the client has seen.
        after: Option<u32>,
        /// Longest time to wait for a later round.
        wait: Duration,
    },
    /// `GET /adapter/adapter_config.json`: PEFT's configuration.
    Config,
    /// `GET /adapter/adapter_model.safetensors`: the whole adapter, or only the tensors that the last round
    /// trained.
    Model {
        /// Round after which the client has the adapter.
        since: Option<u32>,
    },
    /// `PUT /round/N/adapter_model.safetensors`: a client's update.
    Update {
        /// Round of the update.
        round: u32,
        /// Number of samples that the client trained with. The weight of an update with 0 samples is 0.
        samples: u32,
    },
    /// `GET /status`: the open round and the counters.
    Status,
}

impl Route {
    /// Parses method, path and query.
    ///
    /// # Errors
    /// Response 404 for an unknown path, 405 for a wrong method, 400 for an invalid query.
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Result<Self, HttpError> {
        let number = |name: &str| parse_number(query.unwrap_or_default(), name);
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let (allowed, route) = match parts.as_slice() {
            ["round"] => {
                let wait = Duration::from_secs(number("wait")?.unwrap_or(0).into()).min(WAIT_MAX);
                (Method::GET, Self::Round { after: number("after")?, wait })
            }
            ["adapter", "adapter_config.json"] => (Method::GET, Self::Config),
            ["adapter", "adapter_model.safetensors"] => {
                (Method::GET, Self::Model { since: number("since")? })
            }
            ["status"] => (Method::GET, Self::Status),
            ["round", round, "adapter_model.safetensors"] if method != Method::PUT => {
                let _ = round;
                return Err(not_allowed(method));
            }
            ["round", round, "adapter_model.safetensors"] => {
                let is_number = !round.is_empty() && round.bytes().all(|byte| byte.is_ascii_digit());
                let round = is_number.then(|| round.parse().ok()).flatten().ok_or_else(not_found)?;
                let samples = parse_samples(query.unwrap_or_default())?;
                (Method::PUT, Self::Update { round, samples })
            }
            _ => return Err(not_found()),
        };
        if *method == allowed { Ok(route) } else { Err(not_allowed(method)) }
    }
}

/// Response 404.
fn not_found() -> HttpError {
    let text = "unknown path; allowed: /round, /adapter/adapter_config.json, /adapter/adapter_model.safetensors, \
                /round/N/adapter_model.safetensors and /status";
    HttpError::new(StatusCode::NOT_FOUND, "not-found", text)
}

/// Response 405.
fn not_allowed(method: &Method) -> HttpError {
    let text = format!("found {method}, allowed: PUT for updates, GET for everything else");
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", text)
}

/// Parses the number of samples of an update, which is required.
fn parse_samples(query: &str) -> Result<u32, HttpError> {
    let error = |text: String| HttpError::new(StatusCode::BAD_REQUEST, "bad-request", text);
    let allowed = format!("a whole number from 0 to {SAMPLES_MAX}");
    match values_of(query, "samples").as_slice() {
        [] => Err(error(format!(
            "?samples= is missing: the number of samples that the update was trained with, {allowed}"
        ))),
        [value] => {
            let number = parse_digits(value).filter(|samples| *samples <= SAMPLES_MAX);
            number.ok_or_else(|| error(format!("samples: found {}, allowed: {allowed}", quote(value))))
        }
        repeated => Err(error(format!("samples: found {} values, allowed: one, {allowed}", repeated.len()))),
    }
}

/// Parses an optional number of the query; `None` if it is missing. A repeated name is an error.
fn parse_number(query: &str, name: &str) -> Result<Option<u32>, HttpError> {
    let error = |found: String| {
        let text = format!("{name}: found {found}, allowed: one whole number from 0 to {}", u32::MAX);
        HttpError::new(StatusCode::BAD_REQUEST, "bad-request", text)
    };
    match values_of(query, name).as_slice() {
        [] => Ok(None),
        [value] => parse_digits(value).map(Some).ok_or_else(|| error(quote(value))),
        repeated => Err(error(format!("{} values", repeated.len()))),
    }
}

/// All values of a name in the query.
fn values_of<'a>(query: &'a str, name: &str) -> Vec<&'a str> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).collect()
}

/// Parses decimal digits without a sign.
fn parse_digits(value: &str) -> Option<u32> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| value.parse().ok()).flatten()
}

/// Quotes a value for an error text; long values are shortened.
fn quote(value: &str) -> String {
    let text: String = value.chars().take(VALUE_SHOWN).collect();
    format!("{text:?}{}", if text.len() < value.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use hyper::Method;

    use super::{Route, SAMPLES_MAX};

    #[test]
    fn valid_requests_are_parsed() {
        let get = |path, query| Route::parse(&Method::GET, path, query).unwrap();
        let no_wait = Duration::ZERO;
        assert_eq!(get("/round", None), Route::Round { after: None, wait: no_wait });
        let wait = Duration::from_secs(60);
        assert_eq!(get("/round", Some("wait=4000&after=3&x=y")), Route::Round { after: Some(3), wait });
        assert_eq!(
            get("/adapter/adapter_model.safetensors", Some("since=2")),
            Route::Model { since: Some(2) }
        );
        let update = Route::parse(&Method::PUT, "/round/7/adapter_model.safetensors", Some("samples=12"));
        assert_eq!(update.unwrap(), Route::Update { round: 7, samples: 12 });
        for (query, samples) in [("samples=0", 0), ("samples=000", 0), ("samples=536870911", SAMPLES_MAX)] {
            let update = Route::parse(&Method::PUT, "/round/7/adapter_model.safetensors", Some(query));
            assert_eq!(update.unwrap(), Route::Update { round: 7, samples });
        }
    }

    #[test]
    fn invalid_samples_are_quoted_with_their_bound() {
        for (query, expected) in [
            (None, "?samples= is missing"),
            (Some("sample=3"), "?samples= is missing"),
            (Some("samples=536870912"), "found \"536870912\", allowed: a whole number from 0 to 536870911"),
            (Some("samples=18446744073709551616"), "found \"18446744073709551616\""),
            (Some("samples=-1"), "found \"-1\""),
            (Some("samples=+1"), "found \"+1\""),
            (Some("samples=3.0"), "found \"3.0\""),
            (Some("samples=1e3"), "found \"1e3\""),
            (Some("samples=NaN"), "found \"NaN\""),
            (Some("samples="), "found \"\""),
            (Some("samples"), "found \"\""),
            (Some("samples=1&samples=1"), "found 2 values"),
        ] {
            let path = "/round/1/adapter_model.safetensors";
            let error = Route::parse(&Method::PUT, path, query).unwrap_err();
            assert_eq!(error.status.as_u16(), 400);
            assert!(error.text.contains(expected) && error.text.contains("0 to 536870911"), "{}", error.text);
        }
        let long_query = format!("samples={}", "7".repeat(5000));
        let error =
            Route::parse(&Method::PUT, "/round/1/adapter_model.safetensors", Some(&long_query)).unwrap_err();
        assert!(error.text.len() < 200, "{}", error.text);
    }

    #[test]
    fn other_requests_are_refused() {
        let model = "/round/1/adapter_model.safetensors";
        for (method, path, query, status) in [
            (Method::GET, "/", None, 404),
            (Method::GET, "/adapter/../tokens", None, 404),
            (Method::GET, "/adapter/%2e%2e/tokens", None, 404),
            (Method::GET, "//adapter/adapter_config.json", None, 404),
            (Method::GET, "/adapter/adapter_config.json/", None, 404),
            (Method::PUT, "/round/../adapter_model.safetensors", Some("samples=1"), 404),
            (Method::PUT, "/round/-1/adapter_model.safetensors", Some("samples=1"), 404),
            (Method::PUT, "/round/+1/adapter_model.safetensors", Some("samples=1"), 404),
            (Method::PUT, "/round//adapter_model.safetensors", Some("samples=1"), 404),
            (Method::PUT, "/round/4294967296/adapter_model.safetensors", Some("samples=1"), 404),
            (Method::GET, model, None, 405),
            (Method::DELETE, "/round", None, 405),
            (Method::PUT, model, None, 400),
            (Method::PUT, model, Some("samples=-1"), 400),
            (Method::PUT, model, Some("samples=1e3"), 400),
            (Method::PUT, model, Some("samples=536870912"), 400),
            (Method::GET, "/round", Some("after=x"), 400),
        ] {
            let error = Route::parse(&method, path, query).unwrap_err();
            assert_eq!(error.status.as_u16(), status, "{method} {path} {query:?}");
        }
    }
}
