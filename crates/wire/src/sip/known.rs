//! The headers that every message has, kept once they were read: judging a message reads them, and so does everyone who
//! deals with it. Kept as places, not as slices, so that a message may still be lent for a shorter time than its bytes.

use super::host::Host;
use super::ids::Method;
use super::params::Params;
use super::typed::{CSeq, NameAddr, ParseError, Via};
use std::cell::Cell;
use std::net::IpAddr;

/// Start and end in the message's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(u32, u32);

impl Place {
    /// Where `part`, which was cut from `bytes`, lies; an empty part may come from anywhere.
    fn of(part: &[u8], bytes: &[u8]) -> Place {
        if part.is_empty() {
            return Place(0, 0);
        }
        let start = part.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
        Place(start as u32, (start + part.len()) as u32)
    }

    fn cut(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.0 as usize..self.1 as usize)
            .unwrap_or_default()
    }
}

/// A typed header as places.
pub(super) trait Placed<'a>: Copy {
    type At: Copy;
    fn place(self, bytes: &'a [u8]) -> Self::At;
    fn restore(at: Self::At, bytes: &'a [u8]) -> Self;
}

impl<'a> Placed<'a> for &'a [u8] {
    type At = Place;

    fn place(self, bytes: &'a [u8]) -> Place {
        Place::of(self, bytes)
    }

    fn restore(at: Place, bytes: &'a [u8]) -> Self {
        at.cut(bytes)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NameAddrAt {
    raw: Place,
    display: Place,
    uri: Place,
    params: Place,
}

impl<'a> Placed<'a> for NameAddr<'a> {
    type At = NameAddrAt;

    fn place(self, bytes: &'a [u8]) -> NameAddrAt {
        NameAddrAt {
            raw: Place::of(self.raw, bytes),
            display: Place::of(self.display, bytes),
            uri: Place::of(self.uri, bytes),
            params: Place::of(self.params.as_bytes(), bytes),
        }
    }

    fn restore(at: NameAddrAt, bytes: &'a [u8]) -> Self {
        NameAddr {
            raw: at.raw.cut(bytes),
            display: at.display.cut(bytes),
            uri: at.uri.cut(bytes),
            params: Params::new(at.params.cut(bytes)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum HostAt {
    Ip(IpAddr),
    Name(Place),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ViaAt {
    raw: Place,
    version: Place,
    transport: Place,
    host: HostAt,
    port: Option<u16>,
    params: Place,
}

impl<'a> Placed<'a> for Via<'a> {
    type At = ViaAt;

    fn place(self, bytes: &'a [u8]) -> ViaAt {
        ViaAt {
            raw: Place::of(self.raw, bytes),
            version: Place::of(self.version, bytes),
            transport: Place::of(self.transport, bytes),
            host: match self.host {
                Host::V4(address) => HostAt::Ip(address.into()),
                Host::V6(address) => HostAt::Ip(address.into()),
                Host::Name(name) => HostAt::Name(Place::of(name, bytes)),
            },
            port: self.port,
            params: Place::of(self.params.as_bytes(), bytes),
        }
    }

    fn restore(at: ViaAt, bytes: &'a [u8]) -> Self {
        Via {
            raw: at.raw.cut(bytes),
            version: at.version.cut(bytes),
            transport: at.transport.cut(bytes),
            host: match at.host {
                HostAt::Ip(address) => Host::from(address),
                HostAt::Name(name) => Host::Name(name.cut(bytes)),
            },
            port: at.port,
            params: Params::new(at.params.cut(bytes)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum MethodAt {
    Known(Method<'static>),
    Other(Place),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CSeqAt {
    number: u32,
    method: MethodAt,
}

impl<'a> Placed<'a> for CSeq<'a> {
    type At = CSeqAt;

    fn place(self, bytes: &'a [u8]) -> CSeqAt {
        let other = || MethodAt::Other(Place::of(self.method.as_bytes(), bytes));
        CSeqAt {
            number: self.number,
            method: self.method.known().map_or_else(other, MethodAt::Known),
        }
    }

    fn restore(at: CSeqAt, bytes: &'a [u8]) -> Self {
        CSeq {
            number: at.number,
            method: match at.method {
                MethodAt::Known(method) => method,
                MethodAt::Other(name) => Method::Other(name.cut(bytes)),
            },
        }
    }
}

/// One header's cell.
#[derive(Clone, Debug)]
pub(super) struct Memo<T: Copy>(Cell<Option<Result<T, ParseError>>>);

impl<T: Copy> Default for Memo<T> {
    fn default() -> Self {
        Memo(Cell::new(None))
    }
}

impl<T: Copy> Memo<T> {
    /// What was read before, or what `read` gives, which is kept.
    pub(super) fn get<'a, V: Placed<'a, At = T>>(
        &self,
        bytes: &'a [u8],
        read: impl FnOnce() -> Result<V, ParseError>,
    ) -> Result<V, ParseError> {
        match self.0.get() {
            Some(known) => known.map(|at| V::restore(at, bytes)),
            None => {
                let value = read();
                self.0.set(Some(value.map(|value| value.place(bytes))));
                value
            }
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) via: Memo<ViaAt>,
    pub(super) from: Memo<NameAddrAt>,
    pub(super) to: Memo<NameAddrAt>,
    pub(super) contact: Memo<NameAddrAt>,
    pub(super) call_id: Memo<Place>,
    pub(super) cseq: Memo<CSeqAt>,
}
