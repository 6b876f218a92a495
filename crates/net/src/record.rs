//! Recordings: data of an engine, written to files by a separate thread, so that a slow disk does not delay a call.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that may be queued for the disk.
const MAX_QUEUED_BYTES: usize = 32 << 20;

enum Job {
    /// File name and first bytes.
    Begin(u64, String, Vec<u8>),
    Append(u64, Vec<u8>),
    End(u64),
}

/// Recordings are conversations in the clear: no other user of the machine reads them; a group may collect them.
const FILE_MODE: u32 = 0o640;
/// Longest wait for the disk when the recorder ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A recording whose file takes no more data.
#[derive(Debug)]
pub(crate) struct FailedRecording {
    /// Number of the recording, assigned by the engine.
    pub(crate) number: u64,
    /// The file.
    pub(crate) file: String,
    /// Error of the operating system.
    pub(crate) error: String,
}

/// A directory for recordings, and the thread that writes there. Dropping it writes the queued data, for at most two
/// seconds.
#[derive(Debug)]
pub struct Recorder {
    jobs: Option<Sender<Job>>,
    /// Bytes queued.
    queued_bytes: Arc<AtomicUsize>,
    /// Bytes that were not queued or not written, and not reported yet.
    lost_bytes: Arc<AtomicU64>,
    failures: Receiver<FailedRecording>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts the writer thread for `directory`.
    ///
    /// # Errors
    /// It is not a directory, nothing can be written there, or no thread can be started.
    pub fn start(directory: &Path) -> io::Result<Recorder> {
        let probe = directory.join(format!(".hornwork-{}", std::process::id()));
        File::create(&probe)?;
        std::fs::remove_file(&probe)?;
        let (jobs, job_queue) = channel();
        let (report_failure, failures) = channel();
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let lost_bytes = Arc::new(AtomicU64::new(0));
        let (queued, lost) = (queued_bytes.clone(), lost_bytes.clone());
        let directory = directory.to_owned();
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || write(&directory, &job_queue, &report_failure, (&queued, &lost)))?;
        Ok(Recorder {
            jobs: Some(jobs),
            queued_bytes,
            lost_bytes,
            failures,
            thread: Some(thread),
        })
    }

    fn send_job(&self, job: Job) -> bool {
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Starts a recording whose file begins with `header`; `false` if it is lost.
    pub(crate) fn begin(&self, file: u64, name: &str, header: &[u8]) -> bool {
        // The name must be a plain file name: an engine must not choose another directory.
        let plain = !name.starts_with('.') && !name.contains(['/', '\0']) && !name.is_empty();
        // The header does not count for the bound of the queue: without it all later data would be useless.
        plain && self.send_job(Job::Begin(file, name.to_owned(), header.to_vec()))
    }

    /// Appends data to a recording; `false` if too much is queued already.
    pub(crate) fn append(&self, file: u64, bytes: &[u8]) -> bool {
        let before = self.queued_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        if before + bytes.len() > MAX_QUEUED_BYTES
            || !self.send_job(Job::Append(file, bytes.to_vec()))
        {
            self.queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
            let lost = bytes.len() as u64;
            self.lost_bytes.fetch_add(lost, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Bytes lost since the last call.
    pub(crate) fn take_lost(&self) -> u64 {
        match self.lost_bytes.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.lost_bytes.swap(0, Ordering::Relaxed),
        }
    }

    /// Whether the queue takes data again.
    pub(crate) fn has_room(&self) -> bool {
        self.queued_bytes.load(Ordering::Relaxed) <= MAX_QUEUED_BYTES / 2
    }

    /// Ends a recording.
    pub(crate) fn end(&self, file: u64) {
        self.send_job(Job::End(file));
    }

    /// The next failed recording.
    pub(crate) fn next_failure(&self) -> Option<FailedRecording> {
        self.failures.try_recv().ok()
    }
}

impl Recorder {
    /// Takes no more data; its thread ends when the queued data are written.
    pub(crate) fn close(&mut self) {
        self.jobs = None;
    }

    /// Whether its thread has ended: all failures and losses can be read.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Writes the queued data, for at most two seconds. Failures can be read afterwards.
    pub(crate) fn finish(&mut self) {
        self.close();
        let Some(thread) = self.thread.take() else {
            return;
        };
        let until = Instant::now() + DRAIN_TIMEOUT;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.finish();
    }
}

fn write(
    directory: &Path,
    job_queue: &Receiver<Job>,
    report_failure: &Sender<FailedRecording>,
    (queued_bytes, lost_bytes): (&AtomicUsize, &AtomicU64),
) {
    let mut files: HashMap<u64, (PathBuf, File)> = HashMap::new();
    let failed = |number: u64, path: &Path, error: &io::Error| {
        // The receiver is gone when the driver is dropped.
        let _ = report_failure.send(FailedRecording {
            number,
            file: path.display().to_string(),
            error: error.to_string(),
        });
    };
    for job in job_queue {
        match job {
            Job::Begin(number, name, header) => {
                let path = directory.join(name);
                // An existing file is never overwritten.
                let mut options = OpenOptions::new();
                let options = options.write(true).create_new(true).mode(FILE_MODE);
                let created = options.open(&path);
                match created.and_then(|mut file| file.write_all(&header).map(|()| file)) {
                    Ok(file) => {
                        files.insert(number, (path, file));
                    }
                    Err(error) => failed(number, &path, &error),
                }
            }
            Job::Append(number, bytes) => {
                // Without a file the recording has failed, or begun in a folder that is not used any more.
                let written = match files.get_mut(&number) {
                    Some((_, file)) => file.write_all(&bytes).map(|()| true),
                    None => Ok(false),
                };
                queued_bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                if !matches!(written, Ok(true)) {
                    lost_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
                if let Err(error) = written
                    && let Some((path, _)) = files.remove(&number)
                {
                    failed(number, &path, &error);
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
    use std::os::unix::fs::MetadataExt as _;

    fn test_directory(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("hornwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn data_is_written_to_its_files_in_order() {
        let directory = test_directory("record");
        let recorder = Recorder::start(&directory).unwrap();
        assert!(recorder.begin(1, "a.pcap", b"w") && recorder.begin(2, "b.pcap", b""));
        for piece in ["x", "y", "z"] {
            assert!(recorder.append(1, piece.as_bytes()));
        }
        assert!(recorder.append(2, b"other"));
        recorder.end(1);
        assert!(recorder.append(1, b"late"), "accepted and discarded");
        let lost_bytes = recorder.lost_bytes.clone();
        drop(recorder);
        assert_eq!(lost_bytes.load(Ordering::Relaxed), 4);
        assert_eq!(std::fs::read(directory.join("a.pcap")).unwrap(), b"wxyz");
        assert_eq!(std::fs::read(directory.join("b.pcap")).unwrap(), b"other");
        let about = std::fs::metadata(directory.join("b.pcap")).unwrap();
        assert_eq!(about.mode() & 0o7, 0, "no other user may read it");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// The writer takes nothing, as on a frozen disk: lost bytes are counted, and reported when the queue has room.
    #[test]
    fn lost_bytes_are_counted_until_the_queue_has_room() {
        let (jobs, job_queue) = channel();
        let (_report_failure, failures) = channel();
        let recorder = Recorder {
            jobs: Some(jobs),
            queued_bytes: Arc::default(),
            lost_bytes: Arc::default(),
            failures,
            thread: None,
        };
        let piece = vec![0; 1 << 20];
        let taken = (0..40).filter(|_| recorder.append(1, &piece)).count();
        assert_eq!((taken, job_queue.try_iter().count()), (32, 32));
        assert!(!recorder.has_room());
        recorder.queued_bytes.store(0, Ordering::Relaxed);
        assert!(recorder.has_room());
        assert_eq!((recorder.take_lost(), recorder.take_lost()), (8 << 20, 0));
    }

    /// The disk is behind when a recording starts: the file must begin with its header nevertheless.
    #[test]
    fn header_is_kept_when_the_queue_is_full() {
        let directory = test_directory("record-header");
        let (jobs, job_queue) = channel();
        let (report_failure, failures) = channel();
        let recorder = Recorder {
            jobs: Some(jobs),
            queued_bytes: Arc::default(),
            lost_bytes: Arc::default(),
            failures,
            thread: None,
        };
        let piece = vec![0; 1 << 20];
        while recorder.append(1, &piece) {}
        assert!(recorder.begin(2, "a.pcap", b"header"));
        assert!(!recorder.append(2, &piece), "lost");
        recorder.queued_bytes.fetch_sub(1 << 20, Ordering::Relaxed);
        assert!(recorder.append(2, b"frame"));
        let (queued, lost) = (recorder.queued_bytes.clone(), recorder.lost_bytes.clone());
        drop(recorder);
        write(&directory, &job_queue, &report_failure, (&queued, &lost));
        assert_eq!(
            std::fs::read(directory.join("a.pcap")).unwrap(),
            b"headerframe"
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn existing_files_are_kept_and_paths_are_rejected() {
        let directory = test_directory("record-there");
        std::fs::write(directory.join("a.pcap"), b"old").unwrap();
        let mut recorder = Recorder::start(&directory).unwrap();
        for name in ["../b", "/etc/b", ".b", ""] {
            assert!(!recorder.begin(1, name, b""), "{name}");
        }
        assert!(recorder.begin(1, "a.pcap", b"") && recorder.append(1, b"new"));
        // The thread is joined before its failures are read.
        recorder.close();
        recorder.thread.take().unwrap().join().unwrap();
        let failed = recorder.next_failure().unwrap();
        assert!(failed.number == 1 && failed.file.ends_with("a.pcap"));
        assert_eq!(recorder.take_lost(), 3, "octets without a file");
        assert_eq!(std::fs::read(directory.join("a.pcap")).unwrap(), b"old");
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(Recorder::start(&directory).is_err());
    }
}
