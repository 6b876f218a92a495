//! The options of `hornwork lab run SCENARIO.xml`.

use clap::Args;
use lab::LabError;
use lab::sipp::ScenarioOptions;
use lab::tls::TlsSettings;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

const HEADING: &str = "SIPp scenarios";

/// Options for SIPp scenarios; docs/sipp.md lists SIPp's names beside these. All are optional, so that their use with
/// an experiment can be detected.
#[derive(Debug, Default, PartialEq, Args)]
#[command(next_help_heading = HEADING)]
pub struct Scenario {
    /// Targets of calls, HOST[:PORT]; the threads use several in turn. None if the scenario takes calls.
    targets: Vec<String>,
    /// Calls per second [default: 10].
    #[arg(long)]
    rate: Option<f64>,
    /// Final call rate, reached linearly within --ramp.
    #[arg(long)]
    rate_to: Option<f64>,
    /// Duration of the ramp.
    #[arg(long, value_name = "SECONDS")]
    ramp: Option<f64>,
    /// Exponentially distributed intervals between calls (Poisson arrivals) instead of constant ones.
    #[arg(long)]
    poisson: bool,
    /// Limit of open calls; further calls are delayed, and their lateness is reported separately, in no response time.
    #[arg(long, value_name = "CALLS")]
    limit: Option<u64>,
    /// Number of calls; the run ends after the last one.
    #[arg(long)]
    calls: Option<u64>,
    /// Time in which calls begin or are accepted; the run ends with the last open call.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Time after which the run ends; open calls count as failed.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// The run fails if it does not end before --timeout.
    #[arg(long, requires = "timeout")]
    timeout_fails: bool,
    /// Send all messages of calls to this HOST[:PORT], such as an outbound proxy; the keywords have the target.
    #[arg(long, value_name = "HOST[:PORT]")]
    send_to: Option<String>,
    /// Length of pauses without a length.
    #[arg(long, value_name = "MILLISECONDS")]
    hold: Option<u64>,
    /// Keep this number of calls open, one per user, instead of a rate.
    #[arg(long, value_name = "USERS")]
    users: Option<u64>,
    /// Value of [service], and default user name for digest [default: service].
    #[arg(long)]
    service: Option<String>,
    /// Injection file (SEQUENTIAL, RANDOM, USER, PRINTF); may be given several times.
    #[arg(long, value_name = "FILE")]
    inject: Vec<PathBuf>,
    /// Index an injection file by a field, for <lookup>.
    #[arg(long, value_name = "FILE:FIELD")]
    index: Vec<String>,
    /// Define a keyword: --key domain=example.org for [domain].
    #[arg(long, value_name = "NAME=VALUE")]
    key: Vec<String>,
    /// Initial value of a global variable.
    #[arg(long, value_name = "NAME=VALUE")]
    var: Vec<String>,
    /// Local address and first port; threads use consecutive ports [default: the address of the route to the target;
    /// port 5060 if the scenario takes calls].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    local: Option<String>,
    /// Local address and first port for media [default: the local address, 6000].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    media: Option<String>,
    /// udp, tcp or tls, or SIPp's -t values: u1, un, t1, tn, l1, ln [default: udp].
    #[arg(long, short = 't')]
    transport: Option<String>,
    /// Own certificate with its chain (PEM), for tls: required if the scenario takes calls.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Trusted authorities (PEM) instead of the system's.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Name that the peer's certificate must contain [default: the target's host].
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Accept any certificate of the peer.
    #[arg(long)]
    tls_no_verify: bool,
    /// Use a separate socket or connection for each call.
    #[arg(long)]
    per_call: bool,
    /// User name for digest.
    #[arg(long)]
    username: Option<String>,
    /// Password for digest [default: password].
    #[arg(long)]
    password: Option<String>,
    /// Digest uri instead of the Request-URI.
    #[arg(long, value_name = "URI")]
    digest_uri: Option<String>,
    /// Automatic behaviour of calls: all, none, bye, abort, ping, separated by commas, with a leading minus to exclude
    /// [default: all].
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    behaviour: Option<String>,
    /// Answer unexpected INFO, NOTIFY, OPTIONS and UPDATE.
    #[arg(long)]
    auto_answer: bool,
    /// Longest wait for a message.
    #[arg(long, value_name = "MILLISECONDS")]
    receive_timeout: Option<u64>,
    /// Retransmissions before a call fails [default: 5 of an INVITE, 7 of others].
    #[arg(long, value_name = "COUNT")]
    retransmissions: Option<u32>,
    /// Disable retransmissions.
    #[arg(long)]
    no_retransmissions: bool,
    /// Initial [cseq] [default: 1].
    #[arg(long, value_name = "NUMBER")]
    base_cseq: Option<u32>,
    /// Pattern of Call-IDs: %u number of the call, %p [pid], %s local address [default: %u-%p@%s].
    #[arg(long, value_name = "PATTERN")]
    call_id: Option<String>,
    /// Send received media back to its source.
    #[arg(long)]
    rtp_echo: bool,
    /// Share of the packets of an audio pattern (rtp_stream) whose payload does not come back from which on the run has
    /// failed, 0 to 1 [default: 1].
    #[arg(long, value_name = "SHARE")]
    audio_tolerance: Option<f64>,
    /// The same for video patterns [default: 1].
    #[arg(long, value_name = "SHARE")]
    video_tolerance: Option<f64>,
    /// Drop this percentage of messages in both directions.
    #[arg(long, value_name = "PERCENT")]
    loss: Option<f64>,
    /// Number of threads, each with sockets of its own and its share of the load [default: 1].
    #[arg(long)]
    threads: Option<u64>,
    /// Batching delay: calls due within this time are started together, and messages are delayed as long; saves CPU
    /// time at the cost of lateness [default: 500].
    #[arg(long, value_name = "MICROSECONDS")]
    batch: Option<u64>,
    /// Run the commands of <exec command=...> in the scenario.
    #[arg(long)]
    allow_commands: bool,
    /// Write every message to this file.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the lines of <log> to this file.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write statistics per second to this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// With --simulate: the scenario of the peer.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

/// Whether `name` is a scenario rather than an experiment: a file with the extension of XML, or that begins so.
pub fn is_scenario(name: &str) -> bool {
    let path = Path::new(name);
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("xml")) || begins_as_xml(path)
}

