//! The options of `hornwork lab run SCENARIO.xml`.

use clap::Args;
use lab::LabError;
use lab::sipp::ScenarioOptions;
use lab::tls::TlsSettings;
use std::path::{Path, PathBuf};

const HEADING: &str = "SIPp scenarios";

/// Options for SIPp scenarios; docs/sipp.md has SIPp's names beside these. Everything is optional, so that one given with an
/// experiment can be told.
#[derive(Debug, Default, PartialEq, Args)]
#[command(next_help_heading = HEADING)]
pub struct Scenario {
    /// Where calls go, HOST[:PORT]; several are taken by the threads in turn. None where the scenario takes calls.
    targets: Vec<String>,
    /// Calls per second [default: 10].
    #[arg(long)]
    rate: Option<f64>,
    /// The rate to which it changes evenly within --ramp, and stays.
    #[arg(long)]
    rate_to: Option<f64>,
    /// Seconds of the change.
    #[arg(long, value_name = "SECONDS")]
    ramp: Option<f64>,
    /// Exponentially distributed gaps between calls instead of equal ones.
    #[arg(long)]
    poisson: bool,
    /// Open calls at a time, at most; calls beyond it are held back and told apart.
    #[arg(long, value_name = "CALLS")]
    limit: Option<u64>,
    /// Calls in total; the run ends with the last one.
    #[arg(long)]
    calls: Option<u64>,
    /// Seconds for which calls are begun.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Seconds after which everything ends, open calls as failed.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Length of pauses that say none.
    #[arg(long, value_name = "MILLISECONDS")]
    hold: Option<u64>,
    /// Keep so many calls open, each by a user of its own, instead of a rate.
    #[arg(long, value_name = "USERS")]
    users: Option<u64>,
    /// [service], and the user name of digest where none is given [default: service].
    #[arg(long)]
    service: Option<String>,
    /// An injection file (SEQUENTIAL, RANDOM, USER, PRINTF); may be given several times.
    #[arg(long, value_name = "FILE")]
    inject: Vec<PathBuf>,
    /// Make the lines of an injection file findable by a field, for <lookup>.
    #[arg(long, value_name = "FILE:FIELD")]
    index: Vec<String>,
    /// A keyword of your own: --key domain=example.org for [domain].
    #[arg(long, value_name = "NAME=VALUE")]
    key: Vec<String>,
    /// The value of a global variable at the start.
    #[arg(long, value_name = "NAME=VALUE")]
    var: Vec<String>,
    /// Our address and first port; threads take the ports from there on [default: the way to the target; 5060 where calls
    /// are taken].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    local: Option<String>,
    /// Address and first port for media [default: the local address, 6000].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    media: Option<String>,
    /// udp, tcp or tls, or as SIPp's -t says it: u1, un, t1, tn, l1, ln [default: udp].
    #[arg(long, short = 't')]
    transport: Option<String>,
    /// Our certificate with its chain (PEM), for tls: needed where calls are taken.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Authorities (PEM) that are trusted instead of the system's.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Whom the peer's certificate must stand for [default: the target's host].
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// Take any certificate of the peer's.
    #[arg(long)]
    tls_no_verify: bool,
    /// A socket or connection of its own for each call.
    #[arg(long)]
    per_call: bool,
    /// User name of digest.
    #[arg(long)]
    username: Option<String>,
    /// Password of digest [default: password].
    #[arg(long)]
    password: Option<String>,
    /// The uri of digest instead of the request's.
    #[arg(long, value_name = "URI")]
    digest_uri: Option<String>,
    /// What calls do by themselves: all, none, bye, abort, ping, between commas, each perhaps behind a minus sign
    /// [default: all].
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    behaviour: Option<String>,
    /// Answer INFO, NOTIFY, OPTIONS and UPDATE where they are not expected.
    #[arg(long)]
    auto_answer: bool,
    /// Longest wait for a message.
    #[arg(long, value_name = "MILLISECONDS")]
    receive_timeout: Option<u64>,
    /// Retransmissions before a call fails [default: 5 of an INVITE, 7 of others].
    #[arg(long, value_name = "COUNT")]
    retransmissions: Option<u32>,
    /// Never retransmit.
    #[arg(long)]
    no_retransmissions: bool,
    /// First [cseq] [default: 1].
    #[arg(long, value_name = "NUMBER")]
    base_cseq: Option<u32>,
    /// Pattern of Call-IDs: %u number of the call, %p [pid], %s our address [default: %u-%p@%s].
    #[arg(long, value_name = "PATTERN")]
    call_id: Option<String>,
    /// Send media back to where it came from.
    #[arg(long)]
    rtp_echo: bool,
    /// Messages that are made to be lost, both ways.
    #[arg(long, value_name = "PERCENT")]
    loss: Option<f64>,
    /// Threads, each with sockets of its own and its share of the plan [default: 1].
    #[arg(long)]
    threads: Option<u64>,
    /// Calls due within this time of each other are begun together, and messages may wait as long for company: CPU time
    /// against lateness [default: 500].
    #[arg(long, value_name = "MICROSECONDS")]
    batch: Option<u64>,
    /// Carry out the scenario's <exec command=...>.
    #[arg(long)]
    allow_commands: bool,
    /// Write every message to this file.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the lines of <log> to this file.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write the figures of every second to this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// With --simulate: the scenario of the other end.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
}

/// Whether this names a scenario rather than an experiment.
pub fn is_scenario(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("xml"))
}

impl Scenario {
    /// Refuses what was given with an experiment.
    pub fn none_given(&self) -> Result<(), LabError> {
        if *self == Scenario::default() {
            return Ok(());
        }
        if let Some(target) = self.targets.first() {
            return Err(LabError::bad(format!(
                "{target}: targets are for SIPp scenarios (.xml); an experiment names its subject"
            )));
        }
        Err(LabError::bad(
            "the options under \"SIPp scenarios\" are for .xml files; change an experiment with --set",
        ))
    }

    /// As the laboratory takes them.
    pub fn options(self) -> Result<ScenarioOptions, LabError> {
        let defaults = ScenarioOptions::default();
        Ok(ScenarioOptions {
            targets: self.targets,
            rate: self.rate.unwrap_or(defaults.rate),
            rate_to: self.rate_to,
            ramp: self.ramp.unwrap_or(defaults.ramp),
            poisson: self.poisson,
            limit: self.limit,
            calls: self.calls,
            duration: self.duration,
            timeout: self.timeout,
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
