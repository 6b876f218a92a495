//! Zero-copy reader of bencode: integers `i42e`, byte strings `3:abc`, lists `l...e`, dictionaries `d...e`.

use core::fmt;

/// Maximum nesting depth of lists and dictionaries.
pub const MAX_DEPTH: usize = 16;
/// Maximum number of digits of a byte string's length; a message has no room for longer strings.
const MAX_LENGTH_DIGITS: usize = 6;
/// Maximum number of octets of an integer between `i` and `e`: those of the smallest 64-bit number.
const MAX_INTEGER: usize = 20;

/// The reason why bytes are no valid bencode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BencodeError {
    /// The bytes end too early.
    Truncated,
    /// There are bytes after the value.
    Trailing,
    /// Lists and dictionaries deeper than [`MAX_DEPTH`].
    TooDeep,
    /// An integer that is malformed, not in its shortest form, or exceeds 64 bits.
    Integer,
    /// The length of a byte string is malformed or not in its shortest form.
    Length,
    /// A key that is no byte string, or has no value.
    Key,
    /// An octet that starts no value.
    Octet(u8),
    /// The value has to be a dictionary and is not.
    NoDictionary,
}

impl fmt::Display for BencodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BencodeError::Truncated => f.write_str("bencode ends too early"),
            BencodeError::Trailing => f.write_str("bytes after the bencode dictionary"),
            BencodeError::TooDeep => write!(f, "bencode is nested deeper than {MAX_DEPTH}"),
            BencodeError::Integer => f.write_str("malformed integer in bencode"),
            BencodeError::Length => f.write_str("malformed string length in bencode"),
            BencodeError::Key => f.write_str("malformed dictionary key in bencode"),
            BencodeError::Octet(octet) => {
                write!(f, "no bencode value starts with octet {octet:#04x}")
            }
            BencodeError::NoDictionary => f.write_str("the bencode value is no dictionary"),
        }
    }
}

impl core::error::Error for BencodeError {}

/// A container whose end has not been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenContainer {
    List,
    /// A dictionary in which a key or the end is next.
    Key,
    /// A dictionary in which the value of a key is next.
    Value,
}

/// Validates one value that arrives in pieces; the work is linear in its length.
#[derive(Clone, Debug)]
pub struct Scanner {
    /// Offset up to which the bytes have been validated.
    at: usize,
    open: [OpenContainer; MAX_DEPTH],
    depth: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner::new()
    }
}

impl Scanner {
    /// A scanner at the beginning of a value.
    pub fn new() -> Scanner {
        Scanner {
            at: 0,
            open: [OpenContainer::List; MAX_DEPTH],
            depth: 0,
        }
    }

    /// Continues with `bytes`, which begin with the same bytes as in the previous call. Returns the length of the value
    /// once it is complete, `None` until then.
    ///
    /// # Errors
    /// The bytes are no valid bencode, regardless of later bytes.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Option<usize>, BencodeError> {
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let Some(&first) = rest.first() else {
                return Ok(None);
            };
            let top = self
                .depth
                .checked_sub(1)
                .and_then(|top| self.open.get_mut(top));
            if first == b'e' {
                match top {
                    Some(OpenContainer::List | OpenContainer::Key) => self.depth -= 1,
                    Some(OpenContainer::Value) => return Err(BencodeError::Key),
                    None => return Err(BencodeError::Octet(first)),
                }
                self.at += 1;
            } else {
                match top {
                    Some(open @ OpenContainer::Key) => {
                        if !first.is_ascii_digit() {
                            return Err(BencodeError::Key);
                        }
                        let Some(length) = string(rest)?.and_then(|(_, end)| end) else {
                            return Ok(None);
                        };
                        self.at += length;
                        *open = OpenContainer::Value;
                        continue;
                    }
                    Some(OpenContainer::Value | OpenContainer::List) | None => {}
                }
                let used = match first {
                    b'd' | b'l' => {
                        let opened = match first {
                            b'd' => OpenContainer::Key,
                            _ => OpenContainer::List,
                        };
                        // The value of its dictionary has begun: after its end, a key is next.
                        self.expect_key();
                        let slot = self.open.get_mut(self.depth).ok_or(BencodeError::TooDeep)?;
                        *slot = opened;
                        self.depth += 1;
                        self.at += 1;
                        continue;
                    }
                    b'i' => integer(rest)?.map(|(_, used)| used),
                    b'0'..=b'9' => string(rest)?.and_then(|(_, end)| end),
                    other => return Err(BencodeError::Octet(other)),
                };
                let Some(used) = used else {
                    return Ok(None);
                };
                self.at += used;
                self.expect_key();
            }
            if self.depth == 0 {
                return Ok(Some(self.at));
            }
        }
    }

    fn expect_key(&mut self) {
        if let Some(open @ OpenContainer::Value) = self
            .depth
            .checked_sub(1)
            .and_then(|top| self.open.get_mut(top))
        {
            *open = OpenContainer::Key;
        }
    }
}

/// The integer at the beginning of `bytes` (which begin with `i`) and its length in octets; `None` if incomplete.
fn integer(bytes: &[u8]) -> Result<Option<(i64, usize)>, BencodeError> {
    let body = bytes.get(1..).unwrap_or_default();
    let window = body
        .get(..body.len().min(MAX_INTEGER + 1))
        .unwrap_or_default();
    let Some(end) = window.iter().position(|&byte| byte == b'e') else {
        let plausible = window.len() <= MAX_INTEGER
            && window
                .iter()
                .enumerate()
                .all(|(at, byte)| byte.is_ascii_digit() || (at == 0 && *byte == b'-'));
        return match plausible {
            true => Ok(None),
            false => Err(BencodeError::Integer),
        };
    };
    let text = window.get(..end).unwrap_or_default();
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let shortest = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'0', ..] | [] => false,
        _ => true,
    };
    if !shortest || !digits.iter().all(u8::is_ascii_digit) {
        return Err(BencodeError::Integer);
    }
    let number = core::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(BencodeError::Integer)?;
    Ok(Some((number, end + 2)))
}

