//! Key files in the format of Wireshark's `esp_sa` table, for captures.
//!
//! A line has eight or ten quoted fields: protocol, source address, destination address, SPI, encryption, its key,
//! authentication, its key, and since Wireshark 3.6 the length of sequence numbers and their upper half.

use super::sa_directions::one_way;
use super::spec::EspKeys;
use super::{EspEncryption, EspIntegrity, EspSuite, EspTransform};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zeroize::Zeroizing;

/// Lines of a file beyond this are refused.
const MAX_LINES: usize = 100_000;
/// Lines without the other direction that are noted one by one.
const MAX_ONE_WAY_NOTES: usize = 10;

/// A mistake in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EspSaFileError {
    /// Line number from 1.
    pub line: usize,
    /// The mistake and its remedy.
    pub message: String,
}

impl fmt::Display for EspSaFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for EspSaFileError {}

/// An address with wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AddressPattern {
    Any,
    One(IpAddr),
    /// The first bits of an address.
    Prefix(super::AddressPrefix),
    /// An IPv4 address and the mask of its bits that count.
    Bits4(u32, u32),
    /// The same of an IPv6 address.
    Bits6(u128, u128),
}

/// A line: an association with its keys.
#[derive(Clone)]
pub struct EspSaLine {
    pub(super) v6: bool,
    pub(super) source: AddressPattern,
    pub(super) destination: AddressPattern,
    /// Hexadecimal digits from the first, `None` for a wildcard digit; empty for all SPIs.
    pub(super) spi: Vec<Option<u8>>,
    /// Algorithms.
    pub suite: EspSuite,
    /// Keys.
    pub keys: EspKeys,
    /// Length of an ICV that is not verified: `ANY ... [no checking]`.
    pub unverified_icv: Option<usize>,
    /// Sequence numbers of 64 bits; the upper half where it begins.
    pub extended_sequence: Option<u32>,
}

impl fmt::Debug for EspSaLine {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EspSaLine")
            .field("source", &self.source)
            .field("destination", &self.destination)
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}

impl EspSaLine {
    /// Whether packets with these addresses and SPI belong to the association.
    pub fn matches(&self, source: IpAddr, destination: IpAddr, spi: u32) -> bool {
        let digits = (0..8).map(|at| (spi >> (28 - 4 * at) & 15) as u8);
        source.is_ipv6() == self.v6
            && self.source.matches(source)
            && self.destination.matches(destination)
            && (self.spi.is_empty()
                || self
                    .spi
                    .iter()
                    .zip(digits)
                    .all(|(want, digit)| want.is_none_or(|want| want == digit)))
    }

    /// The algorithms with their keys.
    ///
    /// # Errors
    /// Never for a line that was parsed.
    pub fn transform(&self) -> Result<EspTransform, super::SaError> {
        EspTransform::new(self.suite, &self.keys)
    }
}

impl AddressPattern {
    fn parse(text: &str, v6: bool) -> Option<AddressPattern> {
        if text.is_empty() || text.chars().all(|c| c == '*') {
            return Some(AddressPattern::Any);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return (address.is_ipv6() == v6).then_some(AddressPattern::One(address));
        }
        if text.contains('/') {
            let prefix = text.parse().ok()?;
            return Some(AddressPattern::Prefix(prefix));
        }
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        match (digits, v6) {
            (Some(digits), true) => {
                let (value, mask) = masked(digits, 32)?;
                Some(match mask {
                    u128::MAX => AddressPattern::One(Ipv6Addr::from_bits(value).into()),
                    mask => AddressPattern::Bits6(value, mask),
                })
            }
            (Some(digits), false) => {
                let (value, mask) = masked(digits, 8)?;
                Some(match (value as u32, mask as u32) {
                    (value, u32::MAX) => AddressPattern::One(Ipv4Addr::from_bits(value).into()),
                    (value, mask) => AddressPattern::Bits4(value, mask),
                })
            }
            (None, true) => AddressPattern::of_groups(text),
            (None, false) => AddressPattern::of_octets(text),
        }
    }

