//! Control of a running link: lines on standard input or a Unix socket.

use crate::error::LabError;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Requests that wait, at most; further clients wait for room.
const QUEUE: usize = 16;
/// Longest line, bytes.
const LINE: u64 = 4_096;
/// A client that neither writes nor reads for so long is disconnected, so that it does not keep others out.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request of a client.
#[derive(Debug)]
pub struct LinkRequest {
    /// The line, without spaces around it.
    pub text: String,
    answer: Sender<String>,
}

impl LinkRequest {
    /// Answers it.
    pub fn answer(self, text: String) {
        // A client that has gone needs no answer.
        let _ = self.answer.send(text);
    }
}

/// Requests to a running link.
#[derive(Debug)]
pub struct RequestQueue {
    requests: Receiver<LinkRequest>,
    socket: Option<PathBuf>,
}

impl RequestQueue {
    /// Takes requests from standard input (`-`) or from a Unix socket at this path.
    ///
    /// # Errors
    /// The socket cannot be made, or is in use.
    pub fn start(path: &Path) -> Result<RequestQueue, LabError> {
        let (sender, requests) = sync_channel(QUEUE);
        let (work, socket): (Box<dyn FnOnce() + Send>, _) = match path == Path::new("-") {
            true => (
                Box::new(move || {
                    let mut input = std::io::stdin().lock();
                    // Standard output may be reserved for JSON.
                    serve(&mut input, &mut std::io::stderr(), &sender);
                }),
                None,
            ),
            false => {
                let listener = listen(path)?;
                (
                    Box::new(move || accept(&listener, &sender)),
                    Some(path.to_owned()),
                )
            }
        };
        let thread = std::thread::Builder::new().name("link control".to_owned());
        thread.spawn(work).map_err(|error| {
            LabError::cannot_run(
                format!("cannot start a thread: {error}"),
                "raise the limit of threads (ulimit -u)",
            )
        })?;
        Ok(RequestQueue { requests, socket })
    }

    /// The next request, if one waits.
    pub fn next(&self) -> Option<LinkRequest> {
        self.requests.try_recv().ok()
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listen(path: &Path) -> Result<UnixListener, LabError> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    // A socket on which no process listens is left over from a run that was killed.
    if is_socket && UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|error| {
        LabError::cannot_run(
            format!("{}: {error}", path.display()),
            "name a path in a writable directory that is not in use",
        )
    })
}

fn accept(listener: &UnixListener, sender: &SyncSender<LinkRequest>) {
    for stream in listener.incoming() {
        let Ok(mut out) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let patient = out
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| out.set_write_timeout(Some(PATIENCE)));
        if let (Ok(()), Ok(input)) = (patient, out.try_clone())
            && !serve(&mut BufReader::new(input), &mut out, sender)
        {
            return;
        }
    }
}

/// Serves one client until it ends. Returns false if the link has ended.
fn serve(input: &mut impl BufRead, out: &mut impl Write, sender: &SyncSender<LinkRequest>) -> bool {
    let mut line = String::new();
    loop {
        line.clear();
        let read = std::io::Read::take(&mut *input, LINE).read_line(&mut line);
        if !read.is_ok_and(|length| length > 0) {
            return true;
        }
        let text = line.trim().to_owned();
        if text.is_empty() {
            continue;
        }
        let (answer, answers) = channel();
        if sender.send(LinkRequest { text, answer }).is_err() {
            return false;
        }
        let Ok(text) = answers.recv() else {
            return false;
        };
        if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
            return true;
        }
    }
}
