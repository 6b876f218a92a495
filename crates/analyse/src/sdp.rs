//! Media lines of SDP: addresses, payload types, encryption. The reader is tolerant: a bad line does not reject a
//! capture.

use super::datagram::CapturedDatagram;
use super::keys::{EndpointKey, FlowKey};
use super::types::{PayloadKind, TypeSource};
use engine::{BoundedMap, HashKey};
use std::net::{IpAddr, SocketAddr};

/// Media lines taken from one description, and formats of one line.
const MAX_MEDIA: usize = 64;
const MAX_FORMATS: usize = 64;
/// Alternative addresses (ICE candidates) of one media line.
const MAX_CANDIDATES: usize = 16;

/// One media line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SdpMedia {
    pub kind: String,
    pub protocol: String,
    pub endpoints: Vec<SocketAddr>,
    /// Payload type, encoding name, clock rate.
    pub formats: Vec<(u8, String, u32)>,
    pub call: Option<usize>,
    pub has_key: bool,
}

impl SdpMedia {
    pub(super) fn is_rtp(&self) -> bool {
        self.protocol.contains("RTP/")
    }

    pub(super) fn is_srtp(&self) -> bool {
        self.protocol.contains("SAVP") || self.has_key
    }

    fn encoding(&self, payload_type: u8) -> Option<(&str, u32)> {
        self.formats
            .iter()
            .find(|(number, _, _)| *number == payload_type)
            .map(|(_, name, rate)| (name.as_str(), *rate))
    }
}

/// The meaning of a payload type, if all SDP in the capture agrees on it.
#[derive(Clone, Debug, Default)]
enum PayloadConsensus {
    #[default]
    Unseen,
    Unanimous(String, u32),
    Conflicting,
}

/// Facts from SDP and from DTLS handshakes so far.
#[derive(Debug)]
pub(super) struct SdpIndex {
    medias: Vec<SdpMedia>,
    by_endpoint: BoundedMap<EndpointKey, usize>,
    consensus: Vec<PayloadConsensus>,
    dtls: BoundedMap<FlowKey, ()>,
    limit: usize,
    refused: u64,
    unmarked: u64,
}

impl SdpIndex {
    pub(super) fn new(limit: usize, key: HashKey) -> SdpIndex {
        SdpIndex {
            medias: Vec::new(),
            by_endpoint: BoundedMap::new(limit, key),
            consensus: vec![PayloadConsensus::Unseen; 128],
            dtls: BoundedMap::new(limit, key),
            limit,
            refused: 0,
            unmarked: 0,
        }
    }

    /// Media lines beyond the limit.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// DTLS handshakes beyond the limit: later streams lack the mark "srtp".
    pub(super) fn unmarked(&self) -> u64 {
        self.unmarked
    }

    /// Reads a session description of `call`; returns its media lines.
    pub(super) fn learn(&mut self, description: &[u8], call: Option<usize>) -> Vec<SdpMedia> {
        let mut medias = parse(description);
        for media in &mut medias {
            media.call = call;
        }
        for media in &medias {
            for (number, name, rate) in &media.formats {
                self.note_format(*number, name, *rate);
            }
            // A repetition (retransmission, session refresh) takes no memory.
            let known = media
                .endpoints
                .first()
                .and_then(|endpoint| self.media_at(*endpoint));
            if !media.is_rtp() || media.endpoints.is_empty() || known == Some(media) {
                continue;
            }
            if self.medias.len() >= self.limit {
                self.refused += 1;
                continue;
            }
            let index = self.medias.len();
            let mut used = false;
            for endpoint in &media.endpoints {
                // If the table is full, the stream is found by the heuristic.
                used |= self
                    .by_endpoint
                    .insert(EndpointKey::new(*endpoint), index)
                    .is_ok();
            }
            match used {
                true => self.medias.push(media.clone()),
                false => self.refused += 1,
            }
        }
        medias
    }

    pub(super) fn dtls_seen(&mut self, datagram: &CapturedDatagram<'_>) {
        let (source, destination) = (datagram.source, datagram.destination);
        let directions = [(source, destination), (destination, source)];
        let inserted = directions.map(|(a, b)| self.dtls.insert(FlowKey::new(a, b, 0), ()).is_ok());
        self.unmarked += u64::from(inserted.contains(&false));
    }

    pub(super) fn has_dtls(&self, source: SocketAddr, destination: SocketAddr) -> bool {
        self.dtls
            .get(&FlowKey::new(source, destination, 0))
            .is_some()
    }

