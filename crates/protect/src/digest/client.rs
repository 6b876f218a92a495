//! Client side of Digest: parsing challenges, choosing one and computing the response.

use super::hash::{Algorithm, Hex, Qop, ResponseInput, Secret, quote};
use engine::Entropy;
use serde::{Deserialize, Serialize};
use std::fmt;
use wire::sip::{Credentials, HeaderId, Message, unquote};

/// Largest number of challenges examined in one response.
const MAX_CHALLENGES: usize = 16;

/// A supported challenge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// The realm.
    pub realm: Vec<u8>,
    /// The nonce.
    pub nonce: Vec<u8>,
    /// Returned unchanged, if present.
    pub opaque: Option<Vec<u8>>,
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Whether the challenge contained the algorithm; the response then contains it, too.
    algorithm_written: bool,
    /// The quality of protection that the response uses.
    pub qop: Qop,
    /// `stale=true`: the credentials were correct, the nonce was not.
    pub stale: bool,
}

impl Challenge {
    /// Parses one challenge; `None` if it is not Digest, lacks realm or nonce, or requires an algorithm or qop that
    /// is not supported.
    pub fn read(credentials: &Credentials<'_>) -> Option<Challenge> {
        if !credentials.is_digest() {
            return None;
        }
        let get = |name: &[u8]| credentials.params.get(name).map(unquote);
        let algorithm = match credentials.params.get(b"algorithm") {
            Some(token) => Algorithm::from_token(token)?,
            None => Algorithm::MD5,
        };
        let qop = match get(b"qop") {
            None => Qop::None,
            Some(offered) => choose_qop(&offered)?,
        };
        Some(Challenge {
            realm: get(b"realm")?.into_owned(),
            nonce: get(b"nonce")?.into_owned(),
            opaque: get(b"opaque").map(|opaque| opaque.into_owned()),
            algorithm,
            algorithm_written: credentials.params.get(b"algorithm").is_some(),
            qop,
            stale: get(b"stale").is_some_and(|stale| stale.eq_ignore_ascii_case(b"true")),
        })
    }

    /// Selects from the challenges of a 401 (`id` [`HeaderId::WwwAuthenticate`]) or 407
    /// ([`HeaderId::ProxyAuthenticate`]) those that `secret` can answer: one per realm, with the strongest hash (the
    /// topmost of equals, RFC 8760 section 2.4), in the order of the realms.
    pub fn choose(response: &Message<'_>, id: HeaderId, secret: &Secret) -> Vec<Challenge> {
        let mut chosen: Vec<Challenge> = Vec::new();
        for credentials in response.credentials(id).take(MAX_CHALLENGES).flatten() {
            let Some(challenge) = Challenge::read(&credentials) else {
                continue;
            };
            if !secret.serves(challenge.algorithm.hash) {
                continue;
            }
            match chosen
                .iter_mut()
                .find(|other| other.realm == challenge.realm)
            {
                Some(other) if other.algorithm.hash < challenge.algorithm.hash => {
                    *other = challenge
                }
                Some(_) => {}
                None => chosen.push(challenge),
            }
        }
        chosen
    }
}

/// `auth` if offered, else `auth-int`; an empty list counts as absent.
fn choose_qop(offered: &[u8]) -> Option<Qop> {
    let offers = |token: &str| {
        offered
            .split(|byte| *byte == b',')
            .any(|word| word.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    };
    match () {
        () if offers("auth") => Some(Qop::Auth),
        () if offers("auth-int") => Some(Qop::AuthInt),
        () if offered.trim_ascii().is_empty() => Some(Qop::None),
        () => None,
    }
}

/// The header that carries the response to a challenge in `id`.
pub fn answer_header(id: HeaderId) -> HeaderId {
    match id {
        HeaderId::ProxyAuthenticate => HeaderId::ProxyAuthorization,
        _ => HeaderId::Authorization,
    }
}

/// Credentials for one challenge, used for all requests during the lifetime of its nonce; counts them.
#[derive(Clone, Serialize, Deserialize)]
pub struct ClientSession {
    challenge: Challenge,
    username: Vec<u8>,
    ha1: Hex,
    count: u32,
    cnonce: [u8; 32],
}

impl fmt::Debug for ClientSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSession")
            .field("realm", &self.challenge.realm.escape_ascii().to_string())
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl ClientSession {
    /// Prepares responses to `challenge`; `None` if `secret` holds nothing for its hash. The client's nonce is
    /// generated here and kept, as the `-sess` algorithms require.
    pub fn new(
        challenge: Challenge,
        username: &[u8],
        secret: &Secret,
        entropy: &mut Entropy,
    ) -> Option<ClientSession> {
        let mut bytes = [0u8; 16];
        entropy.fill(&mut bytes);
        let mut cnonce = [0u8; 32];
        for (pair, byte) in cnonce.chunks_exact_mut(2).zip(bytes) {
            let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble & 15)];
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte)]);
        }
        Some(ClientSession {
            ha1: secret.ha1(challenge.algorithm.hash, username, &challenge.realm)?,
            challenge,
            username: username.to_vec(),
            count: 0,
            cnonce,
        })
    }

    /// The challenge that is answered.
    pub fn challenge(&self) -> &Challenge {
        &self.challenge
    }

    /// Whether a new challenge to a request with our credentials should be answered: it has another nonce, and is
    /// `stale` or concerns a nonce that was used before. Servers with a nonce for each request often omit `stale` (RFC
    /// 7616 section 3.3). Any other challenge means that the credentials are wrong.
    pub fn may_retry(&self, new: &Challenge) -> bool {
        let is_reused = self.count > 1;
        new.nonce != self.challenge.nonce && (new.stale || is_reused)
    }

    /// Appends the value of an Authorization or Proxy-Authorization header for one request.
    pub fn write_credentials(&mut self, method: &[u8], uri: &[u8], body: &[u8], out: &mut Vec<u8>) {
        self.count = self.count.saturating_add(1);
        let mut nc = [0u8; 8];
        for (index, digit) in nc.iter_mut().enumerate() {
            let nibble = self.count >> (28 - 4 * index as u32) & 15;
            *digit = b"0123456789abcdef"[nibble as usize];
        }
        let challenge = &self.challenge;
        let response = ResponseInput {
            algorithm: challenge.algorithm,
            ha1: self.ha1,
            nonce: &challenge.nonce,
            cnonce: &self.cnonce,
            nc: &nc,
            qop: challenge.qop,
            method,
            uri,
            body,
        }
        .response();
        out.extend_from_slice(b"Digest username=");
        quote(&self.username, out);
        for (name, value) in [
            (&b", realm="[..], challenge.realm.as_slice()),
            (b", nonce=", &challenge.nonce),
            (b", uri=", uri),
            (b", response=", response.as_bytes()),
        ] {
            out.extend_from_slice(name);
            quote(value, out);
        }
        if challenge.algorithm_written {
            out.extend_from_slice(b", algorithm=");
            out.extend_from_slice(challenge.algorithm.token().as_bytes());
        }
        if challenge.qop != Qop::None || challenge.algorithm.session {
            out.extend_from_slice(b", cnonce=");
            quote(&self.cnonce, out);
        }
        if challenge.qop != Qop::None {
            out.extend_from_slice(b", qop=");
            out.extend_from_slice(challenge.qop.token().as_bytes());
            out.extend_from_slice(b", nc=");
            out.extend_from_slice(&nc);
        }
        if let Some(opaque) = &challenge.opaque {
            out.extend_from_slice(b", opaque=");
            quote(opaque, out);
        }
    }
}
