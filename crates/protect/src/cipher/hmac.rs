//! HMAC (RFC 2104) with precomputed states of the two keyed blocks: a packet costs only its own blocks.

use super::PacketMac;
use zeroize::Zeroize;

/// A hash function of the MD4 family, by its compression function (FIPS 180-4, RFC 1321).
pub trait BlockHash {
    /// The chaining value.
    type State: Copy + Zeroize;
    /// The digest, an array of bytes.
    type Digest: AsRef<[u8]> + AsMut<[u8]>;
    /// One block of the message, bytes.
    type Block: Copy + AsRef<[u8]> + AsMut<[u8]> + Zeroize;
    /// Two blocks: the most that the end of a message needs.
    type Tail: AsMut<[u8]>;

    /// The initial chaining value.
    const START: Self::State;
    /// Bytes of the length field at the end of the padding.
    const LENGTH_FIELD: usize;

    /// A block of zeros.
    fn zero_block() -> Self::Block;
    /// Two blocks of zeros.
    fn zero_tail() -> Self::Tail;
    /// The whole blocks of `data`, and the rest.
    fn blocks(data: &[u8]) -> (&[Self::Block], &[u8]);
    /// Processes blocks.
    fn compress(state: &mut Self::State, blocks: &[Self::Block]);
    /// The digest of a final chaining value.
    fn digest(state: &Self::State) -> Self::Digest;
    /// The length field of a message of `bits`.
    fn length_field(bits: u64) -> [u8; 8];
}

macro_rules! block_hash {
    ($name:ident, $text:literal, $word:ty, $words:literal, $block:literal, $digest:literal, $field:literal,
     $compress:path, $to_bytes:ident, $start:expr) => {
        #[doc = $text]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl BlockHash for $name {
            type State = [$word; $words];
            type Digest = [u8; $digest];
            type Block = [u8; $block];
            type Tail = [u8; 2 * $block];

            const START: Self::State = $start;
            const LENGTH_FIELD: usize = $field;

            #[inline]
            fn zero_block() -> Self::Block {
                [0; $block]
            }

            #[inline]
            fn zero_tail() -> Self::Tail {
                [0; 2 * $block]
            }

            #[inline]
            fn blocks(data: &[u8]) -> (&[Self::Block], &[u8]) {
                data.as_chunks::<$block>()
            }

            #[inline]
            fn compress(state: &mut Self::State, blocks: &[Self::Block]) {
                $compress(state, blocks);
            }

            #[inline]
            fn digest(state: &Self::State) -> Self::Digest {
                let mut digest = [0u8; $digest];
                let words = digest.chunks_exact_mut(size_of::<$word>());
                for (bytes, word) in words.zip(state) {
                    bytes.copy_from_slice(&word.$to_bytes());
                }
                digest
            }

            #[inline]
            fn length_field(bits: u64) -> [u8; 8] {
                bits.$to_bytes()
            }
        }
    };
}

block_hash!(
    Sha1Core,
    "SHA-1.",
    u32,
    5,
    64,
    20,
    8,
    sha1::block_api::compress,
    to_be_bytes,
    [
        0x6745_2301,
        0xefcd_ab89,
        0x98ba_dcfe,
        0x1032_5476,
        0xc3d2_e1f0
    ]
);
block_hash!(
    Md5Core,
    "MD5.",
    u32,
    4,
    64,
    16,
    8,
    md5::block_api::compress,
    to_le_bytes,
    [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]
);
block_hash!(
    Sha256Core,
    "SHA-256.",
    u32,
    8,
    64,
    32,
    8,
    sha2::block_api::compress256,
    to_be_bytes,
    [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19
    ]
);
block_hash!(
    Sha384Core,
    "SHA-384.",
    u64,
    8,
    128,
    48,
    16,
    sha2::block_api::compress512,
    to_be_bytes,
    [
        0xcbbb_9d5d_c105_9ed8,
        0x629a_292a_367c_d507,
        0x9159_015a_3070_dd17,
        0x152f_ecd8_f70e_5939,
        0x6733_2667_ffc0_0b31,
        0x8eb4_4a87_6858_1511,
        0xdb0c_2e0d_64f9_8fa7,
        0x47b5_481d_befa_4fa4
    ]
);
block_hash!(
    Sha512Core,
    "SHA-512.",
    u64,
    8,
    128,
    64,
    16,
    sha2::block_api::compress512,
    to_be_bytes,
    [
        0x6a09_e667_f3bc_c908,
        0xbb67_ae85_84ca_a73b,
        0x3c6e_f372_fe94_f82b,
        0xa54f_f53a_5f1d_36f1,
        0x510e_527f_ade6_82d1,
        0x9b05_688c_2b3e_6c1f,
        0x1f83_d9ab_fb41_bd6b,
        0x5be0_cd19_137e_2179
    ]
);

