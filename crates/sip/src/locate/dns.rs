//! The parts of DNS that server location needs (RFC 1035, 2782, 3403, 3596, 6891). Input is untrusted.
//!
//! A general library parses every record type that a sender includes, and allocates memory by the counts in the header.
//! This parser reads five types and skips the rest.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A domain name in lower case without final dot; the root is empty. Only letters, digits, hyphen and underscore.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DnsName(Box<str>);

impl DnsName {
    /// Parses `text`; `None` if it is not a domain name.
    pub fn parse(text: &[u8]) -> Option<DnsName> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let label_sound =
            |label: &[u8]| (1..=63).contains(&label.len()) && label.iter().all(is_letter);
        if text.is_empty() || text.len() > 253 || !text.split(|byte| *byte == b'.').all(label_sound)
        {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        Some(DnsName(text.to_ascii_lowercase().into()))
    }

    /// `prefix.name`
    pub fn below(&self, prefix: &str) -> Option<DnsName> {
        DnsName::parse(format!("{prefix}.{}", self.0).as_bytes())
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

impl fmt::Debug for DnsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.0)
    }
}

/// Record types that are queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RecordType {
    A,
    Aaaa,
    Srv,
    Naptr,
}

impl RecordType {
    pub const fn number(self) -> u16 {
        match self {
            RecordType::A => 1,
            RecordType::Aaaa => 28,
            RecordType::Srv => 33,
            RecordType::Naptr => 35,
        }
    }
}

const CNAME: u16 = 5;
const SOA: u16 = 6;
const OPT: u16 = 41;
const CLASS_IN: u16 = 1;
/// Advertised UDP payload size: fits an Ethernet frame in any case (RFC 6891 section 6.2.5 leaves it to us).
const PAYLOAD_SIZE: u16 = 1232;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Question {
    pub name: DnsName,
    pub kind: RecordType,
}

/// A record of a supported type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DnsRecord {
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
    pub target: DnsName,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Naptr {
    pub order: u16,
    pub preference: u16,
    pub flags: Box<[u8]>,
    pub service: Box<[u8]>,
    pub replacement: DnsName,
}

/// Response code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The name exists, but perhaps not these records.
    Good,
    /// The name does not exist.
    NoName,
    /// The server did not understand the question.
    Format,
    /// The server failed or refused.
    Failed,
}

/// An answer, reduced to the records for the question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DnsAnswer {
    pub code: Code,
    pub truncated: bool,
    pub records: Vec<DnsRecord>,
    /// The name at the end of the alias chain, if the answer has no record for it.
    pub alias: Option<DnsName>,
    /// Seconds that the answer may be cached: the minimum of its records; without records that of the SOA, if present.
    pub ttl: Option<u32>,
}

/// Records of one answer that are read, at most.
const MAX_RECORDS: usize = 256;
/// Aliases of one answer that are followed, at most.
const MAX_ALIASES: usize = 8;

/// Appends a query. Bits of `upper` select the letters that are sent in upper case.
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

fn write_name(name: &DnsName, upper: u64, out: &mut Vec<u8>) {
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

/// Reason why bytes are not an answer to our question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerMismatch {
    /// Not a DNS response, or truncated within a record.
    Malformed,
    /// It repeats another question, or ours in other letter case.
    Question,
}

/// The identifier of a response; `None` if it is not a response.
pub(super) fn response_id(bytes: &[u8]) -> Option<u16> {
    let header = bytes.get(..12)?;
    (header[2] & 0x80 != 0).then(|| u16::from_be_bytes([header[0], header[1]]))
}

