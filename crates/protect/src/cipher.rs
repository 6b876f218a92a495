//! Ciphers and authenticators for packets, behind traits, so that implementations can be exchanged.
//!
//! `examples/srtp_speed.rs` measures all implementations. Its results determine [`CounterKey::new`]: with AES
//! instructions RustCrypto's cipher is faster than aws-lc for packets of compressed voice, equal up to some 700
//! bytes, and has a third of the key's size; without them aws-lc's vector code is far faster. HMAC-SHA1 from saved
//! states is always faster than a library that sets up a context for each packet. AES-GCM is always fastest in
//! aws-lc.

mod aead;
mod cbc;
mod hmac;

pub use aead::{ChaChaKey, GcmKey, TruncatedAead};
pub use cbc::CbcKey;
pub use hmac::{Hmac, HmacMd5, HmacSha1, HmacSha256, HmacSha384, HmacSha512};

use aes::cipher::array::Array;
use aes::cipher::consts::U16;
use aes::cipher::{BlockCipherEncrypt, InnerIvInit, KeyInit, StreamCipherCore};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use ctr::CtrCore;
use ctr::flavors::Ctr128BE;
use zeroize::Zeroize;

/// A key of invalid length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadKey;

/// The tag does not match key, nonce and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTag;

/// A cipher with its key. `iv` is the initial counter block or initialisation vector; the caller must ensure that it
/// never repeats under one key if the algorithm requires it.
pub trait PacketCipher {
    /// Encrypts in place.
    fn encrypt(&self, iv: &[u8; 16], data: &mut [u8]);
    /// Decrypts in place.
    fn decrypt(&self, iv: &[u8; 16], data: &mut [u8]);
}

/// A message authentication code with its key.
pub trait PacketMac {
    /// The untruncated tag, an array of bytes.
    type Tag: AsRef<[u8]>;
    /// The untruncated tag over `data` followed by `suffix`.
    fn tag(&self, data: &[u8], suffix: &[u8]) -> Self::Tag;
}

/// Authenticated encryption with its key.
pub trait PacketAead {
    /// Encrypts `data` in place and returns the tag over `aad` and the ciphertext.
    ///
    /// # Errors
    /// [`BadTag`] if the data exceeds the algorithm's limit (2^36 bytes); `data` is then unusable.
    fn encrypt(&self, nonce: [u8; 12], aad: &[u8], data: &mut [u8]) -> Result<[u8; 16], BadTag>;
    /// Checks the tag and decrypts `data` in place.
    ///
    /// # Errors
    /// [`BadTag`]; `data` is then unusable.
    fn decrypt(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        data: &mut [u8],
        tag: &[u8],
    ) -> Result<(), BadTag>;
}

/// AES in counter mode (RFC 3711 section 4.1.1, RFC 6188 section 3), in the fastest implementation for the processor.
pub struct CounterKey(Counter);

enum Counter {
    Aes128(aes::Aes128Enc),
    Aes192(aes::Aes192Enc),
    Aes256(aes::Aes256Enc),
    AwsLc(Box<EncryptingKey>),
}

/// Implementation of a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// RustCrypto.
    RustCrypto,
    /// aws-lc.
    AwsLc,
}

impl Backend {
    /// The faster implementation on this processor, for voice packets.
    pub fn fastest() -> Backend {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        let in_hardware = std::arch::is_x86_feature_detected!("aes");
        #[cfg(target_arch = "aarch64")]
        let in_hardware = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
        let in_hardware = false;
        if in_hardware {
            Backend::RustCrypto
        } else {
            Backend::AwsLc
        }
    }
}

impl CounterKey {
    /// A key of 16, 24 or 32 bytes, in the faster implementation.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn new(key: &[u8]) -> Result<CounterKey, BadKey> {
        CounterKey::with_backend(Backend::fastest(), key)
    }

    /// A key of 16, 24 or 32 bytes, in the given implementation.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn with_backend(backend: Backend, key: &[u8]) -> Result<CounterKey, BadKey> {
        let rust = backend == Backend::RustCrypto;
        let algorithm = match key.len() {
            16 if rust => return rust_key(key, Counter::Aes128),
            24 if rust => return rust_key(key, Counter::Aes192),
            32 if rust => return rust_key(key, Counter::Aes256),
            16 => &AES_128,
            24 => &AES_192,
            32 => &AES_256,
            _ => return Err(BadKey),
        };
        let key = UnboundCipherKey::new(algorithm, key).map_err(|_| BadKey)?;
        let key = EncryptingKey::ctr(key).map_err(|_| BadKey)?;
        Ok(CounterKey(Counter::AwsLc(Box::new(key))))
    }
}

fn rust_key<K: KeyInit>(key: &[u8], wrap: fn(K) -> Counter) -> Result<CounterKey, BadKey> {
    let key = K::new_from_slice(key).map_err(|_| BadKey)?;
    Ok(CounterKey(wrap(key)))
}

