//! From a request to its answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, EXPECT, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::app_state::AppState;
use super::response::{self, HttpError, ResponseBody};
use super::round_state::{Admission, ClientIndex, Refusal, UpdateSummary};
use super::round_store::{CHANGED, CONFIG, MODEL};
use super::route::Route;
use super::upload::{TempFiles, drain, receive, too_long};
use crate::files::{AdapterError, RoundKind};

/// After how many rounds the adapter is what it is, and whether it is all of it.
const AFTER: &str = "fedspan-round";
const PART: &str = "fedspan-part";

/// What is read of a stranger's body, so that it reads the answer.
const STRANGERS_MAX: u64 = 1 << 16;

/// Answers.
///
/// # Errors
/// Never: what is wrong is an answer.
pub async fn serve(
    app: Arc<AppState>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let (head, mut body) = request.into_parts();
    let token = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    let Some(client) = token.and_then(|token| app.settings.registry.identify(token.trim())) else {
        drain(body, STRANGERS_MAX, app.settings.limits.head);
        let text = "Authorization: Bearer TOKEN, with the token of a client";
        let wrong = HttpError::new(StatusCode::UNAUTHORIZED, "unauthorized", text);
        app.counters.add(wrong.kind);
        return Ok(wrong.answer());
    };
    let route = Route::read(&head.method, head.uri.path(), head.uri.query());
    let name = app.settings.registry.name(client).to_owned();
    let result = match route {
        Ok(route) => answer(&app, client, route, &mut body).await,
        Err(wrong) => Err(wrong),
    };
    Ok(match result {
        Ok(answer) => answer,
        Err(wrong) => {
            if !wrong.is_counted {
                app.counters.add(wrong.kind);
            }
            tracing::info!(
                "{name}: {} {}: {} {}",
                head.method,
                head.uri.path(),
                wrong.status.as_u16(),
                wrong.text
            );
            // Who waits to be told to go on has sent nothing yet, and need not.
            if !body.is_end_stream() && !head.headers.contains_key(EXPECT) {
                drain(body, app.max_body_len, app.settings.limits.transfer);
            }
            wrong.answer()
        }
    })
}

async fn answer(
    app: &Arc<AppState>,
    client: ClientIndex,
    route: Route,
    body: &mut Incoming,
) -> Result<Response<ResponseBody>, HttpError> {
    match route {
        Route::Round { after, wait } => {
            Ok(response::json(StatusCode::OK, &round(app, client, after, wait).await))
        }
        Route::Status => Ok(response::json(StatusCode::OK, &status(app))),
        Route::Config => {
            let path = app.store.round(app.rounds().committed()).join(CONFIG);
            response::file(&path, "application/json").map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    let text = "the base has no adapter_config.json";
                    HttpError::new(StatusCode::NOT_FOUND, "not-found", text)
                }
                _ => failed(&error),
            })
        }
        Route::Model { since } => model(app, client, since),
        Route::Update { round, samples } => update(app, client, round, samples, body).await,
    }
}

/// What a client has to know of the round that is open, once it is another one than it knows.
async fn round(app: &AppState, client: ClientIndex, after: Option<u32>, wait: Duration) -> Value {
    let mut moved = app.watch();
    if !wait.is_zero() {
        app.counters.add("waiting");
    }
    let known = async {
        loop {
            moved.borrow_and_update();
            let number = app.rounds().current().map(|open| open.number);
            if app.has_ended() || number.is_none_or(|number| after.is_none_or(|after| number > after)) {
                return;
            }
            if moved.changed().await.is_err() {
                return;
            }
        }
    };
    drop(tokio::time::timeout(wait, known).await);
    let (now, rounds) = (app.now(), app.rounds());
    let rules = rounds.rules();
    let about = json!({
        "method": rules.method.name(), "rounds": rules.rounds, "adapter": rounds.committed(),
        "client": app.settings.registry.name(client),
    });
    let open = rounds.current().map(|open| {
        #[allow(clippy::cast_precision_loss, reason = "seconds for people")]
        let seconds = |deadline: u64| deadline.saturating_sub(now) as f64 / 1000.0;
        json!({
            "round": open.number, "trains": open.kind.name(), "asked": open.cohort.contains(&client),
            "counted": open.updates.contains_key(&client), "updates": open.updates.len(),
            "wanted": open.target, "seconds_left": open.deadline.map(seconds), "finished": false,
        })
    });
    merged(about, open.unwrap_or_else(|| json!({ "round": null, "finished": true })))
}

fn status(app: &AppState) -> Value {
    let (counts, rounds) = (app.counters.all(), app.rounds());
    let open = rounds.current().map(|open| {
        json!({ "round": open.number, "trains": open.kind.name(), "updates": open.updates.len(), "wanted": open.target })
    });
    let about = json!({
        "method": rounds.rules().method.name(), "rounds": rounds.rules().rounds, "committed": rounds.committed(),
        "clients": app.settings.registry.names().len(), "counts": counts,
    });
    merged(about, open.unwrap_or_else(|| json!({ "round": null })))
}

