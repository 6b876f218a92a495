//! The DTLS association of one side of a media line.

use super::side::KeyingContext;
use media::Keys;
use protect::dtls::{self, CertificateFingerprint, Role};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;

/// Associations of other early dialogs that are kept for one side. Not more than the forwarder keeps (`MAX_PREVIOUS` in
/// the crate `media`).
const MAX_EARLY: usize = 4;

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
        !has_ended
            && self.fingerprints.as_ref().is_some_and(|existing| {
                existing
                    .iter()
                    .any(|existing| fingerprints.contains(existing))
            })
            && (self.tls_id.is_none() || tls_id.is_none() || self.tls_id.as_deref() == tls_id)
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

/// Associations with early dialogs that others have followed. The final answer may be that of one of them, which does
/// not shake hands again (RFC 5763 section 5).
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EarlyAssociations(Vec<(Box<DtlsAssociation>, Option<Arc<Keys>>)>);

impl EarlyAssociations {
    /// Keeps an association and its keys if its handshake has begun.
    pub(super) fn keep(&mut self, association: Box<DtlsAssociation>, keys: Option<Arc<Keys>>) {
        if association.session.is_none() {
            return;
        }
        if self.0.len() >= MAX_EARLY {
            self.0.remove(0);
        }
        self.0.push((association, keys));
    }

    /// Takes out the association that a description belongs to, with its keys.
    pub(super) fn take(
        &mut self,
        role: Role,
        fingerprints: &[CertificateFingerprint],
        tls_id: Option<&[u8]>,
    ) -> Option<(Box<DtlsAssociation>, Option<Arc<Keys>>)> {
        let belongs = |association: &DtlsAssociation| {
            association.role == Some(role) && association.matches(fingerprints, tls_id)
        };
        let at = (self.0.iter()).position(|(association, _)| belongs(association))?;
        Some(self.0.remove(at))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
