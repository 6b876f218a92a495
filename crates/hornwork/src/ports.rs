//! Conflicts of media ports on this host: with the kernel's ephemeral ports, and with another Hornwork's claims.

use crate::machine::EphemeralPorts;
use config::{
    Config, MediaAddress, MediaMode, MediaRange, MediaSocketMode, Mistake, Register, RouteSpec,
};
use engine::{EventKind, Transport};
use net::{ClaimError, Claimant, PortClaims, PortRange};
use std::io;

/// Indices of the media ranges that overlap with ephemeral ports, and the range of these.
fn ephemeral_overlaps(config: &Config) -> Option<(EphemeralPorts, Vec<usize>)> {
    let ephemeral = EphemeralPorts::read_from_kernel();
    let ranges = config.media_ranges.iter().enumerate();
    let overlap = ranges.filter(|(_, range)| ephemeral.overlaps(range.first, range.last));
    let overlap: Vec<usize> = overlap.map(|(number, _)| number).collect();
    (!overlap.is_empty()).then_some((ephemeral, overlap))
}

fn remedy(ephemeral: &EphemeralPorts, range: &MediaRange) -> String {
    format!(
        "choose ports outside {}-{}, or reserve them: sysctl -w net.ipv4.ip_local_reserved_ports={}",
        ephemeral.first,
        ephemeral.last,
        ephemeral.reserved_with(range.first, range.last)
    )
}

/// Whether an overlap is a mistake: unless each media port has a socket of its own, or the kernel's setting is unknown.
fn is_strict(config: &Config, ephemeral: &EphemeralPorts) -> bool {
    config.media.sockets != MediaSocketMode::PerPort && ephemeral.is_read
}

/// Mistakes: media ports within the range of ephemeral ports.
pub(crate) fn mistakes(config: &Config, text: &str, file: &str) -> Vec<Mistake> {
    let Some((ephemeral, overlap)) =
        ephemeral_overlaps(config).filter(|(ephemeral, _)| is_strict(config, ephemeral))
    else {
        return Vec::new();
    };
    let mistake = |number: usize| {
        let range = config.media_ranges.get(number)?;
        let place = config.media_places.get(number)?.clone();
        let message = format!(
            "media ports {}-{} of {} overlap with {}-{}, the ephemeral ports of other programs (net.ipv4.ip_local_port_range)",
            range.first, range.last, range.address, ephemeral.first, ephemeral.last
        );
        let remedy = format!(
            "{}; with sockets = \"per-port\" in [media] they are permitted",
            remedy(&ephemeral, range)
        );
        Some(Mistake::new(text, file, place, message, remedy))
    };
    overlap.into_iter().filter_map(mistake).collect()
}

/// Overlaps that are no mistakes, for the log and for `hornwork check`.
pub(crate) fn remarks(config: &Config) -> Vec<EventKind> {
    let Some((ephemeral, overlap)) =
        ephemeral_overlaps(config).filter(|(ephemeral, _)| !is_strict(config, ephemeral))
    else {
        return Vec::new();
    };
    let ranges = overlap.into_iter();
    let ranges = ranges.filter_map(|number| config.media_ranges.get(number));
    let remark = |range: &MediaRange| EventKind::MediaPortsEphemeral {
        address: range.address.to_string(),
        ports: format!("{}-{}", range.first, range.last),
        ephemeral_ports: format!("{}-{}", ephemeral.first, ephemeral.last),
        remedy: remedy(&ephemeral, range),
    };
    ranges.map(remark).collect()
}

/// Refuses listening ports that another program of this user has and would share: with several workers they are opened
/// for sharing. Before the workers open them.
///
/// # Errors
/// With the remedy.
pub(crate) fn refuse_shared_listeners(config: &Config) -> io::Result<()> {
    if config.sip.workers <= 1 {
        return Ok(());
    }
    let mut listen = config.interfaces.iter().flat_map(|one| &one.listen);
    let occupied = listen.find(|one| {
        let is_stream = one.transport != Transport::Udp;
        net::is_port_in_use(one.address, is_stream)
    });
    match occupied {
        None => Ok(()),
        Some(occupied) => Err(io::Error::other(format!(
            "cannot listen on {occupied}: another program has the port, and several workers would share it\n  remedy: stop the program that uses the port, or correct `listen` in the configuration"
        ))),
    }
}

/// Part of a configuration that runs in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedPart {
    /// The border.
    Border,
    /// The media node.
    Node,
}

