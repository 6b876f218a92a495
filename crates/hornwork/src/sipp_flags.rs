//! Translates SIPp's own options for `hornwork lab run`: `-sf FILE -r 5 -m 100 -s 600`.
//!
//! SIPp's long options have one hyphen, which clap does not support, so they are rewritten before parsing. An option
//! without a counterpart is rejected by name.

use std::ffi::OsString;

/// Options with a value and a counterpart.
const VALUES: [(&str, &str); 20] = [
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
    ("-rsa", "--send-to"),
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

/// Options that request the default behaviour: errors go to standard error, standard input is not read, sockets have
/// the local address, and as many files are opened as the limit permits.
const ALWAYS_SO: [&str; 4] = ["-trace_err", "-nostdin", "-bind_local", "-skip_rlimit"];

/// Options whose only value that is supported is the default.
const ALWAYS_AS: [(&str, &[&str]); 3] = [
    ("-message_overwrite", &["true", "1"]),
    ("-log_overwrite", &["true", "1"]),
    ("-rtcheck", &["full"]),
];

const RESULT: &str = "the result is printed at the end";
const ERRORS: &str = "warnings and errors are on standard error";
const MESSAGES: &str = "--trace FILE has all messages";
const SECONDS: &str = "figures are of each second";
const NO_PORT: &str = "there is no control port";
const NO_WATCHDOG: &str = "the lateness of calls is part of the result";
const OWN_LOOP: &str = "sockets and timers are served otherwise";

/// Options of screens, logs and inner loops, which change no call: name, number of values, and the reason why they are
/// not needed.
const IGNORED: [(&str, usize, &str); 34] = [
    ("-trace_screen", 0, RESULT),
    ("-screen_file", 1, RESULT),
    ("-screen_overwrite", 1, RESULT),
    (
        "-trace_counts",
        0,
        "--json FILE has the counts of each step",
    ),
    ("-trace_rtt", 0, RESULT),
    ("-rtt_freq", 1, RESULT),
    ("-trace_shortmsg", 0, MESSAGES),
    ("-shortmessage_file", 1, MESSAGES),
    ("-shortmessage_overwrite", 1, MESSAGES),
    ("-error_file", 1, ERRORS),
    ("-error_overwrite", 1, ERRORS),
    ("-trace_error_codes", 0, ERRORS),
    ("-trace_calldebug", 0, MESSAGES),
    ("-calldebug_file", 1, MESSAGES),
    ("-calldebug_overwrite", 1, MESSAGES),
    ("-f", 1, SECONDS),
    ("-fd", 1, SECONDS),
    ("-ci", 1, NO_PORT),
    ("-cp", 1, NO_PORT),
    ("-rate_scale", 1, "no keys change the rate"),
    ("-max_socket", 1, "the limit is that of open files"),
    ("-buff_size", 1, OWN_LOOP),
    ("-max_recv_loops", 1, OWN_LOOP),
    ("-max_sched_loops", 1, OWN_LOOP),
    ("-mb", 1, OWN_LOOP),
    ("-rtp_threadtasks", 1, OWN_LOOP),
    ("-rtp_buffsize", 1, OWN_LOOP),
    ("-deadcall_wait", 1, "ended calls are remembered for 4 s"),
    ("-watchdog_interval", 1, NO_WATCHDOG),
    ("-watchdog_reset", 1, NO_WATCHDOG),
    ("-watchdog_minor_threshold", 1, NO_WATCHDOG),
    ("-watchdog_major_threshold", 1, NO_WATCHDOG),
    ("-watchdog_minor_maxtriggers", 1, NO_WATCHDOG),
    ("-watchdog_major_maxtriggers", 1, NO_WATCHDOG),
];

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

/// Options that name these files.
const FILE_NAMES: [(&str, &str); 3] = [
    ("-message_file", "--trace"),
    ("-log_file", "--log"),
    ("-stf", "--csv"),
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
    for warning in &reading.warnings {
        eprintln!("warning: {warning}");
    }
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
    /// Options of files with their names.
    names: Vec<(&'static str, String)>,
    /// Seconds of `-timeout`, and whether the run fails then.
    timeout_s: Option<f64>,
    timeout_fails: bool,
    warnings: Vec<String>,
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
                "-timeout" => self.timeout_s = Some(seconds(word, value()?, 1.0)?),
                "-timeout_error" => self.timeout_fails = true,
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
        } else if let Some((_, ours)) = FILE_NAMES.iter().find(|(known, _)| *known == word) {
            self.names.push((ours, value()?.to_owned()));
        } else if let Some((_, count, why)) = IGNORED.iter().find(|(known, ..)| *known == word) {
            for _ in 0..*count {
                value()?;
            }
            self.warnings.push(format!("{word} is not needed: {why}"));
        } else if let Some((_, only)) = ALWAYS_AS.iter().find(|(known, _)| *known == word) {
            let text = value()?;
            if !only.contains(&text) {
                let only = only.first().copied().unwrap_or_default();
                return Err(format!("{word} {text}: not supported; it is always {only}"));
            }
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
        if let Some(seconds) = self.timeout_s {
            match self.timeout_fails {
                // The run ends then, and fails.
                true => {
                    self.both("--timeout", &seconds.to_string());
                    self.out.push("--timeout-fails".to_owned());
                }
                // SIPp makes no further calls then, and ends with the last open one.
                false => self.both("--duration", &seconds.to_string()),
            }
        }
        let files = std::mem::take(&mut self.files);
        let mut names = std::mem::take(&mut self.names);
        let named = self
            .scenario
            .iter()
            .chain(&self.out)
            .find(|word| word.ends_with(".xml"));
        let stem = named
            .map_or("scenario", |name| name.trim_end_matches(".xml"))
            .to_owned();
        for (option, end) in files {
            if !names.iter().any(|(known, _)| *known == option) {
                names.push((option, format!("{stem}_{end}")));
            }
        }
        for (option, name) in names {
            self.both(option, &name);
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
                "hornwork lab run a.xml h --local=[::1]:5070 --duration=120 --trace=a_messages.log",
            ),
            // A named file takes the place of that of the scenario.
            (
                "hornwork lab run a.xml h -trace_msg -message_file m.log -trace_stat -trace_logs -log_file l",
                "hornwork lab run a.xml h --trace=m.log --log=l --csv=a_statistics.csv",
            ),
            (
                "hornwork lab run -timeout_error a.xml h -timeout 25s",
                "hornwork lab run a.xml h --timeout=25 --timeout-fails",
            ),
            (
                "hornwork lab run a.xml h -timeout_error",
                "hornwork lab run a.xml h",
            ),
            (
                "hornwork lab run a.xml h -trace_screen -screen_file s -fd 1 -bind_local -rtcheck full -message_overwrite true",
                "hornwork lab run a.xml h",
            ),
            (
                "hornwork lab run a.xml h -rsa 10.0.0.9:5080",
                "hornwork lab run a.xml h --send-to=10.0.0.9:5080",
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
            ("hornwork lab run a.xml -rtcheck loose", "it is always full"),
            (
                "hornwork lab run a.xml -log_overwrite false",
                "it is always true",
            ),
            (
                "hornwork lab run a.xml -error_file",
                "-error_file: value missing",
            ),
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
                    || words[0] == "-timeout_error"
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
