//! Recognition of emergency calls: to a service URN or to a configured number. No limit refuses them.

use config::Config;
use wire::sip::{Scheme, Uri, percent_decode};

/// Whether a request to this URI is an emergency call.
pub(crate) fn is_emergency(config: &Config, uri: &[u8]) -> bool {
    is_service_urn(uri) || is_number(&config.sip.emergency_numbers, uri)
}

/// Whether a URI is `urn:service:sos` or below it (RFC 5031 section 4.2).
fn is_service_urn(uri: &[u8]) -> bool {
    const SOS: &[u8] = b"urn:service:sos";
    uri.get(..SOS.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SOS))
        && matches!(uri.get(SOS.len()), None | Some(b'.'))
}

/// Whether the user part of a URI is one of these numbers.
fn is_number(numbers: &[String], uri: &[u8]) -> bool {
    if numbers.is_empty() {
        return false;
    }
    let Some(uri) = Uri::parse(uri) else {
        return false;
    };
    let separators: &[u8] = match uri.scheme {
        Scheme::Tel => b"-.()",
        Scheme::Sip | Scheme::Sips => b"",
        _ => return false,
    };
    // Parameters inside the user part do not belong to the number.
    let user = uri.user.unwrap_or_default();
    let user = percent_decode(user.split(|byte| *byte == b';').next().unwrap_or(user));
    let called = || user.iter().filter(|byte| !separators.contains(byte));
    numbers.iter().any(|number| called().eq(number.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emergency_uris_are_recognised() {
        let numbers = ["112", "911"].map(String::from);
        for (uri, service, number) in [
            ("urn:service:sos", true, false),
            ("URN:Service:SOS.fire", true, false),
            ("urn:service:sosnot", false, false),
            ("sip:sos@x", false, false),
            ("sip:112@x;user=phone", false, true),
            ("sips:112;phone-context=x@x", false, true),
            ("sip:%3112@x", false, true),
            ("tel:9-1-1;phone-context=+1", false, true),
            ("sip:1123@x", false, false),
            ("sip:1@112", false, false),
            ("sip:112", false, false),
            ("mailto:112@x", false, false),
        ] {
            assert_eq!(is_service_urn(uri.as_bytes()), service, "{uri}");
            assert_eq!(is_number(&numbers, uri.as_bytes()), number, "{uri}");
            assert!(!is_number(&[], uri.as_bytes()), "{uri}");
        }
    }
}
