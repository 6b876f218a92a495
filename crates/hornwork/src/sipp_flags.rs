//! Translates SIPp's own options for `hornwork lab run`: `-sf FILE -r 5 -m 100 -s 600`.
//!
//! SIPp's long options have one hyphen, which clap does not support, so they are rewritten before parsing. An option
//! without a counterpart is rejected by name.

use std::ffi::OsString;

/// Options with a value and a counterpart.
const VALUES: [(&str, &str); 22] = [
    ("-m", "--calls"),
    ("-s", "--service"),
    ("-l", "--limit"),
    ("-inf", "--inject"),
    ("-t", "--transport"),
    ("-au", "--username"),
    ("-ap", "--password"),
    ("-auth_uri", "--digest-uri"),
    ("-max_retrans", "--retransmissions"),
    ("-cid_str", "--call-id"),
    ("-base_cseq", "--base-cseq"),
    ("-audiotolerance", "--audio-tolerance"),
    ("-videotolerance", "--video-tolerance"),
    ("-lost", "--loss"),
    ("-users", "--users"),
    ("-default_behaviors", "--behaviour"),
    ("-message_file", "--trace"),
    ("-log_file", "--log"),
    ("-stf", "--csv"),
    ("-tls_cert", "--tls-cert"),
    ("-tls_key", "--tls-key"),
    ("-tls_ca", "--tls-ca"),
];

/// Options without a value and with a counterpart.
const SWITCHES: [(&str, &str); 4] = [
    ("-nd", "--behaviour=none"),
    ("-nr", "--no-retransmissions"),
    ("-rtp_echo", "--rtp-echo"),
    ("-aa", "--auto-answer"),
];

/// Options that request the default behaviour: errors go to standard error, standard input is not read.
const ALWAYS_SO: [&str; 2] = ["-trace_err", "-nostdin"];

/// Options that are refused with the name of a counterpart of another form.
const REPLACED: [(&str, &str); 4] = [
    ("-rate_increase", "use --rate-to and --ramp"),
    ("-rate_max", "use --rate-to and --ramp"),
    ("-rate_interval", "use --rate-to and --ramp"),
    ("-bg", "use the shell: `&`, or a service manager"),
];

/// SIPp's options that write files named after the scenario: the option, our option, and the file name's suffix.
const FILES: [(&str, &str, &str); 3] = [
    ("-trace_msg", "--trace", "messages.log"),
    ("-trace_logs", "--log", "logs.log"),
    ("-trace_stat", "--csv", "statistics.csv"),
];

/// Rewrites SIPp's options in the command line of `lab run`; other command lines are unchanged.
///
/// # Errors
/// If an option is not supported, or lacks its value.
pub fn translate(arguments: Vec<OsString>) -> Result<Vec<OsString>, String> {
    let is = |at: usize, word: &str| arguments.get(at).is_some_and(|text| text == word);
    if !(is(1, "lab") && is(2, "run")) {
        return Ok(arguments);
    }
    let (front, rest) = arguments.split_at(3);
    let Some(words) = rest
        .iter()
        .map(|word| word.to_str())
        .collect::<Option<Vec<&str>>>()
    else {
        // Arguments that are not UTF-8 are left to the parser.
        return Ok(arguments);
    };
    let mut reading = FlagTranslation::default();
    reading.read(&words)?;
    let mut out = front.to_vec();
    out.extend(reading.finish()?.into_iter().map(OsString::from));
    Ok(out)
}

/// State of the translation.
#[derive(Default)]
struct FlagTranslation {
    scenario: Option<String>,
    out: Vec<String>,
    address: Option<String>,
    port: Option<String>,
    media_address: Option<String>,
    media_port: Option<String>,
    rate: Option<String>,
    period: Option<String>,
    /// Options of files that are named after the scenario.
    files: Vec<(&'static str, &'static str)>,
}

