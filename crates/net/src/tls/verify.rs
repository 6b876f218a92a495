//! Verification of a peer's certificate: the chain by the library, names by RFC 5922.

use super::names::Identities;
use super::{Anchors, provider};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::Arc;

/// SHA-256 of a certificate, or of its public key.
pub type Sha256Fingerprint = [u8; 32];

pub(super) fn sha256(bytes: &[u8]) -> Sha256Fingerprint {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut out = [0; 32];
    out.copy_from_slice(digest.as_ref());
    out
}

/// Whether a certificate, or its public key (RFC 7469 section 2.4), is among `pins`.
fn pinned(certificate: &CertificateDer<'_>, pins: &[Sha256Fingerprint]) -> bool {
    let key = || {
        use x509_parser::prelude::{FromDer, X509Certificate};
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Some(sha256(parsed.public_key().raw))
    };
    pins.contains(&sha256(certificate)) || key().is_some_and(|key| pins.contains(&key))
}

/// Verifies the certificates of servers.
#[derive(Debug)]
pub(super) struct Servers {
    /// `None`: not verified.
    anchors: Option<Anchors>,
    /// Empty: every valid certificate is accepted; otherwise only these.
    pins: Vec<Sha256Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl Servers {
    pub(super) fn new(anchors: Option<Anchors>, pins: Vec<Sha256Fingerprint>) -> Servers {
        Servers {
            anchors,
            pins,
            provider: provider(),
        }
    }
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(anchors) = &self.anchors {
            let parsed = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &anchors.0,
                intermediates,
                now,
                algorithms,
            )?;
            let identities = Identities::of(end_entity).ok_or(CertificateError::BadEncoding)?;
            if !identities.is_valid_for(&server_name.to_str()) {
                return Err(Error::InvalidCertificate(
                    CertificateError::NotValidForNameContext {
                        expected: server_name.to_owned(),
                        presented: vec![identities.list()],
                    },
                ));
            }
        }
        if !self.pins.is_empty() && !pinned(end_entity, &self.pins) {
            return Err(Error::General(
                "the certificate is not among the pinned ones".to_owned(),
            ));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Verifies the certificates of clients.
#[derive(Debug)]
pub(super) struct Clients {
    usual: Arc<dyn ClientCertVerifier>,
    anchors: Anchors,
    required: bool,
    provider: Arc<CryptoProvider>,
}

impl Clients {
    pub(super) fn new(anchors: Anchors, required: bool) -> Result<Clients, String> {
        let usual = WebPkiClientVerifier::builder_with_provider(anchors.0.clone(), provider())
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Clients {
            usual,
            anchors,
            required,
            provider: provider(),
        })
    }
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let usual = self
            .usual
            .verify_client_cert(end_entity, intermediates, now);
        // A SIP domain has one certificate for both roles (RFC 5922 section 3), and public authorities no longer
        // issue certificates with the client's purpose: the server's purpose is accepted.
        if !matches!(
            &usual,
            Err(Error::InvalidCertificate(
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. }
            ))
        ) {
            return usual;
        }
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.anchors.0,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
