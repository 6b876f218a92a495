//! What a command asks for. Everything that we do not do is refused by its name; nothing is passed over.

use super::play::PlayWishes;
use super::text::CodecWishes;
use crate::anchor::protected::Profile;
use crate::config::{Ice, Mux};
use core::time::Duration;
use protect::srtp::Suite;
use std::net::IpAddr;
use wire::ng::{Dictionary, Item};

/// Octets of a Call-ID, a tag or a branch at most: they are kept as long as their call.
const MAX_NAME: usize = 512;

/// What becomes of ICE towards whoever gets the description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IceWish {
    /// Where the other side speaks it.
    Usual,
    /// None.
    Remove,
    /// In any case.
    Force,
}

/// Keys in descriptions (RFC 4568), as far as the command limits them.
#[derive(Clone, Debug, Default)]
pub(super) struct SdesWishes {
    pub(super) off: bool,
    pub(super) without: Vec<Suite>,
    pub(super) only: Vec<Suite>,
}

/// What a command says, in our words.
#[derive(Debug)]
pub(super) struct Wishes<'a> {
    pub(super) call_id: Option<&'a [u8]>,
    pub(super) from_tag: Option<&'a [u8]>,
    pub(super) to_tag: Option<&'a [u8]>,
    pub(super) via_branch: Option<&'a [u8]>,
    pub(super) sdp: Option<&'a [u8]>,
    /// Whose media a command is about, where it is not a party of a tag.
    pub(super) all: bool,
    pub(super) ice: IceWish,
    /// Which kind of agent we are where there is ICE: towards whoever sent the description, and towards whoever gets it.
    pub(super) agents: Option<[Ice; 2]>,
    pub(super) profile: Option<Profile>,
    /// SRTP beside media in the clear (RFC 8643).
    pub(super) opportunistic: bool,
    pub(super) no_dtls: bool,
    pub(super) sdes: SdesWishes,
    pub(super) mux: Option<Mux>,
    /// RTCP on the port of RTP is taken from whoever offers it, whatever the other side does.
    pub(super) mux_accept: bool,
    /// Names of interfaces: of whoever sent the description, and of whoever gets it.
    pub(super) direction: Option<(&'a str, &'a str)>,
    pub(super) media_address: Option<IpAddr>,
    /// Whether the description is to have IPv6.
    pub(super) ipv6: Option<bool>,
    pub(super) received_from: Option<IpAddr>,
    /// Media goes to the address of the signalling, whatever the description says.
    pub(super) sip_source: bool,
    pub(super) asymmetric: bool,
    pub(super) strict: bool,
    pub(super) dscp: Option<u8>,
    pub(super) codecs: CodecWishes<'a>,
    pub(super) replace_origin: bool,
    pub(super) generate_mid: bool,
    pub(super) loop_protect: bool,
    pub(super) record: bool,
    pub(super) fatal: bool,
    pub(super) load_limit: bool,
    /// Seconds.
    pub(super) delete_delay: Option<u64>,
    pub(super) limit: Option<usize>,
    pub(super) play: PlayWishes<'a>,
}

/// Why a command is refused, for its sender.
pub(super) type Refusal = String;

fn refused(what: &str, name: &str) -> Refusal {
    // What is quoted came from outside and goes into one line.
    let name: String = name
        .chars()
        .filter(|letter| !letter.is_control())
        .take(80)
        .collect();
    format!("{what} \"{name}\" is not supported")
}

