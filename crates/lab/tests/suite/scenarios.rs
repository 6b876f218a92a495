//! SIPp scenarios in virtual time and against handwritten bytes: sent messages, expected messages, rejections by name.

use engine::{Datagram, Engine, Entropy, Input, Output, SocketId, Time};
use lab::sipp::compile::compile;
use lab::sipp::engine::{Effect, GeneratorParts, ScenarioGenerator};
use lab::sipp::inject::Injection;
use lab::sipp::options::load;
use lab::sipp::outcome::ScenarioResult;
use lab::sipp::program::ScenarioProgram;
use lab::sipp::run::simulate;
use lab::sipp::schedule::CallLimits;
use lab::sipp::settings::ScenarioSettings;
use lab::sipp::stats::CallFailure;
use lab::sipp::template::NameTable;
use lab::sipp::{ScenarioOptions, xml};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn testdata() -> Option<PathBuf> {
    let folder = std::env::var_os("HORNWORK_TESTDATA")
        .map_or_else(|| root().join("../shared/testdata"), PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: testdata absent");
    None
}

fn program(text: &str, files: &[Injection]) -> Result<ScenarioProgram, String> {
    let root = xml::read(text.as_bytes()).map_err(|mistake| mistake.to_string())?;
    let mut names = NameTable::default().with_files(files);
    compile(&root, &mut names).map_err(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })
}

const PEER: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)),
    5060,
);

/// One generator, driven by hand.
pub(super) struct GeneratorBench {
    pub(super) generator: ScenarioGenerator,
    now: Time,
    pub(super) sent: Vec<String>,
    pub(super) effects: Vec<Effect>,
}

impl GeneratorBench {
    pub(super) fn new(
        text: &str,
        settings: ScenarioSettings,
        files: Vec<Injection>,
    ) -> GeneratorBench {
        let program = program(text, &files).unwrap();
        let parts = GeneratorParts {
            program,
            settings: ScenarioSettings {
                remote: Some(PEER),
                ..settings
            },
            files,
            recordings: Vec::new(),
            sounds: BTreeMap::new(),
        };
        let mut bench = GeneratorBench {
            generator: ScenarioGenerator::new(parts, Entropy::from_number(1)),
            now: Time::ZERO,
            sent: Vec::new(),
            effects: Vec::new(),
        };
        bench.give(Input::Timeout);
        bench.give(Input::Opened {
            socket: SocketId(0),
            local: "127.0.0.1:5070".parse().unwrap(),
        });
        bench.give(Input::Timeout);
        bench
    }

    fn give(&mut self, input: Input<'_>) {
        self.generator.handle(input, self.now);
        while let Some(output) = self.generator.next_output() {
            if let Output::Datagram { bytes, .. } = output {
                self.sent.push(String::from_utf8_lossy(bytes).into_owned());
            }
        }
        self.effects.extend(self.generator.effects());
    }

    pub(super) fn hear(&mut self, text: &str) {
        let mut bytes = text.replace('\n', "\r\n").into_bytes();
        self.give(Input::Datagram(Datagram {
            socket: SocketId(0),
            source: PEER,
            arrived: self.now,
            bytes: &mut bytes,
        }));
    }

    /// Answers the last request with its own headers.
    pub(super) fn answer(&mut self, start: &str) {
        let request = self.sent.last().cloned().unwrap_or_default();
        let rest = request.split_once("\r\n").map_or("", |(_, rest)| rest);
        let rest = rest.split("\r\n\r\n").next().unwrap_or_default();
        self.hear(&format!("{start}\n{}\n\n", rest.replace("\r\n", "\n")));
    }

    pub(super) fn wait(&mut self, milliseconds: u64) {
        let end = Time(self.now.0 + milliseconds * 1_000_000);
        while let Some(deadline) = self.generator.next_deadline().filter(|next| next.at <= end) {
            self.now = self.now.max(deadline.at);
            self.give(Input::Timeout);
        }
        self.now = end;
    }

    fn failed(&self, failure: CallFailure) -> u64 {
        self.generator.statistics().failed[failure as usize]
    }
}

pub(super) fn calls(total: u64) -> ScenarioSettings {
    ScenarioSettings {
        limits: CallLimits {
            total: Some(total),
            ..CallLimits::default()
        },
        ..ScenarioSettings::default()
    }
}

/// A request with the headers that every test needs.
pub(super) fn request(method: &str, more: &str) -> String {
    format!(
        "<send retrans=\"500\"><![CDATA[\n{method} sip:[service]@[remote_ip]:[remote_port] SIP/2.0\n\
        Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]\nFrom: <sip:a@[local_ip]>;tag=[call_number]\n\
        To: <sip:b@[remote_ip]>[peer_tag_param]\nCall-ID: [call_id]\nCSeq: [cseq] {method}\n{more}\nContent-Length: 0\n]]></send>"
    )
}