fn begins_as_xml(path: &Path) -> bool {
    // Reading a pipe would take the bytes from the experiment that it has.
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let mut begin = [0; 64];
    let read = File::open(path).and_then(|mut file| file.read(&mut begin));
    let begin = begin.get(..read.unwrap_or(0)).unwrap_or_default();
    let begin = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(begin);
    begin.trim_ascii_start().first() == Some(&b'<')
}

impl Scenario {
    /// Rejects scenario options with an experiment.
    pub fn none_given(&self) -> Result<(), LabError> {
        if *self == Scenario::default() {
            return Ok(());
        }
        if let Some(target) = self.targets.first() {
            return Err(LabError::bad_input(format!(
                "{target}: targets apply to SIPp scenarios (.xml) only; an experiment names its system under test in [sut]"
            )));
        }
        Err(LabError::bad_input(
            "the options under \"SIPp scenarios\" apply to .xml files only; change an experiment with --set",
        ))
    }

    /// Converts to the test lab's options.
    pub fn options(self) -> Result<ScenarioOptions, LabError> {
        let defaults = ScenarioOptions::default();
        Ok(ScenarioOptions {
            targets: self.targets,
            rate: self.rate,
            rate_to: self.rate_to,
            ramp: self.ramp.unwrap_or(defaults.ramp),
            poisson: self.poisson,
            limit: self.limit,
            calls: self.calls,
            duration: self.duration,
            timeout: self.timeout,
            timeout_fails: self.timeout_fails,
            send_to: self.send_to,
            hold: self.hold.unwrap_or(defaults.hold),
            users: self.users.unwrap_or(defaults.users),
            service: self.service.unwrap_or(defaults.service),
            inject: self.inject,
            index: self.index,
            keys: self.key,
            variables: self.var,
            local: self.local,
            media: self.media,
            transport: self.transport.unwrap_or(defaults.transport),
            tls: TlsSettings {
                verify: !self.tls_no_verify,
                ca: self.tls_ca,
                certificate: self.tls_cert,
                key: self.tls_key,
                name: self.tls_name.unwrap_or_default(),
            },
            per_call: self.per_call,
            username: self.username,
            password: self.password.unwrap_or(defaults.password),
            digest_uri: self.digest_uri,
            behaviour: self.behaviour.unwrap_or(defaults.behaviour),
            auto_answer: self.auto_answer,
            receive_timeout: self.receive_timeout,
            retransmissions: self.retransmissions,
            no_retransmissions: self.no_retransmissions,
            base_cseq: self.base_cseq.unwrap_or(defaults.base_cseq),
            call_id: self.call_id.unwrap_or(defaults.call_id),
            echo: self.rtp_echo,
            tolerances: [self.audio_tolerance, self.video_tolerance]
                .map(|tolerance| tolerance.unwrap_or(1.0)),
            lost: self.loss.unwrap_or(defaults.lost),
            threads: self.threads.unwrap_or(defaults.threads),
            batch: self.batch.unwrap_or(defaults.batch),
            allow_commands: self.allow_commands,
            trace: self.trace,
            log: self.log,
            csv: self.csv,
            against: self.against,
            ..ScenarioOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_are_known_by_name_or_content() {
        let file = std::env::temp_dir().join(format!("hornwork-scenario-{}", std::process::id()));
        let name = file.to_str().unwrap();
        assert!(is_scenario("uac.XML") && !is_scenario("call-rate") && !is_scenario(name));
        for (text, is_one) in [
            ("\u{feff}\n <?xml version=\"1.0\"?>", true),
            ("<scenario/>", true),
            ("[callers]\n", false),
            ("", false),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(is_scenario(name), is_one, "{text:?}");
        }
        std::fs::remove_file(&file).unwrap();
    }
}
