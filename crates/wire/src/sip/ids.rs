//! Header names and methods: one declared list each, from which everything else is derived.

use super::vector::{byte_index, splat, zeros};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Slots of the header name lookup; a power of two well above twice the number of names.
const SLOTS: usize = 512;

macro_rules! headers {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal, $compact:literal, $list:literal;)*) => {
        /// Declared names of header fields; compact forms are recognised (RFC 3261 section 7.3.3).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum HeaderId {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
            /// A name that is not in the list; [`super::Header::name`] has it.
            Other,
        }

        /// Long name, compact name (empty: none), whether the value is a comma separated list.
        const DECLARED: &[(HeaderId, &str, &str, bool)] = &[$((HeaderId::$variant, $name, $compact, $list),)*];
    };
}

headers! {
    Via = "Via", "v", true;
    From = "From", "f", false;
    To = "To", "t", false;
    CallId = "Call-ID", "i", false;
    CSeq = "CSeq", "", false;
    Contact = "Contact", "m", true;
    MaxForwards = "Max-Forwards", "", false;
    Route = "Route", "", true;
    RecordRoute = "Record-Route", "", true;
    ContentLength = "Content-Length", "l", false;
    ContentType = "Content-Type", "c", false;
    Accept = "Accept", "", true;
    AcceptContact = "Accept-Contact", "a", true;
    AcceptEncoding = "Accept-Encoding", "", true;
    AcceptLanguage = "Accept-Language", "", true;
    AlertInfo = "Alert-Info", "", true;
    Allow = "Allow", "", true;
    AllowEvents = "Allow-Events", "u", true;
    AuthenticationInfo = "Authentication-Info", "", false;
    Authorization = "Authorization", "", false;
    CallInfo = "Call-Info", "", true;
    ContentDisposition = "Content-Disposition", "", false;
    ContentEncoding = "Content-Encoding", "e", true;
    ContentLanguage = "Content-Language", "", true;
    Date = "Date", "", false;
    Diversion = "Diversion", "", true;
    ErrorInfo = "Error-Info", "", true;
    Event = "Event", "o", false;
    Expires = "Expires", "", false;
    FlowTimer = "Flow-Timer", "", false;
    Geolocation = "Geolocation", "", true;
    HistoryInfo = "History-Info", "", true;
    Identity = "Identity", "y", true;
    InfoPackage = "Info-Package", "", false;
    InReplyTo = "In-Reply-To", "", true;
    Join = "Join", "", false;
    MimeVersion = "MIME-Version", "", false;
    MinExpires = "Min-Expires", "", false;
    MinSe = "Min-SE", "", false;
    Organization = "Organization", "", false;
    PAccessNetworkInfo = "P-Access-Network-Info", "", true;
    PAssertedIdentity = "P-Asserted-Identity", "", true;
    PAssertedService = "P-Asserted-Service", "", true;
    PAssociatedUri = "P-Associated-URI", "", true;
    PCalledPartyId = "P-Called-Party-ID", "", false;
    PChargingVector = "P-Charging-Vector", "", false;
    PEarlyMedia = "P-Early-Media", "", true;
    PPreferredIdentity = "P-Preferred-Identity", "", true;
    PPreferredService = "P-Preferred-Service", "", true;
    PVisitedNetworkId = "P-Visited-Network-ID", "", true;
    Path = "Path", "", true;
    Priority = "Priority", "", false;
    Privacy = "Privacy", "", false;
    ProxyAuthenticate = "Proxy-Authenticate", "", false;
    ProxyAuthorization = "Proxy-Authorization", "", false;
    ProxyRequire = "Proxy-Require", "", true;
    RAck = "RAck", "", false;
    Reason = "Reason", "", true;
    RecvInfo = "Recv-Info", "", true;
    ReferredBy = "Referred-By", "b", false;
    ReferSub = "Refer-Sub", "", false;
    ReferTo = "Refer-To", "r", false;
    RejectContact = "Reject-Contact", "j", true;
    RemotePartyId = "Remote-Party-ID", "", true;
    Replaces = "Replaces", "", false;
    ReplyTo = "Reply-To", "", false;
    RequestDisposition = "Request-Disposition", "d", true;
    Require = "Require", "", true;
    RetryAfter = "Retry-After", "", false;
    RSeq = "RSeq", "", false;
    SecurityClient = "Security-Client", "", true;
    SecurityServer = "Security-Server", "", true;
    SecurityVerify = "Security-Verify", "", true;
    Server = "Server", "", false;
    ServiceRoute = "Service-Route", "", true;
    SessionExpires = "Session-Expires", "x", false;
    SipEtag = "SIP-ETag", "", false;
    SipIfMatch = "SIP-If-Match", "", false;
    Subject = "Subject", "s", false;
    SubscriptionState = "Subscription-State", "", false;
    Supported = "Supported", "k", true;
    Timestamp = "Timestamp", "", false;
    Unsupported = "Unsupported", "", true;
    UserAgent = "User-Agent", "", false;
    UserToUser = "User-to-User", "", true;
    Warning = "Warning", "", true;
    WwwAuthenticate = "WWW-Authenticate", "", false;
}

