//! Handlers of HTTP requests: authentication, the open round, adapters, updates and the status.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fedspan_connections::{Slot, SlotError};
use fedspan_engine::Millis;
use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, EXPECT, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::app_state::AppState;
use super::client_registry::ClientIndex;
use super::disk::is_of_the_system;
use super::error::ServerError;
use super::response::{self, HttpError, ResponseBody};
use super::round_state::{Admission, Refusal, UpdateSummary};
use super::round_store::RecordedDigest;
use super::route::Route;
use super::stored_state::{CHANGED, CONFIG, MODEL};
use super::upload::{TempFiles, drain, receive, too_long};
use crate::files::{AdapterError, RoundKind};

/// Response header with the number of the round that produced the adapter.
const ROUND_HEADER: &str = "fedspan-round";

/// Response header with the value `whole` for a whole adapter, or `changed` for the tensors that the last
/// round trained.
const PART_HEADER: &str = "fedspan-part";

/// Largest number of bytes of an unauthenticated body that are read and discarded, so that the client can
/// read the response.
const UNAUTHENTICATED_DRAIN_MAX: u64 = 1 << 16;

/// Time after which a client may try again for which no connection slot is free, in seconds.
const SLOT_RETRY: u32 = 5;

/// Slot of a connection. The lock is held only for a moment, by the connection's own task.
pub type SharedSlot = Mutex<Slot<ClientIndex>>;

/// Authenticates a request, routes it and logs refusals.
///
/// # Errors
/// Never returns an error; errors become responses.
pub async fn handle(
    app: Arc<AppState>,
    slot: &SharedSlot,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let (head, mut body) = request.into_parts();
    let client = match admit(&app, slot, &head) {
        Ok(client) => client,
        Err(error) => {
            drain(body, UNAUTHENTICATED_DRAIN_MAX, app.settings.limits.head);
            app.counters.increment(error.kind);
            return Ok(HttpError { is_last: true, ..error }.response());
        }
    };
    let route = Route::parse(&head.method, head.uri.path(), head.uri.query());
    let name = app.settings.registry.name(client).to_owned();
    let result = match route {
        Ok(route) => dispatch(&app, client, route, &mut body).await,
        Err(error) => Err(error),
    };
    Ok(match result {
        Ok(response) => response,
        Err(error) => {
            if !error.is_counted {
                app.counters.increment(error.kind);
            }
            tracing::info!(
                client = %name,
                method = %head.method,
                path = %head.uri.path(),
                status = error.status.as_u16(),
                text = %error.text,
                "request refused"
            );
            // A client that sent `Expect: 100-continue` waits for the response and has not sent its body.
            if !body.is_end_stream() && !head.headers.contains_key(EXPECT) {
                drain(body, app.max_body_len, app.settings.limits.transfer);
            }
            error.response()
        }
    })
}

/// Checks host, origin and token of a request, and moves the connection to a slot of its client.
///
/// # Errors
/// The response, after which the connection is closed.
fn admit(app: &AppState, slot: &SharedSlot, head: &Parts) -> Result<ClientIndex, HttpError> {
    app.settings.hosts.check(&head.headers, head.version)?;
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    let client = identify(app, slot.address(), &head.headers)?;
    let limits = app.settings.limits;
    slot.authenticate(client).map_err(|error| match error {
        SlotError::OwnerFull => {
            let text = format!(
                "found {0} connections of this client, allowed: {0}; close one, or try again later",
                limits.per_client
            );
            HttpError::later(StatusCode::TOO_MANY_REQUESTS, "too-many", SLOT_RETRY, text)
        }
        SlotError::Full => {
            let text = format!(
                "all {} connections that the server has for clients are taken; try again later",
                limits.connections
            );
            HttpError::later(StatusCode::SERVICE_UNAVAILABLE, "connections-refused", SLOT_RETRY, text)
        }
    })?;
    Ok(client)
}

/// Identifies the client of a request by its token. A right token is never refused. Of the wrong ones from an address,
/// only so many per minute are answered with 401.
fn identify(app: &AppState, address: IpAddr, headers: &HeaderMap) -> Result<ClientIndex, HttpError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, second) = (values.next(), values.next());
    if second.is_some() {
        let text = "found several headers Authorization, allowed: one";
        return Err(HttpError::new(StatusCode::BAD_REQUEST, "bad-request", text));
    }
    let token = value.and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    if let Some(client) = token.and_then(|token| app.settings.registry.identify(token.trim())) {
        return Ok(client);
    }
    if value.is_some()
        && let Err(wait) = app.brake().count_wrong(address, app.now())
    {
        let seconds = u32::try_from(wait.as_u64().div_ceil(1000)).unwrap_or(u32::MAX);
        let text = format!("too many wrong tokens from this address; try again in {seconds} s");
        return Err(HttpError::later(StatusCode::TOO_MANY_REQUESTS, "throttled", seconds, text));
    }
    let text = "no valid token; send the header Authorization: Bearer TOKEN with the token of a client";
    Err(HttpError::new(StatusCode::UNAUTHORIZED, "unauthorized", text))
}

