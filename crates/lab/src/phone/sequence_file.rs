//! The file beside a key file, with the sequence numbers that outlast a phone.
//!
//! Keys of a file are used by more than one run. Sequence numbers must not repeat under one key (RFC 4303 section
//! 3.3.3, and the nonces of AEAD ciphers with them): the file has the next one.

use super::esp::sa_error;
use crate::error::LabError;
use crate::sut::system_entropy;
use engine::Time;
use protect::esp::{InboundSa, InboundState, OutboundSa, OutboundState, SaError, SaSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Sequence numbers reserved for a run: at 50 packets per second those of 93 hours. A run that is not killed returns
/// the unused ones.
const RESERVED_NUMBERS: u64 = 1 << 24;
/// The number of the last packet of an association with 32 bits.
const LAST_SHORT_NUMBER: u64 = u32::MAX as u64;
/// Keys of one SPI whose numbers are kept.
const MAX_STORED_KEYS: usize = 1_000;

/// Content of a file of sequence numbers: the states of all keys that were used, by their check values (hexadecimal).
/// Former keys may be used again, and no number is sealed twice under one key.
#[derive(Debug, Default, Serialize)]
struct StoredNumbers {
    outbound: BTreeMap<String, OutboundState>,
    inbound: BTreeMap<String, InboundState>,
}

/// The forms in which a file is read.
#[derive(Deserialize)]
#[serde(untagged)]
enum ReadNumbers {
    /// As earlier versions wrote it: the last keys only.
    One {
        outbound_keys: String,
        inbound_keys: String,
        outbound: OutboundState,
        inbound: InboundState,
    },
    All {
        outbound: BTreeMap<String, OutboundState>,
        inbound: BTreeMap<String, InboundState>,
    },
}

impl StoredNumbers {
    fn parse(text: &str) -> Result<StoredNumbers, serde_json::Error> {
        if text.trim().is_empty() {
            return Ok(StoredNumbers::default());
        }
        Ok(match serde_json::from_str(text)? {
            ReadNumbers::One {
                outbound_keys,
                inbound_keys,
                outbound,
                inbound,
            } => StoredNumbers {
                outbound: [(outbound_keys, outbound)].into(),
                inbound: [(inbound_keys, inbound)].into(),
            },
            ReadNumbers::All { outbound, inbound } => StoredNumbers { outbound, inbound },
        })
    }
}

/// The file with the sequence numbers of an association, locked by the program that uses it. A run that ends before
/// [`SequenceFile::begin`] returns its numbers.
#[derive(Debug)]
pub(super) struct SequenceFile {
    file: File,
    path: PathBuf,
    /// Check values of the keys in use: those that seal, and those that open.
    keys: [String; 2],
    stored: StoredNumbers,
    /// The states before the reservation, until packets may be sealed.
    unused: Option<(OutboundState, InboundState)>,
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

impl SequenceFile {
    /// Opens and locks the file beside the key file, and reserves numbers.
    ///
    /// # Errors
    /// It cannot be written, another program uses it, its content is damaged, or the numbers are used up.
    pub(super) fn open(
        keys: &Path,
        outbound: SaSpec,
        inbound: SaSpec,
    ) -> Result<(SequenceFile, OutboundSa, InboundSa), LabError> {
        let mut path = keys.as_os_str().to_owned();
        path.push(format!(".{:08x}.numbers", outbound.spi));
        let path = PathBuf::from(path);
        let failed = |error: &dyn std::fmt::Display| {
            LabError::cannot_run(
                format!("{}: {error}", path.display()),
                "put the key file into a folder in which this user may write: used sequence numbers are stored beside it",
            )
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| failed(&error))?;
        if file.try_lock().is_err() {
            return Err(LabError::cannot_run(
                format!("{}: another phone uses these keys now", path.display()),
                "give each pair of phones a key file of its own",
            ));
        }
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|error| failed(&error))?;
        let stored = StoredNumbers::parse(&text).map_err(|error| {
            LabError::bad_input(format!(
                "{}: {error}; remove it together with the keys, and make new ones",
                path.display()
            ))
        })?;
        let check = |spec: &SaSpec| hexadecimal(&spec.keys.check_value());
        let keys_of = [check(&outbound), check(&inbound)];
        let is_known =
            stored.outbound.contains_key(&keys_of[0]) && stored.inbound.contains_key(&keys_of[1]);
        if !is_known && stored.outbound.len().max(stored.inbound.len()) >= MAX_STORED_KEYS {
            return Err(LabError::cannot_run(
                format!("{}: it has {MAX_STORED_KEYS} former keys", path.display()),
                "make new keys with a new SPI at both ends: its numbers are in another file",
            ));
        }
        let refused = |error: SaError| sa_error(error, keys);
        let mut entropy = system_entropy()?;
        let outbound = match stored.outbound.get(&keys_of[0]) {
            Some(state) => OutboundSa::resume(outbound, state, 0, &mut entropy, Time::ZERO),
            None => OutboundSa::new(outbound, &mut entropy, Time::ZERO),
        };
        let mut outbound = outbound.map_err(refused)?;
        let inbound = match stored.inbound.get(&keys_of[1]) {
            Some(state) => InboundSa::resume(inbound, state, 0, Time::ZERO),
            None => InboundSa::new(inbound, Time::ZERO),
        };
        let inbound = inbound.map_err(refused)?;
        let mut numbers = SequenceFile {
            file,
            path,
            keys: keys_of,
            stored,
            unused: None,
        };
        let mut reserved = outbound.state(Time::ZERO);
        let before = (reserved, inbound.state(Time::ZERO));
        if !outbound.spec().extended_sequence && reserved.next_sequence > LAST_SHORT_NUMBER {
            return Err(LabError::cannot_run(
                format!(
                    "{}: the sequence numbers of these keys are used up",
                    numbers.path.display()
                ),
                "make new keys at both ends",
            ));
        }
        reserved.next_sequence = reserved.next_sequence.saturating_add(RESERVED_NUMBERS);
        outbound.limit_sequence(reserved.next_sequence - 1);
        numbers.write(&reserved, &before.1)?;
        numbers.unused = Some(before);
        Ok((numbers, outbound, inbound))
    }

    /// Packets may be sealed from now on: reserved numbers count as used until [`SequenceFile::write`] has the last
    /// one.
    pub(super) fn begin(&mut self) {
        self.unused = None;
    }

    /// Writes both states to the disk.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn write(
        &mut self,
        outbound: &OutboundState,
        inbound: &InboundState,
    ) -> Result<(), LabError> {
        let [outbound_keys, inbound_keys] = self.keys.clone();
        self.stored.outbound.insert(outbound_keys, *outbound);
        self.stored.inbound.insert(inbound_keys, inbound.clone());
        let mut text = serde_json::to_string(&self.stored)
            .map_err(|error| LabError::bad_input(error.to_string()))?;
        text.push('\n');
        let written = self
            .file
            .rewind()
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .and_then(|()| self.file.set_len(text.len() as u64))
            .and_then(|()| self.file.sync_data());
        written.map_err(|error| {
            LabError::cannot_run(
                format!("{}: {error}", self.path.display()),
                "used sequence numbers must be stored, so that none is used twice",
            )
        })
    }
}

