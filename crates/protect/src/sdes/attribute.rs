//! Parsing and writing one `a=crypto` attribute (grammar: RFC 4568 section 9).

use super::Reason;
use crate::srtp::{CipherKind, KeyError, MasterKey, Options, Suite};
use crate::srtp::{MAX_KEYS, MAX_MKI, MAX_SRTP_PACKETS, MAX_WINDOW, MIN_WINDOW};
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use core::fmt;
use core::fmt::Write as _;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Padding is written, and optional when parsing.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// An `a=crypto` attribute.
#[derive(Clone, Serialize, Deserialize)]
pub struct CryptoAttribute {
    /// Tag, unique within the media description.
    pub tag: u32,
    /// Suite.
    pub suite: Suite,
    /// One or more keys; their options are those of `parameters`.
    pub keys: Vec<MasterKey>,
    /// Session parameters.
    pub parameters: SessionParameters,
}

/// Session parameters (RFC 4568 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionParameters {
    /// `UNENCRYPTED_SRTP`, `UNENCRYPTED_SRTCP`, `UNAUTHENTICATED_SRTP` and `KDR`.
    pub options: Options,
    /// `WSH`: the replay window suggested by the sender, packets.
    pub window: Option<u16>,
    /// `FEC_ORDER=SRTP_FEC`: error correction before encryption. It has no effect, because FEC is not sent.
    pub fec_inside: Option<bool>,
}

impl CryptoAttribute {
    /// Parses the attribute's value, the text after `a=crypto:`.
    ///
    /// # Errors
    /// The first problem found.
    pub fn parse(value: &[u8]) -> Result<CryptoAttribute, Reason> {
        let mut words = value
            .split(|byte| matches!(byte, b' ' | b'\t'))
            .filter(|word| !word.is_empty());
        let tag = words.next().ok_or(Reason::Syntax("no tag"))?;
        let tag =
            parse_tag(tag).ok_or(Reason::Syntax("the tag is not a number of 1 to 9 digits"))?;
        let name = words.next().ok_or(Reason::Syntax("no suite"))?;
        let suite = Suite::from_name(name)
            .ok_or_else(|| Reason::UnknownSuite(name.escape_ascii().to_string()))?;
        let keys = words.next().ok_or(Reason::Syntax("no key"))?;
        let mut parameters = SessionParameters::default();
        let mut seen = Vec::new();
        for word in words {
            let name = parameters.parse_parameter(word)?;
            if seen.contains(&name) && !name.is_empty() {
                return Err(Reason::Repeated(name));
            }
            seen.push(name);
        }
        Ok(CryptoAttribute {
            tag,
            suite,
            keys: parse_keys(suite, keys, parameters.options)?,
            parameters,
        })
    }

    /// The tag of a value, even if the rest is invalid.
    pub fn tag_of(value: &[u8]) -> Option<u32> {
        let word = value.split(|byte| matches!(byte, b' ' | b'\t')).next()?;
        parse_tag(word)
    }

    /// The attribute's value, without `a=crypto:`. Secret.
    pub fn value(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(128));
        let _ = write!(text, "{} {} ", self.tag, self.suite);
        for (nth, key) in self.keys.iter().enumerate() {
            text.push_str(if nth == 0 { "inline:" } else { ";inline:" });
            BASE64.encode_string(key.key_and_salt(), &mut text);
            if key.lifetime() != MAX_SRTP_PACKETS {
                let _ = if key.lifetime().is_power_of_two() {
                    write!(text, "|2^{}", key.lifetime().trailing_zeros())
                } else {
                    write!(text, "|{}", key.lifetime())
                };
            }
            if !key.mki().is_empty() {
                let _ = write!(text, "|{}:{}", decimal(key.mki()), key.mki().len());
            }
        }
        let _ = write!(text, "{}", self.parameters);
        text
    }
}

impl fmt::Debug for CryptoAttribute {
    /// Omits the keys' bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CryptoAttribute")
            .field("tag", &self.tag)
            .field("suite", &self.suite)
            .field("keys", &self.keys)
            .field("parameters", &self.parameters)
            .finish()
    }
}

