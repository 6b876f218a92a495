//! Protection of calls on the access side, by number, so that a sweep can set it.

use super::{Callers, Experiment, MediaKind, SutMedia, TransportName};
use crate::esp::{EspCarriage, EspCase, tunnel_format};
use crate::study_c::{PROTECTIONS, StudyProtection, overhead};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use sim::TunnelFormat;

/// Protection between callers and border.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protection {
    /// The number, or the name in brackets. 0: `none`; 1: SRTP with keys in SDP (`srtp`); 2: SRTP with a DTLS handshake
    /// (`dtls-srtp`); 3: TLS for signalling (`tls`); 4: TLS, and SRTP with keys in SDP (`tls-srtp`). ESP from 10 on:
    /// transport mode (even) and tunnel mode (odd) with 10, 11: AES-128-CBC and HMAC-SHA1-96 (`esp-aes-cbc-sha1`,
    /// `esp-aes-cbc-sha1-tunnel`); 12, 13: AES-128-GCM (`esp-aes-gcm`); 14, 15: AES-128-CBC and HMAC-SHA2-256-128
    /// (`esp-aes-cbc-sha256`); 16, 17: ChaCha20-Poly1305 (`esp-chacha20-poly1305`); 18, 19: 3DES and HMAC-SHA1-96
    /// (`esp-3des-sha1`). From 20 on the modules of study C, each behind a stateful firewall: 20: the `firewall` alone;
    /// OpenVPN with 21: `openvpn-des`; 22: `openvpn-3des`; 23: `openvpn-aes-128`; 24: `openvpn-aes-256`; 25:
    /// `openvpn-blowfish`; 26: `openvpn-rc2`; 27: `wireguard`; 28: `strongswan`.
    #[serde(deserialize_with = "number_or_name")]
    pub kind: u8,
    /// Border and gateway on sockets. `direct` and `kernel`: the border is a program of its own, `hornwork run`, in
    /// tunnel mode of ESP with `[gateway]` and manual keys; `[gateway] media` has this value, so that media of calls
    /// pass straight between ESP and the border's forwarder, or by the TUN device and the sockets of the kernel. `lab`:
    /// the border is a thread of the test lab, behind a gateway of the test lab. The product has no gateway in
    /// transport mode: that of the test lab is used.
    #[serde(skip_serializing_if = "BorderGateway::is_default")]
    pub gateway: BorderGateway,
}

/// Gateway of the border's side on sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BorderGateway {
    /// That of the border; media pass straight between ESP and the forwarder.
    #[default]
    Direct,
    /// That of the border; media pass its TUN device and the kernel's sockets.
    Kernel,
    /// One of the test lab, before a border that is a thread of the test lab.
    Lab,
}

impl BorderGateway {
    /// `[gateway] media` of the border; `None`: the gateway is one of the test lab.
    pub const fn media(self) -> Option<&'static str> {
        match self {
            BorderGateway::Direct => Some("direct"),
            BorderGateway::Kernel => Some("kernel"),
            BorderGateway::Lab => None,
        }
    }

    /// Takes `&self` for serde.
    fn is_default(&self) -> bool {
        *self == BorderGateway::default()
    }
}

/// Algorithms of the ESP kinds, two numbers each.
const SUITES: [&str; 5] = [
    "aes-cbc-sha1",
    "aes-gcm",
    "aes-cbc-sha256",
    "chacha20-poly1305",
    "3des-sha1",
];
/// Number of the first of them.
const FIRST_ESP: u8 = 10;
/// Number of the first module of study C, which is the firewall.
const FIRST_MODULE: u8 = 20;
/// Modules of study C with a number here; the other protections of the study have one as SRTP and ESP.
const MODULES: usize = 9;

/// Reads `protection.kind`.
fn number_or_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Kind {
        Number(i64),
        Name(String),
    }
    match Kind::deserialize(deserializer)? {
        Kind::Number(number) => u8::try_from(number)
            .map_err(|_| D::Error::custom(format!("protection.kind: {number} is unknown"))),
        Kind::Name(name) => Protection::from_name(&name).map_or_else(
            || {
                let names: Vec<String> = Protection::all().map(|known| known.key()).collect();
                Err(D::Error::custom(format!(
                    "protection.kind: {name:?} is none of {}",
                    names.join(", ")
                )))
            },
            |protection| Ok(protection.kind),
        ),
    }
}

