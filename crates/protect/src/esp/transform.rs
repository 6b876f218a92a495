//! Encryption and integrity of single packets: the mechanism below the associations.

use super::spec::EspKeys;
use super::{EspEncryption, EspFailure, EspIntegrity, EspSuite, SaError};
use crate::cipher::{
    CbcKey, ChaChaKey, CounterKey, GcmKey, HmacMd5, HmacSha1, HmacSha256, HmacSha384, HmacSha512,
    PacketAead, PacketCipher, PacketMac, TruncatedAead,
};
use core::ops::Range;
use subtle::ConstantTimeEq;
use wire::esp::{EspTrailer, EspView};

// Boxing the larger variant would cost the hot path a pointer for the sake of the rarer one.
#[allow(clippy::large_enum_variant)]
enum EspCipher {
    Null,
    Cbc(CbcKey),
    Counter { key: CounterKey, nonce: [u8; 4] },
    Gcm { key: GcmKey, salt: [u8; 4] },
    Truncated { key: TruncatedAead, salt: [u8; 4] },
    ChaCha { key: ChaChaKey, salt: [u8; 4] },
}

enum EspMac {
    Md5(HmacMd5),
    Sha1(HmacSha1),
    Sha256(HmacSha256),
    Sha384(HmacSha384),
    Sha512(HmacSha512),
}

/// The payload of an opened packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPayload {
    /// Its place in the packet.
    pub range: Range<usize>,
    /// Its protocol.
    pub next_header: u8,
}

/// Algorithms with their keys, prepared for use. It has no sequence numbers and no replay protection; for these use
/// [`super::OutboundSa`] and [`super::InboundSa`].
pub struct EspTransform {
    cipher: EspCipher,
    mac: Option<EspMac>,
    suite: EspSuite,
}

impl EspTransform {
    /// From keys. It refuses no weak algorithm: associations do.
    ///
    /// # Errors
    /// A key of the wrong length.
    pub fn new(suite: EspSuite, keys: &EspKeys) -> Result<EspTransform, SaError> {
        let (encryption, integrity) = (keys.expose_encryption(), keys.expose_integrity());
        if suite.encryption.icv_length().is_some() && suite.integrity != EspIntegrity::None {
            return Err(SaError::Combination(suite));
        }
        if !suite.encryption.accepts_key_length(encryption.len()) {
            return Err(SaError::EncryptionKey {
                encryption: suite.encryption,
                actual: encryption.len(),
            });
        }
        Ok(EspTransform {
            cipher: EspCipher::new(suite.encryption, encryption)?,
            mac: EspMac::new(suite.integrity, integrity)?,
            suite,
        })
    }

    /// Algorithms.
    pub fn suite(&self) -> EspSuite {
        self.suite
    }

    /// Encrypts a packet from the SPI on, whose header, initialisation vector, payload and trailer are written, and
    /// writes its ICV into the last bytes. `high` is the upper half of an extended sequence number.
    ///
    /// # Errors
    /// [`EspFailure::Malformed`] if it is too short.
    #[inline]
    pub fn seal(&self, packet: &mut [u8], high: Option<u32>) -> Result<(), EspFailure> {
        let parts = self.parts(packet)?;
        let Parts {
            header,
            iv,
            body,
            icv,
        } = parts;
        match &self.cipher {
            EspCipher::Null => {}
            EspCipher::Cbc(key) => key.encrypt(iv, body),
            EspCipher::Counter { key, nonce } => key.encrypt(&counter_block(*nonce, iv), body),
            EspCipher::Gcm { key, salt } => {
                return seal_aead(key, *salt, (header, high, iv), body, icv);
            }
            EspCipher::Truncated { key, salt } => {
                return seal_aead(key, *salt, (header, high, iv), body, icv);
            }
            EspCipher::ChaCha { key, salt } => {
                return seal_aead(key, *salt, (header, high, iv), body, icv);
            }
        }
        if let Some(mac) = &self.mac {
            let length = packet.len() - self.suite.icv_length();
            let (data, icv) = packet.split_at_mut(length);
            mac.write(data, high, icv);
        }
        Ok(())
    }

