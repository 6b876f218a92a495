//! Known headers, and their treatment by topology hiding (`headers = "known"`). The list includes headers that the
//! border composes itself, and headers that are subject to the trust domain, so that the generated page is complete.

use wire::sip::HeaderId;

/// Treatment of a header towards a side with `headers = "known"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Passed unchanged.
    Passes,
    /// Each side has its own.
    Own,
    /// Passed between trusted sides, or by the identity policy, regardless of `headers`.
    Trust,
    /// Removed, regardless of `headers`, except between trusted sides.
    Network,
    /// Passed: it is content of the user, which the border does not change.
    Content,
    /// Its hosts are replaced by a pseudonym, regardless of `headers`, and its texts by the standard ones.
    Pseudonym,
    /// Not passed in calls and other requests, regardless of `headers`; the registrar of a side has its own.
    Registrar,
    /// Media feature tags of the standards are passed (RFC 3840), other parameters are removed.
    Features,
    /// Comments are removed.
    Comment,
    /// Its host is replaced by ours; parameters with a host are removed.
    Host,
    /// URNs are passed. Other URIs get our host and keep parameters without a host. Values with a `purpose` are
    /// removed.
    Uri,
    /// URNs and references to body parts (`cid`) are passed; other URIs are removed.
    Urn,
    /// The parameter `text` is removed.
    Text,
    /// An address at the border or at a system of the other side becomes ours.
    Target,
    /// Hexadecimal values are passed, others removed.
    Hexadecimal,
    /// Removed.
    Goes,
}

/// All known headers, in the order of [`HeaderId`].
pub const HEADERS: [(HeaderId, Treatment); wire::sip::HEADER_IDS - 1] = {
    use HeaderId as H;
    use Treatment::*;
    [
        (H::Via, Own),
        (H::From, Own),
        (H::To, Own),
        (H::CallId, Own),
        (H::CSeq, Own),
        (H::Contact, Own),
        (H::MaxForwards, Own),
        (H::Route, Own),
        (H::RecordRoute, Own),
        (H::ContentLength, Own),
        (H::ContentType, Passes),
        (H::Accept, Passes),
        (H::AcceptContact, Features),
        (H::AcceptEncoding, Passes),
        (H::AcceptLanguage, Passes),
        (H::AlertInfo, Uri),
        (H::Allow, Passes),
        (H::AllowEvents, Passes),
        (H::AuthenticationInfo, Passes),
        (H::Authorization, Passes),
        (H::CallInfo, Uri),
        (H::ContentDisposition, Passes),
        (H::ContentEncoding, Passes),
        (H::ContentLanguage, Passes),
        (H::Date, Passes),
        (H::Diversion, Trust),
        (H::ErrorInfo, Urn),
        (H::Event, Passes),
        (H::Expires, Passes),
        (H::FlowTimer, Passes),
        (H::Geolocation, Urn),
        (H::HistoryInfo, Trust),
        (H::Identity, Passes),
        (H::InfoPackage, Passes),
        (H::InReplyTo, Goes),
        (H::Join, Passes),
        (H::MimeVersion, Passes),
        (H::MinExpires, Passes),
        (H::MinSe, Own),
        (H::Organization, Content),
        (H::PAccessNetworkInfo, Trust),
        (H::PAssertedIdentity, Trust),
        (H::PAssertedService, Trust),
        (H::PAssociatedUri, Passes),
        (H::PCalledPartyId, Passes),
        (H::PChargingVector, Network),
        (H::PEarlyMedia, Trust),
        (H::PPreferredIdentity, Trust),
        (H::PPreferredService, Trust),
        (H::PVisitedNetworkId, Network),
        (H::Path, Registrar),
        (H::Priority, Passes),
        (H::Privacy, Trust),
        (H::ProxyAuthenticate, Passes),
        (H::ProxyAuthorization, Passes),
        (H::ProxyRequire, Own),
        (H::RAck, Own),
        (H::Reason, Text),
        (H::RecvInfo, Passes),
        (H::ReferredBy, Host),
        (H::ReferSub, Passes),
        (H::ReferTo, Target),
        (H::RejectContact, Features),
        (H::RemotePartyId, Trust),
        (H::Replaces, Passes),
        (H::ReplyTo, Host),
        (H::RequestDisposition, Passes),
        (H::Require, Own),
        (H::RetryAfter, Comment),
        (H::RSeq, Own),
        (H::SecurityClient, Passes),
        (H::SecurityServer, Passes),
        (H::SecurityVerify, Passes),
        (H::Server, Own),
        (H::ServiceRoute, Network),
        (H::SessionExpires, Own),
        (H::SipEtag, Passes),
        (H::SipIfMatch, Passes),
        (H::Subject, Content),
        (H::SubscriptionState, Passes),
        (H::Supported, Own),
        (H::Timestamp, Passes),
        (H::Unsupported, Own),
        (H::UserAgent, Own),
        (H::UserToUser, Passes),
        (H::Warning, Pseudonym),
        (H::WwwAuthenticate, Passes),
    ]
};

/// Known headers without an identifier. They contain tokens and numbers, no addresses.
pub const NAMED: [(&str, Treatment); 8] = [
    ("Accept-Resource-Priority", Treatment::Passes),
    ("Answer-Mode", Treatment::Passes),
    ("Geolocation-Routing", Treatment::Passes),
    ("Max-Breadth", Treatment::Passes),
    ("Priv-Answer-Mode", Treatment::Passes),
    ("Resource-Priority", Treatment::Passes),
    // Some systems write it like a Call-ID, with their host.
    ("Session-ID", Treatment::Hexadecimal),
    ("Suppress-If-Match", Treatment::Passes),
];

/// Treatment of a known header.
pub fn treatment(id: HeaderId) -> Treatment {
    HEADERS
        .get(id as usize)
        .map_or(Treatment::Goes, |known| known.1)
}

/// Whether a header may be listed in `pass_headers`: not if the border composes it, or if it is subject to the trust
/// domain.
pub fn may_be_listed(name: &[u8]) -> bool {
    let id = HeaderId::from_name(name);
    let refused = [
        Treatment::Own,
        Treatment::Trust,
        Treatment::Network,
        Treatment::Pseudonym,
        Treatment::Registrar,
    ];
    id == HeaderId::Other || !refused.contains(&treatment(id))
}
