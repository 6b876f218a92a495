//! Cache of the headers that every message has: validation and several layers read them. It stores offsets, not slices,
//! so that a message may be lent for a shorter time than its bytes.

use super::host::Host;
use super::ids::Method;
use super::params::Params;
use super::typed::{CSeq, NameAddr, ParseError, Via};
use std::cell::Cell;
use std::net::IpAddr;

/// Start and end offset in the message's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRange(u32, u32);

impl ByteRange {
    /// The range of `part`, a slice of `bytes`; an empty part may have any address.
    fn of(part: &[u8], bytes: &[u8]) -> ByteRange {
        if part.is_empty() {
            return ByteRange(0, 0);
        }
        let start = part.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
        ByteRange(start as u32, (start + part.len()) as u32)
    }

    fn cut(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.0 as usize..self.1 as usize)
            .unwrap_or_default()
    }
}

/// A typed header that can be stored as offsets.
pub(super) trait Cacheable<'a>: Copy {
    type Stored: Copy;
    fn to_stored(self, bytes: &'a [u8]) -> Self::Stored;
    fn restore(at: Self::Stored, bytes: &'a [u8]) -> Self;
}

impl<'a> Cacheable<'a> for &'a [u8] {
    type Stored = ByteRange;

    fn to_stored(self, bytes: &'a [u8]) -> ByteRange {
        ByteRange::of(self, bytes)
    }

    fn restore(at: ByteRange, bytes: &'a [u8]) -> Self {
        at.cut(bytes)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoredNameAddr {
    raw: ByteRange,
    display: ByteRange,
    uri: ByteRange,
    params: ByteRange,
}

impl<'a> Cacheable<'a> for NameAddr<'a> {
    type Stored = StoredNameAddr;

    fn to_stored(self, bytes: &'a [u8]) -> StoredNameAddr {
        StoredNameAddr {
            raw: ByteRange::of(self.raw, bytes),
            display: ByteRange::of(self.display, bytes),
            uri: ByteRange::of(self.uri, bytes),
            params: ByteRange::of(self.params.as_bytes(), bytes),
        }
    }

    fn restore(at: StoredNameAddr, bytes: &'a [u8]) -> Self {
        NameAddr {
            raw: at.raw.cut(bytes),
            display: at.display.cut(bytes),
            uri: at.uri.cut(bytes),
            params: Params::new(at.params.cut(bytes)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum StoredHost {
    Ip(IpAddr),
    Name(ByteRange),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoredVia {
    raw: ByteRange,
    version: ByteRange,
    transport: ByteRange,
    host: StoredHost,
    port: Option<u16>,
    params: ByteRange,
}

impl<'a> Cacheable<'a> for Via<'a> {
    type Stored = StoredVia;

    fn to_stored(self, bytes: &'a [u8]) -> StoredVia {
        StoredVia {
            raw: ByteRange::of(self.raw, bytes),
            version: ByteRange::of(self.version, bytes),
            transport: ByteRange::of(self.transport, bytes),
            host: match self.host {
                Host::V4(address) => StoredHost::Ip(address.into()),
                Host::V6(address) => StoredHost::Ip(address.into()),
                Host::Name(name) => StoredHost::Name(ByteRange::of(name, bytes)),
            },
            port: self.port,
            params: ByteRange::of(self.params.as_bytes(), bytes),
        }
    }

    fn restore(at: StoredVia, bytes: &'a [u8]) -> Self {
        Via {
            raw: at.raw.cut(bytes),
            version: at.version.cut(bytes),
            transport: at.transport.cut(bytes),
            host: match at.host {
                StoredHost::Ip(address) => Host::from(address),
                StoredHost::Name(name) => Host::Name(name.cut(bytes)),
            },
            port: at.port,
            params: Params::new(at.params.cut(bytes)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum StoredMethod {
    Declared(Method<'static>),
    Other(ByteRange),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StoredCSeq {
    number: u32,
    method: StoredMethod,
}

impl<'a> Cacheable<'a> for CSeq<'a> {
    type Stored = StoredCSeq;

    fn to_stored(self, bytes: &'a [u8]) -> StoredCSeq {
        let other = || StoredMethod::Other(ByteRange::of(self.method.as_bytes(), bytes));
        StoredCSeq {
            number: self.number,
            method: self
                .method
                .known()
                .map_or_else(other, StoredMethod::Declared),
        }
    }

    fn restore(at: StoredCSeq, bytes: &'a [u8]) -> Self {
        CSeq {
            number: at.number,
            method: match at.method {
                StoredMethod::Declared(method) => method,
                StoredMethod::Other(name) => Method::Other(name.cut(bytes)),
            },
        }
    }
}

/// The cache of one header.
#[derive(Clone, Debug)]
pub(super) struct CachedHeader<T: Copy>(Cell<Option<Result<T, ParseError>>>);

impl<T: Copy> Default for CachedHeader<T> {
    fn default() -> Self {
        CachedHeader(Cell::new(None))
    }
}

impl<T: Copy> CachedHeader<T> {
    /// The cached value, or the result of `read`, which is then cached.
    pub(super) fn get<'a, V: Cacheable<'a, Stored = T>>(
        &self,
        bytes: &'a [u8],
        read: impl FnOnce() -> Result<V, ParseError>,
    ) -> Result<V, ParseError> {
        match self.0.get() {
            Some(cached) => cached.map(|at| V::restore(at, bytes)),
            None => {
                let value = read();
                self.0.set(Some(value.map(|value| value.to_stored(bytes))));
                value
            }
        }
    }
}

/// The caches of all such headers.
#[derive(Clone, Debug, Default)]
pub(super) struct HeaderCache {
    pub(super) via: CachedHeader<StoredVia>,
    pub(super) from: CachedHeader<StoredNameAddr>,
    pub(super) to: CachedHeader<StoredNameAddr>,
    pub(super) contact: CachedHeader<StoredNameAddr>,
    pub(super) call_id: CachedHeader<ByteRange>,
    pub(super) cseq: CachedHeader<StoredCSeq>,
}
