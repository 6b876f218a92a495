//! Measurements of ESP itself: processing time, bandwidth, and reception with fewer layers.

use super::Experiment;
use crate::esp::EspCase;
use serde::{Deserialize, Serialize};

/// The question of an ESP experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EspMeasurement {
    /// Processing time of a packet, in and out.
    #[default]
    PacketCost,
    /// Bandwidth, computed and on the wire.
    Bandwidth,
    /// Reception of RTP in UDP in ESP beside RTP directly in ESP.
    WithoutUdp,
    /// Reception through the layers of an operating system beside that from ESP to the media receiver.
    Direct,
}

/// Mode of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EspModeName {
    /// The UDP datagram is sealed.
    Transport,
    /// The whole IP packet is sealed.
    Tunnel,
}

/// A measurement of ESP with packets of G.711.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EspLoad {
    /// The measurement.
    pub measure: EspMeasurement,
    /// Voice in a packet, milliseconds, 10 to 60: 8 bytes each.
    pub packet_ms: u32,
    /// Algorithms by name.
    pub suites: Vec<String>,
    /// Modes.
    pub modes: Vec<EspModeName>,
    /// Rounds in which each case takes its turn.
    pub rounds: u32,
    /// Packets of a case in each round.
    pub packets: u32,
    /// Time of each measurement by `openssl speed`, seconds; 0: none (`packet_cost`).
    pub openssl_seconds: u32,
    /// Share of the packets that are damaged between sealing and opening, percent: a bit is changed, and on the wire a
    /// byte appended. To see the thresholds fail.
    pub damaged_percent: f64,
}

impl Default for EspLoad {
    fn default() -> Self {
        let names = EspCase::ALL.iter().map(|case| case.name.to_owned());
        EspLoad {
            measure: EspMeasurement::PacketCost,
            packet_ms: 20,
            suites: names.collect(),
            modes: vec![EspModeName::Transport, EspModeName::Tunnel],
            rounds: 200,
            packets: 64,
            openssl_seconds: 1,
            damaged_percent: 0.0,
        }
    }
}

impl EspLoad {
    /// Bytes of G.711 in a packet.
    pub fn voice_bytes(&self) -> usize {
        self.packet_ms as usize * 8
    }

    /// Whether the measurement is one in memory even with sockets.
    pub fn is_in_memory(&self) -> bool {
        self.measure != EspMeasurement::Bandwidth
    }
}

/// Approximate duration of a trial, seconds: 2 us a packet for each path, twelve runs of `openssl speed`.
pub(super) fn seconds(experiment: &Experiment) -> f64 {
    experiment.esp.as_ref().map_or(0.0, |plan| {
        let cases = (plan.suites.len() * plan.modes.len()) as f64;
        let packets = f64::from(plan.rounds) * f64::from(plan.packets) * cases;
        let openssl = match plan.measure {
            EspMeasurement::PacketCost => f64::from(plan.openssl_seconds) * cases * 2.0,
            _ => 0.0,
        };
        packets * 10e-6 + openssl
    })
}

/// Checks a measurement of ESP.
pub(super) fn check_esp(experiment: &Experiment) -> Result<(), String> {
    let Some(plan) = &experiment.esp else {
        return Ok(());
    };
    let others = [
        experiment.callers.is_some(),
        experiment.callees.is_some(),
        experiment.registrations.is_some(),
        experiment.streams.is_some(),
        experiment.conference.is_some(),
        experiment.phone.is_some(),
        experiment.link.is_some(),
    ];
    if others.contains(&true) {
        return Err("[esp] cannot be combined with other workloads".to_owned());
    }
    if !experiment.sut.direct {
        return Err("[esp] needs no border: set sut.direct = true".to_owned());
    }
    if let Some(name) = plan.suites.iter().find(|name| EspCase::of(name).is_none()) {
        let known: Vec<&str> = EspCase::ALL.iter().map(|case| case.name).collect();
        return Err(format!(
            "esp.suites: unknown {name:?}; known: {}",
            known.join(", ")
        ));
    }
    if plan.suites.is_empty() || plan.modes.is_empty() {
        return Err("esp.suites and esp.modes: at least one each".to_owned());
    }
    if !(10..=60).contains(&plan.packet_ms)
        || !(1..=100_000).contains(&plan.rounds)
        || !(1..=4_096).contains(&plan.packets)
        || plan.openssl_seconds > 10
        || !(0.0..=100.0).contains(&plan.damaged_percent)
    {
        return Err(
            "esp: expected packet_ms 10 to 60, rounds 1 to 100000, packets 1 to 4096, openssl_seconds at most 10, damaged_percent 0 to 100"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::experiment::{File, built_in};

    #[test]
    fn invalid_values_are_refused() {
        let text = built_in("esp-bandwidth").unwrap();
        for (set, wanted) in [
            ("levels.values=[5]", "packet_ms 10 to 60"),
            ("esp.rounds=0", "rounds"),
            (
                "esp.suites=[\"rot13\"]",
                "unknown \"rot13\"; known: aes-cbc,",
            ),
            ("esp.modes=[]", "at least one"),
            ("esp.modes=[\"bridge\"]", "bridge"),
            ("esp.damaged_percent=101", "damaged_percent"),
            ("sut.direct=false", "sut.direct = true"),
            ("streams.count=1", "cannot be combined"),
        ] {
            let error = File::parse_with("esp-bandwidth", text, &[set.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(wanted), "{set}: {error}");
        }
    }
}
