//! The HTTP interface: valid requests, their commands for the border, and the encoding of responses.

use super::access::{ControlPolicy, Denial, WRONG_TOKEN};
use super::former_paths::{self, FormerPathWarning};
use super::{ConferenceName, ConferenceReply, ConferenceRequest, ControlRequest};
use crate::http::ClientAddress;
use crate::log::timestamp;
use crate::operators::Operators;
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use border::conferences::{ConferenceView, ParticipantView};
use border::registrar::AuthenticationFailures;
use engine::{Entropy, Event, EventKind, Time};
use media::conference::MuteState;
use net::Waker;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// Longest time for the border's response.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests per second passed to the border, which is also the burst size.
const REQUESTS_PER_S: u64 = 100;
/// Shortest time between two log events about refusals.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The path of the conferences.
pub(super) const CONFERENCES: &str = "/v1/conferences";
/// Longest path in events, characters.
const MAX_PATH_CHARS: usize = 200;

/// State common to all requests.
pub(super) struct ApiState {
    requests: SyncSender<ControlRequest>,
    waker: Waker,
    access: watch::Receiver<ControlPolicy>,
    operators: Operators,
    refusals: Mutex<Refusals>,
    rate: Mutex<RequestRate>,
    failures: Mutex<AuthenticationFailures>,
    former_path_warning: FormerPathWarning,
}

/// Number of refusals since the last event about them, and its time.
#[derive(Default)]
struct Refusals {
    count: u64,
    reported: Option<Time>,
}

/// Token bucket: remaining requests, in thousandths, at time `at`.
struct RequestRate {
    remaining: u64,
    at: Time,
}

impl RequestRate {
    const FULL: u64 = REQUESTS_PER_S * 1000;

    fn admit(&mut self, now: Time) -> bool {
        let since = now.since(self.at).as_nanos() / 1_000_000;
        let gained = u64::try_from(since)
            .unwrap_or(u64::MAX)
            .saturating_mul(REQUESTS_PER_S);
        if gained > 0 {
            self.remaining = self.remaining.saturating_add(gained).min(RequestRate::FULL);
            self.at = now;
        }
        let passes = self.remaining >= 1000;
        self.remaining -= if passes { 1000 } else { 0 };
        passes
    }
}

impl ApiState {
    pub(super) fn new(
        requests: SyncSender<ControlRequest>,
        waker: Waker,
        access: watch::Receiver<ControlPolicy>,
        operators: Operators,
    ) -> ApiState {
        let limits = access.borrow().failures();
        let random = net::entropy();
        let mut entropy =
            random.unwrap_or_else(|_| Entropy::from_number(u64::from(std::process::id())));
        ApiState {
            failures: Mutex::new(AuthenticationFailures::new(limits, &mut entropy)),
            requests,
            waker,
            access,
            refusals: Mutex::default(),
            rate: Mutex::new(RequestRate {
                remaining: RequestRate::FULL,
                at: operators.clock.now(),
            }),
            operators,
            former_path_warning: FormerPathWarning::default(),
        }
    }

    /// The warning about paths of earlier releases.
    pub(super) fn former_path_warning(&self) -> &FormerPathWarning {
        &self.former_path_warning
    }

    /// Access to the packet threads.
    pub(super) fn operators(&self) -> &Operators {
        &self.operators
    }

    /// Logs a refusal, unless one was logged just before.
    pub(super) fn log_refusal(
        &self,
        remote: impl core::fmt::Display,
        status: StatusCode,
        why: &str,
    ) {
        let now = self.operators.clock.now();
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.count += 1;
        if refusals
            .reported
            .is_some_and(|reported| now.since(reported) < REFUSAL_LOG_INTERVAL)
        {
            return;
        }
        refusals.reported = Some(now);
        let note = EventKind::ControlRefused {
            source: remote.to_string(),
            reason: why.to_owned(),
            status: status.as_u16(),
            refused: std::mem::take(&mut refusals.count),
        };
        self.operators.log.event(&Event::new(now, note));
    }

