//! Bandwidth of a voice stream by packet time and protection: computed from the RFCs, and counted on the wire (study
//! row B2).

use super::computed::{EspCarriage, EspCase, clear_packet_bytes, packet_bytes};
use super::packets::{HEADERS, IpInput, VoiceStream, damage, damaged_every, write_udp_packet};
use super::{EspEnds, OUTER, carriages, cases, figure_name};
use crate::error::LabError;
use crate::experiment::EspLoad;
use crate::measure::MeasureSamples;
use engine::{Entropy, Time};
use net::{RawIpSocket, interface_counters};
use protect::esp::{ArrivedEsp, MAX_HEADROOM, MAX_TAILROOM, PacketRoom};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::time::Duration;
use wire::ip::protocol;

/// Where packets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireMedium {
    /// In memory: the sealed packet itself.
    Memory,
    /// Sent through the loopback interface; in a network namespace of the trial its counters count, otherwise the
    /// lengths that the receiver reads.
    Loopback {
        /// Whether no other traffic passes the interface.
        private: bool,
    },
}

/// Wait for a packet on the loopback interface.
const WAIT: Duration = Duration::from_millis(500);
/// Packets of others that are skipped for one of our own.
const FOREIGN: usize = 1_000;
/// A packet with room around it.
const ROOM: usize = 2_048;

/// The sockets of a carriage. A raw socket reads the packets of all senders, therefore all cases share one pair.
#[derive(Clone)]
enum WireLink {
    Memory,
    Udp(Rc<[UdpSocket; 2]>),
    Raw(Rc<[RawIpSocket; 2]>),
}

fn io(error: std::io::Error) -> LabError {
    LabError::cannot_run(
        format!("sockets of the loopback interface: {error}"),
        "use --simulate, which counts in memory",
    )
}

impl WireLink {
    fn udp() -> Result<WireLink, LabError> {
        let [near, far] = OUTER.map(|address| UdpSocket::bind((address, 0)));
        let (near, far) = (near.map_err(io)?, far.map_err(io)?);
        far.set_read_timeout(Some(WAIT)).map_err(io)?;
        Ok(WireLink::Udp(Rc::new([near, far])))
    }

    /// Raw sockets; `None` without the right to open them.
    fn raw() -> Result<Option<WireLink>, LabError> {
        let open = |address| RawIpSocket::open(protocol::ESP, address, WAIT);
        let [near, far] = OUTER.map(open);
        match (near, far) {
            (Ok(near), Ok(far)) => Ok(Some(WireLink::Raw(Rc::new([near, far])))),
            (Err(error), _) | (_, Err(error))
                if error.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Ok(None)
            }
            (Err(error), _) | (_, Err(error)) => Err(io(error)),
        }
    }

    /// Sends a payload of IP (or of UDP), and receives it. Returns the length of the IP packet, 0 if it did not arrive;
    /// `arrived` then holds the payload.
    fn pass(&self, payload: &[u8], arrived: &mut Vec<u8>) -> Result<usize, LabError> {
        arrived.clear();
        let mut buffer = [0u8; ROOM];
        let received = match self {
            WireLink::Memory => return Ok(0),
            WireLink::Udp(sockets) => {
                let [near, far] = &**sockets;
                near.send_to(payload, far.local_addr().map_err(io)?)
                    .map_err(io)?;
                let from = near.local_addr().map_err(io)?;
                receive_from(far, &mut buffer, from).map(|length| (HEADERS, length + HEADERS))
            }
            WireLink::Raw(sockets) => {
                let [near, far] = &**sockets;
                near.send_to(payload, OUTER[1]).map_err(io)?;
                receive_same(far, &mut buffer, payload).map(|length| (20, length))
            }
        };
        let (header, length) = match received {
            Ok(received) => received,
            Err(error) if is_timeout(&error) => return Ok(0),
            Err(error) => return Err(io(error)),
        };
        // A UDP socket reads no headers, a raw socket the IP header.
        let skip = match self {
            WireLink::Raw(..) => header,
            _ => 0,
        };
        let end = length - if skip == 0 { header } else { 0 };
        arrived.extend_from_slice(buffer.get(skip..end).unwrap_or_default());
        Ok(length)
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
    )
}

