//! Session keys of one direction and their application to a packet. The caller has chosen index and key.

use super::derive::{Label, derive, master_cipher};
use super::{CipherKind, MasterKey, SrtpFailure};
use crate::cipher::{BadKey, CounterKey, GcmKey, HmacSha1, PacketAead, PacketCipher, PacketMac};
use subtle::ConstantTimeEq;
use wire::rtp::RtpView;
use zeroize::Zeroizing;

/// Length of an RTCP header with its source, which is never encrypted (RFC 3711 section 3.4).
const RTCP_CLEAR: usize = 8;
/// The E flag in the word of the SRTCP index: encrypted.
const E_FLAG: u32 = 1 << 31;

// Boxing the larger variant would cost the hot path a pointer for the sake of the rarer one.
#[allow(clippy::large_enum_variant)]
enum Cipher {
    Null,
    Counter { key: CounterKey, salt: u128 },
    Gcm { key: GcmKey, salt: [u8; 12] },
}

/// Session keys for SRTP or SRTCP, prepared for use.
pub(super) struct Transform {
    cipher: Cipher,
    /// Absent if the cipher authenticates.
    mac: Option<HmacSha1>,
    tag: usize,
    encrypts: bool,
}

impl Transform {
    /// Derives the session keys of `master` for SRTP or SRTCP at `epoch` (RFC 3711 section 4.3.1).
    pub fn derive(master: &MasterKey, rtcp: bool, epoch: u64) -> Result<Transform, BadKey> {
        let prf = master_cipher(master.key())?;
        let part = |label, length: usize| {
            let mut out = Zeroizing::new(vec![0u8; length]);
            derive(&prf, master.salt(), label, rtcp, epoch, &mut out);
            out
        };
        let suite = master.suite();
        let key = part(Label::Encryption, suite.key_length());
        let salt = part(Label::Salt, suite.salt_length());
        let authentication = part(Label::Authentication, 20);
        let options = master.options();
        let mut transform = Transform::new(suite.cipher(), &key, &salt, &authentication)?;
        if rtcp {
            transform.tag = suite.rtcp_tag_length();
            transform.encrypts &= !options.unencrypted_srtcp;
        } else {
            transform.tag = suite.rtp_tag_length();
            transform.encrypts &= !options.unencrypted_srtp;
            if options.unauthenticated_srtp && suite.cipher() != CipherKind::Gcm {
                transform.mac = None;
                transform.tag = 0;
            }
        }
        Ok(transform)
    }

    /// From session keys; the tag has 80 bits, or 128 with Galois/counter mode.
    fn new(
        kind: CipherKind,
        key: &[u8],
        salt: &[u8],
        authentication: &[u8],
    ) -> Result<Transform, BadKey> {
        let cipher = match kind {
            CipherKind::Null => Cipher::Null,
            CipherKind::Gcm => Cipher::Gcm {
                key: GcmKey::new(key)?,
                salt: salt.try_into().map_err(|_| BadKey)?,
            },
            CipherKind::Counter => {
                let mut block = [0u8; 16];
                block
                    .get_mut(..salt.len())
                    .ok_or(BadKey)?
                    .copy_from_slice(salt);
                Cipher::Counter {
                    key: CounterKey::new(key)?,
                    salt: u128::from_be_bytes(block),
                }
            }
        };
        let gcm = kind == CipherKind::Gcm;
        Ok(Transform {
            mac: (!gcm).then(|| HmacSha1::new(authentication)),
            tag: if gcm { 16 } else { 10 },
            encrypts: kind != CipherKind::Null,
            cipher,
        })
    }

    /// Reads the data around the keys.
    pub fn prefetch(&self) -> u64 {
        let salt = match &self.cipher {
            Cipher::Null => 0,
            Cipher::Counter { salt, .. } => *salt as u64,
            Cipher::Gcm { salt, .. } => u64::from(salt[0]),
        };
        let mac = self.mac.as_ref().map_or(0, HmacSha1::prefetch);
        salt ^ mac ^ self.tag as u64
    }

