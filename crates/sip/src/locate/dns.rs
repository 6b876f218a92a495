//! The few parts of DNS that location needs (RFC 1035, 2782, 3403, 3596, 6891), readable from any bytes.
//!
//! A general library would read every record type that a stranger cares to send, and reserve memory by the counts in its
//! header; here five types are read and the rest is stepped over.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A domain name in lower case without final dot; the root is empty. Letters, digits, hyphen and underscore only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(Box<str>);

impl Name {
    /// The name written as `text`; `None` where it is none.
    pub fn parse(text: &[u8]) -> Option<Name> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let label_sound =
            |label: &[u8]| (1..=63).contains(&label.len()) && label.iter().all(is_letter);
        if text.is_empty() || text.len() > 253 || !text.split(|byte| *byte == b'.').all(label_sound)
        {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        Some(Name(text.to_ascii_lowercase().into()))
    }

    /// `prefix.name`
    pub fn below(&self, prefix: &str) -> Option<Name> {
        Name::parse(format!("{prefix}.{}", self.0).as_bytes())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

fn is_letter(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.0)
    }
}

/// Record types that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    A,
    Aaaa,
    Srv,
    Naptr,
}

impl Kind {
    pub const fn number(self) -> u16 {
        match self {
            Kind::A => 1,
            Kind::Aaaa => 28,
            Kind::Srv => 33,
            Kind::Naptr => 35,
        }
    }
}

const CNAME: u16 = 5;
const SOA: u16 = 6;
const OPT: u16 = 41;
const CLASS_IN: u16 = 1;
/// What we take over UDP: fits an Ethernet frame in any case (RFC 6891 section 6.2.5 leaves it to us).
const PAYLOAD_SIZE: u16 = 1232;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Question {
    pub name: Name,
    pub kind: Kind,
}

/// A record that is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Srv(Srv),
    Naptr(Naptr),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Srv {
    pub priority: u16,
    pub weight: u16,
    pub port: u16,
    pub target: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Naptr {
    pub order: u16,
    pub preference: u16,
    pub flags: Box<[u8]>,
    pub service: Box<[u8]>,
    pub replacement: Name,
}

/// How a name server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The name exists, though perhaps not these records.
    Good,
    /// The name does not exist.
    NoName,
    /// The server does not understand our question.
    Format,
    /// The server failed or refuses.
    Failed,
}

/// An answer, reduced to what the question asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub code: Code,
    pub truncated: bool,
    pub records: Vec<Record>,
    /// Where the aliases of the answer lead, when they lead to no record in it.
    pub alias: Option<Name>,
    /// Seconds that the answer may be kept: the least of its records; without records that of the SOA, where one came.
    pub ttl: Option<u32>,
}

/// Records read from one answer at most.
const MAX_RECORDS: usize = 256;
/// Aliases followed in one answer at most.
const MAX_ALIASES: usize = 8;

/// Appends a query. `upper` gives the letters that are sent in upper case, by bits in turn.
pub(super) fn write_query(id: u16, question: &Question, edns: bool, upper: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&id.to_be_bytes());
    // Recursion desired, one question, one additional record where EDNS is used.
    out.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
    write_name(&question.name, upper, out);
    out.extend_from_slice(&question.kind.number().to_be_bytes());
    out.extend_from_slice(&CLASS_IN.to_be_bytes());
    if edns {
        out.push(0);
        out.extend_from_slice(&OPT.to_be_bytes());
        out.extend_from_slice(&PAYLOAD_SIZE.to_be_bytes());
        out.extend_from_slice(&[0; 6]);
    }
}

fn write_name(name: &Name, upper: u64, out: &mut Vec<u8>) {
    let mut index = 0u32;
    for label in name.as_str().split('.').filter(|label| !label.is_empty()) {
        out.push(label.len() as u8);
        for byte in label.bytes() {
            let raise = upper >> (index % 64) & 1 == 1;
            out.push(if raise {
                byte.to_ascii_uppercase()
            } else {
                byte
            });
            index += 1;
        }
    }
    out.push(0);
}

/// Why bytes are no answer to a question of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    /// Not a DNS response at all, or cut off.
    Malformed,
    /// It repeats another question than we asked, letter for letter.
    Question,
}

