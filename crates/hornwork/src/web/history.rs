//! Reads of the store, on threads of their own: a search blocks neither other requests nor the writer.

use super::problem::Problem;
use console::{HistoryReader, StoreError, StoreLocation};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Threads that read.
const READERS: usize = 2;
/// Reads that may wait; further ones are refused.
const MAX_WAITING: usize = 16;
/// Longest wait for a read.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A read; the error is that of opening the store.
type StoreJob = Box<dyn FnOnce(Result<&HistoryReader, StoreError>) + Send>;

/// The readers of a store.
#[derive(Clone)]
pub(super) struct StoreReaders(SyncSender<StoreJob>);

impl StoreReaders {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(location: &StoreLocation) -> io::Result<StoreReaders> {
        let (jobs, queue) = sync_channel(MAX_WAITING);
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..READERS {
            let (location, queue) = (location.clone(), queue.clone());
            std::thread::Builder::new()
                .name("console-store".to_owned())
                .spawn(move || {
                    // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them.
                    let _ = net::block_signals();
                    run(&location, &queue);
                })?;
        }
        Ok(StoreReaders(jobs))
    }

    /// Runs a read on one of the threads.
    ///
    /// # Errors
    /// The store cannot be read, or is busy.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&HistoryReader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let job: StoreJob = Box::new(move |reader| {
            // The client may have gone.
            let _ = reply.send(reader.and_then(job));
        });
        self.0
            .try_send(job)
            .map_err(|_| Problem::busy("too many searches"))?;
        match timeout(TIMEOUT, answer).await {
            Ok(Ok(result)) => Ok(result?),
            _ => Err(Problem::busy("the search took too long")),
        }
    }
}

/// Runs reads until the console ends.
fn run(location: &StoreLocation, queue: &Mutex<Receiver<StoreJob>>) {
    let mut open: Option<HistoryReader> = None;
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else {
            return;
        };
        let refreshed = match open.take() {
            None => HistoryReader::open(location),
            Some(mut reader) => reader.refresh().map(|()| reader),
        };
        match refreshed {
            Ok(reader) => {
                job(Ok(&reader));
                open = Some(reader);
            }
            Err(error) => job(Err(error)),
        }
    }
}
