//! Cipher block chaining (NIST SP 800-38A section 6.2) for AES, 3DES, DES and Blowfish.

use super::BadKey;
use aes::cipher::array::{Array, ArraySize};
use aes::cipher::{
    Block, BlockCipherDecrypt, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt,
    BlockSizeUser, KeyInit,
};
use aes::{Aes128, Aes192, Aes256};
use blowfish::Blowfish;
use des::{Des, TdesEde3};

/// A block cipher in CBC mode with its key. Keys are wiped when it is dropped.
pub struct CbcKey(Cbc);

// Expanded AES keys stay in place: a pointer would cost the hot path more than the size of the enum.
#[allow(clippy::large_enum_variant)]
enum Cbc {
    Aes128(Aes128),
    Aes192(Aes192),
    Aes256(Aes256),
    TripleDes(TdesEde3),
    Des(Des),
    Blowfish(Box<Blowfish>),
}

/// Blocks that are decrypted together: their ciphertext is kept on the stack for the chaining.
const BATCH: usize = 8;

impl CbcKey {
    /// AES with a key of 16, 24 or 32 bytes.
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn aes(key: &[u8]) -> Result<CbcKey, BadKey> {
        match key.len() {
            16 => keyed(key, Cbc::Aes128),
            24 => keyed(key, Cbc::Aes192),
            32 => keyed(key, Cbc::Aes256),
            _ => Err(BadKey),
        }
    }

    /// 3DES with three keys, 24 bytes (RFC 2451).
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn triple_des(key: &[u8]) -> Result<CbcKey, BadKey> {
        keyed(key, Cbc::TripleDes)
    }

    /// DES with a key of 8 bytes (RFC 2405).
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn des(key: &[u8]) -> Result<CbcKey, BadKey> {
        keyed(key, Cbc::Des)
    }

    /// Blowfish with a key of 5 to 56 bytes (RFC 2451).
    ///
    /// # Errors
    /// [`BadKey`] for another length.
    pub fn blowfish(key: &[u8]) -> Result<CbcKey, BadKey> {
        if !(5..=56).contains(&key.len()) {
            return Err(BadKey);
        }
        keyed(key, |cipher| Cbc::Blowfish(Box::new(cipher)))
    }

    /// Block length, bytes; also the length of an initialisation vector.
    pub const fn block_length(&self) -> usize {
        match self.0 {
            Cbc::Aes128(_) | Cbc::Aes192(_) | Cbc::Aes256(_) => 16,
            Cbc::TripleDes(_) | Cbc::Des(_) | Cbc::Blowfish(_) => 8,
        }
    }

    /// Encrypts whole blocks in place; `iv` has at least the block's length. A partial block at the end stays as it is.
    #[inline]
    pub fn encrypt(&self, iv: &[u8], data: &mut [u8]) {
        match &self.0 {
            Cbc::Aes128(key) => encrypt(key, iv, data),
            Cbc::Aes192(key) => encrypt(key, iv, data),
            Cbc::Aes256(key) => encrypt(key, iv, data),
            Cbc::TripleDes(key) => encrypt(key, iv, data),
            Cbc::Des(key) => encrypt(key, iv, data),
            Cbc::Blowfish(key) => encrypt(&**key, iv, data),
        }
    }

    /// Decrypts whole blocks in place; as [`CbcKey::encrypt`].
    #[inline]
    pub fn decrypt(&self, iv: &[u8], data: &mut [u8]) {
        match &self.0 {
            Cbc::Aes128(key) => decrypt(key, iv, data),
            Cbc::Aes192(key) => decrypt(key, iv, data),
            Cbc::Aes256(key) => decrypt(key, iv, data),
            Cbc::TripleDes(key) => decrypt(key, iv, data),
            Cbc::Des(key) => decrypt(key, iv, data),
            Cbc::Blowfish(key) => decrypt(&**key, iv, data),
        }
    }
}

fn keyed<K: KeyInit>(key: &[u8], wrap: fn(K) -> Cbc) -> Result<CbcKey, BadKey> {
    let key = K::new_from_slice(key).map_err(|_| BadKey)?;
    Ok(CbcKey(wrap(key)))
}

/// The chain runs inside the cipher's backend, so that its instructions are selected once for a packet.
struct CbcChain<'a, S: ArraySize> {
    iv: Array<u8, S>,
    blocks: &'a mut [Array<u8, S>],
}

impl<S: ArraySize> BlockSizeUser for CbcChain<'_, S> {
    type BlockSize = S;
}

impl<S: ArraySize> BlockCipherEncClosure for CbcChain<'_, S> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = S>>(self, backend: &B) {
        let mut chain = self.iv;
        for block in self.blocks {
            // A local block stays in a register between the rounds of one block and the next.
            let mut state = block.clone();
            xor(&mut state, &chain);
            backend.encrypt_block_inplace(&mut state);
            block.clone_from(&state);
            chain = state;
        }
    }
}

#[inline]
fn encrypt<K: BlockCipherEncrypt>(key: &K, iv: &[u8], data: &mut [u8]) {
    let (blocks, _) = Array::slice_as_chunks_mut(data);
    let Some(iv) = first_block::<K>(iv) else {
        return;
    };
    key.encrypt_with_backend(CbcChain { iv, blocks });
}

#[inline]
fn decrypt<K: BlockCipherDecrypt>(key: &K, iv: &[u8], data: &mut [u8]) {
    let (blocks, _) = Array::slice_as_chunks_mut(data);
    let Some(mut chain) = first_block::<K>(iv) else {
        return;
    };
    let mut kept: [Block<K>; BATCH] = core::array::from_fn(|_| Block::<K>::default());
    for batch in blocks.chunks_mut(BATCH) {
        for (kept, block) in kept.iter_mut().zip(batch.iter()) {
            kept.clone_from(block);
        }
        key.decrypt_blocks(batch);
        for (block, kept) in batch.iter_mut().zip(&kept) {
            xor(block, &chain);
            chain.clone_from(kept);
        }
    }
}

/// The initialisation vector as a block.
#[inline]
fn first_block<K: BlockSizeUser>(iv: &[u8]) -> Option<Block<K>> {
    let head = iv.get(..K::block_size())?;
    Block::<K>::try_from(head).ok()
}

#[inline(always)]
fn xor<S: ArraySize>(block: &mut Array<u8, S>, mask: &Array<u8, S>) {
    for (byte, mask) in block.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}
