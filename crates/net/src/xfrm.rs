//! The kernel's own IPsec (XFRM, linux/xfrm.h): associations and policies, written by netlink in the network namespace
//! of the thread that opened the socket. Messages are built field by field; those with keys are wiped.

use crate::relay::netlink::{ACKNOWLEDGE, DUMP, Netlink, attributes, push_attribute, word};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use zeroize::Zeroizing;

// Messages.
const NEW_STATE: u16 = 0x10;
const DELETE_STATE: u16 = 0x11;
const GET_STATE: u16 = 0x12;
const NEW_POLICY: u16 = 0x13;
const DELETE_POLICY: u16 = 0x14;
const GET_POLICY: u16 = 0x15;
const UPDATE_POLICY: u16 = 0x19;
const NEW_EVENT: u16 = 0x1e;
const GET_EVENT: u16 = 0x1f;

// Attributes.
const CIPHER: u16 = 2;
const ENCAPSULATION: u16 = 4;
const TEMPLATE: u16 = 5;
const LIFETIME: u16 = 9;
const AEAD: u16 = 18;
const INTEGRITY_TRUNCATED: u16 = 20;
const REPLAY_WINDOW: u16 = 23;

const ESP: u8 = 50;
const TUNNEL_MODE: u8 = 1;
const ESP_IN_UDP: u16 = 2;
/// Flags of a state: no outer Don't Fragment, and inner packets of both families.
const CLEARS_DONT_FRAGMENT: u8 = 4;
const BOTH_FAMILIES: u8 = 32;
/// No bound in bytes or packets.
const UNLIMITED: u64 = u64::MAX;
const INET: u16 = libc::AF_INET as u16;
const INET6: u16 = libc::AF_INET6 as u16;

// Lengths of structures, and places in them.
const SELECTOR: usize = 56;
const STATE: usize = 224;
const STATE_DESTINATION: usize = SELECTOR;
const STATE_SPI: usize = SELECTOR + 16;
const STATE_SOURCE: usize = SELECTOR + 24;
const STATE_REQUEST: usize = 208;
const STATE_FAMILY: usize = 212;
const POLICY: usize = 168;
const POLICY_DIRECTION: usize = 160;
const TEMPLATE_SOURCE: usize = 28;
const TEMPLATE_REQUEST: usize = 44;

/// An algorithm by the kernel's name, with its key.
#[derive(Clone, Copy)]
pub struct XfrmAlgorithm<'a> {
    /// For example `rfc4106(gcm(aes))`.
    pub name: &'static str,
    /// The key, with its salt; secret.
    pub key: &'a [u8],
    /// Bits of the ICV; 0 for a cipher that has none.
    pub icv_bits: u32,
}

impl fmt::Debug for XfrmAlgorithm<'_> {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XfrmAlgorithm")
            .field("name", &self.name)
            .field("icv_bits", &self.icv_bits)
            .finish_non_exhaustive()
    }
}

/// Algorithms of an association.
#[derive(Clone, Copy, Debug)]
pub enum XfrmSuite<'a> {
    /// A cipher that authenticates.
    Aead(XfrmAlgorithm<'a>),
    /// A cipher and an integrity algorithm.
    Pair(XfrmAlgorithm<'a>, XfrmAlgorithm<'a>),
}

/// An association in tunnel mode, ESP in UDP.
#[derive(Clone, Copy, Debug)]
pub struct XfrmState<'a> {
    /// Security parameter index.
    pub spi: u32,
    /// Outer source and destination.
    pub ends: [IpAddr; 2],
    /// UDP ports, source and destination.
    pub ports: [u16; 2],
    /// The number by which policies name it.
    pub request: u32,
    /// Algorithms with keys.
    pub suite: XfrmSuite<'a>,
    /// Replay window, packets, up to 4,096; 0 for one that sends.
    pub replay_window: u32,
    /// Outer packets never have the bit Don't Fragment.
    pub clears_dont_fragment: bool,
    /// Bytes after which the kernel deletes it.
    pub hard_bytes: Option<u64>,
    /// Seconds after which the kernel deletes it.
    pub hard_seconds: Option<u64>,
}

