//! Sounds for a media node: files of its folder, read by a thread of their own, so that a slow disk never holds up a call.

use border::node::SoundWanted;
use net::Waker;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

/// Octets of a file at most: 17 minutes of 16-bit samples at 16 kHz.
const MOST: u64 = 32 << 20;
/// Files that are remembered at most while somebody hears them.
const REMEMBERED: usize = 1024;

/// A file that was read, or why it was not.
pub type Answer = (u64, Result<Arc<[u8]>, String>);

/// A folder of sounds, as it is without links.
///
/// # Errors
/// It is no folder that can be read.
pub fn folder(path: &Path) -> io::Result<PathBuf> {
    let folder = path.canonicalize()?;
    std::fs::read_dir(&folder)?;
    Ok(folder)
}

/// The thread that reads. Dropped, it ends when it has read what it was asked for.
#[derive(Debug)]
pub struct Sounds {
    asked: Sender<(PathBuf, SoundWanted)>,
    answers: Receiver<Answer>,
}

impl Sounds {
    /// Wakes `waker` with each answer.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(waker: Waker) -> io::Result<Sounds> {
        let (asked, todo) = channel::<(PathBuf, SoundWanted)>();
        let (tell, answers) = channel();
        std::thread::Builder::new()
            .name("sounds".to_owned())
            .spawn(move || {
                let mut known = Known::default();
                for (folder, wanted) in todo {
                    let file = known.read(&folder, &wanted.name);
                    if tell.send((wanted.number, file)).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })?;
        Ok(Sounds { asked, answers })
    }

    /// Asks for a file of a folder that [`folder`] gave; `false`: nobody reads any more.
    pub fn ask(&self, folder: &Path, wanted: SoundWanted) -> bool {
        self.asked.send((folder.to_owned(), wanted)).is_ok()
    }

    /// The next answer.
    pub fn next(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

/// Files that are being heard: whoever else hears one shares it.
#[derive(Default)]
struct Known(HashMap<PathBuf, (SystemTime, u64, Weak<[u8]>)>);

impl Known {
    fn read(&mut self, folder: &Path, name: &str) -> Result<Arc<[u8]>, String> {
        let failed = |error: io::Error| format!("\"{name}\" cannot be read: {error}");
        // A link may lead elsewhere, but not out of the folder.
        let path = folder.join(name).canonicalize().map_err(failed)?;
        if !path.starts_with(folder) {
            return Err("the file does not lie in the folder for sounds".to_owned());
        }
        let about = std::fs::metadata(&path).map_err(failed)?;
        if !about.is_file() {
            return Err(format!("\"{name}\" is no file"));
        }
        if about.len() > MOST {
            return Err(format!("\"{name}\" has more than {MOST} octets"));
        }
        let written = about.modified().map_err(failed)?;
        if let Some((at, length, file)) = self.0.get(&path)
            && (*at, *length) == (written, about.len())
            && let Some(file) = file.upgrade()
        {
            return Ok(file);
        }
        let mut bytes = Vec::with_capacity(about.len() as usize);
        let mut file = File::open(&path).map_err(failed)?.take(MOST + 1);
        file.read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MOST {
            return Err(format!("\"{name}\" has more than {MOST} octets"));
        }
        let bytes: Arc<[u8]> = bytes.into();
        self.0.retain(|_, (_, _, file)| file.strong_count() > 0);
        if self.0.len() < REMEMBERED {
            let one = (written, about.len(), Arc::downgrade(&bytes));
            self.0.insert(path, one);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("hornwork-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("in/de")).unwrap();
        folder.canonicalize().unwrap()
    }

    #[test]
    fn files_of_the_folder_are_read_and_no_others() {
        let folder = made("sounds");
        let inside = folder.join("in");
        std::fs::write(inside.join("de/a.wav"), b"sound").unwrap();
        std::fs::write(folder.join("secret"), b"secret").unwrap();
        std::os::unix::fs::symlink(folder.join("secret"), inside.join("out")).unwrap();
        std::os::unix::fs::symlink("de/a.wav", inside.join("same")).unwrap();
        let huge = File::create(inside.join("huge")).unwrap();
        huge.set_len(MOST + 1).unwrap();
        let mut known = Known::default();
        let first = known.read(&inside, "de/a.wav").unwrap();
        assert_eq!(*first, *b"sound");
        let second = known.read(&inside, "same").unwrap();
        assert!(Arc::ptr_eq(&first, &second), "read twice");
        for (name, why) in [
            ("out", "does not lie in"),
            ("../secret", "does not lie in"),
            ("de", "is no file"),
            ("none", "No such file"),
            ("huge", "more than"),
            ("/dev/zero", "does not lie in"),
        ] {
            let error = known.read(&inside, name).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
        drop((first, second));
        std::fs::write(inside.join("de/a.wav"), b"another").unwrap();
        assert_eq!(*known.read(&inside, "de/a.wav").unwrap(), *b"another");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