/// Parses the answer to `question`, which was sent with the letter case of `upper`.
pub(super) fn read_answer(
    bytes: &[u8],
    question: &Question,
    upper: u64,
) -> Result<DnsAnswer, AnswerMismatch> {
    let header = bytes.get(..12).ok_or(AnswerMismatch::Malformed)?;
    let standard_response = header[2] & 0xf8 == 0x80;
    if !standard_response {
        return Err(AnswerMismatch::Malformed);
    }
    let mut encoded_question = Vec::new();
    write_name(&question.name, upper, &mut encoded_question);
    encoded_question.extend_from_slice(&question.kind.number().to_be_bytes());
    encoded_question.extend_from_slice(&CLASS_IN.to_be_bytes());
    let counts: [u16; 3] = [4, 6, 8].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    let code = match header[3] & 15 {
        0 => Code::Good,
        1 => Code::Format,
        3 => Code::NoName,
        _ => Code::Failed,
    };
    if counts[0] == 0 && code == Code::Format {
        // Such a server may not have parsed the question. RFC 1035 does not say whether it repeats it.
        return Ok(DnsAnswer::empty(code));
    }
    let body = bytes.get(12..).unwrap_or_default();
    if counts[0] != 1 || !body.starts_with(&encoded_question) {
        return Err(AnswerMismatch::Question);
    }
    let mut reader = DnsReader {
        bytes,
        at: 12 + encoded_question.len(),
    };
    let mut answer = DnsAnswer {
        truncated: header[2] & 2 != 0,
        ..DnsAnswer::empty(code)
    };
    let read = answer.read(&mut reader, question, counts[1], counts[2]);
    match read {
        Some(()) => Ok(answer),
        // The complete records of a truncated answer are valid.
        None if answer.truncated => Ok(answer),
        None => Err(AnswerMismatch::Malformed),
    }
}

impl DnsAnswer {
    fn empty(code: Code) -> DnsAnswer {
        DnsAnswer {
            code,
            truncated: false,
            records: Vec::new(),
            alias: None,
            ttl: None,
        }
    }

    fn read(
        &mut self,
        reader: &mut DnsReader<'_>,
        question: &Question,
        answers: u16,
        authorities: u16,
    ) -> Option<()> {
        let mut found: Vec<(DnsName, AnswerValue)> = Vec::new();
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

    /// Follows aliases from the question's name and keeps the records of the last name.
    fn follow(&mut self, found: Vec<(DnsName, AnswerValue)>, question: &Question) {
        let mut name = question.name.clone();
        let mut aliased = false;
        for _ in 0..MAX_ALIASES {
            let next = found.iter().find_map(|(owner, value)| match value {
                AnswerValue::Alias(target) if *owner == name => Some(target.clone()),
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
            if let AnswerValue::Record(record) = value
                && owner == name
            {
                self.records.push(record);
            }
        }
        // With a loop the alias may be the question's own name; the evaluation detects it.
        self.alias = (self.records.is_empty() && aliased).then_some(name);
    }
}

enum AnswerValue {
    Record(DnsRecord),
    Alias(DnsName),
}

struct RecordHeader {
    /// `None`: a valid name with characters that [`DnsName`] does not allow.
    name: Option<DnsName>,
    kind: u16,
    class: u16,
    ttl: u32,
    start: usize,
    end: usize,
}

struct DnsReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl DnsReader<'_> {
    /// The next record's header. The reader moves behind the record.
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

    /// The record's value, if it is an alias or of the queried type, and valid.
    fn value(&self, header: &RecordHeader, kind: RecordType) -> Option<AnswerValue> {
        if header.class != CLASS_IN {
            return None;
        }
        if header.kind == CNAME {
            let (name, _) = self.name_at(header.start)?;
            return Some(AnswerValue::Alias(name?));
        }
        if header.kind != kind.number() {
            return None;
        }
        let data = self.bytes.get(header.start..header.end)?;
        let record = match kind {
            RecordType::A => DnsRecord::A(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?)),
            RecordType::Aaaa => DnsRecord::Aaaa(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?)),
            RecordType::Srv => {
                let fixed: &[u8; 6] = data.first_chunk()?;
                let number = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
                DnsRecord::Srv(Srv {
                    priority: number(0),
                    weight: number(2),
                    port: number(4),
                    target: self.name_at(header.start + 6)?.0?,
                })
            }
            RecordType::Naptr => DnsRecord::Naptr(self.naptr(header, data)?),
        };
        Some(AnswerValue::Record(record))
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

    /// The name at `at` and the position after it. The name is `None` if it is well-formed but has characters that
    /// [`DnsName`] does not allow. Pointers must point backwards, which bounds the loop.
    fn name_at(&self, mut at: usize) -> Option<(Option<DnsName>, usize)> {
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
        let name = plain.then(|| DnsName(text.into()));
        Some((name, end.unwrap_or(at + 1)))
    }
}
