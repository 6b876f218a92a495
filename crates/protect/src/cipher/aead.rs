//! Authenticated encryption in aws-lc: AES-GCM and ChaCha20-Poly1305, and tags that are truncated.

use super::{BadKey, BadTag, PacketAead};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// AES in Galois/counter mode with tags of 16 bytes (RFC 7714 section 13.1, RFC 4106).
pub struct GcmKey(Box<LessSafeKey>);

impl GcmKey {
    /// A key of 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn new(key: &[u8]) -> Result<GcmKey, BadKey> {
        let algorithm = match key.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            _ => return Err(BadKey),
        };
        let key = UnboundKey::new(algorithm, key).map_err(|_| BadKey)?;
        Ok(GcmKey(Box::new(LessSafeKey::new(key))))
    }
}

/// ChaCha20-Poly1305 with tags of 16 bytes (RFC 8439).
pub struct ChaChaKey(Box<LessSafeKey>);

impl ChaChaKey {
    /// A key of 32 bytes.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn new(key: &[u8]) -> Result<ChaChaKey, BadKey> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(|_| BadKey)?;
        Ok(ChaChaKey(Box::new(LessSafeKey::new(key))))
    }
}

#[inline]
fn seal(
    key: &LessSafeKey,
    nonce: [u8; 12],
    aad: &[u8],
    data: &mut [u8],
) -> Result<[u8; 16], BadTag> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let sealed = key.seal_in_place_separate_tag(nonce, Aad::from(aad), data);
    let tag = sealed.map_err(|_| BadTag)?;
    tag.as_ref().try_into().map_err(|_| BadTag)
}

#[inline]
fn open(
    key: &LessSafeKey,
    nonce: [u8; 12],
    aad: &[u8],
    data: &mut [u8],
    tag: &[u8],
) -> Result<(), BadTag> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = key.open_in_place_separate_tag(nonce, Aad::from(aad), tag, data);
    opened.map(|_| ()).map_err(|_| BadTag)
}

macro_rules! packet_aead {
    ($($key:ty),*) => {$(
        impl PacketAead for $key {
            #[inline]
            fn encrypt(
                &self,
                nonce: [u8; 12],
                aad: &[u8],
                data: &mut [u8],
            ) -> Result<[u8; 16], BadTag> {
                seal(&self.0, nonce, aad, data)
            }

            #[inline]
            fn decrypt(
                &self,
                nonce: [u8; 12],
                aad: &[u8],
                data: &mut [u8],
                tag: &[u8],
            ) -> Result<(), BadTag> {
                open(&self.0, nonce, aad, data, tag)
            }
        }
    )*};
}

packet_aead!(GcmKey, ChaChaKey);

/// AES-GCM that verifies truncated tags of 8 or 12 bytes (RFC 4106 section 6). aws-lc verifies whole tags only.
/// The tag is therefore computed again by encryption, which costs three passes over the packet.
pub struct TruncatedAead(GcmKey);

impl TruncatedAead {
    /// A key of 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn new(key: &[u8]) -> Result<TruncatedAead, BadKey> {
        GcmKey::new(key).map(TruncatedAead)
    }
}

impl PacketAead for TruncatedAead {
    fn encrypt(&self, nonce: [u8; 12], aad: &[u8], data: &mut [u8]) -> Result<[u8; 16], BadTag> {
        self.0.encrypt(nonce, aad, data)
    }

    fn decrypt(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8],
    ) -> Result<(), BadTag> {
        // Encryption is an XOR with the keystream, so that it decrypts, too; only the second tag is that of the
        // ciphertext. No keystream and no tag of this leaves the function.
        self.0.encrypt(nonce, aad, data)?;
        let whole = self.0.encrypt(nonce, aad, data)?;
        let expected = whole.get(..tag.len()).unwrap_or_default();
        if !matches!(tag.len(), 8 | 12 | 16) || !bool::from(expected.ct_eq(tag)) {
            data.zeroize();
            return Err(BadTag);
        }
        self.0.encrypt(nonce, aad, data).map(|_| ())
    }
}
