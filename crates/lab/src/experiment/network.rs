//! Links of simulated experiments: checks, and the configuration of the engine.

use super::model::NetworkSettings;
use sim::{CodelSettings, Delay, Framing, LinkConfig, Loss};
use std::time::Duration;

/// Smallest MTU: that of IPv4 (RFC 791 section 3.2).
const MIN_MTU: u32 = 68;

fn ms(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.0) / 1e3).unwrap_or_default()
}

impl NetworkSettings {
    /// Checks beyond types and percentages; the error names the key.
    ///
    /// # Errors
    /// A value out of its range.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..=1e8).contains(&self.rate_kbit) {
            return Err("network.rate_kbit: expected 0 to 100000000".to_owned());
        }
        if self.framing_value().is_none() {
            return Err(format!(
                "network.framing: {:?} is none of none, ethernet, hdlc, ppp, atm, pppoa, pppoe",
                self.framing
            ));
        }
        if !(0.0..100.0).contains(&self.codel_target_ms) {
            return Err("network.codel_target_ms: expected 0 to below 100".to_owned());
        }
        if self.mtu_bytes != 0 && !(MIN_MTU..=65_535).contains(&self.mtu_bytes) {
            return Err(format!(
                "network.mtu_bytes: expected 0, or {MIN_MTU} to 65535"
            ));
        }
        if !(0.0..=1e6).contains(&self.loss_burst_packets) {
            return Err("network.loss_burst_packets: expected 0 to 1000000".to_owned());
        }
        if !self.loss_trace.is_empty() {
            if self.loss_percent > 0.0 {
                return Err(
                    "network.loss_trace and network.loss_percent exclude each other".to_owned(),
                );
            }
            Loss::parse_trace(&self.loss_trace)
                .map_err(|error| format!("network.loss_trace: {error}"))?;
        }
        if self.rate_kbit <= 0.0 && (self.queue_packets > 0 || self.codel_target_ms > 0.0) {
            return Err(
                "network.queue_packets and network.codel_target_ms need network.rate_kbit: without a rate nothing waits"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn framing_value(&self) -> Option<Framing> {
        match self.framing.as_str() {
            "" => Some(Framing::None),
            name => Framing::from_name(name),
        }
    }

    /// The link. `healed`: the faults have ended; delay, rate, queue and MTU stay.
    pub fn link(&self, healed: bool) -> LinkConfig {
        let base = ms(self.delay_ms);
        let share = |percent: f64| if healed { 0.0 } else { percent / 100.0 };
        let delay = match self.jitter_ms > 0.0 {
            true => Delay::Uniform(base, base + ms(self.jitter_ms)),
            false if base.is_zero() => LinkConfig::default().delay,
            false => Delay::Constant(base),
        };
        let loss = match Loss::parse_trace(&self.loss_trace) {
            Ok(trace) if !healed => trace,
            _ => Loss::in_bursts(share(self.loss_percent), self.loss_burst_packets),
        };
        let packets = usize::try_from(self.queue_packets).unwrap_or(usize::MAX);
        let (queue, queue_packets) = match packets {
            0 => (LinkConfig::default().queue, None),
            packets => (usize::MAX, Some(packets)),
        };
        LinkConfig {
            delay,
            loss,
            duplicate: share(self.duplicate_percent),
            reorder: share(self.reorder_percent),
            corrupt: share(self.corrupt_percent),
            rate: (self.rate_kbit > 0.0).then(|| (self.rate_kbit * 1e3).round() as u64),
            framing: self.framing_value().unwrap_or_default(),
            queue,
            queue_packets,
            codel: (self.codel_target_ms > 0.0).then(|| CodelSettings {
                target: ms(self.codel_target_ms),
                ..CodelSettings::default()
            }),
            mtu: (self.mtu_bytes > 0).then_some(self.mtu_bytes as usize),
            ..LinkConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_the_link() {
        let network = NetworkSettings {
            delay_ms: 20.0,
            rate_kbit: 38.4,
            framing: "hdlc".to_owned(),
            queue_packets: 40,
            codel_target_ms: 15.0,
            corrupt_percent: 2.0,
            mtu_bytes: 1_000,
            loss_trace: "0010".to_owned(),
            ..NetworkSettings::default()
        };
        network.check().unwrap();
        let link = network.link(false);
        assert_eq!(link.rate, Some(38_400));
        assert_eq!(link.framing, Framing::Hdlc);
        assert_eq!((link.queue_packets, link.mtu), (Some(40), Some(1_000)));
        assert_eq!(link.codel.unwrap().target, Duration::from_millis(15));
        assert!((link.corrupt - 0.02).abs() < 1e-9 && (link.loss.share() - 0.25).abs() < 1e-9);
        let healed = network.link(true);
        assert_eq!((healed.loss, healed.corrupt), (Loss::None, 0.0));
        assert_eq!(healed.rate, Some(38_400));
        assert_eq!(
            NetworkSettings::default().link(false),
            LinkConfig::default()
        );
    }

    #[test]
    fn bad_values_are_refused_with_their_key() {
        let bad = |change: fn(&mut NetworkSettings), key: &str| {
            let mut network = NetworkSettings::default();
            change(&mut network);
            let error = network.check().unwrap_err();
            assert!(error.contains(key), "{error}");
        };
        bad(|n| n.framing = "x25".to_owned(), "framing");
        bad(|n| n.rate_kbit = -1.0, "rate_kbit");
        bad(|n| n.rate_kbit = f64::NAN, "rate_kbit");
        bad(|n| n.queue_packets = 5, "rate_kbit");
        bad(|n| n.codel_target_ms = 200.0, "codel_target_ms");
        bad(|n| n.mtu_bytes = 10, "mtu_bytes");
        bad(|n| n.loss_trace = "012".to_owned(), "loss_trace");
        bad(|n| n.loss_burst_packets = -1.0, "loss_burst_packets");
    }
}
