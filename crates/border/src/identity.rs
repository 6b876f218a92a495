//! Identities at the boundary of the trust domain: P-Asserted-Identity and P-Preferred-Identity (RFC 3325), Privacy
//! (RFC 3323), Diversion (RFC 5806), History-Info (RFC 7044), and Remote-Party-ID, their predecessor.
//!
//! Pure functions for one message that is forwarded from one side to the other.

pub(crate) mod private_headers;

use crate::headers::address_with_host;
use crate::hiding;
use crate::hiding::PassHeaders;
use config::{History, IdentityPolicy};
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, NameAddr, Uri};

/// The URI of anonymous users (RFC 3323 section 4.1.1.3).
const ANONYMOUS_URI: &[u8] = b"sip:anonymous@anonymous.invalid";
/// The same as a name-addr.
pub(crate) const ANONYMOUS: &[u8] = b"\"Anonymous\" <sip:anonymous@anonymous.invalid>";

/// Headers that may identify a user and are not required for a call (RFC 3323 section 5.3).
const INFORMATIONAL: [HeaderId; 8] = [
    HeaderId::Subject,
    HeaderId::CallInfo,
    HeaderId::Organization,
    HeaderId::UserAgent,
    HeaderId::Server,
    HeaderId::ReplyTo,
    HeaderId::InReplyTo,
    HeaderId::ReferredBy,
];

/// Privacy requested by a message (RFC 3323 section 4.2, RFC 3325 section 9.3, RFC 7044 section 5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedPrivacy {
    pub(crate) id: bool,
    pub(crate) user: bool,
    pub(crate) header: bool,
    pub(crate) session: bool,
    pub(crate) history: bool,
    pub(crate) critical: bool,
    /// Whether privacy is explicitly not requested.
    pub(crate) none: bool,
}

impl RequestedPrivacy {
    /// The privacy requested by the message.
    pub(crate) fn of(message: &Message<'_>) -> RequestedPrivacy {
        let mut requested = RequestedPrivacy::default();
        if !message.has(HeaderId::Privacy) {
            return requested;
        }
        for value in values(message) {
            let which = match () {
                () if value.eq_ignore_ascii_case(b"id") => &mut requested.id,
                () if value.eq_ignore_ascii_case(b"user") => &mut requested.user,
                () if value.eq_ignore_ascii_case(b"header") => &mut requested.header,
                () if value.eq_ignore_ascii_case(b"session") => &mut requested.session,
                () if value.eq_ignore_ascii_case(b"history") => &mut requested.history,
                () if value.eq_ignore_ascii_case(b"critical") => &mut requested.critical,
                () if value.eq_ignore_ascii_case(b"none") => &mut requested.none,
                () => continue,
            };
            *which = true;
        }
        match requested.none {
            // `none` overrides other values (RFC 3323 section 4.2).
            true => RequestedPrivacy {
                none: true,
                ..RequestedPrivacy::default()
            },
            false => requested,
        }
    }

    /// Whether asserted identities are removed.
    fn hides_identity(self) -> bool {
        self.id || self.user || self.header
    }
}

/// The values of Privacy, separated by semicolons (or commas, as some user agents write).
fn values<'m>(message: &'m Message<'_>) -> impl Iterator<Item = &'m [u8]> {
    message
        .all(HeaderId::Privacy)
        .flat_map(|field| field.split(|byte| matches!(byte, b';' | b',')))
        .map(<[u8]>::trim_ascii)
        .filter(|value| !value.is_empty())
}

/// The two sides of a forwarded message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boundary<'a> {
    pub(crate) policy: &'a IdentityPolicy,
    /// Whether the originating side is trusted.
    pub(crate) from: bool,
    /// Whether the terminating side is trusted.
    pub(crate) to: bool,
    /// Whether asserted identities are sent to the terminating side.
    pub(crate) wanted: bool,
    /// The authenticated user of the caller, if its identity may be asserted.
    pub(crate) proven: Option<&'a str>,
    /// Whether media is anchored.
    pub(crate) anchored: bool,
    /// Headers that topology hiding passes unchanged to the terminating side; `None` without topology hiding.
    pub(crate) hiding: Option<&'a PassHeaders>,
}

/// Buffers of header values of one message.
#[derive(Debug, Default)]
pub(crate) struct IdentityTexts {
    asserted: Vec<u8>,
    remote: Vec<u8>,
    diversion: Vec<u8>,
    history: Vec<u8>,
    privacy: Vec<u8>,
    access: Vec<u8>,
    hidden: hiding::HidingTexts,
}

impl IdentityTexts {
    pub(crate) fn clear(&mut self) {
        self.asserted.clear();
        self.remote.clear();
        self.diversion.clear();
        self.history.clear();
        self.privacy.clear();
        self.access.clear();
    }
}

/// Treatment of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderFate {
    Passes,
    Goes,
    Becomes,
}