impl Drop for SequenceFile {
    fn drop(&mut self) {
        if let Some((outbound, inbound)) = self.unused.take()
            && let Err(error) = self.write(&outbound, &inbound)
        {
            eprintln!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protect::esp::{EspEncryption, EspIntegrity, EspKeys, EspSuite};
    use serde_json::json;

    fn spec(key: u8) -> SaSpec {
        let suite = EspSuite::new(EspEncryption::AesGcm16, EspIntegrity::None);
        let [near, far] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        SaSpec::new(0x1000, suite, EspKeys::new(&[key; 20], &[])).tunnel(near, far)
    }

    /// The next number of a run that begins now with these keys, and ends as a crash, or before it seals a packet.
    fn next_number(file: &Path, key: u8, seals: bool) -> u64 {
        let opened = SequenceFile::open(file, spec(key), spec(key + 100));
        let (mut numbers, outbound, _) = opened.unwrap();
        if seals {
            numbers.begin();
        }
        outbound.state(Time::ZERO).next_sequence
    }

    #[test]
    fn a_run_that_seals_nothing_uses_no_numbers() {
        let folder = std::env::temp_dir().join(format!("hornwork-unused-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("keys");
        for _ in 0..3 {
            assert_eq!(next_number(&file, 1, false), 1);
        }
        assert_eq!(next_number(&file, 1, true), 1);
        for _ in 0..3 {
            assert_eq!(next_number(&file, 1, false), 1 + RESERVED_NUMBERS);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn former_keys_go_on_with_their_own_numbers() {
        let folder = std::env::temp_dir().join(format!("hornwork-keys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("keys");
        assert_eq!(next_number(&file, 1, true), 1);
        assert_eq!(next_number(&file, 2, true), 1);
        assert_eq!(next_number(&file, 1, true), 1 + RESERVED_NUMBERS);
        assert_eq!(next_number(&file, 2, true), 1 + RESERVED_NUMBERS);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// A file that an earlier version has left is one of the same keys.
    #[test]
    fn files_with_the_last_keys_only_are_read() {
        let inbound = InboundSa::new(spec(101), Time::ZERO).unwrap();
        let state = OutboundState {
            spi: 0x1000,
            next_sequence: 77,
            usage: protect::esp::SaUsage::default(),
        };
        let text = json!({
            "outbound_keys": hexadecimal(&spec(1).keys.check_value()),
            "inbound_keys": hexadecimal(&spec(101).keys.check_value()),
            "outbound": state,
            "inbound": inbound.state(Time::ZERO),
        });
        let stored = StoredNumbers::parse(&text.to_string()).unwrap();
        let known = hexadecimal(&spec(1).keys.check_value());
        assert_eq!(stored.outbound.get(&known), Some(&state));
        assert_eq!(stored.inbound.len(), 1);
        assert!(StoredNumbers::parse("{").is_err());
        assert!(StoredNumbers::parse("").unwrap().outbound.is_empty());
    }
}
