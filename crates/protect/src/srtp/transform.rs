//! One direction's session keys at work on a packet. Which index and which key is settled before it gets here.

use super::derive::{Label, derive, master_cipher};
use super::{CipherKind, Failure, MasterKey};
use crate::cipher::{BadKey, CounterKey, GcmKey, HmacSha1, PacketAead, PacketCipher, PacketMac};
use subtle::ConstantTimeEq;
use wire::rtp::RtpView;
use zeroize::Zeroizing;

/// Length of an RTCP header with its source, which is never encrypted (RFC 3711 section 3.4).
const RTCP_CLEAR: usize = 8;
/// The flag before an SRTCP index: encrypted.
const E_FLAG: u32 = 1 << 31;

// Boxing the larger variant would cost the hot path a pointer for the sake of the rarer one.
#[allow(clippy::large_enum_variant)]
enum Cipher {
    Null,
    Counter { key: CounterKey, salt: u128 },
    Gcm { key: GcmKey, salt: [u8; 12] },
}

/// Session keys for SRTP or for SRTCP, ready for use.
pub(super) struct Transform {
    cipher: Cipher,
    /// Present unless the cipher authenticates by itself.
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

    /// Reads what stands around the keys.
    pub fn read_ahead(&self) -> u64 {
        let salt = match &self.cipher {
            Cipher::Null => 0,
            Cipher::Counter { salt, .. } => *salt as u64,
            Cipher::Gcm { salt, .. } => u64::from(salt[0]),
        };
        let mac = self.mac.as_ref().map_or(0, HmacSha1::read_ahead);
        salt ^ mac ^ self.tag as u64
    }

    /// Whether a packet proves that its sender knows the key.
    pub fn authenticates(&self) -> bool {
        self.tag != 0
    }

    /// Whether a failed attempt to open leaves the packet unusable.
    pub fn destroys(&self) -> bool {
        matches!(self.cipher, Cipher::Gcm { .. })
    }

    /// What sealing an SRTP packet adds.
    pub fn rtp_overhead(&self, mki: usize) -> usize {
        self.tag + mki
    }

    /// What sealing an SRTCP packet adds.
    pub fn rtcp_overhead(&self, mki: usize) -> usize {
        self.tag + mki + 4
    }

