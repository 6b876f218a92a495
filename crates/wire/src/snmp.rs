//! Notifications of SNMP v2c (RFC 3416) in BER: traps, and informs with their responses.

/// Tags of BER and of the SMI (RFC 2578 section 7.1).
mod tag {
    pub(super) const INTEGER: u8 = 0x02;
    pub(super) const OCTETS: u8 = 0x04;
    pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
    pub(super) const SEQUENCE: u8 = 0x30;
    pub(super) const UNSIGNED: u8 = 0x42;
    pub(super) const TIME_TICKS: u8 = 0x43;
    pub(super) const RESPONSE: u8 = 0xa2;
    pub(super) const INFORM: u8 = 0xa6;
    pub(super) const TRAP: u8 = 0xa7;
}

/// Version number of SNMP v2c.
const VERSION_2C: i64 = 1;
/// sysUpTime.0, in hundredths of a second.
const SYS_UP_TIME: [u32; 9] = [1, 3, 6, 1, 2, 1, 1, 3, 0];
/// snmpTrapOID.0
const SNMP_TRAP_OID: [u32; 11] = [1, 3, 6, 1, 6, 3, 1, 1, 4, 1, 0];

/// A value of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnmpValue<'a> {
    /// INTEGER, also of enumerations.
    Integer(i32),
    /// Unsigned32.
    Unsigned(u32),
    /// OCTET STRING, also of texts.
    Octets(&'a [u8]),
    /// TimeTicks, hundredths of a second.
    TimeTicks(u32),
    /// OBJECT IDENTIFIER.
    Identifier(&'a [u32]),
}

/// A notification.
#[derive(Clone, Copy, Debug)]
pub struct SnmpNotification<'a> {
    /// Community.
    pub community: &'a [u8],
    /// Number that the response to an inform repeats, not negative.
    pub request: i32,
    /// Whether it is an InformRequest; otherwise it is a trap.
    pub inform: bool,
    /// Time since the start of the sender, hundredths of a second.
    pub uptime: u32,
    /// Identifier of the notification, of at least two numbers.
    pub kind: &'a [u32],
    /// Its objects, each with the identifier of the instance.
    pub objects: &'a [(&'a [u32], SnmpValue<'a>)],
}

/// A response to an inform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnmpResponse {
    /// Number of the request.
    pub request: i64,
    /// error-status; 0: no error.
    pub error: i64,
}

