//! Writing a request in a dialog (RFC 3261 section 12.2.1.1).

use crate::compose::Lines;
use crate::dialog::{Own, Peer};
use crate::tokens::{IdToken, MAGIC};
use crate::transport::SipListener;
use engine::Transport;
use wire::sip::{HeaderId, Method};

/// The parts of an in-dialog request up to its own headers.
pub(crate) struct DialogRequest<'a> {
    pub(crate) listener: &'a SipListener,
    pub(crate) own: &'a Own,
    pub(crate) peer: &'a Peer,
    /// Our tag, in From.
    pub(crate) tag: IdToken,
    pub(crate) method: Method<'a>,
    pub(crate) cseq: u32,
    pub(crate) branch: IdToken,
}

impl DialogRequest<'_> {
    /// Writes request line, Via, Route, From, To, Call-ID, CSeq.
    pub(crate) fn write(&self, lines: &mut Lines<'_>) {
        let DialogRequest {
            listener,
            own,
            peer,
            tag,
            method,
            cseq,
            branch,
        } = *self;
        let mut routes = wire::sip::Values::list(peer.routes());
        // With a strict router its URI is the Request-URI, and the target becomes the last route (section 12.2.1.1).
        let strict = peer
            .strict
            .then(|| routes.next().and_then(wire::sip::NameAddr::parse))
            .flatten();
        lines.request_line(method, strict.map_or(peer.target(), |route| route.uri));
        lines
            .raw(b"Via: ")
            .raw(&listener.via)
            .raw(MAGIC)
            .raw(branch.as_bytes());
        if listener.transport == Transport::Udp {
            lines.raw(b";rport");
        }
        lines.end();
        match strict {
            None => {
                if !peer.routes().is_empty() {
                    lines.header(HeaderId::Route, peer.routes());
                }
            }
            Some(_) => {
                for route in routes {
                    lines.header(HeaderId::Route, route);
                }
                lines
                    .name(HeaderId::Route)
                    .raw(b"<")
                    .text(peer.target())
                    .raw(b">")
                    .end();
            }
        }
        lines
            .name(HeaderId::From)
            .text(own.local())
            .raw(b";tag=")
            .raw(tag.as_bytes())
            .end()
            .header(HeaderId::To, peer.remote())
            .header(HeaderId::CallId, own.call_id())
            .cseq(cseq, method.as_bytes());
    }
}
