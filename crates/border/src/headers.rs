//! Headers of forwarded messages: replaced hosts, end-to-end option tags, headers about a network.

use sip::Flow;
use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Host, Message, Method, NameAddr, Scheme, Uri};

/// URI parameter that identifies the contact of a forwarded registration.
pub(crate) const TOKEN: &[u8] = b"hw";

/// Supported of an INVITE that the border does not forward, or whose caller could not answer an offer in a reliable
/// response: the border's own option tags. Those that two ends negotiate with each other (100rel with its offers in
/// responses, precondition) would be promises that the border does not keep.
pub(crate) const OWN_SUPPORTED: Edit<'static> = Edit::Replace {
    id: HeaderId::Supported,
    value: b"timer, replaces",
};
/// The same as the only edit of a re-INVITE.
pub(crate) const OWN_REINVITE: &[Edit<'static>] = &[OWN_SUPPORTED];

/// Edits of a forwarded message.
pub(crate) type EditList<'e> = SmallVec<[Edit<'e>; 24]>;

/// Appends `uri` with its host and port replaced by `host`. URIs without a host stay unchanged.
pub(crate) fn uri_with_host(uri: &[u8], host: &[u8], out: &mut Vec<u8>) {
    let Some(parsed) =
        Uri::parse(uri).filter(|uri| matches!(uri.scheme, Scheme::Sip | Scheme::Sips))
    else {
        out.extend_from_slice(uri);
        return;
    };
    out.extend_from_slice(match parsed.scheme {
        Scheme::Sips => b"sips:".as_slice(),
        _ => b"sip:".as_slice(),
    });
    if let Some(user) = parsed.user {
        out.extend_from_slice(user);
        out.push(b'@');
    }
    out.extend_from_slice(host);
    if !parsed.params.is_empty() {
        out.push(b';');
        out.extend_from_slice(parsed.params.as_bytes());
    }
    if !parsed.headers.is_empty() {
        out.push(b'?');
        out.extend_from_slice(parsed.headers);
    }
}

/// Whether an address has the host of anonymous callers (RFC 3323 section 4.1.1.3).
pub(crate) fn is_anonymous(address: &NameAddr<'_>) -> bool {
    address.parse_uri().is_some_and(
        |uri| matches!(uri.host, Host::Name(name) if name.to_ascii_lowercase().ends_with(b".invalid")),
    )
}

/// Whether the number of a caller is withheld: the address is anonymous, or has its user at another host, as some
/// systems write it (RFC 3323 section 4.1.1.3).
pub(crate) fn is_withheld(address: &NameAddr<'_>) -> bool {
    let user = address.parse_uri().and_then(|uri| uri.user);
    is_anonymous(address) || user.is_some_and(|user| user.eq_ignore_ascii_case(b"anonymous"))
}

/// Appends a name-addr with its host replaced by `host`. Display name and parameters stay; the tag is removed, because
/// each leg has its own.
pub(crate) fn address_with_host(address: &NameAddr<'_>, host: Option<&[u8]>, out: &mut Vec<u8>) {
    if !address.display.is_empty() {
        out.extend_from_slice(address.display);
        out.push(b' ');
    }
    out.push(b'<');
    match host {
        Some(host) => uri_with_host(address.uri, host, out),
        None => out.extend_from_slice(address.uri),
    }
    out.push(b'>');
    for param in address.params.iter() {
        if param.name.eq_ignore_ascii_case(b"tag") {
            continue;
        }
        out.push(b';');
        out.extend_from_slice(param.name);
        if let Some(value) = param.value {
            out.push(b'=');
            out.extend_from_slice(value);
        }
    }
}

/// Option tags that the ends of a leg negotiate between themselves, or that the endpoint writes. A 199 ends one early
/// dialog of several (RFC 6228); the caller has only one, which stands for all of them. From of a leg does not change
/// during a call (RFC 4916).
pub(crate) const HOP_TAGS: [&[u8]; 8] = [
    b"199",
    b"from-change",
    b"timer",
    b"100rel",
    b"replaces",
    b"path",
    b"outbound",
    b"gruu",
];

/// Option tags that we support on each leg independently.
const OWN_TAGS: &[u8] = b"100rel, timer, replaces";

