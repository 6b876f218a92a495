//! The effect of delay on a conversation: double talk, mutual silence and talk-over of two parties in virtual time.
//!
//! ITU-T P.59 (artificial conversational speech) describes a conversation as one chain of states with exponential
//! durations: single talk 0.854 s, double talk 0.226 s, mutual silence 0.456 s. Single talk becomes double talk with a
//! probability of 40 %, otherwise mutual silence; double talk and mutual silence end by either party with 50 %. Here
//! each party has its share of these rates, by its own state and that of the other party as it is heard, as in the
//! model of Brady (BSTJ, September 1969). Without delay this is the chain of P.59. With delay a party reacts to the
//! past of the other.

use crate::decimal::plain;
use crate::statistics::Interval;
use engine::{Entropy, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;

/// Mean durations of the states, seconds (ITU-T P.59).
const SINGLE_TALK_S: f64 = 0.854;
const DOUBLE_TALK_S: f64 = 0.226;
const MUTUAL_SILENCE_S: f64 = 0.456;
/// Probability that single talk ends because the other party begins.
const INTERRUPTED: f64 = 0.4;
/// Simulated conversations; each is one sample of the intervals.
const CONVERSATIONS: usize = 20;
/// Their duration.
const DURATION: Duration = Duration::from_secs(600);
/// Time before the counting begins: the initial silence is forgotten.
const WARM_UP: Duration = Duration::from_secs(10);
/// Longest one-way delay.
pub const MAX_DELAY: Duration = Duration::from_secs(10);

/// Shares of the time, and unintended interruptions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TalkShares {
    /// Share of the time in which a party talks and hears the other one, percent; mean of both ends.
    pub double_talk_percent: f64,
    /// Its 95 % interval.
    pub double_talk: Interval,
    /// Share of the time in which a party neither talks nor hears the other one, percent; mean of both ends.
    pub mutual_silence_percent: f64,
    /// Its 95 % interval.
    pub mutual_silence: Interval,
    /// Talk-over: beginnings of speech while the other party talks already and is not heard yet, in a minute, of both
    /// parties.
    pub talk_overs_per_minute: f64,
    /// Its 95 % interval.
    pub talk_overs: Interval,
}

/// A conversation with and without its delay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TalkOver {
    /// One-way delays from mouth to ear, milliseconds: of the speech heard by the caller, and by the called side.
    pub delay_ms: [f64; 2],
    /// Seed of the simulation.
    pub seed: u64,
    /// With the delay.
    pub delayed: TalkShares,
    /// Without it.
    pub undelayed: TalkShares,
}

impl TalkOver {
    /// Simulates conversations whose speech arrives after these delays: at the first party, and at the second.
    pub fn simulate(delays: [Duration; 2], seed: u64) -> TalkOver {
        let delays = delays.map(|delay| delay.min(MAX_DELAY));
        TalkOver {
            delay_ms: delays.map(|delay| delay.as_secs_f64() * 1e3),
            seed,
            delayed: shares(delays, seed),
            undelayed: shares([Duration::ZERO; 2], seed),
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "delay_ms": self.delay_ms,
            "seed": self.seed,
            "model": "ITU-T P.59, each party reacts to the speech that it hears",
            "conversations": CONVERSATIONS,
            "seconds": DURATION.as_secs(),
            "delayed": self.delayed,
            "undelayed": self.undelayed,
        })
    }

    /// One line, for the summary of a run.
    pub fn line(&self) -> String {
        let (with, without) = (&self.delayed, &self.undelayed);
        let [caller, called] = self.delay_ms;
        format!(
            "double talk {:.1} % ({:.1} % without delay), mutual silence {:.1} % ({:.1} %), {:.1} talk-overs a minute, at {:.0} and {:.0} ms \
             from mouth to ear",
            with.double_talk_percent,
            without.double_talk_percent,
            with.mutual_silence_percent,
            without.mutual_silence_percent,
            with.talk_overs_per_minute,
            caller,
            called,
        )
    }

    /// As text in 80 columns.
    pub fn text(&self) -> String {
        let [caller, called] = self.delay_ms;
        let mut out = format!(
            "one-way delay    {} ms to the caller, {} ms to the called side\n\
             model            ITU-T P.59, {CONVERSATIONS} conversations of {} s, seed {}\n",
            plain(caller),
            plain(called),
            DURATION.as_secs(),
            self.seed
        );
        let headings = [
            "",
            "with the delay",
            "95 % interval",
            "without",
            "95 % interval",
        ];
        let (with, without) = (&self.delayed, &self.undelayed);
        let row = |name: &str, a: (f64, &Interval), b: (f64, &Interval)| {
            vec![
                name.to_owned(),
                rounded(a.0),
                ends(a.1),
                rounded(b.0),
                ends(b.1),
            ]
        };
        let rows = [
            row(
                "double talk, %",
                (with.double_talk_percent, &with.double_talk),
                (without.double_talk_percent, &without.double_talk),
            ),
            row(
                "mutual silence, %",
                (with.mutual_silence_percent, &with.mutual_silence),
                (without.mutual_silence_percent, &without.mutual_silence),
            ),
            row(
                "talk-overs/min",
                (with.talk_overs_per_minute, &with.talk_overs),
                (without.talk_overs_per_minute, &without.talk_overs),
            ),
        ];
        out.push_str(&crate::output::columns(&headings, &rows));
        out
    }
}

