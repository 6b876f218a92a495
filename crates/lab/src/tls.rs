//! TLS of the laboratory's own ends: what is shown, and who is believed.

use crate::error::LabError;
use net::tls::{
    Anchors, ClientSettings, CredentialError, Identity, Oldest, Proof, Security, ServerSettings,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

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
