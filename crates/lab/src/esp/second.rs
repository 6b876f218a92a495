//! The cryptographic work of a packet by the primitives of AWS-LC, as a second implementation beside ours.

use super::computed::{EspCarriage, EspCase, clear_packet_bytes};
use crate::error::LabError;
use crate::experiment::EspLoad;
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
    UnboundCipherKey,
};
use aws_lc_rs::hmac;
use net::Clock;
use protect::esp::{EspEncryption, EspIntegrity};
use std::hint::black_box;

/// Keys of a case. The library has neither MD5, 3DES nor Blowfish.
pub(super) struct SecondLibrary {
    case: &'static EspCase,
    work: Work,
}

enum Work {
    Cbc(Box<CbcKeys>),
    Aead(LessSafeKey),
}

struct CbcKeys {
    seal: EncryptingKey,
    open: DecryptingKey,
    mac: Option<hmac::Key>,
}

const KEY: [u8; 64] = [7; 64];

fn failed(_: aws_lc_rs::error::Unspecified) -> LabError {
    LabError::cannot_run("AWS-LC refused a packet", "report it")
}

impl SecondLibrary {
    /// The keys of a case; `None` if the library does not have its algorithms.
    pub(super) fn of(case: &'static EspCase) -> Option<SecondLibrary> {
        let work = match case.suite.encryption {
            EspEncryption::AesCbc => {
                let mac = match case.suite.integrity {
                    EspIntegrity::None => None,
                    EspIntegrity::HmacSha1 => Some(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
                    EspIntegrity::HmacSha256 => Some(hmac::HMAC_SHA256),
                    _ => return None,
                };
                let key_bytes = KEY.get(..case.key_bytes)?;
                let key = || {
                    let algorithm = match case.key_bytes {
                        32 => &AES_256,
                        _ => &AES_128,
                    };
                    UnboundCipherKey::new(algorithm, key_bytes).ok()
                };
                let length = case.suite.integrity.key_length();
                Work::Cbc(Box::new(CbcKeys {
                    seal: EncryptingKey::cbc(key()?).ok()?,
                    open: DecryptingKey::cbc(key()?).ok()?,
                    mac: mac.map(|algorithm| hmac::Key::new(algorithm, &KEY[..length.min(64)])),
                }))
            }
            EspEncryption::AesGcm16 => {
                let algorithm = match case.key_bytes {
                    36 => &AES_256_GCM,
                    _ => &AES_128_GCM,
                };
                aead(algorithm, case)?
            }
            EspEncryption::ChaCha20Poly1305 => aead(&CHACHA20_POLY1305, case)?,
            _ => return None,
        };
        Some(SecondLibrary { case, work })
    }

    /// A timed stretch: microseconds a packet out and in.
    pub(super) fn round(
        &mut self,
        plan: &EspLoad,
        carriage: EspCarriage,
        clock: &Clock,
    ) -> Result<[f64; 2], LabError> {
        let clear = clear_packet_bytes(plan.voice_bytes());
        let payload = if carriage.is_tunnel() {
            clear
        } else {
            clear - 20
        };
        let case = self.case;
        let (start, encrypted) = (8 + case.iv, case.encrypted_bytes(payload));
        let mut packets = vec![vec![0x5a; start + encrypted + case.icv]; plan.packets as usize];
        let begun = clock.now();
        for packet in &mut packets {
            self.work.seal(packet, start, encrypted).map_err(failed)?;
        }
        let middle = clock.now();
        for packet in &mut packets {
            self.work.open(packet, start, encrypted).map_err(failed)?;
        }
        let end = clock.now();
        let each = |nanos: u128| nanos as f64 / 1e3 / packets.len().max(1) as f64;
        Ok([
            each(middle.since(begun).as_nanos()),
            each(end.since(middle).as_nanos()),
        ])
    }
}

fn aead(algorithm: &'static aws_lc_rs::aead::Algorithm, case: &EspCase) -> Option<Work> {
    // The salt is not part of the library's key.
    let key = KEY.get(..case.key_bytes - 4)?;
    let key = UnboundKey::new(algorithm, key).ok()?;
    Some(Work::Aead(LessSafeKey::new(key)))
}

impl Work {
    fn seal(
        &self,
        packet: &mut [u8],
        start: usize,
        encrypted: usize,
    ) -> Result<(), aws_lc_rs::error::Unspecified> {
        let end = start + encrypted;
        match self {
            Work::Cbc(keys) => {
                let CbcKeys { seal, mac, .. } = &**keys;
                let context = EncryptionContext::Iv128([0x5a; 16].into());
                seal.less_safe_encrypt(&mut packet[start..end], context)?;
                if let Some(mac) = mac {
                    let tag = hmac::sign(mac, &packet[..end]);
                    let icv = &mut packet[end..];
                    let length = icv.len();
                    icv.copy_from_slice(&tag.as_ref()[..length]);
                }
            }
            Work::Aead(key) => {
                let (header, rest) = packet.split_at_mut(start);
                let (text, icv) = rest.split_at_mut(encrypted);
                let nonce = Nonce::assume_unique_for_key([0x5a; 12]);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&header[..8]), text)?;
                icv.copy_from_slice(tag.as_ref());
            }
        }
        black_box(packet);
        Ok(())
    }

    fn open(
        &self,
        packet: &mut [u8],
        start: usize,
        encrypted: usize,
    ) -> Result<(), aws_lc_rs::error::Unspecified> {
        let end = start + encrypted;
        match self {
            Work::Cbc(keys) => {
                let CbcKeys { open, mac, .. } = &**keys;
                if let Some(mac) = mac {
                    let tag = hmac::sign(mac, &packet[..end]);
                    let icv = &packet[end..];
                    if aws_lc_rs::constant_time::verify_slices_are_equal(
                        &tag.as_ref()[..icv.len()],
                        icv,
                    )
                    .is_err()
                    {
                        return Err(aws_lc_rs::error::Unspecified);
                    }
                }
                let context = DecryptionContext::Iv128([0x5a; 16].into());
                black_box(open.decrypt(&mut packet[start..end], context)?);
            }
            Work::Aead(key) => {
                let (header, text) = packet.split_at_mut(start);
                let nonce = Nonce::assume_unique_for_key([0x5a; 12]);
                black_box(key.open_in_place(nonce, Aad::from(&header[..8]), text)?);
            }
        }
        Ok(())
    }
}
