//! Settings of an emulated link: text to values, profiles, and the configuration of the engine.

use engine::Time;
use serde_json::{Value, json};
use sim::{CodelSettings, Delay, Framing, LinkConfig, Loss};
use std::time::Duration;

/// Longest delay, jitter and reordering, seconds.
const MAX_DELAY_S: f64 = 60.0;
/// Lowest and highest rate, bits per second.
const RATES_BPS: std::ops::RangeInclusive<f64> = 100.0..=100e9;
/// Most packets in a queue.
const MAX_QUEUE: usize = 1_000_000;
/// Smallest MTU: that of IPv4 (RFC 791 section 3.2).
const MIN_MTU: usize = 68;

/// Distribution of the jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JitterKind {
    /// Uniform between delay - jitter and delay + jitter.
    #[default]
    Uniform,
    /// Normal with the jitter as its standard deviation; at least a quarter of the delay.
    Normal,
    /// The delay and an exponential tail with the jitter as its mean, as caused by queues.
    Tail,
}

impl JitterKind {
    const NAMES: [(&'static str, JitterKind); 3] = [
        ("uniform", JitterKind::Uniform),
        ("normal", JitterKind::Normal),
        ("tail", JitterKind::Tail),
    ];

    fn name(self) -> &'static str {
        let mut names = JitterKind::NAMES.iter();
        names
            .find(|(_, kind)| *kind == self)
            .map_or("", |(name, _)| name)
    }
}

/// Length of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLength {
    /// Packets that wait beside the one on the line.
    Packets(usize),
    /// Bytes that the line has yet to send.
    Bytes(usize),
}

/// Settings of one direction.
#[derive(Clone, Debug, PartialEq)]
pub struct LineSettings {
    /// Bits per second; `None`: without limit.
    pub rate: Option<u64>,
    /// Bytes that a packet occupies on the line beside its own.
    pub framing: Framing,
    /// One-way delay, without serialisation and queueing.
    pub delay: Duration,
    /// Variation of the delay.
    pub jitter: Duration,
    /// Its distribution.
    pub jitter_kind: JitterKind,
    /// Packets keep their order although their delays vary.
    pub is_ordered: bool,
    /// Share of lost packets, 0 to 1.
    pub loss: f64,
    /// Mean length of a burst of losses, packets; at most 1: losses are independent.
    pub loss_burst: f64,
    /// Losses from a trace, instead of a share.
    pub loss_trace: Option<Loss>,
    /// Share of duplicated packets, 0 to 1.
    pub duplicate: f64,
    /// Share of packets with a changed bit, 0 to 1.
    pub corrupt: f64,
    /// Share of packets that later ones overtake, 0 to 1.
    pub reorder: f64,
    /// Their further delay.
    pub reorder_by: Duration,
    /// Queue before the line.
    pub queue: QueueLength,
    /// Active queue management.
    pub codel: Option<CodelSettings>,
    /// Largest IP packet, bytes.
    pub mtu: Option<usize>,
}

impl Default for LineSettings {
    /// A wire: no delay, no limit, nothing lost; a queue of 1,000 packets if a rate is set, as an interface of Linux
    /// has.
    fn default() -> Self {
        LineSettings {
            rate: None,
            framing: Framing::None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_kind: JitterKind::Uniform,
            is_ordered: true,
            loss: 0.0,
            loss_burst: 1.0,
            loss_trace: None,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_millis(20),
            queue: QueueLength::Packets(1_000),
            codel: None,
            mtu: None,
        }
    }
}

/// Settings of both directions: from the first to the second end, and back.
pub type BothWays = [LineSettings; 2];

/// Names of the directions.
pub const DIRECTIONS: [&str; 2] = ["a-to-b", "b-to-a"];

