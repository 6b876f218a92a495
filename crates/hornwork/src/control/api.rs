//! The requests: what they may be, what they want of the border, and how its answers are written.

use super::access::{Access, Denied, WRONG_TOKEN};
use super::{Order, RoomName, RoomReply, RoomWish};
use crate::log::{Log, timestamp};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, FromRequestParts, Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use border::registrar::Failures;
use border::rooms::{RoomView, SeatView};
use engine::{Entropy, Event, Note, Time};
use media::room::Muted;
use net::{Clock, Waker};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

/// Octets of a body at most.
const BODY: usize = 4 << 10;
/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(5);
/// How long the border may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Requests a second that are let through to the border, and so many at once.
const RATE: u64 = 100;
/// Refusals are told at most so often.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Characters of a path in events at most.
const PATH: usize = 200;

/// From where a request comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote(pub(super) SocketAddr);

/// What all requests share.
pub(super) struct Shared {
    orders: SyncSender<Order>,
    waker: Waker,
    access: watch::Receiver<Access>,
    log: Log,
    clock: Clock,
    refusals: Mutex<Refusals>,
    rate: Mutex<Rate>,
    failures: Mutex<Failures>,
}

/// Refusals since they were last told, and when that was.
#[derive(Default)]
struct Refusals {
    count: u64,
    told: Option<Time>,
}

/// A bucket: what may still pass, in thousandths of requests, as of when.
struct Rate {
    left: u64,
    at: Time,
}

impl Rate {
    const FULL: u64 = RATE * 1000;

    fn pass(&mut self, now: Time) -> bool {
        let since = now.since(self.at).as_nanos() / 1_000_000;
        let gained = u64::try_from(since)
            .unwrap_or(u64::MAX)
            .saturating_mul(RATE);
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(Rate::FULL);
            self.at = now;
        }
        let passes = self.left >= 1000;
        self.left -= if passes { 1000 } else { 0 };
        passes
    }
}

impl Shared {
    pub(super) fn new(
        orders: SyncSender<Order>,
        waker: Waker,
        access: watch::Receiver<Access>,
        log: Log,
        clock: Clock,
    ) -> Shared {
        let limits = access.borrow().failures();
        let random = net::entropy();
        let mut entropy =
            random.unwrap_or_else(|_| Entropy::from_number(u64::from(std::process::id())));
        Shared {
            failures: Mutex::new(Failures::new(limits, &mut entropy)),
            orders,
            waker,
            access,
            log,
            clock,
            refusals: Mutex::default(),
            rate: Mutex::new(Rate {
                left: Rate::FULL,
                at: clock.now(),
            }),
        }
    }

    /// Tells of a refusal, unless others were told just now.
    pub(super) fn refused(&self, remote: SocketAddr, status: StatusCode, why: &str) {
        let now = self.clock.now();
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.count += 1;
        if refusals
            .told
            .is_some_and(|told| now.since(told) < TOLD_EVERY)
        {
            return;
        }
        refusals.told = Some(now);
        let note = Note::ControlRefused {
            source: remote.to_string(),
            why: why.to_owned(),
            status: status.as_u16(),
            count: std::mem::take(&mut refusals.count),
        };
        self.log.event(&Event::new(now, note));
    }

    /// Whether a request is let in, where wrong tokens from its source do not delay that: for so many seconds.
    fn admits(&self, remote: SocketAddr, headers: &HeaderMap) -> Result<Result<(), Denied>, u64> {
        let access = self.access.borrow();
        let judges = access.judges(headers);
        let now = self.clock.now();
        let source = remote.ip();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.set_limits(access.failures());
        if judges && let Some(delay) = failures.delay(source, b"", now) {
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            return Err(seconds);
        }
        let admitted = access.admits(headers);
        match admitted {
            Err((_, WRONG_TOKEN)) => failures.failed(source, b"", now),
            Ok(()) if judges => failures.succeeded(source, b""),
            _ => {}
        }
        Ok(admitted)
    }

    fn commanded(&self, remote: Remote, what: &What, value: &str, status: StatusCode) {
        let note = Note::ControlCommand {
            source: remote.0.to_string(),
            what: what.0.clone(),
            value: value.to_owned(),
            status: status.as_u16(),
        };
        self.log.event(&Event::new(self.clock.now(), note));
    }

