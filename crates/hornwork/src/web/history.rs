//! Reads of the store, on threads of their own: a search blocks neither other requests nor the writer.

use super::problem::Problem;
use console::{HistoryReader, StoreError, StoreLocation};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
/// Longest wait for the check of the store: load balancers ask for it, and must not wait for the searches of users.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

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
            // The client may have gone, before or meanwhile.
            if !reply.is_closed() {
                let _ = reply.send(reader.and_then(job));
            }
        });
        self.0
            .try_send(job)
            .map_err(|_| Problem::busy("too many searches"))?;
        match timeout(TIMEOUT, answer).await {
            Ok(Ok(result)) => Ok(result?),
            Ok(Err(_)) => Err(Problem::busy(
                "the search has ended with an internal error, see the log",
            )),
            Err(_) => Err(Problem::busy("the search took too long")),
        }
    }
}

impl StoreReaders {
    /// The number of parts of the store that cannot be read.
    ///
    /// # Errors
    /// The store cannot be read, or is busy.
    pub(super) async fn check(&self) -> Result<usize, Problem> {
        let read = self.read(|reader| Ok(reader.unread().len()));
        let busy = |_| Err(Problem::busy("searches take long"));
        timeout(CHECK_TIMEOUT, read).await.unwrap_or_else(busy)
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
        let before = open.take();
        // A read that panics, which is logged, must not end the thread: without threads every search is refused until
        // the next start. Nothing that the read has used is used again.
        let read = AssertUnwindSafe(|| read_next(location, before, job));
        open = catch_unwind(read).unwrap_or_default();
    }
}

/// Runs a read with the reader of the last one, or a new one. Returns the reader.
fn read_next(
    location: &StoreLocation,
    before: Option<HistoryReader>,
    job: StoreJob,
) -> Option<HistoryReader> {
    let refreshed = match before {
        None => HistoryReader::open(location),
        Some(mut reader) => reader.refresh().map(|()| reader),
    };
    match refreshed {
        Ok(reader) => {
            job(Ok(&reader));
            Some(reader)
        }
        Err(error) => {
            job(Err(error));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use console::{HistoryWriter, StoreSettings};
    use std::path::PathBuf;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::task::JoinHandle;

    /// Reads on all threads that wait for each other, and for the caller.
    fn block(readers: &StoreReaders, barrier: &Arc<Barrier>) -> Vec<JoinHandle<()>> {
        let read = |_| {
            let (readers, barrier) = (readers.clone(), barrier.clone());
            tokio::spawn(async move {
                let job = move |_: &HistoryReader| {
                    barrier.wait();
                    Ok(())
                };
                assert!(readers.read(job).await.is_ok());
            })
        };
        (0..READERS).map(read).collect()
    }

    /// The readers of an empty store in a folder.
    fn readers(name: &str) -> (PathBuf, StoreReaders) {
        let name = format!("hornwork-console-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let location = StoreLocation::Folder(folder.clone());
        let settings = StoreSettings {
            location: location.clone(),
            node: String::new(),
            retention_days: 1,
            size: 64 << 20,
            secure_content: false,
            full_text: false,
        };
        let now = 1_763_999_999_000_000;
        HistoryWriter::open(settings, now).unwrap().end(now);
        (folder, StoreReaders::start(&location).unwrap())
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn searches_delay_no_check_and_end_with_their_client() {
        let (folder, readers) = readers("store");
        let runtime = runtime();
        runtime.block_on(async {
            assert_eq!(readers.check().await.unwrap(), 0);
            let barrier = Arc::new(Barrier::new(READERS + 1));
            let searches = block(&readers, &barrier);
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(readers.check().await.unwrap_err().is_busy());
            // Its client goes before a thread is free.
            let was_run = Arc::new(AtomicBool::new(false));
            let run = was_run.clone();
            let abandoned = readers.read(move |_| {
                run.store(true, Ordering::Relaxed);
                Ok(())
            });
            assert!(timeout(Duration::from_millis(10), abandoned).await.is_err());
            barrier.wait();
            for search in searches {
                search.await.unwrap();
            }
            // Both threads are beyond it when they have these.
            let later = block(&readers, &barrier);
            tokio::time::sleep(Duration::from_millis(1)).await;
            barrier.wait();
            for search in later {
                search.await.unwrap();
            }
            assert!(!was_run.load(Ordering::Relaxed));
            assert_eq!(readers.check().await.unwrap(), 0);
            // More than there are threads.
            for _ in 0..=READERS {
                let failed = readers.read::<()>(|_| panic!("of the test")).await;
                let failed = failed.unwrap_err();
                assert!(failed.is_busy());
            }
            assert_eq!(readers.check().await.unwrap(), 0);
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
