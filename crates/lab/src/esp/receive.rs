//! Reception of voice through ESP: with and without UDP (study row B4), and with and without the layers between ESP and
//! the media receiver (study row B5).

use super::computed::{EspCarriage, EspCase};
use super::packets::{
    DESTINATION, HEADERS, IpInput, SOURCE, VoiceStream, damage, damaged_every, write_bare_packet,
    write_udp_packet,
};
use super::{EspEnds, carriages, cases, figure_name};
use crate::error::LabError;
use crate::experiment::EspLoad;
use crate::measure::MeasureSamples;
use engine::{Entropy, Time};
use media::sink::{Received, RtpSink, SinkConfig};
use net::Clock;
use protect::esp::{ArrivedEsp, MAX_HEADROOM, MAX_TAILROOM, PacketRoom};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;
use wire::ip::protocol;

/// Protocol number for experiments (RFC 3692): RTP has none of its own.
const RTP_IN_IP: u8 = 253;
/// Length of the outer IP header.
const OUTER_IP: usize = 20;

/// The way of a packet from its arrival to the media receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceivePath {
    /// ESP, IP, UDP with checksum and table of sockets, media receiver.
    WithUdp,
    /// ESP, IP, media receiver.
    WithoutUdp,
    /// As with UDP, and one copy out of the socket's queue.
    Layered,
    /// ESP, media receiver: the headers of the sealed packet are skipped, because ESP has authenticated them.
    Direct,
    /// ESP, the kernel's UDP on the loopback interface, media receiver.
    Kernel,
}

impl ReceivePath {
    const fn figure(self) -> &'static str {
        match self {
            ReceivePath::WithUdp => "with_udp_us",
            ReceivePath::WithoutUdp => "without_udp_us",
            ReceivePath::Layered => "layered_us",
            ReceivePath::Direct => "direct_us",
            ReceivePath::Kernel => "kernel_us",
        }
    }
}

/// Sockets for the way through the kernel.
struct KernelSockets {
    near: UdpSocket,
    far: UdpSocket,
}

impl KernelSockets {
    fn open() -> Result<KernelSockets, LabError> {
        let io = |error: std::io::Error| {
            LabError::cannot_run(
                format!("UDP sockets of the loopback interface: {error}"),
                "use --simulate, which leaves the kernel's sockets out",
            )
        };
        let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
        let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
        near.connect(far.local_addr().map_err(io)?).map_err(io)?;
        far.connect(near.local_addr().map_err(io)?).map_err(io)?;
        far.set_read_timeout(Some(Duration::from_millis(500)))
            .map_err(io)?;
        Ok(KernelSockets { near, far })
    }
}

/// A receiver of one case by one path.
struct PathReceiver {
    path: ReceivePath,
    carriage: EspCarriage,
    ends: EspEnds,
    input: IpInput,
    sink: RtpSink,
    queue: Vec<u8>,
    kernel: Option<KernelSockets>,
    stream: VoiceStream,
    buffers: Vec<Vec<u8>>,
    /// Packets received before the present round.
    before: u64,
}

impl PathReceiver {
    fn new(
        plan: &EspLoad,
        path: ReceivePath,
        (case, carriage): (&EspCase, EspCarriage),
        entropy: &mut Entropy,
    ) -> Result<PathReceiver, LabError> {
        let voice = plan.voice_bytes();
        let room = MAX_HEADROOM + super::clear_packet_bytes(voice) + MAX_TAILROOM;
        Ok(PathReceiver {
            path,
            carriage,
            ends: EspEnds::new(case, carriage, entropy)?,
            input: IpInput::new(),
            sink: RtpSink::new(SinkConfig::default()),
            queue: vec![0; room],
            kernel: (path == ReceivePath::Kernel)
                .then(KernelSockets::open)
                .transpose()?,
            stream: VoiceStream::new(voice),
            buffers: vec![vec![0; room]; plan.packets as usize],
            before: 0,
        })
    }

