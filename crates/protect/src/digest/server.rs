//! The server's side: challenges, verification, replay protection.

use super::hash::{Algorithm, Hash, Hex, Proof, Qop, Secret, ha1, keyed, quote};
use engine::{BoundedMap, Entropy, HashKey, Time};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use wire::sip::{Credentials, HeaderId, Message, Uri, Writer, unquote};

/// How a server challenges.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The realm.
    pub realm: Vec<u8>,
    /// One challenge for each, the preferred first (RFC 8760 section 2.3).
    pub algorithms: Vec<Algorithm>,
    /// Whether auth-int is offered beside auth.
    pub auth_int: bool,
    /// Whether responses without qop (RFC 2069) are taken; each nonce then serves once.
    pub without_qop: bool,
    /// How long a nonce is good.
    pub nonce_lifetime: Duration,
    /// Nonces whose use is remembered at a time.
    pub nonces: usize,
}

/// Why credentials are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// None for our realm: challenge.
    Absent,
    /// Parameters missing or unreadable: 400, or challenge.
    Malformed,
    /// An algorithm or qop that we have not offered: challenge.
    Unsupported,
    /// Right, but the nonce is old, unknown or used: challenge with `stale=true`.
    Stale,
    /// Wrong password, or no such user: challenge, or 403.
    Wrong,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Absent => "no credentials",
            Refusal::Malformed => "malformed credentials",
            Refusal::Unsupported => "unsupported digest algorithm or qop",
            Refusal::Stale => "stale nonce",
            Refusal::Wrong => "wrong credentials",
        })
    }
}

impl std::error::Error for Refusal {}

/// Credentials as a client sent them, for our realm.
#[derive(Clone, Debug)]
pub struct Presented<'a> {
    /// User name, unquoted; `H(username:realm)` where `user_hashed`.
    pub username: Cow<'a, [u8]>,
    /// Whether `userhash=true`.
    pub user_hashed: bool,
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Quality of protection.
    pub qop: Qop,
    /// `uri`, unquoted. It is hashed here; whether it names the request's target is asked by [`Presented::is_for`].
    pub uri: Cow<'a, [u8]>,
    nonce: Cow<'a, [u8]>,
    cnonce: Cow<'a, [u8]>,
    nc: &'a [u8],
    response: Cow<'a, [u8]>,
}

impl Presented<'_> {
    /// Whether the credentials were made for a request to `target`, its Request-URI (RFC 7616 section 3.4.6): else they were
    /// taken from another request. Parameters and the scheme's own port are left aside, which phones and proxies add and
    /// leave out.
    pub fn is_for(&self, target: &[u8]) -> bool {
        if *self.uri == *target {
            return true;
        }
        match (Uri::parse(&self.uri), Uri::parse(target)) {
            (Some(theirs), Some(target)) => theirs.same_target(&target),
            _ => false,
        }
    }
}

/// A nonce: when it was made, a random part, and a proof that we made it; 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nonce {
    made: Time,
    salt: u64,
}

impl Nonce {
    fn message(self) -> [u8; 16] {
        let mut message = [0; 16];
        message[..8].copy_from_slice(&self.made.as_nanos().to_be_bytes());
        message[8..].copy_from_slice(&self.salt.to_be_bytes());
        message
    }

    fn write(self, key: &[u8; 32], out: &mut Vec<u8>) {
        let message = self.message();
        for byte in message.iter().chain(&keyed(key, &message)) {
            for nibble in [byte >> 4, byte & 15] {
                out.push(b"0123456789abcdef"[usize::from(nibble)]);
            }
        }
    }

