//! The checked configuration.

use super::alarms::AlarmsSpec;
use super::codecs::Transcoding;
use super::conferences::ConferenceSpec;
use super::console::ConsoleSpec;
use super::control::ControlSpec;
use super::dns::Dns;
use super::drain::Drain;
use super::gateway::GatewaySpec;
use super::interfaces::{Authenticate, InterfaceKind, InterfaceSpec, Register};
use super::limits::AdmissionLimits;
use super::log::LogSpec;
use super::media::MediaSpec;
use super::media_addresses::MediaRange;
use super::metrics::MetricsSpec;
use super::names::{InterfaceId, TrunkId};
use super::ng_client::{MediaNodePolicy, MediaNodeSpec};
use super::ng_server::NgServerSpec;
use super::realm::Realm;
use super::records::RecordsSpec;
use super::registrar::{Registrar, RegistrarStore};
use super::renamed::RenamedKeyWarning;
use super::routes::{MediaMode, RouteSpec};
use super::rules::IdentityPolicy;
use super::security::MediaSecurity;
use super::session_timer::SessionTimer;
use super::sip::Sip;
use super::store::StoreSpec;
use super::threads::Threads;
use super::traces::TracesSpec;
use super::trunks::Trunk;
use super::users::{NumberOwners, UserSpec};
use core::cmp::Reverse;
use engine::{Limits, Transport};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A checked configuration. Every index in it is valid.
#[derive(Clone, Debug)]
pub struct Config {
    /// Interfaces, in the order of the file; at least one, unless there is an ng server or a gateway.
    pub interfaces: Vec<InterfaceSpec>,
    /// Media for other systems.
    pub ng_server: Option<NgServerSpec>,
    /// Media nodes that relay media for this border; empty if media is anchored here.
    pub media_nodes: Vec<MediaNodeSpec>,
    /// Settings common to all media nodes.
    pub media_node_policy: MediaNodePolicy,
    /// Systems that calls are sent to.
    pub trunks: Vec<Trunk>,
    /// Routes, tried in order.
    pub routes: Vec<RouteSpec>,
    /// Conferences, matched before routes.
    pub conferences: Vec<Arc<ConferenceSpec>>,
    /// Header rules, compiled.
    pub rules: ::rules::RuleSet,
    /// Identities at the boundary of the trust domain.
    pub identity: IdentityPolicy,
    /// Users by name: they may register, and call with digest.
    pub users: BTreeMap<String, UserSpec>,
    /// Owners of the numbers of users.
    pub number_owners: NumberOwners,
    /// Digest authentication of requests.
    pub realm: Realm,
    /// The embedded registrar.
    pub registrar: Registrar,
    /// Storage of registrations over a restart.
    pub registrar_store: RegistrarStore,
    /// Media that interfaces anchor.
    pub media: MediaSpec,
    /// Distinct ranges of media ports, referred to by index.
    pub media_ranges: Vec<MediaRange>,
    /// For each of them, the bytes of the text that define it, or the interface that has it by default.
    pub media_places: Vec<core::ops::Range<usize>>,
    /// SIP behaviour that is common to all interfaces.
    pub sip: Sip,
    /// Scheduling of worker threads.
    pub threads: Threads,
    /// Session timers (RFC 4028).
    pub session_timer: SessionTimer,
    /// Capacities.
    pub limits: Limits,
    /// Limits of memory and CPU time.
    pub admission: AdmissionLimits,
    /// DNS servers.
    pub dns: Dns,
    /// Operator commands and control of conferences.
    pub control: Option<ControlSpec>,
    /// The history of calls, messages and events.
    pub store: Option<StoreSpec>,
    /// Call records.
    pub records: Option<RecordsSpec>,
    /// Metrics.
    pub metrics: Option<MetricsSpec>,
    /// Receivers of alarms outside of the border.
    pub alarms: Option<AlarmsSpec>,
    /// OpenTelemetry traces of calls.
    pub traces: Option<TracesSpec>,
    /// The web console.
    pub console: Option<ConsoleSpec>,
    /// The IPsec gateway.
    pub gateway: Option<GatewaySpec>,
    /// Graceful shutdown.
    pub drain: Drain,
    /// Logging.
    pub log: LogSpec,
    /// Warnings about keys and values under their former names.
    pub renamed_keys: Vec<RenamedKeyWarning>,
}

