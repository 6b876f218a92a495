//! The file of used sequence numbers. Keys of a file are used by more than one run, and no number may be sealed twice
//! under one key (RFC 4303 section 3.3.3, and the nonces of AEAD ciphers with it), nor opened twice.

use engine::{Entropy, Time};
use protect::esp::{ChangedState, InboundSa, InboundState, OutboundSa, OutboundState, SaSpec};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Numbers that are reserved beyond the used ones: at a million packets per second those of 16 s, three times the interval
/// of writing. A crash loses them.
const RESERVED: u64 = 1 << 24;
/// Most associations whose numbers are kept, those of former keys included.
const MOST_KEPT: usize = 200_000;

/// Content of the file, by check values of keys.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    outbound: BTreeMap<String, OutboundState>,
    inbound: BTreeMap<String, InboundState>,
}

/// The open file, locked by this program.
#[derive(Debug)]
pub(super) struct NumbersFile {
    path: PathBuf,
    _lock: File,
    stored: Stored,
    /// Names in the file of the associations in use.
    outbound: HashMap<u32, String>,
    inbound: HashMap<u32, String>,
}

fn name_of(spec: &SaSpec) -> String {
    let mut name = String::with_capacity(16);
    for byte in spec.keys.check_value() {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

impl NumbersFile {
    /// Opens the file, or begins a new one.
    ///
    /// # Errors
    /// It cannot be read or locked, or is damaged.
    pub(super) fn open(path: &Path) -> io::Result<NumbersFile> {
        let failed = |error: &dyn std::fmt::Display, remedy: &str| {
            io::Error::other(format!(
                "[gateway] numbers_file {}: {error}\n  remedy: {remedy}",
                path.display()
            ))
        };
        let writable = "set `numbers_file` to a file in a folder in which this program's user may write, or leave it out as a service, which has a state folder: used sequence numbers must outlast the program";
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(with_end(path, ".lock"))
            .map_err(|error| failed(&error, writable))?;
        lock.try_lock().map_err(|_| {
            failed(
                &"another gateway uses it now",
                "give each gateway a key file and a numbers file of its own",
            )
        })?;
        let stored = match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                failed(
                    &error,
                    "remove it together with the keys, and make new keys at all ends",
                )
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Stored::default(),
            Err(error) => return Err(failed(&error, writable)),
        };
        Ok(NumbersFile {
            path: path.to_owned(),
            _lock: lock,
            stored,
            outbound: HashMap::new(),
            inbound: HashMap::new(),
        })
    }

    fn refused(&self, spec: &SaSpec, why: &dyn std::fmt::Display) -> io::Error {
        io::Error::other(format!(
            "[gateway] SPI {:#010x}: {why}\n  remedy: make new keys, with a new SPI, at both ends ({})",
            spec.spi,
            self.path.display()
        ))
    }

    /// An association that seals, from the next unused number on. The reservation takes effect with
    /// [`NumbersFile::write`].
    ///
    /// # Errors
    /// Its keys were used with another SPI, or the file is full.
    pub(super) fn outbound(
        &mut self,
        spec: &SaSpec,
        entropy: &mut Entropy,
        now: Time,
    ) -> io::Result<OutboundSa> {
        let name = name_of(spec);
        let made = match self.stored.outbound.get(&name) {
            Some(state) => OutboundSa::resume(spec.clone(), state, 0, entropy, now),
            None => OutboundSa::new(spec.clone(), entropy, now),
        };
        let mut sa = made.map_err(|error| self.refused(spec, &error))?;
        if self.stored.outbound.len() >= MOST_KEPT {
            return Err(self.refused(spec, &"the file has too many former keys; begin a new one"));
        }
        let mut state = sa.state(now);
        state.next_sequence = state.next_sequence.saturating_add(RESERVED);
        sa.limit_sequence(state.next_sequence - 1);
        self.stored.outbound.insert(name.clone(), state);
        self.outbound.insert(spec.spi, name);
        Ok(sa)
    }

    /// An association that opens, with the replay window of its last state.
    ///
    /// # Errors
    /// Its keys were used with another SPI, or the file is full.
    pub(super) fn inbound(&mut self, spec: &SaSpec, now: Time) -> io::Result<InboundSa> {
        let name = name_of(spec);
        let made = match self.stored.inbound.get(&name) {
            Some(state) => resume_inbound(spec, state, now),
            None => InboundSa::new(spec.clone(), now),
        };
        let sa = made.map_err(|error| self.refused(spec, &error))?;
        if self.stored.inbound.len() >= MOST_KEPT {
            return Err(self.refused(spec, &"the file has too many former keys; begin a new one"));
        }
        self.inbound.insert(spec.spi, name);
        Ok(sa)
    }

    /// Takes new states over, and returns the last number that each association may use once the file is written.
    pub(super) fn reserve(&mut self, changed: Vec<ChangedState>) -> Vec<(u32, u64)> {
        let mut reserved = Vec::new();
        for state in changed {
            match state {
                ChangedState::Outbound(mut state) => {
                    let Some(name) = self.outbound.get(&state.spi) else {
                        continue;
                    };
                    state.next_sequence = state.next_sequence.saturating_add(RESERVED);
                    reserved.push((state.spi, state.next_sequence - 1));
                    self.stored.outbound.insert(name.clone(), state);
                }
                ChangedState::Inbound(state) => self.keep_inbound(state),
            }
        }
        reserved
    }

    fn keep_inbound(&mut self, state: InboundState) {
        if let Some(name) = self.inbound.get(&state.spi) {
            self.stored.inbound.insert(name.clone(), state);
        }
    }

    /// Takes the last states of a run over: reserved numbers that were not used are free again.
    pub(super) fn release(&mut self, last: Vec<ChangedState>) {
        for state in last {
            match state {
                ChangedState::Outbound(state) => {
                    if let Some(name) = self.outbound.get(&state.spi) {
                        self.stored.outbound.insert(name.clone(), state);
                    }
                }
                ChangedState::Inbound(state) => self.keep_inbound(state),
            }
        }
    }

    /// Writes the file to the disk: a new one that replaces the old one, so that a crash leaves one of them.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn write(&self) -> io::Result<()> {
        let failed = |error: &dyn std::fmt::Display| {
            io::Error::other(format!(
                "[gateway] numbers_file {}: {error}\n  remedy: used sequence numbers must be stored, so that none is used twice: make room, or give this program's user write permission",
                self.path.display()
            ))
        };
        let text = serde_json::to_string(&self.stored).map_err(|error| failed(&error))?;
        let new = with_end(&self.path, ".new");
        let write = || {
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_data()?;
            std::fs::rename(&new, &self.path)?;
            // The new name must outlast a power failure.
            let folder = self
                .path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|error| failed(&error))
    }
}

