//! Addresses that a message proposes as further targets: Contact of a redirect (RFC 3261 section 8.1.3.4) and Refer-To
//! (RFC 3515). The other side reaches the hosts of this one through the border only.

use crate::headers::append_value;
use crate::hiding::{self, PassHeaders};
use crate::listeners::Listeners;
use crate::policy::is_at;
use config::Trunk;
use engine::Transport;
use smallvec::SmallVec;
use wire::sip::{HeaderId, Message, NameAddr, Param, Scheme, Uri};

/// Contacts of a redirect that are relayed, at most.
const MAX_CONTACTS: usize = 64;
/// Parameters of a contact that are numbers, and so name no host.
const NUMBERS: [&[u8]; 2] = [b"q", b"expires"];
/// Parameters of a URI that say how its host is reached.
const WAYS: [&[u8]; 3] = [b"transport", b"maddr", b"ttl"];

/// The hosts of the side that proposes a target, as seen by the side that gets the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetHosts<'a> {
    listeners: &'a Listeners,
    /// The trunk of the proposing side.
    from: Option<&'a Trunk>,
    /// The trunk of the other side, which knows its own hosts.
    to: Option<&'a Trunk>,
    /// Headers that topology hiding passes unchanged to the other side; `None` without topology hiding.
    hiding: Option<&'a PassHeaders>,
}

/// `host:port` of the border on the side that gets a message, and the transport there.
pub(crate) type OwnAddress = (Vec<u8>, Transport);

/// Whose host a target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetHost {
    /// The border's.
    Ours,
    /// That of a system at the proposing side, which is hidden.
    Hidden,
    /// Another one.
    Elsewhere,
}

impl<'a> TargetHosts<'a> {
    pub(crate) fn new(
        listeners: &'a Listeners,
        [from, to]: [Option<&'a Trunk>; 2],
        hiding: Option<&'a PassHeaders>,
    ) -> TargetHosts<'a> {
        TargetHosts {
            listeners,
            from,
            to,
            hiding,
        }
    }

    fn host_of(&self, uri: &Uri<'_>) -> TargetHost {
        if !uri.is_sip() {
            return TargetHost::Elsewhere;
        }
        if self
            .listeners
            .is_ours(uri.host_port().to_string().as_bytes())
        {
            return TargetHost::Ours;
        }
        let is_theirs = || self.to.is_some_and(|trunk| is_at(trunk, uri));
        let is_of_sender =
            || uri.host.ip().is_some() || self.from.is_some_and(|trunk| is_at(trunk, uri));
        match self.hiding.is_some() && !is_theirs() && is_of_sender() {
            true => TargetHost::Hidden,
            false => TargetHost::Elsewhere,
        }
    }

    /// The contacts of a redirect for the other side, where our address is `address`. Those at the border or at a
    /// hidden system get our address: the new request is routed by its user part.
    pub(crate) fn contacts(
        &self,
        response: &Message<'_>,
        address: impl Fn() -> OwnAddress,
        out: &mut Vec<u8>,
    ) {
        let mut targets: SmallVec<[Vec<u8>; 4]> = SmallVec::new();
        for value in response.values(HeaderId::Contact).take(MAX_CONTACTS) {
            let contact = NameAddr::parse(value);
            let uri = contact.and_then(|contact| contact.parse_uri());
            let (Some(contact), Some(uri)) = (contact, uri) else {
                if self.hiding.is_none() {
                    append_value(value, out);
                }
                continue;
            };
            let target = self.host_of(&uri);
            let leads_to_us = target != TargetHost::Elsewhere;
            if !leads_to_us && self.hiding.is_none() {
                append_value(value, out);
                continue;
            }
            // Numbers and service URNs (RFC 5031) name no host. URIs of other schemes have it at a position that only
            // their syntax defines.
            let has_host = uri.is_sip();
            if !has_host && !matches!(uri.scheme, Scheme::Tel | Scheme::Urn) {
                continue;
            }
            let mut target = Vec::with_capacity(64);
            match (has_host, leads_to_us) {
                (false, _) => target.extend_from_slice(contact.uri),
                (true, true) => at_us(&uri, address(), |_| false, &mut target),
                (true, false) => moved(&uri, uri.raw_host_port(), is_harmless, &mut target),
            }
            // Several systems that are reached by one address of ours are one target.
            if targets.contains(&target) {
                continue;
            }
            append_value(b"<", out);
            out.extend_from_slice(&target);
            out.push(b'>');
            self.contact_parameters(&contact, out);
            targets.push(target);
        }
    }