    /// Authorizes a request; the error is the number of seconds for which its source is locked out because of wrong
    /// tokens.
    fn authorize(
        &self,
        remote: SocketAddr,
        headers: &HeaderMap,
    ) -> Result<Result<(), Denial>, u64> {
        let access = self.access.borrow();
        let checks_token = access.has_token(headers);
        let now = self.operators.clock.now();
        let source = remote.ip();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.set_limits(access.failures());
        if checks_token && let Some(delay) = failures.delay(source, b"", now) {
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            return Err(seconds);
        }
        let authorized = access.authorize(headers);
        match authorized {
            Err((_, WRONG_TOKEN)) => failures.failed(source, b"", now),
            Ok(()) if checks_token => failures.succeeded(source, b"", now),
            _ => {}
        }
        Ok(authorized)
    }

    pub(super) fn log_command(
        &self,
        remote: ClientAddress,
        what: &RequestLabel,
        value: &str,
        status: StatusCode,
    ) {
        let note = EventKind::ControlCommand {
            source: remote.to_string(),
            request: what.0.clone(),
            value: value.to_owned(),
            status: status.as_u16(),
        };
        self.operators
            .log
            .event(&Event::new(self.operators.clock.now(), note));
    }

    /// Sends a command to the border and waits for the response.
    async fn request(
        &self,
        name: ConferenceName,
        command: ConferenceRequest,
    ) -> Result<ConferenceReply, Problem> {
        let (reply, answer) = oneshot::channel();
        let silent = || {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the border did not respond in time",
            )
        };
        let request = ControlRequest {
            name,
            command,
            reply,
        };
        self.requests.try_send(request).map_err(|_| silent())?;
        self.waker.wake();
        match timeout(REPLY_TIMEOUT, answer).await {
            Ok(Ok(ConferenceReply::Busy)) | Ok(Err(_)) | Err(_) => Err(silent()),
            Ok(Ok(ConferenceReply::NoConference)) => {
                Err(Problem::new(StatusCode::NOT_FOUND, "no such conference"))
            }
            Ok(Ok(ConferenceReply::NoParticipant)) => Err(Problem::new(
                StatusCode::NOT_FOUND,
                "no such participant in this conference",
            )),
            Ok(Ok(reply)) => Ok(reply),
        }
    }

    fn since(&self, at: Time) -> (Value, Value) {
        let seconds = self.operators.clock.now().since(at).as_secs();
        (
            timestamp(self.operators.clock.unix_nanos(at)).into(),
            seconds.into(),
        )
    }

    fn conference_json(&self, conference: &ConferenceView) -> Value {
        let (since, seconds) = self.since(conference.since);
        json!({
            "conference": conference.name.conference,
            "number": conference.name.number,
            "participant_count": conference.participants,
            "lobby_count": conference.in_lobby,
            "locked": conference.locked,
            "since": since,
            "seconds": seconds,
        })
    }

    fn participant_json(&self, participant: &ParticipantView) -> Value {
        let (since, seconds) = self.since(participant.since);
        json!({
            "id": participant.call,
            "from": participant.from,
            "call_id": participant.call_id,
            "codec": participant.codec,
            "packet_ms": participant.packet_ms,
            "in_lobby": participant.in_lobby,
            "muted": participant.muted != MuteState::Unmuted,
            "muted_by": match participant.muted {
                MuteState::Unmuted => Value::Null,
                MuteState::ByParticipant => "participant".into(),
                MuteState::ByControl => "control".into(),
            },
            "speaking": participant.in_mix,
            "received": participant.received,
            "sent": participant.sent,
            "lost": participant.lost,
            "jitter_ms": participant.jitter_ms.map(|jitter| (jitter * 1000.0).round() / 1000.0),
            "since": since,
            "seconds": seconds,
        })
    }

    fn reply_json(&self, reply: &ConferenceReply) -> Value {
        match reply {
            ConferenceReply::Conferences(conferences) => {
                let conferences: Vec<Value> = conferences
                    .iter()
                    .map(|conference| self.conference_json(conference))
                    .collect();
                json!({ "conferences": conferences })
            }
            ConferenceReply::Conference(conference, participants) => {
                let mut value = self.conference_json(conference);
                value["participants"] = participants
                    .iter()
                    .map(|participant| self.participant_json(participant))
                    .collect();
                value
            }
            ConferenceReply::Participant(participant) => self.participant_json(participant),
            ConferenceReply::Ended(calls) => json!({ "ended": calls }),
            // Those are problems.
            ConferenceReply::NoConference
            | ConferenceReply::NoParticipant
            | ConferenceReply::Busy => Value::Null,
        }
    }
}

