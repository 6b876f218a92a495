//! Protection of calls on the access side, by number, so that a sweep can set it.

use super::{Callers, Experiment, MediaKind, TransportName};
use crate::esp::{EspCarriage, EspCase};
use serde::{Deserialize, Serialize};

/// Protection between callers and border.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protection {
    /// 0: none; 1: SRTP with keys in SDP; 2: SRTP with a DTLS handshake; 3: TLS for signalling; 4: TLS, and SRTP with keys
    /// in SDP; ESP from 10 on: transport mode (even) and tunnel mode (odd) with 10, 11: AES-128-CBC and HMAC-SHA1-96;
    /// 12, 13: AES-128-GCM; 14, 15: AES-128-CBC and HMAC-SHA2-256-128; 16, 17: ChaCha20-Poly1305; 18, 19: 3DES and
    /// HMAC-SHA1-96.
    pub kind: u8,
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

impl Protection {
    /// Whether the number has a meaning.
    pub fn is_known(&self) -> bool {
        self.kind <= 4 || self.esp().is_some()
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
            "protection.kind: {} is unknown; 0 to 4, 10 to 19",
            protection.kind
        ));
    }
    let own = !experiment.sut.is_external() && !experiment.sut.direct;
    let plain = experiment.sut.ip.sides() == [false, false] && experiment.sut.media_nodes == 0;
    if !own || !plain {
        return Err(
            "[protection] needs the built-in border with IPv4 and without media nodes".to_owned(),
        );
    }
    match (&experiment.callers, &experiment.conference) {
        (None, Some(plan)) if plan.instances > 1 => {
            Err("[protection] needs conference.instances = 1".to_owned())
        }
        (None, Some(_)) if protection.has_srtp() || protection.has_tls() => Err(
            "[protection] of a conference: 0 or ESP, participants have neither SRTP nor TLS"
                .to_owned(),
        ),
        (None, Some(_)) => Ok(()),
        (Some(callers), _) if callers.media == MediaKind::None => {
            Err("[protection] needs callers.media".to_owned())
        }
        (Some(_), _) if experiment.registrations.is_some() => {
            Err("[protection] cannot be combined with [registrations]".to_owned())
        }
        (Some(_), _) => Ok(()),
        (None, None) => Err("[protection] needs [callers] or [conference]".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{File, built_in};

    #[test]
    fn numbers_name_algorithm_and_mode() {
        let names: Vec<String> = (0..30)
            .map(|kind| Protection { kind })
            .filter(Protection::is_known)
            .map(|protection| protection.name())
            .collect();
        assert_eq!(names.len(), 15);
        assert_eq!(names[5], "ESP aes-cbc-sha1, transport mode");
        assert_eq!(names[14], "ESP 3des-sha1, tunnel mode");
    }

    #[test]
    fn invalid_values_are_refused() {
        for (experiment, set, wanted) in [
            ("cost-of-protection", "levels.values=[5]", "5 is unknown"),
            ("cost-of-protection", "levels.values=[20]", "20 is unknown"),
            ("cost-of-protection", "sut.ip=\"ipv6\"", "IPv4"),
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