/// Packets of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct XfrmSelector {
    /// First bits of the source address, and their number.
    pub source: (IpAddr, u8),
    /// First bits of the destination address.
    pub destination: (IpAddr, u8),
    /// Protocol of the transport layer; 0: all.
    pub protocol: u8,
    /// Source port and the mask of its bits that count.
    pub source_port: (u16, u16),
    /// Destination port and its mask.
    pub destination_port: (u16, u16),
}

/// Direction of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XfrmDirection {
    /// Packets for this host.
    In = 0,
    /// Packets to be sealed.
    Out = 1,
    /// Received packets that this host forwards.
    Forward = 2,
}

/// A policy that requires the associations of a request number.
#[derive(Clone, Copy, Debug)]
pub struct XfrmPolicy {
    /// Direction.
    pub direction: XfrmDirection,
    /// Its packets.
    pub selector: XfrmSelector,
    /// Outer source and destination; an unspecified source is any.
    pub ends: [IpAddr; 2],
    /// The association that seals; 0: each of the request.
    pub spi: u32,
    /// Number of its associations.
    pub request: u32,
}

/// Packets and bytes of an association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XfrmCounts {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Why the kernel takes no association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XfrmRefusal {
    /// It has no ESP.
    NoEsp,
    /// It has no such algorithm.
    NoAlgorithm,
    /// CAP_NET_ADMIN is missing.
    NotPermitted,
    /// Another reason.
    Other,
}

impl XfrmRefusal {
    /// The reason of an error of [`Xfrm::add_state`].
    pub fn of(error: &io::Error) -> XfrmRefusal {
        match error.raw_os_error() {
            Some(libc::EPROTONOSUPPORT) => XfrmRefusal::NoEsp,
            Some(libc::ENOSYS) => XfrmRefusal::NoAlgorithm,
            Some(libc::EPERM) => XfrmRefusal::NotPermitted,
            _ => XfrmRefusal::Other,
        }
    }
}

/// A netlink socket for associations and policies.
pub struct Xfrm {
    netlink: Netlink,
}

impl fmt::Debug for Xfrm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Xfrm").finish_non_exhaustive()
    }
}

fn family(of: IpAddr) -> u16 {
    match of {
        IpAddr::V4(_) => INET,
        IpAddr::V6(_) => INET6,
    }
}

