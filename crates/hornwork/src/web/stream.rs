//! Server-sent events: figures, calls and alarms as they change. Packet threads copy call events into a bounded queue
//! only while a page listens; a client that does not read in time is disconnected.

use super::sessions::SessionKey;
use super::types::CallChange;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use console::{mask_numbers, mask_phrase};
use engine::{Event, EventKind};
use hyper::body::{Frame, SizeHint};
use net::Clock;
use serde::Serialize;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};

/// Events of one client that may wait.
const MAX_WAITING: usize = 256;
/// Clients at a time.
const MAX_CLIENTS: usize = 32;
/// Time after which a stream ends, so that the session of its client is checked again when it reconnects.
const STREAM_TIME: Duration = Duration::from_secs(600);

/// A client.
struct StreamClient {
    events: mpsc::Sender<Bytes>,
    redact: bool,
    session: Option<SessionKey>,
}

/// All clients.
pub(super) struct StreamHub {
    clients: Mutex<Vec<StreamClient>>,
    active: Arc<AtomicUsize>,
}

impl StreamHub {
    pub(super) fn new(active: Arc<AtomicUsize>) -> StreamHub {
        StreamHub {
            clients: Mutex::default(),
            active,
        }
    }

    /// Whether a client listens.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    /// Adds a client; `None`: there are too many.
    pub(super) fn add(
        &self,
        (session, redact): (Option<SessionKey>, bool),
        first: &[(&str, String)],
    ) -> Option<Response> {
        let (events, queue) = mpsc::channel(MAX_WAITING);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|client| !client.events.is_closed());
        if clients.len() >= MAX_CLIENTS {
            return None;
        }
        for (name, json) in first {
            // The queue is empty.
            let _ = events.try_send(frame(name, json));
        }
        clients.push(StreamClient {
            events,
            redact,
            session,
        });
        self.active.store(clients.len(), Ordering::Relaxed);
        let body = StreamBody {
            queue,
            end: Box::pin(sleep(STREAM_TIME)),
        };
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(response)
    }

    /// Ends the streams of a session that has ended.
    pub(super) fn end(&self, session: &SessionKey) {
        self.retain(|client| client.session.as_ref() != Some(session));
    }

    /// Ends all streams, so that their clients are checked by new rules when they reconnect.
    pub(super) fn end_all(&self) {
        self.retain(|_| false);
    }

    fn retain(&self, keeps: impl FnMut(&StreamClient) -> bool) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(keeps);
        self.active.store(clients.len(), Ordering::Relaxed);
    }

    /// Sends an event to all clients; those that are behind are disconnected.
    pub(super) fn send<T: Serialize>(&self, name: &str, value: impl Fn(bool) -> T) {
        let text = |redact| serde_json::to_string(&value(redact)).unwrap_or_default();
        let frames = [false, true].map(|redact| frame(name, &text(redact)));
        self.retain(|client| {
            let [plain, redacted] = &frames;
            let bytes = if client.redact { redacted } else { plain };
            client.events.try_send(bytes.clone()).is_ok()
        });
    }
}

/// An event; JSON has no line breaks.
fn frame(name: &str, json: &str) -> Bytes {
    format!("event: {name}\ndata: {json}\n\n").into()
}

/// The body of a stream.
struct StreamBody {
    queue: mpsc::Receiver<Bytes>,
    end: Pin<Box<Sleep>>,
}

impl hyper::body::Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let next = self.queue.poll_recv(context);
        next.map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// The change that an event reports.
pub(super) fn change_of(event: &Event, clock: &Clock, redact: bool) -> Option<CallChange> {
    let masked = |text: &str| match redact {
        true => mask_numbers(text),
        false => text.to_owned(),
    };
    let at = crate::log::timestamp(clock.unix_nanos(event.at));
    let change = |call: u64, state| CallChange {
        id: call.to_string(),
        state,
        at: at.clone(),
        ..CallChange::default()
    };
    match &event.kind {
        EventKind::CallOffered {
            call,
            call_id,
            from,
            to,
            interface,
            trunk,
            ..
        } => Some(CallChange {
            call_id: Some(call_id.clone()),
            from: Some(masked(from)),
            to: Some(masked(to)),
            interface: Some(interface.clone()),
            trunk: trunk.clone(),
            ..change(*call, "setup")
        }),
        EventKind::CallRouted {
            call, route, trunk, ..
        } => Some(CallChange {
            route: Some(route.clone()),
            trunk: trunk.clone(),
            ..change(*call, "setup")
        }),
        EventKind::CallAnswered { call, .. } => Some(change(*call, "answered")),
        EventKind::CallEnded {
            call,
            status,
            reason,
            ended_by,
            ..
        } => Some(CallChange {
            status: Some(*status),
            reason: Some(match redact {
                true => mask_phrase(reason),
                false => reason.clone(),
            }),
            ended_by: Some(ended_by.to_string()),
            ..change(*call, "ended")
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_tap::call_tap;
    use engine::Time;

    #[test]
    fn streams_end_with_their_session() {
        let hub = StreamHub::new(Arc::default());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let mut add = |session| hub.add((session, false), &[]).unwrap().into_body();
        let mut bodies = [Some([1; 32]), Some([2; 32]), None].map(&mut add);
        let mut is_over = |at: usize| {
            use hyper::body::Body as _;
            let mut context = Context::from_waker(std::task::Waker::noop());
            let body = Pin::new(&mut bodies[at]);
            matches!(body.poll_frame(&mut context), Poll::Ready(None))
        };
        hub.end(&[2; 32]);
        assert_eq!([0, 1, 2].map(&mut is_over), [false, true, false]);
        assert!(hub.is_active());
        hub.end_all();
        assert_eq!([0, 1, 2].map(&mut is_over), [true; 3]);
        assert!(!hub.is_active());
    }

    #[test]
    fn slow_clients_are_disconnected_and_nothing_is_copied_without_clients() {
        let (tap, mut end) = call_tap();
        let hub = StreamHub::new(end.active());
        let event = Event::new(
            Time::ZERO,
            EventKind::CallAnswered {
                call: 7,
                setup_ms: None,
                call_id: None,
            },
        );
        tap.take(&event);
        assert!(end.events.try_recv().is_err());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let all: Vec<_> = (0..=MAX_CLIENTS)
            .map(|_| hub.add((None, false), &[]))
            .collect();
        assert!(all[..MAX_CLIENTS].iter().all(Option::is_some) && all[MAX_CLIENTS].is_none());
        tap.take(&event);
        assert!(end.events.try_recv().is_ok());
        for _ in 0..MAX_WAITING {
            hub.send("x", |_| 1);
        }
        assert!(hub.is_active());
        hub.send("x", |_| 1);
        assert!(!hub.is_active());
        tap.take(&event);
        assert!(end.events.try_recv().is_err());
    }
}