impl FlagTranslation {
    fn read(&mut self, words: &[&str]) -> Result<(), String> {
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word}: value missing"));
            match word {
                // The value of this own option may begin with a hyphen.
                "--behaviour" => {
                    let text = value()?;
                    self.both(word, text);
                }
                "-" | "-h" | "-V" => self.out.push(word.to_owned()),
                _ if word.starts_with("--") || !word.starts_with('-') => {
                    self.out.push(word.to_owned());
                }
                "-sf" => self.scenario = Some(value()?.to_owned()),
                "-i" => self.address = Some(value()?.to_owned()),
                "-p" => self.port = Some(value()?.to_owned()),
                "-mi" => self.media_address = Some(value()?.to_owned()),
                "-mp" => self.media_port = Some(value()?.to_owned()),
                "-timer_resol" => {
                    let text = value()?;
                    self.both("--batch", &microseconds(text)?);
                }
                "-r" => self.rate = Some(value()?.to_owned()),
                "-rp" => self.period = Some(milliseconds(word, value()?)?),
                "-d" => {
                    let text = value()?;
                    self.both("--hold", &milliseconds(word, text)?);
                }
                "-recv_timeout" => {
                    let text = value()?;
                    self.both("--receive-timeout", &milliseconds(word, text)?);
                }
                "-key" | "-set" => {
                    let option = if word == "-key" { "--key" } else { "--var" };
                    let name = value()?;
                    let text = format!("{name}={}", value()?);
                    self.both(option, &text);
                }
                "-infindex" => {
                    let file = value()?;
                    let text = format!("{file}:{}", value()?);
                    self.both("--index", &text);
                }
                "-timeout" => {
                    let text = value()?;
                    // SIPp makes no further calls then, and ends with the last open one.
                    self.both("--duration", &seconds(word, text, 1.0)?.to_string());
                }
                _ if ALWAYS_SO.contains(&word) => {}
                _ => self.other(word, &mut value)?,
            }
        }
        Ok(())
    }

    fn other<'w>(
        &mut self,
        word: &str,
        value: &mut dyn FnMut() -> Result<&'w str, String>,
    ) -> Result<(), String> {
        if let Some((_, ours)) = VALUES.iter().find(|(known, _)| *known == word) {
            self.both(ours, value()?);
        } else if let Some((_, ours)) = SWITCHES.iter().find(|(known, _)| *known == word) {
            self.out.push((*ours).to_owned());
        } else if let Some((_, ours, end)) = FILES.iter().find(|(known, _, _)| *known == word) {
            self.files.push((ours, end));
        } else if word == "-sn" {
            let name = value()?;
            return Err(format!(
                "-sn {name}: SIPp's built-in scenarios are not included; write it to a file with `sipp -sd {name}` and \
                 give that with -sf"
            ));
        } else if let Some((_, instead)) = REPLACED.iter().find(|(known, _)| *known == word) {
            return Err(format!("{word}: not supported; {instead}"));
        } else {
            return Err(format!(
                "{word}: neither an option of `lab run` nor one of SIPp's that is supported; `hornwork lab run --help` and \
                 docs/sipp.md list them"
            ));
        }
        Ok(())
    }

    fn both(&mut self, option: &str, value: &str) {
        // Joined, so that the value may begin with a hyphen.
        self.out.push(match option.strip_prefix("--") {
            Some(_) => format!("{option}={value}"),
            None => value.to_owned(),
        });
    }

    /// The complete command line for the parser.
    fn finish(mut self) -> Result<Vec<String>, String> {
        let rate = match (self.rate.take(), self.period.take()) {
            (rate, None) => rate,
            (rate, Some(period)) => {
                let number = |text: &str| text.parse::<f64>().ok().filter(|n| *n > 0.0);
                let rate = rate.unwrap_or_else(|| "10".to_owned());
                match (number(&rate), number(&period)) {
                    (Some(rate), Some(period)) => Some((rate * 1_000.0 / period).to_string()),
                    _ => {
                        return Err(format!(
                            "-r {rate} -rp {period}: must be calls per milliseconds"
                        ));
                    }
                }
            }
        };
        if let Some(rate) = rate {
            self.both("--rate", &rate);
        }
        for (option, address, port) in [
            ("--local", self.address.take(), self.port.take()),
            ("--media", self.media_address.take(), self.media_port.take()),
        ] {
            if let Some(joined) = joined(address, port) {
                self.both(option, &joined);
            }
        }
        let files = std::mem::take(&mut self.files);
        let named = self
            .scenario
            .iter()
            .chain(&self.out)
            .find(|word| word.ends_with(".xml"));
        let stem = named
            .map_or("scenario", |name| name.trim_end_matches(".xml"))
            .to_owned();
        for (option, end) in files {
            self.both(option, &format!("{stem}_{end}"));
        }
        // The scenario comes first, as our command line requires.
        let mut all: Vec<String> = self.scenario.take().into_iter().collect();
        all.append(&mut self.out);
        Ok(all)
    }
}

/// `ADDRESS`, `ADDRESS:PORT` or `:PORT`; `None` without both.
fn joined(address: Option<String>, port: Option<String>) -> Option<String> {
    match (address, port) {
        (address, None) => address,
        (Some(address), Some(port)) if address.contains(':') && !address.starts_with('[') => {
            Some(format!("[{address}]:{port}"))
        }
        (address, Some(port)) => Some(format!("{}:{port}", address.unwrap_or_default())),
    }
}

/// Converts SIPp's `-timer_resol` in milliseconds to microseconds.
fn microseconds(text: &str) -> Result<String, String> {
    let number = text.parse::<u64>().ok();
    let number = number.and_then(|ms| ms.checked_mul(1_000));
    number
        .map(|us| us.to_string())
        .ok_or_else(|| format!("-timer_resol {text}: must be a whole number of milliseconds"))
}