#[test]
fn unsupported_parts_are_rejected_by_name_and_line() {
    let cases = [
        (
            "<scenario>\n<sendCmd/></scenario>",
            "2: <sendCmd> is not supported",
        ),
        (
            "<scenario>\n\n<recvCmd/></scenario>",
            "3: <recvCmd> is not supported",
        ),
        (
            "<scenario>\n<nop><action>\n<play_dtmf/></action></nop></scenario>",
            "3: the action <play_dtmf> is not supported",
        ),
        (
            "<scenario>\n<nop><action><exec play=\"x\"/></action></nop></scenario>",
            "play is not supported",
        ),
        (
            "<scenario>\n<send><![CDATA[\nOPTIONS sip:x SIP/2.0\nX: [tdmmap]\n]]></send></scenario>",
            "2: <send>: the keyword [tdmmap] is not supported",
        ),
        (
            "<scenario>\n<pause distribution=\"cauchy\"/></scenario>",
            "2: <pause>: the distribution cauchy is not supported",
        ),
        (
            "<scenario>\n<recv response=\"200\" next=\"nowhere\"/></scenario>",
            "2: there is no label nowhere",
        ),
        (
            "<scenario>\n<recv response=\"2xx\"/></scenario>",
            "2: <recv>: response: expected a status code",
        ),
        (
            "<scenario>\n<nop><action><ereg regexp=\"(\" assign_to=\"1\"/></action></nop></scenario>",
            "is not a regular expression",
        ),
        (
            "<scenario>\n<init><send/></init><nop/></scenario>",
            "2: <send> inside <init>",
        ),
        ("<scenario></scenario>", "a scenario without"),
        ("<other/>", "<other> instead of <scenario>"),
    ];
    for (text, wanted) in cases {
        let error = program(text, &[]).unwrap_err();
        assert!(error.contains(wanted), "{text}\n{error}");
    }
    // SIPp ignores unknown attributes; the lab does too, with a warning.
    let passed = program("<scenario>\n<nop frobnicate=\"1\"/></scenario>", &[]).unwrap();
    let warnings: Vec<&str> = passed.warnings.iter().map(|w| w.text.as_str()).collect();
    assert_eq!(
        warnings,
        ["<nop>: the attribute frobnicate=\"1\" is ignored, as in SIPp"]
    );
    let alone = program("<scenario>\n<User variables=\"x\"/><nop/></scenario>", &[]).unwrap();
    assert!(alone.warnings[0].text.contains("--users"));
    let never = program("<scenario>\n<recv/></scenario>", &[]).unwrap();
    assert!(never.warnings[0].text.contains("no message matches"));
    // All errors in one pass.
    let error = program("<scenario>\n<a/>\n<b/>\n</scenario>", &[]).unwrap_err();
    assert_eq!(error.lines().count(), 2);
}

/// An ICMP error for a sent message, counted from the last one; it quotes the first bytes.
fn undelivered(bench: &mut GeneratorBench, back: usize) {
    let sent = bench
        .sent
        .iter()
        .rev()
        .nth(back)
        .expect("a message")
        .clone();
    bench.give(Input::Unreachable {
        socket: SocketId(0),
        destination: PEER,
        bytes: &sent.as_bytes()[..sent.len().min(120)],
    });
}