    fn contact_parameters(&self, contact: &NameAddr<'_>, out: &mut Vec<u8>) {
        for param in contact.params.iter() {
            if self.hiding.is_none() || is_number(&param) || is_harmless(&param) {
                hiding::parameter(param.name, param.value, out);
            }
        }
    }

    /// The URI of Refer-To for the other side, where our address is `address`. The address of ours that the sender has
    /// written becomes `domain`, that of the trunk there, if it has one; a trunk with a domain is not told to call a
    /// hidden system itself. `None`: unchanged. Headers of the URI, such as Replaces, stay.
    pub(crate) fn refer_to(
        &self,
        uri: &[u8],
        domain: Option<Vec<u8>>,
        address: impl Fn() -> OwnAddress,
    ) -> Option<Vec<u8>> {
        let parsed = Uri::parse(uri)?;
        let passes = |list| hiding::is_listed(list, HeaderId::ReferTo.name().as_bytes());
        let mut out = Vec::with_capacity(uri.len() + 32);
        match (self.host_of(&parsed), domain) {
            (TargetHost::Ours, Some(domain)) => moved(&parsed, &domain, |_| true, &mut out),
            (TargetHost::Ours, None) => {
                at_us(&parsed, address(), |param| !is_way(param), &mut out);
            }
            (TargetHost::Hidden, _) if !self.hiding.is_some_and(passes) => {
                at_us(&parsed, address(), |param| !is_way(param), &mut out);
            }
            _ => return None,
        }
        if !parsed.headers.is_empty() {
            out.push(b'?');
            out.extend_from_slice(parsed.headers);
        }
        Some(out)
    }
}

/// Appends a sip or sips URI at another host, with the parameters that `keeps`, without headers.
fn moved(uri: &Uri<'_>, host: &[u8], keeps: impl Fn(&Param<'_>) -> bool, out: &mut Vec<u8>) {
    hiding::at_host(uri, host, out);
    for param in uri.params.iter().filter(keeps) {
        hiding::parameter(param.name, param.value, out);
    }
}

/// Appends a sip or sips URI at our address, with the transport there: without one, an address in a sip URI is reached
/// over UDP (RFC 3263 section 4.1).
fn at_us(
    uri: &Uri<'_>,
    (host, transport): OwnAddress,
    keeps: impl Fn(&Param<'_>) -> bool,
    out: &mut Vec<u8>,
) {
    moved(uri, &host, keeps, out);
    let name = match transport {
        Transport::Udp => return,
        Transport::Tls if uri.scheme == Scheme::Sips => return,
        // RFC 7118 section 5.2.3.
        Transport::Ws | Transport::Wss => "ws",
        Transport::Tcp | Transport::Tls => transport.uri_name(),
    };
    hiding::parameter(b"transport", Some(name.as_bytes()), out);
}

/// Whether a parameter of a URI is one of [`WAYS`].
fn is_way(param: &Param<'_>) -> bool {
    WAYS.iter().any(|way| param.name.eq_ignore_ascii_case(way))
}

/// Whether a parameter is one of [`NUMBERS`], with a number.
fn is_number(param: &Param<'_>) -> bool {
    let value = param.value.unwrap_or_default();
    let points = value.iter().filter(|byte| **byte == b'.').count();
    let mut numbers = NUMBERS.iter();
    numbers.any(|number| param.name.eq_ignore_ascii_case(number))
        && points < 2
        && (value.iter()).all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

/// Whether a parameter names no host.
fn is_harmless(param: &Param<'_>) -> bool {
    hiding::is_harmless(param.name) && param.value.is_none_or(hiding::is_harmless)
}