/// Number of identifiers, [`HeaderId::Other`] included.
pub const HEADER_IDS: usize = DECLARED.len() + 1;

/// Length of the longest name that is looked up.
const MAX_NAME_BYTES: usize = 24;

/// A name with 0x20 set in each byte, padded with 0x20, so that eight letters compare at a time without regard to case.
/// (Of the characters of tokens, only the letters of the declared names map to these values.)
type Folded = [u64; MAX_NAME_BYTES / 8];

const fn fold(name: &[u8]) -> Folded {
    let mut folded = [0x2020_2020_2020_2020; MAX_NAME_BYTES / 8];
    let mut i = 0;
    while i < name.len() {
        folded[i / 8] |= (name[i] as u64) << (8 * (i % 8));
        i += 1;
    }
    folded
}

/// Slot of a folded name: cheap, and spread enough for the declared names.
const fn slot(folded: &Folded, length: usize) -> usize {
    let mixed = (folded[0] ^ folded[1].rotate_left(23) ^ folded[2].rotate_left(41))
        .wrapping_add(length as u64);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % SLOTS
}

/// Slots contain the index of a declared long name plus one; a collision uses the next slot.
const TABLE: [u8; SLOTS] = {
    let mut table = [0u8; SLOTS];
    let mut i = 0;
    while i < DECLARED.len() {
        let name = DECLARED[i].1.as_bytes();
        assert!(name.len() <= MAX_NAME_BYTES);
        let mut at = slot(&fold(name), name.len());
        while table[at] != 0 {
            at = (at + 1) % SLOTS;
        }
        table[at] = (i + 1) as u8;
        i += 1;
    }
    table
};

/// The declared names, folded, with their lengths.
const FOLDED: [(Folded, usize, HeaderId); DECLARED.len()] = {
    let mut folded = [([0; MAX_NAME_BYTES / 8], 0, HeaderId::Other); DECLARED.len()];
    let mut i = 0;
    while i < DECLARED.len() {
        let name = DECLARED[i].1.as_bytes();
        folded[i] = (fold(name), name.len(), DECLARED[i].0);
        i += 1;
    }
    folded
};

/// Identifier by compact form's letter.
const COMPACT: [HeaderId; 256] = {
    let mut table = [HeaderId::Other; 256];
    let mut i = 0;
    while i < DECLARED.len() {
        let compact = DECLARED[i].2.as_bytes();
        if compact.len() == 1 {
            table[compact[0] as usize] = DECLARED[i].0;
            table[compact[0].to_ascii_uppercase() as usize] = DECLARED[i].0;
        }
        i += 1;
    }
    table
};

/// Masks of names by their length, in words of eight bytes.
const NAMES: [Folded; MAX_NAME_BYTES] = {
    let mut masks = [[0; MAX_NAME_BYTES / 8]; MAX_NAME_BYTES];
    let mut length = 0;
    while length < MAX_NAME_BYTES {
        let mut i = 0;
        while i < length {
            masks[length][i / 8] |= 0xff << (8 * (i % 8));
            i += 1;
        }
        length += 1;
    }
    masks
};

/// The declared header with this name.
#[inline]
fn declared(folded: &Folded, length: usize) -> Option<HeaderId> {
    let mut at = slot(folded, length);
    while let Some(index) = usize::from(TABLE[at]).checked_sub(1) {
        let (name, long, id) = &FOLDED[index];
        let other = (name[0] ^ folded[0]) | (name[1] ^ folded[1]) | (name[2] ^ folded[2]);
        if other == 0 && *long == length {
            return Some(*id);
        }
        at = (at + 1) % SLOTS;
    }
    None
}