    /// Verifies and decrypts a packet from the SPI on, and checks its padding. On an error the contents of `packet`
    /// are undefined.
    ///
    /// # Errors
    /// [`EspFailure::Malformed`], [`EspFailure::Authentication`], [`EspFailure::Padding`].
    #[inline]
    pub fn open(&self, packet: &mut [u8], high: Option<u32>) -> Result<OpenedPayload, EspFailure> {
        let length = packet.len();
        let parts = self.parts(packet)?;
        if parts.body.len() < EspTrailer::FIELDS
            || !parts
                .body
                .len()
                .is_multiple_of(self.suite.encryption.alignment())
        {
            return Err(EspFailure::Malformed);
        }
        if let Some(mac) = &self.mac {
            let (data, icv) = packet.split_at(length - self.suite.icv_length());
            mac.verify(data, high, icv)?;
        }
        let Parts {
            header,
            iv,
            body,
            icv,
        } = self.parts(packet)?;
        let opened = match &self.cipher {
            EspCipher::Null => Ok(()),
            EspCipher::Cbc(key) => {
                key.decrypt(iv, body);
                Ok(())
            }
            EspCipher::Counter { key, nonce } => {
                key.decrypt(&counter_block(*nonce, iv), body);
                Ok(())
            }
            EspCipher::Gcm { key, salt } => open_aead(key, *salt, (header, high, iv), body, icv),
            EspCipher::Truncated { key, salt } => {
                open_aead(key, *salt, (header, high, iv), body, icv)
            }
            EspCipher::ChaCha { key, salt } => open_aead(key, *salt, (header, high, iv), body, icv),
        };
        opened?;
        let trailer = EspTrailer::parse(body).ok_or(EspFailure::Padding)?;
        let start = EspView::HEADER + self.suite.encryption.iv_length();
        Ok(OpenedPayload {
            range: start..start + trailer.payload_length,
            next_header: trailer.next_header,
        })
    }

    #[inline]
    fn parts<'a>(&self, packet: &'a mut [u8]) -> Result<Parts<'a>, EspFailure> {
        let malformed = EspFailure::Malformed;
        let (header, rest) = packet.split_first_chunk_mut::<8>().ok_or(malformed)?;
        let iv_length = self.suite.encryption.iv_length();
        let (iv, rest) = rest.split_at_mut_checked(iv_length).ok_or(malformed)?;
        let length = rest.len().checked_sub(self.suite.icv_length());
        let (body, icv) = rest.split_at_mut(length.ok_or(malformed)?);
        Ok(Parts {
            header,
            iv,
            body,
            icv,
        })
    }
}

/// The parts of a packet.
struct Parts<'a> {
    header: &'a [u8; 8],
    iv: &'a [u8],
    body: &'a mut [u8],
    icv: &'a mut [u8],
}

impl EspCipher {
    fn new(encryption: EspEncryption, key: &[u8]) -> Result<EspCipher, SaError> {
        let bad = |_| SaError::EncryptionKey {
            encryption,
            actual: key.len(),
        };
        let salted = || key.split_last_chunk::<4>().unwrap_or((key, &[0; 4]));
        Ok(match encryption {
            EspEncryption::Null => EspCipher::Null,
            EspEncryption::AesCbc => EspCipher::Cbc(CbcKey::aes(key).map_err(bad)?),
            EspEncryption::TripleDes => EspCipher::Cbc(CbcKey::triple_des(key).map_err(bad)?),
            EspEncryption::Des => EspCipher::Cbc(CbcKey::des(key).map_err(bad)?),
            EspEncryption::Blowfish => EspCipher::Cbc(CbcKey::blowfish(key).map_err(bad)?),
            EspEncryption::AesCtr => EspCipher::Counter {
                key: CounterKey::new(salted().0).map_err(bad)?,
                nonce: *salted().1,
            },
            EspEncryption::AesGcm16 => EspCipher::Gcm {
                key: GcmKey::new(salted().0).map_err(bad)?,
                salt: *salted().1,
            },
            EspEncryption::AesGcm12 | EspEncryption::AesGcm8 => EspCipher::Truncated {
                key: TruncatedAead::new(salted().0).map_err(bad)?,
                salt: *salted().1,
            },
            EspEncryption::ChaCha20Poly1305 => EspCipher::ChaCha {
                key: ChaChaKey::new(salted().0).map_err(bad)?,
                salt: *salted().1,
            },
        })
    }
}