    /// An IPv4 address with `*` in place of some numbers.
    fn of_octets(text: &str) -> Option<AddressPattern> {
        let (mut value, mut mask, mut count) = (0u32, 0u32, 0);
        for octet in text.split('.') {
            let (number, bits) = match octet {
                "*" => (0, 0),
                digits => (digits.parse::<u8>().ok()?, 0xff),
            };
            value = value << 8 | u32::from(number);
            mask = mask << 8 | bits;
            count += 1;
        }
        (count == 4).then_some(AddressPattern::Bits4(value, mask))
    }

    /// An IPv6 address with `*` in place of some groups or digits; `::` stands for groups of zeros.
    fn of_groups(text: &str) -> Option<AddressPattern> {
        let groups = |text: &str| -> Option<Vec<(u128, u128)>> {
            let parts = text.split(':').filter(|_| !text.is_empty());
            parts
                .map(|group| match group {
                    "*" => Some((0, 0)),
                    digits => masked(digits, 4),
                })
                .collect()
        };
        let all = match text.split_once("::") {
            Some((before, behind)) => {
                let (mut all, behind) = (groups(before)?, groups(behind)?);
                let zeros = 8usize.checked_sub(all.len() + behind.len())?;
                all.extend(core::iter::repeat_n((0, 0xffff), zeros));
                all.extend(behind);
                all
            }
            None => groups(text)?,
        };
        if all.len() != 8 {
            return None;
        }
        let (value, mask) = all.into_iter().fold((0, 0), |(value, mask), group| {
            (value << 16 | group.0, mask << 16 | group.1)
        });
        Some(AddressPattern::Bits6(value, mask))
    }

    pub(super) fn matches(&self, address: IpAddr) -> bool {
        match (self, address) {
            (AddressPattern::Any, _) => true,
            (AddressPattern::One(one), address) => *one == address,
            (AddressPattern::Prefix(prefix), address) => prefix.contains(address),
            (AddressPattern::Bits4(value, mask), IpAddr::V4(v4)) => v4.to_bits() & mask == *value,
            (AddressPattern::Bits6(value, mask), IpAddr::V6(v6)) => v6.to_bits() & mask == *value,
            _ => false,
        }
    }
}

/// Up to `most` hexadecimal digits, `*` for any: the value and the mask of its bits that count. Missing digits at the
/// front are zeros.
fn masked(digits: &str, most: usize) -> Option<(u128, u128)> {
    let length = digits.chars().count();
    if length == 0 || length > most {
        return None;
    }
    let start = (0, (1u128 << (4 * (most - length))).wrapping_sub(1));
    digits.chars().try_fold(start, |(value, mask), digit| {
        let (number, bits) = match digit {
            '*' => (0, 0),
            digit => (digit.to_digit(16)?, 15),
        };
        Some((value << 4 | u128::from(number), mask << 4 | bits))
    })
}

/// The lines of a file for captures.
#[derive(Clone, Debug, Default)]
pub struct EspCaptureKeys {
    /// Associations.
    pub lines: Vec<EspSaLine>,
    /// Lines that are not used, or not in full, each with the reason.
    pub notes: Vec<EspSaFileError>,
}

/// Reads a file for captures, as Wireshark does: a line with algorithms that are not supported is left out, and HMAC
/// without a key is not verified. Both are noted, and so are lines without a line for the other direction.
///
/// # Errors
/// The first line that is no association.
pub fn parse_esp_capture_keys(text: &str) -> Result<EspCaptureKeys, EspSaFileError> {
    let mut keys = EspCaptureKeys::default();
    let mut numbers = Vec::new();
    for (number, line) in associations(text) {
        let failed = |message| EspSaFileError {
            line: number,
            message,
        };
        if keys.lines.len() >= MAX_LINES {
            return Err(failed(format!("more than {MAX_LINES} associations")));
        }
        match parse_line(line, true) {
            Ok((line, note)) => {
                keys.lines.push(line);
                numbers.push(number);
                keys.notes.extend(note.map(failed));
            }
            Err(LineError::Algorithm(why)) => {
                keys.notes.push(failed(format!("left out: {why}")));
            }
            Err(LineError::Mistake(why)) => return Err(failed(why)),
        }
    }
    keys.note_one_way(&numbers);
    Ok(keys)
}

