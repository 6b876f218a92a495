//! HTTP connections of the control interface and of metrics: limited in number, per source and in duration, each for
//! one request.

use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// Longest time for receiving the head of a request.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest duration of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest body of a request, octets: a login of the longest user and password, each character escaped, has 6 KiB.
const MAX_BODY_OCTETS: usize = 8 << 10;
/// Longest time for receiving a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest head, octets.
pub(crate) const MAX_HEAD_OCTETS: usize = 16 << 10;
/// Most header fields of a request.
pub(crate) const MAX_HEADERS: usize = 64;
/// Pause after a failed accept (such as without free file descriptors).
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Response to a connection beyond a limit.
pub(crate) const BUSY_RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 47\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{\"error\":\"too many connections\",\"code\":\"busy\"}\n";

/// Source of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientAddress {
    /// An address; it has to be authorized.
    Tcp(SocketAddr),
    /// The Unix socket, whose permissions have authorized it.
    Local,
}

impl core::fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ClientAddress::Tcp(remote) => remote.fmt(f),
            ClientAddress::Local => f.write_str("local socket"),
        }
    }
}

/// Reads the body of a request: a small JSON value with the matching Content-Type.
///
/// # Errors
/// Status and reason of the refusal.
pub(crate) async fn read_json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, (StatusCode, String)> {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .and_then(|kind| kind.split(';').next())
        .unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("application/json") {
        let why = "the body must be application/json".to_owned();
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    // The announced length is checked first, so that a later error message is accurate.
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let long = || {
        let why = format!("the body has more than {MAX_BODY_OCTETS} octets");
        (StatusCode::PAYLOAD_TOO_LARGE, why)
    };
    if announced.is_some_and(|length| length > MAX_BODY_OCTETS as u64) {
        return Err(long());
    }
    let late = || {
        let why = "the body was not received in time".to_owned();
        (StatusCode::REQUEST_TIMEOUT, why)
    };
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY_OCTETS))
        .await
        .map_err(|_| late())?
        // Longer than announced, or cut off; in the latter case the client has gone.
        .map_err(|_| long())?;
    serde_json::from_slice(&bytes).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))
}

/// Limits of concurrent connections.
pub(crate) struct ConnectionLimits {
    free: Arc<Semaphore>,
    per_source: u16,
    /// Connections per source; sources without one are removed, so that there are no more entries than connections.
    sources: Arc<Mutex<BTreeMap<IpAddr, u16>>>,
}

/// Permit of one connection.
pub(crate) struct ConnectionPermit {
    source: IpAddr,
    sources: Arc<Mutex<BTreeMap<IpAddr, u16>>>,
    /// Permit of the total limit.
    _permit: OwnedSemaphorePermit,
}

fn locked(sources: &Mutex<BTreeMap<IpAddr, u16>>) -> MutexGuard<'_, BTreeMap<IpAddr, u16>> {
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionLimits {
    /// No connections.
    pub(crate) fn new(all: u16, per_source: u16) -> ConnectionLimits {
        ConnectionLimits {
            free: Arc::new(Semaphore::new(all.into())),
            per_source,
            sources: Arc::default(),
        }
    }

    /// A permit for a connection from this address.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(crate) fn take(&self, address: IpAddr) -> Result<ConnectionPermit, &'static str> {
        let source = engine::network_of(address);
        let mut sources = locked(&self.sources);
        if sources
            .get(&source)
            .is_some_and(|has| *has >= self.per_source)
        {
            return Err("too many connections of one source");
        }
        let free = self.free.clone().try_acquire_owned();
        let permit = free.map_err(|_| "too many connections")?;
        *sources.entry(source).or_default() += 1;
        Ok(ConnectionPermit {
            source,
            sources: self.sources.clone(),
            _permit: permit,
        })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut sources = locked(&self.sources);
        if let Some(has) = sources.get_mut(&self.source) {
            *has -= 1;
            if *has == 0 {
                sources.remove(&self.source);
            }
        }
    }
}

/// Most connections to the metrics listener, in all and from one source.
const METRICS_CONNECTIONS: (u16, u16) = (32, 8);

/// Serves the metrics listener.
pub(crate) async fn serve_metrics(listener: tokio::net::TcpListener, router: axum::Router) {
    let limits = ConnectionLimits::new(METRICS_CONNECTIONS.0, METRICS_CONNECTIONS.1);
    let router = TowerToHyperService::new(router);
    loop {
        let Ok((stream, remote)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let Ok(permit) = limits.take(remote.ip()) else {
            // The response is best effort: a full socket is not waited for.
            let _ = stream.try_write(BUSY_RESPONSE);
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            serve(TokioIo::new(stream), router, ClientAddress::Tcp(remote)).await;
            drop(permit);
        });
    }
}

/// Serves one request of a connection, within a limited time.
pub(crate) async fn serve<I>(
    io: I,
    router: TowerToHyperService<axum::Router>,
    client: ClientAddress,
) where
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(client);
        router.call(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_OCTETS)
        .max_headers(MAX_HEADERS);
    // Errors and timeouts need no handling: the connection is closed in any case.
    let _ = timeout(CONNECTION_TIMEOUT, builder.serve_connection(io, service)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_cannot_use_all_connections() {
        let limits = ConnectionLimits::new(4, 2);
        let take = |address: &str| limits.take(address.parse().expect("an address"));
        let one = [take("10.0.0.1"), take("::ffff:10.0.0.1")];
        assert!(one.iter().all(Result::is_ok));
        assert_eq!(
            take("10.0.0.1").err(),
            Some("too many connections of one source")
        );
        let other = take("2001:db8::1").expect("a permit");
        let same = take("2001:db8::2").expect("a permit");
        assert_eq!(take("10.0.0.2").err(), Some("too many connections"));
        drop((other, same));
        assert!(take("10.0.0.1").is_err());
        drop(one);
        let again: Vec<_> = (0..2).map(|_| take("10.0.0.1")).collect();
        assert!(again.iter().all(Result::is_ok));
        drop(again);
        assert!(
            locked(&limits.sources).is_empty(),
            "no source is remembered"
        );
    }
}
