//! The DTLS association of one side of a media line.

use super::side::KeyingContext;
use protect::dtls::{self, CertificateFingerprint, Role};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A DTLS association, or the known parameters of a future one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DtlsAssociation {
    /// `None` until the peer's answer or first datagram.
    pub(super) role: Option<Role>,
    /// `None` until the peer's description.
    pub(super) fingerprints: Option<Vec<CertificateFingerprint>>,
    pub(super) tls_id: Option<Vec<u8>>,
    pub(super) session: Option<Box<dtls::DtlsSession>>,
    /// Destination of the handshake's datagrams.
    pub(super) peer: Option<SocketAddr>,
}

impl DtlsAssociation {
    pub(super) fn new() -> DtlsAssociation {
        DtlsAssociation {
            role: None,
            fingerprints: None,
            tls_id: None,
            session: None,
            peer: None,
        }
    }

    /// Whether a description belongs to this association (RFC 8842 section 4). None belongs to one that the peer has
    /// closed: its keys are not used again (RFC 5764 section 3), and there will be another handshake.
    pub(super) fn matches(
        &self,
        fingerprints: &[CertificateFingerprint],
        tls_id: Option<&[u8]>,
    ) -> bool {
        let session = self.session.as_ref();
        let has_ended = session.is_some_and(|session| session.has_ended());
        !has_ended && self.fingerprints.as_ref().is_some_and(|existing| {
            existing
                .iter()
                .any(|existing| fingerprints.contains(existing))
        }) && (self.tls_id.is_none() || tls_id.is_none() || self.tls_id.as_deref() == tls_id)
    }

    /// Creates the session if there is none; `peer_began`: the peer has sent the first datagram, so that without an
    /// answer it is the client.
    pub(super) fn ensure_session(&mut self, context: &KeyingContext<'_>, peer_began: bool) {
        let Some(endpoint) = context.dtls.filter(|_| self.session.is_none()) else {
            return;
        };
        let role = match (self.role, peer_began) {
            (Some(role), _) => role,
            (None, true) => Role::Server,
            (None, false) => return,
        };
        self.role = Some(role);
        let session =
            dtls::DtlsSession::new(endpoint, role, self.fingerprints.clone(), context.now);
        self.session = Some(Box::new(session));
    }
}
