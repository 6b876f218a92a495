//! Preconditions in session descriptions: `a=curr`, `a=des` and `a=conf` (RFC 3312 sections 4 and 7; RFC 4032 section
//! 3).

use super::Section;
use crate::sip_text::next_word;
use std::fmt;

/// Precondition type of RFC 3312: quality of service.
pub const QOS: &[u8] = b"qos";

/// The part of the network that a line refers to (RFC 3312 section 4), from its author's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusType {
    /// `e2e`: end to end.
    EndToEnd,
    /// `local`: the author's access network.
    Local,
    /// `remote`: the reader's access network.
    Remote,
}

impl StatusType {
    /// Parses a tag; tags compare without regard to case.
    pub fn from_tag(tag: &[u8]) -> Option<StatusType> {
        [StatusType::EndToEnd, StatusType::Local, StatusType::Remote]
            .into_iter()
            .find(|candidate| candidate.tag().as_bytes().eq_ignore_ascii_case(tag))
    }

    /// The tag.
    pub const fn tag(self) -> &'static str {
        match self {
            StatusType::EndToEnd => "e2e",
            StatusType::Local => "local",
            StatusType::Remote => "remote",
        }
    }

    /// The same status from the reader's view (RFC 3312 section 5).
    #[must_use]
    pub const fn reversed(self) -> StatusType {
        match self {
            StatusType::EndToEnd => StatusType::EndToEnd,
            StatusType::Local => StatusType::Remote,
            StatusType::Remote => StatusType::Local,
        }
    }
}

/// The strength of a precondition (RFC 3312 section 4), in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strength {
    /// `none`: not required.
    #[default]
    None,
    /// `optional`: attempted; the session continues without it.
    Optional,
    /// `mandatory`: the callee is not alerted before it is met.
    Mandatory,
    /// `failure`: could not be met; used in refusals (section 8).
    Failure,
    /// `unknown`: the precondition is not understood; used in refusals (section 8).
    Unknown,
}

impl Strength {
    const ALL: [Strength; 5] = [
        Strength::None,
        Strength::Optional,
        Strength::Mandatory,
        Strength::Failure,
        Strength::Unknown,
    ];

    /// Parses a tag; tags compare without regard to case.
    pub fn from_tag(tag: &[u8]) -> Option<Strength> {
        Strength::ALL
            .into_iter()
            .find(|candidate| candidate.tag().as_bytes().eq_ignore_ascii_case(tag))
    }

    /// The tag.
    pub const fn tag(self) -> &'static str {
        match self {
            Strength::None => "none",
            Strength::Optional => "optional",
            Strength::Mandatory => "mandatory",
            Strength::Failure => "failure",
            Strength::Unknown => "unknown",
        }
    }
}

/// Directions of reserved or required resources: `none`, `send`, `recv`, `sendrecv`, from the author's view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DirectionTag {
    /// From the author to the reader.
    pub send: bool,
    /// From the reader to the author.
    pub recv: bool,
}

impl DirectionTag {
    /// `none`.
    pub const NONE: DirectionTag = DirectionTag {
        send: false,
        recv: false,
    };
    /// `sendrecv`.
    pub const BOTH: DirectionTag = DirectionTag {
        send: true,
        recv: true,
    };

    /// Parses a tag; tags compare without regard to case.
    pub fn from_tag(tag: &[u8]) -> Option<DirectionTag> {
        [
            DirectionTag::NONE,
            DirectionTag::BOTH,
            DirectionTag {
                send: true,
                recv: false,
            },
            DirectionTag {
                send: false,
                recv: true,
            },
        ]
        .into_iter()
        .find(|candidate| candidate.tag().as_bytes().eq_ignore_ascii_case(tag))
    }

    /// The tag.
    pub const fn tag(self) -> &'static str {
        match (self.send, self.recv) {
            (false, false) => "none",
            (true, false) => "send",
            (false, true) => "recv",
            (true, true) => "sendrecv",
        }
    }

    /// The same directions from the reader's view.
    #[must_use]
    pub const fn reversed(self) -> DirectionTag {
        DirectionTag {
            send: self.recv,
            recv: self.send,
        }
    }

    /// Whether it contains every direction of `required`.
    pub const fn covers(self, required: DirectionTag) -> bool {
        (self.send || !required.send) && (self.recv || !required.recv)
    }

    /// The union of the directions.
    #[must_use]
    pub const fn with(self, other: DirectionTag) -> DirectionTag {
        DirectionTag {
            send: self.send || other.send,
            recv: self.recv || other.recv,
        }
    }
}

/// A precondition line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precondition<'a> {
    /// `a=curr`: current status.
    Current {
        /// Precondition type, for example [`QOS`].
        kind: &'a [u8],
        /// Part of the network.
        status: StatusType,
        /// Directions in which resources are reserved.
        reach: DirectionTag,
    },
    /// `a=des`: desired status.
    Desired {
        /// Precondition type.
        kind: &'a [u8],
        /// Strength.
        strength: Strength,
        /// Part of the network.
        status: StatusType,
        /// Directions.
        reach: DirectionTag,
    },
    /// `a=conf`: the reader has to confirm when the status is reached (RFC 3312 section 7).
    Confirm {
        /// Precondition type.
        kind: &'a [u8],
        /// Part of the network.
        status: StatusType,
        /// Directions.
        reach: DirectionTag,
    },
}