/// The identifier of a response; `None` where it is none.
pub(super) fn response_id(bytes: &[u8]) -> Option<u16> {
    let header = bytes.get(..12)?;
    (header[2] & 0x80 != 0).then(|| u16::from_be_bytes([header[0], header[1]]))
}

/// Reads the answer to `question`, which was sent with the letters of `upper`.
pub(super) fn read_answer(
    bytes: &[u8],
    question: &Question,
    upper: u64,
) -> Result<Answer, Mismatch> {
    let header = bytes.get(..12).ok_or(Mismatch::Malformed)?;
    let standard_response = header[2] & 0xf8 == 0x80;
    if !standard_response {
        return Err(Mismatch::Malformed);
    }
    let mut asked = Vec::new();
    write_name(&question.name, upper, &mut asked);
    asked.extend_from_slice(&question.kind.number().to_be_bytes());
    asked.extend_from_slice(&CLASS_IN.to_be_bytes());
    let counts: [u16; 3] = [4, 6, 8].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    let code = match header[3] & 15 {
        0 => Code::Good,
        1 => Code::Format,
        3 => Code::NoName,
        _ => Code::Failed,
    };
    if counts[0] == 0 && code == Code::Format {
        // Such a server may not have read the question: RFC 1035 leaves open whether it repeats it.
        return Ok(Answer::empty(code));
    }
    let body = bytes.get(12..).unwrap_or_default();
    if counts[0] != 1 || !body.starts_with(&asked) {
        return Err(Mismatch::Question);
    }
    let mut reader = Reader {
        bytes,
        at: 12 + asked.len(),
    };
    let mut answer = Answer {
        truncated: header[2] & 2 != 0,
        ..Answer::empty(code)
    };
    let read = answer.read(&mut reader, question, counts[1], counts[2]);
    match read {
        Some(()) => Ok(answer),
        // What a truncated answer holds in whole records is good.
        None if answer.truncated => Ok(answer),
        None => Err(Mismatch::Malformed),
    }
}

impl Answer {
    fn empty(code: Code) -> Answer {
        Answer {
            code,
            truncated: false,
            records: Vec::new(),
            alias: None,
            ttl: None,
        }
    }

    fn read(
        &mut self,
        reader: &mut Reader<'_>,
        question: &Question,
        answers: u16,
        authorities: u16,
    ) -> Option<()> {
        let mut found: Vec<(Name, Found)> = Vec::new();
        let mut incomplete = false;
        for _ in 0..answers {
            let Some(header) = reader.record() else {
                incomplete = true;
                break;
            };
            if found.len() < MAX_RECORDS
                && let Some(name) = &header.name
                && let Some(value) = reader.value(&header, question.kind)
            {
                self.ttl = Some(self.ttl.map_or(header.ttl, |ttl| ttl.min(header.ttl)));
                found.push((name.clone(), value));
            }
        }
        self.follow(found, question);
        if incomplete {
            return None;
        }
        if self.records.is_empty() && self.alias.is_none() {
            self.ttl = None;
            for _ in 0..authorities {
                let header = reader.record()?;
                if header.kind == SOA
                    && let Some(minimum) = reader.soa_minimum(&header)
                {
                    self.ttl = Some(minimum.min(header.ttl));
                }
            }
        }
        Some(())
    }

    /// Follows aliases from the question's name, keeps the records of the name they end at.
    fn follow(&mut self, found: Vec<(Name, Found)>, question: &Question) {
        let mut name = question.name.clone();
        let mut aliased = false;
        for _ in 0..MAX_ALIASES {
            let next = found.iter().find_map(|(owner, value)| match value {
                Found::Alias(target) if *owner == name => Some(target.clone()),
                _ => None,
            });
            match next {
                Some(target) => {
                    name = target;
                    aliased = true;
                }
                None => break,
            }
        }
        for (owner, value) in found {
            if let Found::Record(record) = value
                && owner == name
            {
                self.records.push(record);
            }
        }
        // In a circle the alias may be the name itself: whoever follows it finds the circle.
        self.alias = (self.records.is_empty() && aliased).then_some(name);
    }
}

enum Found {
    Record(Record),
    Alias(Name),
}