    /// Receives a stretch of packets; returns microseconds a packet and the number of packets that were not played.
    fn round(&mut self, plan: &EspLoad, clock: &Clock) -> (f64, u64) {
        let damaged = damaged_every(plan.damaged_percent);
        let mut buffers = std::mem::take(&mut self.buffers);
        let mut rooms: Vec<PacketRoom<'_>> = Vec::with_capacity(buffers.len());
        let mut refused = 0;
        for (number, buffer) in buffers.iter_mut().enumerate() {
            let space = buffer.get_mut(MAX_HEADROOM..).unwrap_or_default();
            let rtp = self.stream.next_rtp();
            let length = match self.path {
                ReceivePath::WithoutUdp => write_bare_packet(space, rtp, RTP_IN_IP),
                _ => write_udp_packet(space, rtp),
            };
            let mut room = PacketRoom::new(buffer, MAX_HEADROOM, length);
            let sealed = self.ends.outbound.seal_packet(&mut room, Time::ZERO);
            refused += u64::from(sealed.is_err());
            if damaged.is_some_and(|every| number.is_multiple_of(every)) {
                let (start, end) = (room.start, room.end);
                damage(room.buffer.get_mut(start..end).unwrap_or_default());
            }
            rooms.push(room);
        }
        let packet_time = Duration::from_millis(u64::from(plan.packet_ms));
        let mut arrived = Time::ZERO + packet_time * self.before as u32;
        let mut played = 0u64;
        let start = clock.now();
        for room in &mut rooms {
            arrived += packet_time;
            played += u64::from(black_box(self.receive(room, arrived)));
        }
        let end = clock.now();
        let count = rooms.len() as u64;
        drop(rooms);
        self.buffers = buffers;
        self.before += count;
        let each_us = end.since(start).as_nanos() as f64 / 1e3 / count.max(1) as f64;
        (each_us, refused.max(count.saturating_sub(played)))
    }

    /// Receives a packet; whether its voice was played.
    #[inline]
    fn receive(&mut self, room: &mut PacketRoom<'_>, arrived: Time) -> bool {
        if self.path == ReceivePath::Direct {
            return self.receive_directly(room, arrived);
        }
        let opened = self.ends.inbound.open_packet(room, Time::ZERO);
        if opened.is_err() {
            return false;
        }
        let packet = room.packet();
        let rtp = match self.path {
            ReceivePath::WithoutUdp => self.input.ip(packet, RTP_IN_IP).map(|(_, rtp)| rtp),
            ReceivePath::Kernel => None,
            _ => {
                let ip = self.input.ip(packet, protocol::UDP);
                ip.and_then(|(view, datagram)| {
                    let (source, destination) = (view.source(), view.destination());
                    Some(self.input.udp(source, destination, datagram)?.1)
                })
            }
        };
        let rtp = match (self.path, rtp) {
            (ReceivePath::Layered, Some(rtp)) => {
                let Some(queue) = self.queue.get_mut(..rtp.len()) else {
                    return false;
                };
                queue.copy_from_slice(rtp);
                &*queue
            }
            (ReceivePath::Kernel, _) => {
                let (Some(kernel), Some(payload)) = (&self.kernel, packet.get(HEADERS..)) else {
                    return false;
                };
                let sent = kernel.near.send(payload);
                let received = sent.and_then(|_| kernel.far.recv(&mut self.queue));
                match received {
                    Ok(length) => self.queue.get(..length).unwrap_or_default(),
                    Err(_) => return false,
                }
            }
            (_, Some(rtp)) => rtp,
            (_, None) => return false,
        };
        is_played(self.sink.receive(rtp, arrived))
    }

    #[inline]
    fn receive_directly(&mut self, room: &mut PacketRoom<'_>, arrived: Time) -> bool {
        let header = ArrivedEsp {
            source: IpAddr::V4(*SOURCE.ip()),
            destination: IpAddr::V4(*DESTINATION.ip()),
            traffic_class: 0,
        };
        let (start, end) = (room.start + OUTER_IP, room.end);
        let esp = room.buffer.get_mut(start..end).unwrap_or_default();
        let Ok(opened) = self.ends.inbound.open_payload(esp, &header, Time::ZERO) else {
            return false;
        };
        let skip = match self.carriage.is_tunnel() {
            true => HEADERS,
            false => HEADERS - OUTER_IP,
        };
        let rtp = esp.get(opened.range.start + skip..opened.range.end);
        is_played(self.sink.receive(rtp.unwrap_or_default(), arrived))
    }
}

fn is_played(received: Received) -> bool {
    received == Received::Audio
}

