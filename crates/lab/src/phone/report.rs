//! The statistics of a phone: text in 80 columns, and JSON.

use super::{EspReport, PhoneOptions, PhoneTask};
use crate::record::{Attempt, StreamRecord};
use media::live::LiveFigures;
use media::speech_quality::SpeechQuality;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Mean and maximum, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Maximum.
    pub max: f64,
}

/// A transfer that was requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhoneTransfer {
    /// Its target.
    pub to: String,
    /// The last status: that of the new call if the peer reported it, otherwise the response to REFER; `None` if the
    /// request was not sent or not answered.
    pub status: Option<u16>,
}

impl PhoneTransfer {
    /// Whether the transferee has reached its target, or the transfer was accepted without a report.
    pub fn succeeded(&self) -> bool {
        matches!(self.status, Some(200..300))
    }
}

/// The result of a phone's task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhoneReport {
    /// A call was established, or a registration accepted.
    pub established: bool,
    /// Name of the codec.
    pub codec: Option<String>,
    /// Crypto suite of SRTP with keys in the session description; `None` for RTP.
    pub suite: Option<String>,
    /// ESP around SIP and media.
    pub esp: Option<EspReport>,
    /// Transport of SIP.
    pub transport: String,
    /// Seconds from answer to end.
    pub seconds: f64,
    /// RTP packets sent.
    pub sent: u64,
    /// RTP packets received.
    pub received: u64,
    /// RTP packets lost.
    pub lost: u64,
    /// Interarrival jitter (RFC 3550 section 6.4.1), unsmoothed maximum as in the analyser.
    pub jitter_ms: Option<Spread>,
    /// Longest time between two packets, milliseconds.
    pub delta_max_ms: Option<f64>,
    /// Mean round trip by the peer's RTCP reports, milliseconds.
    pub round_trip_ms: Option<f64>,
    /// Lost packets and jitter (milliseconds) of the sent stream in the peer's last RTCP report.
    pub peer: Option<(i64, f64)>,
    /// Mean opinion score of the received stream (MOS-CQE, ITU-T G.107).
    pub mos: Option<f64>,
    /// The recording compared with its reference, or the reason why that was not possible; `None`: not requested.
    pub speech: Option<Result<SpeechQuality, String>>,
    /// Received digits.
    pub digits: String,
    /// Digits to send, and those of them that were sent.
    pub digits_sent: [String; 2],
    /// The requested transfer.
    pub transfer: Option<PhoneTransfer>,
    /// Final status of a refused request; 0 without.
    pub status: u16,
    /// Reason of the end or of the failure.
    pub reason: String,
    /// Sample rate and figures of the microphone.
    pub sound_in: Option<(u32, LiveFigures)>,
    /// Sample rate and figures of the loudspeaker.
    pub sound_out: Option<(u32, LiveFigures)>,
    /// Recorded samples that were lost because the file was written too slowly.
    pub recording_lost: u64,
}

impl PhoneReport {
    /// Takes the figures of the call and of its received stream.
    pub(super) fn add(&mut self, attempt: Option<&Attempt>, stream: Option<&StreamRecord>) {
        if let Some(attempt) = attempt {
            let span = attempt.established.zip(attempt.hung_up.or(attempt.ended));
            self.seconds = span.map_or(0.0, |(from, to)| to.saturating_sub(from) as f64 / 1e9);
        }
        let Some(stream) = stream else { return };
        self.sent = stream.sent;
        self.received = stream.received;
        self.lost = stream.lost;
        let jitter = stream.jitter_mean_ms.zip(stream.jitter_max_ms);
        self.jitter_ms = jitter.map(|(mean, max)| Spread { mean, max });
        self.delta_max_ms = stream.delta_max_ms;
        self.round_trip_ms = stream.round_trip_ms;
        self.peer = stream.peer_lost.zip(stream.peer_jitter_ms);
        self.mos = stream.mos.filter(|_| stream.received > 0);
    }

    /// Name of the protection of media.
    pub fn protection(&self) -> String {
        let esp = self.esp.as_ref().map(EspReport::protection);
        let srtp = self.suite.as_ref().map(|_| "srtp-sdes".to_owned());
        let layers: Vec<String> = esp.into_iter().chain(srtp).collect();
        match layers.is_empty() {
            true => "none".to_owned(),
            false => layers.join("+"),
        }
    }

