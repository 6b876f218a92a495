//! Server side of Digest: challenges, verification, replay protection.

use super::hash::{Algorithm, Hash, Hex, Qop, ResponseInput, Secret, ha1, keyed, quote};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use engine::{BoundedMap, Entropy, HashKey, Time};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use wire::sip::{Credentials, HeaderId, Message, Uri, Writer, unquote};

/// Configuration of the server side.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The realm.
    pub realm: Vec<u8>,
    /// One challenge is sent for each, the preferred first (RFC 8760 section 2.3).
    pub algorithms: Vec<Algorithm>,
    /// Whether auth-int is offered in addition to auth.
    pub auth_int: bool,
    /// Whether responses without qop (RFC 2069) are accepted; each nonce is then valid once.
    pub without_qop: bool,
    /// Lifetime of a nonce.
    pub nonce_lifetime: Duration,
    /// Largest number of nonces whose use is recorded.
    pub nonces: usize,
}

/// Reason for which credentials are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No credentials for our realm: challenge.
    Absent,
    /// Parameters are missing or malformed: 400, or challenge.
    Malformed,
    /// An algorithm or qop that was not offered: challenge.
    Unsupported,
    /// Correct, but the nonce is old, unknown or already used: challenge with `stale=true`.
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

/// Credentials of a request for our realm.
#[derive(Clone, Debug)]
pub struct PresentedCredentials<'a> {
    /// User name, unquoted; `H(username:realm)` where `user_hashed`.
    pub username: Cow<'a, [u8]>,
    /// Value of `userhash`.
    pub user_hashed: bool,
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Quality of protection.
    pub qop: Qop,
    /// `uri`, unquoted. It is part of the hash; [`PresentedCredentials::is_for`] compares it with the request's target.
    pub uri: Cow<'a, [u8]>,
    nonce: Cow<'a, [u8]>,
    cnonce: Cow<'a, [u8]>,
    nc: &'a [u8],
    response: Cow<'a, [u8]>,
}

impl PresentedCredentials<'_> {
    /// Whether the credentials belong to a request to `target`, its Request-URI (RFC 7616 section 3.4.6); otherwise
    /// they were copied from another request. URI parameters and the default port are ignored, because phones and
    /// proxies add and omit them.
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

/// Bytes of the MAC in a nonce. Short, because several challenges must fit into a response of limited size; a forged
/// nonce is of no use without the password.
const NONCE_MAC: usize = 8;

/// A nonce: its time of creation, a random part and a MAC over both; 24 bytes, as 32 characters of base64url.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nonce {
    created_at: Time,
    salt: u64,
}

impl Nonce {
    fn message(self) -> [u8; 16] {
        let mut message = [0; 16];
        message[..8].copy_from_slice(&self.created_at.as_nanos().to_be_bytes());
        message[8..].copy_from_slice(&self.salt.to_be_bytes());
        message
    }

    fn write(self, key: &[u8; 32], out: &mut Vec<u8>) {
        let message = self.message();
        let mac = keyed(key, &message);
        let bytes: Vec<u8> = message
            .into_iter()
            .chain(mac.into_iter().take(NONCE_MAC))
            .collect();
        out.extend_from_slice(URL_SAFE_NO_PAD.encode(bytes).as_bytes());
    }

    /// Parses a nonce; `None` if its MAC is wrong.
    fn parse(key: &[u8; 32], text: &[u8]) -> Option<Nonce> {
        let text: &[u8; 32] = text.try_into().ok()?;
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (message, mac) = bytes.split_at_checked(16)?;
        let message: [u8; 16] = message.try_into().ok()?;
        let mac: &[u8; NONCE_MAC] = mac.try_into().ok()?;
        let difference = keyed(key, &message)
            .iter()
            .zip(mac)
            .fold(0u8, |sum, (a, b)| sum | (a ^ b));
        let (created_at, salt) = message.split_at(8);
        (std::hint::black_box(difference) == 0).then_some(Nonce {
            created_at: Time(u64::from_be_bytes(created_at.try_into().ok()?)),
            salt: u64::from_be_bytes(salt.try_into().ok()?),
        })
    }
}

/// Nonce counts that were used: the highest, and a bitmap of the 64 below it.
#[derive(Clone, Copy, Debug)]
struct UsedCounts {
    highest: u32,
    below: u64,
}

impl UsedCounts {
    /// Whether `count` is new; records it.
    fn record(&mut self, count: u32) -> bool {
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

/// Challenges and verifies for one realm. Nonces are authenticated by a MAC, so a challenge needs no state. Only the
/// counts of nonces that were used with a correct response are recorded.
#[derive(Debug)]
pub struct DigestServer {
    config: ServerConfig,
    key: NonceKey,
    used: BoundedMap<(u64, u64), UsedCounts>,
    /// Recorded nonces in the order of their first use.
    by_first_use: VecDeque<Nonce>,
    /// Nonces that are not recorded and were created at this time or before may have been evicted: they are stale.
    evicted_until: Option<Time>,
}

/// The key that authenticates nonces. Servers with the same key accept each other's nonces.
#[derive(Clone)]
pub struct NonceKey(pub [u8; 32]);

impl fmt::Debug for NonceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NonceKey(secret)")
    }
}

