//! A packet filter of the kernel (nf_tables, linux/netfilter/nf_tables.h) for an interface of a tunnel: packets whose
//! source is routed to the interface, and which come from another one, are discarded. Without it packets in the clear
//! could take the place of those of the tunnel. Packets of the tunnel itself pass, of any source: its program judges
//! them.

use crate::relay::netlink::{ACKNOWLEDGE, Netlink, push_attribute};
use std::fmt;
use std::io;
use std::net::IpAddr;

// Messages: the subsystem in the upper byte.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const REQUEST: u16 = 1;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// Both families of IP.
const BOTH_FAMILIES: u8 = 1;
const NESTED: u16 = 0x8000;
/// Element of a list, or the first attribute of a structure.
const FIRST: u16 = 1;
const SECOND: u16 = 2;
const THIRD: u16 = 3;
/// NFT_TABLE_F_OWNER: the kernel removes the table together with the socket that made it.
const OWNED: u32 = 2;
const CHAIN: &str = "pre";
/// Before routing, at the priority of the table `raw`: before connections are tracked.
const PRE_ROUTING: u32 = 0;
const PRIORITY: i32 = -300;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const REGISTER: u32 = 1;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
/// The name of the interface from which a packet comes, its family, and its protocol of the transport layer.
const INPUT_NAME: u32 = 6;
const FAMILY: u32 = 15;
const PROTOCOL: u32 = 16;
/// Values of `FAMILY`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;
const UDP: u8 = 17;
const ESP: u8 = 50;
/// Place and length of the destination address, in each family, and of the destination port.
const NETWORK_HEADER: u32 = 1;
const ADDRESS_IPV4: [u32; 2] = [16, 4];
const ADDRESS_IPV6: [u32; 2] = [24, 16];
const TRANSPORT_HEADER: u32 = 2;
const PORT: [u32; 2] = [2, 2];
/// Of the route to the source: the name of its interface.
const BY_SOURCE: u32 = 1;
const ROUTE_NAME: u32 = 2;
/// Length of an interface's name in a register.
const NAME: usize = 16;

/// The filter; it is removed with this value, or with its process.
pub struct SourceGuard {
    _netlink: Netlink,
}

impl fmt::Debug for SourceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceGuard").finish_non_exhaustive()
    }
}

/// Attributes of a message, or of a nested one.
#[derive(Default)]
struct Attributes(Vec<u8>);

impl Attributes {
    fn bytes(mut self, kind: u16, value: &[u8]) -> Attributes {
        push_attribute(&mut self.0, kind, value);
        self
    }

    fn word(self, kind: u16, value: u32) -> Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// With its end, as the kernel wants names.
    fn text(self, kind: u16, value: &str) -> Attributes {
        let mut value = value.as_bytes().to_vec();
        value.push(0);
        self.bytes(kind, &value)
    }

    fn nested(self, kind: u16, inner: &Attributes) -> Attributes {
        self.bytes(NESTED | kind, &inner.0)
    }

    /// An expression of a rule.
    fn expression(self, name: &str, data: &Attributes) -> Attributes {
        let inner = Attributes::default().text(FIRST, name).nested(SECOND, data);
        self.nested(FIRST, &inner)
    }
}

/// A comparison of the register with a value.
fn compare(operation: u32, value: &[u8]) -> Attributes {
    let value = Attributes::default().bytes(FIRST, value);
    Attributes::default()
        .word(FIRST, REGISTER)
        .word(SECOND, operation)
        .nested(THIRD, &value)
}

/// A property of the packet in the register.
fn meta(key: u32) -> Attributes {
    Attributes::default()
        .word(SECOND, key)
        .word(FIRST, REGISTER)
}

fn verdict(of: u32) -> Attributes {
    let code = Attributes::default().word(FIRST, of);
    let data = Attributes::default().nested(SECOND, &code);
    Attributes::default().word(FIRST, 0).nested(SECOND, &data)
}

/// Bytes of a header in the register: place and length.
fn payload(header: u32, [place, length]: [u32; 2]) -> Attributes {
    Attributes::default()
        .word(FIRST, REGISTER)
        .word(SECOND, header)
        .word(THIRD, place)
        .word(4, length)
}