impl Boundary<'_> {
    /// Whether requested privacy must be applied here, because the message leaves the trust domain.
    fn serves(&self) -> bool {
        self.policy.privacy && !self.to
    }

    /// Whether From becomes anonymous.
    pub(crate) fn hides_caller(&self, requested: RequestedPrivacy) -> bool {
        self.serves() && requested.user
    }

    /// Whether the request must be refused because the requested privacy is impossible (RFC 3323 section 5: 500).
    pub(crate) fn must_refuse(&self, requested: RequestedPrivacy) -> bool {
        self.serves() && requested.critical && requested.session && !self.anchored
    }

    /// The edits of a forwarded message; `host` is our host on the terminating side.
    pub(crate) fn edits<'e, const N: usize>(
        &self,
        message: &Message<'e>,
        host: impl Fn() -> Vec<u8>,
        texts: &'e mut IdentityTexts,
        edits: &mut SmallVec<[Edit<'e>; N]>,
    ) {
        texts.clear();
        let requested = RequestedPrivacy::of(message);
        let IdentityTexts {
            asserted: asserted_text,
            remote: remote_text,
            diversion: diversion_text,
            history: history_text,
            privacy: privacy_text,
            access,
            hidden,
        } = texts;
        let asserted = self.asserted(message, requested, &host, asserted_text);
        let diversion = self.diverted(
            message,
            HeaderId::Diversion,
            self.policy.diversion,
            requested,
            diversion_text,
        );
        let history = self.diverted(
            message,
            HeaderId::HistoryInfo,
            self.policy.history_info,
            requested,
            history_text,
        );
        let privacy = self.privacy_left(message, requested, privacy_text);
        crate::identity::private_headers::edits(message, (self.from, self.to), access, edits);
        push(
            edits,
            message,
            HeaderId::PAssertedIdentity,
            asserted,
            asserted_text,
        );
        push(
            edits,
            message,
            HeaderId::Diversion,
            diversion,
            diversion_text,
        );
        push(edits, message, HeaderId::HistoryInfo, history, history_text);
        push(edits, message, HeaderId::Privacy, privacy, privacy_text);
        let remote = self.from
            && self.wanted
            && self.policy.remote_party_id
            && (self.to || !requested.hides_identity());
        let remote = match remote {
            true => remote_party(message, self.serves(), &host, remote_text),
            false => HeaderFate::Goes,
        };
        push(edits, message, HeaderId::RemotePartyId, remote, remote_text);
        if !self.from || !self.to {
            // It was addressed to us, whether or not the user is authenticated (RFC 3325 section 9.2); untrusted peers
            // assert nothing.
            push(
                edits,
                message,
                HeaderId::PPreferredIdentity,
                HeaderFate::Goes,
                b"",
            );
        }
        if self.serves() && requested.user {
            for id in INFORMATIONAL {
                push(edits, message, id, HeaderFate::Goes, b"");
            }
        }
        if let Some(passes) = self.hiding {
            hiding::edits(message, passes, host, hidden, edits);
        }
    }

    fn asserted(
        &self,
        message: &Message<'_>,
        requested: RequestedPrivacy,
        host: impl FnOnce() -> Vec<u8>,
        out: &mut Vec<u8>,
    ) -> HeaderFate {
        let has = message.has(HeaderId::PAssertedIdentity);
        if !self.from {
            let Some(user) = self
                .proven
                .filter(|_| self.policy.assert && self.wanted && self.to && message.is_request())
            else {
                return HeaderFate::Goes;
            };
            assert_identity(message, user, &host(), out);
            return HeaderFate::Becomes;
        }
        if !has {
            return HeaderFate::Passes;
        }
        if !self.wanted || (!self.to && requested.hides_identity()) {
            return HeaderFate::Goes;
        }
        crate::identity::identities(message, &host(), out);
        match out.is_empty() {
            true => HeaderFate::Goes,
            false => HeaderFate::Becomes,
        }
    }

    /// Edits of Diversion and History-Info.
    fn diverted(
        &self,
        message: &Message<'_>,
        id: HeaderId,
        policy: History,
        requested: RequestedPrivacy,
        out: &mut Vec<u8>,
    ) -> HeaderFate {
        if (self.from && self.to) || !message.has(id) {
            return HeaderFate::Passes;
        }
        let everyone = match policy {
            History::Remove => return HeaderFate::Goes,
            History::Anonymise if !self.from => return HeaderFate::Goes,
            History::Anonymise => true,
            History::Pass => requested.history || requested.header || requested.user,
        };
        if self.to || (!everyone && !message.values(id).any(requests_privacy)) {
            return HeaderFate::Passes;
        }
        for value in message.values(id) {
            if !out.is_empty() {
                out.extend_from_slice(b", ");
            }
            match everyone || requests_privacy(value) {
                true => anonymous(value, out),
                false => out.extend_from_slice(value),
            }
        }
        HeaderFate::Becomes
    }

    /// The values of Privacy that remain after we applied ours (RFC 3323 section 5).
    fn privacy_left(
        &self,
        message: &Message<'_>,
        requested: RequestedPrivacy,
        out: &mut Vec<u8>,
    ) -> HeaderFate {
        if !self.serves() || requested == RequestedPrivacy::default() || requested.none {
            return HeaderFate::Passes;
        }
        for value in values(message) {
            let done = [&b"id"[..], b"user", b"header", b"history"]
                .iter()
                .any(|known| known.eq_ignore_ascii_case(value))
                || (self.anchored && value.eq_ignore_ascii_case(b"session"));
            if done || value.eq_ignore_ascii_case(b"critical") {
                continue;
            }
            if !out.is_empty() {
                out.push(b';');
            }
            out.extend_from_slice(value);
        }
        match out.is_empty() {
            true => HeaderFate::Goes,
            false => {
                if requested.critical {
                    out.extend_from_slice(b";critical");
                }
                HeaderFate::Becomes
            }
        }
    }
}

