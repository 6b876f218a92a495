//! Connections: so many at a time, each for one request, none for longer than it needs.

use super::api::{Remote, Shared, router};
use axum::http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
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
    connections: usize,
    shared: Arc<Shared>,
) -> io::Result<()> {
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
            runtime.block_on(accept(listener, connections, shared));
        })?;
    Ok(())
}

async fn accept(listener: tokio::net::TcpListener, connections: usize, shared: Arc<Shared>) {
    let router = TowerToHyperService::new(router(shared.clone()));
    let free = Arc::new(Semaphore::new(connections));
    loop {
        let Ok((stream, remote)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let Ok(permit) = free.clone().try_acquire_owned() else {
            shared.refused(
                remote,
                StatusCode::SERVICE_UNAVAILABLE,
                "too many connections",
            );
            // What the socket does not take at once is not worth waiting for.
            let _ = stream.try_write(BUSY);
            continue;
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
            drop(permit);
        });
    }
}
