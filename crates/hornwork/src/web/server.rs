//! The listener of the console, in a thread of its own: bounded connections, TLS, and clients that neither read nor
//! write are disconnected.

use super::Acceptor;
use super::access::ClientNames;
use super::api::ConsoleState;
use super::overview::INTERVAL;
use super::routes::router;
use super::stream::change_of;
use super::types::AlarmBody;
use crate::call_tap::CallTapEnd;
use crate::http::{
    ACCEPT_RETRY_DELAY, BUSY_RESPONSE, ClientAddress, ConnectionLimits, HEAD_TIMEOUT,
    MAX_HEAD_OCTETS, MAX_HEADERS,
};
use axum::http::Request;
use config::ConsoleSpec;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};

/// Longest duration of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(3_600);
/// Longest duration of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which a client may accept nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which alarms are compared, while a page listens.
const ALARM_INTERVAL: Duration = Duration::from_secs(1);

/// Binds the address.
///
/// # Errors
/// It cannot be bound.
pub(super) fn bind(listen: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        io::Error::other(format!(
            "cannot listen on {listen} (console): {error}\n  remedy: stop the program that uses the port, or correct `listen` in [console]"
        ))
    })
}

/// Serves in a thread of its own until the program ends.
///
/// # Errors
/// If the thread or the epoll set cannot be created.
pub(super) fn start(
    listener: TcpListener,
    spec: &ConsoleSpec,
    acceptor: watch::Receiver<Acceptor>,
    state: Arc<ConsoleState>,
    taps: CallTapEnd,
) -> io::Result<()> {
    let limits = ConnectionLimits::new(spec.connections, spec.connections_per_source);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    std::thread::Builder::new()
        .name("console".to_owned())
        .spawn(move || {
            // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
            let _ = net::block_signals();
            runtime.block_on(async move {
                tokio::spawn(sample(state.clone()));
                tokio::spawn(pass_calls(state.clone(), taps));
                tokio::spawn(watch_alarms(state.clone()));
                let watched = state.clone();
                tokio::spawn(async move { watched.end_streams_at_changes().await });
                accept(listener, limits, acceptor, state).await;
            });
        })?;
    Ok(())
}

async fn accept(
    listener: tokio::net::TcpListener,
    limits: ConnectionLimits,
    acceptor: watch::Receiver<Acceptor>,
    state: Arc<ConsoleState>,
) {
    let router = TowerToHyperService::new(router(state));
    loop {
        let Ok((stream, remote)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let tls = acceptor.borrow().clone();
        let Ok(permit) = limits.take(remote.ip()) else {
            // The response is best effort: a full socket is not waited for. A TLS client sees a closed connection.
            if tls.is_none() {
                let _ = stream.try_write(BUSY_RESPONSE);
            }
            continue;
        };
        // Small responses are not delayed; without it they are only slower.
        let _ = stream.set_nodelay(true);
        let router = router.clone();
        tokio::spawn(async move {
            let stream = StallGuard::new(stream);
            match tls {
                None => serve(stream, router, (remote, ClientNames::default())).await,
                Some(tls) => {
                    if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                        let own = stream.get_ref().1.peer_certificates();
                        let own = own.and_then(|chain| chain.first());
                        let names = own.map(|own| net::tls::user_names(own)).unwrap_or_default();
                        serve(stream, router, (remote, ClientNames(names.into()))).await;
                    }
                }
            }
            drop(permit);
        });
    }
}

/// Serves the requests of a connection.
async fn serve<S>(
    stream: S,
    router: TowerToHyperService<axum::Router>,
    (remote, names): (SocketAddr, ClientNames),
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        let client = ClientAddress::Tcp(remote);
        request.extensions_mut().insert(client);
        request.extensions_mut().insert(names.clone());
        router.call(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Also the longest idle time between two requests.
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(true)
        .max_buf_size(MAX_HEAD_OCTETS)
        .max_headers(MAX_HEADERS);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // Errors and timeouts need no handling: the connection is closed in any case.
    let _ = timeout(CONNECTION_TIMEOUT, connection).await;
}

/// Adds a point to the figures every five seconds, and sends it to the pages that listen, after the end of sessions
/// whose time is over.
async fn sample(state: Arc<ConsoleState>) {
    loop {
        state.end_expired_sessions();
        if let Ok(statistics) = state.operators().statistics().await {
            let clock = &state.operators().clock;
            let (now, nanos) = (clock.now(), clock.unix_nanos_now());
            let unix_s = i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX);
            let memory = crate::metrics::memory_bytes();
            let mut overview = state.overview();
            overview.add(statistics, memory, now, unix_s);
            drop(overview);
            if state.hub.is_active() {
                state.hub.send("overview", |_| state.overview().now());
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Passes changes of calls to the pages that listen.
async fn pass_calls(state: Arc<ConsoleState>, mut taps: CallTapEnd) {
    while let Some(event) = taps.events.recv().await {
        let clock = &state.operators().clock;
        if change_of(&event, clock, false).is_some() {
            let change = |redact| change_of(&event, clock, redact);
            state.hub.send("call", change);
        }
    }
}

/// Sends alarms that were raised, cleared or acknowledged.
async fn watch_alarms(state: Arc<ConsoleState>) {
    let mut known: Vec<AlarmBody> = state.alarms();
    loop {
        sleep(ALARM_INTERVAL).await;
        if !state.hub.is_active() {
            known = state.alarms();
            continue;
        }
        let alarms = state.alarms();
        for alarm in alarms.iter().filter(|alarm| !known.contains(alarm)) {
            state.hub.send("alarm", |_| alarm.clone());
        }
        known = alarms;
    }
}

/// A connection that ends with an error if the client accepts nothing for a time: a response never waits for a client
/// that does not read.
struct StallGuard {
    stream: TcpStream,
    /// The end of the wait for the client, while a write waits.
    limit: Option<Pin<Box<Sleep>>>,
}

impl StallGuard {
    fn new(stream: TcpStream) -> StallGuard {
        StallGuard {
            stream,
            limit: None,
        }
    }

    /// The result of a write: progress ends the wait, and a wait beyond the limit is an error.
    fn guarded<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.limit = None;
            return polled;
        }
        let limit = self
            .limit
            .get_or_insert_with(|| Box::pin(sleep(STALL_TIMEOUT)));
        ready!(limit.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.guarded(polled, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.guarded(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.guarded(polled, context)
    }
}
