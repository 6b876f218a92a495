//! Files that are read while calls go on: by a thread of their own, for a disk or a network file system may not answer for minutes.

use net::Waker;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// One reading at a time; what is asked for meanwhile is read once more afterwards.
#[derive(Debug)]
pub(crate) struct Reading<T> {
    waker: Waker,
    asked: bool,
    under_way: Option<Receiver<T>>,
}

impl<T: Send + 'static> Reading<T> {
    /// `waker` wakes the thread that takes what was read.
    pub(crate) fn new(waker: Waker) -> Reading<T> {
        Reading {
            waker,
            asked: false,
            under_way: None,
        }
    }

    /// The files have changed.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// Starts a thread with the job that `job` makes, where it was asked for and none runs.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn begin<J: FnOnce() -> T + Send + 'static>(
        &mut self,
        job: impl FnOnce() -> J,
    ) -> io::Result<()> {
        if !self.asked || self.under_way.is_some() {
            return Ok(());
        }
        self.asked = false;
        let (tell, read) = channel();
        let (job, waker) = (job(), self.waker.clone());
        std::thread::Builder::new()
            .name("reading".to_owned())
            .spawn(move || {
                // Signals are the first thread's; where they cannot be blocked, they are taken as they come.
                let _ = net::block_signals();
                // The program may have ended meanwhile.
                let _ = tell.send(job());
                waker.wake();
            })?;
        self.under_way = Some(read);
        Ok(())
    }

    /// What was read, once.
    pub(crate) fn take(&mut self) -> Option<T> {
        match self.under_way.as_ref()?.try_recv() {
            Ok(read) => {
                self.under_way = None;
                Some(read)
            }
            Err(TryRecvError::Empty) => None,
            // The thread panicked, which is logged; the old files stay in force.
            Err(TryRecvError::Disconnected) => {
                self.under_way = None;
                None
            }
        }
    }
}