/// The same in a re-INVITE, to which reliable provisional responses are not supported.
const REINVITE_TAGS: &[u8] = b"timer, replaces";

/// The option tags that we support on the other leg of a message.
pub(crate) fn own_tags(message: &Message<'_>) -> &'static [u8] {
    let in_dialog = || message.to().is_ok_and(|to| to.tag().is_some());
    match message.method() == Method::Invite && message.is_request() && in_dialog() {
        true => REINVITE_TAGS,
        false => OWN_TAGS,
    }
}

/// Whether Supported in this message matters (RFC 3261 section 20.37): then it must contain only tags that both sides
/// support.
pub(crate) fn promises(message: &Message<'_>) -> bool {
    matches!(message.method(), Method::Invite | Method::Update)
        && (message.is_request() || (200..300).contains(&message.status()))
}

/// Appends the end-to-end option tags of header `id` to `out`.
pub(crate) fn end_to_end_tags(message: &Message<'_>, id: HeaderId, out: &mut Vec<u8>) {
    if !message.has(id) {
        return;
    }
    for tag in message.values(id) {
        if HOP_TAGS.iter().any(|hop| hop.eq_ignore_ascii_case(tag)) {
            continue;
        }
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(tag);
    }
}

/// Appends the values of all fields with this identifier as one list (RFC 3261 section 7.3.1).
pub(crate) fn joined(message: &Message<'_>, id: HeaderId, out: &mut Vec<u8>) {
    for value in message.values(id) {
        append_value(value, out);
    }
}

/// Appends a value to a list.
pub(crate) fn append_value(value: &[u8], out: &mut Vec<u8>) {
    if !out.is_empty() {
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(value);
}

/// Appends the option tags to `out` that a request declares as supported end to end.
pub(crate) fn promised_end_to_end(message: &Message<'_>, out: &mut Vec<u8>) {
    end_to_end_tags(message, HeaderId::Supported, out);
}

/// Headers about the network of their sender that are meant for the same network: charging (RFC 7315 sections 4.5 and
/// 4.6), the visited network (4.3), and the route to its registrar (RFC 3608), which is ours to use.
pub(crate) const NETWORK: [HeaderId; 3] = [
    HeaderId::PChargingVector,
    HeaderId::PVisitedNetworkId,
    HeaderId::ServiceRoute,
];

/// The same, for a name without identifier.
pub(crate) const CHARGING_ADDRESSES: &[u8] = b"P-Charging-Function-Addresses";

/// Pseudonym in place of the host in Warning (RFC 3261 section 20.43).
pub(crate) const WARN_AGENT: &[u8] = b"hornwork";

/// The standard text of a warning code (RFC 3261 section 20.43, RFC 5630 section 6).
fn warning_text(code: &[u8]) -> &'static [u8] {
    match code {
        b"300" => b"\"Incompatible network protocol\"",
        b"301" => b"\"Incompatible network address formats\"",
        b"302" => b"\"Incompatible transport protocol\"",
        b"303" => b"\"Incompatible bandwidth units\"",
        b"304" => b"\"Media type not available\"",
        b"305" => b"\"Incompatible media format\"",
        b"306" => b"\"Attribute not understood\"",
        b"307" => b"\"Session description parameter not understood\"",
        b"330" => b"\"Multicast not available\"",
        b"331" => b"\"Unicast not available\"",
        b"370" => b"\"Insufficient bandwidth\"",
        b"380" => b"\"SIPS Not Allowed\"",
        b"381" => b"\"SIPS Required\"",
        _ => b"\"Miscellaneous warning\"",
    }
}

/// The values of Warning without their hosts; `hides`: with the standard texts of their codes.
pub(crate) fn warnings(message: &Message<'_>, hides: bool, out: &mut Vec<u8>) {
    if !message.has(HeaderId::Warning) {
        return;
    }
    for value in message.values(HeaderId::Warning) {
        let mut words = value.splitn(3, |byte| byte.is_ascii_whitespace());
        let (Some(code), Some(_), Some(text)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let text = if hides { warning_text(code) } else { text };
        if !out.is_empty() {
            out.extend_from_slice(b", ");
        }
        for part in [code, b" ", WARN_AGENT, b" ", text] {
            out.extend_from_slice(part);
        }
    }
}

/// Removes headers that reveal the network; `warnings` is the result of [`warnings`].
pub(crate) fn hide_network<'e, const N: usize>(
    message: &Message<'e>,
    warnings: &'e [u8],
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    for id in NETWORK {
        if message.has(id) {
            edits.push(Edit::Remove(id));
        }
    }
    if message.has(HeaderId::Other) && message.header_named(CHARGING_ADDRESSES).is_some() {
        edits.push(Edit::RemoveNamed(CHARGING_ADDRESSES));
    }
    hide_hops(message, warnings, edits);
}

/// Removes Path (RFC 3327), which concerns the proxies of one side, and the hosts of Warning. Path of a registration is
/// the registrar's.
pub(crate) fn hide_hops<'e, const N: usize>(
    message: &Message<'e>,
    warnings: &'e [u8],
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    if message.has(HeaderId::Path) && message.method() != Method::Register {
        edits.push(Edit::Remove(HeaderId::Path));
    }
    match (message.has(HeaderId::Warning), warnings) {
        (false, _) => {}
        (true, []) => edits.push(Edit::Remove(HeaderId::Warning)),
        (true, value) => edits.push(Edit::Replace {
            id: HeaderId::Warning,
            value,
        }),
    }
}

