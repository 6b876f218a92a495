//! Start and end of the thread of the key exchange.

use super::exchange::{IkeExchange, IkeParts};
use super::request::{IkeRequest, IkeRequests};
use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of the work that the starting thread does while it waits.
const MEANWHILE: Duration = Duration::from_millis(10);

/// A running key exchange.
#[derive(Debug)]
pub(crate) struct ExchangeThread {
    requests: IkeRequests,
    thread: JoinHandle<()>,
}

impl ExchangeThread {
    /// Starts the key exchange; it has its daemon with all connections when this returns. Until then `meanwhile` is
    /// called again and again: the exchange may wait for work that only the calling thread does.
    ///
    /// # Errors
    /// Those of [`IkeExchange::new`] and [`IkeExchange::set_up`].
    pub(crate) fn start(
        name: &str,
        parts: IkeParts,
        requests: IkeRequests,
        mut meanwhile: impl FnMut(),
    ) -> io::Result<ExchangeThread> {
        let (ready, started) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                // The daemon ends with the thread that starts it, so that is this one.
                let exchange = IkeExchange::new(parts).and_then(|mut exchange| {
                    exchange.set_up()?;
                    Ok(exchange)
                });
                let (exchange, result) = match exchange {
                    Ok(exchange) => (Some(exchange), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                // The receiver waits for it.
                let _ = ready.send(result);
                if let Some(exchange) = exchange {
                    exchange.run();
                }
            })?;
        loop {
            match started.recv_timeout(MEANWHILE) {
                Ok(result) => break result?,
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the key exchange has panicked"));
                }
            }
        }
        Ok(ExchangeThread { requests, thread })
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Requests its end; false if it has no room for the request.
    pub(crate) fn request_end(&self) -> bool {
        self.requests.try_send(IkeRequest::Stop)
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        // A panic of the thread is logged by its hook.
        let _ = self.thread.join();
    }

    /// Ends it: negotiated associations are deleted at the peers.
    pub(crate) fn stop(self) {
        self.requests.send(IkeRequest::Stop);
        self.join();
    }
}
