//! Validation of messages (RFC 3261 sections 7, 8.2, 18.3; cases of RFC 4475).

use super::host::Host;
use super::ids::{HeaderId, Method};
use super::list::find_outside;
use super::message::{Message, Start, is_token};
use super::typed::{NameAddr, Via};
use super::uri::{Scheme, Uri};
use std::net::Ipv4Addr;

/// The reason for which a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rejection {
    /// Status of the response to a request; 0 for a response, which is dropped.
    pub status: u16,
    /// Reason phrase of the response, or reason of the drop.
    pub reason: &'static str,
}

const fn bad(reason: &'static str) -> Rejection {
    Rejection {
        status: 400,
        reason,
    }
}

impl Message<'_> {
    /// Validates the message. Requests: 505, 416 or 400 with a reason phrase that names the fault; an ACK is
    /// never answered. Responses: status 0, drop.
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
        if self.faults.loose_start_line || !method.as_bytes().iter().all(|byte| is_token(*byte)) {
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
        // A response with a broadcast or multicast address in a lower Via is forged or misrouted (RFC 4475 section
        // 3.3.10): it must not be forwarded.
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
        let faults = &self.faults;
        match () {
            () if faults.bad_length => Err(bad("Bad Content-Length")),
            () if faults.truncated => Err(bad("Content-Length Beyond Message")),
            () if faults.unfinished => Err(bad("Message Without End of Headers")),
            () if faults.bad_line => Err(bad("Malformed Header Line")),
            () if faults.bare_lf || self.has_bare_cr() => Err(bad("Malformed Line End")),
            () => Ok(()),
        }
    }

    /// Whether there is a CR without LF: some parsers would end the line there, others not. At this point every line is
    /// known to end in CRLF, so that the number of CR equals the number of lines.
    fn has_bare_cr(&self) -> bool {
        let bytes = self.bytes();
        let head = bytes.len() - self.body().len();
        let returns = memchr::memchr_iter(b'\r', bytes.get(..head).unwrap_or_default()).count();
        // Start line and blank line are not counted while indexing.
        returns != self.faults.lines as usize + 2
    }

    fn validate_request_uri(&self, uri: &[u8]) -> Result<(), Rejection> {
        let parsed = Uri::parse(uri).ok_or(bad("Malformed Request-URI"))?;
        match parsed.scheme {
            Scheme::Other(_) => Err(Rejection {
                status: 416,
                reason: "Unsupported URI Scheme",
            }),
            _ if parsed.headers.is_empty() => Ok(()),
            // RFC 3261 section 19.1.1: a Request-URI has no headers; RFC 4475 section 3.1.2.11 allows 400.
            _ => Err(bad("Headers in Request-URI")),
        }
    }

    /// The six mandatory header fields of section 8.1.1, except Max-Forwards (old clients omit it).
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
        // From and To of a response repeat those of our request: only their tags are read.
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

    /// Headers that are optional but must be well-formed.
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

/// Supported version, no empty parameters, no stray commas.
fn via_sound(via: &Via<'_>) -> bool {
    via.version == b"2.0"
        && via.params.well_formed()
        && find_outside(via.params.as_bytes(), 0, b',').is_none()
}

/// The parameters are well-formed.
fn parameters_sound(address: Option<NameAddr<'_>>) -> bool {
    address.is_some_and(|address| address.params.well_formed())
}

/// The URI parses (with any scheme), and the parameters are well-formed.
fn address_sound(address: Option<NameAddr<'_>>) -> bool {
    address.is_some_and(|address| {
        address.params.well_formed() && (address.is_star() || Uri::is_well_formed(address.uri))
    })
}
