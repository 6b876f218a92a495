//! What makes a message unfit to be processed (RFC 3261 sections 7, 8.2, 18.3; cases of RFC 4475).

use super::host::Host;
use super::ids::{HeaderId, Method};
use super::list::find_outside;
use super::message::{Message, Start, is_token};
use super::typed::{NameAddr, Via};
use super::uri::{Scheme, Uri};
use std::net::Ipv4Addr;

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rejection {
    /// Status to answer a request with; 0 for a response, which is dropped.
    pub status: u16,
    /// Reason phrase of the answer, or reason of the drop.
    pub reason: &'static str,
}

const fn bad(reason: &'static str) -> Rejection {
    Rejection {
        status: 400,
        reason,
    }
}

impl Message<'_> {
    /// Judges the message. Requests: 505, 416 or 400 with a reason phrase that names the fault. An ACK must not be
    /// answered whatever this says. Responses: status 0, drop.
    pub fn validate(&self) -> Result<(), Rejection> {
        match self.start {
            Start::Request {
                method,
                uri,
                version,
            } => self.validate_request(method, uri, version),
            Start::Status { version, .. } => {
                self.validate_response(version)
                    .map_err(|rejection| Rejection {
                        status: 0,
                        ..rejection
                    })
            }
        }
    }

    fn validate_request(
        &self,
        method: Method<'_>,
        uri: &[u8],
        version: &[u8],
    ) -> Result<(), Rejection> {
        if !version.eq_ignore_ascii_case(b"SIP/2.0") {
            return Err(Rejection {
                status: 505,
                reason: "Version Not Supported",
            });
        }
        if self.odd.loose_start_line || !method.as_bytes().iter().all(|byte| is_token(*byte)) {
            return Err(bad("Malformed Request Line"));
        }
        self.validate_shape()?;
        self.validate_request_uri(uri)?;
        self.validate_core(Some(method))?;
        self.validate_optional()
    }

    fn validate_response(&self, version: &[u8]) -> Result<(), Rejection> {
        if !version.eq_ignore_ascii_case(b"SIP/2.0") {
            return Err(bad("Version Not Supported"));
        }
        self.validate_shape()?;
        self.validate_core(None)?;
        // A response that names a broadcast or multicast sender further down was forged or is misrouted (RFC 4475
        // section 3.3.10): it must not go on.
        let below = self.vias().skip(1);
        for via in below {
            let via = via.map_err(|_| bad("Malformed Via"))?;
            if let Host::V4(address) = via.host
                && (address == Ipv4Addr::BROADCAST
                    || address.is_multicast()
                    || address.is_unspecified())
            {
                return Err(bad("Via Names a Broadcast Address"));
            }
        }
        Ok(())
    }

    /// Faults of lines and lengths.
    fn validate_shape(&self) -> Result<(), Rejection> {
        let odd = &self.odd;
        match () {
            () if odd.bad_length => Err(bad("Bad Content-Length")),
            () if odd.truncated => Err(bad("Content-Length Beyond Message")),
            () if odd.unfinished => Err(bad("Message Without End of Headers")),
            () if odd.bad_line => Err(bad("Malformed Header Line")),
            () if odd.bare_lf || self.has_bare_cr() => Err(bad("Malformed Line End")),
            () => Ok(()),
        }
    }

    /// A CR that no LF follows would end a line for some readers and not for others. Every line ends in CRLF where this
    /// is asked, so there are as many CR as lines.
    fn has_bare_cr(&self) -> bool {
        let bytes = self.bytes();
        let head = bytes.len() - self.body().len();
        let returns = memchr::memchr_iter(b'\r', bytes.get(..head).unwrap_or_default()).count();
        // The start line and the blank line are not counted while indexing.
        returns != self.odd.lines as usize + 2
    }

    fn validate_request_uri(&self, uri: &[u8]) -> Result<(), Rejection> {
        let parsed = Uri::parse(uri).ok_or(bad("Malformed Request-URI"))?;
        match parsed.scheme {
            Scheme::Other(_) => Err(Rejection {
                status: 416,
                reason: "Unsupported URI Scheme",
            }),
            _ if parsed.headers.is_empty() => Ok(()),
            // RFC 3261 section 19.1.1: a Request-URI has no headers; RFC 4475 section 3.1.2.11 lets 400 say so.
            _ => Err(bad("Headers in Request-URI")),
        }
    }

    /// The six header fields of section 8.1.1, Max-Forwards excepted (old clients leave it out).
    fn validate_core(&self, method: Option<Method<'_>>) -> Result<(), Rejection> {
        self.exactly_one(HeaderId::CallId, "Missing Call-ID", "Several Call-ID")?;
        self.exactly_one(HeaderId::CSeq, "Missing CSeq", "Several CSeq")?;
        self.exactly_one(HeaderId::From, "Missing From", "Several From")?;
        self.exactly_one(HeaderId::To, "Missing To", "Several To")?;
        if !self.has(HeaderId::Via) {
            return Err(bad("Missing Via"));
        }
        self.call_id().map_err(|_| bad("Malformed Call-ID"))?;
        let cseq = self.cseq().map_err(|_| bad("Malformed CSeq"))?;
        if method.is_some_and(|method| method != cseq.method) {
            return Err(bad("CSeq Method Differs"));
        }
        let via = self.via().map_err(|_| bad("Malformed Via"))?;
        if !via_sound(&via) {
            return Err(bad("Malformed Via"));
        }
        // The addresses in a response are ours, given back: nobody reads more of them than their tags.
        let sound = match method {
            Some(_) => address_sound,
            None => parameters_sound,
        };
        if !sound(self.from().ok()) {
            return Err(bad("Malformed From"));
        }
        if !sound(self.to().ok()) {
            return Err(bad("Malformed To"));
        }
        Ok(())
    }

    fn exactly_one(
        &self,
        id: HeaderId,
        none: &'static str,
        many: &'static str,
    ) -> Result<(), Rejection> {
        match (self.has(id), self.is_repeated(id)) {
            (false, _) => Err(bad(none)),
            (true, false) => Ok(()),
            (true, true) => Err(bad(many)),
        }
    }

    /// Headers that need not be there but must be right where they are.
    fn validate_optional(&self) -> Result<(), Rejection> {
        if self.has(HeaderId::MaxForwards) && self.max_forwards().is_err() {
            return Err(bad("Malformed Max-Forwards"));
        }
        if self.is_repeated(HeaderId::MaxForwards) {
            return Err(bad("Several Max-Forwards"));
        }
        if self.has(HeaderId::Contact)
            && !self.contacts().all(|contact| address_sound(contact.ok()))
        {
            return Err(bad("Malformed Contact"));
        }
        if self.has(HeaderId::Route) && !self.routes().all(|route| address_sound(route.ok())) {
            return Err(bad("Malformed Route"));
        }
        if self.has(HeaderId::RecordRoute)
            && !self.record_routes().all(|route| address_sound(route.ok()))
        {
            return Err(bad("Malformed Record-Route"));
        }
        if !self.body().is_empty()
            && self.has(HeaderId::ContentType)
            && self.content_type().is_err()
        {
            return Err(bad("Malformed Content-Type"));
        }
        Ok(())
    }
}

/// Our version, parameters without empty pieces, no stray commas.
fn via_sound(via: &Via<'_>) -> bool {
    via.version == b"2.0"
        && via.params.well_formed()
        && find_outside(via.params.as_bytes(), 0, b',').is_none()
}

/// The parameters are parameters.
fn parameters_sound(address: Option<NameAddr<'_>>) -> bool {
    address.is_some_and(|address| address.params.well_formed())
}

/// The URI parses (its scheme may be any), the parameters are parameters.
fn address_sound(address: Option<NameAddr<'_>>) -> bool {
    address.is_some_and(|address| {
        address.params.well_formed() && (address.is_star() || Uri::is_well_formed(address.uri))
    })
}
