//! Recordings: pieces from an engine, written to files by a thread of their own, so that a slow disk never holds up a call.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Octets that may wait for the disk.
const WAITING: usize = 32 << 20;

enum Job {
    Begin(u64, String),
    Append(u64, Vec<u8>),
    End(u64),
}

/// How long the end waits for the disk.
const LAST_PIECES: Duration = Duration::from_secs(2);

/// A folder for recordings, with the thread that writes there. Dropped, it writes what waits, and gives a disk that does not answer two
/// seconds.
#[derive(Debug)]
pub struct Recorder {
    jobs: Option<Sender<Job>>,
    /// Octets that wait.
    waiting: Arc<AtomicUsize>,
    failures: Receiver<(String, String)>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Writes to `folder`.
    ///
    /// # Errors
    /// It is no folder, or nothing can be written there, or there is no thread.
    pub fn start(folder: &Path) -> io::Result<Recorder> {
        let probe = folder.join(format!(".hornwork-{}", std::process::id()));
        File::create(&probe)?;
        std::fs::remove_file(&probe)?;
        let (jobs, todo) = channel();
        let (tell, failures) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        let folder = folder.to_owned();
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || write(&folder, &todo, &tell, &left))?;
        Ok(Recorder {
            jobs: Some(jobs),
            waiting,
            failures,
            thread: Some(thread),
        })
    }

    fn put(&self, job: Job) -> bool {
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// A new recording; `false`: it is lost.
    pub(crate) fn begin(&self, file: u64, name: &str) -> bool {
        // A name from an engine is one name, whatever it was made of.
        let plain = !name.starts_with('.') && !name.contains(['/', '\0']) && !name.is_empty();
        plain && self.put(Job::Begin(file, name.to_owned()))
    }

    /// A piece of a recording; `false`: too much waits already.
    pub(crate) fn append(&self, file: u64, bytes: &[u8]) -> bool {
        let before = self.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        if before + bytes.len() > WAITING || !self.put(Job::Append(file, bytes.to_vec())) {
            self.waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The end of a recording.
    pub(crate) fn end(&self, file: u64) {
        self.put(Job::End(file));
    }

    /// The next recording that came to nothing: its name, and the operating system's words.
    pub(crate) fn next_failure(&self) -> Option<(String, String)> {
        self.failures.try_recv().ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.jobs = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        let until = Instant::now() + LAST_PIECES;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn write(
    folder: &Path,
    todo: &Receiver<Job>,
    tell: &Sender<(String, String)>,
    waiting: &AtomicUsize,
) {
    let mut files: HashMap<u64, (PathBuf, File)> = HashMap::new();
    let failed = |path: &Path, error: &io::Error| {
        // Nobody listens any more when the driver has gone.
        let _ = tell.send((path.display().to_string(), error.to_string()));
    };
    for job in todo {
        match job {
            Job::Begin(number, name) => {
                let path = folder.join(name);
                // A file that is there is somebody's: it is never written over.
                match OpenOptions::new().write(true).create_new(true).open(&path) {
                    Ok(file) => {
                        files.insert(number, (path, file));
                    }
                    Err(error) => failed(&path, &error),
                }
            }
            Job::Append(number, bytes) => {
                let done = match files.get_mut(&number) {
                    Some((_, file)) => file.write_all(&bytes),
                    None => Ok(()),
                };
                waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
                if let Err(error) = done
                    && let Some((path, _)) = files.remove(&number)
                {
                    failed(&path, &error);
                }
            }
            Job::End(number) => {
                files.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hornwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn pieces_come_into_their_files_in_order() {
        let folder = folder("record");
        let recorder = Recorder::start(&folder).unwrap();
        assert!(recorder.begin(1, "a.pcap") && recorder.begin(2, "b.pcap"));
        for piece in ["x", "y", "z"] {
            assert!(recorder.append(1, piece.as_bytes()));
        }
        assert!(recorder.append(2, b"other"));
        recorder.end(1);
        assert!(recorder.append(1, b"late"), "taken, and for nothing");
        drop(recorder);
        assert_eq!(std::fs::read(folder.join("a.pcap")).unwrap(), b"xyz");
        assert_eq!(std::fs::read(folder.join("b.pcap")).unwrap(), b"other");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_there_stays_and_paths_lead_nowhere() {
        let folder = folder("record-there");
        std::fs::write(folder.join("a.pcap"), b"old").unwrap();
        let mut recorder = Recorder::start(&folder).unwrap();
        for name in ["../b", "/etc/b", ".b", ""] {
            assert!(!recorder.begin(1, name), "{name}");
        }
        assert!(recorder.begin(1, "a.pcap") && recorder.append(1, b"new"));
        // The thread ends before its failures are asked for.
        recorder.jobs = None;
        recorder.thread.take().unwrap().join().unwrap();
        assert!(recorder.next_failure().unwrap().0.ends_with("a.pcap"));
        assert_eq!(std::fs::read(folder.join("a.pcap")).unwrap(), b"old");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(Recorder::start(&folder).is_err());
    }
}
