//! Media ports among the programs of this host: those that the kernel lends to others, and those that another Hornwork has claimed.

use crate::machine::LentPorts;
use border::config::{Config, MediaAddress, MediaMode, MediaRange, MediaSockets, Mistake};
use engine::Note;
use net::{ClaimError, Claimant, PortClaims, PortRange};
use std::io;

/// The numbers of the ranges that the kernel may lend to other programs, with the ports that it lends.
fn lent(config: &Config) -> Option<(LentPorts, Vec<usize>)> {
    let lent = LentPorts::here();
    let ranges = config.media_ranges.iter().enumerate();
    let overlap = ranges.filter(|(_, range)| lent.overlap(range.first, range.last));
    let overlap: Vec<usize> = overlap.map(|(number, _)| number).collect();
    (!overlap.is_empty()).then_some((lent, overlap))
}

fn remedy(lent: &LentPorts, range: &MediaRange) -> String {
    format!(
        "choose ports outside {}-{}, or reserve them: sysctl -w net.ipv4.ip_local_reserved_ports={}",
        lent.first,
        lent.last,
        lent.reserved_with(range.first, range.last)
    )
}

/// Whether a range that the kernel lends is a mistake: unless it is known that each port has a socket of its own, and that the
/// kernel's settings could be read.
fn is_strict(config: &Config, lent: &LentPorts) -> bool {
    config.media.sockets != MediaSockets::PerPort && lent.known
}

/// Mistakes: media ports that the kernel lends to other programs.
pub(crate) fn mistakes(config: &Config, text: &str, file: &str) -> Vec<Mistake> {
    let Some((lent, overlap)) = lent(config).filter(|(lent, _)| is_strict(config, lent)) else {
        return Vec::new();
    };
    let mistake = |number: usize| {
        let range = config.media_ranges.get(number)?;
        let place = config.media_places.get(number)?.clone();
        let message = format!(
            "media ports {}-{} of {} overlap with {}-{}, which the kernel lends to other programs (net.ipv4.ip_local_port_range)",
            range.first, range.last, range.address, lent.first, lent.last
        );
        let remedy = format!(
            "{}; with sockets = \"per-port\" in [media] they are taken nevertheless",
            remedy(&lent, range)
        );
        Some(Mistake::new(text, file, place, message, remedy))
    };
    overlap.into_iter().filter_map(mistake).collect()
}

/// The same where it is no mistake: for the log, and for `hornwork check`.
pub(crate) fn remarks(config: &Config) -> Vec<Note> {
    let Some((lent, overlap)) = lent(config).filter(|(lent, _)| !is_strict(config, lent)) else {
        return Vec::new();
    };
    let ranges = overlap.into_iter();
    let ranges = ranges.filter_map(|number| config.media_ranges.get(number));
    let remark = |range: &MediaRange| Note::MediaPortsLent {
        address: range.address.to_string(),
        ports: format!("{}-{}", range.first, range.last),
        lent: format!("{}-{}", lent.first, lent.last),
        remedy: remedy(&lent, range),
    };
    ranges.map(remark).collect()
}

/// Which part of a configuration runs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The border.
    Border,
    /// The media node.
    Node,
}

/// Whether calls take media ports of the border at all: not where media nodes have it, or every route passes it by.
fn anchors(config: &Config) -> bool {
    let routes = &config.routes;
    let anchored = routes.is_empty() || routes.iter().any(|route| route.media == MediaMode::Anchor);
    !config.rooms.is_empty() || anchored && !config.media.at_nodes
}

/// The media ports of a part.
fn ranges(config: &Config, part: Part) -> Vec<PortRange> {
    if part == Part::Border && !anchors(config) {
        return Vec::new();
    }
    let of = |media: &MediaAddress| media.range;
    let mut numbers: Vec<usize> = match part {
        Part::Border => {
            let interfaces = config.interfaces.iter();
            interfaces
                .flat_map(|one| one.media.iter().map(of))
                .collect()
        }
        Part::Node => {
            let interfaces = config.node.iter().flat_map(|node| &node.interfaces);
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
    part: Part,
}

impl Claims {
    /// For a part of the program.
    ///
    /// # Errors
    /// Where the system gives no randomness.
    pub(crate) fn of(part: Part) -> io::Result<Claims> {
        Ok(Claims {
            claimant: Claimant::new()?,
            part,
        })
    }

    /// Claims all of `config`; what this program holds already does not stand in its way. Where nothing can be claimed on this
    /// machine that is logged, and programs notice one another port by port alone.
    ///
    /// # Errors
    /// Which ports another program has claimed, in words.
    pub(crate) fn claim(self, config: &Config) -> Result<PortClaims, String> {
        match self.claimant.claim(&ranges(config, self.part)) {
            Ok(claims) => Ok(claims),
            Err(error @ ClaimError::Taken { .. }) => Err(error.to_string()),
            Err(error @ ClaimError::Unsupported(_)) => {
                tracing::warn!(
                    "{error}; another Hornwork with the same ports is noticed only where it has one of them open"
                );
                Ok(PortClaims::default())
            }
        }
    }

    /// The same at the start.
    ///
    /// # Errors
    /// With the remedy.
    pub(crate) fn claim_at_start(self, config: &Config) -> io::Result<PortClaims> {
        self.claim(config).map_err(|why| {
            io::Error::other(format!(
                "{why}\n  remedy: give one of them other `ports` in `media`, or stop that process"
            ))
        })
    }
}