/// The window of the state; if the configuration has another size, all numbers up to the highest count as received.
fn resume_inbound(
    spec: &SaSpec,
    state: &InboundState,
    now: Time,
) -> Result<InboundSa, protect::esp::SaError> {
    let exact = InboundSa::resume(spec.clone(), state, 0, now);
    let window = spec.replay_window.div_ceil(64);
    match state.received.len() == window {
        true => exact,
        // One number is left out at most.
        false => InboundSa::resume(spec.clone(), state, 1, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protect::esp::{EspEncryption, EspIntegrity, EspKeys, EspSuite};

    fn spec(spi: u32, key: u8) -> SaSpec {
        let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
        let ip = |text: &str| text.parse().unwrap();
        SaSpec::new(spi, suite, EspKeys::new(&[key; 20], &[]))
            .tunnel(ip("192.0.2.1"), ip("192.0.2.2"))
    }

    #[test]
    fn numbers_outlast_a_crash_and_an_end() {
        let folder = std::env::temp_dir().join(format!("hornwork-numbers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("numbers");
        let mut entropy = Entropy::from_number(1);
        let now = Time::ZERO;
        let next = |file: &mut NumbersFile, entropy: &mut Entropy| {
            let sa = file.outbound(&spec(0x1000, 1), entropy, now).unwrap();
            sa.state(now).next_sequence
        };
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(next(&mut file, &mut entropy), 1);
        file.write().unwrap();
        assert!(
            NumbersFile::open(&path)
                .unwrap_err()
                .to_string()
                .contains("another gateway")
        );
        drop(file);
        // A crash: the reservation is lost.
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(next(&mut file, &mut entropy), 1 + RESERVED);
        let state = OutboundState {
            spi: 0x1000,
            next_sequence: RESERVED + 77,
            usage: protect::esp::SaUsage::default(),
        };
        let reserved = file.reserve(vec![ChangedState::Outbound(state)]);
        assert_eq!(reserved, [(0x1000, 2 * RESERVED + 76)]);
        file.release(vec![ChangedState::Outbound(state)]);
        file.write().unwrap();
        drop(file);
        // An end: unused numbers are used by the next run.
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(next(&mut file, &mut entropy), RESERVED + 77);
        let other = file
            .outbound(&spec(0x1001, 1), &mut entropy, now)
            .unwrap_err();
        assert!(other.to_string().contains("make new keys"), "{other}");
        assert_eq!(
            file.outbound(&spec(0x1001, 2), &mut entropy, now)
                .unwrap()
                .state(now)
                .next_sequence,
            1
        );
        std::fs::write(&path, "{").unwrap();
        drop(file);
        assert!(NumbersFile::open(&path).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