/// A profile: settings of a kind of network.
#[derive(Clone, Copy, Debug)]
pub struct LinkProfile {
    /// Its name.
    pub name: &'static str,
    /// The network, and the origin of the values.
    pub about: &'static str,
    /// Settings of each direction, as of [`LineSettings::set`].
    settings: [&'static str; 2],
}

const LAN: &str =
    "rate=100mbit framing=ethernet delay=0.05ms jitter=0ms loss=0% queue=1000 mtu=1500";
const SERIAL_64: &str = "rate=64kbit framing=hdlc delay=1ms jitter=0ms loss=0% queue=40 mtu=1500";
const SERIAL_38: &str = "rate=38.4kbit framing=hdlc delay=1ms jitter=0ms loss=0% queue=40 mtu=1500";
const WIFI: &str = "rate=25mbit framing=none delay=2ms jitter=3ms jitter-kind=tail loss=0.5% loss-burst=3 queue=200 mtu=1500";
const LTE_UP: &str =
    "rate=10mbit framing=none delay=30ms jitter=10ms jitter-kind=tail loss=0.5% queue=300 mtu=1428";
const LTE_DOWN: &str =
    "rate=30mbit framing=none delay=20ms jitter=8ms jitter-kind=tail loss=0.5% queue=600 mtu=1428";
const SATELLITE_UP: &str =
    "rate=1mbit framing=none delay=260ms jitter=5ms jitter-kind=tail loss=0.1% queue=200 mtu=1500";
const SATELLITE_DOWN: &str =
    "rate=10mbit framing=none delay=260ms jitter=5ms jitter-kind=tail loss=0.1% queue=500 mtu=1500";
const ADSL: &str = "rate=1mbit framing=pppoe delay=900ms jitter=66ms jitter-kind=normal loss=1.7% queue=100 mtu=1492";

/// The profiles. `docs/link.md` has the values with their sources.
pub const PROFILES: [LinkProfile; 7] = [
    LinkProfile {
        name: "lan",
        about: "100BASE-TX (IEEE 802.3 clause 25) over a short cable",
        settings: [LAN, LAN],
    },
    LinkProfile {
        name: "serial-64",
        about: "serial line of 64 kbit/s with HDLC and the hold queue of 40 packets of Cisco routers",
        settings: [SERIAL_64, SERIAL_64],
    },
    LinkProfile {
        name: "serial-38",
        about: "serial line of 38.4 kbit/s, the clock rate of Cisco routers nearest to 38 kbit/s",
        settings: [SERIAL_38, SERIAL_38],
    },
    LinkProfile {
        name: "adsl2-perth-barcelona",
        about: "ADSL2+ (G.992.5 upstream) at both ends, with delay, jitter and loss as study C reports them",
        settings: [ADSL, ADSL],
    },
    LinkProfile {
        name: "wifi",
        about: "IEEE 802.11g: half of 54 Mbit/s after contention; delay and loss are chosen",
        settings: [WIFI, WIFI],
    },
    LinkProfile {
        name: "lte",
        about: "within the budget of QCI 1 (3GPP TS 23.203 table 6.1.7: 100 ms, loss 1 %); a is the phone",
        settings: [LTE_UP, LTE_DOWN],
    },
    LinkProfile {
        name: "satellite",
        about: "geostationary (ITU-T G.114 table A.1: 260 ms); rates and loss are chosen; a is the ground station",
        settings: [SATELLITE_UP, SATELLITE_DOWN],
    },
];

/// Settings of a profile.
///
/// # Errors
/// There is no profile of this name.
pub fn profile(name: &str) -> Result<BothWays, String> {
    let found = PROFILES.iter().find(|profile| profile.name == name);
    let found = found.ok_or_else(|| {
        let names: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
        format!("no profile {name:?}: expected {}", names.join(", "))
    })?;
    let mut both = BothWays::default();
    for (line, settings) in both.iter_mut().zip(found.settings) {
        line.set_all(settings)?;
    }
    Ok(both)
}

/// A least length of bursts as text, rounded up, so that it can be set.
pub(crate) fn least_burst_text(packets: f64) -> String {
    let steps = if packets < 10.0 { 100.0 } else { 1.0 };
    crate::decimal::plain((packets * steps).ceil() / steps)
}

/// A number with one of these units; `None` without a number or with another unit.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(at);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim())?;
    let number: f64 = number.parse().ok()?;
    Some(number * factor)
}

fn rate(text: &str) -> Result<Option<u64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let units = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let value = with_unit(&text.to_ascii_lowercase(), &units);
    match value.filter(|value| RATES_BPS.contains(value)) {
        Some(value) => Ok(Some(value.round() as u64)),
        None => Err(format!(
            "rate {text:?}: expected such as 64kbit, 2mbit, 1gbit (100bit to 100gbit), or none"
        )),
    }
}