fn rounded(value: f64) -> String {
    format!("{value:.2}")
}

fn ends(interval: &Interval) -> String {
    match interval.low.zip(interval.high) {
        Some((low, high)) => format!("{low:.2} to {high:.2}"),
        None => "-".to_owned(),
    }
}

fn shares(delays: [Duration; 2], seed: u64) -> TalkShares {
    let mut entropy = Entropy::from_number(seed);
    let counts: Vec<TalkCounts> = (0..CONVERSATIONS)
        .map(|_| Conversation::new(delays, entropy.fork()).run())
        .collect();
    let of = |read: fn(&TalkCounts) -> f64| -> (f64, Interval) {
        let values: Vec<f64> = counts.iter().map(read).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, Interval::of_mean(&values, "conversations"))
    };
    let percent = 100.0 / (2.0 * DURATION.as_nanos() as f64);
    let scaled = |(mean, interval): (f64, Interval), factor: f64| {
        let interval = Interval {
            low: interval.low.map(|low| (low * factor).max(0.0)),
            high: interval.high.map(|high| high * factor),
            ..interval
        };
        (mean * factor, interval)
    };
    let (double_talk_percent, double_talk) = scaled(of(|c| c.double_ns as f64), percent);
    let (mutual_silence_percent, mutual_silence) = scaled(of(|c| c.silent_ns as f64), percent);
    let minutes = DURATION.as_secs_f64() / 60.0;
    let (talk_overs_per_minute, talk_overs) = scaled(of(|c| c.talk_overs as f64), 1.0 / minutes);
    TalkShares {
        double_talk_percent,
        double_talk,
        mutual_silence_percent,
        mutual_silence,
        talk_overs_per_minute,
        talk_overs,
    }
}

/// Sums of one conversation, over both ends.
#[derive(Clone, Copy, Debug, Default)]
struct TalkCounts {
    double_ns: u64,
    silent_ns: u64,
    talk_overs: u64,
}

/// One party.
#[derive(Debug, Default)]
struct Converser {
    talks: bool,
    /// The other party is heard.
    hears: bool,
    /// Its next change.
    next: Time,
    /// Changes of the other party that are on their way, the earliest first.
    arriving: VecDeque<(Time, bool)>,
}

impl Converser {
    /// Rate of its next change, in a second: its share of the rates of the chain.
    fn rate(&self) -> f64 {
        match (self.talks, self.hears) {
            (true, false) => (1.0 - INTERRUPTED) / SINGLE_TALK_S,
            (false, true) => INTERRUPTED / SINGLE_TALK_S,
            (true, true) => 0.5 / DOUBLE_TALK_S,
            (false, false) => 0.5 / MUTUAL_SILENCE_S,
        }
    }

    /// Draws the time of the next change. Durations are exponential, so that a changed state may draw again.
    fn draw(&mut self, now: Time, entropy: &mut Entropy) {
        let wait = Duration::try_from_secs_f64(entropy.exponential(1.0 / self.rate()));
        self.next = now + wait.unwrap_or(DURATION);
    }
}

struct Conversation {
    parties: [Converser; 2],
    delays: [Duration; 2],
    entropy: Entropy,
    now: Time,
    counts: TalkCounts,
}

impl Conversation {
    fn new(delays: [Duration; 2], mut entropy: Entropy) -> Conversation {
        let mut parties: [Converser; 2] = Default::default();
        for party in &mut parties {
            party.draw(Time::ZERO, &mut entropy);
        }
        Conversation {
            parties,
            delays,
            entropy,
            now: Time::ZERO,
            counts: TalkCounts::default(),
        }
    }

