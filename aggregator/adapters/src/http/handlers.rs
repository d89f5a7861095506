//! From a request to its answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, EXPECT, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::app_state::Desk;
use super::response::{self, Payload, Wrong};
use super::round_state::{Client, Counted, Refusal, Verdict};
use super::round_store::{CHANGED, CONFIG, MODEL};
use super::route::Route;
use super::upload::{Scrap, drain, receive, too_long};
use crate::files::{AdapterError, Round};

/// After how many rounds the adapter is what it is, and whether it is all of it.
const AFTER: &str = "fedspan-round";
const PART: &str = "fedspan-part";

/// What is read of a stranger's body, so that it reads the answer.
const STRANGERS_MAX: u64 = 1 << 16;

/// Answers.
///
/// # Errors
/// Never: what is wrong is an answer.
pub async fn serve(desk: Arc<Desk>, request: Request<Incoming>) -> Result<Response<Payload>, Infallible> {
    let (head, mut body) = request.into_parts();
    let token = head.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    let Some(client) = token.and_then(|token| desk.settings.roster.identify(token.trim())) else {
        drain(body, STRANGERS_MAX, desk.settings.limits.head);
        let text = "Authorization: Bearer TOKEN, with the token of a client";
        let wrong = Wrong::new(StatusCode::UNAUTHORIZED, "unauthorized", text);
        desk.tally.add(wrong.kind);
        return Ok(wrong.answer());
    };
    let route = Route::read(&head.method, head.uri.path(), head.uri.query());
    let name = desk.settings.roster.name(client).to_owned();
    let result = match route {
        Ok(route) => answer(&desk, client, route, &mut body).await,
        Err(wrong) => Err(wrong),
    };
    Ok(match result {
        Ok(answer) => answer,
        Err(wrong) => {
            if !wrong.is_told {
                desk.tally.add(wrong.kind);
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
                drain(body, desk.most, desk.settings.limits.transfer);
            }
            wrong.answer()
        }
    })
}

async fn answer(
    desk: &Arc<Desk>,
    client: Client,
    route: Route,
    body: &mut Incoming,
) -> Result<Response<Payload>, Wrong> {
    match route {
        Route::Round { after, wait } => {
            Ok(response::json(StatusCode::OK, &round(desk, client, after, wait).await))
        }
        Route::Status => Ok(response::json(StatusCode::OK, &status(desk))),
        Route::Config => {
            let path = desk.shelf.round(desk.course().done()).join(CONFIG);
            response::file(&path, "application/json").map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => {
                    let text = "the base has no adapter_config.json";
                    Wrong::new(StatusCode::NOT_FOUND, "not-found", text)
                }
                _ => failed(&error),
            })
        }
        Route::Model { since } => model(desk, client, since),
        Route::Update { round, samples } => update(desk, client, round, samples, body).await,
    }
}

/// What a client has to know of the round that is open, once it is another one than it knows.
async fn round(desk: &Desk, client: Client, after: Option<u32>, wait: Duration) -> Value {
    let mut moved = desk.watch();
    if !wait.is_zero() {
        desk.tally.add("waiting");
    }
    let known = async {
        loop {
            moved.borrow_and_update();
            let number = desk.course().current().map(|open| open.number);
            if desk.has_ended() || number.is_none_or(|number| after.is_none_or(|after| number > after)) {
                return;
            }
            if moved.changed().await.is_err() {
                return;
            }
        }
    };
    drop(tokio::time::timeout(wait, known).await);
    let (now, course) = (desk.now(), desk.course());
    let rules = course.rules();
    let about = json!({
        "method": rules.method.name(), "rounds": rules.rounds, "adapter": course.done(),
        "client": desk.settings.roster.name(client),
    });
    let open = course.current().map(|open| {
        #[allow(clippy::cast_precision_loss, reason = "seconds for people")]
        let seconds = |deadline: u64| deadline.saturating_sub(now) as f64 / 1000.0;
        json!({
            "round": open.number, "trains": open.trains.name(), "asked": open.asked.contains(&client),
            "counted": open.updates.contains_key(&client), "updates": open.updates.len(),
            "wanted": open.target, "seconds_left": open.deadline.map(seconds), "finished": false,
        })
    });
    merged(about, open.unwrap_or_else(|| json!({ "round": null, "finished": true })))
}

