//! The tunnel of a trial whose border has `[gateway]` of its own: addresses and devices of both sides, the gateway of
//! the callers, and the counts of the border's.

use super::protected::{CALLERS, MTU, NAMES, address, cannot, in_network_of, run};
use crate::decimal::counted;
use crate::error::LabError;
use crate::esp::border_tunnel::{BorderTunnel, DEVICE, TunnelAddresses};
use crate::esp::callers_gateway::{CallersGateway, CallersGatewayCount, ROOM};
use crate::experiment::Protection;
use crate::sut::{BorderGatewayCount, PROTECTED_BORDER as BORDER, ProgramPlan, RunningSut};
use engine::Entropy;
use net::{EspSocket, EspSocketKind, Network, TunDevice, interface_counters};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Addresses of the outer packets, as on a line of `tunnelled.rs`: of the callers, and of the border.
pub(super) const OUTER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 96, 0, 1), Ipv4Addr::new(10, 96, 0, 2)];
/// The callers' end of the wire; the border's is the second one of [`NAMES`].
const WIRE: &str = "wire0";
/// Addresses of the ends of the wire, so that nothing but ESP packets passes it: no ARP.
const ETHERNET: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
/// The border's gateway publishes its counts ten times a second.
const PUBLISHED: Duration = Duration::from_millis(250);

/// Counts at the end of a trial.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TunnelToBorderEnd {
    /// Packets that either gateway refused.
    pub(super) refused: u64,
    /// Packets on the wire that are none of the border's gateway; `None` over a link, which has faults.
    pub(super) clear: Option<u64>,
    /// Packets of media that passed straight between ESP and the forwarder.
    pub(super) direct: u64,
    /// CPU time of the gateway's thread, seconds, and its packets; `None` where the border's thread does that work.
    pub(super) work: Option<(f64, u64)>,
    /// Packets that the kernel refused to send for the callers' gateway.
    unsent: u64,
    /// ESP packets that the kernel dropped before that gateway read them.
    kernel_drops: u64,
}

impl TunnelToBorderEnd {
    /// The reasons why the callers' gateway lost packets, which are none of the system under test.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.unsent > 0 {
            faults.push(format!(
                "the ESP gateway of the callers: the kernel refused to send {}",
                counted(self.unsent, "packet")
            ));
        }
        faults.extend(gateway_drops("callers", self.kernel_drops));
        faults
    }
}

/// The reason, if the kernel dropped packets of a side before its gateway read them.
pub(super) fn gateway_drops(side: &str, packets: u64) -> Option<String> {
    (packets > 0).then(|| {
        format!(
            "the ESP gateway of the {side} cannot keep up: the kernel dropped {} before they were read",
            counted(packets, "packet")
        )
    })
}

/// The tunnel.
#[derive(Debug)]
pub(super) struct TunnelToBorder {
    tunnel: BorderTunnel,
    callers: CallersGateway,
    /// Packets that have passed the wire before the trial; `None` over a link.
    before: Option<u64>,
    /// Counts of the border's gateway, and packets on the wire, when the calls had ended.
    read: Option<(BorderGatewayCount, Option<u64>)>,
}

/// Packets that have passed the border's end of the wire, both ways.
fn wire_packets() -> Result<u64, LabError> {
    let counters = interface_counters(NAMES[1]).map_err(|error| cannot("counters", error))?;
    Ok(counters.received_packets + counters.sent_packets)
}

/// Connects the namespace of the callers with that of the calling thread by a pair of virtual Ethernet interfaces.
fn connect(callers: &Network) -> Result<(), LabError> {
    let end = |name: &str, (own, mac): (Ipv4Addr, &str), (peer, peer_mac): (Ipv4Addr, &str)| {
        run(&[
            &format!("link set {name} address {mac} addrgenmode none"),
            &format!("addr add {own}/24 dev {name}"),
            &format!("link set {name} up"),
            &format!("neigh add {peer} lladdr {peer_mac} dev {name} nud permanent"),
        ])
    };
    let [near, far] = OUTER;
    let [near_mac, far_mac] = ETHERNET;
    run(&[
        &format!("link add {} type veth peer name {WIRE}", NAMES[1]),
        &format!("link set {WIRE} netns {}", callers.path().display()),
    ])?;
    in_network_of(Some(callers), || {
        end(WIRE, (near, near_mac), (far, far_mac))
    })?;
    end(NAMES[1], (far, far_mac), (near, near_mac))
}

