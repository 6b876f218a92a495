//! Preconditions in session descriptions: `a=curr`, `a=des` and `a=conf` (RFC 3312 sections 4 and 7; RFC 4032 section 3).

use super::Section;
use crate::sip_text::next_word;
use std::fmt;

/// Precondition type of RFC 3312: quality of service.
pub const QOS: &[u8] = b"qos";

/// Whose part of the network a line is about (RFC 3312 section 4), as its author sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusType {
    /// `e2e`: the whole way.
    EndToEnd,
    /// `local`: the author's access network.
    Local,
    /// `remote`: the reader's access network.
    Remote,
}

impl StatusType {
    /// By its tag; tags compare without regard to case.
    pub fn from_tag(tag: &[u8]) -> Option<StatusType> {
        [StatusType::EndToEnd, StatusType::Local, StatusType::Remote]
            .into_iter()
            .find(|known| known.tag().as_bytes().eq_ignore_ascii_case(tag))
    }

    /// The tag.
    pub const fn tag(self) -> &'static str {
        match self {
            StatusType::EndToEnd => "e2e",
            StatusType::Local => "local",
            StatusType::Remote => "remote",
        }
    }

    /// The same seen by the reader (RFC 3312 section 5).
    #[must_use]
    pub const fn reversed(self) -> StatusType {
        match self {
            StatusType::EndToEnd => StatusType::EndToEnd,
            StatusType::Local => StatusType::Remote,
            StatusType::Remote => StatusType::Local,
        }
    }
}

/// How much a precondition is wanted (RFC 3312 section 4), the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strength {
    /// `none`: not at all.
    #[default]
    None,
    /// `optional`: tried, and the session goes on without it.
    Optional,
    /// `mandatory`: without it nobody is alerted.
    Mandatory,
    /// `failure`: could not be met; in refusals (section 8).
    Failure,
    /// `unknown`: the precondition is not understood; in refusals (section 8).
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

    /// By its tag; tags compare without regard to case.
    pub fn from_tag(tag: &[u8]) -> Option<Strength> {
        Strength::ALL
            .into_iter()
            .find(|known| known.tag().as_bytes().eq_ignore_ascii_case(tag))
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

/// In which directions resources are there, or wanted: `none`, `send`, `recv`, `sendrecv`, as the author sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reach {
    /// From the author to the reader.
    pub send: bool,
    /// From the reader to the author.
    pub recv: bool,
}

impl Reach {
    /// `none`.
    pub const NONE: Reach = Reach {
        send: false,
        recv: false,
    };
    /// `sendrecv`.
    pub const BOTH: Reach = Reach {
        send: true,
        recv: true,
    };

    /// By its tag; tags compare without regard to case.
    pub fn from_tag(tag: &[u8]) -> Option<Reach> {
        [
            Reach::NONE,
            Reach::BOTH,
            Reach {
                send: true,
                recv: false,
            },
            Reach {
                send: false,
                recv: true,
            },
        ]
        .into_iter()
        .find(|known| known.tag().as_bytes().eq_ignore_ascii_case(tag))
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

    /// The same seen by the reader.
    #[must_use]
    pub const fn reversed(self) -> Reach {
        Reach {
            send: self.recv,
            recv: self.send,
        }
    }

    /// Whether every direction of `wanted` is in it.
    pub const fn covers(self, wanted: Reach) -> bool {
        (self.send || !wanted.send) && (self.recv || !wanted.recv)
    }

    /// The directions of both.
    #[must_use]
    pub const fn with(self, other: Reach) -> Reach {
        Reach {
            send: self.send || other.send,
            recv: self.recv || other.recv,
        }
    }
}

/// One line about a precondition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precondition<'a> {
    /// `a=curr`: how far it has come.
    Current {
        /// What it is about, for example [`QOS`].
        kind: &'a [u8],
        /// Whose part of the network.
        status: StatusType,
        /// In which directions it is there.
        reach: Reach,
    },
    /// `a=des`: what is wanted.
    Desired {
        /// What it is about.
        kind: &'a [u8],
        /// How much.
        strength: Strength,
        /// Whose part of the network.
        status: StatusType,
        /// In which directions.
        reach: Reach,
    },
    /// `a=conf`: the reader shall tell when it is there (RFC 3312 section 7).
    Confirm {
        /// What it is about.
        kind: &'a [u8],
        /// Whose part of the network.
        status: StatusType,
        /// In which directions.
        reach: Reach,
    },
}

impl<'a> Precondition<'a> {
    /// Parses an attribute by its name and value; `None` for other attributes and for what is malformed.
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
        let reach = Reach::from_tag(reach)?;
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

    /// What it is about.
    pub fn kind(&self) -> &'a [u8] {
        match self {
            Precondition::Current { kind, .. }
            | Precondition::Desired { kind, .. }
            | Precondition::Confirm { kind, .. } => kind,
        }
    }
}

/// The line as it stands in a description, without line end.
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
    /// Its lines about preconditions, in order; malformed ones are left out.
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
    fn lines_are_read_and_written_alike() {
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
    fn what_is_malformed_is_none() {
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
    fn a_media_section_gives_its_own() {
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
    fn the_reader_sees_it_the_other_way_round() {
        let send = Reach::from_tag(b"send").unwrap();
        assert_eq!(send.reversed().tag(), "recv");
        assert_eq!(StatusType::Local.reversed(), StatusType::Remote);
        assert_eq!(StatusType::EndToEnd.reversed(), StatusType::EndToEnd);
        assert!(Reach::BOTH.covers(send) && !send.covers(Reach::BOTH));
        assert!(send.covers(Reach::NONE) && Reach::NONE.covers(Reach::NONE));
        assert_eq!(send.with(send.reversed()), Reach::BOTH);
    }
}