fn status(desk: &Desk) -> Value {
    let (counts, course) = (desk.tally.all(), desk.course());
    let open = course.current().map(|open| {
        json!({ "round": open.number, "trains": open.trains.name(), "updates": open.updates.len(), "wanted": open.target })
    });
    let about = json!({
        "method": course.rules().method.name(), "rounds": course.rules().rounds, "committed": course.done(),
        "clients": desk.settings.roster.names().len(), "counts": counts,
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
fn model(desk: &Desk, client: Client, since: Option<u32>) -> Result<Response<Payload>, Wrong> {
    let done = desk.course().done();
    let part = since.is_some() && since == done.checked_sub(1);
    let path = desk.shelf.round(done).join(if part { CHANGED } else { MODEL });
    let mut answer = response::file(&path, "application/octet-stream").map_err(|error| failed(&error))?;
    let headers = answer.headers_mut();
    headers.insert(AFTER, done.into());
    headers.insert(PART, HeaderValue::from_static(if part { "changed" } else { "whole" }));
    desk.tally.add(if part { "served-changed" } else { "served-whole" });
    desk.serves(client);
    Ok(answer)
}

async fn update(
    desk: &Arc<Desk>,
    client: Client,
    round: u32,
    samples: u32,
    body: &mut Incoming,
) -> Result<Response<Payload>, Wrong> {
    let verdict = desk.course().judge(client, round, None);
    if let Verdict::Refused(refusal) = verdict {
        return Err(refused(refusal));
    }
    if body.size_hint().lower() > desk.most {
        return Err(too_long(desk.most));
    }
    let Some(sending) = desk.sending(client) else {
        let text = "two updates of this client are being received already";
        return Err(Wrong::new(StatusCode::TOO_MANY_REQUESTS, "busy", text));
    };
    let scrap = Scrap(desk.shelf.scrap());
    let digest = receive(body, &scrap.0[0], desk.most, desk.settings.limits.transfer).await?;
    let update = Counted { samples, digest };
    let known = desk.course().judge(client, round, Some(&update));
    let verdict = match known {
        Verdict::Welcome(trains) => {
            let desk = Arc::clone(desk);
            // It goes on to its end, whatever becomes of the connection; until then the client is sending.
            let work = tokio::task::spawn_blocking(move || {
                let _sending = sending;
                let verdict = adopt(&desk, client, round, update, trains, &scrap);
                match &verdict {
                    Ok(Verdict::Welcome(_)) => {
                        desk.tally.add("counted");
                        let name = desk.settings.roster.name(client);
                        let weight = match samples {
                            0 => {
                                desk.tally.add("counted-without-weight");
                                ", without weight"
                            }
                            _ => "",
                        };
                        tracing::info!(
                            "{name}: update of round {round} with {samples} samples counted{weight}"
                        );
                    }
                    Err(wrong) => desk.tally.add(wrong.kind),
                    Ok(_) => {}
                }
                verdict
            });
            work.await.map_err(|error| failed(&error))?.map_err(|wrong| Wrong { is_told: true, ..wrong })?
        }
        other => other,
    };
    let (status, kind) = match verdict {
        Verdict::Refused(refusal) => return Err(refused(refusal)),
        Verdict::Repeat | Verdict::Compare => {
            desk.tally.add("repeated");
            (StatusCode::OK, "repeated")
        }
        Verdict::Welcome(_) => (StatusCode::CREATED, "counted"),
    };
    Ok(response::json(
        status,
        &json!({ "round": round, "samples": samples, "weighs": samples > 0, "update": kind }),
    ))
}

/// Makes a whole adapter of what was sent, and counts it. Waits for the disk.
fn adopt(
    desk: &Desk,
    client: Client,
    round: u32,
    update: Counted,
    trains: Round,
    scrap: &Scrap,
) -> Result<Verdict, Wrong> {
    let [sent, whole] = &scrap.0;
    desk.shelf
        .adopt(round.saturating_sub(1), sent, trains, whole)
        .map_err(|error| unsound(desk, round, sent, &error))?;
    desk.count(client, round, update, whole).map_err(|error| failed(&error))
}

fn refused(refusal: Refusal) -> Wrong {
    let (status, kind) = match refusal {
        Refusal::Closed { .. } => (StatusCode::CONFLICT, "closed"),
        Refusal::NotOpen { .. } => (StatusCode::CONFLICT, "not-open"),
        Refusal::Another { .. } => (StatusCode::CONFLICT, "another"),
        Refusal::NotAsked { .. } => (StatusCode::FORBIDDEN, "not-asked"),
    };
    Wrong::new(status, kind, refusal.to_string())
}

/// An update that does not fit, in the client's words: it knows nothing of our paths.
fn unsound(desk: &Desk, round: u32, sent: &std::path::Path, error: &AdapterError) -> Wrong {
    if !error.is_wrong_input() {
        return failed(error);
    }
    let base = desk.shelf.round(round.saturating_sub(1)).join(MODEL);
    let text = error.to_string().replace(&format!("{}: ", sent.display()), "");
    let text = text.replace(&base.display().to_string(), "the adapter of this round");
    Wrong::new(StatusCode::UNPROCESSABLE_ENTITY, "unsound", text)
}

fn failed(error: &dyn std::fmt::Display) -> Wrong {
    tracing::error!("{error}");
    Wrong::failed()
}
