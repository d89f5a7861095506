//! What a request asks for. Paths are compared whole and never become names of files.

use std::time::Duration;

use hyper::{Method, StatusCode};

use super::response::HttpError;
use crate::files::SAMPLES_MAX;

/// Longest that a request may wait for the next round.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Characters of a value that a message repeats.
const VALUE_SHOWN: usize = 40;

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The round that is open, once it is later than `after`.
    Round {
        /// A round that the client knows.
        after: Option<u32>,
        /// How long it waits for a later one.
        wait: Duration,
    },
    /// The adapter's configuration.
    Config,
    /// The adapter, or what the last round changed for who has the one before.
    Model {
        /// After which round the client has it.
        since: Option<u32>,
    },
    /// A client's update.
    Update {
        /// Of which round.
        round: u32,
        /// Number of samples that it was trained with; without any it has no weight.
        samples: u32,
    },
    /// Counters.
    Status,
}

impl Route {
    /// Reads a request's line.
    ///
    /// # Errors
    /// 404 for another path, 405 for another method, 400 for a query that cannot be read.
    pub fn read(method: &Method, path: &str, query: Option<&str>) -> Result<Self, HttpError> {
        let number = |name: &str| number(query.unwrap_or_default(), name);
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
                let digits = !round.is_empty() && round.bytes().all(|byte| byte.is_ascii_digit());
                let round = digits.then(|| round.parse().ok()).flatten().ok_or_else(not_found)?;
                let samples = samples(query.unwrap_or_default())?;
                (Method::PUT, Self::Update { round, samples })
            }
            _ => return Err(not_found()),
        };
        if *method == allowed { Ok(route) } else { Err(not_allowed(method)) }
    }
}

fn not_found() -> HttpError {
    let text = "there are /round, /adapter/adapter_config.json, /adapter/adapter_model.safetensors, \
                /round/N/adapter_model.safetensors and /status";
    HttpError::new(StatusCode::NOT_FOUND, "not-found", text)
}

fn not_allowed(method: &Method) -> HttpError {
    let text = format!("{method} is not what this is for: updates are PUT, everything else is GET");
    HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", text)
}

/// The number of samples of an update.
fn samples(query: &str) -> Result<u32, HttpError> {
    let wrong = |text: String| HttpError::new(StatusCode::BAD_REQUEST, "bad-request", text);
    let allowed = format!("a whole number from 0 to {SAMPLES_MAX}");
    match values(query, "samples").as_slice() {
        [] => Err(wrong(format!(
            "?samples= is missing: the number of samples that the update was trained with, {allowed}"
        ))),
        [value] => {
            let number = digits(value).filter(|samples| *samples <= SAMPLES_MAX);
            number.ok_or_else(|| wrong(format!("samples: found {}, allowed: {allowed}", shown(value))))
        }
        more => Err(wrong(format!("samples: found {} of them, allowed: one, {allowed}", more.len()))),
    }
}

/// A number of the query; `None` if it is not there. Twice is once too often.
fn number(query: &str, name: &str) -> Result<Option<u32>, HttpError> {
    let wrong = |found: String| {
        let text = format!("{name}: found {found}, allowed: one whole number from 0 to {}", u32::MAX);
        HttpError::new(StatusCode::BAD_REQUEST, "bad-request", text)
    };
    match values(query, name).as_slice() {
        [] => Ok(None),
        [value] => digits(value).map(Some).ok_or_else(|| wrong(shown(value))),
        more => Err(wrong(format!("{} of them", more.len()))),
    }
}

/// All values of a name.
fn values<'a>(query: &'a str, name: &str) -> Vec<&'a str> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).collect()
}

/// A number without a sign.
fn digits(value: &str) -> Option<u32> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| value.parse().ok()).flatten()
}

/// A value as a message has it.
fn shown(value: &str) -> String {
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
    fn requests_are_read() {
        let get = |path, query| Route::read(&Method::GET, path, query).unwrap();
        let none = Duration::ZERO;
        assert_eq!(get("/round", None), Route::Round { after: None, wait: none });
        let wait = Duration::from_secs(60);
        assert_eq!(get("/round", Some("wait=4000&after=3&x=y")), Route::Round { after: Some(3), wait });
        assert_eq!(
            get("/adapter/adapter_model.safetensors", Some("since=2")),
            Route::Model { since: Some(2) }
        );
        let update = Route::read(&Method::PUT, "/round/7/adapter_model.safetensors", Some("samples=12"));
        assert_eq!(update.unwrap(), Route::Update { round: 7, samples: 12 });
        for (query, samples) in [("samples=0", 0), ("samples=000", 0), ("samples=536870911", SAMPLES_MAX)] {
            let update = Route::read(&Method::PUT, "/round/7/adapter_model.safetensors", Some(query));
            assert_eq!(update.unwrap(), Route::Update { round: 7, samples });
        }
    }

    #[test]
    fn numbers_of_samples_are_told_with_what_was_found() {
        for (query, says) in [
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
            (Some("samples=1&samples=1"), "found 2 of them"),
        ] {
            let path = "/round/1/adapter_model.safetensors";
            let wrong = Route::read(&Method::PUT, path, query).unwrap_err();
            assert_eq!(wrong.status.as_u16(), 400);
            assert!(wrong.text.contains(says) && wrong.text.contains("0 to 536870911"), "{}", wrong.text);
        }
        let long = format!("samples={}", "7".repeat(5000));
        let wrong = Route::read(&Method::PUT, "/round/1/adapter_model.safetensors", Some(&long)).unwrap_err();
        assert!(wrong.text.len() < 200, "{}", wrong.text);
    }

    #[test]
    fn everything_else_is_refused() {
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
            let wrong = Route::read(&method, path, query).unwrap_err();
            assert_eq!(wrong.status.as_u16(), status, "{method} {path} {query:?}");
        }
    }
}
