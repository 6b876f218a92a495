//! DTLS-SRTP (RFC 5763, RFC 5764): keys are negotiated in the media path, and the peer is authenticated by its
//! certificate's fingerprint in SDP (RFC 8122).
//!
//! The handshake is implemented by dimpl, which does no IO. It differs from our engines in two points: it generates
//! its secrets from the operating system's random numbers through aws-lc (predictable keys would be worthless), and
//! it takes time as [`std::time::Instant`]. [`Epoch`] maps these to [`engine::Time`], so retransmissions follow the
//! driver's clock, the simulator's included; only the bytes of a handshake differ from run to run.
//!
//! Not supported by dimpl: RSA certificates, the profiles `SRTP_AES128_CM_HMAC_SHA1_32` and NULL, an MKI, session
//! resumption, DTLS 1.0.

mod fingerprint;
mod session;

pub use fingerprint::{CertificateFingerprint, HashFunction, matches};
pub use session::{DtlsEvent, DtlsSession, Established};

use crate::srtp::Suite;
use core::fmt;
use core::time::Duration;
use engine::Time;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// The instant of the machine's monotonic clock that corresponds to [`Time::ZERO`]. The driver, which owns the clock,
/// creates it once.
#[derive(Clone, Copy, Debug)]
pub struct Epoch(Instant);

impl Epoch {
    /// `start`: the instant of [`Time::ZERO`].
    pub fn new(start: Instant) -> Epoch {
        Epoch(start)
    }

    fn instant(self, time: Time) -> Instant {
        let since = Duration::from_nanos(time.as_nanos());
        self.0.checked_add(since).unwrap_or(self.0)
    }

    fn time(self, instant: Instant) -> Time {
        Time::ZERO + instant.saturating_duration_since(self.0)
    }
}

/// Role in the handshake (`a=setup`, RFC 5763 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// `active`: sends the ClientHello.
    Client,
    /// `passive`: waits for the ClientHello.
    Server,
}

/// Enabled protocol versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// DTLS 1.3 if the peer supports it, else 1.2.
    #[default]
    Auto,
    /// DTLS 1.2 only.
    Dtls12,
    /// DTLS 1.3 only.
    Dtls13,
}

/// Settings of handshakes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Enabled versions.
    pub version: Version,
    /// Accepted protection profiles. dimpl always offers `AEAD_AES_256_GCM`, `AEAD_AES_128_GCM` and
    /// `AES128_CM_HMAC_SHA1_80`; an association with a profile that is not listed here fails.
    pub profiles: Vec<Suite>,
    /// Largest datagram sent, bytes.
    pub mtu: usize,
    /// Time to the first retransmission; doubled for each further one (RFC 6347 section 4.2.4.1).
    pub retransmit_after: Duration,
    /// Largest number of retransmissions of one flight.
    pub retries: usize,
    /// Timeout of the whole handshake.
    pub timeout: Duration,
}

impl Default for Settings {
    /// First retransmission after 200 ms: the call setup waits for it, and media paths are not satellite links.
    fn default() -> Self {
        Settings {
            version: Version::Auto,
            profiles: vec![
                Suite::AeadAes256Gcm,
                Suite::AeadAes128Gcm,
                Suite::AesCm128HmacSha1_80,
            ],
            mtu: 1_150,
            retransmit_after: Duration::from_millis(200),
            retries: 6,
            timeout: Duration::from_secs(30),
        }
    }
}

/// A certificate with its private key.
#[derive(Clone)]
pub struct Certificate(dimpl::DtlsCertificate);

impl Certificate {
    /// Generates a self-signed certificate on the curve P-256, valid for a year. Key and serial number use the
    /// operating system's random numbers, the dates its clock; both through the library. To be called once at start,
    /// not for each call.
    ///
    /// # Errors
    /// [`SetupError`] if the library fails.
    pub fn generate() -> Result<Certificate, SetupError> {
        dimpl::certificate::generate_self_signed_certificate()
            .map(Certificate)
            .map_err(|error| SetupError(error.to_string()))
    }

