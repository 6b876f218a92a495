//! Dialog state for in-dialog requests (RFC 3261 section 12), stored compactly.

use crate::api::{Flow, Fork, LegId, NamedHop};
use crate::compose::without_tag;
use engine::Transport;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::net::SocketAddr;
use wire::sip::{HeaderId, Message, NameAddr, Scheme, Uri};

/// Forks of one INVITE that are tracked; provisional responses of further ones are indicated without a fork.
pub(crate) const MAX_FORKS: usize = 12;

/// A dialog of a leg, for requests of ours. An outgoing leg has an early dialog with each fork (RFC 3261 section 12.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LegDialog {
    pub(crate) leg: LegId,
    /// The fork of an early dialog. `None`: the confirmed dialog, or the only one of an incoming leg.
    pub(crate) fork: Option<Fork>,
}

impl LegDialog {
    /// The confirmed dialog of a leg, or the only one of an incoming leg.
    pub(crate) fn confirmed(leg: LegId) -> LegDialog {
        LegDialog { leg, fork: None }
    }
}

/// The local side: Call-ID and our From (or To) without tag.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Own {
    text: Box<[u8]>,
    call_id: u32,
}

impl Own {
    pub(crate) fn new(call_id: &[u8], local: &[u8]) -> Own {
        let mut text = Vec::with_capacity(call_id.len() + local.len());
        text.extend_from_slice(call_id);
        without_tag(local, &mut text);
        Own {
            text: text.into_boxed_slice(),
            call_id: call_id.len() as u32,
        }
    }

    pub(crate) fn call_id(&self) -> &[u8] {
        self.text.get(..self.call_id as usize).unwrap_or_default()
    }

    pub(crate) fn local(&self) -> &[u8] {
        self.text.get(self.call_id as usize..).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }
}

/// The remote side: address with tag, remote target, route set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    text: Box<[u8]>,
    remote: u32,
    target: u32,
    tag: (u32, u32),
    /// Destination of requests.
    pub(crate) flow: Flow,
    /// Highest CSeq in the peer's requests; `None` before the first.
    pub(crate) cseq: Option<u32>,
    /// The first route has no `lr` (RFC 3261 section 12.2.1.1).
    pub(crate) strict: bool,
}

impl Peer {
    /// `remote` with its tag, the URI `target`, the routes in the order of writing.
    pub(crate) fn new<'r>(
        remote: &[u8],
        target: &[u8],
        routes: impl Iterator<Item = &'r [u8]> + Clone,
        flow: Flow,
    ) -> Peer {
        // The exact capacity avoids spare memory and a reallocation by `into_boxed_slice`.
        let between = |routes: usize| 2 * routes.saturating_sub(1);
        let (count, length) = routes.clone().fold((0, 0), |(count, length), route| {
            (count + 1, length + route.len())
        });
        let mut text = Vec::with_capacity(remote.len() + target.len() + length + between(count));
        text.extend_from_slice(remote);
        text.extend_from_slice(target);
        let routes_at = text.len();
        for route in routes {
            if text.len() > routes_at {
                text.extend_from_slice(b", ");
            }
            text.extend_from_slice(route);
        }
        let mut peer = Peer {
            text: text.into_boxed_slice(),
            remote: remote.len() as u32,
            target: target.len() as u32,
            tag: (0, 0),
            flow,
            cseq: None,
            strict: false,
        };
        peer.tag = tag_span(peer.remote());
        peer.strict = first_route(peer.routes()).is_some_and(|uri| !uri.is_loose_router());
        peer
    }

    /// From a response that creates or confirms a dialog with us as UAC: the route set is the reversed Record-Route
    /// (RFC 3261 section 12.1.2), empty without it. Without Contact the old target remains.
    pub(crate) fn from_response(response: &Message<'_>, old: &Peer) -> Peer {
        let routes: SmallVec<[&[u8]; 8]> = response.values(HeaderId::RecordRoute).collect();
        let contact = response.contact().ok().filter(|c| !c.is_star());
        let mut peer = Peer::new(
            response.header(HeaderId::To).unwrap_or_default(),
            contact.as_ref().map_or(old.target(), |contact| contact.uri),
            routes.into_iter().rev(),
            old.flow,
        );
        peer.cseq = old.cseq;
        peer
    }

    pub(crate) fn remote(&self) -> &[u8] {
        self.text.get(..self.remote as usize).unwrap_or_default()
    }

    pub(crate) fn target(&self) -> &[u8] {
        let from = self.remote as usize;
        self.text
            .get(from..from + self.target as usize)
            .unwrap_or_default()
    }

    /// The route set as written, joined by commas; empty: none.
    pub(crate) fn routes(&self) -> &[u8] {
        self.text
            .get((self.remote + self.target) as usize..)
            .unwrap_or_default()
    }

    pub(crate) fn tag(&self) -> &[u8] {
        self.text
            .get(self.tag.0 as usize..self.tag.1 as usize)
            .unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// A target refresh (RFC 3261 section 12.2).
    pub(crate) fn refresh_target(&mut self, target: &[u8]) {
        if self.target() == target {
            return;
        }
        let mut text = Vec::with_capacity(self.text.len() + target.len());
        text.extend_from_slice(self.remote());
        text.extend_from_slice(target);
        text.extend_from_slice(self.routes());
        self.target = target.len() as u32;
        self.text = text.into_boxed_slice();
    }

    /// The Request-URI of in-dialog requests: the remote target, or the URI of a strict router (RFC 3261 section
    /// 12.2.1.1).
    pub(crate) fn request_uri(&self) -> &[u8] {
        let strict = self
            .strict
            .then(|| wire::sip::Values::list(self.routes()).next())
            .flatten()
            .and_then(NameAddr::parse);
        strict.map_or(self.target(), |route| route.uri)
    }

    /// The next-hop URI as bytes.
    pub(crate) fn next_hop_text(&self) -> &[u8] {
        wire::sip::Values::list(self.routes())
            .next()
            .and_then(NameAddr::parse)
            .map_or(self.target(), |route| route.uri)
    }

    /// The URI that determines the next hop: the first route, or the remote target (RFC 3261 section 8.1.2).
    pub(crate) fn next_hop(&self) -> Option<Uri<'_>> {
        first_route(self.routes()).or_else(|| Uri::parse(self.target()))
    }
}

