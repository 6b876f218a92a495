//! Reads files while calls go on, on a thread of its own, since a disk or a network file system may block for minutes.

use net::Waker;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// The thread of a read panicked, which is logged; the current files stay in effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPanicked;

impl core::fmt::Display for ReadPanicked {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(
            "reading ended with an internal error, see the log; the current configuration stays in effect",
        )
    }
}

/// One read at a time; a request during a read causes one more afterwards.
#[derive(Debug)]
pub(crate) struct BackgroundRead<T> {
    waker: Waker,
    requested: bool,
    running: Option<Receiver<T>>,
}

impl<T: Send + 'static> BackgroundRead<T> {
    /// `waker` wakes the thread that takes the result.
    pub(crate) fn new(waker: Waker) -> BackgroundRead<T> {
        BackgroundRead {
            waker,
            requested: false,
            running: None,
        }
    }

    /// Requests a read, because the files have changed.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// Starts a thread with the job from `job` if a read is requested and none is running. Returns whether it did.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn begin<J: FnOnce() -> T + Send + 'static>(
        &mut self,
        job: impl FnOnce() -> J,
    ) -> io::Result<bool> {
        if !self.requested || self.running.is_some() {
            return Ok(false);
        }
        self.requested = false;
        let (sender, read) = channel();
        let (job, waker) = (job(), self.waker.clone());
        std::thread::Builder::new()
            .name("reading".to_owned())
            .spawn(move || {
                // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
                let _ = net::block_signals();
                // The program may have ended meanwhile.
                let _ = sender.send(job());
                waker.wake();
            })?;
        self.running = Some(read);
        Ok(true)
    }

    /// The result of a read, once.
    pub(crate) fn take(&mut self) -> Option<Result<T, ReadPanicked>> {
        let read = match self.running.as_ref()?.try_recv() {
            Ok(read) => Ok(read),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(ReadPanicked),
        };
        self.running = None;
        Some(read)
    }
}
