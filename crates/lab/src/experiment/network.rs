//! Links of an experiment between its hosts and the SUT: keys, checks, and the configuration of the engine.

use crate::decimal::plain;
use crate::emulator::settings::{BothWays, LineSettings, QueueLength, least_burst_text, profile};
use serde::{Deserialize, Serialize};
use sim::{CodelSettings, Delay, Framing, LinkConfig, Loss};
use std::time::Duration;

/// Smallest MTU: that of IPv4 (RFC 791 section 3.2).
const MIN_MTU: u32 = 68;

/// Links between the hosts and the SUT, one for each host; without a SUT (`sut.direct`) the link between callers and
/// called sides. In virtual time they are part of the simulation; on sockets `lab link` carries the packets between
/// network namespaces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSettings {
    /// A profile of `lab link` (lan, wifi, lte ...) instead of the keys below; the host is its end a.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub profile: String,
    /// One-way delay, milliseconds.
    pub delay_ms: f64,
    /// Spread of the delay, milliseconds: uniform, added.
    pub jitter_ms: f64,
    /// Packet loss, percent.
    pub loss_percent: f64,
    /// Duplicated packets, percent.
    pub duplicate_percent: f64,
    /// Packets that are delayed so that later ones overtake them, percent.
    pub reorder_percent: f64,
    /// Mean length of a burst of losses, packets (Gilbert-Elliott); up to 1: losses are independent.
    pub loss_burst_packets: f64,
    /// Losses from a trace instead of a share: 0 for a packet that arrives, 1 for a lost one, repeated; each link
    /// starts at its beginning. Empty: none.
    pub loss_trace: String,
    /// Packets that the receiver refuses because a bit was changed, percent.
    pub corrupt_percent: f64,
    /// Rate of each link in each direction, kbit/s; 0: no limit.
    pub rate_kbit: f64,
    /// Line framing, whose bytes count for the rate: none, ethernet, hdlc, ppp, atm, pppoa, pppoe. Empty: none.
    pub framing: String,
    /// Packets that wait for the line beside the one on it, at most; 0: none waits. By default 1,000, as in `lab link`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<u32>,
    /// Target of controlled delay (CoDel, RFC 8289) with an interval of 100 ms, milliseconds, below 100; 0: none.
    pub codel_target_ms: f64,
    /// Largest packet, bytes, at least 68; larger datagrams are lost, connections send smaller packets. 0: any.
    pub mtu_bytes: u32,
    /// Time after which the faults end, seconds; 0: never.
    pub heal_seconds: f64,
    /// Values that differ from the SUT to the hosts (without a SUT: from the called sides to the callers).
    #[serde(skip_serializing_if = "DownSettings::is_empty")]
    pub down: DownSettings,
}

/// Values of one direction that replace those of [`NetworkSettings`]; an absent one is the same in both directions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DownSettings {
    /// One-way delay, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<f64>,
    /// Spread of the delay, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Packet loss, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_percent: Option<f64>,
    /// Duplicated packets, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_percent: Option<f64>,
    /// Packets that later ones overtake, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder_percent: Option<f64>,
    /// Mean length of a burst of losses, packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_burst_packets: Option<f64>,
    /// Losses from a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_trace: Option<String>,
    /// Packets that the receiver refuses, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrupt_percent: Option<f64>,
    /// Rate, kbit/s; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_kbit: Option<f64>,
    /// Line framing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framing: Option<String>,
    /// Packets that wait for the line, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<u32>,
    /// Target of controlled delay, milliseconds; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codel_target_ms: Option<f64>,
    /// Largest packet, bytes; 0: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<u32>,
}

impl DownSettings {
    /// Whether no value differs.
    pub fn is_empty(&self) -> bool {
        *self == DownSettings::default()
    }
}

fn ms(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0) / 1e3).unwrap_or_default()
}

impl NetworkSettings {
    /// Whether a link is configured.
    pub fn is_set(&self) -> bool {
        *self != NetworkSettings::default()
    }