    /// Wants something of the border, and waits for the answer.
    async fn ask(&self, name: RoomName, wish: RoomWish) -> Result<RoomReply, Problem> {
        let (reply, answer) = oneshot::channel();
        let silent = || {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the border does not answer",
            )
        };
        let order = Order { name, wish, reply };
        self.orders.try_send(order).map_err(|_| silent())?;
        self.waker.wake();
        match timeout(ANSWER, answer).await {
            Ok(Ok(RoomReply::Busy)) | Ok(Err(_)) | Err(_) => Err(silent()),
            Ok(Ok(RoomReply::NoRoom)) => Err(Problem::new(
                StatusCode::NOT_FOUND,
                "no such conference takes place",
            )),
            Ok(Ok(RoomReply::NoSeat)) => Err(Problem::new(
                StatusCode::NOT_FOUND,
                "no such participant is in this conference",
            )),
            Ok(Ok(reply)) => Ok(reply),
        }
    }

    fn since(&self, at: Time) -> (Value, Value) {
        let seconds = self.clock.now().since(at).as_secs();
        (timestamp(self.clock.unix_nanos(at)).into(), seconds.into())
    }

    fn room(&self, room: &RoomView) -> Value {
        let (since, seconds) = self.since(room.since);
        json!({
            "room": room.name.room,
            "number": room.name.number,
            "seats": room.seats,
            "waiting": room.waiting,
            "locked": room.locked,
            "since": since,
            "seconds": seconds,
        })
    }

    fn seat(&self, seat: &SeatView) -> Value {
        let (since, seconds) = self.since(seat.since);
        json!({
            "id": seat.call,
            "from": seat.from,
            "call_id": seat.call_id,
            "codec": seat.codec,
            "packet_ms": seat.packet_ms,
            "waiting": seat.waits,
            "muted": seat.muted != Muted::No,
            "muted_by": match seat.muted {
                Muted::No => Value::Null,
                Muted::ByDigits => "participant".into(),
                Muted::ByOrder => "control".into(),
            },
            "speaking": seat.speaks,
            "received": seat.received,
            "sent": seat.sent,
            "lost": seat.lost,
            "jitter_ms": seat.jitter_ms.map(|jitter| (jitter * 1000.0).round() / 1000.0),
            "since": since,
            "seconds": seconds,
        })
    }

    fn value(&self, reply: &RoomReply) -> Value {
        match reply {
            RoomReply::Rooms(rooms) => {
                let rooms: Vec<Value> = rooms.iter().map(|room| self.room(room)).collect();
                json!({ "rooms": rooms })
            }
            RoomReply::Room(room, seats) => {
                let mut value = self.room(room);
                value["participants"] = seats.iter().map(|seat| self.seat(seat)).collect();
                value
            }
            RoomReply::Seat(seat) => self.seat(seat),
            RoomReply::Ended(calls) => json!({ "ended": calls }),
            // Those are problems.
            RoomReply::NoRoom | RoomReply::NoSeat | RoomReply::Busy => Value::Null,
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    why: String,
}

impl Problem {
    fn new(status: StatusCode, why: impl Into<String>) -> Problem {
        Problem {
            status,
            why: why.into(),
        }
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

fn json(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(format!("{value}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Method and path, for events.
#[derive(Clone, Debug)]
struct What(String);

/// All requests that there are.
pub(super) fn router(shared: Arc<Shared>) -> Router {
    let absent = || async { Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path") };
    Router::new()
        .route("/v1/rooms", get(rooms))
        .route(
            "/v1/rooms/{room}/{number}",
            get(room).patch(change_room).delete(end_room),
        )
        .route(
            "/v1/rooms/{room}/{number}/participants/{id}",
            get(seat).patch(change_seat).delete(end_seat),
        )
        .fallback(absent)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(shared.clone(), let_in))
        .with_state(shared)
}

async fn not_allowed(method: Method) -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{method} is nothing that can be done here"),
    )
}

/// Looks at who asks before anything else is looked at.
async fn let_in(
    State(shared): State<Arc<Shared>>,
    Extension(remote): Extension<Remote>,
    mut request: Request,
    next: Next,
) -> Response {
    let admitted = shared.admits(remote.0, request.headers());
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(seconds) => {
            let why = "too many wrong tokens";
            shared.refused(remote.0, StatusCode::TOO_MANY_REQUESTS, why);
            let mut response = Problem::new(StatusCode::TOO_MANY_REQUESTS, why).into_response();
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
            return response;
        }
    };
    let admitted = admitted.and_then(|()| {
        let now = shared.clock.now();
        let mut rate = shared.rate.lock().unwrap_or_else(PoisonError::into_inner);
        match rate.pass(now) {
            true => Ok(()),
            false => Err((StatusCode::TOO_MANY_REQUESTS, "too many requests")),
        }
    });
    if let Err((status, why)) = admitted {
        let denied: Denied = (status, why);
        shared.refused(remote.0, denied.0, denied.1);
        return Problem::new(denied.0, denied.1).into_response();
    }
    let path: String = request.uri().path().chars().take(PATH).collect();
    let what = What(format!("{} {path}", request.method()));
    request.extensions_mut().insert(what);
    next.run(request).await
}

type Asked = State<Arc<Shared>>;

/// The parts of a path; one that is no text leads nowhere.
struct At<T>(T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<At<T>, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        let absent = |_| Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path");
        path.map(|Path(path)| At(path)).map_err(absent)
    }
}

fn name((room, number): (String, String)) -> RoomName {
    RoomName { room, number }
}

async fn answer(shared: &Shared, name: RoomName, wish: RoomWish) -> Response {
    match shared.ask(name, wish).await {
        Ok(reply) => json(StatusCode::OK, &shared.value(&reply)),
        Err(problem) => problem.into_response(),
    }
}

/// The same for what changes something, which is told.
async fn command(
    shared: &Shared,
    (remote, what): (Remote, What),
    value: &str,
    name: RoomName,
    wish: RoomWish,
) -> Response {
    let response = answer(shared, name, wish).await;
    shared.commanded(remote, &what, value, response.status());
    response
}

async fn rooms(State(shared): Asked) -> Response {
    let all = RoomName {
        room: String::new(),
        number: String::new(),
    };
    answer(&shared, all, RoomWish::List).await
}

async fn room(State(shared): Asked, At(path): At<(String, String)>) -> Response {
    answer(&shared, name(path), RoomWish::Show).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoomChange {
    locked: bool,
}

async fn change_room(
    State(shared): Asked,
    At(path): At<(String, String)>,
    Extension(remote): Extension<Remote>,
    Extension(what): Extension<What>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let RoomChange { locked } = read(&headers, body).await?;
    let value = format!("locked={locked}");
    let wish = RoomWish::Lock(locked);
    Ok(command(&shared, (remote, what), &value, name(path), wish).await)
}

async fn end_room(
    State(shared): Asked,
    At(path): At<(String, String)>,
    Extension(remote): Extension<Remote>,
    Extension(what): Extension<What>,
) -> Response {
    command(&shared, (remote, what), "", name(path), RoomWish::End).await
}

type SeatPath = At<(String, String, String)>;

/// The conference, and the number of a participant's call.
fn seat_of((room, number, id): (String, String, String)) -> Result<(RoomName, u64), Problem> {
    let id = id.parse().map_err(|_| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "no such participant is in this conference",
        )
    })?;
    Ok((RoomName { room, number }, id))
}

async fn seat(State(shared): Asked, At(path): SeatPath) -> Result<Response, Problem> {
    let (name, id) = seat_of(path)?;
    Ok(answer(&shared, name, RoomWish::ShowSeat(id)).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeatChange {
    muted: bool,
}

async fn change_seat(
    State(shared): Asked,
    At(path): SeatPath,
    Extension(remote): Extension<Remote>,
    Extension(what): Extension<What>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (name, id) = seat_of(path)?;
    let SeatChange { muted } = read(&headers, body).await?;
    let value = format!("muted={muted}");
    let wish = RoomWish::Mute(id, muted);
    Ok(command(&shared, (remote, what), &value, name, wish).await)
}

async fn end_seat(
    State(shared): Asked,
    At(path): SeatPath,
    Extension(remote): Extension<Remote>,
    Extension(what): Extension<What>,
) -> Result<Response, Problem> {
    let (name, id) = seat_of(path)?;
    Ok(command(&shared, (remote, what), "", name, RoomWish::EndSeat(id)).await)
}

/// Reads what a request brings: a small JSON object that says so of itself.
async fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Problem> {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .and_then(|kind| kind.split(';').next())
        .unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be application/json",
        ));
    }
    // Whether it is too long is asked before, so that what is told of the rest is true.
    let announced = headers
        .get(axum::http::header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let long = || {
        let why = format!("the body has more than {BODY} octets");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why)
    };
    if announced.is_some_and(|length| length > BODY as u64) {
        return Err(long());
    }
    let late = || Problem::new(StatusCode::REQUEST_TIMEOUT, "the body did not come");
    let bytes = timeout(BODY_TIME, to_bytes(body, BODY))
        .await
        .map_err(|_| late())?
        // Longer than announced, or cut off; of the latter nobody is left to be told.
        .map_err(|_| long())?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept() {
        let mut rate = Rate {
            left: Rate::FULL,
            at: Time::ZERO,
        };
        let passed = (0..500).filter(|_| rate.pass(Time::ZERO)).count();
        assert_eq!(passed, 100);
        let second = (0..1000)
            .filter(|&ms| rate.pass(Time::from_millis(ms)))
            .count();
        assert!((98..=100).contains(&second), "{second}");
        let later = Time::from_millis(100_000);
        assert_eq!((0..500).filter(|_| rate.pass(later)).count(), 100);
    }
}