/// An address as the kernel stores it: 16 bytes for both families.
fn stored(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// A structure of a message, written from its beginning.
struct Structure {
    bytes: Vec<u8>,
}

impl Structure {
    fn new(length: usize) -> Structure {
        Structure {
            bytes: Vec::with_capacity(length),
        }
    }

    fn add(mut self, bytes: &[u8]) -> Structure {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn word(self, value: u32) -> Structure {
        self.add(&value.to_ne_bytes())
    }

    fn half(self, value: u16) -> Structure {
        self.add(&value.to_ne_bytes())
    }

    fn long(self, value: u64) -> Structure {
        self.add(&value.to_ne_bytes())
    }

    /// Zeros up to a length.
    fn until(mut self, length: usize) -> Structure {
        self.bytes.resize(length, 0);
        self
    }
}

impl XfrmSelector {
    /// `struct xfrm_selector`.
    fn encode(&self) -> Vec<u8> {
        let port = |(port, mask): (u16, u16)| {
            let [a, b] = port.to_be_bytes();
            let [c, d] = mask.to_be_bytes();
            [a, b, c, d]
        };
        Structure::new(SELECTOR)
            .add(&stored(self.destination.0))
            .add(&stored(self.source.0))
            .add(&port(self.destination_port))
            .add(&port(self.source_port))
            .half(family(self.destination.0))
            .add(&[self.destination.1, self.source.1, self.protocol])
            .until(SELECTOR)
            .bytes
    }
}

/// `struct xfrm_algo` and its kin: the name, lengths, and the key.
fn push_algorithm(message: &mut Zeroizing<Vec<u8>>, kind: u16, algorithm: &XfrmAlgorithm<'_>) {
    let mut value = Zeroizing::new(Vec::with_capacity(72 + algorithm.key.len()));
    value.extend_from_slice(algorithm.name.as_bytes());
    value.resize(64, 0);
    value.extend_from_slice(&(algorithm.key.len() as u32 * 8).to_ne_bytes());
    if kind != CIPHER {
        value.extend_from_slice(&algorithm.icv_bits.to_ne_bytes());
    }
    value.extend_from_slice(algorithm.key);
    push_attribute(message, kind, &value);
}

impl XfrmState<'_> {
    /// `struct xfrm_usersa_info` with its attributes.
    fn encode(&self) -> Zeroizing<Vec<u8>> {
        let [source, destination] = self.ends;
        let flags = match self.clears_dont_fragment {
            true => BOTH_FAMILIES | CLEARS_DONT_FRAGMENT,
            false => BOTH_FAMILIES,
        };
        let info = Structure::new(STATE)
            .until(SELECTOR)
            .add(&stored(destination))
            .add(&self.spi.to_be_bytes())
            .add(&[ESP, 0, 0, 0])
            .add(&stored(source))
            .long(UNLIMITED)
            .long(self.hard_bytes.unwrap_or(UNLIMITED))
            .long(UNLIMITED)
            .long(UNLIMITED)
            .long(0)
            .long(self.hard_seconds.unwrap_or(0))
            .until(STATE_REQUEST)
            .word(self.request)
            .half(family(destination))
            .add(&[TUNNEL_MODE, 0, flags])
            .until(STATE);
        // Large enough for all attributes: a buffer that grows would leave copies of keys behind.
        let mut message = Zeroizing::new(Vec::with_capacity(2_048));
        message.extend_from_slice(&info.bytes);
        match &self.suite {
            XfrmSuite::Aead(cipher) => push_algorithm(&mut message, AEAD, cipher),
            XfrmSuite::Pair(cipher, integrity) => {
                push_algorithm(&mut message, CIPHER, cipher);
                push_algorithm(&mut message, INTEGRITY_TRUNCATED, integrity);
            }
        }
        let [from, to] = self.ports;
        let encapsulation = Structure::new(24)
            .half(ESP_IN_UDP)
            .add(&from.to_be_bytes())
            .add(&to.to_be_bytes())
            .until(24);
        push_attribute(&mut message, ENCAPSULATION, &encapsulation.bytes);
        if self.replay_window > 0 {
            // `struct xfrm_replay_state_esn`, which takes windows of more than 32 packets, also without extended
            // sequence numbers; its empty bitmap may be left off.
            let window = Structure::new(24)
                .word(self.replay_window.div_ceil(32))
                .until(20)
                .word(self.replay_window);
            push_attribute(&mut message, REPLAY_WINDOW, &window.bytes);
        }
        message
    }
}

/// `struct xfrm_usersa_id` of an association.
fn identifier(spi: u32, destination: IpAddr) -> Vec<u8> {
    Structure::new(24)
        .add(&stored(destination))
        .add(&spi.to_be_bytes())
        .half(family(destination))
        .add(&[ESP, 0])
        .bytes
}

impl XfrmPolicy {
    /// The kernel asks policies with smaller numbers first: the longest remote network, as routes have it, then the
    /// longest local one, then those with a protocol and with ports.
    fn priority(&self) -> u32 {
        let of = &self.selector;
        let [local, remote] = match self.direction {
            XfrmDirection::Out => [of.source.1, of.destination.1],
            XfrmDirection::In | XfrmDirection::Forward => [of.destination.1, of.source.1],
        };
        let limits = u32::from(of.protocol != 0)
            + of.source_port.1.count_ones()
            + of.destination_port.1.count_ones();
        (1 << 24) - (u32::from(remote) << 14 | u32::from(local) << 6 | limits)
    }

    /// `struct xfrm_userpolicy_info` with its template.
    fn encode(&self) -> Vec<u8> {
        let [source, destination] = self.ends;
        let mut message = unlimited_policy(
            self.selector.encode(),
            self.priority(),
            self.direction as u8,
        );
        let template = Structure::new(64)
            .add(&stored(destination))
            .add(&self.spi.to_be_bytes())
            .add(&[ESP, 0, 0, 0])
            .half(family(destination))
            .until(TEMPLATE_SOURCE)
            .add(&stored(source))
            .word(self.request)
            .add(&[TUNNEL_MODE])
            .until(52)
            // Each algorithm.
            .until(64);
        let mut template = template.bytes;
        if let Some(algorithms) = template.get_mut(52..64) {
            algorithms.fill(0xff);
        }
        push_attribute(&mut message, TEMPLATE, &template);
        message
    }

    /// `struct xfrm_userpolicy_id`.
    fn identify(&self) -> Vec<u8> {
        policy_identifier(&self.selector.encode(), self.direction as u8)
    }
}

fn policy_identifier(selector: &[u8], direction: u8) -> Vec<u8> {
    Structure::new(64)
        .add(selector)
        .word(0)
        .add(&[direction])
        .until(64)
        .bytes
}

/// A policy without bounds that allows its packets.
fn unlimited_policy(selector: Vec<u8>, priority: u32, direction: u8) -> Vec<u8> {
    Structure { bytes: selector }
        .long(UNLIMITED)
        .long(UNLIMITED)
        .long(UNLIMITED)
        .long(UNLIMITED)
        .until(152)
        .word(priority)
        .word(0)
        .add(&[direction])
        .until(POLICY)
        .bytes
}

/// Lets the packets of a socket pass beside all policies: messages of a key exchange, even to a peer whose address is
/// in a policy.
///
/// # Errors
/// Not permitted (CAP_NET_ADMIN), or the kernel has no XFRM.
pub fn bypass_policies(socket: BorrowedFd<'_>, is_v6: bool) -> io::Result<()> {
    let (level, name, family) = match is_v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_XFRM_POLICY, INET6),
        false => (libc::IPPROTO_IP, libc::IP_XFRM_POLICY, INET),
    };
    for direction in [XfrmDirection::In, XfrmDirection::Out] {
        let all = Structure::new(SELECTOR).until(40).half(family);
        let policy = unlimited_policy(all.until(SELECTOR).bytes, 0, direction as u8);
        // SAFETY: the kernel reads the length that it is given, which is that of the buffer, and the buffer outlives
        // the call.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                level,
                name,
                policy.as_ptr().cast(),
                policy.len() as libc::socklen_t,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The association of a body of a dump: its SPI, both ends as stored, and its request number.
struct ListedState {
    identifier: Vec<u8>,
    request: u32,
    ends: [Vec<u8>; 2],
}

fn listed_state(body: &[u8]) -> Option<ListedState> {
    let part = |at: usize, length: usize| body.get(at..at + length).map(<[u8]>::to_vec);
    let mut identifier = part(STATE_DESTINATION, 20)?;
    identifier.extend(part(STATE_FAMILY, 2)?);
    identifier.extend([*body.get(STATE_SPI + 4)?, 0]);
    Some(ListedState {
        identifier,
        request: word(body, STATE_REQUEST),
        ends: [part(STATE_SOURCE, 16)?, part(STATE_DESTINATION, 16)?],
    })
}

/// The identifier of a policy of a dump, if its template has a request number of the range and a local address.
fn owned_policy(body: &[u8], requests: &RangeInclusive<u32>, local: [u8; 16]) -> Option<Vec<u8>> {
    let (_, template) = attributes(body.get(POLICY..)?).find(|(kind, _)| *kind == TEMPLATE)?;
    let ends = [
        template.get(..16)?,
        template.get(TEMPLATE_SOURCE..)?.get(..16)?,
    ];
    let is_owned =
        requests.contains(&word(template, TEMPLATE_REQUEST)) && ends.contains(&&local[..]);
    let direction = *body.get(POLICY_DIRECTION)?;
    is_owned.then(|| policy_identifier(body.get(..SELECTOR).unwrap_or_default(), direction))
}

impl Xfrm {
    /// A socket in the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel has no XFRM.
    pub fn open() -> io::Result<Xfrm> {
        Ok(Xfrm {
            netlink: Netlink::open(libc::NETLINK_XFRM)?,
        })
    }

    fn change(&mut self, kind: u16, body: &[u8]) -> io::Result<()> {
        self.netlink.request(kind, ACKNOWLEDGE, body, |_, _| {})
    }

    /// Adds an association.
    ///
    /// # Errors
    /// See [`XfrmRefusal`]; the SPI may be in use.
    pub fn add_state(&mut self, state: &XfrmState<'_>) -> io::Result<()> {
        let done = self.change(NEW_STATE, &state.encode());
        // A refusal repeats the request with its keys.
        self.netlink.wipe();
        done
    }

    /// Deletes an association; none is no error.
    ///
    /// # Errors
    /// Not permitted.
    pub fn delete_state(&mut self, spi: u32, destination: IpAddr) -> io::Result<()> {
        let done = self.change(DELETE_STATE, &identifier(spi, destination));
        none_is_no_error(done, libc::ESRCH)
    }

    /// Adds an association and deletes it: whether the kernel can do its work.
    ///
    /// # Errors
    /// As [`Xfrm::add_state`].
    pub fn probe(&mut self, state: &XfrmState<'_>) -> io::Result<()> {
        self.add_state(state)?;
        self.delete_state(state.spi, state.ends[1])
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// Not permitted, or there is one with the same selector.
    pub fn add_policy(&mut self, policy: &XfrmPolicy) -> io::Result<()> {
        self.change(NEW_POLICY, &policy.encode())
    }

    /// Replaces the policy of this selector in one step.
    ///
    /// # Errors
    /// Not permitted.
    pub fn replace_policy(&mut self, policy: &XfrmPolicy) -> io::Result<()> {
        self.change(UPDATE_POLICY, &policy.encode())
    }

    /// Deletes the policy of this selector; none is no error.
    ///
    /// # Errors
    /// Not permitted.
    pub fn delete_policy(&mut self, policy: &XfrmPolicy) -> io::Result<()> {
        none_is_no_error(self.change(DELETE_POLICY, &policy.identify()), libc::ENOENT)
    }

    /// Packets and bytes of an association; `None` if there is none, because the kernel has deleted it at its end. The
    /// answer has no keys, other than that to a request for the whole association.
    ///
    /// # Errors
    /// Not permitted.
    pub fn counts(&mut self, spi: u32, destination: IpAddr) -> io::Result<Option<XfrmCounts>> {
        let mut body = identifier(spi, destination);
        body.resize(48, 0);
        let mut found = None;
        let done = self
            .netlink
            .request(GET_EVENT, ACKNOWLEDGE, &body, |kind, part| {
                let rest = part.get(48..).unwrap_or_default();
                for (attribute, value) in attributes(rest) {
                    if kind == NEW_EVENT && attribute == LIFETIME {
                        let long = |at: usize| {
                            let bytes = value
                                .get(at..at + 8)
                                .and_then(|bytes| bytes.try_into().ok());
                            bytes.map_or(0, u64::from_ne_bytes)
                        };
                        found = Some(XfrmCounts {
                            bytes: long(0),
                            packets: long(8),
                        });
                    }
                }
            });
        none_is_no_error(done, libc::ESRCH)?;
        Ok(found)
    }

    /// Deletes the policies and associations of these request numbers that have a local address as one end: those that
    /// a program left which was killed. Returns their numbers.
    ///
    /// # Errors
    /// Not permitted.
    pub fn flush(
        &mut self,
        requests: RangeInclusive<u32>,
        local: IpAddr,
    ) -> io::Result<(usize, usize)> {
        let local = stored(local);
        let mut policies = Vec::new();
        self.netlink.request(GET_POLICY, DUMP, &[], |_, body| {
            policies.extend(owned_policy(body, &requests, local));
        })?;
        for policy in &policies {
            none_is_no_error(self.change(DELETE_POLICY, policy), libc::ENOENT)?;
        }
        let mut states = Vec::new();
        let listed = self.netlink.request(GET_STATE, DUMP, &[], |_, body| {
            let state = listed_state(body).filter(|state| {
                requests.contains(&state.request) && state.ends.iter().any(|end| end[..] == local)
            });
            states.extend(state.map(|state| state.identifier));
        });
        // The list has keys.
        self.netlink.wipe();
        listed?;
        for state in &states {
            none_is_no_error(self.change(DELETE_STATE, state), libc::ESRCH)?;
        }
        Ok((policies.len(), states.len()))
    }
}

fn none_is_no_error(done: io::Result<()>, none: i32) -> io::Result<()> {
    match done {
        Err(error) if error.raw_os_error() == Some(none) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Network;

    // Messages of `ip xfrm` (iproute2 6.1) without their header, as strace shows them; zN: N zero bytes.
    const GCM_STATE: &str = "z56 c0000202 z12 c123456732000000c0000201 z12 \
        ffffffffffffffff40420f0000000000ffffffffffffffffffffffffffffffff z8 0c12 z70 \
        0100574802000100200000000000000060001200726663343130362867636d28 6165732929 z47 \
        a000000080000000000102030405060708090a0b0c0d0e0f101112131c000400 020011941195 z18";
    const CBC_STATE: &str = "z56 20010db8 z11 02000010003200000020010db8 z11 \
        01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff ff z80 \
        070000000a0001002400000000000000580002006362632861657329 z56 \
        80000000000102030405060708090a0b0c0d0e0f6c001400686d616328736861 32353629 z53 \
        01000080000000202122232425262728292a2b2c2d2e2f303132333435363738 393a3b3c3d3e3f1c000400020011941194 \
        z18 1c00170002 z19 40000000";
    const POLICY_OUT: &str = "0a02 z14 0a01 z14 2710ffff13c4ffff0200101811 z11 \
        ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff z64 \
        dff9fb0000000000010000000000000044000500c0000202 z12 c12345673200000002000000c0000201 z12 \
        0100574801000000ffffffffffffffffffffffff";
    const POLICY_ID: &str = "0a02 z14 0a01 z14 2710ffff13c4ffff0200101811 z15 01000000";
    const STATE_ID: &str = "c0000202 z12 c123456702003200";

    fn bytes(text: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for token in text.split_ascii_whitespace() {
            match token.strip_prefix('z') {
                Some(count) => bytes.resize(bytes.len() + count.parse::<usize>().unwrap(), 0),
                None => bytes.extend(
                    (0..token.len())
                        .step_by(2)
                        .map(|at| u8::from_str_radix(&token[at..at + 2], 16).unwrap()),
                ),
            }
        }
        bytes
    }

    fn ends(text: [&str; 2]) -> [IpAddr; 2] {
        text.map(|end| end.parse().unwrap())
    }

    const REQUEST: u32 = 0x4857_0001;

    fn gcm(key: &[u8]) -> XfrmState<'_> {
        XfrmState {
            spi: 0xc123_4567,
            ends: ends(["192.0.2.1", "192.0.2.2"]),
            ports: [4_500, 4_501],
            request: REQUEST,
            suite: XfrmSuite::Aead(XfrmAlgorithm {
                name: "rfc4106(gcm(aes))",
                key,
                icv_bits: 128,
            }),
            replay_window: 0,
            clears_dont_fragment: false,
            hard_bytes: Some(1_000_000),
            hard_seconds: Some(4_620),
        }
    }

    fn policy() -> XfrmPolicy {
        XfrmPolicy {
            direction: XfrmDirection::Out,
            selector: XfrmSelector {
                source: ("10.1.0.0".parse().unwrap(), 24),
                destination: ("10.2.0.0".parse().unwrap(), 16),
                protocol: 17,
                source_port: (5_060, 0xffff),
                destination_port: (10_000, 0xffff),
            },
            ends: ends(["192.0.2.1", "192.0.2.2"]),
            spi: 0xc123_4567,
            request: REQUEST,
        }
    }

    #[test]
    fn messages_are_those_of_iproute2() {
        let key: Vec<u8> = (0..0x14).collect();
        assert_eq!(gcm(&key).encode()[..], bytes(GCM_STATE)[..]);
        let (cipher, integrity): (Vec<u8>, Vec<u8>) = ((0..0x10).collect(), (0x20..0x40).collect());
        let algorithm = |name, key, icv_bits| XfrmAlgorithm {
            name,
            key,
            icv_bits,
        };
        let state = XfrmState {
            spi: 0x1000,
            ends: ends(["2001:db8::1", "2001:db8::2"]),
            ports: [4_500; 2],
            request: 7,
            suite: XfrmSuite::Pair(
                algorithm("cbc(aes)", &cipher, 0),
                algorithm("hmac(sha256)", &integrity, 128),
            ),
            replay_window: 64,
            clears_dont_fragment: true,
            hard_bytes: None,
            hard_seconds: None,
        };
        assert_eq!(state.encode()[..], bytes(CBC_STATE)[..]);
        assert_eq!(policy().encode(), bytes(POLICY_OUT));
        assert_eq!(policy().identify(), bytes(POLICY_ID));
        assert_eq!(
            identifier(0xc123_4567, ends(["::", "192.0.2.2"])[1]),
            bytes(STATE_ID)
        );
        assert!(!format!("{state:?}").contains("key"), "{state:?}");
    }

    #[test]
    fn policies_of_longer_networks_come_first() {
        let one = policy();
        let priority = |change: fn(&mut XfrmPolicy)| {
            let mut other = one;
            change(&mut other);
            other.priority()
        };
        let wide_local = priority(|other| other.selector.source.1 = 8);
        let wide_remote = priority(|other| {
            other.selector.destination.1 = 15;
            other.selector.source.1 = 32;
        });
        let all_ports = priority(|other| other.selector.source_port = (0, 0));
        assert!(one.priority() < all_ports && all_ports < wide_local && wide_local < wide_remote);
        let turned = XfrmPolicy {
            direction: XfrmDirection::In,
            selector: XfrmSelector {
                source: one.selector.destination,
                destination: one.selector.source,
                ..one.selector
            },
            ..one
        };
        assert_eq!(turned.priority(), one.priority());
    }

    /// On the kernel of this machine, with or without ESP; skipped without the right to a network of its own.
    #[test]
    fn the_kernel_takes_and_lists_associations_and_policies() {
        let Ok(network) = Network::with_loopback() else {
            eprintln!("skipped: no right to create a network namespace");
            return;
        };
        std::thread::spawn(move || {
            network.enter().unwrap();
            let mut xfrm = match Xfrm::open() {
                Ok(xfrm) => xfrm,
                Err(error) => {
                    eprintln!("skipped: the kernel has no XFRM: {error}");
                    return;
                }
            };
            let [local, peer] = policy().ends;
            xfrm.add_policy(&policy()).unwrap();
            let twice = xfrm.add_policy(&policy()).unwrap_err();
            assert_eq!(twice.raw_os_error(), Some(libc::EEXIST));
            xfrm.replace_policy(&XfrmPolicy {
                spi: 0x2000,
                ..policy()
            })
            .unwrap();
            let forwarded = XfrmPolicy {
                direction: XfrmDirection::Forward,
                ..policy()
            };
            xfrm.add_policy(&forwarded).unwrap();
            let foreign = XfrmPolicy {
                direction: XfrmDirection::In,
                request: 1,
                ..policy()
            };
            xfrm.add_policy(&foreign).unwrap();
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            bypass_policies(std::os::fd::AsFd::as_fd(&socket), false).unwrap();
            let mut states = 0;
            match xfrm.add_state(&gcm(&[7; 20])) {
                Ok(()) => {
                    states = 1;
                    let counts = xfrm.counts(0xc123_4567, peer).unwrap();
                    assert_eq!(counts, Some(XfrmCounts::default()));
                }
                Err(error) => {
                    let known = [XfrmRefusal::NoEsp, XfrmRefusal::NoAlgorithm];
                    assert!(known.contains(&XfrmRefusal::of(&error)), "{error}");
                }
            }
            let requests = REQUEST..=REQUEST;
            let elsewhere = "192.0.2.9".parse().unwrap();
            assert_eq!(xfrm.flush(requests.clone(), elsewhere).unwrap(), (0, 0));
            assert_eq!(xfrm.flush(requests.clone(), local).unwrap(), (2, states));
            assert_eq!(xfrm.flush(requests, local).unwrap(), (0, 0));
            assert_eq!(xfrm.flush(1..=1, local).unwrap(), (1, 0));
            assert_eq!(xfrm.counts(0xc123_4567, peer).unwrap(), None);
            xfrm.delete_state(0xc123_4567, peer).unwrap();
            xfrm.delete_policy(&policy()).unwrap();
        })
        .join()
        .unwrap();
    }
}