/// `ip daddr LOCAL udp dport PORT accept`; without a port `ip daddr LOCAL meta l4proto esp accept`. Packets to other
/// addresses do not reach the program of the tunnel, so that it could not judge them.
fn pass(local: IpAddr, port: Option<u16>) -> Attributes {
    let (family, address, bytes) = match local {
        IpAddr::V4(local) => (IPV4, ADDRESS_IPV4, local.octets().to_vec()),
        IpAddr::V6(local) => (IPV6, ADDRESS_IPV6, local.octets().to_vec()),
    };
    let protocol = if port.is_some() { UDP } else { ESP };
    let mut rule = Attributes::default()
        .expression("meta", &meta(FAMILY))
        .expression("cmp", &compare(EQUAL, &[family]))
        .expression("payload", &payload(NETWORK_HEADER, address))
        .expression("cmp", &compare(EQUAL, &bytes))
        .expression("meta", &meta(PROTOCOL))
        .expression("cmp", &compare(EQUAL, &[protocol]));
    if let Some(port) = port {
        rule = rule
            .expression("payload", &payload(TRANSPORT_HEADER, PORT))
            .expression("cmp", &compare(EQUAL, &port.to_be_bytes()));
    }
    rule.expression("immediate", &verdict(ACCEPT))
}

/// `iifname != DEVICE fib saddr oifname DEVICE counter drop`
fn discard(device: &str) -> Attributes {
    let mut name = [0; NAME];
    for (place, byte) in name.iter_mut().zip(device.bytes()) {
        *place = byte;
    }
    let route = Attributes::default()
        .word(THIRD, BY_SOURCE)
        .word(SECOND, ROUTE_NAME)
        .word(FIRST, REGISTER);
    Attributes::default()
        .expression("meta", &meta(INPUT_NAME))
        .expression("cmp", &compare(NOT_EQUAL, &name))
        .expression("fib", &route)
        .expression("cmp", &compare(EQUAL, &name))
        .expression("counter", &Attributes::default())
        .expression("immediate", &verdict(DROP))
}

fn push_message(batch: &mut Vec<u8>, (kind, flags): (u16, u16), sequence: u32, body: &Attributes) {
    let (family, resource) = match kind {
        BATCH_BEGIN | BATCH_END => (0, SUBSYSTEM),
        _ => (BOTH_FAMILIES, 0),
    };
    batch.extend_from_slice(&(20 + body.0.len() as u32).to_ne_bytes());
    batch.extend_from_slice(&kind.to_ne_bytes());
    batch.extend_from_slice(&(REQUEST | flags).to_ne_bytes());
    batch.extend_from_slice(&sequence.to_ne_bytes());
    batch.extend_from_slice(&[0; 4]);
    batch.extend_from_slice(&[family, 0]);
    batch.extend_from_slice(&resource.to_be_bytes());
    batch.extend_from_slice(&body.0);
}

/// The messages that make a table with these rules, and the sequence number of the last one: its acknowledgement ends
/// the batch.
fn batch(table: &str, rules: &[Attributes]) -> (Vec<u8>, u32) {
    let new = Attributes::default;
    let hook = new().word(FIRST, PRE_ROUTING).word(SECOND, PRIORITY as u32);
    let chain = new()
        .text(FIRST, table)
        .text(THIRD, CHAIN)
        .text(7, "filter")
        .word(5, ACCEPT)
        .nested(4, &hook);
    let mut batch = Vec::with_capacity(1_024);
    push_message(&mut batch, (BATCH_BEGIN, 0), 0, &new());
    let owned = new().text(FIRST, table).word(SECOND, OWNED);
    push_message(&mut batch, (NEW_TABLE, 0), 1, &owned);
    push_message(&mut batch, (NEW_CHAIN, CREATE), 2, &chain);
    let mut sequence = 2;
    for rule in rules {
        sequence += 1;
        let rule = new().text(FIRST, table).text(SECOND, CHAIN).nested(4, rule);
        let flags = CREATE | APPEND | ACKNOWLEDGE;
        push_message(&mut batch, (NEW_RULE, flags), sequence, &rule);
    }
    push_message(&mut batch, (BATCH_END, 0), sequence + 1, &new());
    (batch, sequence)
}