    /// Whether packets are authenticated.
    pub fn authenticates(&self) -> bool {
        self.tag != 0
    }

    /// Whether a failed attempt to unprotect leaves the packet unusable.
    pub fn destroys_on_failure(&self) -> bool {
        matches!(self.cipher, Cipher::Gcm { .. })
    }

    /// Bytes that protection adds to an SRTP packet.
    pub fn rtp_overhead(&self, mki: usize) -> usize {
        self.tag + mki
    }

    /// Bytes that protection adds to an SRTCP packet.
    pub fn rtcp_overhead(&self, mki: usize) -> usize {
        self.tag + mki + 4
    }

    /// The MKI of `length` bytes of an SRTP or SRTCP packet, if the packet is long enough (RFC 3711 figures 1 and 2,
    /// RFC 7714 figures 3 and 4: the MKI is last there).
    pub fn mki<'p>(&self, packet: &'p [u8], length: usize) -> Option<&'p [u8]> {
        let trailer = if self.destroys_on_failure() {
            0
        } else {
            self.tag
        };
        let end = packet.len().checked_sub(trailer)?;
        packet.get(end.checked_sub(length)?..end)
    }

    /// Protects the first `length` bytes of `buffer`, an RTP packet; the buffer has room for the overhead.
    pub fn protect_rtp(
        &self,
        buffer: &mut [u8],
        length: usize,
        ssrc: u32,
        index: u64,
        mki: &[u8],
    ) -> Result<usize, SrtpFailure> {
        let whole = length + self.rtp_overhead(mki.len());
        let (packet, trailer) = buffer
            .get_mut(..whole)
            .and_then(|buffer| buffer.split_at_mut_checked(length))
            .ok_or(SrtpFailure::NoRoom)?;
        let header = RtpView::parse(packet)
            .ok_or(SrtpFailure::Malformed)?
            .header_length();
        let (clear, payload) = packet.split_at_mut(header);
        match &self.cipher {
            Cipher::Gcm { key, salt } => {
                let nonce = gcm_nonce(salt, ssrc, index);
                let tag = if self.encrypts {
                    key.encrypt(nonce, clear, payload)
                } else {
                    key.encrypt(nonce, packet, &mut [])
                };
                let tag = tag.map_err(|_| SrtpFailure::Malformed)?;
                write_parts(trailer, &[&tag, mki]);
                return Ok(whole);
            }
            Cipher::Counter { key, salt } if self.encrypts => {
                key.encrypt(&counter_block(*salt, ssrc, index), payload);
            }
            _ => {}
        }
        match &self.mac {
            Some(mac) => {
                let tag = mac.tag(packet, &rollover(index));
                write_parts(trailer, &[mki, tag.get(..self.tag).unwrap_or_default()]);
            }
            None => write_parts(trailer, &[mki]),
        }
        Ok(whole)
    }

    /// Verifies and decrypts an SRTP packet; returns the length of the RTP packet.
    pub fn unprotect_rtp(
        &self,
        packet: &mut [u8],
        ssrc: u32,
        index: u64,
        mki: usize,
    ) -> Result<usize, SrtpFailure> {
        let length = packet
            .len()
            .checked_sub(self.rtp_overhead(mki))
            .ok_or(SrtpFailure::Malformed)?;
        let (packet, trailer) = packet.split_at_mut(length);
        let header = RtpView::parse(packet)
            .ok_or(SrtpFailure::Malformed)?
            .header_length();
        if let Some(mac) = &self.mac {
            let expected = mac.tag(packet, &rollover(index));
            let received = trailer.get(mki..).unwrap_or_default();
            verify_tag(expected.get(..self.tag).unwrap_or_default(), received)?;
        }
        let (clear, payload) = packet.split_at_mut(header);
        match &self.cipher {
            Cipher::Gcm { key, salt } => {
                let nonce = gcm_nonce(salt, ssrc, index);
                let tag = trailer.get(..self.tag).unwrap_or_default();
                let opened = if self.encrypts {
                    key.decrypt(nonce, clear, payload, tag)
                } else {
                    key.decrypt(nonce, packet, &mut [], tag)
                };
                opened.map_err(|_| SrtpFailure::Authentication)?;
            }
            Cipher::Counter { key, salt } if self.encrypts => {
                key.decrypt(&counter_block(*salt, ssrc, index), payload);
            }
            _ => {}
        }
        Ok(length)
    }

    /// Protects the first `length` bytes of `buffer`, an RTCP packet; the buffer has room for the overhead.
    pub fn protect_rtcp(
        &self,
        buffer: &mut [u8],
        length: usize,
        ssrc: u32,
        index: u32,
        mki: &[u8],
    ) -> Result<usize, SrtpFailure> {
        let whole = length + self.rtcp_overhead(mki.len());
        let buffer = buffer.get_mut(..whole).ok_or(SrtpFailure::NoRoom)?;
        if length < RTCP_CLEAR {
            return Err(SrtpFailure::Malformed);
        }
        let flag = if self.encrypts { E_FLAG } else { 0 };
        let word = (index | flag).to_be_bytes();
        if let Cipher::Gcm { key, salt } = &self.cipher {
            let nonce = gcm_nonce_rtcp(salt, ssrc, index);
            let tag = if self.encrypts {
                let (packet, _) = buffer.split_at_mut(length);
                let (clear, body) = packet.split_at_mut(RTCP_CLEAR);
                key.encrypt(nonce, &rtcp_aad(clear, word), body)
            } else {
                // The index is authenticated as if it followed the packet; it is sent behind the tag.
                write_parts(buffer.split_at_mut(length).1, &[&word]);
                key.encrypt(nonce, buffer.split_at(length + 4).0, &mut [])
            };
            let tag = tag.map_err(|_| SrtpFailure::Malformed)?;
            write_parts(buffer.split_at_mut(length).1, &[&tag, &word, mki]);
            return Ok(whole);
        }
        let (packet, trailer) = buffer.split_at_mut(length);
        if let Cipher::Counter { key, salt } = &self.cipher
            && self.encrypts
        {
            let block = counter_block(*salt, ssrc, u64::from(index));
            key.encrypt(&block, packet.split_at_mut(RTCP_CLEAR).1);
        }
        if let Some(mac) = &self.mac {
            let tag = mac.tag(packet, &word);
            let tag = tag.get(..self.tag).unwrap_or_default();
            write_parts(trailer, &[&word, mki, tag]);
        }
        Ok(whole)
    }

    /// The index of an SRTCP packet, and its E flag.
    pub fn rtcp_index(&self, packet: &[u8], mki: usize) -> Result<(u32, bool), SrtpFailure> {
        let trailer = if self.destroys_on_failure() {
            0
        } else {
            self.tag
        } + mki;
        let word = packet
            .len()
            .checked_sub(trailer)
            .and_then(|end| packet.get(..end))
            .and_then(|before| before.last_chunk::<4>())
            .ok_or(SrtpFailure::Malformed)?;
        let word = u32::from_be_bytes(*word);
        Ok((word & !E_FLAG, word & E_FLAG != 0))
    }

    /// Verifies and decrypts an SRTCP packet; returns the length of the RTCP packet. A packet without the E flag is
    /// accepted unencrypted if its tag is valid: the sender sets the flag for each packet (RFC 3711 section 3.4).
    pub fn unprotect_rtcp(
        &self,
        packet: &mut [u8],
        ssrc: u32,
        index: u32,
        encrypted: bool,
        mki: usize,
    ) -> Result<usize, SrtpFailure> {
        let length = packet
            .len()
            .checked_sub(self.rtcp_overhead(mki))
            .filter(|length| *length >= RTCP_CLEAR)
            .ok_or(SrtpFailure::Malformed)?;
        let flag = if encrypted { E_FLAG } else { 0 };
        let word = (index | flag).to_be_bytes();
        if let Cipher::Gcm { key, salt } = &self.cipher {
            let nonce = gcm_nonce_rtcp(salt, ssrc, index);
            let (body, trailer) = packet.split_at_mut(length);
            let tag: [u8; 16] = *trailer.first_chunk().ok_or(SrtpFailure::Malformed)?;
            let opened = if encrypted {
                let (clear, body) = body.split_at_mut(RTCP_CLEAR);
                key.decrypt(nonce, &rtcp_aad(clear, word), body, &tag)
            } else {
                write_parts(trailer, &[&word]);
                let opened = key.decrypt(nonce, packet.split_at(length + 4).0, &mut [], &tag);
                write_parts(packet.split_at_mut(length).1, &[&tag]);
                opened
            };
            return opened
                .map(|()| length)
                .map_err(|_| SrtpFailure::Authentication);
        }
        let (packet, trailer) = packet.split_at_mut(length);
        if let Some(mac) = &self.mac {
            let expected = mac.tag(packet, &word);
            let received = trailer.get(4 + mki..).unwrap_or_default();
            verify_tag(expected.get(..self.tag).unwrap_or_default(), received)?;
        }
        if let Cipher::Counter { key, salt } = &self.cipher
            && encrypted
        {
            let block = counter_block(*salt, ssrc, u64::from(index));
            key.decrypt(&block, packet.split_at_mut(RTCP_CLEAR).1);
        }
        Ok(length)
    }
}