fn duration(key: &str, text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let value = match text {
        "0" => Some(0.0),
        _ => with_unit(text, &units),
    };
    match value.filter(|value| (0.0..=MAX_DELAY_S).contains(value)) {
        // Rounded, because 20 ms is not exact in binary.
        Some(value) => Ok(Duration::from_nanos((value * 1e9).round() as u64)),
        None => Err(format!(
            "{key} {text:?}: expected such as 20ms, 500us or 1.5s, at most {MAX_DELAY_S} s"
        )),
    }
}

fn share(key: &str, text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    match number {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{key} {text:?}: expected percent, 0% to 100%")),
    }
}

fn queue(text: &str) -> Result<QueueLength, String> {
    let bad = || {
        format!(
            "queue {text:?}: expected packets such as 50, or bytes such as 6000bytes or 64kbytes"
        )
    };
    if let Ok(packets) = text.parse::<usize>() {
        return match packets <= MAX_QUEUE {
            true => Ok(QueueLength::Packets(packets)),
            false => Err(bad()),
        };
    }
    let units = [("bytes", 1.0), ("kbytes", 1024.0)];
    let bytes = with_unit(text, &units).filter(|bytes| (1.0..=1e9).contains(bytes));
    let bytes = bytes.ok_or_else(bad)?;
    Ok(QueueLength::Bytes(bytes as usize))
}

fn codel(text: &str) -> Result<Option<CodelSettings>, String> {
    match text {
        "off" | "no" => return Ok(None),
        "on" | "yes" => return Ok(Some(CodelSettings::default())),
        _ => {}
    }
    let (target, interval) = text.split_once(':').unwrap_or((text, "100ms"));
    let settings = CodelSettings {
        target: duration("codel", target)?,
        interval: duration("codel", interval)?,
    };
    match settings.target < settings.interval && !settings.target.is_zero() {
        true => Ok(Some(settings)),
        false => Err(format!(
            "codel {text:?}: expected on, off, or TARGET:INTERVAL such as 5ms:100ms"
        )),
    }
}

fn mtu(text: &str) -> Result<Option<usize>, String> {
    match text.parse::<usize>() {
        _ if text == "none" => Ok(None),
        Ok(mtu) if (MIN_MTU..=65_535).contains(&mtu) => Ok(Some(mtu)),
        _ => Err(format!(
            "mtu {text:?}: expected {MIN_MTU} to 65535 bytes, or none"
        )),
    }
}

fn named<T: Copy>(key: &str, text: &str, names: &[(&str, T)]) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("{key} {text:?}: expected {}", names.join(", "))
    })
}

impl LineSettings {
    /// The keys of [`LineSettings::set`].
    pub const KEYS: [&'static str; 15] = [
        "rate",
        "framing",
        "delay",
        "jitter",
        "jitter-kind",
        "order",
        "loss",
        "loss-burst",
        "duplicate",
        "corrupt",
        "reorder",
        "reorder-by",
        "queue",
        "codel",
        "mtu",
    ];