impl SourceGuard {
    /// Makes the filter for an interface, in a table `hornwork_` with the name of the interface (`nft list tables`), in
    /// the network namespace of this thread. ESP and datagrams to these ports of `local` pass.
    ///
    /// # Errors
    /// Not permitted (CAP_NET_ADMIN), or the kernel has no nf_tables with routes as expressions (5.12 and later,
    /// modules `nf_tables` and `nft_fib_inet`).
    pub fn install(device: &str, local: IpAddr, ports: &[u16]) -> io::Result<SourceGuard> {
        let mut netlink = Netlink::open(libc::NETLINK_NETFILTER)?;
        let ports = ports.iter().copied().map(Some);
        let ports = ports.chain([None]);
        let mut rules: Vec<Attributes> = ports.map(|port| pass(local, port)).collect();
        rules.push(discard(device));
        let (messages, last) = batch(&format!("hornwork_{device}"), &rules);
        netlink.batch(&messages, last)?;
        Ok(SourceGuard { _netlink: netlink })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;
    use crate::tun::TunDevice;
    use std::net::UdpSocket;
    use std::time::Duration;

    /// Rules of nft 1.0.6, as strace shows them.
    const DISCARD: &str = "2400018009000100 6d65746100000000 1400028008000200 0000000608000100 0000000138000180 08000100636d7000 \
        2c00028008000100 0000000108000200 0000000118000380 1400010065737030 0000000000000000 0000000028000180 0800010066696200 \
        1c00028008000300 0000000108000200 0000000208000100 0000000138000180 08000100636d7000 2c00028008000100 0000000108000200 \
        0000000018000380 1400010065737030 0000000000000000 0000000014000180 0c000100636f756e 7465720004000280 300001800e000100 \
        696d6d6564696174 650000001c000280 0800010000000000 100002800c000280 0800010000000000";

    const PASS_PORT: &str = "2400018009000100 6d65746100000000 1400028008000200 0000000f08000100 000000012c000180 08000100636d7000 \
        2000028008000100 0000000108000200 000000000c000380 0500010002000000 340001800c000100 7061796c6f616400 \
        2400028008000100 0000000108000200 0000000108000300 0000001008000400 000000042c000180 08000100636d7000 \
        2000028008000100 0000000108000200 000000000c000380 08000100c0000201 2400018009000100 6d65746100000000 \
        1400028008000200 0000001008000100 000000012c000180 08000100636d7000 2000028008000100 0000000108000200 \
        000000000c000380 0500010011000000 340001800c000100 7061796c6f616400 2400028008000100 0000000108000200 \
        0000000208000300 0000000208000400 000000022c000180 08000100636d7000 2000028008000100 0000000108000200 \
        000000000c000380 0600010011940000 300001800e000100 696d6d6564696174 650000001c000280 0800010000000000 \
        100002800c000280 0800010000000001";
    const PASS_ESP: &str = "2400018009000100 6d65746100000000 1400028008000200 0000000f08000100 000000012c000180 08000100636d7000 \
        2000028008000100 0000000108000200 000000000c000380 0500010002000000 340001800c000100 7061796c6f616400 \
        2400028008000100 0000000108000200 0000000108000300 0000001008000400 000000042c000180 08000100636d7000 \
        2000028008000100 0000000108000200 000000000c000380 08000100c0000201 2400018009000100 6d65746100000000 \
        1400028008000200 0000001008000100 000000012c000180 08000100636d7000 2000028008000100 0000000108000200 \
        000000000c000380 0500010032000000 300001800e000100 696d6d6564696174 650000001c000280 0800010000000000 \
        100002800c000280 0800010000000001";
    const PASS_PORT_IPV6: &str = "2400018009000100 6d65746100000000 1400028008000200 0000000f08000100 000000012c000180 08000100636d7000 \
        2000028008000100 0000000108000200 000000000c000380 050001000a000000 340001800c000100 7061796c6f616400 \
        2400028008000100 0000000108000200 0000000108000300 0000001808000400 0000001038000180 08000100636d7000 \
        2c00028008000100 0000000108000200 0000000018000380 1400010020010db8 0000000000000000 0000000124000180 \
        090001006d657461 0000000014000280 0800020000000010 0800010000000001 2c00018008000100 636d700020000280 \
        0800010000000001 0800020000000000 0c00038005000100 1100000034000180 0c0001007061796c 6f61640024000280 \
        0800010000000001 0800020000000002 0800030000000002 0800040000000002 2c00018008000100 636d700020000280 \
        0800010000000001 0800020000000000 0c00038006000100 1194000030000180 0e000100696d6d65 6469617465000000 \
        1c00028008000100 0000000010000280 0c00028008000100 00000001";

    #[test]
    fn rules_are_those_of_nft() {
        let [ipv4, ipv6]: [IpAddr; 2] = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        for (rule, text) in [
            (discard("esp0"), DISCARD),
            (pass(ipv4, Some(4_500)), PASS_PORT),
            (pass(ipv4, None), PASS_ESP),
            (pass(ipv6, Some(4_500)), PASS_PORT_IPV6),
        ] {
            let text: String = text.split_ascii_whitespace().collect();
            let bytes: Vec<u8> = (0..text.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
                .collect();
            assert_eq!(rule.0, bytes);
        }
        // Tables of one letter.
        assert_eq!(batch("y", &[discard("esp0")]).0.len(), 448);
        let (messages, last) = batch("y", &[pass(ipv4, Some(4_500)), pass(ipv4, None)]);
        assert_eq!((messages.len(), last), (936, 4));
    }

    /// An IPv4 packet of UDP without a checksum.
    fn packet(source: [u8; 4], destination: [u8; 4], port: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend(source);
        packet.extend(destination);
        let words = packet
            .chunks(2)
            .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let sum: u32 = words.sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend([0, 9]);
        packet.extend(port.to_be_bytes());
        packet.extend([0, 9, 0, 0, 7]);
        packet
    }

    /// Two interfaces; the network of the source is behind the first one. Skipped without the rights.
    #[test]
    fn packets_of_a_tunnel_come_from_its_interface_only() {
        let Ok(network) = Network::with_loopback() else {
            eprintln!("skipped: no right to create a network namespace");
            return;
        };
        std::thread::spawn(move || {
            network.enter().unwrap();
            let devices = ["esp0", "wan0"].map(TunDevice::create);
            let [Ok(tunnel), Ok(wan)] = devices else {
                eprintln!("skipped: no right to create a TUN device");
                return;
            };
            for device in ["esp0", "wan0"] {
                TunDevice::set_up(device, 1_400).unwrap();
                // The host must not filter by itself.
                let setting = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
                let _ = std::fs::write(setting, "0");
            }
            let _ = std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0");
            TunDevice::add_address("esp0", "10.1.0.1".parse().unwrap()).unwrap();
            let remote = ("10.2.0.0".parse().unwrap(), 24);
            TunDevice::add_route("esp0", remote, None).unwrap();
            let other = ("10.3.0.0".parse().unwrap(), 24);
            TunDevice::add_route("wan0", other, None).unwrap();
            let socket = UdpSocket::bind("10.1.0.1:0").unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            let port = socket.local_addr().unwrap().port();
            let arrives = |device: &TunDevice, source| {
                device.send(&packet(source, [10, 1, 0, 1], port)).unwrap();
                socket.recv(&mut [0; 10]).is_ok()
            };
            let (far, known) = ([10, 2, 0, 9], [10, 3, 0, 9]);
            assert!(
                arrives(&tunnel, far) && arrives(&wan, far),
                "without the filter"
            );
            // A port of the tunnel itself.
            let outer = UdpSocket::bind("10.1.0.1:0").unwrap();
            outer
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let outer_port = outer.local_addr().unwrap().port();
            // The same port of another address of this host, as of a host behind the gateway.
            TunDevice::add_address("esp0", "10.1.0.2".parse().unwrap()).unwrap();
            let inside = UdpSocket::bind(("10.1.0.2", outer_port)).unwrap();
            inside
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            let local = "10.1.0.1".parse().unwrap();
            let guard = match SourceGuard::install("esp0", local, &[outer_port, 500]) {
                Ok(guard) => guard,
                Err(error) => {
                    eprintln!("skipped: the kernel has no such filter: {error}");
                    return;
                }
            };
            assert!(arrives(&tunnel, far));
            assert!(!arrives(&wan, far));
            assert!(arrives(&wan, known));
            wan.send(&packet(far, [10, 1, 0, 1], outer_port)).unwrap();
            outer.recv(&mut [0; 10]).unwrap();
            let to_inside = packet(far, [10, 1, 0, 2], outer_port);
            wan.send(&to_inside).unwrap();
            assert!(
                inside.recv(&mut [0; 10]).is_err(),
                "a packet in the clear to another address passes"
            );
            tunnel.send(&to_inside).unwrap();
            inside.recv(&mut [0; 10]).unwrap();
            drop(guard);
            assert!(arrives(&wan, far), "the filter ends with its value");
        })
        .join()
        .unwrap();
    }
}
