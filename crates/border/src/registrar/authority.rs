//! Who asks: digest proof of configured users.

use crate::config::{Config, DigestAlgorithm, Secret};
use engine::{Entropy, Time};
use protect::digest::{Algorithm, Hash, Hex, NonceKey, Refusal, Server, ServerConfig};
use std::borrow::Cow;
use wire::sip::{HeaderId, Message, Method};

/// Challenges and checks for the realm of a configuration.
#[derive(Debug)]
pub struct Authority {
    server: Server,
    algorithms: Vec<Algorithm>,
    key: NonceKey,
    entropy: Entropy,
}

/// Whether a request proves who it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It comes from this user.
    Proven(String),
    /// Answer with this status and these headers, so that it is sent again with proof.
    Challenge {
        /// 401 for REGISTER, else 407.
        status: u16,
        /// One challenge for each algorithm.
        headers: Vec<(HeaderId, Vec<u8>)>,
    },
    /// It proves to be someone else than it says, or cannot be read.
    Refused {
        /// Status.
        status: u16,
        /// Why, for the log.
        why: &'static str,
    },
}

/// Nonces whose use is remembered at a time.
const NONCES: usize = 100_000;

impl Authority {
    /// For the realm of `config`.
    pub fn new(config: &Config, mut entropy: Entropy) -> Authority {
        let mut key = [0; 32];
        entropy.fill(&mut key);
        let key = NonceKey(key);
        let algorithms = algorithms(config);
        let server = Server::new(
            server_config(config, &algorithms),
            key.clone(),
            &mut entropy,
        );
        Authority {
            server,
            algorithms,
            key,
            entropy,
        }
    }

    /// Takes over a new configuration; nonces that are out stay good where the realm's settings are the same.
    pub fn reload(&mut self, config: &Config, before: &Config) {
        if config.realm != before.realm {
            self.algorithms = algorithms(config);
            let settings = server_config(config, &self.algorithms);
            self.server = Server::new(settings, self.key.clone(), &mut self.entropy);
        }
    }

    /// Judges a request. For REGISTER the address of record (To) must be the user's own, for others From.
    pub fn check(&mut self, config: &Config, request: &Message<'_>, now: Time) -> Proof {
        let registers = request.method() == Method::Register;
        let (status, challenge, credentials) = match registers {
            true => (401, HeaderId::WwwAuthenticate, HeaderId::Authorization),
            false => (
                407,
                HeaderId::ProxyAuthenticate,
                HeaderId::ProxyAuthorization,
            ),
        };
        let presented = match self.server.presented(request, credentials) {
            Ok(presented) => presented,
            Err(Refusal::Malformed) => {
                return Proof::Refused {
                    status: 400,
                    why: "credentials cannot be read",
                };
            }
            Err(_) => return self.challenge(status, challenge, false, now),
        };
        if !presented.is_for(request.request_uri()) {
            return Proof::Refused {
                status: 400,
                why: "credentials are for another target",
            };
        }
        let name = String::from_utf8_lossy(&presented.username).into_owned();
        let user = match presented.user_hashed {
            // It is not offered.
            true => None,
            false => config.users.get(&name),
        };
        let secret = user.map(|user| secret(&user.secret));
        let verdict = self.server.verify(
            &presented,
            &presented.username,
            secret.as_ref(),
            request.method().as_bytes(),
            request.body(),
            now,
        );
        match verdict {
            Ok(()) => {}
            Err(Refusal::Stale) => return self.challenge(status, challenge, true, now),
            Err(_) => return self.challenge(status, challenge, false, now),
        }
        let address = match registers {
            true => request.to(),
            false => request.from(),
        };
        let claims = address.ok().and_then(|address| address.parse_uri()?.user);
        match claims.map(wire::sip::percent_decode) {
            Some(Cow::Borrowed(user)) if user == name.as_bytes() => Proof::Proven(name),
            Some(Cow::Owned(user)) if user == name.as_bytes() => Proof::Proven(name),
            _ => Proof::Refused {
                status: 403,
                why: "proven user is not the one named",
            },
        }
    }

    fn challenge(&mut self, status: u16, id: HeaderId, stale: bool, now: Time) -> Proof {
        let mut headers = Vec::with_capacity(self.algorithms.len());
        for &algorithm in &self.algorithms {
            let mut value = Vec::with_capacity(200);
            self.server
                .write_challenge(algorithm, stale, now, &mut self.entropy, &mut value);
            headers.push((id, value));
        }
        Proof::Challenge { status, headers }
    }
}

fn algorithms(config: &Config) -> Vec<Algorithm> {
    let each = config.realm.algorithms.iter();
    each.map(|algorithm| match algorithm {
        DigestAlgorithm::Md5 => Algorithm::MD5,
        DigestAlgorithm::Sha256 => Algorithm::SHA256,
        DigestAlgorithm::Sha512T256 => Algorithm::SHA512_256,
    })
    .collect()
}

fn server_config(config: &Config, algorithms: &[Algorithm]) -> ServerConfig {
    ServerConfig {
        realm: config.realm.name.clone().into_bytes(),
        algorithms: algorithms.to_vec(),
        auth_int: true,
        without_qop: false,
        nonce_lifetime: config.realm.nonce_lifetime,
        nonces: NONCES,
    }
}

fn secret(secret: &Secret) -> protect::digest::Secret {
    match secret {
        Secret::Password(password) => {
            protect::digest::Secret::Password(password.clone().into_bytes())
        }
        Secret::Ha1(ha1) => protect::digest::Secret::Ha1(
            Hex::from_digits(ha1.as_bytes())
                .map(|hex| (Hash::Md5, hex))
                .into_iter()
                .collect(),
        ),
    }
}