    /// The media line of a stream: by its destination address, else by its source address.
    pub(super) fn media(&self, source: SocketAddr, destination: SocketAddr) -> Option<&SdpMedia> {
        self.numbered(self.media_number(source, destination)?)
    }

    /// The number of that line. Later calls reuse ports; a caller that needs the line of this time keeps its number.
    pub(super) fn media_number(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Option<usize> {
        let number = |endpoint| self.by_endpoint.get(&EndpointKey::new(endpoint)).copied();
        number(destination).or_else(|| number(source))
    }

    pub(super) fn numbered(&self, number: usize) -> Option<&SdpMedia> {
        self.medias.get(number)
    }

    fn media_at(&self, endpoint: SocketAddr) -> Option<&SdpMedia> {
        self.medias
            .get(*self.by_endpoint.get(&EndpointKey::new(endpoint))?)
    }

    /// The meaning of a payload type in a stream, without measuring.
    pub(super) fn kind(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        payload_type: u8,
    ) -> Option<PayloadKind> {
        let kind = |encoding: &str, rate, source| PayloadKind {
            payload_type,
            encoding: Some(encoding.to_owned()),
            clock_rate: Some(rate),
            source,
        };
        let by_address = [destination, source].into_iter().find_map(|endpoint| {
            let (encoding, rate) = self.media_at(endpoint)?.encoding(payload_type)?;
            Some(kind(encoding, rate, TypeSource::Sdp))
        });
        let assigned = || {
            let (encoding, rate, _) = wire::rtp::static_payload_type(payload_type)?;
            Some(kind(encoding, rate, TypeSource::Static))
        };
        let by_consensus = || match self.consensus.get(usize::from(payload_type)) {
            Some(PayloadConsensus::Unanimous(encoding, rate)) => {
                Some(kind(encoding, *rate, TypeSource::OtherSdp))
            }
            _ => None,
        };
        by_address.or_else(assigned).or_else(by_consensus)
    }

    fn note_format(&mut self, number: u8, name: &str, rate: u32) {
        let Some(slot) = self.consensus.get_mut(usize::from(number)) else {
            return;
        };
        match slot {
            PayloadConsensus::Unseen => *slot = PayloadConsensus::Unanimous(name.to_owned(), rate),
            PayloadConsensus::Unanimous(known, known_rate) => {
                if !known.eq_ignore_ascii_case(name) || *known_rate != rate {
                    *slot = PayloadConsensus::Conflicting;
                }
            }
            PayloadConsensus::Conflicting => {}
        }
    }
}

fn parse(description: &[u8]) -> Vec<SdpMedia> {
    let text = String::from_utf8_lossy(description);
    let mut medias: Vec<SdpMedia> = Vec::new();
    let mut ports: Vec<u16> = Vec::new();
    let (mut session_address, mut session_key) = (None, false);
    let mut addresses: Vec<Option<IpAddr>> = Vec::new();
    for line in text.split(['\r', '\n']) {
        let Some((kind, value)) = line.split_once('=') else {
            continue;
        };
        let value = value.trim();
        match kind.trim() {
            "m" => {
                if medias.len() >= MAX_MEDIA {
                    break;
                }
                let (media, port) = media_line(value);
                medias.push(media);
                ports.push(port);
                addresses.push(session_address);
            }
            "c" => match addresses.last_mut() {
                Some(address) => *address = connection(value),
                None => session_address = connection(value),
            },
            "a" => match medias.last_mut() {
                Some(media) => attribute(media, value),
                None => session_key |= is_key(value),
            },
            _ => {}
        }
    }
    for ((media, port), address) in medias.iter_mut().zip(ports).zip(addresses) {
        media.has_key |= session_key;
        if let Some(address) = address
            && port != 0
            && !address.is_unspecified()
        {
            media.endpoints.insert(0, SocketAddr::new(address, port));
        }
        fill_static(media);
    }
    medias
}

fn media_line(value: &str) -> (SdpMedia, u16) {
    let mut words = value.split_ascii_whitespace();
    let kind = words.next().unwrap_or_default().to_owned();
    let port = words.next().unwrap_or_default();
    let port = port.split('/').next().and_then(|port| port.parse().ok());
    let protocol = words.next().unwrap_or_default().to_ascii_uppercase();
    let formats = words
        .take(MAX_FORMATS)
        .filter_map(|format| format.parse::<u8>().ok())
        .filter(|number| *number < 128)
        .map(|number| (number, String::new(), 0))
        .collect();
    let media = SdpMedia {
        kind,
        protocol,
        formats,
        ..SdpMedia::default()
    };
    (media, port.unwrap_or(0))
}

/// `IN IP4 192.0.2.1/127`.
fn connection(value: &str) -> Option<IpAddr> {
    let address = value.split_ascii_whitespace().nth(2)?;
    address.split('/').next()?.parse().ok()
}

fn is_key(attribute: &str) -> bool {
    attribute.starts_with("crypto:")
        || attribute.starts_with("fingerprint:")
        || attribute.starts_with("zrtp-hash:")
}

fn attribute(media: &mut SdpMedia, value: &str) {
    media.has_key |= is_key(value);
    if let Some(map) = value.strip_prefix("rtpmap:") {
        let mut words = map.split_ascii_whitespace();
        let number = words.next().and_then(|number| number.parse::<u8>().ok());
        let mut encoding = words.next().unwrap_or_default().split('/');
        let name = encoding.next().unwrap_or_default();
        let rate = encoding.next().and_then(|rate| rate.parse::<u32>().ok());
        let slot = media
            .formats
            .iter_mut()
            .find(|(known, _, _)| Some(*known) == number);
        if let (Some(slot), Some(rate)) = (slot, rate)
            && rate > 0
        {
            slot.1 = name.to_owned();
            slot.2 = rate;
        }
    } else if let Some(candidate) = value.strip_prefix("candidate:") {
        let words: Vec<&str> = candidate.split_ascii_whitespace().take(8).collect();
        if let [_, "1", transport, _, address, port, ..] = words[..]
            && transport.eq_ignore_ascii_case("udp")
            && let (Ok(address), Ok(port)) = (address.parse(), port.parse())
            && media.endpoints.len() < MAX_CANDIDATES
        {
            media.endpoints.push(SocketAddr::new(address, port));
        }
    }
}

/// Static payload types need no rtpmap; dynamic ones without rtpmap are removed.
fn fill_static(media: &mut SdpMedia) {
    for (number, name, rate) in &mut media.formats {
        if *rate == 0
            && let Some((encoding, clock, _)) = wire::rtp::static_payload_type(*number)
        {
            *name = encoding.to_owned();
            *rate = clock;
        }
    }
    media.formats.retain(|(_, _, rate)| *rate > 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_lines_are_indexed_by_address() {
        let text = b"v=0\r\no=- 0 0 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\n\
            m=audio 4000/2 RTP/AVP 0 101 97\r\na=rtpmap:101 telephone-event/8000\r\n\
            m=video 5000 UDP/TLS/RTP/SAVPF 120\r\nc=IN IP6 2001:db8::1\r\na=rtpmap:120 VP8/90000\r\n\
            a=candidate:1 1 UDP 2130706431 192.0.2.9 5002 typ host\r\nm=image 6000 udptl t38\r\nm=audio 0 RTP/AVP 8\r\n";
        let key = HashKey::default();
        let mut sdp_index = SdpIndex::new(10, key);
        let medias = sdp_index.learn(text, Some(3));
        assert_eq!(medias.len(), 4);
        assert_eq!(medias[0].formats.len(), 2, "97 has no meaning");
        let (from, to) = (([1, 1, 1, 1], 1).into(), ([10, 0, 0, 1], 4000).into());
        assert_eq!(
            sdp_index.kind(from, to, 101).unwrap().encoding.unwrap(),
            "telephone-event"
        );
        assert_eq!(sdp_index.kind(to, from, 0).unwrap().source, TypeSource::Sdp);
        assert!(!sdp_index.media(from, to).unwrap().is_srtp());
        let six: SocketAddr = "[2001:db8::1]:5000".parse().unwrap();
        assert!(sdp_index.media(from, six).unwrap().is_srtp());
        assert_eq!(sdp_index.media(from, six).unwrap().call, Some(3));
        assert!(
            sdp_index
                .media(from, ([192, 0, 2, 9], 5002).into())
                .is_some()
        );
        assert_eq!(
            sdp_index.kind(from, from, 120).unwrap().source,
            TypeSource::OtherSdp
        );
        assert_eq!(sdp_index.kind(from, from, 121), None);
        assert!(
            sdp_index
                .media(from, ([10, 0, 0, 1], 6000).into())
                .is_none()
        );
    }
}
