//! Bencode, read where it lies: integers `i42e`, byte strings `3:abc`, lists `l...e`, dictionaries `d...e`.

use core::fmt;

/// Lists and dictionaries in one another at most.
pub const MAX_DEPTH: usize = 16;
/// Digits of a byte string's length at most: nothing longer fits into a message.
const MAX_LENGTH_DIGITS: usize = 6;
/// Octets of an integer between `i` and `e` at most: those of the smallest 64-bit number.
const MAX_INTEGER: usize = 20;

/// Why bytes are no bencode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BencodeError {
    /// They end too early.
    Truncated,
    /// Something stands behind the value.
    Trailing,
    /// Lists and dictionaries deeper than [`MAX_DEPTH`].
    TooDeep,
    /// An integer that is none, is not in its shortest form, or exceeds 64 bits.
    Integer,
    /// The length of a byte string that is none, or is not in its shortest form.
    Length,
    /// A key that is no byte string, or one without a value.
    Key,
    /// An octet with which no value begins.
    Octet(u8),
    /// The value is no dictionary, where one has to be.
    NoDictionary,
}

impl fmt::Display for BencodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BencodeError::Truncated => f.write_str("bencode ends too early"),
            BencodeError::Trailing => f.write_str("something stands behind the dictionary"),
            BencodeError::TooDeep => write!(f, "bencode is deeper than {MAX_DEPTH}"),
            BencodeError::Integer => f.write_str("bad integer in bencode"),
            BencodeError::Length => f.write_str("bad length of a string in bencode"),
            BencodeError::Key => f.write_str("bad key of a dictionary in bencode"),
            BencodeError::Octet(octet) => write!(f, "no bencode value begins with {octet:#04x}"),
            BencodeError::NoDictionary => f.write_str("no dictionary in bencode"),
        }
    }
}

impl core::error::Error for BencodeError {}

/// What is open at some depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    List,
    /// A dictionary whose next item is a key, or the end.
    Key,
    /// A dictionary whose next item is the value of a key.
    Value,
}

/// Checks one value, in as many pieces as it comes in; the work is linear in its length.
#[derive(Clone, Debug)]
pub struct Scanner {
    /// Everything before this was checked.
    at: usize,
    open: [Open; MAX_DEPTH],
    depth: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner::new()
    }
}

impl Scanner {
    /// Nothing was seen yet.
    pub fn new() -> Scanner {
        Scanner {
            at: 0,
            open: [Open::List; MAX_DEPTH],
            depth: 0,
        }
    }