/// Whether calls need media ports of the border: not if media nodes have them, or all calls take a route with media
/// bypass. Calls to registered contacts without a route, and those that a header rule routes, are anchored.
fn anchors_media(config: &Config) -> bool {
    let routes = &config.routes;
    let bypassed = routes.iter().all(|route| route.media == MediaMode::Bypass)
        && routes.iter().any(RouteSpec::matches_every_call_anywhere)
        && config.rules.is_empty()
        && config
            .interfaces
            .iter()
            .all(|interface| interface.register == Register::Refuse);
    !config.conferences.is_empty() || !bypassed && !config.media.at_nodes
}

/// The media ports of a part.
fn ranges(config: &Config, part: ServedPart) -> Vec<PortRange> {
    if part == ServedPart::Border && !anchors_media(config) {
        return Vec::new();
    }
    let of = |media: &MediaAddress| media.range;
    let mut numbers: Vec<usize> = match part {
        ServedPart::Border => {
            let interfaces = config.interfaces.iter();
            interfaces
                .flat_map(|one| one.media.iter().map(of))
                .collect()
        }
        ServedPart::Node => {
            let interfaces = config.ng_server.iter().flat_map(|node| &node.interfaces);
            interfaces
                .flat_map(|one| one.media.iter().map(of))
                .collect()
        }
    };
    numbers.sort_unstable();
    numbers.dedup();
    let ranges = numbers.into_iter();
    let ranges = ranges.filter_map(|number| config.media_ranges.get(number));
    let range = |range: &MediaRange| PortRange {
        address: range.address,
        first: range.first,
        last: range.last,
    };
    ranges.map(range).collect()
}

/// Claims the media ports of a configuration for this program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims {
    claimant: Claimant,
    part: ServedPart,
}

impl Claims {
    /// Claims for a part of the program.
    ///
    /// # Errors
    /// If the system provides no entropy.
    pub(crate) fn of(part: ServedPart) -> io::Result<Claims> {
        Ok(Claims {
            claimant: Claimant::new()?,
            part,
        })
    }

    /// Claims the ports of `config`; existing claims of this program do not conflict. If claims are not supported on
    /// this machine that is logged, and conflicts are detected only when a port is opened.
    ///
    /// # Errors
    /// A description of the ports that another program has claimed.
    pub(crate) fn claim(self, config: &Config) -> Result<PortClaims, String> {
        match self.claimant.claim(&ranges(config, self.part)) {
            Ok(claims) => Ok(claims),
            Err(error @ ClaimError::InUse { .. }) => Err(error.to_string()),
            Err(error @ ClaimError::Unsupported(_)) => {
                tracing::warn!(
                    "{error}; another Hornwork with the same ports is detected only once it has one of them open"
                );
                Ok(PortClaims::default())
            }
        }
    }

    /// As [`Claims::claim`], at the start.
    ///
    /// # Errors
    /// With the remedy.
    pub(crate) fn claim_at_start(self, config: &Config) -> io::Result<PortClaims> {
        self.claim(config).map_err(|why| {
            io::Error::other(format!(
                "{why}\n  remedy: set other `ports` in `media` of one of them, or stop that process"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ports are claimed unless every call has media bypass.
    #[test]
    fn ports_of_configurations_with_media_bypass_are_claimed_if_a_call_may_be_anchored() {
        let base = "[[interface]]\nname='x'\nlisten='udp:127.0.0.1:5060'\nREGISTER\n\
             [[trunk]]\nname='t'\ntarget='127.0.0.1:5080'\n";
        let all = "[[route]]\ntrunk='t'\nmedia='bypass'\n";
        let some = "[[route]]\nto={prefix='1'}\ntrunk='t'\nmedia='bypass'\n";
        let rule = "[[rules]]\ndirection='in'\ndo=[{route='t'}]\n";
        let conference = "[[conference]]\nname='c'\nnumber='800'\n";
        for (register, more, claimed) in [
            ("", all.to_owned(), false),
            ("", some.to_owned(), true),
            ("", format!("{some}{all}"), false),
            ("register='pass:t'", all.to_owned(), true),
            ("", format!("{all}{rule}"), true),
            ("", format!("{all}{conference}"), true),
            ("", String::new(), true),
        ] {
            let text = base.replace("REGISTER", register) + &more;
            let config = config::parse(&text, "f").expect("configuration");
            let ranges = ranges(&config, ServedPart::Border);
            assert_eq!(!ranges.is_empty(), claimed, "{text}");
        }
    }
}