    /// Sets a value.
    ///
    /// # Errors
    /// An unknown key or a bad value; the text names both and the expected form.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "rate" => self.rate = rate(value)?,
            "framing" => self.framing = named(key, value, &Framing::NAMES)?,
            "delay" => self.delay = duration(key, value)?,
            "jitter" => self.jitter = duration(key, value)?,
            "jitter-kind" => self.jitter_kind = named(key, value, &JitterKind::NAMES)?,
            "order" => self.is_ordered = named(key, value, &[("kept", true), ("free", false)])?,
            "loss" => {
                self.loss = share(key, value)?;
                self.loss_trace = None;
            }
            "loss-burst" => {
                let packets = value.parse::<f64>().ok();
                let packets = packets.filter(|packets| (1.0..=1e6).contains(packets));
                self.loss_burst = packets
                    .ok_or_else(|| format!("loss-burst {value:?}: expected packets, at least 1"))?;
            }
            "duplicate" => self.duplicate = share(key, value)?,
            "corrupt" => self.corrupt = share(key, value)?,
            "reorder" => self.reorder = share(key, value)?,
            "reorder-by" => self.reorder_by = duration(key, value)?,
            "queue" => self.queue = queue(value)?,
            "codel" => self.codel = codel(value)?,
            "mtu" => self.mtu = mtu(value)?,
            _ => {
                let keys = LineSettings::KEYS.join(", ");
                return Err(format!("no setting {key:?}: expected {keys}"));
            }
        }
        Ok(())
    }

    /// Sets values given as `key=value`, separated by spaces or commas. Nothing is changed if one of them is bad.
    ///
    /// # Errors
    /// As [`LineSettings::set`], or a word without `=`.
    pub fn set_all(&mut self, text: &str) -> Result<(), String> {
        let mut changed = self.clone();
        let words = text.split([' ', ',']).filter(|word| !word.is_empty());
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| format!("{word:?}: expected KEY=VALUE"))?;
            changed.set(key, value)?;
        }
        *self = changed;
        Ok(())
    }

    /// Why a value that was set for this key has no effect, and the remedy; `None` if it has one.
    fn without_effect(&self, key: &str) -> Option<String> {
        let no_rate = self.rate.is_none();
        let is_steady = self.jitter.is_zero();
        let ms = |span: Duration| crate::decimal::plain(span.as_secs_f64() * 1e3);
        let why = match key {
            "framing" if no_rate && self.framing != Framing::None => {
                "without a rate, for which its bytes count: set rate, such as 64kbit".to_owned()
            }
            "queue" if no_rate => {
                "without a rate, because no packet waits: set rate, such as 64kbit".to_owned()
            }
            "codel" if no_rate && self.codel.is_some() => {
                "without a rate, because no packet waits: set rate, such as 64kbit".to_owned()
            }
            "codel" if self.codel.is_some() && self.queue == QueueLength::Packets(0) => {
                "with a queue of 0 packets: set queue, such as 50".to_owned()
            }
            "jitter" | "delay" | "jitter-kind"
                if self.jitter_kind != JitterKind::Tail && self.jitter > self.delay =>
            {
                let (jitter, delay) = (ms(self.jitter), ms(self.delay));
                return Some(format!(
                    "jitter {jitter}ms is above the delay of {delay}ms, and no delay is below zero: set delay to at least {jitter}ms, \
                     or jitter-kind to tail"
                ));
            }
            "jitter-kind" if is_steady => "without jitter: set jitter, such as 2ms".to_owned(),
            "order" if is_steady && !self.is_ordered => {
                "without jitter: set jitter, such as 2ms, or reorder, such as 1%".to_owned()
            }
            "loss-burst" if self.loss_burst > 1.0 && self.loss_trace.is_some() => {
                "with a trace, which has bursts of its own: remove it".to_owned()
            }
            "loss-burst" if self.loss_burst > 1.0 && self.loss <= 0.0 => {
                "without losses: set loss, such as 1%".to_owned()
            }
            "reorder-by" if self.reorder <= 0.0 => {
                "without reordering: set reorder, such as 1%".to_owned()
            }
            "reorder" if self.reorder > 0.0 && self.reorder_by.is_zero() => {
                "with reorder-by 0: set reorder-by, such as 20ms".to_owned()
            }
            "loss-burst" | "duplicate" | "corrupt" | "reorder"
                if self.loss >= 1.0 && self.loss_trace.is_none() && self.has_value(key) =>
            {
                "with a loss of 100%, because no packet arrives: lower loss".to_owned()
            }
            _ => return None,
        };
        Some(format!("{key} has no effect {why}"))
    }

    /// Why this share of losses cannot come in bursts of this length, and the remedy.
    fn bursts_too_short(&self) -> Option<String> {
        let least = Loss::least_burst(self.loss).filter(|_| self.loss_trace.is_none())?;
        (self.loss_burst > 1.0 && self.loss_burst < least).then(|| {
            let percent = crate::decimal::plain(self.loss * 100.0);
            let least = least_burst_text(least);
            format!(
                "loss {percent}% needs bursts of at least {least} packets: raise loss-burst, or lower loss"
            )
        })
    }

    fn has_value(&self, key: &str) -> bool {
        match key {
            "loss-burst" => self.loss_burst > 1.0,
            "duplicate" => self.duplicate > 0.0,
            "corrupt" => self.corrupt > 0.0,
            _ => self.reorder > 0.0,
        }
    }

    /// The configuration of the engine.
    pub fn config(&self) -> LinkConfig {
        let (delay, jitter) = (self.delay, self.jitter);
        let delay = match self.jitter_kind {
            _ if jitter.is_zero() => Delay::Constant(delay),
            JitterKind::Uniform => Delay::Uniform(delay.saturating_sub(jitter), delay + jitter),
            JitterKind::Normal => Delay::Normal {
                mean: delay,
                deviation: jitter,
            },
            JitterKind::Tail => Delay::Tail {
                base: delay,
                mean: jitter,
            },
        };
        let (queue, queue_packets) = match self.queue {
            QueueLength::Packets(packets) => (usize::MAX, Some(packets)),
            QueueLength::Bytes(bytes) => (bytes, None),
        };
        let loss = match &self.loss_trace {
            Some(trace) => trace.clone(),
            None => Loss::in_bursts(self.loss, self.loss_burst),
        };
        LinkConfig {
            delay,
            loss,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            reorder: self.reorder,
            reorder_by: self.reorder_by,
            ordered: self.is_ordered,
            rate: self.rate,
            framing: self.framing,
            tunnel: None,
            queue,
            queue_packets,
            codel: self.codel,
            mtu: self.mtu,
        }
    }

    /// As text, in the form of [`LineSettings::set_all`]; a trace is named only.
    pub fn text(&self) -> String {
        let ms = |span: Duration| format!("{}ms", crate::decimal::plain(span.as_secs_f64() * 1e3));
        let percent = |share: f64| format!("{}%", crate::decimal::plain(share * 100.0));
        let mut words = vec![
            format!("rate={}", self.rate_text()),
            format!("framing={}", self.framing.name()),
            format!("delay={}", ms(self.delay)),
        ];
        if !self.jitter.is_zero() {
            words.push(format!("jitter={}", ms(self.jitter)));
            words.push(format!("jitter-kind={}", self.jitter_kind.name()));
        }
        if !self.is_ordered {
            words.push("order=free".to_owned());
        }
        match &self.loss_trace {
            Some(trace) => words.push(format!("loss={} (trace)", percent(trace.share()))),
            None => words.push(format!("loss={}", percent(self.loss))),
        }
        if self.loss_burst > 1.0 {
            words.push(format!(
                "loss-burst={}",
                crate::decimal::plain(self.loss_burst)
            ));
        }
        for (name, value) in [
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
            ("reorder", self.reorder),
        ] {
            if value > 0.0 {
                words.push(format!("{name}={}", percent(value)));
            }
        }
        if self.reorder > 0.0 {
            words.push(format!("reorder-by={}", ms(self.reorder_by)));
        }
        if self.rate.is_some() {
            words.push(match self.queue {
                QueueLength::Packets(packets) => format!("queue={packets}"),
                QueueLength::Bytes(bytes) => format!("queue={bytes}bytes"),
            });
        }
        if let Some(codel) = self.codel {
            words.push(format!("codel={}:{}", ms(codel.target), ms(codel.interval)));
        }
        if let Some(mtu) = self.mtu {
            words.push(format!("mtu={mtu}"));
        }
        words.join(" ")
    }

    fn rate_text(&self) -> String {
        match self.rate {
            None => "none".to_owned(),
            Some(rate) if rate >= 1_000_000 => {
                format!("{}mbit", crate::decimal::plain(rate as f64 / 1e6))
            }
            Some(rate) => format!("{}kbit", crate::decimal::plain(rate as f64 / 1e3)),
        }
    }

    /// As JSON, with units in the names.
    pub fn to_json(&self) -> Value {
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        let loss = self.config().loss.share();
        let (packets, bytes) = match self.queue {
            QueueLength::Packets(packets) => (Some(packets), None),
            QueueLength::Bytes(bytes) => (None, Some(bytes)),
        };
        json!({
            "rate_bps": self.rate,
            "framing": self.framing.name(),
            "delay_ms": ms(self.delay),
            "jitter_ms": ms(self.jitter),
            "jitter_kind": self.jitter_kind.name(),
            "ordered": self.is_ordered,
            "loss_percent": loss * 100.0,
            "loss_burst_packets": self.loss_burst,
            "loss_trace": self.loss_trace.is_some(),
            "duplicate_percent": self.duplicate * 100.0,
            "corrupt_percent": self.corrupt * 100.0,
            "reorder_percent": self.reorder * 100.0,
            "reorder_by_ms": ms(self.reorder_by),
            "queue_packets": packets,
            "queue_bytes": bytes,
            "codel_target_ms": self.codel.map(|codel| ms(codel.target)),
            "codel_interval_ms": self.codel.map(|codel| ms(codel.interval)),
            "mtu_bytes": self.mtu,
        })
    }
}