/// Converts SIPp's time format to seconds: `90`, `90s`, `500ms`, `2m`, `1h`. A number alone has the unit of the option.
fn seconds(option: &str, text: &str, unit_s: f64) -> Result<f64, String> {
    let bad = || format!("{option} {text}: must be a number, alone or with ms, s, m or h");
    let at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "" => unit_s,
        "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    Ok(number * factor)
}

/// The same in whole milliseconds, which a number alone has.
fn milliseconds(option: &str, text: &str) -> Result<String, String> {
    let ms = (seconds(option, text, 1e-3)? * 1e3).round();
    match (0.0..=1e15).contains(&ms) {
        true => Ok(format!("{ms:.0}")),
        false => Err(format!("{option} {text}: must not be negative")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<String, String> {
        let words = line.split(' ').map(OsString::from).collect();
        let out = translate(words)?;
        let out: Vec<_> = out.iter().map(|word| word.to_string_lossy()).collect();
        Ok(out.join(" "))
    }

    #[test]
    fn sipp_options_are_translated() {
        for (theirs, ours) in [
            (
                "hornwork lab run -r 5 -m 100 -s 600 -sf a.xml -key domain x.org 10.0.0.1",
                "hornwork lab run a.xml --calls=100 --service=600 --key=domain=x.org 10.0.0.1 --rate=5",
            ),
            (
                "hornwork lab run -sf a.xml h -i 127.0.0.1 -p 5070 -r 3 -rp 2000",
                "hornwork lab run a.xml h --rate=1.5 --local=127.0.0.1:5070",
            ),
            (
                "hornwork lab run a.xml h -i ::1 -p 5070 -timeout 2m -trace_msg",
                "hornwork lab run a.xml h --duration=120 --local=[::1]:5070 --trace=a_messages.log",
            ),
            (
                "hornwork lab run a.xml h -d 1.5s -recv_timeout 2000 -r 5 -rp 2s",
                "hornwork lab run a.xml h --hold=1500 --receive-timeout=2000 --rate=2.5",
            ),
            (
                "hornwork lab run a.xml h -mp 7000 -nd -timer_resol 10",
                "hornwork lab run a.xml h --behaviour=none --batch=10000 --media=:7000",
            ),
            (
                "hornwork lab run a.xml h -mi 127.0.0.2 -mp 7000 -i 127.0.0.1",
                "hornwork lab run a.xml h --local=127.0.0.1 --media=127.0.0.2:7000",
            ),
            ("hornwork check -c a", "hornwork check -c a"),
            ("hornwork lab run x --json -", "hornwork lab run x --json -"),
        ] {
            assert_eq!(of(theirs).unwrap(), ours);
        }
    }

    #[test]
    fn unsupported_options_are_rejected_by_name() {
        for (line, word) in [
            ("hornwork lab run a.xml -3pcc x", "-3pcc"),
            ("hornwork lab run -sn uac h", "-sd uac"),
            ("hornwork lab run a.xml -m", "-m: value missing"),
            ("hornwork lab run a.xml -timeout 3x", "-timeout 3x"),
            ("hornwork lab run a.xml -d 3d", "-d 3d"),
            ("hornwork lab run a.xml -d -3", "must not be negative"),
            ("hornwork lab run a.xml -timer_resol 1.5", "whole number"),
            (
                "hornwork lab run a.xml -rate_max 50",
                "use --rate-to and --ramp",
            ),
        ] {
            let error = of(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    /// The options of the page's left column, with a value for each that has one.
    #[test]
    fn every_option_of_the_page_is_translated() {
        let page = include_str!("../../../docs/sipp.md");
        let rows = page
            .lines()
            .skip_while(|line| !line.starts_with("| SIPp | here"))
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let mut tried = 0;
        for row in rows {
            let theirs = row.split('|').nth(1).unwrap_or_default();
            for option in theirs.split('`').filter(|text| text.starts_with('-')) {
                let words: Vec<&str> = option.split(' ').collect();
                let is_switch = SWITCHES.iter().any(|(known, _)| *known == words[0])
                    || ALWAYS_SO.contains(&words[0])
                    || FILES.iter().any(|(known, ..)| *known == words[0]);
                let values = match (is_switch, words.len()) {
                    (true, _) => String::new(),
                    // 1 serves as a number, a name and an address.
                    (false, 1) => " 1".to_owned(),
                    (false, _) => format!(" {}", words[1..].join(" ")),
                };
                let line = format!("hornwork lab run a.xml h {}{values}", words[0]);
                let out = of(&line).unwrap_or_else(|error| panic!("{row}: {error}"));
                assert!(out.split(' ').all(|word| word != words[0]), "{out}");
                tried += 1;
            }
        }
        assert!(tried > 35, "{tried}");
    }
}
