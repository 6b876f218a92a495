//! TLS of the laboratory's own ends: what is shown, and who is believed.

use crate::error::LabError;
use net::tls::{
    Anchors, ClientSettings, CredentialError, Identity, Oldest, Proof, Security, ServerSettings,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Certificates and trust of the laboratory's callers and callees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSettings {
    /// The peer's certificate has to be good: from an authority that is trusted, in its time, and for the right name. Where
    /// not, any certificate will do.
    pub verify: bool,
    /// Authorities (PEM) that are trusted instead of the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Our certificate with its chain (PEM): needed where connections are taken, shown to a server that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Whom the peer's certificate must stand for; empty: the host that is called.
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

fn unusable(error: &CredentialError) -> LabError {
    LabError::cannot(error.to_string(), error.remedy.clone())
}

impl TlsSettings {
    /// Whether nothing is said; serde asks by reference.
    pub(crate) fn is_default(&self) -> bool {
        *self == TlsSettings::default()
    }

    /// What a driver is given: settings for connections that are opened, and for a listener on each of `listening`
    /// (`true`: with WebSocket inside).
    ///
    /// # Errors
    /// Where a file is missing or wrong, or a listener would have no certificate.
    pub fn security(&self, listening: &[(SocketAddr, bool)]) -> Result<Security, LabError> {
        let identity = match (&self.certificate, &self.key) {
            (Some(chain), Some(key)) => {
                Some(Identity::read(chain, key).map_err(|error| unusable(&error))?)
            }
            (None, None) => None,
            _ => return Err(LabError::bad("TLS: a certificate and its key go together")),
        };
        let mut security = Security::default();
        for (address, websocket) in listening {
            let identity = identity.clone().ok_or_else(|| {
                LabError::bad("TLS: who takes connections needs a certificate and its key")
            })?;
            let settings = ServerSettings {
                identities: vec![identity],
                proof: Proof::None,
                oldest: Oldest::Tls12,
            };
            security
                .server(*address, *websocket, settings, None)
                .map_err(LabError::bad)?;
        }
        let anchors = match (self.verify, &self.ca) {
            (false, _) => None,
            (true, Some(file)) => Some(Anchors::read(file).map_err(|error| unusable(&error))?),
            // A server trusts nobody, so it does not need the system's list.
            (true, None) if !listening.is_empty() => return Ok(security),
            (true, None) => Some(Anchors::system().map_err(|error| unusable(&error))?),
        };
        let settings = ClientSettings {
            anchors,
            identity,
            pins: Vec::new(),
            oldest: Oldest::Tls12,
        };
        security.client("", settings).map_err(LabError::bad)?;
        Ok(security)
    }

    /// Whom the peer's certificate must stand for, where `host` is called.
    pub fn name_for<'a>(&'a self, host: &'a str) -> &'a str {
        match self.name.as_str() {
            "" => host.trim_start_matches('[').trim_end_matches(']'),
            name => name,
        }
    }
}

/// The name that the certificate of a trial stands for.
const TRIAL: &str = "trial.example.com";

/// What the ends of a trial show, and whom they believe.
#[derive(Clone, Debug)]
pub struct Credentials {
    identity: Identity,
    anchors: Option<Anchors>,
    /// Whom the subject's certificate has to stand for.
    name: String,
}

impl Credentials {
    /// An authority made for one trial, and a certificate of its for everybody in it.
    ///
    /// # Errors
    /// Where the library for certificates refuses.
    pub fn made() -> Result<Credentials, LabError> {
        let (authority, chain, key) = pem()
            .map_err(|error| LabError::cannot(format!("certificates of the trial: {error}"), ""))?;
        let in_memory = Path::new("certificate of the trial");
        let identity = Identity::of_pem((in_memory, chain.as_bytes()), (in_memory, key.as_bytes()))
            .map_err(|error| unusable(&error))?;
        let anchors =
            Anchors::of_pem(in_memory, authority.as_bytes()).map_err(|error| unusable(&error))?;
        Ok(Credentials {
            identity,
            anchors: Some(anchors),
            name: TRIAL.to_owned(),
        })
    }

    /// As an experiment says for a foreign subject at `subject`. Without a certificate our listeners show one made for the
    /// trial, which only those believe who check nothing.
    ///
    /// # Errors
    /// Where a file is missing or wrong.
    pub fn of(settings: &TlsSettings, subject: SocketAddr) -> Result<Credentials, LabError> {
        let identity = match (&settings.certificate, &settings.key) {
            (Some(chain), Some(key)) => {
                Identity::read(chain, key).map_err(|error| unusable(&error))?
            }
            (None, None) => Credentials::made()?.identity,
            _ => return Err(LabError::bad("[tls]: certificate and key go together")),
        };
        let anchors = match (settings.verify, &settings.ca) {
            (false, None) => None,
            (false, Some(_)) => {
                return Err(LabError::bad("[tls]: ca does nothing with verify = false"));
            }
            (true, Some(file)) => Some(Anchors::read(file).map_err(|error| unusable(&error))?),
            (true, None) => Some(Anchors::system().map_err(|error| unusable(&error))?),
        };
        Ok(Credentials {
            identity,
            anchors,
            name: settings.name_for(&subject.ip().to_string()).to_owned(),
        })
    }

    /// Whom the subject's certificate has to stand for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For a driver: what listeners at these addresses (as the engine asks for them; `true`: with WebSocket inside) show, and whom
    /// connections that are opened believe.
    ///
    /// # Errors
    /// Where the library refuses a certificate.
    pub fn security(&self, listening: &[(SocketAddr, bool)]) -> Result<Security, LabError> {
        let mut security = Security::default();
        for (address, websocket) in listening {
            let settings = ServerSettings {
                identities: vec![self.identity.clone()],
                proof: Proof::None,
                oldest: Oldest::Tls12,
            };
            security
                .server(*address, *websocket, settings, None)
                .map_err(LabError::bad)?;
        }
        let settings = ClientSettings {
            anchors: self.anchors.clone(),
            identity: Some(self.identity.clone()),
            pins: Vec::new(),
            oldest: Oldest::Tls12,
        };
        security.client("", settings).map_err(LabError::bad)?;
        Ok(security)
    }
}

/// An authority, a certificate that it issued, and its key.
fn pem() -> Result<(String, String, String), rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec![TRIAL.to_owned()])?.signed_by(&key, &authority)?;
    Ok((authority.pem(), leaf.pem(), key.serialize_pem()))
}