/// Keystream blocks that are generated on the stack for a short packet; for longer ones the general counter mode is
/// as fast.
const SHORT_BLOCKS: usize = 6;

/// XORs the keystream from counter block `iv` into `data`.
#[inline]
fn apply<K: BlockCipherEncrypt<BlockSize = U16>>(key: &K, iv: &[u8; 16], data: &mut [u8]) {
    if data.len() > 16 * SHORT_BLOCKS {
        let mut mode = CtrCore::<&K, Ctr128BE>::inner_iv_init(key, iv.into());
        let (whole, rest) = data.as_chunks_mut::<16>();
        mode.apply_keystream_blocks(Array::cast_slice_from_core_mut(whole));
        if !rest.is_empty() {
            let mut block = Array::from([0u8; 16]);
            mode.write_keystream_block(&mut block);
            for (byte, mask) in rest.iter_mut().zip(&block) {
                *byte ^= mask;
            }
        }
        return;
    }
    let mut counter = u128::from_be_bytes(*iv);
    let mut stream = [Array::from([0u8; 16]); SHORT_BLOCKS];
    let (stream, _) = stream.split_at_mut(data.len().div_ceil(16));
    for block in stream.iter_mut() {
        block.0 = counter.to_be_bytes();
        counter = counter.wrapping_add(1);
    }
    match &mut *stream {
        // Setting up wide registers for several blocks does not pay for one or two G.729 frames.
        [first] => key.encrypt_block(first),
        [first, second] => {
            key.encrypt_block(first);
            key.encrypt_block(second);
        }
        more => key.encrypt_blocks(more),
    }
    let (whole, rest) = data.as_chunks_mut::<16>();
    let mut stream = stream.iter();
    for (bytes, block) in whole.iter_mut().zip(&mut stream) {
        *bytes = (u128::from_ne_bytes(*bytes) ^ u128::from_ne_bytes(block.0)).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(stream.next().into_iter().flatten()) {
        *byte ^= mask;
    }
}

impl PacketCipher for CounterKey {
    #[inline]
    fn encrypt(&self, iv: &[u8; 16], data: &mut [u8]) {
        match &self.0 {
            Counter::Aes128(key) => apply(key, iv, data),
            Counter::Aes192(key) => apply(key, iv, data),
            Counter::Aes256(key) => apply(key, iv, data),
            Counter::AwsLc(key) => {
                let context = EncryptionContext::Iv128(iv.into());
                let done = key.less_safe_encrypt(data, context);
                // Counter mode accepts any length and cannot fail; if it did, no plaintext must leave.
                if done.is_err() {
                    data.zeroize();
                }
            }
        }
    }

    #[inline]
    fn decrypt(&self, iv: &[u8; 16], data: &mut [u8]) {
        self.encrypt(iv, data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counter_mode_implementations_agree() {
        for key in [&[7u8; 16][..], &[8; 24], &[9; 32]] {
            let rust = CounterKey::with_backend(Backend::RustCrypto, key).unwrap();
            let aws = CounterKey::with_backend(Backend::AwsLc, key).unwrap();
            for length in [0, 1, 15, 16, 17, 20, 127, 128, 129, 1500] {
                // The lowest 16 bits of the counter wrap within the longest data, which must carry.
                let iv = [0xff; 16];
                let (mut a, mut b) = (vec![0u8; length], vec![0u8; length]);
                rust.encrypt(&iv, &mut a);
                aws.encrypt(&iv, &mut b);
                assert_eq!(a, b, "{length}");
                rust.decrypt(&iv, &mut a);
                assert_eq!(a, vec![0u8; length]);
            }
        }
        assert!(CounterKey::new(&[0; 17]).is_err() && CounterKey::new(&[]).is_err());
        assert!(GcmKey::new(&[0; 23]).is_err());
    }

    #[test]
    fn hmac_agrees_with_aws_lc() {
        use aws_lc_rs::hmac;
        for length in [0, 20, 63, 64, 65, 127, 128, 300] {
            let key = vec![0x0b; length];
            let theirs = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &key);
            let ours = HmacSha1::new(&key).tag(b"message", &[]);
            assert_eq!(ours, hmac::sign(&theirs, b"message").as_ref());
        }
        let ours = HmacSha1::new(&[0x0b; 20]);
        let theirs = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &[0x0b; 20]);
        for length in 0..300 {
            for suffix in [0, 4, 12, 55, 60, 64, 70, 200] {
                let data: Vec<u8> = (0..length + suffix).map(|at| at as u8).collect();
                let (head, tail) = data.split_at(length);
                assert_eq!(
                    ours.tag(head, tail),
                    hmac::sign(&theirs, &data).as_ref(),
                    "{length} {suffix}"
                );
            }
        }
    }
}