/// Compares two tags in constant time.
#[inline]
fn verify_tag(expected: &[u8], received: &[u8]) -> Result<(), SrtpFailure> {
    if bool::from(expected.ct_eq(received)) {
        Ok(())
    } else {
        Err(SrtpFailure::Authentication)
    }
}

/// Writes `parts` one after the other; the caller has checked the room.
#[inline]
fn write_parts(mut to: &mut [u8], parts: &[&[u8]]) {
    for part in parts {
        let Some((here, rest)) = to.split_at_mut_checked(part.len()) else {
            return;
        };
        here.copy_from_slice(part);
        to = rest;
    }
}

/// The rollover counter, which is authenticated but not sent (RFC 3711 section 4.2).
#[inline]
fn rollover(index: u64) -> [u8; 4] {
    ((index >> 16) as u32).to_be_bytes()
}

/// The first counter block (RFC 3711 section 4.1.1): salt * 2^16 XOR SSRC * 2^64 XOR index * 2^16. `salt` is already
/// multiplied.
#[inline]
fn counter_block(salt: u128, ssrc: u32, index: u64) -> [u8; 16] {
    (salt ^ (u128::from(ssrc) << 64) ^ (u128::from(index) << 16)).to_be_bytes()
}

/// RFC 7714 section 8.1: two zero bytes, SSRC, rollover counter, sequence number, XOR the salt.
#[inline]
fn gcm_nonce(salt: &[u8; 12], ssrc: u32, index: u64) -> [u8; 12] {
    let fields = (u128::from(ssrc) << 48 | u128::from(index)).to_be_bytes();
    xor(salt, &fields)
}

/// RFC 7714 section 9.1: two zero bytes, SSRC, two zero bytes, index, XOR the salt.
#[inline]
fn gcm_nonce_rtcp(salt: &[u8; 12], ssrc: u32, index: u32) -> [u8; 12] {
    let fields = (u128::from(ssrc) << 48 | u128::from(index)).to_be_bytes();
    xor(salt, &fields)
}

#[inline]
fn xor(salt: &[u8; 12], fields: &[u8; 16]) -> [u8; 12] {
    let mut nonce = *salt;
    for (byte, field) in nonce.iter_mut().zip(fields.iter().skip(4)) {
        *byte ^= field;
    }
    nonce
}

/// Header and index word: additional authenticated data of an encrypted SRTCP packet (RFC 7714 section 9.2).
#[inline]
fn rtcp_aad(clear: &[u8], word: [u8; 4]) -> [u8; 12] {
    let mut aad = [0u8; 12];
    write_parts(&mut aad, &[clear, &word]);
    aad
}

#[cfg(test)]
#[path = "transform_tests.rs"]
mod tests;