impl<'a> Wishes<'a> {
    /// Reads all keys of a command.
    ///
    /// # Errors
    /// The first thing that we do not do.
    pub(super) fn read(body: Dictionary<'a>) -> Result<Wishes<'a>, Refusal> {
        let mut wishes = Wishes {
            call_id: None,
            from_tag: None,
            to_tag: None,
            via_branch: None,
            sdp: None,
            all: false,
            ice: IceWish::Usual,
            agents: None,
            profile: None,
            opportunistic: false,
            no_dtls: false,
            sdes: SdesWishes::default(),
            mux: None,
            mux_accept: false,
            direction: None,
            media_address: None,
            ipv6: None,
            received_from: None,
            sip_source: false,
            asymmetric: false,
            strict: false,
            dscp: None,
            codecs: CodecWishes::default(),
            replace_origin: false,
            generate_mid: false,
            loop_protect: false,
            record: false,
            fatal: false,
            load_limit: false,
            delete_delay: None,
            limit: None,
            play: PlayWishes::default(),
        };
        for (key, value) in body.iter() {
            let name = String::from_utf8_lossy(key);
            wishes.take(&name, value)?;
        }
        Ok(wishes)
    }

    fn take(&mut self, name: &str, value: Item<'a>) -> Result<(), Refusal> {
        let wrong = || format!("the value of \"{name}\" cannot be read");
        let bytes = || value.bytes().ok_or_else(wrong);
        let short = || {
            let bytes = bytes()?;
            match bytes.len() {
                0..=MAX_NAME => Ok(bytes),
                _ => Err(format!("\"{name}\" is longer than {MAX_NAME} octets")),
            }
        };
        let text = || value.text().ok_or_else(wrong);
        match spelled(name).as_str() {
            "command" => {}
            "call-id" => self.call_id = Some(short()?),
            "from-tag" => self.from_tag = Some(short()?),
            "to-tag" => self.to_tag = Some(short()?),
            "via-branch" => self.via_branch = Some(short()?),
            "sdp" => self.sdp = Some(bytes()?),
            "all" => self.all = text()? == "all",
            "ice" => self.ice(text()?)?,
            "ice-lite" => self.agents(text()?)?,
            "dtls" | "dtls-reverse" => self.dtls(name, text()?)?,
            "dtls-fingerprint" => {
                if !text()?.eq_ignore_ascii_case("sha-256") {
                    return Err(refused("DTLS-fingerprint", text()?));
                }
            }
            "transport-protocol" => self.transport(text()?)?,
            "media-address" => {
                self.media_address = Some(text()?.parse().map_err(|_| wrong())?);
            }
            "address-family" => {
                self.ipv6 = Some(family(text()?).ok_or_else(|| refused("address-family", name))?);
            }
            "direction" => {
                let mut names = words(value).ok_or_else(wrong)?.into_iter();
                self.direction = match (names.next(), names.next(), names.next()) {
                    (Some(from), Some(to), None) => Some((from, to)),
                    _ => return Err("\"direction\" needs two names".to_owned()),
                };
            }
            "received-from" => {
                let words = words(value).ok_or_else(wrong)?;
                let address = words.last().and_then(|address| address.parse().ok());
                self.received_from = Some(address.ok_or_else(wrong)?);
            }
            "tos" => {
                // 256 and more leave it as it is, as rtpengine has it.
                match value.integer().ok_or_else(wrong)? {
                    tos @ 0..=255 if tos & 3 == 0 => self.dscp = Some((tos >> 2) as u8),
                    256.. => {}
                    tos => return Err(refused("TOS", &tos.to_string())),
                }
            }
            "delete-delay" => {
                let delay = value.integer().ok_or_else(wrong)?;
                self.delete_delay = u64::try_from(delay).ok();
            }
            "limit" => {
                let limit = value.integer().ok_or_else(wrong)?;
                self.limit = usize::try_from(limit).ok();
            }
            "file" => self.play.file = Some(bytes()?),
            "blob" => self.play.blob = Some(bytes()?),
            "start-pos" => {
                let start = count(value).and_then(|count| usize::try_from(count).ok());
                self.play.start = Some(start.ok_or_else(wrong)?);
            }
            "repeat-times" => {
                let times = count(value).filter(|times| *times > 0);
                let times = times.and_then(|times| u32::try_from(times).ok());
                self.play.times = Some(times.ok_or_else(wrong)?);
            }
            "repeat-duration" => {
                let span = count(value).filter(|span| *span > 0);
                self.play.span = Some(Duration::from_millis(span.ok_or_else(wrong)?));
            }
            "flags" => self.each(name, value, Wishes::flag)?,
            "replace" => self.each(name, value, Wishes::replace)?,
            "rtcp-mux" => self.each(name, value, Wishes::mux)?,
            "sdes" => self.each(name, value, Wishes::sdes)?,
            "osrtp" => self.each(name, value, Wishes::osrtp)?,
            "supports" => {
                let words = words(value).ok_or_else(wrong)?;
                self.load_limit = words.iter().any(|word| spelled(word) == "load-limit");
            }
            "codec" => {
                for (kind, list) in value.dictionary().ok_or_else(wrong)?.iter() {
                    let kind = String::from_utf8_lossy(kind);
                    for codec in words(list).ok_or_else(wrong)? {
                        self.codec(&kind, codec)?;
                    }
                }
            }
            "record-call" => self.record = matches!(text()?, "yes" | "on" | "1"),
            _ => return Err(refused("key", name)),
        }
        Ok(())
    }

    fn each(
        &mut self,
        name: &str,
        value: Item<'a>,
        mut take: impl FnMut(&mut Wishes<'a>, &'a str) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let words =
            words(value).ok_or_else(|| format!("the value of \"{name}\" cannot be read"))?;
        words.into_iter().try_for_each(|word| take(self, word))
    }

    fn flag(&mut self, flag: &'a str) -> Result<(), Refusal> {
        let spelling = spelled(flag);
        let behind = |prefix: &str| {
            spelling
                .strip_prefix(prefix)
                .and_then(|rest| flag.get(flag.len().checked_sub(rest.len())?..))
        };
        match spelling.as_str() {
            // What these ask for is so in any case.
            "trust-address" | "symmetric" | "port-latching" | "no-rtcp-attribute"
            | "original-sendrecv" | "no-redis-update" | "block-egress" => {}
            "sip-source-address" => self.sip_source = true,
            "asymmetric" => self.asymmetric = true,
            "strict-source" => self.strict = true,
            "generate-mid" => self.generate_mid = true,
            "loop-protect" => self.loop_protect = true,
            "record-call" => self.record = true,
            "fatal" => self.fatal = true,
            "all" => self.all = true,
            _ => {
                if let Some(rest) = behind("sdes-") {
                    return self.sdes(rest);
                }
                if let Some(rest) = behind("osrtp-") {
                    return self.osrtp(rest);
                }
                if let Some(rest) = behind("rtcp-mux-") {
                    return self.mux(rest);
                }
                if let Some(rest) = behind("replace-") {
                    return self.replace(rest);
                }
                if let Some((kind, codec)) = behind("codec-").and_then(|rest| rest.split_once('-'))
                {
                    return self.codec(kind, codec);
                }
                return Err(refused("flag", flag));
            }
        }
        Ok(())
    }

    fn replace(&mut self, what: &'a str) -> Result<(), Refusal> {
        match spelled(what).as_str() {
            "origin" => self.replace_origin = true,
            // Connection addresses are always ours, on whatever level they stand.
            "session-connection" => {}
            _ => return Err(refused("replace", what)),
        }
        Ok(())
    }

    fn ice(&mut self, wish: &'a str) -> Result<(), Refusal> {
        self.ice = match spelled(wish).as_str() {
            "remove" => IceWish::Remove,
            "force" => IceWish::Force,
            "default" | "optional" => IceWish::Usual,
            _ => return Err(refused("ICE", wish)),
        };
        Ok(())
    }

    fn agents(&mut self, lite: &'a str) -> Result<(), Refusal> {
        self.agents = Some(match spelled(lite).as_str() {
            "off" => [Ice::Full, Ice::Full],
            "forward" => [Ice::Full, Ice::Lite],
            "backward" => [Ice::Lite, Ice::Full],
            "both" => [Ice::Lite, Ice::Lite],
            _ => return Err(refused("ICE-lite", lite)),
        });
        Ok(())
    }

    fn dtls(&mut self, name: &str, wish: &'a str) -> Result<(), Refusal> {
        match (spelled(wish).as_str(), spelled(name).as_str()) {
            // We are the passive one wherever we may choose.
            ("passive", _) => {}
            ("off" | "no" | "disable", "dtls") => self.no_dtls = true,
            _ => return Err(refused(name, wish)),
        }
        Ok(())
    }

    fn transport(&mut self, profile: &'a str) -> Result<(), Refusal> {
        let known = Profile::parse(profile.as_bytes());
        self.profile = Some(known.ok_or_else(|| refused("transport-protocol", profile))?);
        Ok(())
    }

    fn mux(&mut self, wish: &'a str) -> Result<(), Refusal> {
        match spelled(wish).as_str() {
            "offer" => self.mux = Some(Mux::Offer),
            "require" => self.mux = Some(Mux::Require),
            "demux" => {
                self.mux = Some(Mux::Separate);
                self.mux_accept = true;
            }
            "accept" => self.mux_accept = true,
            _ => return Err(refused("rtcp-mux", wish)),
        }
        Ok(())
    }

    fn sdes(&mut self, wish: &'a str) -> Result<(), Refusal> {
        let spelling = spelled(wish);
        let suite = |prefix: &str| {
            wish.get(prefix.len()..)
                .filter(|_| spelling.starts_with(prefix))
                .and_then(|name| Suite::from_name(name.as_bytes()))
        };
        if matches!(spelling.as_str(), "off" | "no" | "disable") {
            self.sdes.off = true;
        } else if let Some(suite) = suite("no-") {
            self.sdes.without.push(suite);
        } else if let Some(suite) = suite("only-") {
            self.sdes.only.push(suite);
        } else {
            return Err(refused("SDES", wish));
        }
        Ok(())
    }

    fn osrtp(&mut self, wish: &'a str) -> Result<(), Refusal> {
        match spelled(wish).as_str() {
            "offer" => self.opportunistic = true,
            // It is taken where it is offered.
            "accept" => {}
            _ => return Err(refused("OSRTP", wish)),
        }
        Ok(())
    }

    fn codec(&mut self, kind: &str, codec: &'a str) -> Result<(), Refusal> {
        match spelled(kind).as_str() {
            "strip" => self.codecs.strip.push(codec),
            "except" | "offer" => self.codecs.keep.push(codec),
            _ => return Err(refused("codec", kind)),
        }
        Ok(())
    }

    /// The suites that may be used, out of those that we have.
    pub(super) fn suites(&self, all: Vec<Suite>) -> Vec<Suite> {
        all.into_iter()
            .filter(|suite| self.sdes.only.is_empty() || self.sdes.only.contains(suite))
            .filter(|suite| !self.sdes.without.contains(suite))
            .collect()
    }
}

/// A word in the one way of writing it: clients write blanks, dashes or underscores, in whatever case.
fn spelled(word: &str) -> String {
    word.chars()
        .map(|letter| match letter {
            ' ' => '-',
            other => other.to_ascii_lowercase(),
        })
        .collect()
}

fn family(name: &str) -> Option<bool> {
    match spelled(name).as_str() {
        "ip4" | "inet" | "ipv4" => Some(false),
        "ip6" | "inet6" | "ipv6" => Some(true),
        _ => None,
    }
}

/// A number that is not below zero, or the text of one: clients that take parameters from a line of text send text.
fn count(value: Item<'_>) -> Option<u64> {
    match value {
        Item::Bytes(_) => value.text()?.parse().ok(),
        _ => u64::try_from(value.integer()?).ok(),
    }
}

/// Texts of a list, or the one text.
fn words<'a>(value: Item<'a>) -> Option<Vec<&'a str>> {
    match value {
        Item::List(list) => list.iter().map(Item::text).collect(),
        Item::Bytes(_) => Some(vec![value.text()?]),
        _ => None,
    }
}