    /// Whether the directions differ.
    pub fn is_asymmetric(&self) -> bool {
        let [up, down] = self.lines(false);
        up != down
    }

    /// The values from the SUT to the hosts, as those of a symmetric link.
    fn sut_to_hosts(&self) -> NetworkSettings {
        let down = &self.down;
        NetworkSettings {
            profile: String::new(),
            delay_ms: down.delay_ms.unwrap_or(self.delay_ms),
            jitter_ms: down.jitter_ms.unwrap_or(self.jitter_ms),
            loss_percent: down.loss_percent.unwrap_or(self.loss_percent),
            duplicate_percent: down.duplicate_percent.unwrap_or(self.duplicate_percent),
            reorder_percent: down.reorder_percent.unwrap_or(self.reorder_percent),
            loss_burst_packets: down.loss_burst_packets.unwrap_or(self.loss_burst_packets),
            loss_trace: down.loss_trace.as_ref().unwrap_or(&self.loss_trace).clone(),
            corrupt_percent: down.corrupt_percent.unwrap_or(self.corrupt_percent),
            rate_kbit: down.rate_kbit.unwrap_or(self.rate_kbit),
            framing: down.framing.as_ref().unwrap_or(&self.framing).clone(),
            queue_packets: down.queue_packets.or(self.queue_packets),
            codel_target_ms: down.codel_target_ms.unwrap_or(self.codel_target_ms),
            mtu_bytes: down.mtu_bytes.unwrap_or(self.mtu_bytes),
            heal_seconds: self.heal_seconds,
            down: DownSettings::default(),
        }
    }

