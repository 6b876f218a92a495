//! DTLS-SRTP (RFC 5763, RFC 5764): keys agreed on in the media path, the peer known by its certificate's fingerprint (RFC 8122).
//!
//! The handshake is dimpl's, which does no IO. What it brings along that an engine of ours has not: it draws its secrets from the
//! operating system through aws-lc (keys that another could compute would be none), and it takes points in time as
//! [`std::time::Instant`]. [`Epoch`] ties those to [`engine::Time`], so retransmissions follow the driver's clock, the
//! simulator's included; only the bytes of a handshake differ from run to run.
//!
//! What dimpl does not do, so neither do we: RSA certificates, the profiles `SRTP_AES128_CM_HMAC_SHA1_32` and NULL, an MKI, session
//! resumption, DTLS 1.0.

mod fingerprint;
mod session;

pub use fingerprint::{Fingerprint, HashFunction, matches};
pub use session::{Established, Event, Session};

use crate::srtp::Suite;
use core::fmt;
use core::time::Duration;
use engine::Time;
use std::sync::Arc;
use std::time::Instant;

/// Which point of the machine's monotonic clock is [`Time::ZERO`]. The driver, who owns the clock, makes it once.
#[derive(Clone, Copy, Debug)]
pub struct Epoch(Instant);

impl Epoch {
    /// `start` is what the clock showed at [`Time::ZERO`].
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

/// Who begins the handshake (`a=setup`, RFC 5763 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// `active`: sends the ClientHello.
    Client,
    /// `passive`: waits for it.
    Server,
}

/// Which versions of the protocol are spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// 1.3 where the peer can, else 1.2.
    #[default]
    Auto,
    /// DTLS 1.2 only.
    Dtls12,
    /// DTLS 1.3 only.
    Dtls13,
}

/// How handshakes are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Versions spoken.
    pub version: Version,
    /// Protection profiles accepted. dimpl offers `AEAD_AES_256_GCM`, `AEAD_AES_128_GCM` and `AES128_CM_HMAC_SHA1_80` in any case;
    /// an association that ends with one that is not listed here fails.
    pub profiles: Vec<Suite>,
    /// Largest datagram that we send, in bytes.
    pub mtu: usize,
    /// Time to the first retransmission; doubled for each further one (RFC 6347 section 4.2.4.1).
    pub retransmit_after: Duration,
    /// Retransmissions of one flight.
    pub retries: usize,
    /// Time for the whole handshake.
    pub timeout: Duration,
}

impl Default for Settings {
    /// A first retransmission after 200 ms: a call waits for it, and media paths are not satellite links.
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
    /// A new self-signed one on the curve P-256, good for a year. Key and serial number come from the operating system's randomness,
    /// the dates from its clock; both by way of the library. Made once at start, not for each call.
    ///
    /// # Errors
    /// [`SetupError`] where the library cannot.
    pub fn generate() -> Result<Certificate, SetupError> {
        dimpl::certificate::generate_self_signed_certificate()
            .map(Certificate)
            .map_err(|error| SetupError(error.to_string()))
    }

    /// One that exists: certificate and PKCS #8 private key, both DER, ECDSA on P-256 or P-384.
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

    /// What goes into `a=fingerprint`.
    pub fn fingerprint(&self, hash: HashFunction) -> Fingerprint {
        Fingerprint::of(hash, &self.0.certificate)
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({})", self.fingerprint(HashFunction::Sha256))
    }
}

/// Settings or a certificate that the library refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupError(String);

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DTLS cannot be set up: {}", self.0)
    }
}

impl std::error::Error for SetupError {}

/// What all sessions of a program share.
#[derive(Clone)]
pub struct Endpoint {
    config: Arc<dimpl::Config>,
    certificate: Certificate,
    settings: Arc<Settings>,
    epoch: Epoch,
}

impl Endpoint {
    /// An endpoint that presents `certificate`.
    ///
    /// # Errors
    /// [`SetupError`] where a setting is out of its range, or a profile is listed that DTLS cannot agree on here.
    pub fn new(
        settings: Settings,
        certificate: Certificate,
        epoch: Epoch,
    ) -> Result<Endpoint, SetupError> {
        let possible = Settings::default().profiles;
        if let Some(suite) = settings
            .profiles
            .iter()
            .find(|suite| !possible.contains(suite))
        {
            return Err(SetupError(format!(
                "{suite} is no profile that can be offered"
            )));
        }
        if settings.profiles.is_empty() {
            return Err(SetupError("no protection profile is allowed".into()));
        }
        let config = dimpl::Config::builder()
            .mtu(settings.mtu)
            .flight_start_rto(settings.retransmit_after)
            .flight_retries(settings.retries)
            .handshake_timeout(settings.timeout)
            .build()
            .map_err(|error| SetupError(error.to_string()))?;
        Ok(Endpoint {
            config: Arc::new(config),
            certificate,
            settings: Arc::new(settings),
            epoch,
        })
    }

    /// The certificate that is presented.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("certificate", &self.certificate)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Why an association came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer's certificate is not the one that signalling told of (RFC 5763 section 5).
    Fingerprint,
    /// Signalling told of no fingerprint that we can check.
    NoFingerprint,
    /// The peer agreed on no protection profile (RFC 5764 section 4.1).
    NoProfile,
    /// The profile is one that the settings do not allow.
    ProfileNotAllowed(Suite),
    /// The peer did not answer in time.
    Timeout,
    /// The peer sent a fatal alert of this number (RFC 8446 section 6) and went no further.
    Refused(u8),
    /// The peer broke the protocol, or has nothing in common with us.
    Protocol(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Fingerprint => {
                f.write_str("the peer's certificate does not have the signalled fingerprint")
            }
            Failure::NoFingerprint => {
                f.write_str("no fingerprint was signalled that can be checked")
            }
            Failure::NoProfile => f.write_str("the peer agreed on no SRTP protection profile"),
            Failure::ProfileNotAllowed(suite) => {
                write!(f, "the profile {suite} is not allowed here")
            }
            Failure::Timeout => f.write_str("the DTLS handshake timed out"),
            Failure::Refused(alert) => {
                write!(f, "the peer refused the DTLS handshake with alert {alert}")
            }
            Failure::Protocol(why) => write!(f, "the DTLS handshake failed: {why}"),
        }
    }
}

impl std::error::Error for Failure {}