/// Calls the handler of a route.
async fn dispatch(
    app: &Arc<AppState>,
    client: ClientIndex,
    route: Route,
    body: &mut Incoming,
) -> Result<Response<ResponseBody>, HttpError> {
    match route {
        Route::Round { after, wait } => {
            Ok(response::json(StatusCode::OK, &describe_round(app, client, after, wait).await))
        }
        Route::Status => Ok(response::json(StatusCode::OK, &describe_status(app))),
        Route::Config => {
            let committed = app.rounds().committed();
            serve_file(app, committed, CONFIG, "application/json")
        }
        Route::Model { since } => serve_model(app, client, since),
        Route::Update { round, samples } => receive_update(app, client, round, samples, body).await,
    }
}

/// Describes the open round for a client. Waits until the number of the round is above `after`, but at most
/// for `wait` or until the server stops.
async fn describe_round(app: &AppState, client: ClientIndex, after: Option<u32>, wait: Duration) -> Value {
    let mut changed = app.watch();
    if !wait.is_zero() {
        app.counters.increment("waiting");
    }
    let later_round = async {
        loop {
            changed.borrow_and_update();
            let number = app.rounds().current().map(|open| open.number);
            if app.is_stopping() || number.is_none_or(|number| after.is_none_or(|after| number > after)) {
                return;
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    };
    drop(tokio::time::timeout(wait, later_round).await);
    let (now, rounds) = (app.now(), app.rounds());
    let rules = rounds.rules();
    let campaign = json!({
        "method": rules.method.name(), "rounds": rules.rounds, "adapter": rounds.committed(),
        "client": app.settings.registry.name(client),
    });
    let open = rounds.current().map(|open| {
        #[allow(clippy::cast_precision_loss, reason = "seconds for people")]
        let seconds = |deadline: Millis| (deadline - now).as_u64() as f64 / 1000.0;
        json!({
            "round": open.number, "trains": open.kind.name(), "asked": open.cohort.contains(&client),
            "counted": open.updates.contains_key(&client), "updates": open.updates.len(),
            "wanted": open.target, "seconds_left": open.deadline.map(seconds), "finished": false,
        })
    });
    merge_maps(campaign, open.unwrap_or_else(|| json!({ "round": null, "finished": true })))
}

/// Describes the open round and the counters.
fn describe_status(app: &AppState) -> Value {
    let (counts, rounds) = (app.counters.snapshot(), app.rounds());
    let open = rounds.current().map(|open| {
        json!({ "round": open.number, "trains": open.kind.name(), "updates": open.updates.len(), "wanted": open.target })
    });
    let campaign = json!({
        "method": rounds.rules().method.name(), "rounds": rounds.rules().rounds, "committed": rounds.committed(),
        "clients": app.settings.registry.names().len(), "counts": counts,
    });
    merge_maps(campaign, open.unwrap_or_else(|| json!({ "round": null })))
}

/// Merges two JSON maps.
fn merge_maps(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

/// Serves the adapter of the last committed round. A client that has the adapter of the previous round gets
/// only the tensors that the last round trained.
fn serve_model(
    app: &Arc<AppState>,
    client: ClientIndex,
    since: Option<u32>,
) -> Result<Response<ResponseBody>, HttpError> {
    let committed = app.rounds().committed();
    let only_changes = since.is_some() && since == committed.checked_sub(1);
    let name = if only_changes { CHANGED } else { MODEL };
    let mut response = serve_file(app, committed, name, "application/octet-stream")?;
    let headers = response.headers_mut();
    headers.insert(ROUND_HEADER, committed.into());
    headers.insert(PART_HEADER, HeaderValue::from_static(if only_changes { "changed" } else { "whole" }));
    app.counters.increment(if only_changes { "served-changed" } else { "served-whole" });
    app.mark_served(client);
    Ok(response)
}

/// Serves a file of a committed round, unless it is damaged or missing although the record of the round has it.
fn serve_file(
    app: &Arc<AppState>,
    round: u32,
    name: &str,
    kind: &'static str,
) -> Result<Response<ResponseBody>, HttpError> {
    let no_file = || {
        let text = format!("the base has no {name}");
        HttpError::new(StatusCode::NOT_FOUND, "not-found", text)
    };
    let digest = match app.store.recorded_digest(round, name) {
        RecordedDigest::Known(digest) => Some(digest),
        RecordedDigest::Unrecorded => None,
        RecordedDigest::NoFile => return Err(no_file()),
    };
    let path = app.store.round(round).join(name);
    let is_recorded = digest.is_some();
    let recorded =
        digest.as_ref().map(|digest| format!(", recorded was SHA-256 {digest}")).unwrap_or_default();
    let report_damage = {
        let (app, path) = (Arc::clone(app), path.clone());
        move |found: &str| {
            let error = ServerError::damaged_round(path, format!("{found}{recorded}"), round);
            tracing::error!(%error, "a file cannot be served; check the disk");
            app.counters.increment("damaged");
        }
    };
    let on_damage = report_damage.clone();
    response::file(&path, kind, digest, on_damage).map_err(|error| match error.kind() {
        // Without a recorded digest it is not known whether the base had a configuration.
        std::io::ErrorKind::NotFound if name == CONFIG && !is_recorded => no_file(),
        _ if is_of_the_system(&error) => internal_error(&error),
        _ => {
            report_damage(&format!("cannot be read: {error}"));
            HttpError::internal()
        }
    })
}

/// Receives, validates and accepts an update.
async fn receive_update(
    app: &Arc<AppState>,
    client: ClientIndex,
    round: u32,
    samples: u32,
    body: &mut Incoming,
) -> Result<Response<ResponseBody>, HttpError> {
    let admission = app.rounds().admit(client, round, None);
    if let Admission::Refused(refusal) = admission {
        return Err(refusal_error(refusal));
    }
    if body.size_hint().lower() > app.max_body_len {
        return Err(too_long(app.max_body_len));
    }
    let Some(permit) = app.begin_upload(client) else {
        let text = "two uploads of this client are in progress; try again later";
        return Err(HttpError::later(StatusCode::TOO_MANY_REQUESTS, "busy", SLOT_RETRY, text));
    };
    let files = app.store.temp_files();
    let samples_max = app.settings.limits.samples;
    let digest = receive(body, &files.body, app.max_body_len, app.settings.limits.transfer).await?;
    let update = UpdateSummary { samples, digest };
    let admission = app.rounds().admit(client, round, Some(&update));
    let admission = match admission {
        Admission::Accepted(kind) => {
            let app = Arc::clone(app);
            // The task runs to its end even if the connection breaks, and holds the upload permit until then.
            let merge_task = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                let admission = merge_and_accept(&app, client, round, update, kind, &files);
                match &admission {
                    Ok(Admission::Accepted(_)) => {
                        app.counters.increment("counted");
                        if samples == 0 {
                            app.counters.increment("counted-without-weight");
                        }
                        let (name, counts) = (app.settings.registry.name(client), samples.min(samples_max));
                        if counts < samples {
                            app.counters.increment("counted-capped");
                        }
                        tracing::info!(client = %name, round, samples, counts, "update accepted");
                    }
                    Err(error) => app.counters.increment(error.kind),
                    Ok(_) => {}
                }
                admission
            });
            merge_task
                .await
                .map_err(|error| internal_error(&error))?
                .map_err(|error| HttpError { is_counted: true, ..error })?
        }
        decided => decided,
    };
    let (status, kind) = match admission {
        Admission::Refused(refusal) => return Err(refusal_error(refusal)),
        Admission::Duplicate | Admission::NeedsDigest => {
            app.counters.increment("repeated");
            (StatusCode::OK, "repeated")
        }
        Admission::Accepted(_) => (StatusCode::CREATED, "counted"),
    };
    Ok(response::json(
        status,
        &json!({
            "round": round, "samples": samples, "counts": samples.min(samples_max), "weighs": samples > 0,
            "update": kind,
        }),
    ))
}

/// Builds the whole adapter of an upload and accepts it. Blocks on the disk.
fn merge_and_accept(
    app: &AppState,
    client: ClientIndex,
    round: u32,
    update: UpdateSummary,
    kind: RoundKind,
    files: &TempFiles,
) -> Result<Admission, HttpError> {
    let TempFiles { body, merged } = files;
    let base = round.saturating_sub(1);
    let merging = app.store.validate_and_merge(base, body, kind, merged);
    // Damage of the base must neither be copied into the update nor be held against the client.
    app.store.verify_model(base).map_err(|error| internal_error(&error))?;
    let written = merging.map_err(|error| invalid_update(app, round, body, &error))?;
    app.store.verify_body(body, &update).map_err(|error| internal_error(&error))?;
    app.accept(client, round, update, merged, written).map_err(|error| internal_error(&error))
}

/// Error response for a refusal by the round state.
fn refusal_error(refusal: Refusal) -> HttpError {
    let (status, kind) = match refusal {
        Refusal::Closed { .. } => (StatusCode::CONFLICT, "closed"),
        Refusal::NotOpen { .. } => (StatusCode::CONFLICT, "not-open"),
        Refusal::DifferentUpdate { .. } => (StatusCode::CONFLICT, "another"),
        Refusal::NotAsked { .. } => (StatusCode::FORBIDDEN, "not-asked"),
    };
    HttpError::new(status, kind, refusal.to_string())
}

/// Response 422 with the error text of the adapter. Paths of the server are replaced by words that are
/// meaningful to a client.
fn invalid_update(app: &AppState, round: u32, body: &std::path::Path, error: &AdapterError) -> HttpError {
    if error.is_temporary() || !error.is_invalid_input() {
        return internal_error(error);
    }
    let base = app.store.round(round.saturating_sub(1)).join(MODEL);
    let text = error.to_string().replace(&format!("{}: ", body.display()), "");
    let text = text.replace(&base.display().to_string(), "the adapter of this round");
    HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, "unsound", text)
}

/// Logs an internal error and returns response 500.
fn internal_error(error: &dyn std::fmt::Display) -> HttpError {
    tracing::error!(%error, "cannot process a request");
    HttpError::internal()
}