/// Packets of other programs to the same port are skipped.
fn receive_from(socket: &UdpSocket, buffer: &mut [u8], from: SocketAddr) -> std::io::Result<usize> {
    for _ in 0..FOREIGN {
        let (length, sender) = socket.recv_from(buffer)?;
        if sender == from {
            return Ok(length);
        }
    }
    Err(std::io::ErrorKind::TimedOut.into())
}

/// Sent and counted packets of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WireCount {
    /// Bytes of IP packets.
    bytes: u64,
    lost: u64,
    wrong: u64,
}

/// Packets of other programs are skipped.
fn receive_same(socket: &RawIpSocket, buffer: &mut [u8], sent: &[u8]) -> std::io::Result<usize> {
    for _ in 0..FOREIGN {
        let length = socket.receive(buffer)?;
        if buffer.get(20..length) == Some(sent) {
            return Ok(length);
        }
    }
    Err(std::io::ErrorKind::TimedOut.into())
}

/// One case on its way over a link.
struct WireCase {
    case: Option<&'static EspCase>,
    carriage: Option<EspCarriage>,
    ends: Option<EspEnds>,
    link: WireLink,
}

impl WireCase {
    fn name(&self, figure: &str) -> String {
        let case = self.case.map_or("clear", |case| case.name);
        figure_name(figure, case, self.carriage)
    }

    fn computed(&self, voice: usize) -> usize {
        match (self.case, self.carriage) {
            (Some(case), Some(carriage)) => packet_bytes(case, carriage, voice),
            _ => clear_packet_bytes(voice),
        }
    }

    /// Sends a packet and returns the length of its IP packet, and whether it came out as it went in.
    fn send(&mut self, rtp: &[u8], damaged: bool) -> Result<(usize, bool), LabError> {
        let mut buffer = [0u8; ROOM];
        let length = write_udp_packet(&mut buffer[MAX_HEADROOM..], rtp);
        let clear = buffer[MAX_HEADROOM..MAX_HEADROOM + length].to_vec();
        let mut arrived = Vec::new();
        let Some(ends) = &mut self.ends else {
            let sent = match self.link {
                WireLink::Memory => clear.len(),
                _ => self.link.pass(rtp, &mut arrived)?,
            };
            let intact = match self.link {
                WireLink::Memory => IpInput::new()
                    .rtp(&clear)
                    .is_some_and(|view| view.bytes() == rtp),
                _ => arrived == rtp,
            };
            return Ok((sent, intact));
        };
        let tunnel = self.carriage.is_some_and(EspCarriage::is_tunnel);
        if let WireLink::Memory = self.link {
            return Ok(send_in_memory(ends, &mut buffer, &clear, damaged));
        }
        // The socket writes the outer header: transport mode seals the UDP datagram alone.
        let skip = if tunnel { 0 } else { 20 };
        let mut room = PacketRoom::new(&mut buffer, MAX_HEADROOM + skip, length - skip);
        let next = if tunnel {
            protocol::IPIP
        } else {
            protocol::UDP
        };
        if ends
            .outbound
            .seal_payload(&mut room, next, Time::ZERO)
            .is_err()
        {
            return Ok((0, false));
        }
        let mut esp = room.packet().to_vec();
        if damaged {
            damage(&mut esp);
            esp.push(0);
        }
        let sent = self.link.pass(&esp, &mut arrived)?;
        let header = ArrivedEsp {
            source: IpAddr::V4(OUTER[0]),
            destination: IpAddr::V4(OUTER[1]),
            traffic_class: 0,
        };
        let opened = ends.inbound.open_payload(&mut arrived, &header, Time::ZERO);
        let intact = opened.is_ok_and(|opened| {
            arrived.get(opened.range).unwrap_or_default() == clear.get(skip..).unwrap_or_default()
        });
        Ok((sent, intact))
    }

