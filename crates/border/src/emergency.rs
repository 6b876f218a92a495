//! Recognition of emergency calls.

/// Whether a URI is `urn:service:sos` or below it (RFC 5031 section 4.2).
pub(crate) fn is_emergency_uri(uri: &[u8]) -> bool {
    const SOS: &[u8] = b"urn:service:sos";
    uri.get(..SOS.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SOS))
        && matches!(uri.get(SOS.len()), None | Some(b'.'))
}
