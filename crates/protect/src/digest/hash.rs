//! Hash functions of Digest and the values computed with them (RFC 7616 section 3.4, RFC 2617 section 3.2.2).

use md5::{Digest as _, Md5};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Sha256, Sha512_256};
use std::fmt;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Hash {
    /// MD5, for old peers only.
    Md5,
    /// SHA-256.
    Sha256,
    /// SHA-512/256.
    Sha512_256,
}

/// The value of the `algorithm` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Algorithm {
    /// The hash function.
    pub hash: Hash,
    /// Whether it is the `-sess` variant.
    pub session: bool,
}

impl Algorithm {
    /// `MD5`
    pub const MD5: Algorithm = Algorithm::plain(Hash::Md5);
    /// `SHA-256`
    pub const SHA256: Algorithm = Algorithm::plain(Hash::Sha256);
    /// `SHA-512-256`
    pub const SHA512_256: Algorithm = Algorithm::plain(Hash::Sha512_256);

    const fn plain(hash: Hash) -> Algorithm {
        Algorithm {
            hash,
            session: false,
        }
    }

    /// Parses the parameter's value, ignoring quotes and case; `None` if it is not supported.
    pub fn from_token(token: &[u8]) -> Option<Algorithm> {
        let token = match token {
            [b'"', inner @ .., b'"'] => inner,
            token => token,
        };
        Self::all().find(|algorithm| algorithm.token().as_bytes().eq_ignore_ascii_case(token))
    }

    fn all() -> impl Iterator<Item = Algorithm> {
        [Hash::Md5, Hash::Sha256, Hash::Sha512_256]
            .into_iter()
            .flat_map(|hash| [false, true].map(|session| Algorithm { hash, session }))
    }

    /// The form in a header.
    pub const fn token(self) -> &'static str {
        match (self.hash, self.session) {
            (Hash::Md5, false) => "MD5",
            (Hash::Md5, true) => "MD5-sess",
            (Hash::Sha256, false) => "SHA-256",
            (Hash::Sha256, true) => "SHA-256-sess",
            (Hash::Sha512_256, false) => "SHA-512-256",
            (Hash::Sha512_256, true) => "SHA-512-256-sess",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.token())
    }
}

/// A hash in hexadecimal digits. `HA1` is equivalent to the password: `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct Hex {
    digits: [u8; 64],
    length: u8,
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits = self.digits.get(..usize::from(self.length));
        digits.unwrap_or_default().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hex, D::Error> {
        let digits = Vec::<u8>::deserialize(deserializer)?;
        Hex::from_digits(&digits)
            .ok_or_else(|| D::Error::custom("not a hash in hexadecimal digits"))
    }
}

impl Hex {
    /// From the output of a hash function.
    fn new(bytes: &[u8]) -> Hex {
        let mut digits = [0u8; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        Hex {
            digits,
            length: (bytes.len().min(32) * 2) as u8,
        }
    }

    /// From 32 or 64 hexadecimal digits in any case, for stored `HA1`; `None` for other text.
    pub fn from_digits(text: &[u8]) -> Option<Hex> {
        if !matches!(text.len(), 32 | 64) || !text.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut digits = [0u8; 64];
        for (to, from) in digits.iter_mut().zip(text) {
            *to = from.to_ascii_lowercase();
        }
        Some(Hex {
            digits,
            length: text.len() as u8,
        })
    }

    /// The digits in lower case.
    pub fn as_bytes(&self) -> &[u8] {
        self.digits
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }

    /// Compares with `text` without regard to case, in constant time.
    pub fn matches(&self, text: &[u8]) -> bool {
        let digits = self.as_bytes();
        if digits.len() != text.len() {
            return false;
        }
        let difference = digits
            .iter()
            .zip(text)
            .fold(0u8, |sum, (a, b)| sum | (a ^ b.to_ascii_lowercase()));
        std::hint::black_box(difference) == 0
    }
}

impl PartialEq for Hex {
    fn eq(&self, other: &Self) -> bool {
        self.matches(other.as_bytes())
    }
}

impl Eq for Hex {}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hexadecimal digits", self.length)
    }
}

const fn digit(nibble: u8) -> u8 {
    match nibble {
        0..=9 => b'0' + nibble,
        _ => b'a' + (nibble - 10),
    }
}

impl Hash {
    /// The hash of the pieces, joined by colons.
    fn joined(self, pieces: &[&[u8]]) -> Hex {
        match self {
            Hash::Md5 => joined::<Md5>(pieces),
            Hash::Sha256 => joined::<Sha256>(pieces),
            Hash::Sha512_256 => joined::<Sha512_256>(pieces),
        }
    }
}