/// Reason for an error response.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    why: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, why: impl Into<String>) -> Problem {
        Problem {
            status,
            why: why.into(),
        }
    }
}

impl Problem {
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = json(self.status, &json!({ "error": self.why }));
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

pub(super) fn json(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(format!("{value}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Method and path, for events.
#[derive(Clone, Debug)]
pub(super) struct RequestLabel(String);

/// The routes of all requests.
pub(super) fn router(shared: Arc<ApiState>) -> Router {
    let absent = || async { Problem::new(StatusCode::NOT_FOUND, "no resource at this path") };
    conference_routes(CONFERENCES)
        .merge(former_paths::routes(&shared))
        .merge(super::commands::routes())
        .fallback(absent)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(shared.clone(), authorize_request))
        .with_state(shared)
}

/// The routes of the conferences at this path.
pub(super) fn conference_routes(path: &str) -> Router<Arc<ApiState>> {
    let conference = format!("{path}/{{conference}}/{{number}}");
    Router::new()
        .route(path, get(list_conferences))
        .route(
            &conference,
            get(show_conference)
                .patch(change_conference)
                .delete(end_conference),
        )
        .route(
            &format!("{conference}/participants/{{id}}"),
            get(show_participant)
                .patch(change_participant)
                .delete(remove_participant),
        )
}

async fn not_allowed(method: Method) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{method} is not supported by this resource"),
    )
}

/// Authorizes a request before anything else is processed.
async fn authorize_request(
    State(shared): State<Arc<ApiState>>,
    Extension(remote): Extension<ClientAddress>,
    mut request: Request,
    next: Next,
) -> Response {
    let authorized = match remote {
        ClientAddress::Tcp(address) => shared.authorize(address, request.headers()),
        ClientAddress::Local => Ok(Ok(())),
    };
    let authorized = match authorized {
        Ok(authorized) => authorized,
        Err(seconds) => {
            let why = "too many wrong tokens";
            shared.log_refusal(remote, StatusCode::TOO_MANY_REQUESTS, why);
            let mut response = Problem::new(StatusCode::TOO_MANY_REQUESTS, why).into_response();
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
            return response;
        }
    };
    let authorized = authorized.and_then(|()| {
        let now = shared.operators.clock.now();
        let mut rate = shared.rate.lock().unwrap_or_else(PoisonError::into_inner);
        match rate.admit(now) {
            true => Ok(()),
            false => Err((StatusCode::TOO_MANY_REQUESTS, "too many requests")),
        }
    });
    if let Err((status, why)) = authorized {
        let denied: Denial = (status, why);
        shared.log_refusal(remote, denied.0, denied.1);
        return Problem::new(denied.0, denied.1).into_response();
    }
    let path: String = request.uri().path().chars().take(MAX_PATH_CHARS).collect();
    let what = RequestLabel(format!("{} {path}", request.method()));
    request.extensions_mut().insert(what);
    next.run(request).await
}

pub(super) type SharedState = State<Arc<ApiState>>;

/// Parameters of the path; an invalid one gives 404.
pub(super) struct PathParts<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathParts<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathParts<T>, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        let absent = |_| Problem::new(StatusCode::NOT_FOUND, "no resource at this path");
        path.map(|Path(path)| PathParts(path)).map_err(absent)
    }
}

fn name((conference, number): (String, String)) -> ConferenceName {
    ConferenceName { conference, number }
}

async fn answer(shared: &ApiState, name: ConferenceName, command: ConferenceRequest) -> Response {
    match shared.request(name, command).await {
        Ok(reply) => json(StatusCode::OK, &shared.reply_json(&reply)),
        Err(problem) => problem.into_response(),
    }
}