    /// As JSON; figures that were not measured are `null`.
    pub fn to_json(&self) -> Value {
        json!({
            "established": self.established,
            "codec": self.codec,
            "protection": self.protection(),
            "suite": self.suite,
            "esp": self.esp.as_ref().map(EspReport::to_json),
            "transport": self.transport,
            "seconds": self.seconds,
            "sent": self.sent,
            "received": self.received,
            "lost": self.lost,
            "jitter_ms": {
                "mean": self.jitter_ms.map(|jitter| jitter.mean),
                "max": self.jitter_ms.map(|jitter| jitter.max),
            },
            "delta_ms": { "max": self.delta_max_ms },
            "round_trip_ms": self.round_trip_ms,
            "peer": {
                "lost": self.peer.map(|(lost, _)| lost),
                "jitter_ms": self.peer.map(|(_, jitter)| jitter),
            },
            "mos": self.mos,
            "speech_mos": self.speech.as_ref().and_then(|speech| speech.as_ref().ok()).map(|speech| speech.mos),
            "digits": self.digits,
            "digits_sent": self.digits_sent[1],
            "transfer": self.transfer.as_ref().map(|transfer| json!({
                "to": transfer.to,
                "status": transfer.status,
            })),
            "sound_in": self.sound_in.map(sound_json),
            "sound_out": self.sound_out.map(sound_json),
            "status": self.status,
            "reason": self.reason,
        })
    }

    /// As text, at most 80 columns wide unless a reason is longer.
    pub fn text(&self, options: &PhoneOptions) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<16} {value}");
        };
        if options.task == PhoneTask::Register {
            return out;
        }
        line(
            "call",
            match self.established {
                true => format!("{:.1} s, {}", self.seconds, self.reason),
                false => format!("not established: {}", self.reason),
            },
        );
        for (name, value) in self.esp.iter().flat_map(EspReport::lines) {
            line(name, value);
        }
        if !self.established {
            return out;
        }
        let media = match &self.suite {
            Some(suite) => format!("SRTP {suite} (keys in SDP)"),
            None if self.esp.is_some() => "RTP".to_owned(),
            None => "RTP without protection".to_owned(),
        };
        line(
            "codec",
            self.codec
                .clone()
                .unwrap_or_else(|| "none agreed".to_owned()),
        );
        line("media, SIP", format!("{media}, {}", self.transport));
        line("sent", format!("{} packets", self.sent));
        let expected = (self.received + self.lost).max(1) as f64;
        let percent = self.lost as f64 * 100.0 / expected;
        line(
            "received",
            format!(
                "{} packets, {} lost ({percent:.2} %)",
                self.received, self.lost
            ),
        );
        if let (Some(jitter), Some(delta)) = (self.jitter_ms, self.delta_max_ms) {
            line(
                "jitter",
                format!("mean {:.3} ms, max {:.3} ms", jitter.mean, jitter.max),
            );
            line("packet interval", format!("max {delta:.3} ms"));
        }
        if let Some((lost, jitter)) = self.peer {
            let text = format!("{lost} lost, jitter {jitter:.3} ms (RTCP)");
            line("peer received", text);
        }
        if let Some(time) = self.round_trip_ms {
            line("round trip", format!("{time:.3} ms (RTCP)"));
        }
        line(
            "MOS",
            match self.mos {
                Some(mos) => format!("{mos:.2} (MOS-CQE, ITU-T G.107, jitter buffer of 60 ms)"),
                None => "not measured: no packet was received".to_owned(),
            },
        );
        match &self.speech {
            Some(Ok(speech)) => line(
                "speech MOS",
                format!(
                    "{:.2} (MOS-LQO, as ViSQOL, over {} patches)",
                    speech.mos, speech.patches
                ),
            ),
            Some(Err(reason)) => line("speech MOS", format!("not measured: {reason}")),
            None => {}
        }
        if !self.digits.is_empty() {
            line("digits received", self.digits.clone());
        }
        let [wanted, sent] = &self.digits_sent;
        if wanted.len() != sent.len() {
            let counts = format!("{} of {}", sent.len(), wanted.len());
            line(
                "digits sent",
                format!("{counts} before the end of the call"),
            );
        }
        if let Some(PhoneTransfer { status: None, .. }) = &self.transfer {
            line(
                "transfer",
                "not answered, or not requested before the end".to_owned(),
            );
        }
        for (name, sound) in [
            ("microphone", self.sound_in),
            ("loudspeaker", self.sound_out),
        ] {
            if let Some((rate, figures)) = sound {
                let ms = |samples: u64| samples * 1_000 / u64::from(rate.max(1));
                line(
                    name,
                    format!(
                        "{rate} Hz, {} ms missing, {} ms dropped",
                        ms(figures.missing),
                        ms(figures.dropped)
                    ),
                );
            }
        }
        if self.recording_lost > 0 {
            line("recording", format!("{} samples lost", self.recording_lost));
        }
        out
    }
}

fn sound_json((rate, figures): (u32, LiveFigures)) -> Value {
    json!({
        "rate": rate,
        "samples": figures.samples,
        "missing": figures.missing,
        "dropped": figures.dropped,
    })
}