impl Protection {
    /// The protection of this number, with the border's own gateway.
    pub fn of(kind: u8) -> Protection {
        Protection {
            kind,
            ..Protection::default()
        }
    }

    /// Algorithms and `[gateway] media` of the border's own gateway on sockets; `None` without one.
    pub fn border_gateway(&self) -> Option<(&'static EspCase, &'static str)> {
        match (self.esp()?, self.gateway.media()) {
            ((case, EspCarriage::Tunnel), Some(media)) => Some((case, media)),
            _ => None,
        }
    }

    /// Whether the border is a program of its own on sockets. Behind a link or a tunnel of study C it is one with a
    /// gateway only: these experiments do not compare its CPU time.
    pub fn has_border_program(&self, experiment: &Experiment) -> bool {
        let is_own = self.gateway != BorderGateway::Lab && !experiment.sut.direct;
        let has_line = self.has_line(experiment.network.is_set());
        is_own && (!has_line || self.border_gateway().is_some())
    }

    /// Whether the number has a meaning.
    pub fn is_known(&self) -> bool {
        self.kind <= 4 || self.esp().is_some() || self.module().is_some()
    }

    /// All protections, by number.
    pub fn all() -> impl Iterator<Item = Protection> {
        let all = (0..=u8::MAX).map(Protection::of);
        all.filter(Protection::is_known)
    }

    /// The protection of this name in experiment files.
    pub fn from_name(name: &str) -> Option<Protection> {
        Protection::all().find(|known| known.key() == name)
    }

    /// Its name in experiment files.
    pub fn key(&self) -> String {
        match (self.kind, self.esp(), self.module()) {
            (_, Some((case, EspCarriage::Tunnel)), _) => format!("esp-{}-tunnel", case.name),
            (_, Some((case, _)), _) => format!("esp-{}", case.name),
            (_, _, Some(module)) if module.is_openvpn() => format!("openvpn-{}", module.name),
            (_, _, Some(module)) => module.name.to_owned(),
            (1, ..) => "srtp".to_owned(),
            (2, ..) => "dtls-srtp".to_owned(),
            (3, ..) => "tls".to_owned(),
            (4, ..) => "tls-srtp".to_owned(),
            _ => "none".to_owned(),
        }
    }

    /// The module of study C: its firewall, alone or with a tunnel.
    pub fn module(&self) -> Option<&'static StudyProtection> {
        // The first one of the study is none.
        let place = usize::from(self.kind.checked_sub(FIRST_MODULE)?) + 1;
        PROTECTIONS.get(place).filter(|_| place <= MODULES)
    }

    /// Whether the access side has a line of its own in a network namespace: for programs of a tunnel, or for a link.
    pub fn has_line(&self, has_network: bool) -> bool {
        self.module().is_some() || has_network
    }

    /// Format of its packets; `None` where they are those of the calls.
    pub fn format(&self) -> Option<TunnelFormat> {
        if let Some(module) = self.module() {
            return overhead::format(module.tunnel);
        }
        let (case, carriage) = self.esp()?;
        Some(tunnel_format(case, carriage))
    }

    /// Algorithms and mode of ESP; `None` for other kinds.
    pub fn esp(&self) -> Option<(&'static EspCase, EspCarriage)> {
        let number = self.kind.checked_sub(FIRST_ESP)?;
        let name = SUITES.get(usize::from(number / 2))?;
        let carriage = match number.is_multiple_of(2) {
            true => EspCarriage::Transport,
            false => EspCarriage::Tunnel,
        };
        Some((EspCase::of(name)?, carriage))
    }

    /// Whether callers have SRTP.
    pub const fn has_srtp(&self) -> bool {
        matches!(self.kind, 1 | 2 | 4)
    }

    /// Whether a DTLS handshake belongs to each call.
    pub const fn has_dtls(&self) -> bool {
        self.kind == 2
    }

    /// Whether signalling goes over TLS.
    pub const fn has_tls(&self) -> bool {
        matches!(self.kind, 3 | 4)
    }

    /// Sets the part that is a setting of the callers.
    pub fn apply(&self, callers: &mut Callers) {
        callers.srtp |= self.has_srtp();
        if self.has_tls() {
            callers.transport = TransportName::Tls;
        }
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        if let Some(module) = self.module() {
            return match (module.is_openvpn(), module.name) {
                (true, _) => format!("firewall and OpenVPN with {}", module.label),
                (false, "firewall") => "firewall".to_owned(),
                (false, _) => format!("firewall and {}", module.label),
            };
        }
        match (self.kind, self.esp()) {
            (_, Some((case, carriage))) => format!("ESP {}, {} mode", case.name, carriage.name()),
            (0, _) => "no protection".to_owned(),
            (1, _) => "SRTP, keys in SDP".to_owned(),
            (2, _) => "SRTP, keys by DTLS".to_owned(),
            (3, _) => "TLS for signalling".to_owned(),
            (4, _) => "TLS, and SRTP with keys in SDP".to_owned(),
            (kind, _) => format!("unknown protection {kind}"),
        }
    }
}