impl Config {
    /// Addresses with media ports, each once.
    pub fn media_addresses(&self) -> Vec<IpAddr> {
        let ranges = self.media_ranges.iter();
        let mut addresses: Vec<IpAddr> = ranges.map(|range| range.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// The interface of an index.
    pub fn interface(&self, id: InterfaceId) -> Option<&InterfaceSpec> {
        self.interfaces.get(usize::from(id.0))
    }

    /// The name of a trunk; `None` without one.
    pub fn name_of_trunk(&self, id: Option<TrunkId>) -> Option<String> {
        self.trunk(id?).map(|trunk| trunk.name.clone())
    }

    /// The name of an interface; empty for one that was removed.
    pub fn interface_name(&self, id: InterfaceId) -> String {
        self.interface(id)
            .map_or_else(String::new, |interface| interface.name.clone())
    }

    /// The trunk of an index.
    pub fn trunk(&self, id: TrunkId) -> Option<&Trunk> {
        self.trunks.get(usize::from(id.0))
    }

    /// Whether a peer is trusted with asserted identities (RFC 3325 section 2.3): by the setting of the trunk,
    /// otherwise that of the interface.
    pub fn trusts(&self, interface: InterfaceId, trunk: Option<TrunkId>) -> bool {
        match trunk.and_then(|trunk| self.trunk(trunk)) {
            Some(trunk) => trunk.trusted,
            None => self
                .interface(interface)
                .is_some_and(|interface| interface.trusted),
        }
    }

    /// Headers that topology hiding passes unchanged to an interface; `None` if nothing is hidden from it.
    pub fn hiding(&self, interface: InterfaceId) -> Option<&[Box<str>]> {
        let interface = self.interface(interface).filter(|known| known.hides)?;
        Some(&interface.pass_headers)
    }

    /// The peer of a message, as seen by header rules.
    pub fn peer_ref(&self, interface: InterfaceId, trunk: Option<TrunkId>) -> ::rules::PeerRef {
        let core = self
            .interface(interface)
            .is_some_and(|interface| interface.kind == InterfaceKind::Core);
        ::rules::PeerRef {
            interface: interface.0,
            kind: match (trunk, core) {
                (Some(_), _) => ::rules::PeerKind::Trunk,
                (None, true) => ::rules::PeerKind::Core,
                (None, false) => ::rules::PeerKind::Access,
            },
            trunk: trunk.map(|trunk| trunk.0),
        }
    }

    /// The index of the interface of this name.
    pub fn interface_named(&self, name: &str) -> Option<InterfaceId> {
        let at = self.interfaces.iter().position(|i| i.name == name)?;
        u16::try_from(at).ok().map(InterfaceId)
    }

    /// The index of the trunk of this name.
    pub fn trunk_named(&self, name: &str) -> Option<TrunkId> {
        let at = self.trunks.iter().position(|t| t.name == name)?;
        u16::try_from(at).ok().map(TrunkId)
    }

    /// Media security towards a side of a call.
    pub fn security(
        &self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
    ) -> Option<&Arc<MediaSecurity>> {
        match trunk.and_then(|trunk| self.trunk(trunk)) {
            Some(trunk) => Some(&trunk.security),
            None => Some(&self.interface(interface)?.security),
        }
    }

    /// Transcoding towards a side of a call.
    pub fn transcoding(
        &self,
        interface: InterfaceId,
        trunk: Option<TrunkId>,
    ) -> Option<&Arc<Transcoding>> {
        match trunk.and_then(|trunk| self.trunk(trunk)) {
            Some(trunk) => Some(&trunk.transcoding),
            None => Some(&self.interface(interface)?.transcoding),
        }
    }

    /// Whether any side may use DTLS, for which the border needs a certificate.
    pub fn may_use_dtls(&self) -> bool {
        let interfaces = self.interfaces.iter().map(|interface| &interface.security);
        let trunks = self.trunks.iter().map(|trunk| &trunk.security);
        interfaces
            .chain(trunks)
            .any(|security| security.may_use_dtls())
    }

    /// Hints about SRTP keys in session descriptions over unencrypted signalling.
    fn srtp_key_hints(&self, hints: &mut Vec<String>) {
        let open = |transport: Transport| {
            matches!(transport, Transport::Udp | Transport::Tcp | Transport::Ws)
        };
        let remedy = "an eavesdropper on the signalling can decrypt the media; use tls: or wss:, or srtp_keying = \"dtls\"";
        for interface in self
            .interfaces
            .iter()
            .filter(|interface| interface.security.tells_keys())
        {
            if let Some(listen) = interface
                .listen
                .iter()
                .find(|listen| open(listen.transport))
            {
                hints.push(format!(
                    "interface {}: SRTP keys are sent in session descriptions, and {listen} is not encrypted: {remedy}",
                    interface.name
                ));
            }
        }
        for trunk in self
            .trunks
            .iter()
            .filter(|trunk| trunk.security.tells_keys())
        {
            if trunk
                .targets
                .iter()
                .any(|target| target.transport.is_none_or(open))
            {
                hints.push(format!(
                    "trunk {}: SRTP keys are sent in session descriptions, and signalling to it may be unencrypted: {remedy}",
                    trunk.name
                ));
            }
        }
    }

    /// The hint about users that no interface serves.
    fn unused_users(&self) -> Option<String> {
        let mut interfaces = self.interfaces.iter();
        let is_served = interfaces.any(|interface| {
            interface.authenticate == Authenticate::Digest || interface.register == Register::Local
        });
        (!self.users.is_empty() && !is_served).then(|| {
            "no phone can register or authenticate as a [[user]]: no interface has authenticate = \"digest\" or register = \"local\"; set authenticate = \"digest\" at the interface of the phones, or remove the users".to_owned()
        })
    }

    /// The user of a name or number.
    pub fn user_called(&self, called: &str) -> Option<&UserSpec> {
        self.users
            .get(called)
            .or_else(|| self.users.get(self.number_owners.owner(called)?))
    }

    /// The prefixes in `numbers` of the users.
    pub fn number_prefixes(&self) -> Vec<Box<str>> {
        self.number_owners.prefixes().map(Into::into).collect()
    }

    /// Hints about settings that are valid but may be unintended.
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        self.srtp_key_hints(&mut hints);
        hints.extend(self.unused_users());
        hints.extend(self.contradictions());
        // Media nodes have addresses of their own, and with media bypass the sides send to each other.
        let bypassed = |route: &RouteSpec| route.media == MediaMode::Bypass;
        let is_anchored = self.routes.is_empty() || !self.routes.iter().all(bypassed);
        if is_anchored && !self.media.at_nodes {
            let interfaces = self.interfaces.iter();
            hints.extend(interfaces.filter_map(InterfaceSpec::half_advertised));
        }
        for interface in &self.interfaces {
            let name = &interface.name;
            for listen in &interface.listen {
                let port = listen.address.port();
                if port < 1024 {
                    hints.push(format!(
                        "interface {name}: port {port} is below 1024: an unprivileged user needs CAP_NET_BIND_SERVICE to open it"
                    ));
                }
            }
        }
        hints
    }

    /// Whether a source is this trunk by a network of its `sources` only, and a target of another trunk at the same
    /// interface has a name, which may have the address of the source.
    pub fn is_by_network(&self, id: TrunkId, source: SocketAddr, transport: Transport) -> bool {
        let Some(trunk) = self.trunk(id) else {
            return false;
        };
        let is_named = |other: &Trunk| {
            let mut targets = other.targets.iter();
            other.name != trunk.name
                && other.interface == trunk.interface
                && targets.any(|target| target.host.ip().is_none())
        };
        trunk.closeness(source, transport, None) != Some(u8::MAX)
            && self.trunks.iter().any(is_named)
    }

    /// The trunk of a request that arrived on `interface` from `source`: by the exact address and port of a target,
    /// otherwise by the longest prefix of its `sources`; of several the first of the file. On stream transports the
    /// port is ignored. On a TLS connection opened by the peer, `proven` are the domains of its verified certificate:
    /// a trunk with client names is identified by them alone.
    pub fn trunk_of(
        &self,
        interface: InterfaceId,
        source: SocketAddr,
        transport: Transport,
        proven: Option<&[String]>,
    ) -> Option<TrunkId> {
        let matching = self
            .trunks
            .iter()
            .enumerate()
            .filter(|(_, trunk)| trunk.interface == interface)
            .filter_map(|(at, trunk)| Some((at, trunk.closeness(source, transport, proven)?)));
        let (at, _) = matching.min_by_key(|(_, closeness)| Reverse(*closeness))?;
        u16::try_from(at).ok().map(TrunkId)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// One-way audio, or calls that end after the answer.
    #[test]
    fn public_address_in_one_place_only_is_hinted_at() {
        let hints = |address: &str, advertise: &str, media: &str| {
            let text = format!(
                "[[interface]]\nname=\"a\"\nkind=\"core\"\nlisten=\"udp:{address}\"\n{advertise}\nmedia={{{media}}}\n"
            );
            parse(&text, "f").unwrap().hints().join("\n")
        };
        let (private, public) = ("192.168.1.10", "advertise=\"203.0.113.7\"");
        assert!(hints(private, public, "").contains("session descriptions have 192.168.1.10"));
        assert!(hints(private, "", public).contains("Contact has 192.168.1.10"));
        for (address, advertise, media) in [
            (private, public, public),
            (private, "", ""),
            (private, "advertise=\"10.0.0.1\"", ""),
            (private, "advertise=\"sip.example.com\"", public),
            ("203.0.113.7", public, ""),
        ] {
            assert_eq!(
                hints(address, advertise, media),
                "",
                "{address} {advertise} {media}"
            );
        }
    }

    /// Users without an interface that serves them have no effect.
    #[test]
    fn users_that_no_interface_serves_are_hinted_at() {
        let hints = |more: &str| {
            let text = format!(
                "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1\"\n{more}\n[[user]]\nname=\"1\"\npassword=\"x\"\n"
            );
            parse(&text, "f").unwrap().hints().join("\n")
        };
        assert!(hints("").contains("no phone can register or authenticate"));
        assert_eq!(hints("authenticate=\"digest\""), "");
        assert_eq!(hints("register=\"local\""), "");
    }

    /// A trunk with a wide network does not take the requests of the others in it.
    #[test]
    fn requests_belong_to_the_trunk_with_the_closest_address() {
        let text = "[[interface]]\nname=\"a\"\nlisten=[\"udp:192.0.2.1\",\"tcp:192.0.2.1\"]\n\
             [[trunk]]\nname=\"wide\"\ntarget=\"198.51.100.10\"\nsources=[\"198.51.100.0/24\",\"2001:db8::/32\"]\n\
             [[trunk]]\nname=\"near\"\ntarget=\"carrier.example\"\nsources=[\"198.51.100.128/25\",\"2001:db8:1::/48\"]\n\
             [[trunk]]\nname=\"exact\"\ntarget=\"198.51.100.200:5070\"\n\
             [[trunk]]\nname=\"same\"\ntarget=\"198.51.100.10\"\n";
        let config = parse(text, "f").unwrap();
        for (source, transport, name) in [
            ("198.51.100.20:5060", Transport::Udp, "wide"),
            ("198.51.100.129:5060", Transport::Udp, "near"),
            ("198.51.100.200:5070", Transport::Udp, "exact"),
            ("198.51.100.200:5071", Transport::Udp, "near"),
            ("198.51.100.200:5071", Transport::Tcp, "exact"),
            ("198.51.100.10:5060", Transport::Udp, "wide"),
            ("[2001:db8:1::7]:5060", Transport::Udp, "near"),
            ("[2001:db8:2::7]:5060", Transport::Udp, "wide"),
        ] {
            let source = source.parse().unwrap();
            let found = config.trunk_of(InterfaceId(0), source, transport, None);
            assert_eq!(
                config.name_of_trunk(found).as_deref(),
                Some(name),
                "{source}"
            );
        }
    }
}
