//! Messages of VICI, the control protocol of `charon` (strongSwan, `src/libcharon/plugins/vici/README.md`).
//!
//! A packet is a length of four bytes, a type, a name for some types, and a message: nested sections with keys, values
//! and lists.

use core::fmt;
use zeroize::Zeroizing;

/// Longest packet that the daemon accepts and sends, bytes, without its length field.
pub const MAX_VICI_PACKET: usize = 512 * 1024;
/// Most sections within each other.
const MAX_DEPTH: usize = 16;

/// A value, which may be a secret: it is wiped when dropped.
type Bytes = Zeroizing<Vec<u8>>;

/// The content of a key of a section.
#[derive(Clone, PartialEq, Eq)]
pub enum ViciValue {
    /// A value.
    Value(Bytes),
    /// A list of values.
    List(Vec<Bytes>),
    /// A section.
    Section(ViciSection),
}

impl fmt::Debug for ViciValue {
    /// Omits values, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ViciValue::Value(bytes) => write!(f, "value of {} bytes", bytes.len()),
            ViciValue::List(items) => write!(f, "list of {}", items.len()),
            ViciValue::Section(section) => section.fmt(f),
        }
    }
}

/// A message or a part of it: entries in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViciSection {
    entries: Vec<(String, ViciValue)>,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViciPacket {
    /// A command to the daemon.
    Command(String, ViciSection),
    /// Its response.
    Response(ViciSection),
    /// The daemon has no such command.
    UnknownCommand,
    /// Requests an event.
    Register(String),
    /// The event will be sent.
    Registered,
    /// There is no such event.
    UnknownEvent,
    /// An event.
    Event(String, ViciSection),
}

/// Bytes that are no VICI packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViciError(&'static str);

impl fmt::Display for ViciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no VICI packet: {}", self.0)
    }
}

impl std::error::Error for ViciError {}

const COMMAND: u8 = 0;
const RESPONSE: u8 = 1;
const UNKNOWN_COMMAND: u8 = 2;
const REGISTER: u8 = 3;
const REGISTERED: u8 = 5;
const UNKNOWN_EVENT: u8 = 6;
const EVENT: u8 = 7;