    fn round(
        &mut self,
        plan: &EspLoad,
        stream: &mut VoiceStream,
        private: bool,
    ) -> Result<WireCount, LabError> {
        let damaged = damaged_every(plan.damaged_percent);
        let mut count = WireCount::default();
        let before = private
            .then(|| interface_counters("lo"))
            .transpose()
            .map_err(io)?;
        for number in 0..plan.packets as usize {
            let is_damaged = damaged.is_some_and(|every| number.is_multiple_of(every));
            let rtp = stream.next_rtp().to_vec();
            let (length, intact) = self.send(&rtp, is_damaged)?;
            count.bytes += length as u64;
            count.lost += u64::from(length == 0);
            count.wrong += u64::from(!intact);
        }
        let after = private
            .then(|| interface_counters("lo"))
            .transpose()
            .map_err(io)?;
        if let Some((before, after)) = before.zip(after) {
            count.bytes = after.received_bytes.wrapping_sub(before.received_bytes);
        }
        Ok(count)
    }
}

/// Seals and opens a packet; returns the length of the sealed one, and whether it came out as it went in.
fn send_in_memory(
    ends: &mut EspEnds,
    buffer: &mut [u8],
    clear: &[u8],
    damaged: bool,
) -> (usize, bool) {
    let mut room = PacketRoom::new(buffer, MAX_HEADROOM, clear.len());
    if ends.outbound.seal_packet(&mut room, Time::ZERO).is_err() {
        return (0, false);
    }
    let length = room.packet().len() + usize::from(damaged);
    if damaged {
        let (start, end) = (room.start, room.end);
        damage(room.buffer.get_mut(start..end).unwrap_or_default());
    }
    let opened = ends.inbound.open_packet(&mut room, Time::ZERO).is_ok();
    // Behind a NAT the checksum of UDP is not valid any more and therefore removed (RFC 3948 section 3.1.2).
    let same = |at: usize| (26..28).contains(&at) || room.packet().get(at) == clear.get(at);
    let intact = opened && room.packet().len() == clear.len() && (0..clear.len()).all(same);
    (length, intact)
}

const _: () = assert!(MAX_HEADROOM + 28 + 12 + 480 + MAX_TAILROOM < ROOM);

/// Measures all cases of a plan; returns samples, one of each round, and remarks.
///
/// # Errors
/// An association that cannot be made, or sockets that cannot be opened.
pub(crate) fn bandwidth(
    plan: &EspLoad,
    seed: u64,
    medium: WireMedium,
) -> Result<(MeasureSamples, Vec<String>), LabError> {
    let mut entropy = Entropy::from_number(seed);
    let (mut all, refused) = wire_cases(plan, medium, &mut entropy)?;
    let private = medium == WireMedium::Loopback { private: true };
    let (voice, packet_ms) = (plan.voice_bytes(), f64::from(plan.packet_ms));
    let kbit = |bytes: f64| bytes * 8.0 / packet_ms;
    let mut samples = MeasureSamples::new("rounds");
    let mut stream = VoiceStream::new(voice);
    let (mut lost, mut wrong, mut worst) = (0, 0, 0f64);
    for one in &all {
        let bytes = one.computed(voice) as f64;
        samples.add(one.name("packet_bytes"), bytes);
        samples.add(one.name("computed_kbit"), kbit(bytes));
    }
    samples.add("esp.packets_per_second".to_owned(), 1e3 / packet_ms);
    for _ in 0..plan.rounds {
        if net::stops() > 0 {
            break;
        }
        let mut clear = None;
        for one in &mut all {
            let count = one.round(plan, &mut stream, private)?;
            let each = count.bytes as f64 / f64::from(plan.packets.max(1));
            let difference = each - one.computed(voice) as f64;
            samples.add(one.name("measured_kbit"), kbit(each));
            samples.add(one.name("difference_bytes"), difference);
            // The first case is the one without ESP.
            let clear = *clear.get_or_insert(each);
            if one.ends.is_some() && clear > 0.0 {
                let overhead = each * 100.0 / clear - 100.0;
                samples.add(one.name("overhead_percent"), overhead);
            }
            lost += count.lost;
            wrong += count.wrong;
            worst = worst.max(difference.abs());
        }
    }
    samples.add("esp.difference_bytes".to_owned(), worst);
    samples.add("esp.lost_packets".to_owned(), lost as f64);
    samples.add("esp.wrong_packets".to_owned(), wrong as f64);
    let how = match medium {
        WireMedium::Memory => "counted in memory, at the sealed packets: nothing was sent",
        WireMedium::Loopback { private: true } => {
            "counted by the loopback interface of the trial's own network namespace, IP headers included"
        }
        WireMedium::Loopback { private: false } => {
            "counted at the receiver's socket, with the lengths of the headers that it does not read: other programs use this loopback interface"
        }
    };
    let mut remarks = vec![format!("bandwidth: {how}")];
    remarks.extend(refused);
    Ok((samples, remarks))
}

