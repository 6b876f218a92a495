//! Reads files while calls go on, on a thread of its own, since a disk or a network file system may block for minutes.

use net::Waker;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Reason for which a read has no result; the current files stay in effect.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// Its thread panicked, which is logged.
    Panicked,
    /// Its thread could not be started.
    NotStarted(io::Error),
}

impl core::fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ReadFailure::Panicked => f.write_str(
                "reading ended with an internal error, see the log; the current configuration stays in effect",
            ),
            ReadFailure::NotStarted(error) => write!(
                f,
                "no thread can be started to read the configuration: {error}; raise the limit of threads (TasksMax=, ulimit -u) or free memory, and reload again; the current configuration stays in effect"
            ),
        }
    }
}

/// One read at a time; a request during a read causes one more afterwards.
#[derive(Debug)]
pub(crate) struct BackgroundRead<T> {
    waker: Waker,
    requested: bool,
    running: Option<Receiver<T>>,
    not_started: Option<io::Error>,
}

impl<T: Send + 'static> BackgroundRead<T> {
    /// `waker` wakes the thread that takes the result.
    pub(crate) fn new(waker: Waker) -> BackgroundRead<T> {
        BackgroundRead {
            waker,
            requested: false,
            running: None,
            not_started: None,
        }
    }

    /// Requests a read, because the files have changed.
    pub(crate) fn request(&mut self) {
        self.requested = true;
    }

    /// Starts a thread with the job from `job` if a read is requested and none is running. Returns whether it did; a
    /// thread that cannot be started is the result of the read: calls go on.
    pub(crate) fn begin<J: FnOnce() -> T + Send + 'static>(
        &mut self,
        job: impl FnOnce() -> J,
    ) -> bool {
        self.begin_by(job, |read| {
            let thread = std::thread::Builder::new().name("reading".to_owned());
            thread.spawn(read).map(drop)
        })
    }

    fn begin_by<J: FnOnce() -> T + Send + 'static>(
        &mut self,
        job: impl FnOnce() -> J,
        start: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> bool {
        if !self.requested || self.running.is_some() {
            return false;
        }
        self.requested = false;
        let (sender, read) = channel();
        let (job, waker) = (job(), self.waker.clone());
        let started = start(Box::new(move || {
            // Signals belong to the first thread; if they cannot be blocked here, this thread may receive them too.
            let _ = net::block_signals();
            // The program may have ended meanwhile.
            let _ = sender.send(job());
            waker.wake();
        }));
        self.not_started = started.err();
        self.running = Some(read);
        true
    }

    /// The result of a read, once.
    pub(crate) fn take(&mut self) -> Option<Result<T, ReadFailure>> {
        let read = match self.running.as_ref()?.try_recv() {
            Ok(read) => Ok(read),
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                let not_started = self.not_started.take();
                Err(not_started.map_or(ReadFailure::Panicked, ReadFailure::NotStarted))
            }
        };
        self.running = None;
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_started_is_the_result_of_the_read() {
        let mut read = BackgroundRead::new(Waker::new().unwrap());
        read.request();
        let none = |_: Box<dyn FnOnce() + Send>| Err(io::ErrorKind::WouldBlock.into());
        assert!(read.begin_by(|| || 1, none));
        let failure = read.take().unwrap().unwrap_err().to_string();
        assert!(failure.contains("TasksMax="), "{failure}");
        assert!(read.take().is_none());
        // The next one is read.
        read.request();
        let at_once = |job: Box<dyn FnOnce() + Send>| {
            job();
            Ok(())
        };
        assert!(read.begin_by(|| || 2, at_once));
        assert_eq!(read.take().unwrap().unwrap(), 2);
    }
}
