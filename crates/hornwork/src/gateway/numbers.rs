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

/// Numbers that are reserved beyond the used ones: at a million packets per second those of 16 s, three times the
/// interval of writing. A crash loses them.
const RESERVED: u64 = 1 << 24;
/// The number of the last packet of an association with 32 bits.
const LAST_SHORT_NUMBER: u64 = u32::MAX as u64;
/// Most associations whose numbers are kept, those of former keys included.
const MOST_KEPT: usize = 200_000;

/// Content of the file, by check values of keys.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Stored {
    outbound: BTreeMap<String, OutboundState>,
    inbound: BTreeMap<String, InboundState>,
}

/// An association that seals, as the file knows it.
#[derive(Clone, Debug)]
struct Sealing {
    /// Name of its keys in the file.
    name: String,
    /// Its first number.
    first: u64,
    /// The number behind those that are reserved for it. While the file has it as the next one, no later association
    /// has the same keys, and more can be reserved.
    end: u64,
}

/// Sequence numbers that the file has for an association that seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReservedNumbers {
    /// Number of its tunnel.
    pub(super) tunnel: usize,
    pub(super) spi: u32,
    /// The last one.
    pub(super) last: u64,
}

/// The open file, locked by this program.
#[derive(Debug)]
pub(super) struct NumbersFile {
    path: PathBuf,
    _lock: File,
    stored: Stored,
    /// Associations that seal, by tunnel and SPI: the peers choose the SPIs, so two tunnels may have the same one (RFC
    /// 4301 section 4.1).
    outbound: BTreeMap<(usize, u32), Sealing>,
    /// Names in the file of the associations that open.
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
            outbound: BTreeMap::new(),
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