/// Checks the protection of an experiment.
pub(super) fn check_protection(experiment: &Experiment) -> Result<(), String> {
    let Some(protection) = &experiment.protection else {
        return Ok(());
    };
    if !protection.is_known() {
        return Err(format!(
            "protection.kind: {} is unknown; 0 to 4, 10 to 28",
            protection.kind
        ));
    }
    let sut = &experiment.sut;
    if sut.is_external() || sut.ip.sides() != [false, false] || sut.media_nodes > 0 {
        return Err(
            "[protection] needs the built-in border, or sut.direct, with IPv4 and without media nodes; before a system on another address set up the tunnel itself"
                .to_owned(),
        );
    }
    if sut.media == SutMedia::KernelRelay {
        return Err(
            "[protection] and sut.media = \"kernel_relay\" exclude each other: set sut.media = \"anchored\"".to_owned(),
        );
    }
    // SRTP and TLS end at the border, and the gateways of ESP are its own.
    if sut.direct && (protection.has_srtp() || protection.has_tls() || protection.esp().is_some()) {
        return Err(format!(
            "protection.kind = {:?} needs the built-in border: remove sut.direct, or use none, firewall or a tunnel",
            protection.key()
        ));
    }
    match (&experiment.callers, &experiment.conference) {
        (None, Some(plan)) => check_conference(experiment, protection, plan.instances),
        (Some(callers), _) if callers.media == MediaKind::None && protection.has_srtp() => {
            Err("[protection] with SRTP needs callers.media".to_owned())
        }
        (Some(callers), _)
            if callers.media != MediaKind::None && sut.media == SutMedia::Bypass && !sut.direct =>
        {
            Err(
                "[protection]: media that bypasses the border does not pass the protection: set sut.media = \"anchored\""
                    .to_owned(),
            )
        }
        (_, _) if experiment.registrations.is_some() => {
            Err("[protection] cannot be combined with [registrations]".to_owned())
        }
        (Some(_), _) => Ok(()),
        (None, None) if experiment.streams.is_some() && sut.direct => Ok(()),
        (None, None) => Err(
            "[protection] needs [callers], [conference], or [streams] with sut.direct".to_owned(),
        ),
    }
}

