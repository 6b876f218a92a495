//! Header values with replaced hosts, for topology hiding.

use wire::sip::{NameAddr, Scheme, Uri};

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