    /// Checks both directions; the error names the key.
    ///
    /// # Errors
    /// A value out of its range, or keys that exclude each other.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..=1e9).contains(&self.heal_seconds) {
            return Err("network.heal_seconds: expected 0 to 1000000000".to_owned());
        }
        if !self.profile.is_empty() {
            profile(&self.profile).map_err(|error| format!("network.profile: {error}"))?;
            let alone = NetworkSettings {
                profile: self.profile.clone(),
                heal_seconds: self.heal_seconds,
                ..NetworkSettings::default()
            };
            return match *self == alone {
                true => Ok(()),
                false => Err(
                    "network.profile excludes all other keys of [network] but heal_seconds"
                        .to_owned(),
                ),
            };
        }
        self.check_direction("network")?;
        let back = self.sut_to_hosts();
        // A value may have its effect in one direction only.
        if self.framing_value() != Some(Framing::None) && self.rate_kbit.max(back.rate_kbit) <= 0.0
        {
            return Err(
                "network.framing has no effect without a rate: set network.rate_kbit".to_owned(),
            );
        }
        let losses = |of: &NetworkSettings| of.loss_percent > 0.0;
        if self.loss_burst_packets > 1.0 && !losses(self) && !losses(&back) {
            return Err(
                "network.loss_burst_packets has no effect without losses: set network.loss_percent"
                    .to_owned(),
            );
        }
        // A value of the direction down has its effect there, or none.
        let has_framing = back.framing_value() != Some(Framing::None);
        if self.down.framing.is_some() && has_framing && back.rate_kbit <= 0.0 {
            return Err(
                "network.down.framing has no effect without a rate: set network.down.rate_kbit"
                    .to_owned(),
            );
        }
        let burst = self.down.loss_burst_packets.unwrap_or_default();
        if burst > 1.0 && !losses(&back) {
            return Err(
                "network.down.loss_burst_packets has no effect without losses: set network.down.loss_percent"
                    .to_owned(),
            );
        }
        match self.down.is_empty() {
            true => Ok(()),
            false => self.sut_to_hosts().check_direction("network.down"),
        }
    }

    fn check_direction(&self, table: &str) -> Result<(), String> {
        for (name, percent) in [
            ("loss_percent", self.loss_percent),
            ("duplicate_percent", self.duplicate_percent),
            ("reorder_percent", self.reorder_percent),
            ("corrupt_percent", self.corrupt_percent),
        ] {
            if !(0.0..=100.0).contains(&percent) {
                return Err(format!("{table}.{name} = {percent}: expected 0 to 100"));
            }
        }
        for (name, delay) in [("delay_ms", self.delay_ms), ("jitter_ms", self.jitter_ms)] {
            if !(0.0..=60_000.0).contains(&delay) {
                return Err(format!("{table}.{name} = {delay}: expected 0 to 60000"));
            }
        }
        if !(0.0..=1e8).contains(&self.rate_kbit) {
            return Err(format!("{table}.rate_kbit: expected 0 to 100000000"));
        }
        if self.framing_value().is_none() {
            return Err(format!(
                "{table}.framing: {:?} is none of none, ethernet, hdlc, ppp, atm, pppoa, pppoe",
                self.framing
            ));
        }
        if !(0.0..100.0).contains(&self.codel_target_ms) {
            return Err(format!("{table}.codel_target_ms: expected 0 to below 100"));
        }
        if self.mtu_bytes != 0 && !(MIN_MTU..=65_535).contains(&self.mtu_bytes) {
            return Err(format!(
                "{table}.mtu_bytes: expected 0, or {MIN_MTU} to 65535"
            ));
        }
        if !(0.0..=1e6).contains(&self.loss_burst_packets) {
            return Err(format!("{table}.loss_burst_packets: expected 0 to 1000000"));
        }
        let least = Loss::least_burst(self.loss_percent / 100.0);
        let burst = self.loss_burst_packets;
        if let Some(least) = least.filter(|least| burst > 1.0 && burst < *least) {
            return Err(format!(
                "{table}.loss_percent = {} needs bursts of at least {} packets: raise {table}.loss_burst_packets, or lower {table}.loss_percent",
                plain(self.loss_percent),
                least_burst_text(least)
            ));
        }
        if !self.loss_trace.is_empty() {
            if self.loss_percent > 0.0 {
                return Err(format!(
                    "{table}.loss_trace and {table}.loss_percent exclude each other"
                ));
            }
            Loss::parse_trace(&self.loss_trace)
                .map_err(|error| format!("{table}.loss_trace: {error}"))?;
        }
        let has_queue = self.queue_packets.is_some_and(|packets| packets > 0);
        if self.rate_kbit <= 0.0 && (has_queue || self.codel_target_ms > 0.0) {
            return Err(format!(
                "{table}.queue_packets and {table}.codel_target_ms need {table}.rate_kbit: without a rate nothing waits"
            ));
        }
        if self.queue_packets == Some(0) && self.codel_target_ms > 0.0 {
            return Err(format!(
                "{table}.codel_target_ms has no effect without a queue: remove {table}.queue_packets, or raise it"
            ));
        }
        Ok(())
    }

    fn framing_value(&self) -> Option<Framing> {
        match self.framing.as_str() {
            "" => Some(Framing::None),
            name => Framing::from_name(name),
        }
    }

    /// The link from the hosts to the SUT, and back. `healed`: the faults have ended; delay, rate, queue and MTU stay.
    pub fn lines(&self, healed: bool) -> BothWays {
        let mut both = match profile(&self.profile) {
            Ok(both) => both,
            Err(_) => [self.line(), self.sut_to_hosts().line()],
        };
        if healed {
            for line in &mut both {
                line.loss = 0.0;
                line.loss_burst = 1.0;
                line.loss_trace = None;
                line.duplicate = 0.0;
                line.corrupt = 0.0;
                line.reorder = 0.0;
            }
        }
        both
    }

    /// The values without `down` as those of one direction.
    fn line(&self) -> LineSettings {
        // The engine has the jitter on both sides of the delay.
        let half = ms(self.jitter_ms) / 2;
        LineSettings {
            rate: (self.rate_kbit > 0.0).then(|| (self.rate_kbit * 1e3).round() as u64),
            framing: self.framing_value().unwrap_or_default(),
            delay: ms(self.delay_ms) + half,
            jitter: half,
            loss: self.loss_percent / 100.0,
            loss_burst: self.loss_burst_packets,
            loss_trace: match self.loss_trace.as_str() {
                "" => None,
                trace => Loss::parse_trace(trace).ok(),
            },
            duplicate: self.duplicate_percent / 100.0,
            corrupt: self.corrupt_percent / 100.0,
            reorder: self.reorder_percent / 100.0,
            queue: match self.queue_packets {
                None => LineSettings::default().queue,
                Some(packets) => {
                    QueueLength::Packets(usize::try_from(packets).unwrap_or(usize::MAX))
                }
            },
            codel: (self.codel_target_ms > 0.0).then(|| CodelSettings {
                target: ms(self.codel_target_ms),
                ..CodelSettings::default()
            }),
            mtu: (self.mtu_bytes > 0).then_some(self.mtu_bytes as usize),
            ..LineSettings::default()
        }
    }

    /// [`NetworkSettings::lines`] in virtual time, where a link without a delay has that of a local network.
    pub fn links(&self, healed: bool) -> [LinkConfig; 2] {
        self.lines(healed).map(|line| {
            let config = line.config();
            match config.delay {
                Delay::Constant(Duration::ZERO) => LinkConfig {
                    delay: LinkConfig::default().delay,
                    ..config
                },
                _ => config,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_the_link() {
        let mut network = NetworkSettings {
            delay_ms: 20.0,
            rate_kbit: 38.4,
            framing: "hdlc".to_owned(),
            queue_packets: Some(40),
            codel_target_ms: 15.0,
            corrupt_percent: 2.0,
            mtu_bytes: 1_000,
            loss_trace: "0010".to_owned(),
            ..NetworkSettings::default()
        };
        network.check().unwrap();
        let [link, back] = network.links(false);
        assert_eq!(link, back);
        assert_eq!(link.rate, Some(38_400));
        assert_eq!(link.framing, Framing::Hdlc);
        assert_eq!((link.queue_packets, link.mtu), (Some(40), Some(1_000)));
        assert_eq!(link.codel.unwrap().target, Duration::from_millis(15));
        assert!((link.corrupt - 0.02).abs() < 1e-9 && (link.loss.share() - 0.25).abs() < 1e-9);
        let [healed, _] = network.links(true);
        assert_eq!((healed.loss, healed.corrupt), (Loss::None, 0.0));
        assert_eq!(healed.rate, Some(38_400));
        network.jitter_ms = 10.0;
        let ms = Duration::from_millis;
        assert_eq!(
            network.links(false)[0].delay,
            Delay::Uniform(ms(20), ms(30))
        );
        // Without a rate nothing waits.
        let unlimited = LinkConfig {
            queue: usize::MAX,
            queue_packets: Some(1_000),
            ..LinkConfig::default()
        };
        let links = NetworkSettings::default().links(false);
        assert_eq!(links, [unlimited.clone(), unlimited]);
    }

    #[test]
    fn queue_has_the_default_of_the_link_command_and_can_be_none() {
        let mut network = NetworkSettings {
            rate_kbit: 64.0,
            ..NetworkSettings::default()
        };
        let queue = |network: &NetworkSettings| {
            network.check().unwrap();
            network.lines(false).map(|line| line.queue)
        };
        assert_eq!(queue(&network), [LineSettings::default().queue; 2]);
        network.down.queue_packets = Some(0);
        assert_eq!(
            queue(&network),
            [QueueLength::Packets(1_000), QueueLength::Packets(0)]
        );
        network.codel_target_ms = 5.0;
        let error = network.check().unwrap_err();
        assert!(error.contains("network.down.codel_target_ms"), "{error}");
    }

    #[test]
    fn directions_differ_in_the_values_of_down_only() {
        let network = NetworkSettings {
            delay_ms: 20.0,
            loss_percent: 1.0,
            down: DownSettings {
                loss_percent: Some(0.0),
                loss_trace: Some("01".to_owned()),
                rate_kbit: Some(2_000.0),
                ..DownSettings::default()
            },
            ..NetworkSettings::default()
        };
        network.check().unwrap();
        assert!(network.is_asymmetric());
        let [up, down] = network.links(false);
        assert_eq!(up.delay, down.delay);
        assert_eq!((up.loss, up.rate), (Loss::Random(0.01), None));
        assert!((down.loss.share() - 0.5).abs() < 1e-9);
        assert_eq!(down.rate, Some(2_000_000));
        let lte = NetworkSettings {
            profile: "lte".to_owned(),
            ..NetworkSettings::default()
        };
        lte.check().unwrap();
        let [up, down] = lte.links(false);
        assert_eq!((up.rate, down.rate), (Some(10_000_000), Some(30_000_000)));
        assert!(lte.links(true).iter().all(|link| link.loss == Loss::None));
    }

    #[test]
    fn bad_values_are_refused_with_their_key() {
        let bad = |change: fn(&mut NetworkSettings), key: &str| {
            let mut network = NetworkSettings::default();
            change(&mut network);
            let error = network.check().unwrap_err();
            assert!(error.contains(key), "{error}");
        };
        bad(|n| n.framing = "x25".to_owned(), "network.framing");
        bad(|n| n.framing = "hdlc".to_owned(), "set network.rate_kbit");
        bad(|n| n.loss_burst_packets = 3.0, "set network.loss_percent");
        bad(
            |n| n.down.framing = Some("hdlc".to_owned()),
            "set network.down.rate_kbit",
        );
        bad(
            |n| {
                n.rate_kbit = 64.0;
                n.down.rate_kbit = Some(0.0);
                n.down.framing = Some("hdlc".to_owned());
            },
            "set network.down.rate_kbit",
        );
        bad(
            |n| {
                n.loss_percent = 1.0;
                n.down.loss_percent = Some(0.0);
                n.down.loss_burst_packets = Some(5.0);
            },
            "set network.down.loss_percent",
        );
        bad(|n| n.rate_kbit = -1.0, "rate_kbit");
        bad(|n| n.rate_kbit = f64::NAN, "rate_kbit");
        bad(|n| n.queue_packets = Some(5), "rate_kbit");
        bad(|n| n.codel_target_ms = 200.0, "codel_target_ms");
        bad(|n| n.mtu_bytes = 10, "mtu_bytes");
        bad(|n| n.loss_trace = "012".to_owned(), "loss_trace");
        bad(|n| n.loss_burst_packets = -1.0, "loss_burst_packets");
        bad(|n| n.delay_ms = -1.0, "delay_ms");
        bad(|n| n.loss_percent = 101.0, "network.loss_percent");
        bad(|n| n.heal_seconds = -1.0, "heal_seconds");
        bad(
            |n| (n.loss_percent, n.loss_burst_packets) = (80.0, 2.0),
            "at least 4 packets: raise network.loss_burst_packets",
        );
        bad(
            |n| {
                (n.loss_percent, n.loss_burst_packets) = (1.0, 2.0);
                n.down.loss_percent = Some(80.0);
            },
            "raise network.down.loss_burst_packets",
        );
        bad(|n| n.profile = "dsl".to_owned(), "adsl2-perth-barcelona");
        bad(
            |n| {
                n.profile = "lte".to_owned();
                n.delay_ms = 5.0;
            },
            "excludes",
        );
        bad(
            |n| n.down.loss_percent = Some(-1.0),
            "network.down.loss_percent",
        );
        bad(
            |n| {
                n.rate_kbit = 64.0;
                n.queue_packets = Some(5);
                n.down.rate_kbit = Some(0.0);
            },
            "network.down.queue_packets",
        );
    }
}