    fn run(mut self) -> TalkCounts {
        let end = Time::ZERO + WARM_UP + DURATION;
        loop {
            let arrival = |party: &Converser| party.arriving.front().map(|(at, _)| *at);
            let times = self.parties.iter().flat_map(|p| [Some(p.next), arrival(p)]);
            let Some(next) = times.flatten().min().filter(|next| *next < end) else {
                self.advance(end);
                return self.counts;
            };
            self.advance(next);
            // At one instant, speech arrives before a party changes its state.
            let due = |party: &Converser| arrival(party) == Some(next);
            match self.parties.iter().position(due) {
                Some(party) => self.hear(party),
                None => self.change(usize::from(self.parties[0].next != next)),
            }
        }
    }

    /// TalkCounts the time until `to`.
    fn advance(&mut self, to: Time) {
        let from = self.now.max(Time::ZERO + WARM_UP);
        let passed = to.since(from).as_nanos() as u64;
        for party in &self.parties {
            match (party.talks, party.hears) {
                (true, true) => self.counts.double_ns += passed,
                (false, false) => self.counts.silent_ns += passed,
                _ => {}
            }
        }
        self.now = to;
    }

    fn hear(&mut self, party: usize) {
        let party = &mut self.parties[party];
        if let Some((_, hears)) = party.arriving.pop_front() {
            party.hears = hears;
            party.draw(self.now, &mut self.entropy);
        }
    }

    fn change(&mut self, number: usize) {
        let delay = self.delays[1 - number];
        let other_talks = self.parties[1 - number].talks;
        let party = &mut self.parties[number];
        party.talks = !party.talks;
        let talks = party.talks;
        if talks && other_talks && !party.hears && self.now >= Time::ZERO + WARM_UP {
            self.counts.talk_overs += 1;
        }
        party.draw(self.now, &mut self.entropy);
        let arrives = self.now + delay;
        self.parties[1 - number]
            .arriving
            .push_back((arrives, talks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(value: f64, interval: &Interval, expected: f64) {
        let half = interval.high.unwrap() - value;
        assert!(
            (value - expected).abs() < 2.0 * half,
            "{value} {interval:?} {expected}"
        );
        assert!(half < expected / 5.0, "{interval:?}");
    }

    #[test]
    fn without_delay_the_shares_are_those_of_the_chain() {
        let talk = TalkOver::simulate([Duration::ZERO; 2], 7);
        assert_eq!(talk.delayed, talk.undelayed);
        // Times of the states of P.59 by their visits: 1 single talk, 0.4 double talk, 0.6 mutual silence.
        let (single, double, silent) = (
            SINGLE_TALK_S,
            INTERRUPTED * DOUBLE_TALK_S,
            (1.0 - INTERRUPTED) * MUTUAL_SILENCE_S,
        );
        let all = single + double + silent;
        let shares = &talk.delayed;
        within(
            shares.double_talk_percent,
            &shares.double_talk,
            100.0 * double / all,
        );
        within(
            shares.mutual_silence_percent,
            &shares.mutual_silence,
            100.0 * silent / all,
        );
        assert_eq!(shares.talk_overs_per_minute, 0.0);
    }

    #[test]
    fn delay_adds_double_talk_and_silence_as_brady_observed() {
        let mut last = TalkOver::simulate([Duration::ZERO; 2], 3).delayed;
        for ms in [100, 300, 600] {
            let now = TalkOver::simulate([Duration::from_millis(ms); 2], 3).delayed;
            assert!(
                now.double_talk.low > last.double_talk.high,
                "{ms} ms: {now:?}"
            );
            assert!(
                now.mutual_silence_percent > last.mutual_silence_percent,
                "{ms} ms"
            );
            assert!(
                now.talk_overs.low > last.talk_overs.high,
                "{ms} ms: {now:?}"
            );
            last = now;
        }
    }

    #[test]
    fn same_seed_has_the_same_result_and_only_the_round_trip_counts() {
        let delays = [Duration::from_millis(100), Duration::from_millis(300)];
        let talk = TalkOver::simulate(delays, 5);
        assert_eq!(talk, TalkOver::simulate(delays, 5));
        assert_ne!(talk.delayed, TalkOver::simulate(delays, 6).delayed);
        let even = TalkOver::simulate([Duration::from_millis(200); 2], 5).delayed;
        let half = even.double_talk.high.unwrap() - even.double_talk_percent;
        let apart = (talk.delayed.double_talk_percent - even.double_talk_percent).abs();
        assert!(apart < 3.0 * half, "{talk:?} {even:?}");
    }
}