impl TunnelToBorder {
    /// Sets the tunnel up, on a wire of its own between the callers and the namespace of the calling thread, or on the
    /// line to that of `border`. `None`: the border has no gateway.
    ///
    /// # Errors
    /// A right is missing.
    pub(super) fn open(
        protection: &Protection,
        callers: &Network,
        border: Option<&Network>,
        entropy: &mut Entropy,
    ) -> Result<Option<TunnelToBorder>, LabError> {
        let Some((case, media)) = protection.border_gateway() else {
            return Ok(None);
        };
        let addresses = TunnelAddresses {
            outer: OUTER,
            inner: [CALLERS, BORDER],
        };
        let tunnel = BorderTunnel::new(case, media, addresses, entropy);
        if border.is_none() {
            connect(callers)?;
        }
        // The border makes routes and attaches to its device, which exists so that the kernel sends no packets of its
        // own (IPv6) to it.
        in_network_of(border, || {
            run(&[
                &format!("addr add {BORDER}/32 dev lo"),
                &format!("tuntap add dev {DEVICE} mode tun"),
                &format!("link set {DEVICE} addrgenmode none"),
            ])
        })?;
        let [outer, _] = OUTER;
        let (tun, socket) = in_network_of(Some(callers), || {
            let tun = TunDevice::create(NAMES[0]).map_err(|error| cannot("TUN", error))?;
            run(&[&format!("link set {} addrgenmode none", NAMES[0])])?;
            address(NAMES[0], CALLERS)?;
            let local = SocketAddr::from((outer, 0));
            let socket = EspSocket::open(EspSocketKind::Ip, local, ROOM)
                .map_err(|error| cannot("a raw socket for IP protocol 50", error))?;
            Ok((tun, socket))
        })?;
        let ends = tunnel.callers_end(entropy)?;
        let started = CallersGateway::start(tun, socket, OUTER, ends);
        Ok(Some(TunnelToBorder {
            callers: started.map_err(|error| cannot("a thread", error))?,
            before: match border {
                Some(_) => None,
                None => Some(wire_packets()?),
            },
            tunnel,
            read: None,
        }))
    }

    /// Parts of the border's configuration.
    pub(super) fn plan(&self) -> ProgramPlan<'_> {
        ProgramPlan {
            tunnel: Some(&self.tunnel),
        }
    }

    /// `[gateway] media` of the border.
    pub(super) fn media(&self) -> &'static str {
        self.tunnel.media()
    }

    /// Reads the counts of the border, whose calls have ended, in its namespace.
    ///
    /// # Errors
    /// The border has ended.
    pub(super) fn read(&mut self, sut: &RunningSut) -> Result<(), LabError> {
        std::thread::sleep(PUBLISHED);
        let wire = self.before.map(|_| wire_packets()).transpose()?;
        self.read = sut.gateway()?.map(|count| (count, wire));
        Ok(())
    }

    /// Ends the gateway of the callers.
    ///
    /// # Errors
    /// It has failed.
    pub(super) fn finish(self) -> Result<TunnelToBorderEnd, LabError> {
        let callers = self.callers.finish();
        let callers = callers.map_err(|why| cannot("the callers' gateway", why))?;
        let (border, wire) = self.read.unwrap_or_default();
        let passed = wire.zip(self.before);
        let passed = passed.map(|(after, before)| after.saturating_sub(before));
        Ok(end_of(self.tunnel.media(), callers, (border, passed)))
    }
}

/// The figures of both gateways; `passed` packets were on the wire.
fn end_of(
    media: &str,
    callers: CallersGatewayCount,
    (border, passed): (BorderGatewayCount, Option<u64>),
) -> TunnelToBorderEnd {
    let packets = border.sealed + border.opened;
    // Refused ones have passed the wire, too.
    let own = packets + border.refused;
    // With direct media the border's thread seals and opens between its other work.
    let seconds = border.cpu_seconds.filter(|_| media == "kernel");
    TunnelToBorderEnd {
        refused: callers.refused + border.refused,
        clear: passed.map(|passed| passed.saturating_sub(own)),
        direct: border.direct,
        work: seconds.map(|seconds| (seconds, packets)),
        unsent: callers.unsent,
        kernel_drops: callers.kernel_drops,
    }
}

/// Longest packet that passes the tunnel in one piece.
const _: () = assert!(MTU + 100 <= 1_500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_the_clear_are_those_that_no_gateway_has_counted() {
        let callers = CallersGatewayCount {
            refused: 1,
            ..CallersGatewayCount::default()
        };
        let lossy = CallersGatewayCount {
            unsent: 4,
            kernel_drops: 1,
            ..CallersGatewayCount::default()
        };
        let border = BorderGatewayCount {
            sealed: 100,
            opened: 90,
            direct: 0,
            refused: 2,
            cpu_seconds: Some(0.5),
        };
        let end = end_of("kernel", callers, (border, Some(192)));
        assert_eq!((end.refused, end.clear), (3, Some(0)));
        assert_eq!(end.work, Some((0.5, 190)));
        let end = end_of("direct", callers, (border, Some(200)));
        assert_eq!((end.clear, end.work), (Some(8), None));
        assert!(end.faults().is_empty());
        let faults = end_of("direct", lossy, (border, None)).faults();
        assert!(
            faults[0].ends_with("refused to send 4 packets"),
            "{faults:?}"
        );
        assert!(
            faults[1].contains("cannot keep up: the kernel dropped 1 packet "),
            "{faults:?}"
        );
        // A link duplicates packets.
        assert_eq!(end_of("kernel", callers, (border, None)).clear, None);
    }
}