impl HeaderId {
    /// The declared long name at the beginning of a line, directly before its colon, and its length. `None` for all
    /// other lines, and for the last bytes of a message: these have to be parsed byte by byte.
    #[inline]
    pub(super) fn at(line: &[u8]) -> Option<(HeaderId, usize)> {
        let ([a, b, c], _) = line.first_chunk::<MAX_NAME_BYTES>()?.as_chunks::<8>() else {
            return None;
        };
        let words = [a, b, c].map(|word| u64::from_le_bytes(*word));
        let colon = words.map(|word| zeros(word ^ splat(b':')));
        let length = match colon {
            [0, 0, 0] => return None,
            [0, 0, third] => 16 + byte_index(third),
            [0, second, _] => 8 + byte_index(second),
            [first, ..] => byte_index(first),
        };
        let mask = NAMES.get(length)?;
        // Folding would turn control characters into hyphens and digits.
        let control = |at: usize| zeros(words[at] & splat(0x60) | !mask[at]);
        if control(0) | control(1) | control(2) != 0 {
            return None;
        }
        let fold = |at: usize| words[at] & mask[at] | splat(b' ');
        let id = declared(&[fold(0), fold(1), fold(2)], length)?;
        Some((id, length))
    }

    /// The header's bit in a set of headers; all headers without an identifier share one.
    #[inline]
    pub const fn bit(self) -> u128 {
        // The number of identifiers is checked in `message`.
        1 << (self as u32 & 127)
    }

    /// The first header of a set of [`HeaderId::bit`]; [`HeaderId::Other`] if there is no other.
    pub fn first_in(set: u128) -> HeaderId {
        DECLARED
            .get(set.trailing_zeros() as usize)
            .map_or(HeaderId::Other, |(id, ..)| *id)
    }

    /// The identifier of a long or compact name in any case; [`HeaderId::Other`] if it is not declared.
    pub fn from_name(name: &[u8]) -> HeaderId {
        match name.contains(&b'\r') {
            // Folding would turn it into a hyphen.
            true => HeaderId::Other,
            false => Self::from_token(name),
        }
    }

    /// As [`HeaderId::from_name`], for a valid token.
    #[inline]
    pub(super) fn from_token(name: &[u8]) -> HeaderId {
        match name {
            [] => HeaderId::Other,
            [letter] => COMPACT[usize::from(*letter)],
            _ if name.len() > MAX_NAME_BYTES => HeaderId::Other,
            _ => {
                let mut padded = [0x20u8; MAX_NAME_BYTES];
                for (to, from) in padded.iter_mut().zip(name) {
                    *to = from | 0x20;
                }
                let mut folded = [0u64; MAX_NAME_BYTES / 8];
                for (to, from) in folded.iter_mut().zip(padded.as_chunks::<8>().0) {
                    *to = u64::from_le_bytes(*from);
                }
                declared(&folded, name.len()).unwrap_or(HeaderId::Other)
            }
        }
    }

    /// The long name in its usual spelling; empty for [`HeaderId::Other`].
    pub fn name(self) -> &'static str {
        DECLARED.get(self as usize).map_or("", |entry| entry.1)
    }

    /// The compact name, if there is one.
    pub fn compact(self) -> Option<&'static str> {
        DECLARED
            .get(self as usize)
            .map(|entry| entry.2)
            .filter(|compact| !compact.is_empty())
    }

    /// Whether several values may share one header field, separated by commas (RFC 3261 section 7.3.1).
    pub fn is_list(self) -> bool {
        DECLARED.get(self as usize).is_some_and(|entry| entry.3)
    }
}

macro_rules! methods {
    ($($variant:ident = $name:literal;)*) => {
        /// A request method. Names are case-sensitive (RFC 3261 section 7.1).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Method<'a> {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
            /// Any other token, unmodified.
            Other(&'a [u8]),
        }

        impl<'a> Method<'a> {
            /// The declared methods, in order of declaration.
            pub const KNOWN: &'static [Method<'static>] = &[$(Method::$variant,)*];

            /// The method with this exact name.
            pub fn from_bytes(name: &'a [u8]) -> Method<'a> {
                $(if name == $name.as_bytes() {
                    return Method::$variant;
                })*
                Method::Other(name)
            }

            /// The name in a request line.
            pub fn as_bytes(&self) -> &'a [u8] {
                match *self {
                    $(Method::$variant => $name.as_bytes(),)*
                    Method::Other(name) => name,
                }
            }

            /// The same method with a static lifetime; `None` for an undeclared one.
            pub fn known(&self) -> Option<Method<'static>> {
                match *self {
                    $(Method::$variant => Some(Method::$variant),)*
                    Method::Other(_) => None,
                }
            }
        }
    };
}