/// Checks the protection of a conference.
fn check_conference(
    experiment: &Experiment,
    protection: &Protection,
    instances: u64,
) -> Result<(), String> {
    if instances > 1 {
        return Err("[protection] needs conference.instances = 1".to_owned());
    }
    if protection.has_srtp() || protection.has_tls() || protection.module().is_some() {
        return Err(
            "[protection] of a conference: 0 or ESP, participants have neither SRTP nor TLS nor tunnels"
                .to_owned(),
        );
    }
    match experiment.network.is_set() {
        true => Err("[protection] of a conference cannot be combined with [network]".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{File, built_in};

    #[test]
    fn numbers_name_algorithm_and_mode() {
        let names: Vec<String> = Protection::all()
            .map(|protection| protection.name())
            .collect();
        assert_eq!(names.len(), 24);
        assert_eq!(names[5], "ESP aes-cbc-sha1, transport mode");
        assert_eq!(names[14], "ESP 3des-sha1, tunnel mode");
        assert_eq!(names[15], "firewall");
        assert_eq!(names[18], "firewall and OpenVPN with AES-128");
        assert_eq!(names[23], "firewall and strongSwan");
    }

    #[test]
    fn names_and_numbers_are_the_same_key() {
        for protection in Protection::all() {
            let key = protection.key();
            assert_eq!(Protection::from_name(&key), Some(protection.clone()));
            let text = built_in("voice-over-network").unwrap();
            let set = |value: &str| {
                let file = File::parse_with(
                    "voice-over-network",
                    text,
                    &[format!("protection.kind={value}")],
                );
                file.map(|file| file.experiment().protection.clone())
            };
            let by_name = set(&key).unwrap();
            assert_eq!(by_name, set(&protection.kind.to_string()).unwrap());
            assert_eq!(by_name, Some(protection));
        }
        assert_eq!(Protection::of(24).key(), "openvpn-aes-256");
    }

    #[test]
    fn formats_give_the_bytes_of_the_rfcs() {
        use crate::esp::{EspCarriage, packet_bytes};
        for kind in 10..20 {
            let protection = Protection::of(kind);
            let (case, carriage) = protection.esp().unwrap();
            let format = protection.format().unwrap();
            for voice in [20, 24, 80, 160, 161] {
                let clear = 20 + 8 + 12 + voice;
                let expected = packet_bytes(case, carriage, voice);
                assert_eq!(format.outer_bytes(clear), expected, "{case:?} {voice}");
            }
            assert_eq!(carriage == EspCarriage::Tunnel, kind % 2 == 1);
        }
        assert_eq!(Protection::of(20).format(), None);
        assert_eq!(Protection::of(28).format().unwrap().outer_bytes(64), 128);
    }

    #[test]
    fn border_has_its_own_gateway_in_tunnel_mode() {
        let experiment = |sets: &[&str]| {
            let text = built_in("cost-of-protection").unwrap();
            let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
            let file = File::parse_with("cost-of-protection", text, &sets).unwrap();
            file.experiment().clone()
        };
        for (sets, media, is_program) in [
            (&["protection.kind=13"][..], Some("direct"), true),
            (
                &["protection.kind=13", "protection.gateway=kernel"],
                Some("kernel"),
                true,
            ),
            (
                &["protection.kind=13", "protection.gateway=lab"],
                None,
                false,
            ),
            // Transport mode, and no ESP: the same program, so that its CPU time can be compared.
            (&["protection.kind=12"], None, true),
            (&["protection.kind=4"], None, true),
            (
                &["protection.kind=13", "network.delay_ms=20"],
                Some("direct"),
                true,
            ),
            (&["protection.kind=0", "network.delay_ms=20"], None, false),
        ] {
            let experiment = experiment(sets);
            let protection = experiment.protection.clone().unwrap();
            let own = protection.border_gateway().map(|(_, media)| media);
            assert_eq!(own, media, "{sets:?}");
            let program = protection.has_border_program(&experiment);
            assert_eq!(program, is_program, "{sets:?}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for (experiment, set, wanted) in [
            ("cost-of-protection", "levels.values=[5]", "5 is unknown"),
            ("cost-of-protection", "levels.values=[29]", "29 is unknown"),
            ("cost-of-protection", "protection.gateway=tun", "direct"),
            ("cost-of-protection", "sut.ip=\"ipv6\"", "IPv4"),
            (
                "voice-over-network",
                "protection.kind=openvpn-cast5",
                "openvpn-3des",
            ),
            ("cost-of-protection", "sut.media=bypass", "anchored"),
            (
                "cost-of-protection",
                "sut.media=kernel_relay",
                "exclude each other",
            ),
            (
                "call-capacity-ipsec",
                "protection.kind=wireguard",
                "nor tunnels",
            ),
            (
                "call-capacity-ipsec",
                "network.profile=lte",
                "conference cannot be combined with [network]",
            ),
            ("call-capacity-ipsec", "protection.kind=1", "0 or ESP"),
            (
                "call-capacity-ipsec",
                "conference.instances=2",
                "instances = 1",
            ),
        ] {
            let text = built_in(experiment).unwrap();
            let error = File::parse_with(experiment, text, &[set.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(wanted), "{set}: {error}");
        }
    }
}