/// The second path of each pair is the one that gains.
fn compare(
    plan: &EspLoad,
    seed: u64,
    pairs: &[(ReceivePath, ReceivePath, &str)],
) -> Result<MeasureSamples, LabError> {
    let mut entropy = Entropy::from_number(seed);
    let clock = Clock::new();
    let mut paths: Vec<ReceivePath> = Vec::new();
    for (slow, fast, _) in pairs {
        for path in [*slow, *fast] {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    let mut samples = MeasureSamples::new("rounds");
    let mut wrong = 0;
    let mut all = Vec::new();
    for case in cases(plan) {
        for carriage in carriages(plan) {
            let receivers: Result<Vec<PathReceiver>, LabError> = paths
                .iter()
                .map(|path| PathReceiver::new(plan, *path, (case, carriage), &mut entropy))
                .collect();
            all.push((case, carriage, receivers?));
        }
    }
    for round in 0..plan.rounds as usize {
        if net::stops() > 0 {
            break;
        }
        for (case, carriage, receivers) in &mut all {
            let count = receivers.len().max(1);
            let mut times = vec![0.0; receivers.len()];
            for turn in 0..receivers.len() {
                let at = (round + turn) % count;
                let (each_us, unplayed) = receivers[at].round(plan, &clock);
                times[at] = each_us;
                wrong += unplayed;
            }
            let name = |figure: &str| figure_name(figure, case.name, Some(*carriage));
            let time_of = |path: &ReceivePath| {
                let at = paths.iter().position(|known| known == path);
                at.and_then(|at| times.get(at).copied()).unwrap_or_default()
            };
            for path in &paths {
                samples.add(name(path.figure()), time_of(path));
            }
            for (slow, fast, figure) in pairs {
                let (slow, fast) = (time_of(slow), time_of(fast));
                if fast > 0.0 {
                    samples.add(name(figure), slow * 100.0 / fast - 100.0);
                }
            }
        }
    }
    samples.add("esp.wrong_packets".to_owned(), wrong as f64);
    Ok(samples)
}

const IN_MEMORY: &str = "measured in memory with this machine's clock: arrived packet, ESP, headers, statistics and decoding of the media receiver";

/// Reception with UDP and without it.
///
/// # Errors
/// An association that cannot be made.
pub(crate) fn without_udp(
    plan: &EspLoad,
    seed: u64,
) -> Result<(MeasureSamples, Vec<String>), LabError> {
    let samples = compare(
        plan,
        seed,
        &[(
            ReceivePath::WithUdp,
            ReceivePath::WithoutUdp,
            "gain_percent",
        )],
    )?;
    let remarks = vec![
        IN_MEMORY.to_owned(),
        format!("RTP directly in ESP has the protocol number {RTP_IN_IP} (RFC 3692)"),
    ];
    Ok((samples, remarks))
}

/// Reception through the layers of an operating system and directly; with `sockets` also through the kernel's UDP.
///
/// # Errors
/// An association that cannot be made, or sockets that cannot be opened.
pub(crate) fn direct(
    plan: &EspLoad,
    seed: u64,
    sockets: bool,
) -> Result<(MeasureSamples, Vec<String>), LabError> {
    let mut pairs = vec![(ReceivePath::Layered, ReceivePath::Direct, "gain_percent")];
    let kernel = match sockets {
        true => {
            pairs.push((
                ReceivePath::Kernel,
                ReceivePath::Direct,
                "kernel_gain_percent",
            ));
            "esp.kernel_us: from ESP through a UDP socket of the kernel on the loopback interface"
        }
        false => "esp.kernel_us was not measured: --simulate opens no sockets",
    };
    let samples = compare(plan, seed, &pairs)?;
    Ok((samples, vec![IN_MEMORY.to_owned(), kernel.to_owned()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::summarise;

    fn plan() -> EspLoad {
        EspLoad {
            suites: vec!["aes-cbc-sha1".to_owned(), "aes-cbc".to_owned()],
            rounds: 3,
            packets: 8,
            ..EspLoad::default()
        }
    }

    fn value(samples: MeasureSamples, name: &str) -> Option<f64> {
        let all = summarise(&samples.records(0));
        let found = all.into_iter().find(|case| case.figure == name);
        found.map(|case| case.value)
    }

    #[test]
    fn every_path_plays_every_packet() {
        let (samples, _) = without_udp(&plan(), 1).unwrap();
        assert_eq!(value(samples.clone(), "esp.wrong_packets"), Some(0.0));
        let gain = "esp.gain_percent.aes-cbc-sha1.transport";
        assert!(value(samples, gain).is_some());
        let (samples, _) = direct(&plan(), 1, true).unwrap();
        assert_eq!(value(samples.clone(), "esp.wrong_packets"), Some(0.0));
        for figure in [
            "layered_us",
            "direct_us",
            "kernel_us",
            "kernel_gain_percent",
        ] {
            let name = format!("esp.{figure}.aes-cbc-sha1.tunnel");
            assert!(value(samples.clone(), &name).is_some(), "{name}");
        }
        let (samples, _) = direct(&plan(), 1, false).unwrap();
        assert_eq!(value(samples, "esp.kernel_us.aes-cbc-sha1.tunnel"), None);
    }

    #[test]
    fn damaged_packets_are_not_played() {
        let damaged = EspLoad {
            damaged_percent: 50.0,
            suites: vec!["aes-cbc-sha1".to_owned()],
            ..plan()
        };
        let (samples, _) = without_udp(&damaged, 1).unwrap();
        // Half of 8 packets in 3 rounds, in two modes, by two paths.
        assert_eq!(value(samples, "esp.wrong_packets"), Some(48.0));
        let (samples, _) = direct(&damaged, 1, false).unwrap();
        assert_eq!(value(samples, "esp.wrong_packets"), Some(48.0));
    }
}