    /// From an existing certificate and PKCS #8 private key, both DER, ECDSA on P-256 or P-384.
    pub fn from_der(certificate: Vec<u8>, private_key: Vec<u8>) -> Certificate {
        Certificate(dimpl::DtlsCertificate {
            certificate,
            private_key,
        })
    }

    /// The certificate's DER form.
    pub fn der(&self) -> &[u8] {
        &self.0.certificate
    }

    /// The value of `a=fingerprint`.
    pub fn fingerprint(&self, hash: HashFunction) -> CertificateFingerprint {
        CertificateFingerprint::of(hash, &self.0.certificate)
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({})", self.fingerprint(HashFunction::Sha256))
    }
}

/// The library rejects the settings or the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupError(String);

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DTLS cannot be set up: {}", self.0)
    }
}

impl std::error::Error for SetupError {}

/// Configuration shared by all sessions of a program.
#[derive(Clone)]
pub struct DtlsEndpoint {
    config: Arc<dimpl::Config>,
    certificate: Certificate,
    settings: Arc<Settings>,
    epoch: Epoch,
}

impl DtlsEndpoint {
    /// An endpoint that presents `certificate`.
    ///
    /// # Errors
    /// [`SetupError`] if a setting is out of range, or a listed profile is not supported.
    pub fn new(
        settings: Settings,
        certificate: Certificate,
        epoch: Epoch,
    ) -> Result<DtlsEndpoint, SetupError> {
        let possible = Settings::default().profiles;
        if let Some(suite) = settings
            .profiles
            .iter()
            .find(|suite| !possible.contains(suite))
        {
            return Err(SetupError(format!(
                "profile {suite} is not supported by DTLS-SRTP"
            )));
        }
        if settings.profiles.is_empty() {
            return Err(SetupError("no protection profile is configured".into()));
        }
        let config = dimpl::Config::builder()
            .mtu(settings.mtu)
            .flight_start_rto(settings.retransmit_after)
            .flight_retries(settings.retries)
            .handshake_timeout(settings.timeout)
            .build()
            .map_err(|error| SetupError(error.to_string()))?;
        Ok(DtlsEndpoint {
            config: Arc::new(config),
            certificate,
            settings: Arc::new(settings),
            epoch,
        })
    }

    /// The presented certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }
}

impl fmt::Debug for DtlsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("certificate", &self.certificate)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Reason for the failure of an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DtlsFailure {
    /// The peer's certificate does not match the signalled fingerprint (RFC 5763 section 5).
    Fingerprint,
    /// No supported fingerprint was signalled.
    NoFingerprint,
    /// The peer selected no protection profile (RFC 5764 section 4.1).
    NoProfile,
    /// The settings do not allow the selected profile.
    ProfileNotAllowed(Suite),
    /// The peer did not respond in time.
    Timeout,
    /// The peer sent a fatal alert of this number (RFC 8446 section 6), and the handshake did not proceed.
    Refused(u8),
    /// The peer violated the protocol, or shares no algorithms with us.
    Protocol(String),
}

impl fmt::Display for DtlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DtlsFailure::Fingerprint => {
                f.write_str("the peer's certificate does not have the signalled fingerprint")
            }
            DtlsFailure::NoFingerprint => {
                f.write_str("no supported certificate fingerprint was signalled")
            }
            DtlsFailure::NoProfile => f.write_str("the peer selected no SRTP protection profile"),
            DtlsFailure::ProfileNotAllowed(suite) => {
                write!(f, "the SRTP protection profile {suite} is not allowed")
            }
            DtlsFailure::Timeout => f.write_str("the DTLS handshake timed out"),
            DtlsFailure::Refused(alert) => {
                write!(f, "the peer refused the DTLS handshake with alert {alert}")
            }
            DtlsFailure::Protocol(why) => write!(f, "the DTLS handshake failed: {why}"),
        }
    }
}

impl std::error::Error for DtlsFailure {}
