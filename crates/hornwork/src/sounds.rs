//! Sounds of a media node: a thread of its own reads the files, so that a slow disk does not delay calls.

use net::Waker;
use ng::server::SoundRequest;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// Largest file, octets: 17 minutes of 16-bit samples at 16 kHz.
const MAX_FILE_OCTETS: u64 = 32 << 20;
/// Most cached files.
const MAX_CACHED: usize = 1024;

/// A request's number, and the content of its file or the reason of the failure.
pub type SoundFileReply = (u64, Result<Arc<[u8]>, String>);

/// The canonical path of a folder of sounds.
///
/// # Errors
/// If it is not a readable folder.
pub fn folder(path: &Path) -> io::Result<PathBuf> {
    let folder = path.canonicalize()?;
    std::fs::read_dir(&folder)?;
    Ok(folder)
}

/// The reading thread. When dropped, it ends after the pending requests.
#[derive(Debug)]
pub struct Sounds {
    requests: Sender<(PathBuf, SoundRequest)>,
    replies: Receiver<SoundFileReply>,
}

impl Sounds {
    /// Starts the thread, which wakes `waker` with each reply.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(waker: Waker) -> io::Result<Sounds> {
        let (requests, todo) = channel::<(PathBuf, SoundRequest)>();
        let (sender, replies) = channel();
        std::thread::Builder::new()
            .name("sounds".to_owned())
            .spawn(move || {
                let mut cache = FileCache::default();
                for (folder, request) in todo {
                    let file = cache.read(&folder, &request.name);
                    if sender.send((request.number, file)).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })?;
        Ok(Sounds { requests, replies })
    }

    /// Requests a file of a folder from [`folder`]; `false` if the thread has ended.
    pub fn request(&self, folder: &Path, request: SoundRequest) -> bool {
        self.requests.send((folder.to_owned(), request)).is_ok()
    }

    /// The next reply.
    pub fn next(&self) -> Option<SoundFileReply> {
        self.replies.try_recv().ok()
    }
}

/// Files in use, shared by all calls that play them.
#[derive(Default)]
struct FileCache(HashMap<PathBuf, (SystemTime, u64, Weak<[u8]>)>);

impl FileCache {
    fn read(&mut self, folder: &Path, name: &str) -> Result<Arc<[u8]>, String> {
        let failed = |error: io::Error| format!("\"{name}\" cannot be read: {error}");
        // A link within the folder may be used, but not one out of it.
        let path = folder.join(name).canonicalize().map_err(failed)?;
        if !path.starts_with(folder) {
            return Err("the file is outside the folder for sounds".to_owned());
        }
        let about = std::fs::metadata(&path).map_err(failed)?;
        if !about.is_file() {
            return Err(format!("\"{name}\" is not a regular file"));
        }
        if about.len() > MAX_FILE_OCTETS {
            return Err(format!(
                "\"{name}\" is larger than {MAX_FILE_OCTETS} octets"
            ));
        }
        let written = about.modified().map_err(failed)?;
        if let Some((at, length, file)) = self.0.get(&path)
            && (*at, *length) == (written, about.len())
            && let Some(file) = file.upgrade()
        {
            return Ok(file);
        }
        let mut bytes = Vec::with_capacity(about.len() as usize);
        let mut file = File::open(&path).map_err(failed)?.take(MAX_FILE_OCTETS + 1);
        file.read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_FILE_OCTETS {
            return Err(format!(
                "\"{name}\" is larger than {MAX_FILE_OCTETS} octets"
            ));
        }
        let bytes: Arc<[u8]> = bytes.into();
        self.0.retain(|_, (_, _, file)| file.strong_count() > 0);
        if self.0.len() < MAX_CACHED {
            let one = (written, about.len(), Arc::downgrade(&bytes));
            self.0.insert(path, one);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hornwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("in/de")).unwrap();
        folder.canonicalize().unwrap()
    }

    #[test]
    fn only_files_of_the_folder_are_read() {
        let folder = create_folder("sounds");
        let inside = folder.join("in");
        std::fs::write(inside.join("de/a.wav"), b"sound").unwrap();
        std::fs::write(folder.join("secret"), b"secret").unwrap();
        std::os::unix::fs::symlink(folder.join("secret"), inside.join("out")).unwrap();
        std::os::unix::fs::symlink("de/a.wav", inside.join("same")).unwrap();
        let huge = File::create(inside.join("huge")).unwrap();
        huge.set_len(MAX_FILE_OCTETS + 1).unwrap();
        let mut cache = FileCache::default();
        let first = cache.read(&inside, "de/a.wav").unwrap();
        assert_eq!(*first, *b"sound");
        let second = cache.read(&inside, "same").unwrap();
        assert!(Arc::ptr_eq(&first, &second), "read twice");
        for (name, why) in [
            ("out", "is outside the folder"),
            ("../secret", "is outside the folder"),
            ("de", "is not a regular file"),
            ("none", "No such file"),
            ("huge", "larger than"),
            ("/dev/zero", "is outside the folder"),
        ] {
            let error = cache.read(&inside, name).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
        drop((first, second));
        std::fs::write(inside.join("de/a.wav"), b"another").unwrap();
        assert_eq!(*cache.read(&inside, "de/a.wav").unwrap(), *b"another");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