/// Sets a value of both directions: one for both, or one for each, separated by `/`.
///
/// # Errors
/// As [`LineSettings::set`].
pub fn set_both(both: &mut BothWays, key: &str, value: &str) -> Result<(), String> {
    let (there, back) = value.split_once('/').unwrap_or((value, value));
    both[0].set(key, there)?;
    both[1].set(key, back)
}

/// Refuses values that were set for these keys and have no effect in any of these directions, or cannot be had in one
/// of them.
///
/// # Errors
/// The text names the key, the reason and the remedy.
pub fn check_effect<'a>(
    lines: &[&LineSettings],
    keys: impl IntoIterator<Item = &'a str>,
) -> Result<(), String> {
    for key in keys {
        let of_loss = key == "loss" || key == "loss-burst";
        let short = lines.iter().find_map(|line| line.bursts_too_short());
        if let Some(reason) = short.filter(|_| of_loss) {
            return Err(reason);
        }
        let reasons: Option<Vec<String>> =
            lines.iter().map(|line| line.without_effect(key)).collect();
        if let Some(reason) = reasons.and_then(|reasons| reasons.into_iter().next()) {
            return Err(reason);
        }
    }
    Ok(())
}

/// The keys of values given as for [`LineSettings::set_all`].
pub fn keys_of(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split([' ', ',']);
    words.filter_map(|word| Some(word.split_once('=')?.0))
}

