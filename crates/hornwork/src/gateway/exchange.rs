//! The gateway as the user of a key exchange: its events become commands to the packet thread, figures and events of
//! the log.

use super::figures::GatewayFigures;
use super::loops::PeerRoutes;
use super::packets::{Command, Commands};
use crate::ike::{ExchangePlan, ExchangeTunnel, PacketPlan, SaEvent, SaSink};
use crate::log::EventLog;
use config::{GatewaySpec, IkeSpec};
use engine::{Event, EventKind};
use net::Clock;
use protect::esp::EspSuite;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use wire::esp::NAT_TRAVERSAL_PORT;

/// The key exchange of a gateway.
pub(super) fn exchange_plan(gateway: &GatewaySpec, ike: &IkeSpec) -> ExchangePlan {
    let tunnels = gateway.tunnels.iter().filter_map(|tunnel| {
        Some(ExchangeTunnel {
            name: tunnel.name.clone(),
            peer: tunnel.peer,
            // Each tunnel of a gateway with a key exchange has it.
            ike: tunnel.ike.clone()?,
            local_networks: tunnel.local_networks.clone(),
            remote_networks: tunnel.remote_networks.clone(),
            limits: tunnel.limits.clone(),
        })
    });
    ExchangePlan {
        name: "[gateway.ike]".to_owned(),
        local: gateway.local,
        uses_port_500: gateway.local.port() == NAT_TRAVERSAL_PORT,
        has_kernel_policies: false,
        ike: ike.clone(),
        packets: PacketPlan {
            lifetime: gateway.lifetime,
            dscp: gateway.dscp,
            allow_weak: gateway.allow_weak,
            replay_window: gateway.replay_window,
        },
        tunnels: tunnels.collect(),
    }
}

/// Takes the events of the key exchange.
pub(super) struct GatewaySink {
    pub(super) routes: PeerRoutes,
    pub(super) names: Vec<String>,
    pub(super) commands: Commands,
    pub(super) figures: Arc<GatewayFigures>,
    pub(super) log: EventLog,
    pub(super) clock: Clock,
    /// Weak algorithms of associations, each logged once.
    pub(super) weak: BTreeSet<String>,
}

impl GatewaySink {
    fn name(&self, tunnel: usize) -> String {
        self.names.get(tunnel).cloned().unwrap_or_default()
    }

    fn log(&self, kind: EventKind) {
        self.log.event(&Event::new(self.clock.now(), kind));
    }

    /// Logs the algorithms of a new association if they are weak, and were not logged before.
    fn log_weak(&mut self, suite: EspSuite) {
        let algorithms = suite.to_string();
        if suite.is_weak() && self.weak.insert(algorithms.clone()) {
            self.log(EventKind::GatewayWeakAlgorithms { algorithms });
        }
    }

    /// Whether packets to a peer would be routed into a tunnel, which is logged.
    fn loops(&mut self, tunnel: Option<usize>, peer: IpAddr) -> bool {
        let Some(network) = self.routes.looping(peer) else {
            return false;
        };
        let name = tunnel.map_or_else(String::new, |tunnel| self.name(tunnel));
        let event = self.routes.refused(name, (peer, network), self.clock.now());
        if let Some(event) = event {
            self.log(event);
        }
        true
    }
}

impl SaSink for GatewaySink {
    fn take(&mut self, event: SaEvent) {
        match event {
            SaEvent::Installed(pair) => {
                self.log_weak(pair.outbound.spec().suite);
                self.commands.send(Command::Install(pair));
            }
            SaEvent::Sealing {
                tunnel,
                spi,
                peer,
                algorithms,
                identity,
            } => {
                if self.loops(Some(tunnel), peer.ip()) {
                    return;
                }
                self.commands.send(Command::SealWith { tunnel, spi, peer });
                let now = self.clock.now();
                self.figures.change_tunnel(tunnel, |state| {
                    if !state.up {
                        state.since = now;
                    }
                    state.up = true;
                    state.peer = Some(peer);
                    state.algorithms.clone_from(&algorithms);
                    if let Some(identity) = &identity {
                        identity.clone_into(&mut state.identity);
                    }
                });
                let (spi, tunnel) = (format!("{spi:#010x}"), self.name(tunnel));
                self.log(match identity {
                    Some(identity) => EventKind::GatewayTunnelUp {
                        tunnel,
                        peer: peer.to_string(),
                        identity,
                        algorithms,
                        spi,
                    },
                    None => EventKind::GatewayRekeyed {
                        tunnel,
                        spi,
                        reason: "key_exchange".to_owned(),
                    },
                });
            }
            SaEvent::Deleted { spis, at_once } => {
                self.commands.send(Command::Remove(spis, at_once));
            }
            SaEvent::Down { tunnel } => {
                let now = self.clock.now();
                self.figures.change_tunnel(tunnel, |state| {
                    state.up = false;
                    state.since = now;
                });
                let tunnel = self.name(tunnel);
                self.log(EventKind::GatewayTunnelDown { tunnel });
            }
            SaEvent::Message(message, to) => self.commands.send(Command::Send(message, to)),
            SaEvent::Problem {
                tunnel,
                problem,
                suppressed,
            } => self.log(EventKind::GatewayIkeProblem {
                tunnel: tunnel.map_or_else(String::new, |tunnel| self.name(tunnel)),
                problem,
                suppressed,
            }),
            SaEvent::Failed { reason } => self.log(EventKind::GatewayIkeFailed { reason }),
        }
    }

    /// A peer that begins is refused by silence: an answer would go into a tunnel.
    fn may_send_to(&mut self, peer: IpAddr) -> bool {
        !self.loops(None, peer)
    }
}