/// The cases with their links, that without ESP first, and a remark on links that could not be opened.
fn wire_cases(
    plan: &EspLoad,
    medium: WireMedium,
    entropy: &mut Entropy,
) -> Result<(Vec<WireCase>, Option<String>), LabError> {
    let memory = medium == WireMedium::Memory;
    let (udp, raw) = match memory {
        true => (WireLink::Memory, Some(WireLink::Memory)),
        false => (WireLink::udp()?, WireLink::raw()?),
    };
    let mut all = vec![WireCase {
        case: None,
        carriage: None,
        ends: None,
        link: udp.clone(),
    }];
    let mut refused = None;
    for case in cases(plan) {
        for carriage in carriages(plan) {
            let mut links = vec![(carriage.in_udp(), udp.clone())];
            match &raw {
                Some(raw) => links.push((carriage, raw.clone())),
                None => {
                    let text = "IP protocol 50 was not measured: raw sockets need CAP_NET_RAW; ESP in UDP was";
                    refused = Some(text.to_owned());
                }
            }
            for (carriage, link) in links {
                all.push(WireCase {
                    case: Some(case),
                    carriage: Some(carriage),
                    ends: Some(EspEnds::new(case, carriage, entropy)?),
                    link,
                });
            }
        }
    }
    Ok((all, refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::summarise;

    fn figures(plan: &EspLoad, medium: WireMedium) -> Vec<(String, f64)> {
        let (samples, _) = bandwidth(plan, 1, medium).unwrap();
        let all = summarise(&samples.records(0));
        all.into_iter()
            .map(|case| (case.figure, case.value))
            .collect()
    }

    fn value(figures: &[(String, f64)], name: &str) -> f64 {
        let found = figures.iter().find(|(figure, _)| figure == name);
        found.unwrap_or_else(|| panic!("{name}")).1
    }

    fn plan() -> EspLoad {
        EspLoad {
            rounds: 2,
            packets: 4,
            ..EspLoad::default()
        }
    }

    #[test]
    fn computed_and_counted_bytes_agree_in_memory_and_in_udp() {
        for medium in [WireMedium::Memory, WireMedium::Loopback { private: false }] {
            let all = figures(&plan(), medium);
            assert_eq!(value(&all, "esp.difference_bytes"), 0.0, "{medium:?}");
            assert_eq!(value(&all, "esp.wrong_packets"), 0.0, "{medium:?}");
            assert_eq!(value(&all, "esp.lost_packets"), 0.0, "{medium:?}");
            assert_eq!(value(&all, "esp.packets_per_second"), 50.0);
            assert_eq!(value(&all, "esp.measured_kbit.clear"), 80.0);
            // 272 bytes, 50 times a second.
            let name = "esp.measured_kbit.aes-cbc-sha1.tunnel-udp";
            assert_eq!(value(&all, name), 108.8, "{medium:?}");
            assert!(all.iter().all(|(name, _)| super::super::is_figure(name)));
        }
    }

    #[test]
    fn damaged_and_longer_packets_are_found() {
        let damaged = EspLoad {
            damaged_percent: 50.0,
            ..plan()
        };
        let all = figures(&damaged, WireMedium::Memory);
        assert_eq!(value(&all, "esp.difference_bytes"), 0.5);
        assert!(value(&all, "esp.wrong_packets") > 0.0);
    }
}