impl DigestServer {
    /// A server. `entropy` seeds the hash of its table.
    pub fn new(config: ServerConfig, key: NonceKey, entropy: &mut Entropy) -> DigestServer {
        let limit = config.nonces.max(1);
        DigestServer {
            config,
            key,
            used: BoundedMap::new(limit, HashKey::new(entropy)),
            by_first_use: VecDeque::new(),
            evicted_until: None,
        }
    }

    /// The realm.
    pub fn realm(&self) -> &[u8] {
        &self.config.realm
    }

    /// Number of recorded nonces.
    pub fn recorded_nonces(&self) -> usize {
        self.used.len()
    }

    /// Writes one challenge per algorithm into a response: `id` is [`HeaderId::WwwAuthenticate`] (401) or
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
            created_at: now,
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
    /// [`HeaderId::ProxyAuthorization`]. The caller then looks up the user's secret.
    pub fn presented<'a>(
        &self,
        request: &Message<'a>,
        id: HeaderId,
    ) -> Result<PresentedCredentials<'a>, Refusal> {
        let mut refusal = Refusal::Absent;
        for credentials in request.credentials(id).flatten() {
            if !credentials.is_digest() {
                continue;
            }
            let realm = credentials.params.get(b"realm").map(unquote);
            if realm.as_deref() != Some(&self.config.realm) {
                continue;
            }
            match self.parse(&credentials) {
                Ok(presented) => return Ok(presented),
                Err(found) => refusal = found,
            }
        }
        Err(refusal)
    }

    fn parse<'a>(
        &self,
        credentials: &Credentials<'a>,
    ) -> Result<PresentedCredentials<'a>, Refusal> {
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
        Ok(PresentedCredentials {
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

    /// Verifies the response first, then the nonce: its MAC, its age and its count. `secret` is `None` for an unknown
    /// user, which takes as long as a wrong password. `username` is the name that the secret belongs to.
    ///
    /// A `Stale` error means that the password was correct.
    pub fn verify(
        &mut self,
        presented: &PresentedCredentials<'_>,
        username: &[u8],
        secret: Option<&Secret>,
        method: &[u8],
        body: &[u8],
        now: Time,
    ) -> Result<(), Refusal> {
        let hash = presented.algorithm.hash;
        let stored = secret.and_then(|secret| secret.ha1(hash, username, &self.config.realm));
        let expected = ResponseInput {
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
        let nonce = Nonce::parse(&self.key.0, &presented.nonce).ok_or(Refusal::Stale)?;
        match self.record(nonce, count, now) {
            true => Ok(()),
            false => Err(Refusal::Stale),
        }
    }

    /// Whether this nonce may be used with this count; records it.
    fn record(&mut self, nonce: Nonce, count: u32, now: Time) -> bool {
        // A nonce from the future was created by a server that shares the key and started earlier: it counts as new.
        let age = now.since(nonce.created_at);
        if age > self.config.nonce_lifetime || count == 0 {
            return false;
        }
        let id = (nonce.created_at.as_nanos(), nonce.salt);
        if let Some(used) = self.used.get_mut(&id) {
            return used.record(count);
        }
        if self
            .evicted_until
            .is_some_and(|evicted_until| nonce.created_at <= evicted_until)
        {
            return false;
        }
        self.evict(now);
        let mut used = UsedCounts {
            highest: 0,
            below: 0,
        };
        used.record(count);
        let noted = self.used.insert(id, used).is_ok();
        if noted {
            self.by_first_use.push_back(nonce);
        }
        noted
    }

    /// Removes expired nonces, and the oldest ones if the table is full.
    fn evict(&mut self, now: Time) {
        while let Some(oldest) = self.by_first_use.front().copied() {
            let expired = now.since(oldest.created_at) > self.config.nonce_lifetime;
            if !expired && !self.used.is_full() {
                return;
            }
            if !expired {
                self.evicted_until = self.evicted_until.max(Some(oldest.created_at));
            }
            self.by_first_use.pop_front();
            self.used
                .remove(&(oldest.created_at.as_nanos(), oldest.salt));
        }
    }

    /// Appends the value of an Authentication-Info header, by which the server proves its knowledge of the password
    /// (RFC 7616 section 3.5).
    pub fn write_authentication_info(
        &self,
        presented: &PresentedCredentials<'_>,
        username: &[u8],
        secret: &Secret,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let hash: Hash = presented.algorithm.hash;
        let ha1 = secret
            .ha1(hash, username, &self.config.realm)
            .ok_or(Refusal::Unsupported)?;
        let response: Hex = ResponseInput {
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
        out.extend_from_slice(response.as_bytes());
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

/// Parameters of credentials, parsed in one pass. Duplicates are rejected as malformed.
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