/// As [`answer`], for commands that change something; they are logged.
async fn run_logged(
    shared: &ApiState,
    (remote, what): (ClientAddress, RequestLabel),
    value: &str,
    name: ConferenceName,
    command: ConferenceRequest,
) -> Response {
    let response = answer(shared, name, command).await;
    shared.log_command(remote, &what, value, response.status());
    response
}

async fn list_conferences(State(shared): SharedState) -> Response {
    let all = ConferenceName {
        conference: String::new(),
        number: String::new(),
    };
    answer(&shared, all, ConferenceRequest::List).await
}

async fn show_conference(
    State(shared): SharedState,
    PathParts(path): PathParts<(String, String)>,
) -> Response {
    answer(&shared, name(path), ConferenceRequest::Show).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConferenceChange {
    locked: bool,
}

async fn change_conference(
    State(shared): SharedState,
    PathParts(path): PathParts<(String, String)>,
    Extension(remote): Extension<ClientAddress>,
    Extension(what): Extension<RequestLabel>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let ConferenceChange { locked } = read(&headers, body).await?;
    let value = format!("locked={locked}");
    let command = ConferenceRequest::Lock(locked);
    Ok(run_logged(&shared, (remote, what), &value, name(path), command).await)
}

async fn end_conference(
    State(shared): SharedState,
    PathParts(path): PathParts<(String, String)>,
    Extension(remote): Extension<ClientAddress>,
    Extension(what): Extension<RequestLabel>,
) -> Response {
    run_logged(
        &shared,
        (remote, what),
        "",
        name(path),
        ConferenceRequest::End,
    )
    .await
}

type ParticipantPath = PathParts<(String, String, String)>;

/// The conference, and the number of a participant's call.
fn parse_participant(
    (conference, number, id): (String, String, String),
) -> Result<(ConferenceName, u64), Problem> {
    let id = id.parse().map_err(|_| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no such participant in this conference",
        )
    })?;
    Ok((ConferenceName { conference, number }, id))
}

async fn show_participant(
    State(shared): SharedState,
    PathParts(path): ParticipantPath,
) -> Result<Response, Problem> {
    let (name, id) = parse_participant(path)?;
    Ok(answer(&shared, name, ConferenceRequest::ShowParticipant(id)).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParticipantChange {
    muted: bool,
}

async fn change_participant(
    State(shared): SharedState,
    PathParts(path): ParticipantPath,
    Extension(remote): Extension<ClientAddress>,
    Extension(what): Extension<RequestLabel>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (name, id) = parse_participant(path)?;
    let ParticipantChange { muted } = read(&headers, body).await?;
    let value = format!("muted={muted}");
    let command = ConferenceRequest::Mute(id, muted);
    Ok(run_logged(&shared, (remote, what), &value, name, command).await)
}

async fn remove_participant(
    State(shared): SharedState,
    PathParts(path): ParticipantPath,
    Extension(remote): Extension<ClientAddress>,
    Extension(what): Extension<RequestLabel>,
) -> Result<Response, Problem> {
    let (name, id) = parse_participant(path)?;
    Ok(run_logged(
        &shared,
        (remote, what),
        "",
        name,
        ConferenceRequest::Remove(id),
    )
    .await)
}

/// Reads the body of a request: a small JSON object with the matching Content-Type.
pub(super) async fn read<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Problem> {
    let read = crate::http::read_json(headers, body).await;
    read.map_err(|(status, why)| Problem::new(status, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_limit_is_enforced() {
        let mut rate = RequestRate {
            remaining: RequestRate::FULL,
            at: Time::ZERO,
        };
        let passed = (0..500).filter(|_| rate.admit(Time::ZERO)).count();
        assert_eq!(passed, 100);
        let second = (0..1000)
            .filter(|&ms| rate.admit(Time::from_millis(ms)))
            .count();
        assert!((98..=100).contains(&second), "{second}");
        let later = Time::from_millis(100_000);
        assert_eq!((0..500).filter(|_| rate.admit(later)).count(), 100);
    }
}
