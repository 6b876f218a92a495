//! TLS of the load generator's ends: their certificates, and the authorities that they trust.

use crate::error::LabError;
use net::tls::{
    Anchors, ClientAuth, ClientSettings, CredentialError, Identity, MinimumVersion, Security,
    ServerSettings,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Certificates and trust of the generator's callers and callees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSettings {
    /// Verify the peer's certificate: issued by a trusted authority, within its validity, and for the right name.
    /// Otherwise any certificate is accepted.
    pub verify: bool,
    /// Trusted authorities (PEM) instead of the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Own certificate with its chain (PEM): required for listeners, sent to servers that request it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Name that the peer's certificate must contain; empty: the host of the call's target.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl Default for TlsSettings {
    fn default() -> Self {
        TlsSettings {
            verify: true,
            ca: None,
            certificate: None,
            key: None,
            name: String::new(),
        }
    }
}

/// A file of an option or of an experiment is invalid.
fn invalid(error: &CredentialError) -> LabError {
    LabError::bad_input(format!("TLS: {error}\n  remedy: {}", error.remedy))
}

fn unusable(error: &CredentialError) -> LabError {
    LabError::cannot_run(error.to_string(), error.remedy.clone())
}

impl TlsSettings {
    /// Whether all settings have their defaults; takes `&self` for serde.
    pub(crate) fn is_default(&self) -> bool {
        *self == TlsSettings::default()
    }

    /// TLS settings for a driver: for outgoing connections, and for a listener at each of `listening` (`true`: with
    /// WebSocket).
    ///
    /// # Errors
    /// If a file is missing or invalid, or a listener would have no certificate.
    pub fn security(&self, listening: &[(SocketAddr, bool)]) -> Result<Security, LabError> {
        let identity = match (&self.certificate, &self.key) {
            (Some(chain), Some(key)) => {
                Some(Identity::read(chain, key).map_err(|error| invalid(&error))?)
            }
            (None, None) => None,
            _ => {
                return Err(LabError::bad_input(
                    "TLS: a certificate needs its key, and the reverse",
                ));
            }
        };
        let mut security = Security::default();
        for (address, websocket) in listening {
            let identity = identity.clone().ok_or_else(|| {
                LabError::bad_input("TLS: a listener needs a certificate and its key")
            })?;
            let settings = ServerSettings {
                identities: vec![identity],
                client_auth: ClientAuth::None,
                oldest: MinimumVersion::Tls12,
            };
            security
                .server(*address, *websocket, settings, None)
                .map_err(LabError::bad_input)?;
        }
        let anchors = match (self.verify, &self.ca) {
            (false, _) => None,
            (true, Some(file)) => Some(Anchors::read(file).map_err(|error| invalid(&error))?),
            // A server that verifies no clients does not need the system's authorities.
            (true, None) if !listening.is_empty() => return Ok(security),
            (true, None) => Some(Anchors::system().map_err(|error| unusable(&error))?),
        };
        let settings = ClientSettings {
            anchors,
            identity,
            pins: Vec::new(),
            oldest: MinimumVersion::Tls12,
        };
        security.client("", settings).map_err(LabError::bad_input)?;
        Ok(security)
    }

    /// Name that the peer's certificate must contain for connections to `host`.
    pub fn name_for<'a>(&'a self, host: &'a str) -> &'a str {
        match self.name.as_str() {
            "" => host.trim_start_matches('[').trim_end_matches(']'),
            name => name,
        }
    }
}

/// Name in the certificate of a trial.
const TRIAL_NAME: &str = "trial.example.com";

/// The certificate of a trial with that of its authority, and its key, as PEM.
#[derive(Clone)]
struct TrialPem {
    chain: String,
    key: Zeroizing<String>,
}

impl std::fmt::Debug for TrialPem {
    /// Omits the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrialPem").finish_non_exhaustive()
    }
}

