//! Private headers of IP multimedia networks at the boundary of the trust domain: P-Access-Network-Info and
//! P-Charging-Vector (RFC 7315), P-Asserted-Service and P-Preferred-Service (RFC 6050), P-Early-Media (RFC 5009); as at
//! a P-CSCF (3GPP TS 24.229 sections 4.4 and 5.2).
//!
//! Pure functions for one message that is forwarded from one side to the other.

use smallvec::SmallVec;
use wire::sip::{Edit, HeaderId, Message, Method};

/// In P-Early-Media: the sender supports the header; the only value allowed from phones (RFC 5009 section 8).
const SUPPORTED: &[u8] = b"supported";
/// In P-Access-Network-Info: the value was set by the network, not the phone (RFC 7315 section 5.4).
const NETWORK_PROVIDED: &[u8] = b"network-provided";

/// Appends the edits of a message between sides that are trusted or not; `access` is a buffer.
pub(crate) fn edits<'e, const N: usize>(
    message: &Message<'e>,
    (from, to): (bool, bool),
    access: &'e mut Vec<u8>,
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    if from && to {
        return;
    }
    let mut remove = |id| {
        if message.has(id) {
            edits.push(Edit::Remove(id));
        }
    };
    // Assertions of a network are neither believed from untrusted sides nor sent to them.
    remove(HeaderId::PAssertedService);
    if !to {
        remove(HeaderId::PAccessNetworkInfo);
        remove(HeaderId::PPreferredService);
    }
    if from {
        return;
    }
    if to && message.has(HeaderId::PAccessNetworkInfo) {
        access_of_phone(message, access, edits);
    }
    if message.has(HeaderId::PEarlyMedia) {
        let supports = message.is_request() && message.lists(HeaderId::PEarlyMedia, SUPPORTED);
        edits.push(match supports {
            true => Edit::Replace {
                id: HeaderId::PEarlyMedia,
                value: SUPPORTED,
            },
            false => Edit::Remove(HeaderId::PEarlyMedia),
        });
    }
}

/// Keeps access information of the phone, but removes values that claim to be from its network (TS 24.229 section
/// 5.2.6.3).
fn access_of_phone<'e, const N: usize>(
    message: &Message<'e>,
    access: &'e mut Vec<u8>,
    edits: &mut SmallVec<[Edit<'e>; N]>,
) {
    access.clear();
    let mut dropped = false;
    for value in message.values(HeaderId::PAccessNetworkInfo) {
        let mut words = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        if words.any(|word| word.eq_ignore_ascii_case(NETWORK_PROVIDED)) {
            dropped = true;
            continue;
        }
        if !access.is_empty() {
            access.extend_from_slice(b", ");
        }
        access.extend_from_slice(value);
    }
    let id = HeaderId::PAccessNetworkInfo;
    match (dropped, &**access) {
        (false, _) => {}
        (true, []) => edits.push(Edit::Remove(id)),
        (true, value) => edits.push(Edit::Replace { id, value }),
    }
}