methods! {
    Invite = "INVITE";
    Ack = "ACK";
    Bye = "BYE";
    Cancel = "CANCEL";
    Register = "REGISTER";
    Options = "OPTIONS";
    Info = "INFO";
    Update = "UPDATE";
    Prack = "PRACK";
    Refer = "REFER";
    Subscribe = "SUBSCRIBE";
    Notify = "NOTIFY";
    Message = "MESSAGE";
    Publish = "PUBLISH";
}

impl fmt::Display for Method<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_declared_name_is_found_in_any_case() {
        for (i, (id, long, compact, _)) in DECLARED.iter().enumerate() {
            assert_eq!(*id as usize, i);
            assert_eq!(HeaderId::from_name(long.as_bytes()), *id);
            assert_eq!(HeaderId::from_name(long.to_uppercase().as_bytes()), *id);
            assert_eq!(HeaderId::from_name(long.to_lowercase().as_bytes()), *id);
            assert_eq!(id.name(), *long);
            if !compact.is_empty() {
                assert_eq!(HeaderId::from_name(compact.as_bytes()), *id);
                assert_eq!(HeaderId::from_name(compact.to_uppercase().as_bytes()), *id);
            }
        }
        for unknown in ["", "q", "Vias", "X-Foo", "Call_ID", "Call\rID"] {
            assert_eq!(HeaderId::from_name(unknown.as_bytes()), HeaderId::Other);
        }
        assert_eq!(HeaderId::Other.name(), "");
        assert_eq!(HeaderId::Other as usize, HEADER_IDS - 1);
    }

    #[test]
    fn first_of_a_set_is_found() {
        for (id, ..) in DECLARED {
            assert_eq!(HeaderId::first_in(id.bit() | HeaderId::Other.bit()), *id);
        }
        assert_eq!(HeaderId::first_in(HeaderId::Other.bit()), HeaderId::Other);
        assert_eq!(HeaderId::first_in(0), HeaderId::Other);
        let two = HeaderId::Subject.bit() | HeaderId::Via.bit();
        assert_eq!(HeaderId::first_in(two), HeaderId::Via);
    }

    /// The fast lookup agrees with the lookup byte by byte.
    #[test]
    fn names_are_found_at_the_beginning_of_a_line() {
        let behind = ": <sip:a@b>;tag=1, and more that follows\r\n";
        for (id, long, compact, _) in DECLARED {
            for name in [long.to_string(), long.to_uppercase(), long.to_lowercase()] {
                let line = format!("{name}{behind}");
                let expected = (name.len() < MAX_NAME_BYTES).then_some((*id, name.len()));
                assert_eq!(HeaderId::at(line.as_bytes()), expected, "{line}");
                assert_eq!(HeaderId::at(format!("{name} {behind}").as_bytes()), None);
                assert_eq!(HeaderId::at(format!(" {name}{behind}").as_bytes()), None);
                assert_eq!(HeaderId::at(format!("{name}x{behind}").as_bytes()), None);
                assert_eq!(HeaderId::at(format!("{name}:").as_bytes()), None, "the end");
                for at in 0..name.len() {
                    for byte in 0..=u8::MAX {
                        let mut line = line.clone().into_bytes();
                        line[at] = byte;
                        let length = line
                            .iter()
                            .position(|byte| !super::super::message::is_token(*byte));
                        let length = length.unwrap_or(line.len());
                        let known = match line[length] {
                            b':' => HeaderId::from_name(&line[..length]),
                            _ => HeaderId::Other,
                        };
                        match HeaderId::at(&line) {
                            Some(found) => assert_eq!(found, (known, length), "{name} {at} {byte}"),
                            // Names of one letter are left to the lookup byte by byte.
                            None => assert!(
                                known == HeaderId::Other || length == 1,
                                "{name} {at} {byte}"
                            ),
                        }
                    }
                }
            }
            assert_eq!(HeaderId::at(format!("{compact}{behind}").as_bytes()), None);
        }
    }

    #[test]
    fn methods_are_case_sensitive() {
        for method in Method::KNOWN {
            assert_eq!(Method::from_bytes(method.as_bytes()), *method);
        }
        assert_eq!(Method::from_bytes(b"invite"), Method::Other(b"invite"));
        assert_eq!(Method::Other(b"NEW").known(), None);
    }
}