fn push<'e, const N: usize>(
    edits: &mut SmallVec<[Edit<'e>; N]>,
    message: &Message<'_>,
    id: HeaderId,
    fate: HeaderFate,
    value: &'e [u8],
) {
    match fate {
        HeaderFate::Passes => {}
        HeaderFate::Becomes => edits.push(Edit::Replace { id, value }),
        HeaderFate::Goes if message.has(id) => edits.push(Edit::Remove(id)),
        HeaderFate::Goes => {}
    }
}

/// The identity of an authenticated user: the preferred one if it belongs to the user (RFC 3325 section 6), otherwise
/// its name in our domain.
fn assert_identity(message: &Message<'_>, user: &str, host: &[u8], out: &mut Vec<u8>) {
    let preferred = message
        .name_addrs(HeaderId::PPreferredIdentity)
        .flatten()
        .find(|address| is_of(address, user));
    if let Some(preferred) = preferred {
        return address_with_host(&preferred, Some(host), out);
    }
    out.extend_from_slice(b"<sip:");
    crate::policy::escape_user(user, out);
    out.push(b'@');
    out.extend_from_slice(host);
    out.push(b'>');
}

/// Whether an address is that of a user of ours.
fn is_of(address: &NameAddr<'_>, user: &str) -> bool {
    address
        .parse_uri()
        .filter(Uri::is_sip)
        .and_then(|uri| uri.user)
        .is_some_and(|found| *wire::sip::percent_decode(found) == *user.as_bytes())
}

/// Whether an entry requests privacy: `privacy` of a Diversion (RFC 5806 section 4) or Remote-Party-ID, Privacy in the
/// URI of a History-Info (RFC 7044 section 10.1.2).
fn requests_privacy(value: &[u8]) -> bool {
    let Some(address) = NameAddr::parse(value) else {
        // An unreadable entry may contain a request for privacy.
        return true;
    };
    let param = address
        .params
        .get(b"privacy")
        .is_some_and(|privacy| !privacy.eq_ignore_ascii_case(b"off"));
    param
        || address.parse_uri().is_none_or(|uri| {
            uri.header_pairs().any(|(name, value)| {
                name.eq_ignore_ascii_case(b"privacy") && !value.eq_ignore_ascii_case(b"none")
            })
        })
}

/// An entry with its parameters and an anonymous address.
fn anonymous(value: &[u8], out: &mut Vec<u8>) {
    out.push(b'<');
    out.extend_from_slice(ANONYMOUS_URI);
    out.push(b'>');
    let params = NameAddr::parse(value).map(|address| address.params);
    for param in params.iter().flat_map(|params| params.iter()) {
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = param.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
}

/// The values of Remote-Party-ID with our host, like those of P-Asserted-Identity; `serves`: without those that request
/// privacy (draft-ietf-sip-privacy-04 section 6).
fn remote_party(
    message: &Message<'_>,
    serves: bool,
    host: &impl Fn() -> Vec<u8>,
    out: &mut Vec<u8>,
) -> HeaderFate {
    if !message.has(HeaderId::RemotePartyId) {
        return HeaderFate::Passes;
    }
    let host = host();
    let values = message.values(HeaderId::RemotePartyId);
    for value in values.filter(|value| !serves || !requests_privacy(value)) {
        hiding::address(value, &host, out);
    }
    match out.is_empty() {
        true => HeaderFate::Goes,
        false => HeaderFate::Becomes,
    }
}

/// Appends the P-Asserted-Identity values of a message, with `host` in them.
pub(crate) fn identities(message: &Message<'_>, host: &[u8], out: &mut Vec<u8>) {
    for identity in message.name_addrs(HeaderId::PAssertedIdentity).flatten() {
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        crate::headers::address_with_host(&identity, Some(host), out);
    }
}

#[cfg(test)]
mod tests;