/// The position of the tag in a From or To value.
fn tag_span(value: &[u8]) -> (u32, u32) {
    let Some(tag) = NameAddr::parse(value).and_then(|address| address.tag()) else {
        return (0, 0);
    };
    // The tag is a slice of `value`. Parameters follow the URI, so the last occurrence is its position.
    let at = value
        .windows(tag.len())
        .rposition(|window| window == tag)
        .unwrap_or(0);
    (at as u32, (at + tag.len()) as u32)
}

/// Whether the host of a URI is certainly an address. A cheap test of its characters, without parsing.
fn looks_numeric(uri: &[u8]) -> bool {
    let end = uri
        .iter()
        .position(|byte| matches!(byte, b';' | b'?'))
        .unwrap_or(uri.len());
    let uri = uri.get(..end).unwrap_or_default();
    let host = match uri.iter().rposition(|byte| *byte == b'@') {
        Some(at) => uri.get(at + 1..),
        None => uri
            .iter()
            .position(|byte| *byte == b':')
            .and_then(|at| uri.get(at + 1..)),
    };
    let host = host.unwrap_or_default();
    host.first() == Some(&b'[')
        || (!host.is_empty()
            && host
                .iter()
                .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b':')))
}

/// Name, port and transport of a dialog's next hop (RFC 3263), if the next hop is a name.
pub(crate) fn named_hop(peer: &Peer) -> Option<NamedHop> {
    if looks_numeric(peer.next_hop_text()) {
        return None;
    }
    let uri = peer.next_hop()?;
    let secure = match uri.scheme {
        Scheme::Sip => false,
        Scheme::Sips => true,
        _ => return None,
    };
    let named = uri.transport().map(<[u8]>::to_ascii_lowercase);
    let transport = match named.as_deref() {
        None => None,
        Some(b"udp") => Some(Transport::Udp),
        Some(b"tcp") => Some(Transport::Tcp),
        Some(b"tls") => Some(Transport::Tls),
        Some(_) => return None,
    };
    let maddr = uri.params.get(b"maddr").and_then(wire::sip::Host::parse);
    match maddr.unwrap_or(uri.host) {
        wire::sip::Host::Name(name) => Some(NamedHop {
            host: String::from_utf8(name.to_ascii_lowercase()).ok()?,
            port: uri.port,
            transport,
            secure,
        }),
        _ => None,
    }
}

fn first_route(routes: &[u8]) -> Option<Uri<'_>> {
    let first = wire::sip::Values::list(routes).next()?;
    Uri::parse(NameAddr::parse(first)?.uri)
}

/// The address and transport of a URI with a numeric host (RFC 3263 section 4); `None` for host names.
pub(crate) fn numeric_hop(uri: &Uri<'_>) -> Option<(Transport, SocketAddr)> {
    let named = uri.transport().map(<[u8]>::to_ascii_lowercase);
    let transport = match (uri.scheme, named.as_deref()) {
        (Scheme::Sips, _) | (Scheme::Sip, Some(b"tls")) => Transport::Tls,
        (Scheme::Sip, None | Some(b"udp")) => Transport::Udp,
        (Scheme::Sip, Some(b"tcp")) => Transport::Tcp,
        _ => return None,
    };
    let host = uri
        .params
        .get(b"maddr")
        .and_then(wire::sip::Host::parse)
        .unwrap_or(uri.host);
    Some((
        transport,
        SocketAddr::new(host.ip()?, uri.port.unwrap_or(transport.default_port())),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_distinguished_from_addresses() {
        for (uri, numeric) in [
            ("sip:192.0.2.1", true),
            ("sip:a@192.0.2.1:5060;transport=tcp", true),
            ("sips:a:b@[2001:db8::1]:5061", true),
            ("sip:a%40b@198.51.100.7;maddr=x.example", true),
            ("sip:3com.example", false),
            ("sip:a@x.example:5060", false),
            ("sip:1234@x", false),
            ("tel:+1", false),
            ("", false),
        ] {
            assert_eq!(looks_numeric(uri.as_bytes()), numeric, "{uri}");
        }
    }
}
