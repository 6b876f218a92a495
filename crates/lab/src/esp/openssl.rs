//! The primitives of the installed OpenSSL, measured by its own `openssl speed`.

use super::computed::{EspCase, clear_packet_bytes};
use super::{carriages, cases, figure_name};
use crate::experiment::EspLoad;
use crate::measure::MeasureSamples;
use protect::esp::{EspEncryption, EspIntegrity};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Nanoseconds of one operation by algorithm, direction and length.
#[derive(Default)]
struct SpeedCache {
    known: BTreeMap<(String, bool, usize), Option<f64>>,
}

impl SpeedCache {
    /// Microseconds that `openssl speed` needs for this many bytes; `None` if it does not have the algorithm.
    fn us(&mut self, algorithm: &[&str], decrypt: bool, bytes: usize, seconds: u32) -> Option<f64> {
        let key = (algorithm.join(" "), decrypt, bytes);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let run = || {
            let output = Command::new("openssl")
                .args(["speed", "-mr", "-seconds", &seconds.to_string()])
                .args(["-bytes", &bytes.to_string()])
                .args(decrypt.then_some("-decrypt"))
                .args(algorithm)
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .output()
                .ok()?;
            let rate = bytes_per_second(&String::from_utf8_lossy(&output.stdout))?;
            (rate > 0.0).then(|| bytes as f64 / rate * 1e6)
        };
        let found = run();
        self.known.insert(key, found);
        found
    }
}

/// The rate in the line `+F:NUMBER:ALGORITHM:BYTES PER SECOND` of `openssl speed -mr`.
fn bytes_per_second(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("+F:"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// The names of cipher and HMAC for `openssl speed`; `None` for a cipher that it does not have.
fn names(case: &EspCase) -> Option<(Option<&'static str>, Option<&'static str>)> {
    let long = case.key_bytes >= 32;
    let cipher = match case.suite.encryption {
        EspEncryption::AesCbc if long => Some("aes-256-cbc"),
        EspEncryption::AesCbc => Some("aes-128-cbc"),
        EspEncryption::AesGcm16 if long => Some("aes-256-gcm"),
        EspEncryption::AesGcm16 => Some("aes-128-gcm"),
        EspEncryption::ChaCha20Poly1305 => Some("chacha20-poly1305"),
        EspEncryption::TripleDes => Some("des-ede3-cbc"),
        EspEncryption::Blowfish => Some("bf-cbc"),
        EspEncryption::Null => None,
        _ => return None,
    };
    let mac = match case.suite.integrity {
        EspIntegrity::None => None,
        EspIntegrity::HmacMd5 => Some("md5"),
        EspIntegrity::HmacSha1 => Some("sha1"),
        EspIntegrity::HmacSha256 => Some("sha256"),
        _ => return None,
    };
    Some((cipher, mac))
}

/// Adds the figures of all cases; returns remarks.
pub(super) fn measure(plan: &EspLoad, samples: &mut MeasureSamples) -> Vec<String> {
    if plan.openssl_seconds == 0 {
        return vec!["primitives of OpenSSL: not measured (esp.openssl_seconds = 0)".to_owned()];
    }
    let version = Command::new("openssl").arg("version").output();
    let Some(version) = version.ok().filter(|output| output.status.success()) else {
        return vec![
            "primitives of OpenSSL: not measured: the program openssl is not installed".to_owned(),
        ];
    };
    let mut cache = SpeedCache::default();
    let mut missing = Vec::new();
    for case in cases(plan) {
        for carriage in carriages(plan) {
            if net::stops() > 0 {
                return vec!["primitives of OpenSSL: interrupted".to_owned()];
            }
            let clear = clear_packet_bytes(plan.voice_bytes());
            let payload = if carriage.is_tunnel() {
                clear
            } else {
                clear - 20
            };
            for (figure, decrypt) in [("openssl_out_us", false), ("openssl_in_us", true)] {
                match packet_us(case, payload, decrypt, plan.openssl_seconds, &mut cache) {
                    Some(us) => samples.add(figure_name(figure, case.name, Some(carriage)), us),
                    None if !missing.contains(&case.name) => missing.push(case.name),
                    None => {}
                }
            }
        }
    }
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let mut remarks = vec![format!(
        "primitives of OpenSSL: openssl speed of {version}, cipher and HMAC added, one context for all packets"
    )];
    if !missing.is_empty() {
        remarks.push(format!(
            "primitives of OpenSSL: not measured for {}, which it does not have",
            missing.join(", ")
        ));
    }
    remarks
}

fn packet_us(
    case: &EspCase,
    payload: usize,
    decrypt: bool,
    seconds: u32,
    cache: &mut SpeedCache,
) -> Option<f64> {
    let (cipher, mac) = names(case)?;
    let encrypted = case.encrypted_bytes(payload);
    let cipher = match cipher {
        Some(name) => cache.us(&["-evp", name], decrypt, encrypted, seconds)?,
        None => 0.0,
    };
    let authenticated = 8 + case.iv + encrypted;
    let mac = match mac {
        Some(name) => cache.us(&["-hmac", name], false, authenticated, seconds)?,
        None => 0.0,
    };
    Some(cipher + mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_read_from_the_output() {
        let text = "+DT:AES-128-CBC:1:172\n+R:4387226:AES-128-CBC:0.94\n+H:172\n+F:25:AES-128-CBC:802769012.77\n";
        assert_eq!(bytes_per_second(text), Some(802_769_012.77));
        assert_eq!(bytes_per_second("+H:172\n"), None);
        assert_eq!(bytes_per_second("+F:25:X:many\n"), None);
    }
}