impl EspMac {
    /// Keys of other lengths than the RFCs require are accepted: HMAC takes any, and captures have them.
    fn new(integrity: EspIntegrity, key: &[u8]) -> Result<Option<EspMac>, SaError> {
        if integrity == EspIntegrity::None {
            return Ok(None);
        }
        if key.is_empty() {
            return Err(SaError::IntegrityKey {
                integrity,
                actual: 0,
            });
        }
        Ok(Some(match integrity {
            EspIntegrity::None => return Ok(None),
            EspIntegrity::HmacMd5 => EspMac::Md5(HmacMd5::new(key)),
            EspIntegrity::HmacSha1 => EspMac::Sha1(HmacSha1::new(key)),
            EspIntegrity::HmacSha256 | EspIntegrity::HmacSha256Truncated96 => {
                EspMac::Sha256(HmacSha256::new(key))
            }
            EspIntegrity::HmacSha384 => EspMac::Sha384(HmacSha384::new(key)),
            EspIntegrity::HmacSha512 => EspMac::Sha512(HmacSha512::new(key)),
        }))
    }

    /// Calls `with` with the untruncated tag. The upper half of the sequence number follows the packet (RFC 4303
    /// section 2.2.1).
    #[inline]
    fn with_tag<R>(&self, data: &[u8], high: Option<u32>, with: impl FnOnce(&[u8]) -> R) -> R {
        let suffix = high.map(u32::to_be_bytes);
        let suffix = suffix.as_ref().map_or(&[][..], |bytes| bytes);
        match self {
            EspMac::Md5(mac) => with(&mac.tag(data, suffix)),
            EspMac::Sha1(mac) => with(&mac.tag(data, suffix)),
            EspMac::Sha256(mac) => with(&mac.tag(data, suffix)),
            EspMac::Sha384(mac) => with(&mac.tag(data, suffix)),
            EspMac::Sha512(mac) => with(&mac.tag(data, suffix)),
        }
    }

    #[inline]
    fn write(&self, data: &[u8], high: Option<u32>, icv: &mut [u8]) {
        self.with_tag(data, high, |tag| {
            for (byte, value) in icv.iter_mut().zip(tag) {
                *byte = *value;
            }
        });
    }

    #[inline]
    fn verify(&self, data: &[u8], high: Option<u32>, icv: &[u8]) -> Result<(), EspFailure> {
        self.with_tag(data, high, |tag| {
            let expected = tag.get(..icv.len()).unwrap_or_default();
            if bool::from(expected.ct_eq(icv)) {
                Ok(())
            } else {
                Err(EspFailure::Authentication)
            }
        })
    }
}

/// Header, upper half of the sequence number and initialisation vector: an AEAD authenticates them beside the payload.
type Clear<'a> = (&'a [u8; 8], Option<u32>, &'a [u8]);

#[inline]
fn seal_aead(
    key: &impl PacketAead,
    salt: [u8; 4],
    (header, high, iv): Clear<'_>,
    body: &mut [u8],
    icv: &mut [u8],
) -> Result<(), EspFailure> {
    let (aad, length) = associated_data(header, high);
    let aad = aad.get(..length).unwrap_or_default();
    let tag = key
        .encrypt(nonce(salt, iv), aad, body)
        .map_err(|_| EspFailure::Malformed)?;
    let tag = tag.get(..icv.len()).unwrap_or_default();
    icv.copy_from_slice(tag);
    Ok(())
}

#[inline]
fn open_aead(
    key: &impl PacketAead,
    salt: [u8; 4],
    (header, high, iv): Clear<'_>,
    body: &mut [u8],
    icv: &[u8],
) -> Result<(), EspFailure> {
    let (aad, length) = associated_data(header, high);
    let aad = aad.get(..length).unwrap_or_default();
    key.decrypt(nonce(salt, iv), aad, body, icv)
        .map_err(|_| EspFailure::Authentication)
}

/// SPI and sequence number of 32 or 64 bits (RFC 4106 section 5, RFC 7634 section 2.1).
#[inline]
fn associated_data(header: &[u8; 8], high: Option<u32>) -> ([u8; 12], usize) {
    let [a, b, c, d, e, f, g, h] = *header;
    match high.map(u32::to_be_bytes) {
        Some([i, j, k, l]) => ([a, b, c, d, i, j, k, l, e, f, g, h], 12),
        None => ([a, b, c, d, e, f, g, h, 0, 0, 0, 0], 8),
    }
}

/// Salt and initialisation vector (RFC 4106 section 4, RFC 7634 section 2).
#[inline]
fn nonce(salt: [u8; 4], iv: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&salt);
    for (byte, value) in nonce.iter_mut().skip(4).zip(iv) {
        *byte = *value;
    }
    nonce
}

/// Nonce, initialisation vector and a counter that begins with one (RFC 3686 section 4).
#[inline]
fn counter_block(salt: [u8; 4], iv: &[u8]) -> [u8; 16] {
    let mut block = [0; 16];
    block[..12].copy_from_slice(&nonce(salt, iv));
    block[15] = 1;
    block
}