impl<'a> Precondition<'a> {
    /// Parses an attribute by its name and value; `None` for other attributes and for malformed values.
    pub fn parse(name: &[u8], value: &'a [u8]) -> Option<Precondition<'a>> {
        if !matches!(name, b"curr" | b"des" | b"conf") {
            return None;
        }
        let (kind, rest) = next_word(value);
        let (strength, rest) = match name {
            b"des" => {
                let (strength, rest) = next_word(rest);
                (Strength::from_tag(strength)?, rest)
            }
            _ => (Strength::None, rest),
        };
        let (status, rest) = next_word(rest);
        let (reach, rest) = next_word(rest);
        let status = StatusType::from_tag(status)?;
        let reach = DirectionTag::from_tag(reach)?;
        if kind.is_empty() || !rest.trim_ascii().is_empty() {
            return None;
        }
        Some(match name {
            b"curr" => Precondition::Current {
                kind,
                status,
                reach,
            },
            b"des" => Precondition::Desired {
                kind,
                strength,
                status,
                reach,
            },
            _ => Precondition::Confirm {
                kind,
                status,
                reach,
            },
        })
    }

    /// The precondition type.
    pub fn kind(&self) -> &'a [u8] {
        match self {
            Precondition::Current { kind, .. }
            | Precondition::Desired { kind, .. }
            | Precondition::Confirm { kind, .. } => kind,
        }
    }
}

/// The line as in a session description, without line end.
impl fmt::Display for Precondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind().escape_ascii();
        match self {
            Precondition::Current { status, reach, .. } => {
                write!(f, "a=curr:{kind} {} {}", status.tag(), reach.tag())
            }
            Precondition::Desired {
                strength,
                status,
                reach,
                ..
            } => write!(
                f,
                "a=des:{kind} {} {} {}",
                strength.tag(),
                status.tag(),
                reach.tag()
            ),
            Precondition::Confirm { status, reach, .. } => {
                write!(f, "a=conf:{kind} {} {}", status.tag(), reach.tag())
            }
        }
    }
}

impl<'s, 'a> Section<'s, 'a> {
    /// The precondition lines, in order; malformed ones are skipped.
    pub fn preconditions(&self) -> impl Iterator<Item = Precondition<'a>> + Clone + use<'s, 'a> {
        self.lines()
            .filter_map(|line| line.attribute())
            .filter_map(|(name, value)| Precondition::parse(name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sdp;
    use super::*;

    #[test]
    fn parsed_lines_are_written_unchanged() {
        for line in [
            "curr:qos e2e none",
            "curr:qos local sendrecv",
            "curr:qos remote send",
            "des:qos mandatory e2e sendrecv",
            "des:qos optional remote recv",
            "des:qos none local sendrecv",
            "des:qos failure e2e sendrecv",
            "des:foo unknown e2e sendrecv",
            "conf:qos remote sendrecv",
        ] {
            let (name, value) = line.split_once(':').unwrap();
            let read = Precondition::parse(name.as_bytes(), value.as_bytes()).unwrap();
            assert_eq!(read.to_string(), format!("a={line}"));
        }
        let read = Precondition::parse(b"des", b"QoS  MANDATORY Local SendRecv ");
        assert!(
            matches!(
                read,
                Some(Precondition::Desired {
                    strength: Strength::Mandatory,
                    ..
                })
            ),
            "tags are compared without regard to case: {read:?}"
        );
    }

    #[test]
    fn malformed_lines_are_not_parsed() {
        for (name, value) in [
            ("curr", ""),
            ("curr", "qos"),
            ("curr", "qos local"),
            ("curr", "qos local sideways"),
            ("curr", "qos here none"),
            ("curr", "qos local none none"),
            ("des", "qos local sendrecv"),
            ("des", "qos perhaps local sendrecv"),
            ("conf", "qos mandatory local sendrecv"),
            ("current", "qos local none"),
        ] {
            let read = Precondition::parse(name.as_bytes(), value.as_bytes());
            assert_eq!(read, None, "{name}:{value}");
        }
    }

    #[test]
    fn media_section_has_its_own_preconditions() {
        // The offer of RFC 3312 section 13.1, with a second line.
        let sdp = b"v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\n\
            m=audio 20000 RTP/AVP 0\r\na=curr:qos e2e none\r\na=des:qos mandatory e2e sendrecv\r\n\
            m=video 20002 RTP/AVP 31\r\na=sendrecv\r\n";
        let sdp = Sdp::parse(sdp).unwrap();
        let lines = |index| -> Vec<String> {
            let media = sdp.media_at(index).unwrap();
            let lines = media.section.preconditions();
            lines.map(|line| line.to_string()).collect()
        };
        assert_eq!(
            lines(0),
            ["a=curr:qos e2e none", "a=des:qos mandatory e2e sendrecv"]
        );
        assert_eq!(lines(1), [""; 0]);
    }

    #[test]
    fn views_of_author_and_reader_are_reversed() {
        let send = DirectionTag::from_tag(b"send").unwrap();
        assert_eq!(send.reversed().tag(), "recv");
        assert_eq!(StatusType::Local.reversed(), StatusType::Remote);
        assert_eq!(StatusType::EndToEnd.reversed(), StatusType::EndToEnd);
        assert!(DirectionTag::BOTH.covers(send) && !send.covers(DirectionTag::BOTH));
        assert!(send.covers(DirectionTag::NONE) && DirectionTag::NONE.covers(DirectionTag::NONE));
        assert_eq!(send.with(send.reversed()), DirectionTag::BOTH);
    }
}
