//! Connections: so many at a time, and so many of one source, each for one request, none for longer than it needs.

use super::api::{Remote, Shared, router};
use axum::http::{Request, StatusCode};
use border::config::ControlSpec;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

/// How long the head of a request may take to come.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last, whatever it does.
const LIFE: Duration = Duration::from_secs(15);
/// Octets of a head at most.
const HEAD: usize = 16 << 10;
/// Headers of a request at most.
const HEADERS: usize = 64;
/// Where the system gives no connection (no descriptor is left), it is asked again after this.
const PAUSE: Duration = Duration::from_millis(100);

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 33\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{\"error\":\"too many connections\"}\n";

/// Serves from now on, in a thread of its own, until the program ends.
///
/// # Errors
/// There is no thread, or the system gives no epoll set.
pub(super) fn start(
    listener: TcpListener,
    spec: &ControlSpec,
    shared: Arc<Shared>,
) -> io::Result<()> {
    let places = Places::new(spec.connections, spec.connections_per_source);
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener)?
    };
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            // Signals are the first thread's; where they cannot be blocked, they are taken as they come.
            let _ = net::block_signals();
            runtime.block_on(accept(listener, places, shared));
        })?;
    Ok(())
}

/// Places for connections.
struct Places {
    free: Arc<Semaphore>,
    of_one: u16,
    /// How many each source has; who has none is not there, so that there are no more than places.
    sources: Arc<Mutex<BTreeMap<IpAddr, u16>>>,
}

/// A connection's place.
struct Place {
    source: IpAddr,
    sources: Arc<Mutex<BTreeMap<IpAddr, u16>>>,
    /// One of all.
    _permit: OwnedSemaphorePermit,
}

fn locked(sources: &Mutex<BTreeMap<IpAddr, u16>>) -> MutexGuard<'_, BTreeMap<IpAddr, u16>> {
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Places {
    fn new(all: u16, of_one: u16) -> Places {
        Places {
            free: Arc::new(Semaphore::new(all.into())),
            of_one,
            sources: Arc::default(),
        }
    }

    /// A place for a connection from this address.
    ///
    /// # Errors
    /// Why there is none.
    fn take(&self, address: IpAddr) -> Result<Place, &'static str> {
        let source = match address.to_canonical() {
            // A host has a network of its own.
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            ip => ip,
        };
        let mut sources = locked(&self.sources);
        if sources.get(&source).is_some_and(|has| *has >= self.of_one) {
            return Err("too many connections of one source");
        }
        let free = self.free.clone().try_acquire_owned();
        let permit = free.map_err(|_| "too many connections")?;
        *sources.entry(source).or_default() += 1;
        Ok(Place {
            source,
            sources: self.sources.clone(),
            _permit: permit,
        })
    }
}

impl Drop for Place {
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

async fn accept(listener: tokio::net::TcpListener, places: Places, shared: Arc<Shared>) {
    let router = TowerToHyperService::new(router(shared.clone()));
    loop {
        let Ok((stream, remote)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let place = match places.take(remote.ip()) {
            Ok(place) => place,
            Err(why) => {
                shared.refused(remote, StatusCode::SERVICE_UNAVAILABLE, why);
                // What the socket does not take at once is not worth waiting for.
                let _ = stream.try_write(BUSY);
                continue;
            }
        };
        let router = router.clone();
        tokio::spawn(async move {
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Remote(remote));
                router.call(request)
            });
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .keep_alive(false)
                .max_buf_size(HEAD)
                .max_headers(HEADERS);
            let io: TokioIo<TcpStream> = TokioIo::new(stream);
            // However it ends, whoever was at the other end knows.
            let _ = timeout(LIFE, builder.serve_connection(io, service)).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_leaves_places_for_others() {
        let places = Places::new(4, 2);
        let take = |address: &str| places.take(address.parse().expect("an address"));
        let one = [take("10.0.0.1"), take("::ffff:10.0.0.1")];
        assert!(one.iter().all(Result::is_ok));
        assert_eq!(
            take("10.0.0.1").err(),
            Some("too many connections of one source")
        );
        let other = take("2001:db8::1").expect("a place");
        let same = take("2001:db8::2").expect("a place");
        assert_eq!(take("10.0.0.2").err(), Some("too many connections"));
        drop((other, same));
        assert!(take("10.0.0.1").is_err());
        drop(one);
        let again: Vec<_> = (0..2).map(|_| take("10.0.0.1")).collect();
        assert!(again.iter().all(Result::is_ok));
        drop(again);
        assert!(locked(&places.sources).is_empty(), "nobody is remembered");
    }
}