impl fmt::Display for SessionParameters {
    /// Each parameter with a leading space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.options.key_derivation_rate != 0 {
            write!(f, " KDR={}", self.options.key_derivation_rate)?;
        }
        for (name, set) in [
            ("UNENCRYPTED_SRTP", self.options.unencrypted_srtp),
            ("UNENCRYPTED_SRTCP", self.options.unencrypted_srtcp),
            ("UNAUTHENTICATED_SRTP", self.options.unauthenticated_srtp),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        match self.fec_inside {
            Some(true) => f.write_str(" FEC_ORDER=SRTP_FEC")?,
            Some(false) => f.write_str(" FEC_ORDER=FEC_SRTP")?,
            None => {}
        }
        match self.window {
            Some(window) => write!(f, " WSH={window}"),
            None => Ok(()),
        }
    }
}

impl SessionParameters {
    /// Parses one parameter; returns its name, empty for an ignored one.
    fn parse_parameter(&mut self, word: &[u8]) -> Result<&'static str, Reason> {
        let at = word.iter().position(|byte| *byte == b'=');
        let (name, value) = match at {
            Some(at) => (
                word.get(..at).unwrap_or_default(),
                word.get(at + 1..).unwrap_or_default(),
            ),
            None => (word, &[][..]),
        };
        let flag = |name: &'static str, to: &mut bool| {
            *to = true;
            if at.is_none() {
                Ok(name)
            } else {
                Err(Reason::Value(name))
            }
        };
        if name.eq_ignore_ascii_case(b"UNENCRYPTED_SRTP") {
            return flag("UNENCRYPTED_SRTP", &mut self.options.unencrypted_srtp);
        }
        if name.eq_ignore_ascii_case(b"UNENCRYPTED_SRTCP") {
            return flag("UNENCRYPTED_SRTCP", &mut self.options.unencrypted_srtcp);
        }
        if name.eq_ignore_ascii_case(b"UNAUTHENTICATED_SRTP") {
            return flag(
                "UNAUTHENTICATED_SRTP",
                &mut self.options.unauthenticated_srtp,
            );
        }
        if name.eq_ignore_ascii_case(b"KDR") {
            let rate = number(value).filter(|rate| *rate <= 24);
            self.options.key_derivation_rate = rate.ok_or(Reason::Value("KDR"))? as u8;
            return Ok("KDR");
        }
        if name.eq_ignore_ascii_case(b"WSH") {
            let window = number(value).filter(|window| *window >= MIN_WINDOW as u64);
            let window = window.ok_or(Reason::Value("WSH"))?;
            self.window = Some(window.min(MAX_WINDOW as u64) as u16);
            return Ok("WSH");
        }
        if name.eq_ignore_ascii_case(b"FEC_ORDER") {
            self.fec_inside = Some(match value {
                b"FEC_SRTP" => false,
                b"SRTP_FEC" => true,
                _ => return Err(Reason::Value("FEC_ORDER")),
            });
            return Ok("FEC_ORDER");
        }
        // A leading hyphen marks a parameter that may be ignored if it is unknown (RFC 4568 section 6.3.8).
        if name.starts_with(b"-") && name.len() > 1 {
            return Ok("");
        }
        Err(Reason::Parameter(name.escape_ascii().to_string()))
    }
}

fn parse_tag(word: &[u8]) -> Option<u32> {
    if word.len() > 9 {
        return None;
    }
    number(word).map(|tag| tag as u32)
}

/// A decimal number; `None` if it overflows.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn parse_keys(suite: Suite, text: &[u8], options: Options) -> Result<Vec<MasterKey>, Reason> {
    let mut keys: Vec<MasterKey> = Vec::with_capacity(1);
    for part in text.split(|byte| *byte == b';') {
        if keys.len() >= MAX_KEYS {
            return Err(KeyError::TooManyKeys.into());
        }
        let key = parse_key(suite, part)?.with_options(options)?;
        let conflict =
            |known: &MasterKey| known.mki().len() != key.mki().len() || known.mki() == key.mki();
        if !keys.is_empty() && (key.mki().is_empty() || keys.iter().any(|key| key.mki().is_empty()))
        {
            return Err(Reason::MkiMissing);
        }
        if keys.iter().any(conflict) {
            return Err(KeyError::MkiConflict.into());
        }
        keys.push(key);
    }
    Ok(keys)
}