impl EspCaptureKeys {
    /// Notes lines without a line for the other direction; `numbers` are those of the lines.
    fn note_one_way(&mut self, numbers: &[usize]) {
        let alone = one_way(&self.lines);
        let lines = alone
            .iter()
            .filter_map(|index| self.lines.get(*index).zip(numbers.get(*index)));
        let mut notes: Vec<EspSaFileError> = lines
            .map(|(line, number)| EspSaFileError {
                line: *number,
                message: line.one_way_note(),
            })
            .collect();
        let further = notes.len().saturating_sub(MAX_ONE_WAY_NOTES);
        if let Some(next) = notes.get(MAX_ONE_WAY_NOTES).map(|note| note.line) {
            notes.truncate(MAX_ONE_WAY_NOTES);
            notes.push(EspSaFileError {
                line: next,
                message: format!(
                    "{further} further lines from here on have none for the other direction"
                ),
            });
        }
        self.notes.append(&mut notes);
    }
}

/// The lines of a file with their numbers.
fn associations(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_start_matches('\u{feff}').trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// A mistake in a line.
enum LineError {
    /// Its algorithms are unknown, unsupported, or do not fit together.
    Algorithm(String),
    /// Another one.
    Mistake(String),
}

impl From<String> for LineError {
    fn from(why: String) -> LineError {
        LineError::Mistake(why)
    }
}

/// Reads a file. Empty lines and those that begin with `#` are ignored.
///
/// # Errors
/// The first line that is no association, or whose algorithm is unknown.
pub fn parse_esp_sa_file(text: &str) -> Result<Vec<EspSaLine>, EspSaFileError> {
    let mut lines = Vec::new();
    for (number, line) in associations(text) {
        let failed = |message| EspSaFileError {
            line: number,
            message,
        };
        if lines.len() >= MAX_LINES {
            return Err(failed(format!("more than {MAX_LINES} associations")));
        }
        let parsed = parse_line(line, false).map_err(|error| match error {
            LineError::Algorithm(why) | LineError::Mistake(why) => failed(why),
        });
        lines.push(parsed?.0);
    }
    Ok(lines)
}

/// A line, and a note about it. `lenient`: HMAC without a key is not verified.
fn parse_line(line: &str, lenient: bool) -> Result<(EspSaLine, Option<String>), LineError> {
    let fields = split_fields(line)?;
    let (required, sequence) = match fields.as_slice() {
        [a, b, c, d, e, f, g, h] => ([a, b, c, d, e, f, g, h], None),
        [a, b, c, d, e, f, g, h, length, upper] => {
            ([a, b, c, d, e, f, g, h], Some((length, upper)))
        }
        fields => {
            return Err(format!(
                "an association has 8 fields, or 10 with the length of sequence numbers, not {}",
                fields.len()
            )
            .into());
        }
    };
    let [
        protocol,
        source,
        destination,
        spi,
        encryption,
        encryption_key,
        authentication,
        authentication_key,
    ] = required.map(|field| field.as_str());
    let v6 = match protocol.to_ascii_lowercase().as_str() {
        "ipv4" => false,
        "ipv6" => true,
        _ => return Err(format!("protocol \"{protocol}\" is neither IPv4 nor IPv6").into()),
    };
    let address = |text: &str| {
        AddressPattern::parse(text, v6)
            .ok_or_else(|| format!("\"{text}\" is no {protocol} address; * stands for any"))
    };
    let encryption_key = parse_key(encryption_key)?;
    let authentication_key = parse_key(authentication_key)?;
    let (mut suite, mut unverified_icv) =
        suite_of(encryption, authentication).map_err(LineError::Algorithm)?;
    let mut note = None;
    if lenient && authentication_key.is_empty() && suite.integrity != EspIntegrity::None {
        note = Some(format!(
            "\"{authentication}\" has no key: packets are opened without verification"
        ));
        unverified_icv = Some(suite.integrity.icv_length());
        suite = EspSuite::new(suite.encryption, EspIntegrity::None);
    }
    let keys = EspKeys::new(&encryption_key, &authentication_key);
    let line = EspSaLine {
        v6,
        source: address(source)?,
        destination: address(destination)?,
        spi: parse_spi(spi)?,
        suite,
        keys,
        unverified_icv,
        extended_sequence: match sequence {
            Some((length, upper)) => parse_sequence(length, upper)?,
            None => None,
        },
    };
    line.transform().map_err(|error| error.to_string())?;
    Ok((line, note))
}

/// Fields in double quotes, separated by commas; `\"`, `\\` and `\xHH` are escapes, as Wireshark writes them.
fn split_fields(line: &str) -> Result<Vec<Zeroizing<String>>, String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        let (field, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_field(quoted)?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (field, behind) = rest.split_at(end);
                (Zeroizing::new(field.trim().to_owned()), behind)
            }
        };
        fields.push(field);
        rest = behind.trim_start();
        match rest.strip_prefix(',') {
            Some(behind) => rest = behind,
            None if rest.is_empty() => return Ok(fields),
            None => return Err("fields are separated by commas".to_owned()),
        }
    }
}

