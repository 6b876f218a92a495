//! Options of a command. Every unsupported key or flag is refused by name; none is ignored.

use super::playback::PlayOptions;
use super::sdp::CodecFilter;
use anchor::security::sdp::Profile;
use config::{Ice, Mux};
use core::time::Duration;
use protect::srtp::Suite;
use std::net::IpAddr;
use wire::ng::{BencodeItem, Dictionary};

/// Octets of a Call-ID, tag or branch at most: they are stored for the life of the call.
const MAX_NAME: usize = 512;

/// Use of ICE towards the receiver of the description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IceOption {
    /// If the other side offers it.
    AsOffered,
    /// Never.
    Remove,
    /// Always.
    Force,
}

/// Limits on SDES (RFC 4568).
#[derive(Clone, Debug, Default)]
pub(super) struct SdesOptions {
    pub(super) off: bool,
    pub(super) without: Vec<Suite>,
    pub(super) only: Vec<Suite>,
}

/// Parsed options of a command.
#[derive(Debug)]
pub(super) struct CommandOptions<'a> {
    pub(super) call_id: Option<&'a [u8]>,
    pub(super) from_tag: Option<&'a [u8]>,
    pub(super) to_tag: Option<&'a [u8]>,
    pub(super) via_branch: Option<&'a [u8]>,
    pub(super) sdp: Option<&'a [u8]>,
    /// Whether all parties are addressed.
    pub(super) all: bool,
    pub(super) ice: IceOption,
    /// Kind of our ICE agents: towards the sender of the description, and towards its receiver.
    pub(super) agents: Option<[Ice; 2]>,
    pub(super) profile: Option<Profile>,
    /// SRTP with the RTP profile (RFC 8643).
    pub(super) opportunistic: bool,
    pub(super) no_dtls: bool,
    pub(super) sdes: SdesOptions,
    pub(super) mux: Option<Mux>,
    /// RTCP multiplexing is accepted from an offerer, independently of the other side.
    pub(super) mux_accept: bool,
    /// Interfaces of the description's sender and receiver.
    pub(super) direction: Option<(&'a str, &'a str)>,
    pub(super) media_address: Option<IpAddr>,
    /// Whether the description has to use IPv6.
    pub(super) ipv6: Option<bool>,
    pub(super) received_from: Option<IpAddr>,
    /// Media is sent to the signalling address instead of the described one.
    pub(super) sip_source: bool,
    pub(super) asymmetric: bool,
    pub(super) strict: bool,
    pub(super) codecs: CodecFilter<'a>,
    pub(super) replace_origin: bool,
    pub(super) generate_mid: bool,
    pub(super) loop_protect: bool,
    /// Whether the recording is started or stopped.
    pub(super) record: Option<bool>,
    pub(super) fatal: bool,
    pub(super) load_limit: bool,
    /// In seconds.
    pub(super) delete_delay: Option<u64>,
    pub(super) limit: Option<usize>,
    pub(super) play: PlayOptions<'a>,
}

/// Error text of a refused command.
pub(super) type CommandError = String;

fn refused(kind: &str, name: &str) -> CommandError {
    // Names come from the network: keep the text on one line.
    let name: String = name
        .chars()
        .filter(|letter| !letter.is_control())
        .take(80)
        .collect();
    format!("{kind} \"{name}\" is not supported")
}

/// Checks a requested traffic class against the code point of the node's sockets, which is the same for all calls. 256
/// and above mean unchanged, as in rtpengine.
fn tos(class: i64, dscp: u8) -> Result<(), CommandError> {
    let own = i64::from(dscp) << 2;
    match class == own || class >= 256 {
        true => Ok(()),
        false => Err(format!(
            "{}: all media has [media] dscp = {dscp} of this node, TOS {own}",
            refused("TOS", &class.to_string())
        )),
    }
}