/// Certificates and trust of the ends of a trial.
#[derive(Clone, Debug)]
pub struct TrialCredentials {
    identity: Identity,
    anchors: Option<Anchors>,
    /// The certificates of the trial, if they were made for it.
    pem: Option<TrialPem>,
    /// Name that the SUT's certificate must contain.
    name: String,
}

impl TrialCredentials {
    /// Creates an authority for one trial, and one certificate for all its ends.
    ///
    /// # Errors
    /// If the certificate library fails.
    pub fn generate() -> Result<TrialCredentials, LabError> {
        let (authority, chain, key) = pem().map_err(|error| {
            LabError::cannot_run(format!("certificates of the trial: {error}"), "")
        })?;
        let in_memory = Path::new("certificate of the trial");
        let identity = Identity::of_pem((in_memory, chain.as_bytes()), (in_memory, key.as_bytes()))
            .map_err(|error| unusable(&error))?;
        let anchors =
            Anchors::of_pem(in_memory, authority.as_bytes()).map_err(|error| unusable(&error))?;
        Ok(TrialCredentials {
            identity,
            anchors: Some(anchors),
            pem: Some(TrialPem {
                chain: chain + &authority,
                key: Zeroizing::new(key),
            }),
            name: TRIAL_NAME.to_owned(),
        })
    }

    /// Certificate with that of its authority, and key, as PEM files of a program have them; `None` if they were not
    /// made for the trial.
    pub(crate) fn pem(&self) -> Option<[&str; 2]> {
        let pem = self.pem.as_ref()?;
        Some([&pem.chain, &pem.key])
    }

    /// Credentials of an experiment against a foreign SUT. Without a certificate our listeners use one created for the
    /// trial, which only peers without verification accept.
    ///
    /// # Errors
    /// If a file is missing or invalid.
    pub fn for_sut(settings: &TlsSettings, sut: SocketAddr) -> Result<TrialCredentials, LabError> {
        let identity = match (&settings.certificate, &settings.key) {
            (Some(chain), Some(key)) => {
                Identity::read(chain, key).map_err(|error| unusable(&error))?
            }
            (None, None) => TrialCredentials::generate()?.identity,
            _ => {
                return Err(LabError::bad_input(
                    "[tls]: certificate and key must both be set",
                ));
            }
        };
        let anchors = match (settings.verify, &settings.ca) {
            (false, None) => None,
            (false, Some(_)) => {
                return Err(LabError::bad_input(
                    "[tls]: ca has no effect with verify = false",
                ));
            }
            (true, Some(file)) => Some(Anchors::read(file).map_err(|error| unusable(&error))?),
            (true, None) => Some(Anchors::system().map_err(|error| unusable(&error))?),
        };
        Ok(TrialCredentials {
            identity,
            anchors,
            pem: None,
            name: settings.name_for(&sut.ip().to_string()).to_owned(),
        })
    }

    /// Name that the SUT's certificate must contain.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// TLS settings for a driver: for listeners at these addresses (as the engine requests them; `true`: with
    /// WebSocket), and for outgoing connections.
    ///
    /// # Errors
    /// If the TLS library refuses a certificate.
    pub fn security(&self, listening: &[(SocketAddr, bool)]) -> Result<Security, LabError> {
        let mut security = Security::default();
        for (address, websocket) in listening {
            let settings = ServerSettings {
                identities: vec![self.identity.clone()],
                client_auth: ClientAuth::None,
                oldest: MinimumVersion::Tls12,
            };
            security
                .server(*address, *websocket, settings, None)
                .map_err(LabError::bad_input)?;
        }
        let settings = ClientSettings {
            anchors: self.anchors.clone(),
            identity: Some(self.identity.clone()),
            pins: Vec::new(),
            oldest: MinimumVersion::Tls12,
        };
        security.client("", settings).map_err(LabError::bad_input)?;
        Ok(security)
    }
}

/// An authority, a certificate issued by it, and the certificate's key.
fn pem() -> Result<(String, String, String), rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec![TRIAL_NAME.to_owned()])?.signed_by(&key, &authority)?;
    Ok((authority.pem(), leaf.pem(), key.serialize_pem()))
}