fn joined<D: md5::Digest>(pieces: &[&[u8]]) -> Hex {
    let mut state = D::new();
    for (index, piece) in pieces.iter().enumerate() {
        if index > 0 {
            state.update(b":");
        }
        state.update(piece);
    }
    Hex::new(&state.finalize())
}

/// SHA-256 over a secret and a message, truncated to 16 bytes. Both have a fixed length, which excludes length
/// extension.
pub(super) fn keyed(key: &[u8; 32], message: &[u8; 16]) -> [u8; 16] {
    let mut state = Sha256::new();
    state.update(key);
    state.update(message);
    let full: [u8; 32] = state.finalize().into();
    let mut short = [0; 16];
    short.copy_from_slice(&full[..16]);
    short
}

/// `H(username:realm:password)`, stored instead of a password. Names are unquoted.
pub fn ha1(hash: Hash, username: &[u8], realm: &[u8], password: &[u8]) -> Hex {
    hash.joined(&[username, realm, password])
}

/// `H(username:realm)`: the user name with `userhash=true` (RFC 7616 section 3.4.4).
pub fn user_hash(hash: Hash, username: &[u8], realm: &[u8]) -> Hex {
    hash.joined(&[username, realm])
}

/// Quality of protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Qop {
    /// Absent: RFC 2069.
    None,
    /// `auth`
    Auth,
    /// `auth-int`: the body is covered.
    AuthInt,
}

impl Qop {
    /// The form in a header; empty for [`Qop::None`].
    pub const fn token(self) -> &'static str {
        match self {
            Qop::None => "",
            Qop::Auth => "auth",
            Qop::AuthInt => "auth-int",
        }
    }
}

/// Input of the response hash; all values are unquoted.
#[derive(Clone, Copy, Debug)]
pub struct ResponseInput<'a> {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// `H(username:realm:password)`
    pub ha1: Hex,
    /// The server's nonce.
    pub nonce: &'a [u8],
    /// The client's nonce; used only with qop or a `-sess` algorithm.
    pub cnonce: &'a [u8],
    /// Nonce count, eight hexadecimal digits as sent.
    pub nc: &'a [u8],
    /// Quality of protection.
    pub qop: Qop,
    /// Request method; empty for the server's `rspauth`.
    pub method: &'a [u8],
    /// `uri` parameter.
    pub uri: &'a [u8],
    /// The body, for auth-int.
    pub body: &'a [u8],
}

impl ResponseInput<'_> {
    /// The `response` parameter.
    pub fn response(&self) -> Hex {
        let hash = self.algorithm.hash;
        let ha1 = match self.algorithm.session {
            true => hash.joined(&[self.ha1.as_bytes(), self.nonce, self.cnonce]),
            false => self.ha1,
        };
        let ha2 = match self.qop {
            Qop::AuthInt => {
                let body = hash.joined(&[self.body]);
                hash.joined(&[self.method, self.uri, body.as_bytes()])
            }
            _ => hash.joined(&[self.method, self.uri]),
        };
        match self.qop {
            Qop::None => hash.joined(&[ha1.as_bytes(), self.nonce, ha2.as_bytes()]),
            qop => hash.joined(&[
                ha1.as_bytes(),
                self.nonce,
                self.nc,
                self.cnonce,
                qop.token().as_bytes(),
                ha2.as_bytes(),
            ]),
        }
    }
}

/// Stored secret of a user.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Secret {
    /// The password itself: works with every algorithm.
    Password(Vec<u8>),
    /// `HA1` for some hash functions, computed for one user name and realm.
    Ha1(Vec<(Hash, Hex)>),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Secret::Password(_) => "Password(secret)",
            Secret::Ha1(_) => "Ha1(secret)",
        })
    }
}

impl Secret {
    /// `HA1` for this hash; `None` if it is not stored.
    pub fn ha1(&self, hash: Hash, username: &[u8], realm: &[u8]) -> Option<Hex> {
        match self {
            Secret::Password(password) => Some(ha1(hash, username, realm, password)),
            Secret::Ha1(stored) => stored
                .iter()
                .find(|entry| entry.0 == hash)
                .map(|entry| entry.1),
        }
    }

    /// Whether `HA1` for this hash is available.
    pub fn serves(&self, hash: Hash) -> bool {
        match self {
            Secret::Password(_) => true,
            Secret::Ha1(stored) => stored.iter().any(|entry| entry.0 == hash),
        }
    }
}

/// Appends `text` as a quoted string.
pub(super) fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}