/// `inline:` key and salt, optional lifetime, optional identifier.
fn parse_key(suite: Suite, text: &[u8]) -> Result<MasterKey, Reason> {
    let colon = text.iter().position(|byte| *byte == b':');
    let (method, info) = match colon {
        Some(at) => (
            text.get(..at).unwrap_or_default(),
            text.get(at + 1..).unwrap_or_default(),
        ),
        None => (text, &[][..]),
    };
    if !method.eq_ignore_ascii_case(b"inline") {
        return Err(Reason::KeyMethod);
    }
    let mut fields = info.split(|byte| *byte == b'|');
    let secret = fields.next().unwrap_or_default();
    let secret = Zeroizing::new(BASE64.decode(secret).map_err(|_| Reason::Base64)?);
    let mut key = MasterKey::new(suite, &secret)?;
    let mut field = fields.next();
    if let Some(text) = field
        && !text.contains(&b':')
    {
        key = key.with_lifetime(parse_lifetime(text)?)?;
        field = fields.next();
    }
    if let Some(text) = field {
        key = key.with_mki(&parse_mki(text)?)?;
        field = fields.next();
    }
    match field {
        None => Ok(key),
        Some(_) => Err(Reason::Syntax("too many fields after the key")),
    }
}

/// `2^n` or a decimal number of packets.
fn parse_lifetime(text: &[u8]) -> Result<u64, Reason> {
    let lifetime = match text.strip_prefix(b"2^") {
        Some(exponent) => number(exponent)
            .and_then(|exponent| u32::try_from(exponent).ok())
            .and_then(|exponent| 1u64.checked_shl(exponent)),
        None => number(text),
    };
    lifetime.ok_or(Reason::Key(KeyError::Lifetime))
}

/// An identifier's value and length: the value as that number of bytes, most significant first.
fn parse_mki(text: &[u8]) -> Result<Vec<u8>, Reason> {
    let bad = Reason::Key(KeyError::Mki);
    let mut parts = text.split(|byte| *byte == b':');
    let (Some(digits), Some(length), None) = (parts.next(), parts.next(), parts.next()) else {
        return Err(bad);
    };
    let length = match number(length) {
        Some(length) if (1..=MAX_MKI as u64).contains(&length) => length as usize,
        _ => return Err(bad),
    };
    // A value of 128 bytes has at most 309 digits.
    if digits.is_empty() || digits.len() > 309 {
        return Err(bad);
    }
    let mut value = vec![0u8; length];
    for digit in digits {
        let mut carry = match digit {
            b'0'..=b'9' => u16::from(digit - b'0'),
            _ => return Err(bad),
        };
        for byte in value.iter_mut().rev() {
            carry += u16::from(*byte) * 10;
            *byte = carry as u8;
            carry >>= 8;
        }
        if carry != 0 {
            return Err(bad);
        }
    }
    Ok(value)
}

/// The decimal form of a big-endian number.
fn decimal(bytes: &[u8]) -> String {
    let mut value = bytes.to_vec();
    let mut digits = Vec::new();
    loop {
        let mut rest = 0u16;
        for byte in &mut value {
            let part = rest << 8 | u16::from(*byte);
            *byte = (part / 10) as u8;
            rest = part % 10;
        }
        digits.push(b'0' + rest as u8);
        if value.iter().all(|byte| *byte == 0) {
            break;
        }
    }
    digits.iter().rev().copied().map(char::from).collect()
}

/// Whether the options disable encryption.
pub(super) fn unencrypted(suite: Suite, options: Options) -> bool {
    suite.cipher() == CipherKind::Null || options.unencrypted_srtp || options.unencrypted_srtcp
}
