//! Speed of the ciphers in memory.

use super::model::{PROTECTIONS, Tunnel};
use crate::statistics::Interval;
use serde::Serialize;
use std::process::Command;

/// Speed of a cipher.
#[derive(Clone, Debug, Serialize)]
pub struct CipherSpeed {
    /// Protection.
    pub protection: &'static str,
    /// Megabytes per second with blocks of 64 bytes, mean of the rounds; `null`: not measured.
    pub mb_per_s: Option<f64>,
    /// Its 95 % interval.
    pub interval: Option<Interval>,
    /// Each round.
    pub rounds: Vec<f64>,
    /// Reason if it was not measured.
    pub cause: Option<String>,
}

/// Protections with a cipher of the study, and its name in OpenSSL.
fn ciphers() -> Vec<(&'static str, &'static str)> {
    let all = PROTECTIONS.iter();
    all.filter_map(|protection| match protection.tunnel {
        Tunnel::OpenVpn(cipher) => Some((protection.name, cipher)),
        _ => None,
    })
    .collect()
}

/// The ciphers, none of them measured.
pub fn not_measured(cause: &str) -> Vec<CipherSpeed> {
    let all = ciphers().into_iter();
    all.map(|(protection, _)| of_rounds(protection, Err(cause.to_owned())))
        .collect()
}

/// Measures the ciphers of the study by `openssl speed`, one second each in each round. The ciphers take turns, so that
/// a host that becomes slower or faster meets all of them.
pub fn measure(rounds: u32) -> Vec<CipherSpeed> {
    let ciphers = ciphers();
    let mut found: Vec<Result<Vec<f64>, String>> = vec![Ok(Vec::new()); ciphers.len()];
    for _ in 0..rounds {
        for (all, (_, cipher)) in found.iter_mut().zip(&ciphers) {
            let Ok(values) = all else { continue };
            if net::stops() > 0 {
                break;
            }
            match openssl(cipher) {
                Ok(value) => values.push(value),
                // The signal of Ctrl-C has ended it.
                Err(_) if net::stops() > 0 => break,
                Err(cause) => *all = Err(cause),
            }
        }
    }
    let all = ciphers.into_iter().zip(found);
    all.map(|((protection, _), rounds)| of_rounds(protection, rounds))
        .collect()
}

fn of_rounds(protection: &'static str, rounds: Result<Vec<f64>, String>) -> CipherSpeed {
    let (rounds, cause) = match rounds {
        Ok(rounds) if rounds.is_empty() => (rounds, Some("interrupted".to_owned())),
        Ok(rounds) => (rounds, None),
        Err(cause) => (Vec::new(), Some(cause)),
    };
    CipherSpeed {
        protection,
        mb_per_s: super::captures::mean(&rounds),
        interval: (!rounds.is_empty()).then(|| Interval::of_mean(&rounds, "rounds")),
        rounds,
        cause,
    }
}

fn openssl(cipher: &str) -> Result<f64, String> {
    let output = Command::new("openssl")
        .args(["speed", "-mr", "-seconds", "1", "-bytes", "64"])
        .args(["-provider", "legacy", "-provider", "default", "-evp"])
        .arg(cipher)
        .output()
        .map_err(|error| format!("openssl: {error}; install openssl"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| format!("openssl speed does not know {cipher}"))
}

/// `+F:25:RC2-CBC:49674819.05`: bytes per second, as megabytes.
fn parse(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("+F:"))?;
    let rate = line.rsplit(':').next()?.parse::<f64>().ok()?;
    (rate > 0.0).then_some(rate / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_a_mean_with_interval() {
        assert_eq!(
            parse("+DT:RC2-CBC:1:64\n+F:25:RC2-CBC:50000000.00\n"),
            Some(50.0)
        );
        assert_eq!(parse("+F:25:RC2-CBC:0.00\n"), None);
        assert_eq!(parse("unknown cipher"), None);
        let speed = of_rounds("rc2", Ok(vec![40.0, 50.0, 60.0]));
        assert_eq!(speed.mb_per_s, Some(50.0));
        let interval = speed.interval.unwrap();
        assert!(interval.low.unwrap() < 40.0 && interval.high.unwrap() > 60.0);
        let none = of_rounds("rc2", Ok(Vec::new()));
        assert_eq!(
            (none.mb_per_s, none.cause.as_deref()),
            (None, Some("interrupted"))
        );
        assert_eq!(
            of_rounds("rc2", Err("gone".to_owned())).cause.as_deref(),
            Some("gone")
        );
    }
}
