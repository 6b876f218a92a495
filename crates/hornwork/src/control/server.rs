//! The listeners of the control interface, in a thread of their own.

use super::api::{ApiState, router};
use crate::http::{ACCEPT_RETRY_DELAY, BUSY_RESPONSE, ClientAddress, ConnectionLimits, serve};
use axum::http::StatusCode;
use config::ControlSpec;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// Serves in a thread of its own until the program ends: requests over TCP, and over a Unix socket.
///
/// # Errors
/// If the thread or the epoll set cannot be created.
pub(super) fn start(
    listener: Option<TcpListener>,
    socket: Option<UnixListener>,
    spec: &ControlSpec,
    shared: Arc<ApiState>,
) -> io::Result<()> {
    let limits = ConnectionLimits::new(spec.connections, spec.connections_per_source);
    let local = Arc::new(Semaphore::new(spec.connections.into()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let inside = runtime.enter();
    let listener = listener
        .map(|listener| {
            listener.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(listener)
        })
        .transpose()?;
    let socket = socket
        .map(|socket| {
            socket.set_nonblocking(true)?;
            tokio::net::UnixListener::from_std(socket)
        })
        .transpose()?;
    drop(inside);
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
            let _ = net::block_signals();
            runtime.block_on(async move {
                if let Some(socket) = socket {
                    tokio::spawn(accept_local(socket, local, shared.clone()));
                }
                match listener {
                    Some(listener) => accept(listener, limits, shared).await,
                    None => std::future::pending().await,
                }
            });
        })?;
    Ok(())
}

async fn accept(
    listener: tokio::net::TcpListener,
    limits: ConnectionLimits,
    shared: Arc<ApiState>,
) {
    let router = TowerToHyperService::new(router(shared.clone()));
    loop {
        let Ok((stream, remote)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let permit = match limits.take(remote.ip()) {
            Ok(permit) => permit,
            Err(why) => {
                shared.log_refusal(remote, StatusCode::SERVICE_UNAVAILABLE, why);
                // The response is best effort: a full socket is not waited for.
                let _ = stream.try_write(BUSY_RESPONSE);
                continue;
            }
        };
        let router = router.clone();
        tokio::spawn(async move {
            serve(TokioIo::new(stream), router, ClientAddress::Tcp(remote)).await;
            drop(permit);
        });
    }
}

/// Connections of this machine, authorized by the permissions of the socket.
async fn accept_local(
    socket: tokio::net::UnixListener,
    permits: Arc<Semaphore>,
    shared: Arc<ApiState>,
) {
    let router = TowerToHyperService::new(router(shared));
    loop {
        let Ok((stream, _)) = socket.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            // The response is best effort: a full socket is not waited for.
            let _ = stream.try_write(BUSY_RESPONSE);
            continue;
        };
        let router = router.clone();
        tokio::spawn(async move {
            serve(TokioIo::new(stream), router, ClientAddress::Local).await;
            drop(permit);
        });
    }
}