/// Appends tag, length and content.
fn element(out: &mut Vec<u8>, tag: u8, content: &[u8]) {
    out.push(tag);
    let length = content.len();
    match length {
        0..=0x7f => out.push(length as u8),
        0x80..=0xff => out.extend([0x81, length as u8]),
        0x100..=0xffff => out.extend([0x82, (length >> 8) as u8, length as u8]),
        _ => {
            out.push(0x84);
            out.extend((length as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(content);
}

/// Appends a number in the least octets of two's complement.
fn number(out: &mut Vec<u8>, tag: u8, value: i64) {
    let bytes = value.to_be_bytes();
    let redundant = |pair: &[u8]| {
        matches!(pair, [0, next, ..] if next & 0x80 == 0)
            || matches!(pair, [0xff, next, ..] if next & 0x80 != 0)
    };
    let mut rest: &[u8] = &bytes;
    while redundant(rest) {
        rest = rest.get(1..).unwrap_or_default();
    }
    element(out, tag, rest);
}

fn identifier(out: &mut Vec<u8>, numbers: &[u32]) {
    let mut content = Vec::with_capacity(numbers.len() + 8);
    let (head, rest) = numbers.split_at_checked(2).unwrap_or((&[0, 0], &[]));
    let first = match head {
        [one, two] => u64::from(*one) * 40 + u64::from(*two),
        _ => 0,
    };
    for number in core::iter::once(first).chain(rest.iter().map(|number| u64::from(*number))) {
        let groups = (1..5).rev().map(|group| number >> (7 * group));
        content.extend(
            groups
                .skip_while(|value| *value == 0)
                .map(|value| value as u8 | 0x80),
        );
        content.push(number as u8 & 0x7f);
    }
    element(out, tag::OBJECT_IDENTIFIER, &content);
}

fn value(out: &mut Vec<u8>, value: SnmpValue<'_>) {
    match value {
        SnmpValue::Integer(value) => number(out, tag::INTEGER, value.into()),
        SnmpValue::Unsigned(value) => number(out, tag::UNSIGNED, value.into()),
        SnmpValue::TimeTicks(value) => number(out, tag::TIME_TICKS, value.into()),
        SnmpValue::Octets(value) => element(out, tag::OCTETS, value),
        SnmpValue::Identifier(value) => identifier(out, value),
    }
}

impl SnmpNotification<'_> {
    /// The datagram.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut list = Vec::new();
        let fixed = [
            (&SYS_UP_TIME[..], SnmpValue::TimeTicks(self.uptime)),
            (&SNMP_TRAP_OID[..], SnmpValue::Identifier(self.kind)),
        ];
        for (name, content) in fixed.iter().chain(self.objects) {
            let mut pair = Vec::new();
            identifier(&mut pair, name);
            value(&mut pair, *content);
            element(&mut list, tag::SEQUENCE, &pair);
        }
        let mut body = Vec::new();
        number(&mut body, tag::INTEGER, self.request.into());
        // error-status and error-index.
        number(&mut body, tag::INTEGER, 0);
        number(&mut body, tag::INTEGER, 0);
        element(&mut body, tag::SEQUENCE, &list);
        let mut content = Vec::new();
        number(&mut content, tag::INTEGER, VERSION_2C);
        element(&mut content, tag::OCTETS, self.community);
        let kind = if self.inform { tag::INFORM } else { tag::TRAP };
        element(&mut content, kind, &body);
        let mut out = Vec::new();
        element(&mut out, tag::SEQUENCE, &content);
        out
    }
}

/// The content of the next element, which must have this tag, and the bytes behind it.
fn next(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, short], rest) = bytes.split_first_chunk::<2>()?;
    if found != tag {
        return None;
    }
    let (length, rest) = match short {
        0..=0x7f => (usize::from(short), rest),
        0x81..=0x84 => {
            let (octets, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
            let add = |sum: usize, octet: &u8| sum << 8 | usize::from(*octet);
            (octets.iter().fold(0, add), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

fn next_number(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (content, rest) = next(bytes, tag::INTEGER)?;
    let first = *content.first()?;
    if content.len() > 8 {
        return None;
    }
    let sign = if first & 0x80 == 0 { 0 } else { -1 };
    let value = content
        .iter()
        .fold(sign, |sum: i64, octet| sum << 8 | i64::from(*octet));
    Some((value, rest))
}

/// The response in a datagram; `None` if it is none of SNMP v2c with this community.
pub fn response(datagram: &[u8], community: &[u8]) -> Option<SnmpResponse> {
    let (message, _) = next(datagram, tag::SEQUENCE)?;
    let (version, rest) = next_number(message)?;
    let (name, rest) = next(rest, tag::OCTETS)?;
    let (body, _) = next(rest, tag::RESPONSE)?;
    let (request, rest) = next_number(body)?;
    let (error, _) = next_number(rest)?;
    (version == VERSION_2C && name == community).then_some(SnmpResponse { request, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_least_octets() {
        let encoded = |value| {
            let mut out = Vec::new();
            number(&mut out, tag::INTEGER, value);
            out
        };
        // X.690 section 8.3.
        assert_eq!(encoded(0), [2, 1, 0]);
        assert_eq!(encoded(127), [2, 1, 127]);
        assert_eq!(encoded(128), [2, 2, 0, 128]);
        assert_eq!(encoded(-128), [2, 1, 128]);
        assert_eq!(encoded(-129), [2, 2, 0xff, 0x7f]);
        assert_eq!(encoded(i64::from(u32::MAX)), [2, 5, 0, 255, 255, 255, 255]);
        let mut out = Vec::new();
        identifier(&mut out, &[1, 3, 6, 1, 4, 1, 32_473, 4_294_967_295]);
        assert_eq!(
            out,
            [
                6, 13, 0x2b, 6, 1, 4, 1, 0x81, 0xfd, 0x59, 0x8f, 0xff, 0xff, 0xff, 0x7f
            ]
        );
    }

    #[test]
    fn trap_and_response_have_the_octets_of_the_standard() {
        let trap = SnmpNotification {
            community: b"public",
            request: 5,
            inform: false,
            uptime: 300,
            kind: &[1, 3, 6, 1],
            objects: &[(&[1, 3, 9], SnmpValue::Octets(b"x"))],
        };
        let expected = [
            &[0x30, 0x44, 2, 1, 1, 4, 6][..],
            b"public",
            &[0xa7, 0x37, 2, 1, 5, 2, 1, 0, 2, 1, 0, 0x30, 0x2c],
            &[0x30, 14, 6, 8, 0x2b, 6, 1, 2, 1, 1, 3, 0, 0x43, 2, 1, 44],
            &[
                0x30, 17, 6, 10, 0x2b, 6, 1, 6, 3, 1, 1, 4, 1, 0, 6, 3, 0x2b, 6, 1,
            ],
            &[0x30, 7, 6, 2, 0x2b, 9, 4, 1, b'x'],
        ]
        .concat();
        assert_eq!(trap.to_bytes(), expected);
        let mut answer = expected;
        assert_eq!(response(&answer, b"public"), None, "a trap is no response");
        answer[13] = tag::RESPONSE;
        let expected = SnmpResponse {
            request: 5,
            error: 0,
        };
        assert_eq!(response(&answer, b"public"), Some(expected));
        assert_eq!(response(&answer, b"other"), None);
        // Cut and altered datagrams are refused without a panic.
        for at in 0..answer.len() {
            let _ = response(&answer[..at], b"public");
            for value in [0, 0x7f, 0x84, 0xff] {
                let mut altered = answer.clone();
                altered[at] = value;
                let _ = response(&altered, b"public");
            }
        }
    }
}