fn merged(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

/// The adapter after the last round; who has the one before gets what has changed.
fn model(
    app: &AppState,
    client: ClientIndex,
    since: Option<u32>,
) -> Result<Response<ResponseBody>, HttpError> {
    let done = app.rounds().committed();
    let part = since.is_some() && since == done.checked_sub(1);
    let path = app.store.round(done).join(if part { CHANGED } else { MODEL });
    let mut answer = response::file(&path, "application/octet-stream").map_err(|error| failed(&error))?;
    let headers = answer.headers_mut();
    headers.insert(AFTER, done.into());
    headers.insert(PART, HeaderValue::from_static(if part { "changed" } else { "whole" }));
    app.counters.add(if part { "served-changed" } else { "served-whole" });
    app.mark_served(client);
    Ok(answer)
}

async fn update(
    app: &Arc<AppState>,
    client: ClientIndex,
    round: u32,
    samples: u32,
    body: &mut Incoming,
) -> Result<Response<ResponseBody>, HttpError> {
    let admission = app.rounds().admit(client, round, None);
    if let Admission::Refused(refusal) = admission {
        return Err(refused(refusal));
    }
    if body.size_hint().lower() > app.max_body_len {
        return Err(too_long(app.max_body_len));
    }
    let Some(sending) = app.sending(client) else {
        let text = "two updates of this client are being received already";
        return Err(HttpError::new(StatusCode::TOO_MANY_REQUESTS, "busy", text));
    };
    let scrap = TempFiles(app.store.temp_paths());
    let digest = receive(body, &scrap.0[0], app.max_body_len, app.settings.limits.transfer).await?;
    let update = UpdateSummary { samples, digest };
    let known = app.rounds().admit(client, round, Some(&update));
    let admission = match known {
        Admission::Accepted(trains) => {
            let app = Arc::clone(app);
            // It goes on to its end, whatever becomes of the connection; until then the client is sending.
            let work = tokio::task::spawn_blocking(move || {
                let _sending = sending;
                let admission = merge_update(&app, client, round, update, trains, &scrap);
                match &admission {
                    Ok(Admission::Accepted(_)) => {
                        app.counters.add("counted");
                        let name = app.settings.registry.name(client);
                        let weight = match samples {
                            0 => {
                                app.counters.add("counted-without-weight");
                                ", without weight"
                            }
                            _ => "",
                        };
                        tracing::info!(
                            "{name}: update of round {round} with {samples} samples counted{weight}"
                        );
                    }
                    Err(wrong) => app.counters.add(wrong.kind),
                    Ok(_) => {}
                }
                admission
            });
            work.await
                .map_err(|error| failed(&error))?
                .map_err(|wrong| HttpError { is_counted: true, ..wrong })?
        }
        other => other,
    };
    let (status, kind) = match admission {
        Admission::Refused(refusal) => return Err(refused(refusal)),
        Admission::Duplicate | Admission::NeedsDigest => {
            app.counters.add("repeated");
            (StatusCode::OK, "repeated")
        }
        Admission::Accepted(_) => (StatusCode::CREATED, "counted"),
    };
    Ok(response::json(
        status,
        &json!({ "round": round, "samples": samples, "weighs": samples > 0, "update": kind }),
    ))
}

/// Makes a whole adapter of what was sent, and counts it. Waits for the disk.
fn merge_update(
    app: &AppState,
    client: ClientIndex,
    round: u32,
    update: UpdateSummary,
    kind: RoundKind,
    scrap: &TempFiles,
) -> Result<Admission, HttpError> {
    let [sent, whole] = &scrap.0;
    app.store
        .validate_and_merge(round.saturating_sub(1), sent, kind, whole)
        .map_err(|error| unsound(app, round, sent, &error))?;
    app.count(client, round, update, whole).map_err(|error| failed(&error))
}

fn refused(refusal: Refusal) -> HttpError {
    let (status, kind) = match refusal {
        Refusal::Closed { .. } => (StatusCode::CONFLICT, "closed"),
        Refusal::NotOpen { .. } => (StatusCode::CONFLICT, "not-open"),
        Refusal::DifferentUpdate { .. } => (StatusCode::CONFLICT, "another"),
        Refusal::NotAsked { .. } => (StatusCode::FORBIDDEN, "not-asked"),
    };
    HttpError::new(status, kind, refusal.to_string())
}

/// An update that does not fit, in the client's words: it knows nothing of our paths.
fn unsound(app: &AppState, round: u32, sent: &std::path::Path, error: &AdapterError) -> HttpError {
    if !error.is_invalid_input() {
        return failed(error);
    }
    let base = app.store.round(round.saturating_sub(1)).join(MODEL);
    let text = error.to_string().replace(&format!("{}: ", sent.display()), "");
    let text = text.replace(&base.display().to_string(), "the adapter of this round");
    HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, "unsound", text)
}

fn failed(error: &dyn std::fmt::Display) -> HttpError {
    tracing::error!("{error}");
    HttpError::failed()
}