    /// Goes on with `bytes`, which begin with the same bytes as when this was last asked. The value's length once it is whole,
    /// `None` until then.
    ///
    /// # Errors
    /// It is no bencode, whatever follows.
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
                    Some(Open::List | Open::Key) => self.depth -= 1,
                    Some(Open::Value) => return Err(BencodeError::Key),
                    None => return Err(BencodeError::Octet(first)),
                }
                self.at += 1;
            } else {
                match top {
                    Some(open @ Open::Key) => {
                        if !first.is_ascii_digit() {
                            return Err(BencodeError::Key);
                        }
                        let Some(length) = string(rest)?.and_then(|(_, end)| end) else {
                            return Ok(None);
                        };
                        self.at += length;
                        *open = Open::Value;
                        continue;
                    }
                    Some(Open::Value | Open::List) | None => {}
                }
                let used = match first {
                    b'd' | b'l' => {
                        let opened = match first {
                            b'd' => Open::Key,
                            _ => Open::List,
                        };
                        // The value of its dictionary has begun: what follows its end is a key.
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
        if let Some(open @ Open::Value) = self
            .depth
            .checked_sub(1)
            .and_then(|top| self.open.get_mut(top))
        {
            *open = Open::Key;
        }
    }
}

/// The integer at the beginning of `bytes` (which begin with `i`) and how many octets it takes; `None`: its end is not there.
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

/// Where the contents of the byte string at the beginning of `bytes` begin, and where they end, if that is there; `None`: not
/// even the length is whole.
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
pub enum Item<'a> {
    /// An integer.
    Integer(i64),
    /// A byte string.
    Bytes(&'a [u8]),
    /// A list.
    List(List<'a>),
    /// A dictionary.
    Dictionary(Dictionary<'a>),
}

impl<'a> Item<'a> {
    /// The one value that `bytes` are.
    ///
    /// # Errors
    /// They are none, or more than one.
    pub fn parse(bytes: &'a [u8]) -> Result<Item<'a>, BencodeError> {
        match Scanner::new().scan(bytes)? {
            Some(length) if length == bytes.len() => {}
            Some(_) => return Err(BencodeError::Trailing),
            None => return Err(BencodeError::Truncated),
        }
        item(bytes)
            .map(|(item, _)| item)
            .ok_or(BencodeError::Truncated)
    }

    /// The byte string, where it is one.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Item::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The byte string as text, where it is one in UTF-8.
    pub fn text(self) -> Option<&'a str> {
        core::str::from_utf8(self.bytes()?).ok()
    }

    /// The list, where it is one.
    pub fn list(self) -> Option<List<'a>> {
        match self {
            Item::List(list) => Some(list),
            _ => None,
        }
    }

    /// The dictionary, where it is one.
    pub fn dictionary(self) -> Option<Dictionary<'a>> {
        match self {
            Item::Dictionary(dictionary) => Some(dictionary),
            _ => None,
        }
    }

    /// The integer, also where it is written as a byte string of digits, which some clients do.
    pub fn integer(self) -> Option<i64> {
        match self {
            Item::Integer(number) => Some(number),
            Item::Bytes(_) => self.text()?.parse().ok(),
            _ => None,
        }
    }
}

/// The value at the beginning of checked bytes, and what follows it.
fn item(bytes: &[u8]) -> Option<(Item<'_>, &[u8])> {
    match bytes.first()? {
        b'i' => {
            let (number, used) = integer(bytes).ok()??;
            Some((Item::Integer(number), bytes.get(used..)?))
        }
        b'l' | b'd' => {
            let length = Scanner::new().scan(bytes).ok()??;
            let body = bytes.get(1..length.checked_sub(1)?)?;
            let item = match bytes.first()? {
                b'l' => Item::List(List(body)),
                _ => Item::Dictionary(Dictionary(body)),
            };
            Some((item, bytes.get(length..)?))
        }
        _ => {
            let (start, end) = string(bytes).ok()??;
            let end = end?;
            Some((Item::Bytes(bytes.get(start..end)?), bytes.get(end..)?))
        }
    }
}

/// A list: checked bytes between `l` and `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a>(&'a [u8]);

impl<'a> List<'a> {
    /// Its items, in order.
    pub fn iter(self) -> impl Iterator<Item = Item<'a>> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (item, behind) = item(rest)?;
            rest = behind;
            Some(item)
        })
    }
}

/// A dictionary: checked bytes between `d` and `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dictionary<'a>(&'a [u8]);

impl<'a> Dictionary<'a> {
    /// The dictionary that `bytes` are.
    ///
    /// # Errors
    /// They are none.
    pub fn parse(bytes: &'a [u8]) -> Result<Dictionary<'a>, BencodeError> {
        match Item::parse(bytes)? {
            Item::Dictionary(dictionary) => Ok(dictionary),
            _ => Err(BencodeError::NoDictionary),
        }
    }

    /// Its keys with their values, in the order of the sender.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], Item<'a>)> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (key, behind) = item(rest)?;
            let (value, behind) = item(behind)?;
            rest = behind;
            Some((key.bytes()?, value))
        })
    }

    /// The first value of this key.
    pub fn get(self, key: &str) -> Option<Item<'a>> {
        self.iter()
            .find(|(name, _)| *name == key.as_bytes())
            .map(|(_, value)| value)
    }
}