fn quoted_field(text: &str) -> Result<(Zeroizing<String>, &str), String> {
    let mut field = Zeroizing::new(String::new());
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((field, text.get(at + 1..).unwrap_or_default())),
            '\\' => match chars.next() {
                Some((_, 'x')) => {
                    let digits: String = chars.by_ref().take(2).map(|(_, c)| c).collect();
                    let byte = u8::from_str_radix(&digits, 16)
                        .map_err(|_| format!("\\x{digits} is no escape"))?;
                    field.push(char::from(byte));
                }
                Some((_, escaped)) => field.push(escaped),
                None => break,
            },
            c => field.push(c),
        }
    }
    Err("a field has no closing quotation mark".to_owned())
}

/// A key: `0x` and hexadecimal digits, or text. Empty for none.
fn parse_key(text: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) else {
        // Characters above 127 come from \x escapes and stand for one byte.
        let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
        let bytes: Result<Vec<u8>, _> = bytes.collect();
        return bytes.map(Zeroizing::new).map_err(|_| {
            "a key in text has characters of one byte; write 0x and digits".to_owned()
        });
    };
    let wrong = || "a key has an even number of hexadecimal digits behind 0x".to_owned();
    if !digits.is_ascii() || digits.len() % 2 != 0 {
        return Err(wrong());
    }
    let bytes = digits.as_bytes().chunks(2).map(|pair| {
        let pair = core::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes.map(Zeroizing::new).ok_or_else(wrong)
}

fn parse_spi(text: &str) -> Result<Vec<Option<u8>>, String> {
    if text.chars().all(|c| c == '*') {
        return Ok(Vec::new());
    }
    let wrong = || format!("SPI \"{text}\" is no number; * stands for any");
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some("*") => Ok(Vec::new()),
        Some(digits) => {
            if digits.is_empty() || digits.len() > 8 {
                return Err(wrong());
            }
            // A short number stands for its value; with wildcards it is read from the first digit.
            let fill = 8 - digits.chars().count().min(8);
            let lead = core::iter::repeat_n(Some(0), fill);
            let digits = digits.chars().map(|c| match c {
                '*' => Ok(None),
                c => c
                    .to_digit(16)
                    .map(|digit| Some(digit as u8))
                    .ok_or_else(wrong),
            });
            lead.map(Ok).chain(digits).collect()
        }
        None => {
            let number: u32 = text.parse().map_err(|_| wrong())?;
            Ok((0..8)
                .map(|at| Some((number >> (28 - 4 * at) & 15) as u8))
                .collect())
        }
    }
}

fn parse_sequence(length: &str, upper: &str) -> Result<Option<u32>, String> {
    match length {
        "32-bit" | "32" => Ok(None),
        "64-bit" | "64" => {
            let digits = upper.strip_prefix("0x");
            let number = match digits {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => upper.parse(),
            };
            number
                .map(Some)
                .map_err(|_| format!("\"{upper}\" is no upper half of a sequence number"))
        }
        _ => Err(format!(
            "sequence numbers are \"32-bit\" or \"64-bit\", not \"{length}\""
        )),
    }
}

/// Wireshark's names of encryption.
const ENCRYPTIONS: [(&str, EspEncryption); 10] = [
    ("NULL", EspEncryption::Null),
    ("TripleDES-CBC [RFC2451]", EspEncryption::TripleDes),
    ("AES-CBC [RFC3602]", EspEncryption::AesCbc),
    ("AES-CTR [RFC3686]", EspEncryption::AesCtr),
    ("DES-CBC [RFC2405]", EspEncryption::Des),
    ("BLOWFISH-CBC [RFC2451]", EspEncryption::Blowfish),
    ("AES-GCM with 8 octet ICV [RFC4106]", EspEncryption::AesGcm8),
    (
        "AES-GCM with 12 octet ICV [RFC4106]",
        EspEncryption::AesGcm12,
    ),
    (
        "AES-GCM with 16 octet ICV [RFC4106]",
        EspEncryption::AesGcm16,
    ),
    (
        "ChaCha20 with Poly1305 [RFC7634]",
        EspEncryption::ChaCha20Poly1305,
    ),
];