    /// The nonce, where it is one of ours.
    fn read(key: &[u8; 32], text: &[u8]) -> Option<Nonce> {
        let text: &[u8; 64] = text.try_into().ok()?;
        let mut bytes = [0u8; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = (nibble(pair[0])? << 4) | nibble(pair[1])?;
        }
        let (message, proof) = bytes.split_at(16);
        let message: [u8; 16] = message.try_into().ok()?;
        let difference = keyed(key, &message)
            .iter()
            .zip(proof)
            .fold(0u8, |sum, (a, b)| sum | (a ^ b));
        let (made, salt) = message.split_at(8);
        (std::hint::black_box(difference) == 0).then_some(Nonce {
            made: Time(u64::from_be_bytes(made.try_into().ok()?)),
            salt: u64::from_be_bytes(salt.try_into().ok()?),
        })
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Counts seen with a nonce: the highest, and which of the 63 below it.
#[derive(Clone, Copy, Debug)]
struct Used {
    highest: u32,
    below: u64,
}

impl Used {
    /// Whether `count` is new; notes it.
    fn take(&mut self, count: u32) -> bool {
        if count > self.highest {
            let step = count - self.highest;
            self.below = self.below.checked_shl(step).unwrap_or(0);
            if step <= 64 {
                self.below |= 1 << (step - 1);
            }
            self.highest = count;
            return true;
        }
        let age = self.highest - count;
        if age == 0 || age > 64 {
            return false;
        }
        let bit = 1 << (age - 1);
        let new = self.below & bit == 0;
        self.below |= bit;
        new
    }
}

/// Challenges and verifies for one realm. Nonces carry their own proof, so that a challenge costs no state; what is
/// remembered is which nonce counts were used, and only of nonces that came back with the right response.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    key: NonceKey,
    used: BoundedMap<(u64, u64), Used>,
    /// Remembered nonces in the order of their first use.
    order: VecDeque<Nonce>,
    /// Nonces not remembered and made at this time or before may have been forgotten: they are stale.
    forgotten: Option<Time>,
}

/// The secret that nonces are proved with. Servers that share it take each other's nonces.
#[derive(Clone)]
pub struct NonceKey(pub [u8; 32]);

impl fmt::Debug for NonceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NonceKey(secret)")
    }
}

impl Server {
    /// A server. `entropy` gives the keys of its table.
    pub fn new(config: ServerConfig, key: NonceKey, entropy: &mut Entropy) -> Server {
        let limit = config.nonces.max(1);
        Server {
            config,
            key,
            used: BoundedMap::new(limit, HashKey::new(entropy)),
            order: VecDeque::new(),
            forgotten: None,
        }
    }

    /// The realm.
    pub fn realm(&self) -> &[u8] {
        &self.config.realm
    }

    /// How many nonces are remembered.
    pub fn remembered(&self) -> usize {
        self.used.len()
    }

    /// Writes one challenge for each algorithm into a response: `id` is [`HeaderId::WwwAuthenticate`] (401) or
    /// [`HeaderId::ProxyAuthenticate`] (407).
    pub fn write_challenges(
        &self,
        id: HeaderId,
        stale: bool,
        now: Time,
        entropy: &mut Entropy,
        writer: &mut Writer<'_>,
    ) {
        let mut value = Vec::with_capacity(200 + self.config.realm.len());
        for algorithm in &self.config.algorithms {
            value.clear();
            self.write_challenge(*algorithm, stale, now, entropy, &mut value);
            writer.header(id, &value);
        }
    }

    /// Appends the value of one challenge.
    pub fn write_challenge(
        &self,
        algorithm: Algorithm,
        stale: bool,
        now: Time,
        entropy: &mut Entropy,
        out: &mut Vec<u8>,
    ) {
        let nonce = Nonce {
            made: now,
            salt: entropy.u64(),
        };
        out.extend_from_slice(b"Digest realm=");
        quote(&self.config.realm, out);
        out.extend_from_slice(b", nonce=\"");
        nonce.write(&self.key.0, out);
        out.extend_from_slice(match self.config.auth_int {
            true => b"\", qop=\"auth,auth-int\", algorithm=",
            false => b"\", qop=\"auth\", algorithm=",
        });
        out.extend_from_slice(algorithm.token().as_bytes());
        if stale {
            out.extend_from_slice(b", stale=true");
        }
    }