    /// The MKI of an SRTP or SRTCP packet, where one of `length` bytes is in its place (RFC 3711 figures 1 and 2,
    /// RFC 7714 figures 3 and 4: behind everything else there).
    pub fn mki<'p>(&self, packet: &'p [u8], length: usize) -> Option<&'p [u8]> {
        let behind = if self.destroys() { 0 } else { self.tag };
        let end = packet.len().checked_sub(behind)?;
        packet.get(end.checked_sub(length)?..end)
    }

    /// Seals the `length` bytes of an RTP packet in `buffer`, which has room for the overhead.
    pub fn seal_rtp(
        &self,
        buffer: &mut [u8],
        length: usize,
        ssrc: u32,
        index: u64,
        mki: &[u8],
    ) -> Result<usize, Failure> {
        let whole = length + self.rtp_overhead(mki.len());
        let (packet, behind) = buffer
            .get_mut(..whole)
            .and_then(|buffer| buffer.split_at_mut_checked(length))
            .ok_or(Failure::NoRoom)?;
        let header = RtpView::parse(packet)
            .ok_or(Failure::Malformed)?
            .header_length();
        let (clear, payload) = packet.split_at_mut(header);
        match &self.cipher {
            Cipher::Gcm { key, salt } => {
                let nonce = gcm_nonce(salt, ssrc, index);
                let tag = if self.encrypts {
                    key.seal(nonce, clear, payload)
                } else {
                    key.seal(nonce, packet, &mut [])
                };
                let tag = tag.map_err(|_| Failure::Malformed)?;
                put(behind, &[&tag, mki]);
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
                put(behind, &[mki, tag.get(..self.tag).unwrap_or_default()]);
            }
            None => put(behind, &[mki]),
        }
        Ok(whole)
    }

    /// Checks and decrypts an SRTP packet; gives the length of the RTP packet.
    pub fn open_rtp(
        &self,
        packet: &mut [u8],
        ssrc: u32,
        index: u64,
        mki: usize,
    ) -> Result<usize, Failure> {
        let length = packet
            .len()
            .checked_sub(self.rtp_overhead(mki))
            .ok_or(Failure::Malformed)?;
        let (packet, behind) = packet.split_at_mut(length);
        let header = RtpView::parse(packet)
            .ok_or(Failure::Malformed)?
            .header_length();
        if let Some(mac) = &self.mac {
            let right = mac.tag(packet, &rollover(index));
            let given = behind.get(mki..).unwrap_or_default();
            same(right.get(..self.tag).unwrap_or_default(), given)?;
        }
        let (clear, payload) = packet.split_at_mut(header);
        match &self.cipher {
            Cipher::Gcm { key, salt } => {
                let nonce = gcm_nonce(salt, ssrc, index);
                let tag = behind.get(..self.tag).unwrap_or_default();
                let opened = if self.encrypts {
                    key.open(nonce, clear, payload, tag)
                } else {
                    key.open(nonce, packet, &mut [], tag)
                };
                opened.map_err(|_| Failure::Authentication)?;
            }
            Cipher::Counter { key, salt } if self.encrypts => {
                key.decrypt(&counter_block(*salt, ssrc, index), payload);
            }
            _ => {}
        }
        Ok(length)
    }

    /// Seals the `length` bytes of an RTCP packet in `buffer`, which has room for the overhead.
    pub fn seal_rtcp(
        &self,
        buffer: &mut [u8],
        length: usize,
        ssrc: u32,
        index: u32,
        mki: &[u8],
    ) -> Result<usize, Failure> {
        let whole = length + self.rtcp_overhead(mki.len());
        let buffer = buffer.get_mut(..whole).ok_or(Failure::NoRoom)?;
        if length < RTCP_CLEAR {
            return Err(Failure::Malformed);
        }
        let flag = if self.encrypts { E_FLAG } else { 0 };
        let word = (index | flag).to_be_bytes();
        if let Cipher::Gcm { key, salt } = &self.cipher {
            let nonce = gcm_nonce_rtcp(salt, ssrc, index);
            let tag = if self.encrypts {
                let (packet, _) = buffer.split_at_mut(length);
                let (clear, body) = packet.split_at_mut(RTCP_CLEAR);
                key.seal(nonce, &rtcp_aad(clear, word), body)
            } else {
                // The index is authenticated as if it followed the packet; its place is behind the tag.
                put(buffer.split_at_mut(length).1, &[&word]);
                key.seal(nonce, buffer.split_at(length + 4).0, &mut [])
            };
            let tag = tag.map_err(|_| Failure::Malformed)?;
            put(buffer.split_at_mut(length).1, &[&tag, &word, mki]);
            return Ok(whole);
        }
        let (packet, behind) = buffer.split_at_mut(length);
        if let Cipher::Counter { key, salt } = &self.cipher
            && self.encrypts
        {
            let block = counter_block(*salt, ssrc, u64::from(index));
            key.encrypt(&block, packet.split_at_mut(RTCP_CLEAR).1);
        }
        if let Some(mac) = &self.mac {
            let tag = mac.tag(packet, &word);
            let tag = tag.get(..self.tag).unwrap_or_default();
            put(behind, &[&word, mki, tag]);
        }
        Ok(whole)
    }

    /// The index of an SRTCP packet and whether it says that it is encrypted.
    pub fn rtcp_index(&self, packet: &[u8], mki: usize) -> Result<(u32, bool), Failure> {
        let behind = if self.destroys() { 0 } else { self.tag } + mki;
        let word = packet
            .len()
            .checked_sub(behind)
            .and_then(|end| packet.get(..end))
            .and_then(|before| before.last_chunk::<4>())
            .ok_or(Failure::Malformed)?;
        let word = u32::from_be_bytes(*word);
        Ok((word & !E_FLAG, word & E_FLAG != 0))
    }

    /// Checks and decrypts an SRTCP packet; gives the length of the RTCP packet. A packet that says that it is not encrypted is
    /// taken as it is, once its tag was right: the flag is the sender's to set for each packet (RFC 3711 section 3.4).
    pub fn open_rtcp(
        &self,
        packet: &mut [u8],
        ssrc: u32,
        index: u32,
        encrypted: bool,
        mki: usize,
    ) -> Result<usize, Failure> {
        let length = packet
            .len()
            .checked_sub(self.rtcp_overhead(mki))
            .filter(|length| *length >= RTCP_CLEAR)
            .ok_or(Failure::Malformed)?;
        let flag = if encrypted { E_FLAG } else { 0 };
        let word = (index | flag).to_be_bytes();
        if let Cipher::Gcm { key, salt } = &self.cipher {
            let nonce = gcm_nonce_rtcp(salt, ssrc, index);
            let (body, behind) = packet.split_at_mut(length);
            let tag: [u8; 16] = *behind.first_chunk().ok_or(Failure::Malformed)?;
            let opened = if encrypted {
                let (clear, body) = body.split_at_mut(RTCP_CLEAR);
                key.open(nonce, &rtcp_aad(clear, word), body, &tag)
            } else {
                put(behind, &[&word]);
                let opened = key.open(nonce, packet.split_at(length + 4).0, &mut [], &tag);
                put(packet.split_at_mut(length).1, &[&tag]);
                opened
            };
            return opened.map(|()| length).map_err(|_| Failure::Authentication);
        }
        let (packet, behind) = packet.split_at_mut(length);
        if let Some(mac) = &self.mac {
            let right = mac.tag(packet, &word);
            let given = behind.get(4 + mki..).unwrap_or_default();
            same(right.get(..self.tag).unwrap_or_default(), given)?;
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

/// Whether two tags are one, in a time that does not tell where they differ.
#[inline]
fn same(right: &[u8], given: &[u8]) -> Result<(), Failure> {
    if bool::from(right.ct_eq(given)) {
        Ok(())
    } else {
        Err(Failure::Authentication)
    }
}

/// Writes `parts` one behind the other; the caller measured the room.
#[inline]
fn put(mut to: &mut [u8], parts: &[&[u8]]) {
    for part in parts {
        let Some((here, rest)) = to.split_at_mut_checked(part.len()) else {
            return;
        };
        here.copy_from_slice(part);
        to = rest;
    }
}

/// The rollover counter, which is authenticated but never sent (RFC 3711 section 4.2).
#[inline]
fn rollover(index: u64) -> [u8; 4] {
    ((index >> 16) as u32).to_be_bytes()
}

/// The first counter block (RFC 3711 section 4.1.1): salt * 2^16 XOR SSRC * 2^64 XOR index * 2^16. `salt` holds its product.
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

/// Header and index word: what an encrypted SRTCP packet authenticates besides its body (RFC 7714 section 9.2).
#[inline]
fn rtcp_aad(clear: &[u8], word: [u8; 4]) -> [u8; 12] {
    let mut aad = [0u8; 12];
    put(&mut aad, &[clear, &word]);
    aad
}

#[cfg(test)]
#[path = "transform_tests.rs"]
mod tests;