/// HMAC with a hash function.
pub struct Hmac<H: BlockHash> {
    inner: H::State,
    outer: H::State,
}

/// HMAC-MD5 (RFC 2403).
pub type HmacMd5 = Hmac<Md5Core>;
/// HMAC-SHA1 (RFC 2404, RFC 3711).
pub type HmacSha1 = Hmac<Sha1Core>;
/// HMAC-SHA2-256 (RFC 4868).
pub type HmacSha256 = Hmac<Sha256Core>;
/// HMAC-SHA2-384 (RFC 4868).
pub type HmacSha384 = Hmac<Sha384Core>;
/// HMAC-SHA2-512 (RFC 4868).
pub type HmacSha512 = Hmac<Sha512Core>;

impl<H: BlockHash> Hmac<H> {
    /// A key of any length; one longer than a block is hashed first (RFC 2104 section 2).
    pub fn new(key: &[u8]) -> Hmac<H> {
        let mut block = H::zero_block();
        match block.as_mut().get_mut(..key.len()) {
            Some(head) => head.copy_from_slice(key),
            None => {
                let mut state = H::START;
                let (blocks, rest) = H::blocks(key);
                H::compress(&mut state, blocks);
                finish::<H>(&mut state, rest, &[], key.len());
                let digest = H::digest(&state);
                for (byte, value) in block.as_mut().iter_mut().zip(digest.as_ref()) {
                    *byte = *value;
                }
                state.zeroize();
            }
        }
        let keyed = |pad: u8| {
            let mut state = H::START;
            let mut padded = block;
            for byte in padded.as_mut() {
                *byte ^= pad;
            }
            H::compress(&mut state, &[padded]);
            padded.zeroize();
            state
        };
        let mac = Hmac {
            inner: keyed(0x36),
            outer: keyed(0x5c),
        };
        block.zeroize();
        mac
    }

    /// Reads the states to load them into the cache. The value has no meaning.
    pub(crate) fn prefetch(&self) -> u64 {
        let first = |state: &H::State| H::digest(state).as_ref().first().copied().unwrap_or(0);
        u64::from(first(&self.inner) ^ first(&self.outer))
    }
}

impl<H: BlockHash> Drop for Hmac<H> {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

impl<H: BlockHash> PacketMac for Hmac<H> {
    type Tag = H::Digest;

    #[inline]
    fn tag(&self, data: &[u8], suffix: &[u8]) -> H::Digest {
        let mut state = self.inner;
        let block = size_of::<H::Block>();
        let length = data.len() + suffix.len();
        let mut rest = data;
        // A message that fits the two blocks of the tail with its padding is processed in one call.
        if length + 1 + H::LENGTH_FIELD > 2 * block {
            let (blocks, behind) = H::blocks(data);
            if !blocks.is_empty() {
                H::compress(&mut state, blocks);
            }
            rest = behind;
        }
        finish::<H>(&mut state, rest, suffix, block + length);
        let inner = H::digest(&state);
        let mut state = self.outer;
        // A digest with its padding fits one block for all these functions.
        finish::<H>(
            &mut state,
            inner.as_ref(),
            &[],
            block + inner.as_ref().len(),
        );
        H::digest(&state)
    }
}

/// Processes the rest of a message, the padding and the total length in bytes (FIPS 180-4 section 5.1).
#[inline]
fn finish<H: BlockHash>(state: &mut H::State, rest: &[u8], suffix: &[u8], length: usize) {
    let block = size_of::<H::Block>();
    let used = rest.len() + suffix.len();
    // A longer suffix may not fit the two blocks; it is processed in parts.
    if used + 1 + H::LENGTH_FIELD > 2 * block {
        return finish_long::<H>(state, rest, suffix, length);
    }
    let mut tail = H::zero_tail();
    let bytes = tail.as_mut();
    bytes[..rest.len()].copy_from_slice(rest);
    bytes[rest.len()..used].copy_from_slice(suffix);
    bytes[used] = 0x80;
    let end = if used + 1 + H::LENGTH_FIELD <= block {
        block
    } else {
        2 * block
    };
    bytes[end - 8..end].copy_from_slice(&H::length_field(8 * length as u64));
    let (blocks, _) = H::blocks(&bytes[..end]);
    H::compress(state, blocks);
}

#[cold]
fn finish_long<H: BlockHash>(state: &mut H::State, rest: &[u8], suffix: &[u8], length: usize) {
    let whole = [rest, suffix].concat();
    let (blocks, rest) = H::blocks(&whole);
    H::compress(state, blocks);
    finish::<H>(state, rest, &[], length);
}