    /// The credentials for our realm in `request`: `id` is [`HeaderId::Authorization`] or
    /// [`HeaderId::ProxyAuthorization`]. The caller then finds the user's secret.
    pub fn presented<'a>(
        &self,
        request: &Message<'a>,
        id: HeaderId,
    ) -> Result<Presented<'a>, Refusal> {
        let mut refusal = Refusal::Absent;
        for credentials in request.credentials(id).flatten() {
            if !credentials.is_digest() {
                continue;
            }
            let realm = credentials.params.get(b"realm").map(unquote);
            if realm.as_deref() != Some(&self.config.realm) {
                continue;
            }
            match self.read(&credentials) {
                Ok(presented) => return Ok(presented),
                Err(found) => refusal = found,
            }
        }
        Err(refusal)
    }

    fn read<'a>(&self, credentials: &Credentials<'a>) -> Result<Presented<'a>, Refusal> {
        let fields = Fields::collect(credentials)?;
        let algorithm = match fields.algorithm {
            Some(token) => Algorithm::from_token(token).ok_or(Refusal::Unsupported)?,
            None => Algorithm::MD5,
        };
        let qop = match fields.qop.map(unquote).as_deref() {
            None => Qop::None,
            Some(token) if token.eq_ignore_ascii_case(b"auth") => Qop::Auth,
            Some(token) if token.eq_ignore_ascii_case(b"auth-int") => Qop::AuthInt,
            Some(_) => return Err(Refusal::Unsupported),
        };
        let offered = self.config.algorithms.contains(&algorithm)
            && match qop {
                Qop::None => self.config.without_qop,
                Qop::Auth => true,
                Qop::AuthInt => self.config.auth_int,
            };
        if !offered {
            return Err(Refusal::Unsupported);
        }
        let counted = qop == Qop::None || (fields.nc.is_some() && fields.cnonce.is_some());
        if !counted || (algorithm.session && fields.cnonce.is_none()) {
            return Err(Refusal::Malformed);
        }
        let text = |value: Option<&'a [u8]>| value.map(unquote).ok_or(Refusal::Malformed);
        Ok(Presented {
            username: text(fields.username)?,
            user_hashed: fields.user_hashed,
            algorithm,
            qop,
            uri: text(fields.uri)?,
            nonce: text(fields.nonce)?,
            cnonce: fields.cnonce.map(unquote).unwrap_or_default(),
            nc: fields.nc.unwrap_or_default(),
            response: text(fields.response)?,
        })
    }

    /// Verifies: the response first, then that the nonce is ours, young, and its count new. `secret` is `None` for an
    /// unknown user, which takes as long as a wrong password. `username` is the one that the secret belongs to.
    ///
    /// A `Stale` refusal says that the client knew the password.
    pub fn verify(
        &mut self,
        presented: &Presented<'_>,
        username: &[u8],
        secret: Option<&Secret>,
        method: &[u8],
        body: &[u8],
        now: Time,
    ) -> Result<(), Refusal> {
        let hash = presented.algorithm.hash;
        let stored = secret.and_then(|secret| secret.ha1(hash, username, &self.config.realm));
        let expected = Proof {
            algorithm: presented.algorithm,
            ha1: stored.unwrap_or_else(|| ha1(hash, username, &self.config.realm, b"no such user")),
            nonce: &presented.nonce,
            cnonce: &presented.cnonce,
            nc: presented.nc,
            qop: presented.qop,
            method,
            uri: &presented.uri,
            body,
        }
        .response();
        if !expected.matches(&presented.response) || stored.is_none() {
            return Err(Refusal::Wrong);
        }
        let count = match presented.qop {
            Qop::None => 1,
            _ => nonce_count(presented.nc).ok_or(Refusal::Malformed)?,
        };
        let nonce = Nonce::read(&self.key.0, &presented.nonce).ok_or(Refusal::Stale)?;
        match self.take(nonce, count, now) {
            true => Ok(()),
            false => Err(Refusal::Stale),
        }
    }

    /// Whether this nonce may be used with this count; notes it.
    fn take(&mut self, nonce: Nonce, count: u32, now: Time) -> bool {
        // A nonce from the future is one of a peer that shares the key and started earlier: it has no age here.
        let age = now.since(nonce.made);
        if age > self.config.nonce_lifetime || count == 0 {
            return false;
        }
        let id = (nonce.made.as_nanos(), nonce.salt);
        if let Some(used) = self.used.get_mut(&id) {
            return used.take(count);
        }
        if self
            .forgotten
            .is_some_and(|forgotten| nonce.made <= forgotten)
        {
            return false;
        }
        self.make_room(now);
        let mut used = Used {
            highest: 0,
            below: 0,
        };
        used.take(count);
        let noted = self.used.insert(id, used).is_ok();
        if noted {
            self.order.push_back(nonce);
        }
        noted
    }

    /// Forgets expired nonces, and the oldest where the table is full.
    fn make_room(&mut self, now: Time) {
        while let Some(oldest) = self.order.front().copied() {
            let expired = now.since(oldest.made) > self.config.nonce_lifetime;
            if !expired && !self.used.is_full() {
                return;
            }
            if !expired {
                self.forgotten = self.forgotten.max(Some(oldest.made));
            }
            self.order.pop_front();
            self.used.remove(&(oldest.made.as_nanos(), oldest.salt));
        }
    }

    /// Appends the value of an Authentication-Info header that proves to the client that we know its password (RFC 7616
    /// section 3.5).
    pub fn write_authentication_info(
        &self,
        presented: &Presented<'_>,
        username: &[u8],
        secret: &Secret,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let hash: Hash = presented.algorithm.hash;
        let ha1 = secret
            .ha1(hash, username, &self.config.realm)
            .ok_or(Refusal::Unsupported)?;
        let proof: Hex = Proof {
            algorithm: presented.algorithm,
            ha1,
            nonce: &presented.nonce,
            cnonce: &presented.cnonce,
            nc: presented.nc,
            qop: presented.qop,
            method: b"",
            uri: &presented.uri,
            body,
        }
        .response();
        out.extend_from_slice(b"rspauth=\"");
        out.extend_from_slice(proof.as_bytes());
        out.push(b'"');
        if presented.qop != Qop::None {
            out.extend_from_slice(b", qop=");
            out.extend_from_slice(presented.qop.token().as_bytes());
            out.extend_from_slice(b", cnonce=");
            quote(&presented.cnonce, out);
            out.extend_from_slice(b", nc=");
            out.extend_from_slice(presented.nc);
        }
        Ok(())
    }
}

