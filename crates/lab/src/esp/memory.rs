//! Packets of a simulated access side: counted, and sealed and opened in memory where it has ESP.

use super::{EspCarriage, EspCase, EspEnds};
use crate::error::LabError;
use engine::{Entropy, Time};
use protect::esp::{MAX_HEADROOM, MAX_TAILROOM, PacketRoom};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use wire::ip::{internet_checksum, protocol};

/// Longest packet; longer ones are sent in segments, which a simulation does not divide.
const LONGEST: usize = 65_535 - 128;
const IPV4: usize = 20;

/// Counts of an access side. A simulation measures no time of sealing and opening: the same seed gives the same record.
pub(crate) struct AccessMeter {
    protection: Option<(&'static EspCase, EspCarriage)>,
    /// An association for each sender.
    ends: BTreeMap<IpAddr, EspEnds>,
    entropy: Entropy,
    buffer: Vec<u8>,
    /// Bytes of IP packets.
    pub(crate) bytes: u64,
    /// Packets that did not come out as they went in.
    pub(crate) refused: u64,
}

impl AccessMeter {
    /// A meter of an access side with these algorithms, or without ESP.
    pub(crate) fn new(
        protection: Option<(&'static EspCase, EspCarriage)>,
        seed: u64,
    ) -> AccessMeter {
        AccessMeter {
            protection,
            ends: BTreeMap::new(),
            entropy: Entropy::from_number(seed),
            buffer: vec![0; MAX_HEADROOM + LONGEST + MAX_TAILROOM],
            bytes: 0,
            refused: 0,
        }
    }

    /// Takes a datagram or a segment on its way.
    pub(crate) fn take(
        &mut self,
        (source, destination): (SocketAddr, SocketAddr),
        is_tcp: bool,
        payload: &[u8],
    ) {
        let headers = IPV4 + if is_tcp { 20 } else { 8 };
        let length = headers + payload.len();
        let (IpAddr::V4(from), IpAddr::V4(to)) = (source.ip(), destination.ip()) else {
            return;
        };
        if length > LONGEST {
            return;
        }
        let mut packet = vec![0u8; length];
        let (header, upper) = packet.split_at_mut(IPV4);
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        header[8] = 64;
        header[9] = if is_tcp { protocol::TCP } else { protocol::UDP };
        header[12..16].copy_from_slice(&from.octets());
        header[16..20].copy_from_slice(&to.octets());
        let sum = internet_checksum(&[header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        upper[..2].copy_from_slice(&source.port().to_be_bytes());
        upper[2..4].copy_from_slice(&destination.port().to_be_bytes());
        if !is_tcp {
            upper[4..6].copy_from_slice(&((length - IPV4) as u16).to_be_bytes());
        }
        upper[headers - IPV4..].copy_from_slice(payload);
        match self.seal_and_open(source.ip(), &packet) {
            Ok(Some(sealed)) => self.bytes += sealed,
            Ok(None) => self.bytes += length as u64,
            Err(_) => self.refused += 1,
        }
    }

    /// The length of the sealed packet; `None` without ESP.
    fn seal_and_open(&mut self, sender: IpAddr, packet: &[u8]) -> Result<Option<u64>, LabError> {
        let Some((case, carriage)) = self.protection else {
            return Ok(None);
        };
        if !self.ends.contains_key(&sender) {
            let ends = EspEnds::new(case, carriage, &mut self.entropy)?;
            self.ends.insert(sender, ends);
        }
        let failed = || LabError::bad_input("ESP refused a packet");
        let ends = self.ends.get_mut(&sender).ok_or_else(failed)?;
        let space = self.buffer.get_mut(MAX_HEADROOM..).ok_or_else(failed)?;
        let space = space.get_mut(..packet.len()).ok_or_else(failed)?;
        space.copy_from_slice(packet);
        let mut room = PacketRoom::new(&mut self.buffer, MAX_HEADROOM, packet.len());
        let sealed = ends.outbound.seal_packet(&mut room, Time::ZERO);
        let length = room.packet().len() as u64;
        let opened = sealed.is_ok() && ends.inbound.open_packet(&mut room, Time::ZERO).is_ok();
        match opened && room.packet() == packet {
            true => Ok(Some(length)),
            false => Err(failed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_counted_as_they_would_be_on_the_wire() {
        let ends = |from: &str, to: &str| (from.parse().unwrap(), to.parse().unwrap());
        let case = EspCase::of("aes-cbc-sha256").unwrap();
        let mut clear = AccessMeter::new(None, 1);
        let mut sealed = AccessMeter::new(Some((case, EspCarriage::Tunnel)), 1);
        for meter in [&mut clear, &mut sealed] {
            meter.take(ends("10.0.1.1:5000", "10.0.1.2:6000"), false, &[0; 172]);
            meter.take(ends("10.0.1.2:6000", "10.0.1.1:5000"), false, &[1; 172]);
        }
        assert_eq!((clear.bytes, clear.refused), (400, 0));
        assert_eq!((sealed.bytes, sealed.refused), (536, 0));
        sealed.take(ends("10.0.1.1:5000", "10.0.1.2:6000"), true, &[0; 100]);
        assert!(sealed.bytes > 536 + 140 && sealed.refused == 0);
    }
}