/// Whether the message may contain P-Charging-Vector (RFC 7315 section 5.7).
pub(crate) fn is_charged(message: &Message<'_>) -> bool {
    match message.is_request() {
        true => !matches!(message.method(), Method::Ack | Method::Cancel),
        false => (101..300).contains(&message.status()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anchor::EarlyMedia;
    use wire::sip::emit;

    fn message(start: &str, headers: &str) -> Vec<u8> {
        format!(
            "{start}\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@x>;tag=1\r\nTo: <sip:b@x>\r\n\
             Call-ID: 1\r\nCSeq: 1 INVITE\r\n{headers}\r\n"
        )
        .into_bytes()
    }

    fn passed(start: &str, trust: (bool, bool), headers: &str) -> String {
        let bytes = message(start, headers);
        let message = Message::parse(&bytes).unwrap();
        let mut access = Vec::new();
        let mut list: SmallVec<[Edit<'_>; 8]> = SmallVec::new();
        edits(&message, trust, &mut access, &mut list);
        let mut out = Vec::new();
        emit(&message, &list, &mut out);
        let text = String::from_utf8(out).unwrap();
        let rest = text.split_once("CSeq: 1 INVITE\r\n").unwrap().1;
        rest.trim_end().replace("\r\n", "\n")
    }

    const INVITE: &str = "INVITE sip:b@h SIP/2.0";
    const RINGING: &str = "SIP/2.0 180 Ringing";

    #[test]
    fn access_network_info_is_relayed_to_trusted_sides() {
        let own = "P-Access-Network-Info: 3GPP-E-UTRAN-FDD;utran-cell-id-3gpp=1\r\n";
        let own_left = own.trim_end();
        assert_eq!(passed(INVITE, (false, true), own), own_left);
        assert_eq!(passed(INVITE, (true, true), own), own_left);
        assert_eq!(passed(INVITE, (false, false), own), "");
        assert_eq!(passed(RINGING, (true, false), own), "");
        let both =
            "P-Access-Network-Info: 3GPP-GERAN;cgi-3gpp=1, IEEE-802.11; network-provided\r\n";
        assert_eq!(
            passed(INVITE, (false, true), both),
            "P-Access-Network-Info: 3GPP-GERAN;cgi-3gpp=1"
        );
        assert_eq!(
            passed(INVITE, (true, true), both),
            both.trim_end(),
            "a network speaks for itself"
        );
        let forged = "P-Access-Network-Info: 3GPP-GERAN;Network-Provided\r\n";
        assert_eq!(passed(INVITE, (false, true), forged), "");
    }

    #[test]
    fn asserted_and_preferred_services_follow_trust() {
        let both = "P-Asserted-Service: urn:urn-7:3gpp-service.ims.icsi.mmtel\r\nP-Preferred-Service: urn:x\r\n";
        assert_eq!(
            passed(INVITE, (false, true), both),
            "P-Preferred-Service: urn:x"
        );
        assert_eq!(passed(INVITE, (true, false), both), "");
        assert_eq!(passed(INVITE, (false, false), both), "");
        assert_eq!(
            passed(INVITE, (true, true), both),
            both.trim_end().replace("\r\n", "\n")
        );
    }

    #[test]
    fn untrusted_early_media_is_reduced_to_supported() {
        for (start, said, left) in [
            (INVITE, "supported", "P-Early-Media: supported"),
            (INVITE, "sendrecv, Supported", "P-Early-Media: supported"),
            (INVITE, "sendrecv", ""),
            (RINGING, "sendrecv", ""),
            (RINGING, "supported", ""),
        ] {
            let header = format!("P-Early-Media: {said}\r\n");
            assert_eq!(passed(start, (false, true), &header), left, "{said}");
        }
        let network = "P-Early-Media: sendrecv\r\n";
        assert_eq!(passed(RINGING, (true, false), network), network.trim_end());
    }

    #[test]
    fn early_media_direction_is_parsed() {
        let of = |headers: &str| {
            let bytes = message(RINGING, headers);
            EarlyMedia::of(&Message::parse(&bytes).unwrap())
                .map(|early| (early.backward, early.forward))
        };
        assert_eq!(of(""), None);
        assert_eq!(of("P-Early-Media: supported, gated\r\n"), None);
        assert_eq!(of("P-Early-Media: sendrecv\r\n"), Some((true, true)));
        assert_eq!(of("P-Early-Media: SendOnly\r\n"), Some((true, false)));
        assert_eq!(of("P-Early-Media: recvonly\r\n"), Some((false, true)));
        assert_eq!(
            of("P-Early-Media: inactive, gated\r\n"),
            Some((false, false))
        );
        assert_eq!(
            of("P-Early-Media: inactive\r\nP-Early-Media: sendonly\r\n"),
            Some((true, false))
        );
    }

    #[test]
    fn charging_vectors_are_added_to_permitted_messages() {
        for (start, charged) in [
            (INVITE, true),
            ("UPDATE sip:b@h SIP/2.0", true),
            ("ACK sip:b@h SIP/2.0", false),
            (RINGING, true),
            ("SIP/2.0 200 OK", true),
            ("SIP/2.0 486 Busy Here", false),
        ] {
            let method = start.split(' ').next().unwrap();
            let bytes = String::from_utf8(message(start, "")).unwrap();
            let bytes = match method {
                "SIP/2.0" => bytes,
                method => bytes.replace("CSeq: 1 INVITE", &format!("CSeq: 1 {method}")),
            };
            let message = Message::parse(bytes.as_bytes()).unwrap();
            assert_eq!(is_charged(&message), charged, "{start}");
        }
    }
}