/// Eight hexadecimal digits.
fn nonce_count(digits: &[u8]) -> Option<u32> {
    if digits.len() != 8 {
        return None;
    }
    digits.iter().try_fold(0u32, |count, digit| {
        Some(count << 4 | (*digit as char).to_digit(16)?)
    })
}

/// Parameters of credentials, read in one pass. One that comes twice makes them malformed.
#[derive(Default)]
struct Fields<'a> {
    username: Option<&'a [u8]>,
    nonce: Option<&'a [u8]>,
    uri: Option<&'a [u8]>,
    response: Option<&'a [u8]>,
    algorithm: Option<&'a [u8]>,
    qop: Option<&'a [u8]>,
    nc: Option<&'a [u8]>,
    cnonce: Option<&'a [u8]>,
    user_hashed: bool,
}

impl<'a> Fields<'a> {
    fn collect(credentials: &Credentials<'a>) -> Result<Fields<'a>, Refusal> {
        let mut fields = Fields::default();
        for param in credentials.params.iter() {
            let value = param.value.ok_or(Refusal::Malformed)?;
            let is = |name: &str| param.name.eq_ignore_ascii_case(name.as_bytes());
            let field = match param.name.len() {
                8 if is("username") => &mut fields.username,
                8 if is("response") => &mut fields.response,
                8 if is("userhash") => {
                    fields.user_hashed = unquote(value).eq_ignore_ascii_case(b"true");
                    continue;
                }
                5 if is("nonce") => &mut fields.nonce,
                3 if is("uri") => &mut fields.uri,
                9 if is("algorithm") => &mut fields.algorithm,
                3 if is("qop") => &mut fields.qop,
                2 if is("nc") => &mut fields.nc,
                6 if is("cnonce") => &mut fields.cnonce,
                _ => continue,
            };
            if field.replace(value).is_some() {
                return Err(Refusal::Malformed);
            }
        }
        Ok(fields)
    }
}