/// The start offset of the byte string's contents at the beginning of `bytes`, and their end offset if complete; `None`
/// if the length itself is incomplete.
#[allow(clippy::type_complexity)]
fn string(bytes: &[u8]) -> Result<Option<(usize, Option<usize>)>, BencodeError> {
    let window = bytes
        .get(..bytes.len().min(MAX_LENGTH_DIGITS + 1))
        .unwrap_or_default();
    let digits = window
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    match window.get(digits) {
        Some(b':') => {}
        None if digits <= MAX_LENGTH_DIGITS => return Ok(None),
        _ => return Err(BencodeError::Length),
    }
    let text = window.get(..digits).unwrap_or_default();
    if text.len() > 1 && text.first() == Some(&b'0') {
        return Err(BencodeError::Length);
    }
    let length: usize = core::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(BencodeError::Length)?;
    let end = digits + 1 + length;
    Ok(Some((digits + 1, (end <= bytes.len()).then_some(end))))
}

/// One value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BencodeItem<'a> {
    /// An integer.
    Integer(i64),
    /// A byte string.
    Bytes(&'a [u8]),
    /// A list.
    List(List<'a>),
    /// A dictionary.
    Dictionary(Dictionary<'a>),
}

impl<'a> BencodeItem<'a> {
    /// Parses exactly one value.
    ///
    /// # Errors
    /// The bytes are no value, or more than one.
    pub fn parse(bytes: &'a [u8]) -> Result<BencodeItem<'a>, BencodeError> {
        match Scanner::new().scan(bytes)? {
            Some(length) if length == bytes.len() => {}
            Some(_) => return Err(BencodeError::Trailing),
            None => return Err(BencodeError::Truncated),
        }
        item(bytes)
            .map(|(item, _)| item)
            .ok_or(BencodeError::Truncated)
    }

    /// The byte string; `None` for other types.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            BencodeItem::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The byte string as text; `None` for other types and invalid UTF-8.
    pub fn text(self) -> Option<&'a str> {
        core::str::from_utf8(self.bytes()?).ok()
    }

    /// The list; `None` for other types.
    pub fn list(self) -> Option<List<'a>> {
        match self {
            BencodeItem::List(list) => Some(list),
            _ => None,
        }
    }

    /// The dictionary; `None` for other types.
    pub fn dictionary(self) -> Option<Dictionary<'a>> {
        match self {
            BencodeItem::Dictionary(dictionary) => Some(dictionary),
            _ => None,
        }
    }

    /// The integer; some clients write it as a byte string of digits, which is accepted.
    pub fn integer(self) -> Option<i64> {
        match self {
            BencodeItem::Integer(number) => Some(number),
            BencodeItem::Bytes(_) => self.text()?.parse().ok(),
            _ => None,
        }
    }
}

/// The value at the beginning of validated bytes, and the bytes after it.
fn item(bytes: &[u8]) -> Option<(BencodeItem<'_>, &[u8])> {
    match bytes.first()? {
        b'i' => {
            let (number, used) = integer(bytes).ok()??;
            Some((BencodeItem::Integer(number), bytes.get(used..)?))
        }
        b'l' | b'd' => {
            let length = Scanner::new().scan(bytes).ok()??;
            let body = bytes.get(1..length.checked_sub(1)?)?;
            let item = match bytes.first()? {
                b'l' => BencodeItem::List(List(body)),
                _ => BencodeItem::Dictionary(Dictionary(body)),
            };
            Some((item, bytes.get(length..)?))
        }
        _ => {
            let (start, end) = string(bytes).ok()??;
            let end = end?;
            Some((
                BencodeItem::Bytes(bytes.get(start..end)?),
                bytes.get(end..)?,
            ))
        }
    }
}

/// A list: validated bytes between `l` and `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a>(&'a [u8]);

impl<'a> List<'a> {
    /// Its items, in order.
    pub fn iter(self) -> impl Iterator<Item = BencodeItem<'a>> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (item, behind) = item(rest)?;
            rest = behind;
            Some(item)
        })
    }
}

/// A dictionary: validated bytes between `d` and `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dictionary<'a>(&'a [u8]);

impl<'a> Dictionary<'a> {
    /// Parses exactly one dictionary.
    ///
    /// # Errors
    /// The bytes are no dictionary.
    pub fn parse(bytes: &'a [u8]) -> Result<Dictionary<'a>, BencodeError> {
        match BencodeItem::parse(bytes)? {
            BencodeItem::Dictionary(dictionary) => Ok(dictionary),
            _ => Err(BencodeError::NoDictionary),
        }
    }

    /// Keys and values, in the order of the message.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], BencodeItem<'a>)> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (key, behind) = item(rest)?;
            let (value, behind) = item(behind)?;
            rest = behind;
            Some((key.bytes()?, value))
        })
    }

    /// The first value of this key.
    pub fn get(self, key: &str) -> Option<BencodeItem<'a>> {
        self.iter()
            .find(|(name, _)| *name == key.as_bytes())
            .map(|(_, value)| value)
    }
}