struct RecordHeader {
    /// `None`: a name that none of ours can be.
    name: Option<Name>,
    kind: u16,
    class: u16,
    ttl: u32,
    start: usize,
    end: usize,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// The next record's header; leaves the reader behind the record.
    fn record(&mut self) -> Option<RecordHeader> {
        let (name, after) = self.name_at(self.at)?;
        let fixed: &[u8; 10] = self.bytes.get(after..)?.first_chunk()?;
        let start = after + 10;
        let end = start + usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        self.bytes.get(start..end)?;
        self.at = end;
        Some(RecordHeader {
            name,
            kind: u16::from_be_bytes([fixed[0], fixed[1]]),
            class: u16::from_be_bytes([fixed[2], fixed[3]]),
            ttl: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            start,
            end,
        })
    }

    /// The record's value, where it is an alias or of the kind asked for, and sound.
    fn value(&self, header: &RecordHeader, kind: Kind) -> Option<Found> {
        if header.class != CLASS_IN {
            return None;
        }
        if header.kind == CNAME {
            let (name, _) = self.name_at(header.start)?;
            return Some(Found::Alias(name?));
        }
        if header.kind != kind.number() {
            return None;
        }
        let data = self.bytes.get(header.start..header.end)?;
        let record = match kind {
            Kind::A => Record::A(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?)),
            Kind::Aaaa => Record::Aaaa(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?)),
            Kind::Srv => {
                let fixed: &[u8; 6] = data.first_chunk()?;
                let number = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
                Record::Srv(Srv {
                    priority: number(0),
                    weight: number(2),
                    port: number(4),
                    target: self.name_at(header.start + 6)?.0?,
                })
            }
            Kind::Naptr => Record::Naptr(self.naptr(header, data)?),
        };
        Some(Found::Record(record))
    }

    fn naptr(&self, header: &RecordHeader, data: &[u8]) -> Option<Naptr> {
        let fixed: &[u8; 4] = data.first_chunk()?;
        let mut at = 4;
        let mut text = || {
            let length = usize::from(*data.get(at)?);
            let text = data.get(at + 1..at + 1 + length)?;
            at += 1 + length;
            Some(text)
        };
        let (flags, service, _regexp) = (text()?, text()?, text()?);
        Some(Naptr {
            order: u16::from_be_bytes([fixed[0], fixed[1]]),
            preference: u16::from_be_bytes([fixed[2], fixed[3]]),
            flags: flags.into(),
            service: service.into(),
            replacement: self.name_at(header.start + at)?.0?,
        })
    }

    fn soa_minimum(&self, header: &RecordHeader) -> Option<u32> {
        let tail = self
            .bytes
            .get(header.start..header.end)?
            .last_chunk::<4>()?;
        (header.end - header.start >= 22).then(|| u32::from_be_bytes(*tail))
    }

    /// The name at `at`, and where it ends there. The name is `None` where it is well-formed but has letters that no name
    /// of ours has. Pointers must point backwards, which bounds the walk.
    fn name_at(&self, mut at: usize) -> Option<(Option<Name>, usize)> {
        let mut text = String::new();
        let mut plain = true;
        let mut end = None;
        let mut length = 0;
        loop {
            let first = *self.bytes.get(at)?;
            match first {
                0 => break,
                1..=63 => {
                    let label = self.bytes.get(at + 1..at + 1 + usize::from(first))?;
                    length += label.len() + 1;
                    if length > 254 {
                        return None;
                    }
                    if !text.is_empty() {
                        text.push('.');
                    }
                    plain &= label.iter().all(is_letter);
                    if plain {
                        text.extend(
                            label
                                .iter()
                                .map(|byte| char::from(byte.to_ascii_lowercase())),
                        );
                    }
                    at += 1 + usize::from(first);
                }
                0xc0..=0xff => {
                    let low = *self.bytes.get(at + 1)?;
                    end = end.or(Some(at + 2));
                    let target = usize::from(first & 0x3f) << 8 | usize::from(low);
                    if target >= at {
                        return None;
                    }
                    at = target;
                }
                _ => return None,
            }
        }
        let name = plain.then(|| Name(text.into()));
        Some((name, end.unwrap_or(at + 1)))
    }
}