impl<'a> CommandOptions<'a> {
    /// Parses all keys of a command to a node that marks media with `dscp`.
    ///
    /// # Errors
    /// The first unsupported key or value.
    pub(super) fn read(body: Dictionary<'a>, dscp: u8) -> Result<CommandOptions<'a>, CommandError> {
        let mut options = CommandOptions {
            call_id: None,
            from_tag: None,
            to_tag: None,
            via_branch: None,
            sdp: None,
            all: false,
            ice: IceOption::AsOffered,
            agents: None,
            profile: None,
            opportunistic: false,
            no_dtls: false,
            sdes: SdesOptions::default(),
            mux: None,
            mux_accept: false,
            direction: None,
            media_address: None,
            ipv6: None,
            received_from: None,
            sip_source: false,
            asymmetric: false,
            strict: false,
            codecs: CodecFilter::default(),
            replace_origin: false,
            generate_mid: false,
            loop_protect: false,
            record: None,
            fatal: false,
            load_limit: false,
            delete_delay: None,
            limit: None,
            play: PlayOptions::default(),
        };
        for (key, value) in body.iter() {
            let name = String::from_utf8_lossy(key);
            options.set_key(&name, value, dscp)?;
        }
        Ok(options)
    }

    fn set_key(
        &mut self,
        name: &str,
        value: BencodeItem<'a>,
        dscp: u8,
    ) -> Result<(), CommandError> {
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
        match normalized(name).as_str() {
            "command" => {}
            "call-id" => self.call_id = Some(short()?),
            "from-tag" => self.from_tag = Some(short()?),
            "to-tag" => self.to_tag = Some(short()?),
            "via-branch" => self.via_branch = Some(short()?),
            "sdp" => self.sdp = Some(bytes()?),
            "all" => match normalized(text()?).as_str() {
                "all" => self.all = true,
                _ => return Err(refused("all", text()?)),
            },
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
                let family_name = text()?;
                let ipv6 = family(family_name);
                self.ipv6 = Some(ipv6.ok_or_else(|| refused("address-family", family_name))?);
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
            "tos" => tos(value.integer().ok_or_else(wrong)?, dscp)?,
            "delete-delay" => self.delete_delay = Some(count(value).ok_or_else(wrong)?),
            "limit" => {
                let limit = count(value).and_then(|count| usize::try_from(count).ok());
                self.limit = Some(limit.ok_or_else(wrong)?);
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
            "flags" => self.each(name, value, CommandOptions::flag)?,
            "replace" => self.each(name, value, CommandOptions::replace)?,
            "rtcp-mux" => self.each(name, value, CommandOptions::mux)?,
            "sdes" => self.each(name, value, CommandOptions::sdes)?,
            "osrtp" => self.each(name, value, CommandOptions::osrtp)?,
            "supports" => {
                let words = words(value).ok_or_else(wrong)?;
                self.load_limit = words.iter().any(|word| normalized(word) == "load-limit");
            }
            "codec" => {
                for (kind, list) in value.dictionary().ok_or_else(wrong)?.iter() {
                    let kind = String::from_utf8_lossy(kind);
                    for codec in words(list).ok_or_else(wrong)? {
                        self.codec(&kind, codec)?;
                    }
                }
            }
            "record-call" => {
                self.record = Some(match normalized(text()?).as_str() {
                    "yes" | "on" | "1" | "true" => true,
                    "no" | "off" | "0" | "false" => false,
                    _ => return Err(refused("record-call", text()?)),
                });
            }
            _ => return Err(refused("key", name)),
        }
        Ok(())
    }

    fn each(
        &mut self,
        name: &str,
        value: BencodeItem<'a>,
        mut take: impl FnMut(&mut CommandOptions<'a>, &'a str) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let words =
            words(value).ok_or_else(|| format!("the value of \"{name}\" cannot be read"))?;
        words.into_iter().try_for_each(|word| take(self, word))
    }

    fn flag(&mut self, flag: &'a str) -> Result<(), CommandError> {
        let spelling = normalized(flag);
        let behind = |prefix: &str| {
            spelling
                .strip_prefix(prefix)
                .and_then(|rest| flag.get(flag.len().checked_sub(rest.len())?..))
        };
        match spelling.as_str() {
            // These are the default behaviour.
            "trust-address" | "symmetric" | "port-latching" | "no-rtcp-attribute"
            | "original-sendrecv" | "no-redis-update" | "block-egress" => {}
            "sip-source-address" => self.sip_source = true,
            "asymmetric" => self.asymmetric = true,
            "strict-source" => self.strict = true,
            "generate-mid" => self.generate_mid = true,
            "loop-protect" => self.loop_protect = true,
            // The key of this name is more specific, whichever comes first.
            "record-call" => self.record = self.record.or(Some(true)),
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

    fn replace(&mut self, kind: &'a str) -> Result<(), CommandError> {
        match normalized(kind).as_str() {
            "origin" => self.replace_origin = true,
            // Connection addresses are always replaced, at both levels.
            "session-connection" => {}
            _ => return Err(refused("replace", kind)),
        }
        Ok(())
    }

    fn ice(&mut self, value: &'a str) -> Result<(), CommandError> {
        self.ice = match normalized(value).as_str() {
            "remove" => IceOption::Remove,
            "force" => IceOption::Force,
            "default" | "optional" => IceOption::AsOffered,
            _ => return Err(refused("ICE", value)),
        };
        Ok(())
    }

    fn agents(&mut self, lite: &'a str) -> Result<(), CommandError> {
        self.agents = Some(match normalized(lite).as_str() {
            "off" => [Ice::Full, Ice::Full],
            "forward" => [Ice::Full, Ice::Lite],
            "backward" => [Ice::Lite, Ice::Full],
            "both" => [Ice::Lite, Ice::Lite],
            _ => return Err(refused("ICE-lite", lite)),
        });
        Ok(())
    }

    fn dtls(&mut self, name: &str, value: &'a str) -> Result<(), CommandError> {
        match (normalized(value).as_str(), normalized(name).as_str()) {
            // We prefer the passive role in any case.
            ("passive", _) => {}
            ("off" | "no" | "disable", "dtls") => self.no_dtls = true,
            _ => return Err(refused(name, value)),
        }
        Ok(())
    }

    fn transport(&mut self, profile: &'a str) -> Result<(), CommandError> {
        let existing = Profile::parse(profile.as_bytes());
        self.profile = Some(existing.ok_or_else(|| refused("transport-protocol", profile))?);
        Ok(())
    }

    fn mux(&mut self, value: &'a str) -> Result<(), CommandError> {
        match normalized(value).as_str() {
            "offer" => self.mux = Some(Mux::Offer),
            "require" => self.mux = Some(Mux::Require),
            "demux" => {
                self.mux = Some(Mux::Separate);
                self.mux_accept = true;
            }
            "accept" => self.mux_accept = true,
            _ => return Err(refused("rtcp-mux", value)),
        }
        Ok(())
    }

    fn sdes(&mut self, value: &'a str) -> Result<(), CommandError> {
        let spelling = normalized(value);
        let suite = |prefix: &str| {
            value
                .get(prefix.len()..)
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
            return Err(refused("SDES", value));
        }
        Ok(())
    }

    fn osrtp(&mut self, value: &'a str) -> Result<(), CommandError> {
        match normalized(value).as_str() {
            "offer" => self.opportunistic = true,
            // It is always accepted.
            "accept" => {}
            _ => return Err(refused("OSRTP", value)),
        }
        Ok(())
    }

    fn codec(&mut self, kind: &str, codec: &'a str) -> Result<(), CommandError> {
        match normalized(kind).as_str() {
            "strip" => self.codecs.strip.push(codec),
            "except" | "offer" => self.codecs.keep.push(codec),
            _ => return Err(refused("codec", kind)),
        }
        Ok(())
    }

    /// The allowed ones of the supported suites.
    pub(super) fn suites(&self, all: Vec<Suite>) -> Vec<Suite> {
        all.into_iter()
            .filter(|suite| self.sdes.only.is_empty() || self.sdes.only.contains(suite))
            .filter(|suite| !self.sdes.without.contains(suite))
            .collect()
    }
}

/// Normal form of a word: clients use blanks or dashes, in any case.
fn normalized(word: &str) -> String {
    word.chars()
        .map(|letter| match letter {
            ' ' => '-',
            other => other.to_ascii_lowercase(),
        })
        .collect()
}

fn family(name: &str) -> Option<bool> {
    match normalized(name).as_str() {
        "ip4" | "inet" | "ipv4" => Some(false),
        "ip6" | "inet6" | "ipv6" => Some(true),
        _ => None,
    }
}

/// A non-negative number, or its text: clients that read parameters from text send text.
fn count(value: BencodeItem<'_>) -> Option<u64> {
    match value {
        BencodeItem::Bytes(_) => value.text()?.parse().ok(),
        _ => u64::try_from(value.integer()?).ok(),
    }
}

/// The texts of a list, or a single text.
fn words<'a>(value: BencodeItem<'a>) -> Option<Vec<&'a str>> {
    match value {
        BencodeItem::List(list) => list.iter().map(BencodeItem::text).collect(),
        BencodeItem::Bytes(_) => Some(vec![value.text()?]),
        _ => None,
    }
}