#[test]
fn icmp_errors_end_a_call_at_its_second_message() {
    let text = format!(
        "<scenario>{}<recv response=\"200\"/></scenario>",
        request("OPTIONS", "")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    undelivered(&mut bench, 0);
    assert_eq!(bench.generator.absent(), None, "the peer may be starting");
    bench.wait(600);
    assert_eq!(bench.sent.len(), 2, "a retransmission");
    undelivered(&mut bench, 0);
    assert_eq!(bench.failed(CallFailure::Unreachable), 1);
    assert_eq!(bench.generator.absent(), Some(PEER));
    // Of a peer that answers later nothing is left.
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    undelivered(&mut bench, 0);
    bench.wait(600);
    bench.answer("SIP/2.0 200 OK");
    assert_eq!(bench.generator.statistics().successful, 1);
    assert!(bench.generator.is_done() && bench.generator.absent().is_none());
}

#[test]
fn icmp_errors_of_a_peer_that_answered_before_fail_their_call_only() {
    let text = format!(
        "<scenario>{}<recv response=\"200\"/></scenario>",
        request("OPTIONS", "")
    );
    let mut settings = calls(2);
    // Without retransmissions the first error is the only one.
    settings.retransmits = false;
    let mut bench = GeneratorBench::new(&text, settings, Vec::new());
    bench.answer("SIP/2.0 200 OK");
    bench.wait(1_000);
    assert_eq!(bench.sent.len(), 2);
    // The error of another message concerns no call.
    bench.give(Input::Unreachable {
        socket: SocketId(0),
        destination: PEER,
        bytes: b"OPTIONS sip:other",
    });
    assert_eq!(bench.failed(CallFailure::Unreachable), 0);
    undelivered(&mut bench, 0);
    assert_eq!(bench.failed(CallFailure::Unreachable), 1);
    assert_eq!(bench.generator.absent(), None);
    assert!(bench.generator.is_done());
}

#[test]
fn call_is_retransmitted_answered_and_ended() {
    let text = format!(
        "<scenario>{}<recv response=\"100\" optional=\"true\"/><recv response=\"200\" rtd=\"true\"/>{}<pause milliseconds=\"1000\"/>{}<recv response=\"200\"/></scenario>",
        request("INVITE", ""),
        request("ACK", "").replace(" retrans=\"500\"", ""),
        request("BYE", "")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    assert_eq!(bench.sent.len(), 1);
    assert!(bench.sent[0].starts_with("INVITE sip:service@10.0.0.2:5060 SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:5070;branch=z9hG4bK-1-1-0\r\n"));
    assert!(bench.sent[0].contains("CSeq: 1 INVITE\r\n"));
    // T1, then twice as long (RFC 3261 section 17.1.1.2).
    bench.wait(499);
    assert_eq!(bench.sent.len(), 1);
    bench.wait(3);
    assert_eq!(bench.sent.len(), 2);
    bench.wait(1_003);
    assert_eq!(bench.sent.len(), 3);
    assert_eq!(bench.sent[2], bench.sent[0]);
    bench.answer("SIP/2.0 100 Trying");
    bench.wait(10_000);
    assert_eq!(bench.sent.len(), 3, "a provisional answer ends it");
    let ok = bench.sent[0]
        .split_once("\r\n")
        .unwrap()
        .1
        .replace("To: <sip:b@10.0.0.2>", "To: <sip:b@10.0.0.2>;tag=peer")
        .replace("\r\n", "\n");
    let ok = format!("SIP/2.0 200 OK\n{ok}");
    bench.hear(&ok);
    assert_eq!(bench.sent.len(), 4);
    assert!(bench.sent[3].starts_with("ACK ") && bench.sent[3].contains(";tag=peer\r\n"));
    assert!(bench.sent[3].contains("CSeq: 1 ACK"));
    // The same again: the ACK was lost.
    bench.hear(&ok);
    assert_eq!(bench.sent.len(), 5);
    assert_eq!(bench.sent[4], bench.sent[3]);
    bench.wait(1_002);
    assert!(bench.sent[5].starts_with("BYE ") && bench.sent[5].contains("CSeq: 2 BYE"));
    // Requests other than INVITE are sent at T1, 2 T1, ... up to T2 apart.
    bench.wait(20_000);
    let byes = bench.sent.len() - 5;
    assert_eq!(byes, 8, "at 0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5");
    bench.answer("SIP/2.0 200 OK");
    let statistics = bench.generator.statistics();
    assert_eq!((statistics.successful, statistics.failures()), (1, 0));
    assert_eq!(statistics.responses[0].histogram.len(), 1);
    assert!(bench.generator.is_done());
}

#[test]
fn unanswered_requests_fail() {
    let text = format!(
        "<scenario>{}<recv response=\"200\"/></scenario>",
        request("INVITE", "")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    bench.wait(60_000);
    assert_eq!(bench.sent.len(), 6, "one, and five retransmissions");
    assert_eq!(bench.failed(CallFailure::Retransmissions), 1);
}

#[test]
fn unexpected_messages_abort_or_jump() {
    let plain = format!(
        "<scenario>{}<recv response=\"180\" optional=\"true\"/><recv response=\"200\"/></scenario>",
        request("INVITE", "")
    );
    let mut bench = GeneratorBench::new(&plain, calls(1), Vec::new());
    bench.answer("SIP/2.0 486 Busy Here");
    assert!(bench.sent[1].starts_with("ACK "), "{:?}", bench.sent);
    assert_eq!(bench.failed(CallFailure::Unexpected), 1);
    assert!(matches!(&bench.effects[0], Effect::Warning(text) if text.contains("486 Busy")));

    let mut bench = GeneratorBench::new(&plain, calls(1), Vec::new());
    bench.answer("SIP/2.0 180 Ringing");
    bench
        .hear("BYE sip:a SIP/2.0\nVia: x\nFrom: a\nTo: b\nCall-ID: 1-1@127.0.0.1\nCSeq: 7 BYE\n\n");
    assert!(bench.sent[1].starts_with("SIP/2.0 200 OK\r\nVia: x\r\n"));
    assert_eq!(bench.failed(CallFailure::EndedByPeer), 1);

    let led = plain.replace(
        "</scenario>",
        "<label id=\"_unexp.main\"/><nop counter=\"other\"/></scenario>",
    );
    let mut bench = GeneratorBench::new(&led, calls(1), Vec::new());
    bench.answer("SIP/2.0 486 Busy Here");
    assert_eq!(bench.generator.statistics().successful, 1);
    assert_eq!(bench.generator.statistics().counters, [1]);

    let mut settings = calls(1);
    settings.behaviours.abort = false;
    let mut bench = GeneratorBench::new(&plain, settings, Vec::new());
    bench.answer("SIP/2.0 486 Busy Here");
    assert_eq!(bench.generator.statistics().open, 1, "it waits on");
    // A response to a method that was never sent is not the awaited one.
    bench.hear(
        "SIP/2.0 200 OK\nVia: x\nFrom: a\nTo: b\nCall-ID: 1-1@127.0.0.1\nCSeq: 1 OPTIONS\n\n",
    );
    assert_eq!(bench.generator.statistics().open, 1);
    bench.answer("SIP/2.0 200 OK");
    assert_eq!(bench.generator.statistics().successful, 1);
}

#[test]
fn digest_is_answered_and_checked() {
    let text = format!(
        "<scenario>{}<recv response=\"401\" auth=\"true\"/>{}<recv response=\"200\"/></scenario>",
        request("REGISTER", ""),
        request("REGISTER", "[authentication username=joe password=secret]")
    );
    for algorithm in ["MD5", "SHA-256"] {
        let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
        bench.answer(&format!(
            "SIP/2.0 401 Unauthorized\nWWW-Authenticate: Digest realm=\"home\", nonce=\"n1\", algorithm={algorithm}, qop=\"auth\""
        ));
        let second = bench.sent[1].clone();
        assert!(second.contains("\r\nAuthorization: Digest username=\"joe\", realm=\"home\", nonce=\"n1\", uri=\"sip:service@10.0.0.2:5060\""));
        // The scenario of a server verifies it.
        let server = "<scenario><recv request=\"REGISTER\"><action><verifyauth assign_to=\"ok\" username=\"joe\" password=\"PASS\"/></action></recv>\
            <nop test=\"ok\" next=\"good\"/><nop counter=\"bad\" next=\"end\"/><label id=\"good\"/><nop counter=\"good\"/><label id=\"end\"/><nop/></scenario>";
        for (password, wanted) in [("secret", [0, 1]), ("wrong", [1, 0])] {
            let mut judge =
                GeneratorBench::new(&server.replace("PASS", password), calls(1), Vec::new());
            judge.hear(&second.replace("\r\n", "\n"));
            assert_eq!(
                judge.generator.statistics().counters,
                wanted,
                "{algorithm} {password}"
            );
        }
    }
}

#[test]
fn actions_compute() {
    let text = "<scenario><Global variables=\"all\"/><nop><action>\
        <assign assign_to=\"1\" value=\"0\"/><add assign_to=\"1\" value=\"2\"/><subtract assign_to=\"1\" value=\"3\"/>\
        <multiply assign_to=\"1\" value=\"4\"/><divide assign_to=\"1\" value=\"5\"/><log message=\"[$1]\"/>\
        <assignstr assign_to=\"s\" value=\" [field1] [call_number] \"/><trim assign_to=\"s\"/><log message=\"[$s]\"/>\
        <ereg regexp=\"([a-z]+) ([0-9]+)\" search_in=\"var\" variable=\"s\" check_it=\"true\" assign_to=\"m,word,digits\"/>\
        <todouble assign_to=\"n\" variable=\"digits\"/><add assign_to=\"all\" variable=\"n\"/>\
        <test assign_to=\"t\" variable=\"n\" compare=\"greater_than\" value=\"1\"/><strcmp assign_to=\"c\" variable=\"word\" value=\"y\"/>\
        <log message=\"[$word]/[$n]/[$t]/[$c]/[$all]\"/><lookup assign_to=\"l\" file=\"f.csv\" key=\"b\"/><log message=\"[field1 line=[$l]]\"/>\
        </action></nop><nop test=\"t\" next=\"x\"/><nop counter=\"fell\"/><label id=\"x\"/>\
        <nop condexec=\"t\" counter=\"did\"/><nop condexec=\"t\" condexec_inverse=\"true\" counter=\"did_not\"/></scenario>";
    let mut file = Injection::read("f.csv", b"SEQUENTIAL\na;x\nb;z\n".to_vec()).unwrap();
    file.index_by(0).unwrap();
    let mut bench = GeneratorBench::new(text, calls(2), vec![file]);
    bench.wait(1_000);
    let lines: Vec<String> = bench
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Log(line) => Some(String::from_utf8_lossy(line).into_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(
        lines,
        [
            "-0.800000",
            "x 1",
            "x/1.000000/false/-1.000000/1.000000",
            "z",
            "-0.800000",
            "z 2",
            "z/2.000000/true/1.000000/3.000000",
            "z"
        ]
    );
    assert_eq!(bench.generator.statistics().counters, [1, 1, 1]);
}

#[test]
fn endless_loop_is_aborted() {
    let mut bench = GeneratorBench::new(
        "<scenario><label id=\"1\"/><nop next=\"1\"/></scenario>",
        calls(1),
        Vec::new(),
    );
    bench.wait(100);
    assert_eq!(bench.failed(CallFailure::Endless), 1);
}

#[test]
fn timeouts_of_messages() {
    let text = format!(
        "<scenario>{}<recv response=\"180\" optional=\"true\" timeout=\"300\" ontimeout=\"late\"/><recv response=\"200\"/>\
        <nop next=\"end\"/><label id=\"late\"/><nop counter=\"late\"/><label id=\"end\"/><nop/></scenario>",
        request("MESSAGE", "")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    bench.wait(400);
    assert_eq!(bench.generator.statistics().counters, [1]);
    assert_eq!(bench.generator.statistics().successful, 1);
    let mut settings = calls(1);
    settings.receive_timeout = Some(std::time::Duration::from_millis(200));
    let plain = format!(
        "<scenario>{}<recv response=\"200\"/></scenario>",
        request("MESSAGE", "")
    );
    let mut bench = GeneratorBench::new(&plain, settings, Vec::new());
    bench.wait(400);
    assert_eq!(bench.failed(CallFailure::ReceiveTimeout), 1);
}

pub(super) fn simulated(
    ours: &Path,
    theirs: &Path,
    change: impl FnOnce(&mut ScenarioOptions),
) -> ScenarioResult {
    let mut options = ScenarioOptions {
        file: ours.to_owned(),
        against: Some(theirs.to_owned()),
        simulate: true,
        calls: Some(50),
        rate: Some(20.0),
        hold: 200,
        timeout: Some(300.0),
        ..ScenarioOptions::default()
    };
    change(&mut options);
    simulate(&options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn own_scenario_pair_in_virtual_time() {
    let own = root().join("scenarios/sipp");
    let (uac, uas) = (own.join("uac.xml"), own.join("uas.xml"));
    for (transport, lost) in [("udp", 0.0), ("tcp", 0.0), ("udp", 5.0)] {
        let outcome = simulated(&uac, &uas, |options| {
            options.transport = transport.to_owned();
            options.lost = lost;
        });
        let other = outcome.other.as_ref().unwrap();
        let text = outcome.to_text();
        assert_eq!(outcome.statistics.created, 50, "{text}");
        match lost > 0.0 {
            false => {
                assert_eq!(outcome.statistics.successful, 50, "{text}");
                assert_eq!(other.statistics.successful, 50, "{text}");
                assert_eq!(outcome.statistics.retransmissions(), 0, "{text}");
            }
            true => {
                assert!(outcome.statistics.retransmissions() > 0, "{text}");
                assert!(outcome.statistics.successful >= 45, "{text}");
            }
        }
        assert_eq!(outcome.statistics.responses.len(), 2);
    }
}

#[test]
fn per_call_sockets_and_users() {
    let own = root().join("scenarios/sipp");
    for transport in ["udp", "tcp"] {
        let outcome = simulated(&own.join("uac.xml"), &own.join("uas.xml"), |options| {
            options.transport = transport.to_owned();
            options.per_call = true;
            options.users = 5;
            options.rate = None;
        });
        let text = outcome.to_text();
        assert_eq!(outcome.statistics.successful, 50, "{text}");
        assert_eq!(outcome.statistics.peak, 5, "{text}");
    }
}

/// Shared scenarios without missing files: they are read, compiled, and their requirements are reported.
#[test]
fn every_shared_scenario_compiles() {
    let Some(data) = testdata() else { return };
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiles");
    std::fs::create_dir_all(&scratch).unwrap();
    let csv = scratch.join("fields.csv");
    std::fs::write(
        &csv,
        "SEQUENTIAL\n127.0.0.1;5060;[authentication username=a password=b]\n",
    )
    .unwrap();
    std::fs::copy(
        data.join("captures/rtp/sipp-g711a.pcap"),
        scratch.join("g711a.pcap"),
    )
    .unwrap();
    let mut count = 0;
    for folder in std::fs::read_dir(data.join("sipp")).unwrap().flatten() {
        let Ok(files) = std::fs::read_dir(folder.path()) else {
            continue;
        };
        for file in files.flatten() {
            if file.path().extension().is_none_or(|kind| kind != "xml") {
                continue;
            }
            // A capture is beside the scenario that plays it.
            let copy = scratch.join(file.file_name());
            std::fs::copy(file.path(), &copy).unwrap();
            let options = ScenarioOptions {
                inject: vec![csv.clone()],
                ..ScenarioOptions::default()
            };
            let loaded = load(&copy, &options);
            let loaded =
                loaded.unwrap_or_else(|error| panic!("{}: {error}", file.path().display()));
            assert!(!loaded.program.steps.is_empty());
            count += 1;
        }
    }
    assert!(count >= 37, "{count} scenarios");
}

/// Shared callers against shared callees, in virtual time.
#[test]
fn shared_pairs_in_virtual_time() {
    let Some(data) = testdata() else { return };
    let shared = data.join("sipp");
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pairs");
    std::fs::create_dir_all(&scratch).unwrap();
    let csv = scratch.join("fields.csv");
    std::fs::write(
        &csv,
        "SEQUENTIAL\nfoo;10.0.0.2;[authentication username=foo password=bar]\n",
    )
    .unwrap();
    let wrong = scratch.join("wrong.csv");
    std::fs::write(
        &wrong,
        "SEQUENTIAL\nfoo;10.0.0.2;[authentication username=foo password=no]\n",
    )
    .unwrap();
    for (caller, callee, inject) in [
        (
            "saghul_sipp-scenarios/sipp_uac_basic.xml",
            "saghul_sipp-scenarios/sipp_uas_basic.xml",
            None,
        ),
        (
            "thevoiceguy_siphon-rs/invite_bye.xml",
            "thevoiceguy_siphon-rs/uas_invite.xml",
            None,
        ),
        (
            "saghul_sipp-scenarios/sipp_uac_options.xml",
            "drachtio_drachtio-srf/uas-options-expect-200.xml",
            None,
        ),
        (
            "saghul_sipp-scenarios/sipp_uac_register.xml",
            "drachtio_drachtio-srf/uas-auth-register.xml",
            Some(&csv),
        ),
        (
            "jambonz_sbc-sip-sidecar/uac-register-auth-success.xml",
            "drachtio_drachtio-srf/uas-auth-register.xml",
            Some(&csv),
        ),
        (
            "jambonz_sbc-sip-sidecar/uac-register-auth-failure-expect-403.xml",
            "jambonz_sbc-sip-sidecar/uas-auth-register.xml",
            Some(&wrong),
        ),
    ] {
        let outcome = simulated(&shared.join(caller), &shared.join(callee), |options| {
            options.calls = Some(3);
            options.inject.extend(inject.cloned());
        });
        let other = outcome.other.as_ref().unwrap();
        let text = outcome.to_text();
        assert_eq!(outcome.statistics.successful, 3, "{caller}\n{text}");
        assert_eq!(other.statistics.failures(), 0, "{callee}\n{text}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let own = root().join("scenarios/sipp");
    let run = || {
        let outcome = simulated(&own.join("uac.xml"), &own.join("uas.xml"), |options| {
            options.poisson = true;
            options.lost = 3.0;
            options.seed = Some(9);
        });
        outcome.to_json().to_string()
    };
    assert_eq!(run(), run());
}

#[test]
fn shell_commands_need_permission() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command.xml");
    std::fs::write(
        &path,
        "<scenario><nop><action><exec command=\"true\"/></action></nop></scenario>",
    )
    .unwrap();
    let mut options = ScenarioOptions::default();
    let error = load(&path, &options).unwrap_err();
    assert!(error.to_string().contains("--allow-commands"));
    options.allow_commands = true;
    assert!(load(&path, &options).is_ok());
}

#[test]
fn seeds_of_the_fuzz_target() {
    let mut count = 0;
    for file in std::fs::read_dir(root().join("fuzz/seeds/scenario_xml"))
        .unwrap()
        .flatten()
    {
        let bytes = std::fs::read(file.path()).unwrap();
        lab::sipp::fuzz_scenario(&bytes);
        // Truncation at any place must not be worse.
        for end in (0..bytes.len()).step_by(97) {
            lab::sipp::fuzz_scenario(&bytes[..end]);
        }
        count += 1;
    }
    assert!(count >= 4);
}

/// A pool of a million subscribers from two lines; each registers with its own password.
#[test]
fn million_subscribers_register_with_digest() {
    let own = root().join("scenarios/sipp");
    let pair = (own.join("register.xml"), own.join("registrar.xml"));
    let run = |pool: &Path, index: u64| {
        simulated(&pair.0, &pair.1, |options| {
            options.calls = Some(500);
            options.rate = Some(500.0);
            options.seed = Some(index);
            options.inject.push(pool.to_owned());
        })
    };
    let outcome = run(&own.join("subscribers.csv"), 1);
    assert_eq!(outcome.statistics.successful, 500, "{}", outcome.to_text());
    let registrar = outcome.other.as_ref().unwrap();
    assert_eq!(
        registrar.statistics.counters,
        [0, 500],
        "{}",
        outcome.to_text()
    );
    // The password of another user.
    let wrong = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong-pool.csv");
    std::fs::write(
        &wrong,
        "RANDOM,PRINTF=1000000\nsubscriber%07d;password1%06d\n",
    )
    .unwrap();
    let outcome = run(&wrong, 2);
    let registrar = outcome.other.as_ref().unwrap();
    assert!(
        registrar.statistics.counters[0] > 400,
        "{}",
        outcome.to_text()
    );
    assert!(outcome.statistics.failures() > 400);
}

/// Behaviour of SIPp 3.6.1 after a message without a next step.
#[test]
fn optional_message_may_leave_the_call_at_its_step() {
    for (advances, wanted) in [("false", [1, 0]), ("true", [0, 1])] {
        let text = format!(
            "<scenario>{}<recv response=\"180\" optional=\"true\" next=\"1\" advance_state=\"{advances}\"/>\
             <recv response=\"200\"/><nop counter=\"stayed\" next=\"9\"/><label id=\"1\"/><nop counter=\"went\"/>\
             <label id=\"9\"/><nop/></scenario>",
            request("INVITE", "")
        );
        let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
        bench.answer("SIP/2.0 180 Ringing");
        bench.answer("SIP/2.0 200 OK");
        let statistics = bench.generator.statistics();
        assert_eq!(statistics.counters, wanted, "{advances}");
        assert_eq!(statistics.successful, 1);
    }
}

#[test]
fn injection_files_grow_and_change_in_a_run() {
    let mut file = Injection::read("f.csv", b"SEQUENTIAL\na;1\n".to_vec()).unwrap();
    file.index_by(0).unwrap();
    let text = "<scenario><nop><action>\
        <insert file=\"f.csv\" value=\"b;[call_number]\"/><lookup assign_to=\"l\" file=\"f.csv\" key=\"b\"/>\
        <log message=\"[$l]/[field1 line=[$l]]\"/><replace file=\"f.csv\" line=\"0\" value=\"c;9\"/>\
        <lookup assign_to=\"m\" file=\"f.csv\" key=\"c\"/><log message=\"[field1 line=[$m]]\"/>\
        <lookup assign_to=\"n\" file=\"f.csv\" key=\"a\"/><log message=\"[$n]\"/>\
        <assignstr assign_to=\"u\" value=\"a b/c\"/><urlencode variable=\"u\"/><log message=\"[$u]\"/>\
        <urldecode variable=\"u\"/><log message=\"[$u]\"/><index assign_to=\"i\"/><log message=\"[$i]\"/>\
        </action></nop></scenario>";
    let mut bench = GeneratorBench::new(text, calls(1), vec![file]);
    bench.wait(100);
    assert_eq!(
        logged(&bench),
        [
            "1.000000/1",
            "9",
            "-1.000000",
            "a%20b%2Fc",
            "a b/c",
            "0.000000"
        ]
    );
}

fn logged(bench: &GeneratorBench) -> Vec<String> {
    let lines = bench.effects.iter().filter_map(|effect| match effect {
        Effect::Log(line) => Some(String::from_utf8_lossy(line).into_owned()),
        _ => None,
    });
    lines.collect()
}

#[test]
fn comparisons_can_fail_the_call() {
    for (action, good) in [
        (
            "<test variable=\"n\" compare=\"equal\" value=\"2\" check_it=\"true\"/>",
            true,
        ),
        (
            "<test variable=\"n\" compare=\"equal\" value=\"2\" check_it_inverse=\"true\"/>",
            false,
        ),
        (
            "<strcmp variable=\"s\" value=\"x\" check_it=\"true\"/>",
            true,
        ),
        (
            "<strcmp variable=\"s\" value=\"y\" check_it=\"true\"/>",
            false,
        ),
    ] {
        let text = format!(
            "<scenario><nop><action><assign assign_to=\"n\" value=\"2\"/><assignstr assign_to=\"s\" value=\"x\"/>{action}</action></nop></scenario>"
        );
        let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
        bench.wait(100);
        assert_eq!(
            bench.failed(CallFailure::Check),
            u64::from(!good),
            "{action}"
        );
    }
}

#[test]
fn init_runs_once_before_the_first_call() {
    let text = "<scenario><Global variables=\"all\"/><init><nop><action><assign assign_to=\"all\" value=\"40\"/>\
        <log message=\"begun\"/></action></nop><label id=\"again\"/><nop><action><add assign_to=\"all\" value=\"1\"/>\
        <test assign_to=\"more\" variable=\"all\" compare=\"less_than\" value=\"42\"/></action></nop>\
        <nop test=\"more\" next=\"again\"/></init>\
        <nop><action><add assign_to=\"all\" value=\"1\"/><log message=\"[$all]\"/></action></nop></scenario>";
    let mut bench = GeneratorBench::new(text, calls(2), Vec::new());
    bench.wait(1_000);
    assert_eq!(logged(&bench), ["begun", "43.000000", "44.000000"]);
    let statistics = bench.generator.statistics();
    assert_eq!((statistics.created, statistics.successful), (2, 2));
}

/// The handler answers a request during a pause, and the pause continues to its original end.
#[test]
fn pause_continues_after_an_unexpected_message() {
    let text = format!(
        "<scenario>{}<recv response=\"200\"/><pause milliseconds=\"1000\"/><nop><action><log message=\"end\"/></action></nop>\
         <nop next=\"over\"/><label id=\"_unexp.main\"/><recv request=\"INFO\"/><send><![CDATA[\nSIP/2.0 200 OK\n[last_Via:]\n\
         [last_From:]\n[last_To:]\n[last_Call-ID:]\n[last_CSeq:]\nContent-Length: 0\n]]></send>\
         <nop><action><pauserestore variable=\"_unexp.pausedaddr\"/><assign assign_to=\"back\" variable=\"_unexp.retaddr\"/>\
         <assign assign_to=\"_unexp.retaddr\" value=\"0\"/><jump variable=\"back\"/></action></nop>\
         <label id=\"over\"/><nop/></scenario>",
        request("OPTIONS", "")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    bench.answer("SIP/2.0 200 OK");
    bench.wait(400);
    bench.hear(
        "INFO sip:a SIP/2.0\nVia: x\nFrom: a\nTo: b\nCall-ID: 1-1@127.0.0.1\nCSeq: 7 INFO\n\n",
    );
    assert!(bench.sent.last().unwrap().starts_with("SIP/2.0 200 OK"));
    bench.wait(500);
    assert_eq!(bench.generator.statistics().successful, 0, "it waits yet");
    bench.wait(150);
    assert_eq!(logged(&bench), ["end"]);
    assert_eq!(bench.generator.statistics().successful, 1);
}

/// Digits and patterns go to the address in the peer's description, with its payload type for telephone events.
#[test]
fn digits_and_patterns_are_sent() {
    let answer = "SIP/2.0 200 OK\nVia: SIP/2.0/UDP 127.0.0.1:5070;branch=z9hG4bK-1-1-0\nFrom: <sip:a@127.0.0.1>;tag=1\n\
        To: <sip:b@10.0.0.2>;tag=2\nCall-ID: 1-1@127.0.0.1\nCSeq: 1 INVITE\nContent-Type: application/sdp\n\nv=0\no=- 1 1 IN IP4 10.0.0.2\n\
        s=-\nc=IN IP4 10.0.0.2\nt=0 0\nm=audio 7000 RTP/AVP 0 99\na=rtpmap:99 telephone-event/8000\n";
    for (exec, packets, payload_type) in [
        ("play_dtmf=\"12,100\"", 14, 99),
        ("rtp_stream=\"apattern,3,0,PCMU/8000\"", 25, 0),
    ] {
        let text = format!(
            "<scenario>{}<recv response=\"200\"/><nop><action><exec {exec}/></action></nop><pause milliseconds=\"490\"/></scenario>",
            request("INVITE", "")
        );
        let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
        for socket in [1, 2] {
            bench.give(Input::Opened {
                socket: SocketId(socket),
                local: "127.0.0.1:6000".parse().unwrap(),
            });
        }
        bench.give(Input::Timeout);
        bench.hear(answer);
        bench.wait(485);
        let statistics = bench.generator.statistics();
        assert_eq!(statistics.media[0], packets, "{exec}");
        // Octets outside ASCII are lost in text; the payload type is one that remains.
        let last = bench.sent.last().unwrap();
        assert!(last.contains(char::from(payload_type)), "{exec}");
    }
}

#[test]
fn scenario_closes_and_opens_its_own_connection() {
    let text = format!(
        "<scenario>{}<recv response=\"200\"/><nop><action><closecon/></action></nop>{}<recv response=\"200\"/></scenario>",
        request("OPTIONS", ""),
        request("MESSAGE", "")
    );
    let outcome = pair(&text, |options| {
        options.transport = "tn".to_owned();
    });
    assert_eq!(outcome.statistics.successful, 2, "{}", outcome.to_text());
}

/// Runs a caller's scenario against one that answers two requests of a call, in virtual time.
fn pair(caller: &str, change: impl FnOnce(&mut ScenarioOptions)) -> ScenarioResult {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own-pair");
    std::fs::create_dir_all(&folder).unwrap();
    let answer = "<send><![CDATA[\nSIP/2.0 200 OK\n[last_Via:]\n[last_From:]\n[last_To:];tag=1\n[last_Call-ID:]\n[last_CSeq:]\nContent-Length: 0\n]]></send>";
    let called = format!(
        "<scenario><recv request=\"OPTIONS\"/>{answer}<recv request=\"MESSAGE\"/>{answer}</scenario>"
    );
    let (ours, theirs) = (folder.join("caller.xml"), folder.join("called.xml"));
    std::fs::write(&ours, caller).unwrap();
    std::fs::write(&theirs, called).unwrap();
    simulated(&ours, &theirs, |options| {
        options.calls = Some(2);
        change(options);
    })
}