/// Wireshark's names of authentication.
const AUTHENTICATIONS: [(&str, EspIntegrity); 7] = [
    ("NULL", EspIntegrity::None),
    ("HMAC-SHA-1-96 [RFC2404]", EspIntegrity::HmacSha1),
    (
        "HMAC-SHA-256-96 [draft-ietf-ipsec-ciph-sha-256-00]",
        EspIntegrity::HmacSha256Truncated96,
    ),
    ("HMAC-SHA-256-128 [RFC4868]", EspIntegrity::HmacSha256),
    ("HMAC-SHA-384-192 [RFC4868]", EspIntegrity::HmacSha384),
    ("HMAC-SHA-512-256 [RFC4868]", EspIntegrity::HmacSha512),
    ("HMAC-MD5-96 [RFC2403]", EspIntegrity::HmacMd5),
];

/// Algorithms that Wireshark has and this module has not.
const UNSUPPORTED: [&str; 3] = [
    "CAST5-CBC [RFC2144]",
    "TWOFISH-CBC",
    "MAC-RIPEMD-160-96 [RFC2857]",
];

/// Wireshark's former name of AES-GCM, whose authentication states the length of the ICV.
const GCM_BY_LENGTH: &str = "AES-GCM [RFC4106]";

fn suite_of(encryption: &str, authentication: &str) -> Result<(EspSuite, Option<usize>), String> {
    let unknown = |kind: &str, name: &str, names: String| {
        if UNSUPPORTED.contains(&name) {
            return format!("{kind} \"{name}\" is not supported; supported are {names}");
        }
        format!("unknown {kind} \"{name}\"; Wireshark's names that are supported are {names}")
    };
    let any = authentication
        .strip_prefix("ANY ")
        .and_then(|rest| rest.strip_suffix(" bit authentication [no checking]"))
        .and_then(|bits| bits.parse::<usize>().ok())
        .filter(|bits| matches!(bits, 64 | 96 | 128 | 192 | 256));
    if encryption == GCM_BY_LENGTH {
        let cipher = match any {
            Some(64) => EspEncryption::AesGcm8,
            Some(96) => EspEncryption::AesGcm12,
            Some(128) => EspEncryption::AesGcm16,
            _ => {
                return Err(format!(
                    "encryption \"{encryption}\" needs the authentication \"ANY 64 bit authentication [no checking]\", or with \
                     96 or 128, for the length of its ICV"
                ));
            }
        };
        return Ok((EspSuite::new(cipher, EspIntegrity::None), None));
    }
    let found = ENCRYPTIONS.iter().find(|(name, _)| *name == encryption);
    let cipher = found.map(|(_, cipher)| *cipher).ok_or_else(|| {
        let names = ENCRYPTIONS.map(|(name, _)| name).join(", ");
        unknown("encryption", encryption, names)
    })?;
    let integrity = AUTHENTICATIONS
        .iter()
        .find(|(name, _)| *name == authentication)
        .map(|(_, integrity)| *integrity);
    if let Some(icv) = cipher.icv_length() {
        // The ICV of the cipher is verified in any case.
        if integrity == Some(EspIntegrity::None) || any == Some(8 * icv) {
            return Ok((EspSuite::new(cipher, EspIntegrity::None), None));
        }
        return Err(format!(
            "encryption \"{encryption}\" authenticates itself; its authentication is \"NULL\""
        ));
    }
    match (any, integrity) {
        (Some(bits), _) => Ok((EspSuite::new(cipher, EspIntegrity::None), Some(bits / 8))),
        (None, Some(integrity)) => Ok((EspSuite::new(cipher, integrity), None)),
        (None, None) => {
            let names = AUTHENTICATIONS.map(|(name, _)| name).join(", ");
            Err(unknown("authentication", authentication, names))
        }
    }
}