    /// An association that seals in a tunnel, from the next unused number on. The reservation takes effect with
    /// [`NumbersFile::write`].
    ///
    /// # Errors
    /// Its keys were used with another SPI, or have no unused number; or the file is full.
    pub(super) fn outbound(
        &mut self,
        (tunnel, spec): (usize, &SaSpec),
        entropy: &mut Entropy,
        now: Time,
    ) -> io::Result<OutboundSa> {
        let name = name_of(spec);
        let made = match self.stored.outbound.get(&name) {
            Some(state) => OutboundSa::resume(spec.clone(), state, 0, entropy, now),
            None => OutboundSa::new(spec.clone(), entropy, now),
        };
        let mut sa = made.map_err(|error| self.refused(spec, &error))?;
        let mut state = sa.state(now);
        let first = state.next_sequence;
        if !spec.extended_sequence && first > LAST_SHORT_NUMBER {
            return Err(self.refused(spec, &"the sequence numbers of its keys are used up"));
        }
        if self.stored.outbound.len() >= MOST_KEPT {
            return Err(self.refused(spec, &"the file has too many former keys; begin a new one"));
        }
        state.next_sequence = first.saturating_add(RESERVED);
        let end = state.next_sequence;
        sa.limit_sequence(end - 1);
        self.stored.outbound.insert(name.clone(), state);
        self.outbound
            .insert((tunnel, spec.spi), Sealing { name, first, end });
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

    /// Takes new states over, and returns the numbers that associations may use once the file is written.
    pub(super) fn reserve(&mut self, changed: Vec<ChangedState>) -> Vec<ReservedNumbers> {
        let mut reserved = Vec::new();
        for state in changed {
            match state {
                ChangedState::Outbound { tunnel, state } => {
                    reserved.extend(self.reserve_more(tunnel, state));
                }
                ChangedState::Inbound(state) => self.keep_inbound(state),
            }
        }
        reserved
    }

    /// Reserves further numbers. Former keys that are used again have a new association in the same or another tunnel,
    /// which begins behind the reserved numbers of the former one; that one keeps those that it has, and gets no more.
    fn reserve_more(&mut self, tunnel: usize, mut state: OutboundState) -> Option<ReservedNumbers> {
        let spi = state.spi;
        let sealing = self.outbound.get_mut(&(tunnel, spi))?;
        let stored = self.stored.outbound.get_mut(&sealing.name)?;
        let has_sealed = state.next_sequence > sealing.first;
        if !has_sealed || stored.next_sequence != sealing.end {
            return None;
        }
        state.next_sequence = state.next_sequence.saturating_add(RESERVED);
        sealing.end = state.next_sequence;
        *stored = state;
        let last = sealing.end - 1;
        Some(ReservedNumbers { tunnel, spi, last })
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
                ChangedState::Outbound { tunnel, state } => self.release_rest(tunnel, state),
                ChangedState::Inbound(state) => self.keep_inbound(state),
            }
        }
    }

    fn release_rest(&mut self, tunnel: usize, state: OutboundState) {
        if let Some(sealing) = self.outbound.get(&(tunnel, state.spi))
            && let Some(stored) = self.stored.outbound.get_mut(&sealing.name)
            && state.next_sequence >= sealing.first
            && stored.next_sequence == sealing.end
        {
            *stored = state;
        }
    }

    /// Takes all reservations of a run back that has sealed no packet.
    pub(super) fn release_all(&mut self) {
        for sealing in self.outbound.values() {
            if let Some(stored) = self.stored.outbound.get_mut(&sealing.name) {
                stored.next_sequence = stored.next_sequence.min(sealing.first);
            }
        }
    }

    /// Lets `make` make new associations. If it fails, their reservations are taken back: none of them seals a packet.
    ///
    /// # Errors
    /// That of `make`.
    pub(super) fn make_all<T, E>(
        &mut self,
        make: impl FnOnce(&mut NumbersFile) -> Result<T, E>,
    ) -> Result<T, E> {
        let before = (
            self.stored.clone(),
            self.outbound.clone(),
            self.inbound.clone(),
        );
        let made = make(self);
        if made.is_err() {
            (self.stored, self.outbound, self.inbound) = before;
        }
        made
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

    /// A folder of a test.
    fn folder(name: &str) -> PathBuf {
        let name = format!("hornwork-numbers-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The association of these keys in a tunnel begins with this number.
    fn first(file: &mut NumbersFile, tunnel: usize, spec: &SaSpec) -> u64 {
        let mut entropy = Entropy::from_number(1);
        let sa = file.outbound((tunnel, spec), &mut entropy, Time::ZERO);
        sa.unwrap().state(Time::ZERO).next_sequence
    }

    fn state(tunnel: usize, spi: u32, next_sequence: u64) -> ChangedState {
        let state = OutboundState {
            spi,
            next_sequence,
            usage: protect::esp::SaUsage::default(),
        };
        ChangedState::Outbound { tunnel, state }
    }

    fn reserved(tunnel: usize, spi: u32, next: u64) -> ReservedNumbers {
        let last = next + RESERVED - 1;
        ReservedNumbers { tunnel, spi, last }
    }

    #[test]
    fn numbers_outlast_a_crash_and_an_end() {
        let folder = folder("crash");
        let path = folder.join("numbers");
        let keys = spec(0x1000, 1);
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(first(&mut file, 0, &keys), 1);
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
        assert_eq!(first(&mut file, 0, &keys), 1 + RESERVED);
        let next = RESERVED + 77;
        assert_eq!(
            file.reserve(vec![state(0, 0x1000, next)]),
            [reserved(0, 0x1000, next)]
        );
        file.release(vec![state(0, 0x1000, next)]);
        file.write().unwrap();
        drop(file);
        // An end: unused numbers are used by the next run.
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(first(&mut file, 0, &keys), next);
        let mut entropy = Entropy::from_number(1);
        let other = file.outbound((0, &spec(0x1001, 1)), &mut entropy, Time::ZERO);
        let other = other.unwrap_err().to_string();
        assert!(other.contains("make new keys"), "{other}");
        assert_eq!(first(&mut file, 0, &spec(0x1001, 2)), 1);
        std::fs::write(&path, "{").unwrap();
        drop(file);
        assert!(NumbersFile::open(&path).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The SPI of sent packets is the peer's choice.
    #[test]
    fn two_tunnels_with_one_spi_have_numbers_of_their_own() {
        let folder = folder("one-spi");
        let path = folder.join("numbers");
        let (busy, idle) = (spec(0x1000, 1), spec(0x1000, 2));
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(first(&mut file, 0, &busy), 1);
        assert_eq!(first(&mut file, 1, &idle), 1);
        let both = || vec![state(0, 0x1000, 20_000_000), state(1, 0x1000, 100)];
        assert_eq!(
            file.reserve(both()),
            [reserved(0, 0x1000, 20_000_000), reserved(1, 0x1000, 100)]
        );
        file.write().unwrap();
        drop(file);
        // A crash.
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(first(&mut file, 0, &busy), 20_000_000 + RESERVED);
        assert_eq!(first(&mut file, 1, &idle), 100 + RESERVED);
        file.release(vec![
            state(0, 0x1000, 50_000_000),
            state(1, 0x1000, RESERVED + 200),
        ]);
        file.write().unwrap();
        drop(file);
        // An end.
        let mut file = NumbersFile::open(&path).unwrap();
        assert_eq!(first(&mut file, 0, &busy), 50_000_000);
        assert_eq!(first(&mut file, 1, &idle), RESERVED + 200);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// An operator goes back to former keys while their association still seals, or moves them to another tunnel.
    #[test]
    fn former_keys_never_share_numbers_with_the_association_that_still_seals() {
        for (before, after) in [(0, 0), (0, 1)] {
            let folder = folder(&format!("former-{after}"));
            let mut file = NumbersFile::open(&folder.join("numbers")).unwrap();
            let keys = spec(0x1000, 1);
            assert_eq!(first(&mut file, before, &keys), 1);
            assert_eq!(
                file.reserve(vec![state(before, 0x1000, 500)]),
                [reserved(before, 0x1000, 500)]
            );
            let again = first(&mut file, after, &keys);
            assert_eq!(again, 500 + RESERVED);
            // The one before seals on, up to its last number, and gets no more.
            for next in [600, again - 1, again] {
                let more = file.reserve(vec![state(before, 0x1000, next)]);
                assert!(more.is_empty(), "{more:?}");
            }
            let next = again + 9;
            assert_eq!(
                file.reserve(vec![state(after, 0x1000, next)]),
                [reserved(after, 0x1000, next)]
            );
            // The last states, in either order, make no used number free.
            let mut last = vec![state(after, 0x1000, next + 1)];
            if before != after {
                last.insert(0, state(before, 0x1000, 700));
                last.push(state(before, 0x1000, 700));
            }
            file.release(last);
            assert_eq!(first(&mut file, 2, &keys), next + 1);
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }

    #[test]
    fn keys_without_an_unused_number_are_refused() {
        let folder = folder("used-up");
        let mut file = NumbersFile::open(&folder.join("numbers")).unwrap();
        let keys = spec(0x1000, 1);
        assert_eq!(first(&mut file, 0, &keys), 1);
        file.release(vec![state(0, 0x1000, LAST_SHORT_NUMBER)]);
        assert_eq!(first(&mut file, 0, &keys), LAST_SHORT_NUMBER);
        file.release(vec![state(0, 0x1000, LAST_SHORT_NUMBER + 1)]);
        let mut entropy = Entropy::from_number(1);
        let refused = file.outbound((0, &keys), &mut entropy, Time::ZERO);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("are used up"), "{refused}");
        assert!(refused.contains("make new keys"), "{refused}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn associations_that_never_seal_use_no_numbers() {
        let folder = folder("unused");
        let mut file = NumbersFile::open(&folder.join("numbers")).unwrap();
        let (keys, others) = (spec(0x1000, 1), spec(0x2000, 2));
        assert_eq!(first(&mut file, 0, &keys), 1);
        // A reload that is refused.
        let made = file.make_all(|file| {
            assert_eq!(first(file, 0, &others), 1);
            Err::<(), ()>(())
        });
        assert_eq!(made, Err(()));
        assert_eq!(
            file.reserve(vec![state(0, 0x1000, 9)]),
            [reserved(0, 0x1000, 9)]
        );
        assert_eq!(first(&mut file, 0, &others), 1);
        // A start that fails.
        let mut file = NumbersFile::open(&folder.join("start")).unwrap();
        assert_eq!(first(&mut file, 0, &keys), 1);
        file.release_all();
        assert_eq!(first(&mut file, 0, &keys), 1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