const SECTION_START: u8 = 1;
const SECTION_END: u8 = 2;
const KEY_VALUE: u8 = 3;
const LIST_START: u8 = 4;
const LIST_ITEM: u8 = 5;
const LIST_END: u8 = 6;

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], ViciError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(ViciError("truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, ViciError> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    fn name(&mut self) -> Result<String, ViciError> {
        let length = usize::from(self.byte()?);
        let bytes = self.take(length)?;
        let text = core::str::from_utf8(bytes).map_err(|_| ViciError("a name is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn value(&mut self) -> Result<Bytes, ViciError> {
        let high = self.byte()?;
        let length = usize::from(u16::from_be_bytes([high, self.byte()?]));
        Ok(Zeroizing::new(self.take(length)?.to_vec()))
    }

    fn list(&mut self) -> Result<ViciValue, ViciError> {
        let mut items = Vec::new();
        loop {
            match self.byte()? {
                LIST_ITEM => items.push(self.value()?),
                LIST_END => return Ok(ViciValue::List(items)),
                _ => return Err(ViciError("a list has something other than items")),
            }
        }
    }

    /// The entries up to the end of the section, or of the packet at depth 0.
    fn section(&mut self, depth: usize) -> Result<ViciSection, ViciError> {
        if depth > MAX_DEPTH {
            return Err(ViciError("too many sections within each other"));
        }
        let mut entries = Vec::new();
        loop {
            if self.rest.is_empty() && depth == 0 {
                return Ok(ViciSection { entries });
            }
            let entry = match self.byte()? {
                SECTION_START => {
                    let name = self.name()?;
                    (name, ViciValue::Section(self.section(depth + 1)?))
                }
                SECTION_END if depth > 0 => return Ok(ViciSection { entries }),
                KEY_VALUE => {
                    let name = self.name()?;
                    (name, ViciValue::Value(self.value()?))
                }
                LIST_START => {
                    let name = self.name()?;
                    (name, self.list()?)
                }
                _ => return Err(ViciError("an unknown element")),
            };
            entries.push(entry);
        }
    }
}

impl ViciSection {
    /// An empty one.
    pub fn new() -> ViciSection {
        ViciSection::default()
    }

    /// The same with a value.
    pub fn with(mut self, key: &str, value: impl AsRef<[u8]>) -> ViciSection {
        let value = Zeroizing::new(value.as_ref().to_vec());
        self.entries.push((key.to_owned(), ViciValue::Value(value)));
        self
    }

    /// The same with a list of values.
    pub fn with_list<V: AsRef<[u8]>>(
        mut self,
        key: &str,
        values: impl IntoIterator<Item = V>,
    ) -> ViciSection {
        let values = values.into_iter();
        let items = values.map(|value| Zeroizing::new(value.as_ref().to_vec()));
        let list = ViciValue::List(items.collect());
        self.entries.push((key.to_owned(), list));
        self
    }

    /// The same with a section.
    pub fn with_section(mut self, key: &str, section: ViciSection) -> ViciSection {
        self.entries
            .push((key.to_owned(), ViciValue::Section(section)));
        self
    }

    /// A value as text; `None` if it is absent or no text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.entries.iter().find_map(|(name, value)| match value {
            ViciValue::Value(bytes) if name == key => core::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// A section.
    pub fn section(&self, key: &str) -> Option<&ViciSection> {
        self.sections()
            .find_map(|(name, section)| (name == key).then_some(section))
    }

    /// All sections, with their names.
    pub fn sections(&self) -> impl Iterator<Item = (&str, &ViciSection)> {
        self.entries.iter().filter_map(|(name, value)| match value {
            ViciValue::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }

    /// Length of its entries, bytes.
    fn length(&self) -> usize {
        let entry = |(name, value): &(String, ViciValue)| {
            let value = match value {
                ViciValue::Value(bytes) => 2 + bytes.len(),
                ViciValue::List(items) => {
                    1 + items.iter().map(|item| 3 + item.len()).sum::<usize>()
                }
                ViciValue::Section(section) => 1 + section.length(),
            };
            2 + name.len() + value
        };
        self.entries.iter().map(entry).sum()
    }

    fn write(&self, into: &mut Vec<u8>) -> Result<(), ViciError> {
        for (name, value) in &self.entries {
            match value {
                ViciValue::Value(bytes) => {
                    into.push(KEY_VALUE);
                    push_name(into, name)?;
                    push_value(into, bytes)?;
                }
                ViciValue::List(items) => {
                    into.push(LIST_START);
                    push_name(into, name)?;
                    for item in items {
                        into.push(LIST_ITEM);
                        push_value(into, item)?;
                    }
                    into.push(LIST_END);
                }
                ViciValue::Section(section) => {
                    into.push(SECTION_START);
                    push_name(into, name)?;
                    section.write(into)?;
                    into.push(SECTION_END);
                }
            }
        }
        Ok(())
    }
}

fn push_name(into: &mut Vec<u8>, name: &str) -> Result<(), ViciError> {
    let length = u8::try_from(name.len()).map_err(|_| ViciError("a name of over 255 bytes"))?;
    into.push(length);
    into.extend_from_slice(name.as_bytes());
    Ok(())
}

fn push_value(into: &mut Vec<u8>, value: &[u8]) -> Result<(), ViciError> {
    let length =
        u16::try_from(value.len()).map_err(|_| ViciError("a value of over 65,535 bytes"))?;
    into.extend_from_slice(&length.to_be_bytes());
    into.extend_from_slice(value);
    Ok(())
}

impl ViciPacket {
    /// Length with the length field, bytes.
    fn length(&self) -> usize {
        let (name, message) = match self {
            ViciPacket::Command(name, message) | ViciPacket::Event(name, message) => {
                (name.len(), message.length())
            }
            ViciPacket::Response(message) => (0, message.length()),
            ViciPacket::Register(name) => (name.len(), 0),
            ViciPacket::UnknownCommand | ViciPacket::Registered | ViciPacket::UnknownEvent => {
                (0, 0)
            }
        };
        4 + 2 + name + message
    }

    /// Reads a packet, without its length field.
    ///
    /// # Errors
    /// It is malformed.
    pub fn parse(bytes: &[u8]) -> Result<ViciPacket, ViciError> {
        if bytes.len() > MAX_VICI_PACKET {
            return Err(ViciError("too long"));
        }
        let mut reader = Reader { rest: bytes };
        let packet = match reader.byte()? {
            COMMAND => {
                let name = reader.name()?;
                ViciPacket::Command(name, reader.section(0)?)
            }
            RESPONSE => ViciPacket::Response(reader.section(0)?),
            UNKNOWN_COMMAND => ViciPacket::UnknownCommand,
            REGISTER => ViciPacket::Register(reader.name()?),
            REGISTERED => ViciPacket::Registered,
            UNKNOWN_EVENT => ViciPacket::UnknownEvent,
            EVENT => {
                let name = reader.name()?;
                ViciPacket::Event(name, reader.section(0)?)
            }
            _ => return Err(ViciError("an unknown type")),
        };
        match reader.rest.is_empty() {
            true => Ok(packet),
            false => Err(ViciError("bytes behind the end")),
        }
    }

    /// The packet with its length field. It may hold secrets, and is wiped when dropped.
    ///
    /// # Errors
    /// A name or a value is too long, or the packet.
    pub fn to_bytes(&self) -> Result<Zeroizing<Vec<u8>>, ViciError> {
        // Its final size at once: a growing buffer would leave copies of secrets behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.length()));
        bytes.extend_from_slice(&[0; 4]);
        match self {
            ViciPacket::Command(name, message) => {
                bytes.push(COMMAND);
                push_name(&mut bytes, name)?;
                message.write(&mut bytes)?;
            }
            ViciPacket::Response(message) => {
                bytes.push(RESPONSE);
                message.write(&mut bytes)?;
            }
            ViciPacket::UnknownCommand => bytes.push(UNKNOWN_COMMAND),
            ViciPacket::Register(name) => {
                bytes.push(REGISTER);
                push_name(&mut bytes, name)?;
            }
            ViciPacket::Registered => bytes.push(REGISTERED),
            ViciPacket::UnknownEvent => bytes.push(UNKNOWN_EVENT),
            ViciPacket::Event(name, message) => {
                bytes.push(EVENT);
                push_name(&mut bytes, name)?;
                message.write(&mut bytes)?;
            }
        }
        let length = bytes.len() - 4;
        if length > MAX_VICI_PACKET {
            return Err(ViciError("too long"));
        }
        let field = (length as u32).to_be_bytes();
        bytes
            .iter_mut()
            .zip(field)
            .for_each(|(to, from)| *to = from);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the protocol's description.
    #[test]
    fn message_of_the_description() {
        let message = ViciSection::new().with("key1", "value1").with_section(
            "section1",
            ViciSection::new()
                .with_section("sub-section", ViciSection::new().with("key2", "value2"))
                .with_list("list1", ["item1", "item2"]),
        );
        let mut expected = vec![3, 4];
        expected.extend_from_slice(b"key1\x00\x06value1");
        expected.extend_from_slice(
            b"\x01\x08section1\x01\x0bsub-section\x03\x04key2\x00\x06value2\x02",
        );
        expected.extend_from_slice(b"\x04\x05list1\x05\x00\x05item1\x05\x00\x05item2\x06\x02");
        let mut written = Vec::new();
        message.write(&mut written).unwrap();
        assert_eq!(written, expected);
        let packet = ViciPacket::Event("list-sa".into(), message);
        let bytes = packet.to_bytes().unwrap();
        assert_eq!(bytes.len(), packet.length());
        assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
        assert_eq!(bytes[4..13], *b"\x07\x07list-sa");
        assert_eq!(ViciPacket::parse(&bytes[4..]).unwrap(), packet);
    }

    #[test]
    fn malformed_packets_are_refused() {
        for bytes in [
            &b""[..],
            b"\x09",
            b"\x07\x05na",
            b"\x01\x02",
            b"\x01\x03\x01a\x00\x05x",
            b"\x01\x01\x01a",
            b"\x01\x04\x01a\x03",
            b"\x02\x00",
            b"\x03\x01\xff",
        ] {
            assert!(ViciPacket::parse(bytes).is_err(), "{bytes:?}");
        }
        let deep = [&b"\x01"[..], &b"\x01\x01a".repeat(200)].concat();
        assert!(ViciPacket::parse(&deep).is_err());
        let long = ViciSection::new().with("k", vec![0; 70_000]);
        assert!(ViciPacket::Response(long).to_bytes().is_err());
    }
}