/// Whether Contact of a response names further targets (RFC 3261 sections 8.1.3.4 and 21.4.23).
pub(crate) fn proposes_targets(response: &Message<'_>) -> bool {
    matches!(response.status(), 300..=399 | 485)
}

/// Adds headers that belong to the content of a response, not to its dialog: the `contacts` of a redirect as the other
/// side gets them, the option tags that are not supported (420) or required (421).
pub(crate) fn response_headers<'e, const N: usize>(
    response: &Message<'e>,
    contacts: &'e [u8],
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    if !contacts.is_empty() {
        let id = HeaderId::Contact;
        edits.push(Edit::Add {
            id,
            value: contacts,
        });
    }
    let id = match response.status() {
        420 => HeaderId::Unsupported,
        421 => HeaderId::Require,
        _ => return,
    };
    edits.extend(response.all(id).map(|value| Edit::Add { id, value }));
}

/// Appends the option tags of Require that concern the other end. Those of a 421 are its content, see
/// [`response_headers`].
pub(crate) fn required_end_to_end(message: &Message<'_>, out: &mut Vec<u8>) {
    if message.status() != 421 {
        end_to_end_tags(message, HeaderId::Require, out);
    }
}

/// Transport and address of the peer of a flow, for an event.
pub(crate) fn address_of(flow: &Flow) -> String {
    format!("{}:{}", flow.transport, flow.remote)
}

/// The text of bytes of a message, for an event.
pub(crate) fn text(bytes: &[u8]) -> String {
    match core::str::from_utf8(bytes) {
        // Scanned by words; invalid UTF-8 is then searched byte by byte.
        Ok(text) => text.to_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// Whether a request has credentials, for us or for a system behind us.
pub(crate) fn has_credentials(request: &Message<'_>) -> bool {
    request.has(HeaderId::Authorization) || request.has(HeaderId::ProxyAuthorization)
}

/// Removes credentials that are consumed by us.
pub(crate) fn without_credentials<'e>(request: &Message<'_>, edits: &mut EditList<'e>) {
    for id in [HeaderId::Authorization, HeaderId::ProxyAuthorization] {
        if request.has(id) {
            edits.push(Edit::Remove(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(text: &str) -> String {
        let mut out = Vec::new();
        address_with_host(
            &NameAddr::parse(text.as_bytes()).unwrap(),
            Some(b"192.0.2.1:5070"),
            &mut out,
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_the_host_and_the_tag_change() {
        assert_eq!(
            moved("\"A, <x>\" <sips:a;b=c:pw@10.0.0.1:5061;transport=tcp?x=y>;tag=1;isup-oli=2"),
            // Passwords are removed.
            "\"A, <x>\" <sips:a;b=c@192.0.2.1:5070;transport=tcp?x=y>;isup-oli=2"
        );
        assert_eq!(moved("sip:10.0.0.1;tag=7"), "<sip:192.0.2.1:5070>");
        assert_eq!(
            moved("<tel:+431234;phone-context=x>;tag=7"),
            "<tel:+431234;phone-context=x>"
        );
    }
}