/// The longest time that a packet waits in an idle link: delay with jitter and reordering.
pub fn longest_delay(both: &BothWays) -> Time {
    let line = |line: &LineSettings| line.delay + line.jitter * 5 + line.reorder_by;
    Time::ZERO + both.iter().map(line).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_contract_are_read() {
        let mut line = LineSettings::default();
        line.set_all("rate=64kbit delay=20ms jitter=2ms loss=1% queue=50 framing=hdlc")
            .unwrap();
        let config = line.config();
        let ms = Duration::from_millis;
        assert_eq!(config.rate, Some(64_000));
        assert_eq!(config.framing, Framing::Hdlc);
        assert_eq!(config.delay, Delay::Uniform(ms(18), ms(22)));
        assert_eq!(config.loss, Loss::Random(0.01));
        assert_eq!(config.queue_packets, Some(50));
        let mut both = BothWays::default();
        set_both(&mut both, "rate", "64kbit/256kbit").unwrap();
        assert_eq!((both[0].rate, both[1].rate), (Some(64_000), Some(256_000)));
        line.set_all("codel=5ms:100ms,mtu=1400,loss=2%,loss-burst=4,queue=64kbytes,order=free")
            .unwrap();
        assert_eq!(line.codel, Some(CodelSettings::default()));
        assert_eq!(line.config().queue, 65_536);
        assert!((line.config().loss.share() - 0.02).abs() < 1e-9);
        // Text and settings are two forms of the same.
        let mut again = LineSettings::default();
        again.set_all(&line.text()).unwrap();
        assert_eq!(again, line);
    }

    #[test]
    fn bad_values_are_named_and_change_nothing() {
        let mut line = LineSettings::default();
        for bad in [
            "rate=64",
            "rate=-1kbit",
            "rate=1tbit",
            "delay=20",
            "delay=2h",
            "delay=61s",
            "loss=101%",
            "loss=x",
            "queue=-1",
            "queue=9999999",
            "queue=5gbytes",
            "framing=x25",
            "codel=100ms:5ms",
            "mtu=20",
            "mtu=66000",
            "loss-burst=0",
            "order=random",
            "speed=1",
            "rate",
            "delay=nanms",
            "rate=1e9kbit",
        ] {
            let key = bad.split('=').next().unwrap();
            let error = line.set_all(&format!("delay=7ms {bad}")).unwrap_err();
            assert!(error.contains(key), "{bad}: {error}");
        }
        assert_eq!(line, LineSettings::default());
        assert!(
            profile("dsl")
                .unwrap_err()
                .contains("adsl2-perth-barcelona")
        );
    }

    #[test]
    fn values_without_effect_are_refused_with_the_remedy() {
        for (text, words) in [
            ("framing=hdlc", "set rate"),
            ("queue=50", "set rate"),
            ("codel=on", "set rate"),
            ("rate=64kbit queue=0 codel=on", "set queue"),
            ("delay=2ms jitter=5ms", "set delay to at least 5ms"),
            ("jitter=5ms jitter-kind=normal", "jitter-kind to tail"),
            ("jitter-kind=tail", "set jitter"),
            ("order=free", "set jitter"),
            ("loss-burst=3", "set loss"),
            ("reorder-by=5ms", "set reorder"),
            ("reorder=1% reorder-by=0", "set reorder-by"),
            ("loss=100% loss-burst=3", "lower loss"),
            ("loss=100% duplicate=1%", "lower loss"),
            ("loss=100% corrupt=1%", "lower loss"),
        ] {
            let mut line = LineSettings::default();
            line.set_all(text).unwrap();
            let error = check_effect(&[&line], keys_of(text)).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
            // Keys that were not set are not judged.
            assert_eq!(check_effect(&[&line], ["mtu"]), Ok(()));
        }
        for text in [
            "rate=64kbit framing=hdlc queue=50 codel=on",
            "jitter=5ms jitter-kind=tail order=free",
            "delay=20ms jitter=20ms order=kept",
            "loss=1% loss-burst=3 duplicate=1% corrupt=1% reorder=1% reorder-by=5ms",
            "framing=none loss-burst=1 codel=off reorder=0%",
        ] {
            let mut line = LineSettings::default();
            line.set_all(text).unwrap();
            assert_eq!(check_effect(&[&line], keys_of(text)), Ok(()), "{text}");
        }
        // The gaps between bursts would be shorter than a packet.
        for (text, least) in [
            ("loss=90% loss-burst=2", "at least 9 packets"),
            ("loss=60% loss-burst=1.2", "at least 1.5 packets"),
        ] {
            let mut line = LineSettings::default();
            line.set_all(text).unwrap();
            let whole = LineSettings::default();
            let error = check_effect(&[&whole, &line], keys_of(text)).unwrap_err();
            assert!(
                error.starts_with("loss ") && error.contains(least),
                "{error}"
            );
            assert_eq!(check_effect(&[&line], ["mtu"]), Ok(()));
        }
        for text in ["loss=90% loss-burst=9", "loss=90% loss-burst=1"] {
            let mut line = LineSettings::default();
            line.set_all(text).unwrap();
            assert_eq!(check_effect(&[&line], keys_of(text)), Ok(()), "{text}");
            assert!((line.config().loss.share() - 0.9).abs() < 1e-9, "{text}");
        }
        // An effect in one direction is one.
        let mut both = BothWays::default();
        set_both(&mut both, "rate", "1mbit/none").unwrap();
        set_both(&mut both, "framing", "ethernet").unwrap();
        assert_eq!(check_effect(&[&both[0], &both[1]], ["framing"]), Ok(()));
        assert!(check_effect(&[&both[1]], ["framing"]).is_err());
    }

    #[test]
    fn every_profile_is_valid_and_has_its_rate() {
        for known in PROFILES {
            let both = profile(known.name).unwrap();
            for line in &both {
                assert_eq!(
                    check_effect(
                        &[line],
                        LineSettings::KEYS
                            .into_iter()
                            .filter(|key| *key != "jitter-kind" && *key != "reorder-by")
                    ),
                    Ok(())
                );
            }
            assert!(both.iter().all(|line| line.rate.is_some()));
            assert!(!known.about.is_empty());
        }
        assert_eq!(profile("serial-38").unwrap()[0].rate, Some(38_400));
        assert_eq!(profile("lte").unwrap()[1].rate, Some(30_000_000));
    }
}
