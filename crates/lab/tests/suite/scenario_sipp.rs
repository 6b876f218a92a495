//! SIPp scenarios whose outcome was verified with SIPp 3.6.1: empty values, numbers as conditions, labels of timeouts,
//! checks, losses, repeated responses, and the end of a run.

use super::scenarios::{GeneratorBench, calls, request, root, simulated};
use engine::{Engine, Entropy, Input, Output, SocketId, Time};
use lab::RunVerdict;
use lab::sipp::compile::compile;
use lab::sipp::engine::{Effect, GeneratorParts, ScenarioGenerator};
use lab::sipp::inject::Injection;
use lab::sipp::options::{load, settings};
use lab::sipp::run::simulate;
use lab::sipp::settings::{Behaviours, ScenarioSettings};
use lab::sipp::stats::CallFailure;
use lab::sipp::template::NameTable;
use lab::sipp::{ScenarioOptions, xml};

/// Calls that retransmit twice.
fn impatient() -> ScenarioSettings {
    ScenarioSettings {
        retransmissions: [2; 2],
        ..calls(1)
    }
}

fn failed(bench: &GeneratorBench, failure: CallFailure) -> u64 {
    bench.generator.statistics().failed[failure as usize]
}

fn logged(bench: &GeneratorBench) -> Vec<String> {
    let line = |effect: &Effect| match effect {
        Effect::Log(line) => Some(String::from_utf8_lossy(line).into_owned()),
        _ => None,
    };
    bench.effects.iter().filter_map(line).collect()
}

#[test]
fn a_line_with_nothing_but_an_empty_value_is_left_out() {
    let more = "[$unset]\n[$empty][field1]\nA: [$empty]\n[field1]\nB: [field0]\n[field1]";
    let text = format!(
        "<scenario><nop><action><assignstr assign_to=\"empty\" value=\"\"/></action></nop>{}</scenario>",
        request("MESSAGE", more)
    );
    let file = Injection::read("a.csv", b"SEQUENTIAL\nx;\n".to_vec()).unwrap();
    let bench = GeneratorBench::new(&text, calls(1), vec![file]);
    let (_, headers) = bench.sent[0].split_once("CSeq: ").unwrap();
    // The headers go on to their end: an empty line before Content-Length would end them.
    assert_eq!(
        headers,
        "1 MESSAGE\r\nA: \r\nB: x\r\nContent-Length: 0\r\n\r\n"
    );
}

#[test]
fn an_empty_value_before_the_body_keeps_the_end_of_the_headers() {
    let text = "<scenario><send><![CDATA[\nMESSAGE sip:a@[remote_ip] SIP/2.0\nCall-ID: [call_id]\n\
                Content-Length: [len]\n[$unset]\n\n[$unset]\nbody\n]]></send></scenario>";
    let bench = GeneratorBench::new(text, calls(1), Vec::new());
    let sent = &bench.sent[0];
    assert!(
        sent.ends_with("Content-Length: 6\r\n\r\nbody\r\n"),
        "{sent:?}"
    );
}

/// Whether the branch of a variable is taken that an action sets.
fn branches(action: &str) -> bool {
    let text = format!(
        "<scenario><nop><action><assignstr assign_to=\"text\" value=\"b\"/>{action}</action></nop>\
         <nop next=\"set\" test=\"v\"/><nop next=\"end\" counter=\"unset\"/><label id=\"set\"/><nop counter=\"set\"/>\
         <label id=\"end\"/>{}</scenario>",
        request("MESSAGE", "X: y")
    );
    let bench = GeneratorBench::new(&text, calls(1), Vec::new());
    match bench.generator.statistics().counters.as_slice() {
        [1, 0] => false,
        [0, 1] => true,
        other => panic!("{action}: {other:?}"),
    }
}

#[test]
fn number_zero_is_no_condition() {
    for (action, is_set) in [
        ("<assign assign_to=\"v\" value=\"0\"/>", false),
        ("<assign assign_to=\"v\" value=\"2\"/>", true),
        // Equal texts, and others.
        (
            "<strcmp assign_to=\"v\" variable=\"text\" value=\"b\"/>",
            false,
        ),
        (
            "<strcmp assign_to=\"v\" variable=\"text\" value=\"a\"/>",
            true,
        ),
        ("<assignstr assign_to=\"v\" value=\"\"/>", true),
    ] {
        assert_eq!(branches(action), is_set, "{action}");
    }
}

/// A call without an answer, with these attributes of the request and of the step that waits.
fn unanswered(send: &str, receive: &str) -> GeneratorBench {
    let invite = request("INVITE", "X: y").replace("<send ", &format!("<send {send} "));
    let text = format!(
        "<scenario>{invite}<recv response=\"200\" {receive}/><nop next=\"end\"/><label id=\"late\"/><nop counter=\"late\"/>\
         <label id=\"end\"/><nop/><label id=\"over\"/></scenario>"
    );
    let mut bench = GeneratorBench::new(&text, impatient(), Vec::new());
    bench.wait(10_000);
    bench
}

#[test]
fn last_retransmission_leads_to_the_label_of_the_request() {
    let bench = unanswered("ontimeout=\"late\"", "");
    assert_eq!(bench.generator.statistics().counters, [1]);
    assert_eq!(bench.generator.statistics().successful, 1);
    assert!(bench.generator.program().warnings.is_empty());
    // The label of the step that waits is that of its own timeout.
    let bench = unanswered("", "ontimeout=\"late\"");
    assert_eq!(bench.generator.statistics().counters, [0]);
    assert_eq!(failed(&bench, CallFailure::Retransmissions), 1);
}

#[test]
fn label_at_the_end_of_the_scenario_fails_a_call_without_an_answer() {
    let bench = unanswered("", "timeout=\"100\" ontimeout=\"over\"");
    assert_eq!(failed(&bench, CallFailure::ReceiveTimeout), 1);
    let bench = unanswered("ontimeout=\"over\"", "");
    assert_eq!(failed(&bench, CallFailure::Retransmissions), 1);
    assert_eq!(bench.generator.statistics().successful, 0);
}

/// The messages that a run sends at its end to a peer that has given this answer.
fn last_messages(answer: &str, behaviours: Behaviours) -> Vec<String> {
    let text = format!(
        "<scenario>{}<recv response=\"180\" optional=\"true\"/><recv response=\"200\"/>{}<pause milliseconds=\"60000\"/></scenario>",
        request("INVITE", "X: y"),
        request("ACK", "X: y")
    );
    let settings = ScenarioSettings {
        behaviours,
        ..calls(1)
    };
    let mut bench = GeneratorBench::new(&text, settings, Vec::new());
    bench.answer(answer);
    bench.wait(100);
    bench.generator.end(Time::from_secs(1));
    let mut sent = Vec::new();
    while let Some(output) = bench.generator.next_output() {
        if let Output::Datagram { bytes, .. } = output {
            let text = String::from_utf8_lossy(bytes).into_owned();
            sent.extend(text.split(' ').next().map(str::to_owned));
        }
    }
    assert_eq!(failed(&bench, CallFailure::Stopped), 1);
    assert!(bench.generator.is_done());
    sent
}

#[test]
fn end_of_a_run_ends_the_calls_of_the_peer() {
    let all = Behaviours::default();
    assert_eq!(last_messages("SIP/2.0 200 OK", all), ["BYE"]);
    assert_eq!(last_messages("SIP/2.0 180 Ringing", all), ["CANCEL"]);
    let silent = Behaviours { bye: false, ..all };
    assert!(last_messages("SIP/2.0 200 OK", silent).is_empty());
}

#[test]
fn dynamic_identifiers_of_threads_differ() {
    let text = format!(
        "<scenario>{}</scenario>",
        request("MESSAGE", "Numbers: [dynamic_id] [dynamic_id]")
    );
    let of_thread = |index: u64| {
        let settings = ScenarioSettings {
            share: (index, 3),
            ..calls(3)
        };
        let mut bench = GeneratorBench::new(&text, settings, Vec::new());
        bench.wait(1_000);
        let (_, ids) = bench.sent[0].split_once("Numbers: ").unwrap();
        ids.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!([0, 1, 2].map(of_thread), ["1 4", "2 5", "3 6"]);
}

/// The first words of the sent messages.
fn kinds(bench: &GeneratorBench) -> Vec<&str> {
    let sent = bench.sent.iter();
    sent.map(|message| message.split(' ').next().unwrap_or_default())
        .collect()
}

/// The CSeq of a sent message.
fn cseq(message: &str) -> &str {
    let (_, rest) = message.split_once("CSeq: ").unwrap();
    rest.lines().next().unwrap_or_default()
}

#[test]
fn cancel_has_the_number_of_its_invite() {
    let text = format!(
        "<scenario>{}<recv response=\"180\"/>{}<recv response=\"200\"/><recv response=\"487\"/>{}{}<recv response=\"200\"/></scenario>",
        request("INVITE", "X: y"),
        request("CANCEL", "X: y"),
        request("ACK", "X: y").replace(" retrans=\"500\"", ""),
        request("OPTIONS", "X: y")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    bench.answer("SIP/2.0 180 Ringing");
    assert_eq!(cseq(&bench.sent[1]), "1 CANCEL");
    bench.answer("SIP/2.0 200 OK");
    let refused = bench.sent[0].replace(
        "INVITE sip:service@10.0.0.2:5060 SIP/2.0",
        "SIP/2.0 487 Gone",
    );
    bench.hear(&refused.replace("\r\n", "\n"));
    assert_eq!(cseq(&bench.sent[2]), "1 ACK");
    assert_eq!(cseq(&bench.sent[3]), "2 OPTIONS");
}

#[test]
fn preset_number_is_written_as_it_was_given() {
    let text = format!(
        "<scenario><Global variables=\"phone,n\"/><nop><action><assign assign_to=\"n\" value=\"1\"/>\
         <todouble assign_to=\"n\" variable=\"phone\"/></action></nop>{}</scenario>",
        request("MESSAGE", "X: [$phone] [$n]")
    );
    let settings = ScenarioSettings {
        preset: vec![("phone".to_owned(), "0600".to_owned())],
        ..calls(1)
    };
    let bench = GeneratorBench::new(&text, settings, Vec::new());
    assert!(
        bench.sent[0].contains("X: 0600 600.000000\r\n"),
        "{}",
        bench.sent[0]
    );
}

/// A message that is lost altogether is lost with each retransmission.
#[test]
fn share_of_a_step_is_that_of_its_retransmissions() {
    let text = |lost: &str| {
        let options =
            request("OPTIONS", "X: y").replace("<send ", &format!("<send lost=\"{lost}\" "));
        format!("<scenario>{options}<recv response=\"200\" lost=\"{lost}\"/></scenario>")
    };
    let mut bench = GeneratorBench::new(&text("100"), impatient(), Vec::new());
    bench.wait(20_000);
    assert!(bench.sent.is_empty(), "{:?}", bench.sent);
    assert_eq!(failed(&bench, CallFailure::Retransmissions), 1);
    assert_eq!(bench.generator.statistics().steps[0].lost, 3);
    // A share of 0 excepts the messages of a step from the losses of all.
    let settings = ScenarioSettings {
        lost: 100.0,
        ..impatient()
    };
    let mut bench = GeneratorBench::new(&text("0"), settings, Vec::new());
    assert_eq!(bench.sent.len(), 1);
    bench.answer("SIP/2.0 200 OK");
    assert_eq!(bench.generator.statistics().successful, 1);
}

/// A call whose ACK was lost, in which the 200 comes again at the end.
#[test]
fn repeated_2xx_gets_its_ack_after_further_requests() {
    let ack = request("ACK", "X: y").replace(" retrans=\"500\"", "");
    let text = format!(
        "<scenario>{}<recv response=\"200\"/>{ack}<pause milliseconds=\"100\"/>{}<recv response=\"202\"/>{}<recv response=\"202\"/></scenario>",
        request("INVITE", "X: y"),
        request("INFO", "X: y"),
        request("BYE", "X: y")
    );
    // The same response, and one with another header, which is no copy.
    for change in ["X: y", "X: z"] {
        let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
        let (_, headers) = bench.sent[0].split_once("\r\n").unwrap();
        let answer = format!("SIP/2.0 200 OK\n{}", headers.replace("\r\n", "\n"));
        let again = answer.replace("X: y", change);
        bench.hear(&answer);
        bench.wait(101);
        bench.hear(&again);
        assert_eq!(kinds(&bench), ["INVITE", "ACK", "INFO", "ACK"], "{change}");
        bench.sent.truncate(3);
        bench.answer("SIP/2.0 202 Accepted");
        bench.hear(&again);
        assert_eq!(
            kinds(&bench),
            ["INVITE", "ACK", "INFO", "BYE", "ACK"],
            "{change}"
        );
        assert_eq!(bench.sent[4], bench.sent[1]);
        bench.sent.truncate(4);
        bench.answer("SIP/2.0 202 Accepted");
        let statistics = bench.generator.statistics();
        assert_eq!(
            (statistics.successful, statistics.failures()),
            (1, 0),
            "{change}"
        );
    }
    // Another final response is none of the peer's repetitions.
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    bench.answer("SIP/2.0 200 OK");
    bench.wait(101);
    let invite = bench.sent[0].clone();
    bench.sent.push(invite);
    bench.answer("SIP/2.0 500 Error");
    assert_eq!(failed(&bench, CallFailure::Unexpected), 1);
    // Nor is the 2xx of another callee, to which the INVITE was forked.
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    let (_, headers) = bench.sent[0].split_once("\r\n").unwrap();
    let of_callee = |tag: &str| {
        let lines = headers.lines().map(|line| match line.starts_with("To:") {
            true => format!("{line};tag={tag}\n"),
            false => format!("{line}\n"),
        });
        format!("SIP/2.0 200 OK\n{}", lines.collect::<String>())
    };
    let (first, second) = (of_callee("a"), of_callee("b"));
    bench.hear(&first);
    bench.wait(101);
    bench.hear(&first);
    assert_eq!(kinds(&bench), ["INVITE", "ACK", "INFO", "ACK"]);
    bench.hear(&second);
    let acks = kinds(&bench).iter().filter(|kind| **kind == "ACK").count();
    assert_eq!(acks, 2, "none of the first callee for the second");
    assert_eq!(failed(&bench, CallFailure::Unexpected), 1);
}

#[test]
fn variable_of_an_expression_without_a_match_keeps_its_value() {
    let text = format!(
        "<scenario><nop><action><assignstr assign_to=\"text\" value=\"a=1\"/>\
         <ereg regexp=\"a=([0-9]+)\" search_in=\"var\" variable=\"text\" assign_to=\"all,number\"/>\
         <ereg regexp=\"b=([0-9]+)\" search_in=\"var\" variable=\"text\" assign_to=\"all,number\"/></action></nop>{}</scenario>",
        request("MESSAGE", "X: [$all] [$number]")
    );
    let bench = GeneratorBench::new(&text, calls(1), Vec::new());
    assert!(bench.sent[0].contains("X: a=1 1\r\n"), "{}", bench.sent[0]);
}

/// The peer of a scenario whose check fails is answered: the call goes on, and fails at its end.
#[test]
fn call_with_a_failed_check_goes_on() {
    let answer = |status: &str| {
        format!(
            "<send><![CDATA[\nSIP/2.0 {status}\n[last_Via:]\n[last_From:]\n[last_To:];tag=1\n[last_Call-ID:]\n[last_CSeq:]\n\
             X: [$skipped]\nContent-Length: 0\n]]></send>"
        )
    };
    let text = format!(
        "<scenario><recv request=\"INVITE\"><action><ereg regexp=\"Hornwork\" search_in=\"hdr\" header=\"User-Agent:\" \
         check_it=\"true\" assign_to=\"1\"/><assignstr assign_to=\"skipped\" value=\"no\"/></action></recv>{}\
         <recv request=\"ACK\"/><recv request=\"BYE\"/>{}</scenario>",
        answer("200 OK"),
        answer("200 OK")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    let hear = |bench: &mut GeneratorBench, method: &str, number: u32| {
        bench.hear(&format!(
            "{method} sip:a@127.0.0.1 SIP/2.0\nVia: SIP/2.0/UDP 10.0.0.2:5060;branch=z9hG4bK{method}\nFrom: <sip:b@10.0.0.2>;tag=2\n\
             To: <sip:a@127.0.0.1>\nCall-ID: checked\nCSeq: {number} {method}\nContent-Length: 0\n\n"
        ));
    };
    hear(&mut bench, "INVITE", 1);
    assert_eq!(kinds(&bench), ["SIP/2.0"]);
    assert!(bench.sent[0].contains("X: \r\n"), "{}", bench.sent[0]);
    hear(&mut bench, "ACK", 1);
    hear(&mut bench, "BYE", 2);
    assert_eq!(kinds(&bench), ["SIP/2.0", "SIP/2.0"]);
    let statistics = bench.generator.statistics();
    assert_eq!((statistics.successful, statistics.open), (0, 0));
    assert_eq!(failed(&bench, CallFailure::Check), 1);
}

#[test]
fn jump_beyond_the_end_fails_the_call() {
    for (to, is_good) in [
        ("1", true),
        ("2", true),
        ("3", false),
        ("-1", false),
        ("90000", false),
    ] {
        let text = format!(
            "<scenario><nop><action><jump value=\"{to}\"/></action></nop><nop/></scenario>"
        );
        let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
        bench.wait(10);
        let statistics = bench.generator.statistics();
        assert_eq!(statistics.successful, u64::from(is_good), "{to}");
        assert_eq!(
            failed(&bench, CallFailure::Stopped),
            u64::from(!is_good),
            "{to}"
        );
    }
}

/// The errors of a scenario with this keyword of the command line.
fn errors(steps: &str, key: (&str, &str)) -> Vec<String> {
    let root = xml::read(format!("<scenario>{steps}</scenario>").as_bytes()).unwrap();
    let mut names = NameTable {
        keys: [(key.0.to_owned(), key.1.to_owned())].into(),
        ..NameTable::default()
    };
    let errors = compile(&root, &mut names).err().unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_keyword_names_the_file_of_media() {
    let play = |action: &str| format!("<nop><action><exec {action}/></action></nop>");
    for (action, key) in [
        ("play_pcap_audio=\"[media]\"", ("media", "a.pcap")),
        ("rtp_stream=\"[media]\"", ("media", "a.wav,2,0,PCMU/8000")),
        ("rtp_echo=\"[media]\"", ("media", "startaudio,0,PCMU/8000")),
    ] {
        assert_eq!(errors(&play(action), key), [""; 0], "{action}");
        let missing = errors(&play(action), ("other", "x"));
        assert!(missing[0].contains("--key media=VALUE"), "{missing:?}");
    }
    let root = xml::read(
        format!(
            "<scenario>{}</scenario>",
            play("play_pcap_audio=\"[media]\"")
        )
        .as_bytes(),
    );
    let mut names = NameTable {
        keys: [("media".to_owned(), "a.pcap".to_owned())].into(),
        ..NameTable::default()
    };
    let program = compile(&root.unwrap(), &mut names).unwrap();
    assert_eq!(program.captures, ["a.pcap"]);
}

#[test]
fn required_message_follows_optional_ones() {
    let optional = "<recv response=\"180\" optional=\"true\"/>";
    let key = ("x", "y");
    let send = request("BYE", "X: y");
    for step in ["<nop/>", "<pause/>", "<timewait/>", send.as_str()] {
        let found = errors(&format!("<nop/>\n{optional}\n{step}"), key);
        assert!(
            found[0].contains("a required <recv> is missing before it"),
            "{found:?}"
        );
        let required = "<recv response=\"200\"/>";
        assert_eq!(
            errors(&format!("<nop/>{optional}{required}{step}"), key),
            [""; 0]
        );
    }
    // As the last step it ends the call.
    assert_eq!(errors(&format!("<nop/>{optional}"), key), [""; 0]);
}

#[test]
fn bounds_of_a_pause_come_together() {
    let key = ("x", "y");
    assert_eq!(
        errors("<pause min=\"1\" max=\"2\" milliseconds=\"9\"/>", key),
        [""; 0]
    );
    for pause in [
        "<pause min=\"1\"/>",
        "<pause max=\"1\" milliseconds=\"9\"/>",
    ] {
        let found = errors(pause, key);
        assert!(
            found[0].contains("min and max are both required"),
            "{found:?}"
        );
    }
}

#[test]
fn flags_have_any_case() {
    let key = ("x", "y");
    assert_eq!(
        errors("<recv response=\"200\" rrs=\"True\" auth=\"FALSE\"/>", key),
        [""; 0]
    );
    assert_eq!(
        errors("<recv response=\"200\" rrs=\"perhaps\"/>", key).len(),
        1
    );
}

#[test]
fn preset_variables_are_global() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("preset-variables");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("uac.xml");
    let preset = |declared: &str| {
        let text = format!(
            "<scenario>{declared}<nop><action><log message=\"[$phone]\"/></action></nop></scenario>"
        );
        std::fs::write(&file, text).unwrap();
        let options = ScenarioOptions {
            variables: vec!["phone=600".to_owned()],
            ..ScenarioOptions::default()
        };
        load(&file, &options)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    assert_eq!(preset("<Global variables=\"phone\"/>"), Ok(()));
    let error = preset("").unwrap_err();
    assert!(
        error.contains("--var phone") && error.contains("<Global variables=\"phone\"/>"),
        "{error}"
    );
}

/// The files of a run in virtual time: lines of `<log>`, messages and figures of the own end.
#[test]
fn run_in_virtual_time_writes_its_files() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("virtual-files");
    std::fs::create_dir_all(&folder).unwrap();
    let [caller, called, log, trace, csv] =
        ["caller.xml", "called.xml", "log", "trace", "csv"].map(|name| folder.join(name));
    let options = request("OPTIONS", "X: y");
    let text = format!(
        "<scenario>{options}<recv response=\"200\"><action><log message=\"call [call_number]\"/></action></recv></scenario>"
    );
    std::fs::write(&caller, text).unwrap();
    let answer = "<send><![CDATA[\nSIP/2.0 200 OK\n[last_Via:]\n[last_From:]\n[last_To:];tag=1\n[last_Call-ID:]\n[last_CSeq:]\n\
                  Content-Length: 0\n]]></send>";
    let text = format!("<scenario><recv request=\"OPTIONS\"/>{answer}</scenario>");
    std::fs::write(&called, text).unwrap();
    let outcome = simulated(&caller, &called, |options| {
        options.calls = Some(3);
        options.log = Some(log.clone());
        options.trace = Some(trace.clone());
        options.csv = Some(csv.clone());
    });
    assert_eq!(outcome.statistics.successful, 3);
    assert_eq!(
        std::fs::read_to_string(&log).unwrap(),
        "call 1\ncall 2\ncall 3\n"
    );
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert_eq!(
        trace.matches(" sent to 10.0.0.2:5060").count(),
        3,
        "{trace}"
    );
    assert_eq!(
        trace.matches(" received from 10.0.0.2:5060").count(),
        3,
        "{trace}"
    );
    let last = std::fs::read_to_string(&csv).unwrap();
    assert!(
        last.lines().last().unwrap().contains(",3,0,3,0,0,"),
        "{last}"
    );
}

#[test]
fn parts_without_effect_in_virtual_time_are_refused() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("virtual-refusals");
    std::fs::create_dir_all(&folder).unwrap();
    let caller = folder.join("caller.xml");
    let write = |more: &str| {
        let options = request("OPTIONS", "X: y");
        let text = format!("<scenario>{options}<recv response=\"200\"/>{more}</scenario>");
        std::fs::write(&caller, text).unwrap();
    };
    let run = |transport: &str| {
        let options = ScenarioOptions {
            file: caller.clone(),
            against: Some(root().join("scenarios/sipp/uas.xml")),
            simulate: true,
            allow_commands: true,
            transport: transport.to_owned(),
            ..ScenarioOptions::default()
        };
        simulate(&options)
            .map(drop)
            .map_err(|error| error.to_string())
    };
    write("<nop><action><exec command=\"true\"/></action></nop>");
    let error = run("udp").unwrap_err();
    assert!(error.contains("shell commands"), "{error}");
    write("");
    let error = run("tls").unwrap_err();
    assert!(error.contains("no TLS in virtual time"), "{error}");
}

#[test]
fn line_that_the_file_does_not_have_is_empty() {
    let text = format!(
        "<scenario><nop><action><lookup assign_to=\"l\" file=\"a.csv\" key=\"eve\"/></action></nop>{}</scenario>",
        request(
            "MESSAGE",
            "X: [field1 line=[$l]]/[field1 line=2]/[field1 line=1]"
        )
    );
    let mut file = Injection::read("a.csv", b"SEQUENTIAL\nbob;1\njoe;2\n".to_vec()).unwrap();
    file.index_by(0).unwrap();
    let bench = GeneratorBench::new(&text, calls(1), vec![file]);
    assert!(bench.sent[0].contains("X: //2\r\n"), "{}", bench.sent[0]);
}

#[test]
fn users_of_threads_have_lines_of_their_own() {
    let text = format!(
        "<scenario>{}<recv response=\"200\"/></scenario>",
        request("MESSAGE", "X: [userid] [field0]")
    );
    let of_thread = |index: u64| {
        let settings = ScenarioSettings {
            users: 3,
            share: (index, 2),
            ..calls(3)
        };
        let file = Injection::read("a.csv", b"USERS\nann\nbob\njoe\n".to_vec()).unwrap();
        let mut bench = GeneratorBench::new(&text, settings, vec![file]);
        bench.wait(100);
        let numbers = bench.sent.iter().map(|message| {
            let (_, rest) = message.split_once("X: ").unwrap();
            rest.lines().next().unwrap_or_default().to_owned()
        });
        let mut numbers: Vec<String> = numbers.collect();
        numbers.sort();
        numbers.dedup();
        numbers
    };
    assert_eq!(of_thread(0), ["1 ann", "3 joe"]);
    assert_eq!(of_thread(1), ["2 bob"]);
}

/// The answer to a scenario with this action, file, index and number of users.
fn loaded(action: &str, file: &str, index: bool, users: u64) -> Result<(), String> {
    let name = format!("use-of-files-{action}-{users}").replace(['<', '>', '"', '/', '='], "-");
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let [scenario, lines] = ["uac.xml", "a.csv"].map(|name| folder.join(name));
    let text = format!("<scenario><nop><action>{action}</action></nop></scenario>");
    std::fs::write(&scenario, text).unwrap();
    std::fs::write(&lines, file).unwrap();
    let options = ScenarioOptions {
        inject: vec![lines],
        index: if index {
            vec!["a.csv:0".to_owned()]
        } else {
            Vec::new()
        },
        users,
        ..ScenarioOptions::default()
    };
    load(&scenario, &options)
        .map(drop)
        .map_err(|error| error.to_string())
}

#[test]
fn injection_files_fit_the_scenario_and_the_users() {
    let lookup = "<lookup assign_to=\"l\" file=\"a.csv\" key=\"x\"/>";
    let lines = "SEQUENTIAL;;\na;1\nb;2\n";
    assert_eq!(loaded(lookup, lines, true, 0), Ok(()));
    let error = loaded(lookup, lines, false, 0).unwrap_err();
    assert!(error.contains("--index a.csv:FIELD"), "{error}");
    let insert = "<insert file=\"a.csv\" value=\"c;3\"/>";
    assert_eq!(loaded(insert, lines, false, 0), Ok(()));
    let error = loaded(insert, "SEQUENTIAL,PRINTF=9\n%d\n", false, 0).unwrap_err();
    assert!(error.contains("it is a template"), "{error}");
    let log = "<log message=\"[field0]\"/>";
    assert_eq!(loaded(log, "USER\na\nb\n", false, 2), Ok(()));
    let error = loaded(log, "USER\na\nb\n", false, 3).unwrap_err();
    assert!(
        error.contains("--users 3: a.csv has a line for each of 2 users"),
        "{error}"
    );
}

#[test]
fn replacing_a_line_that_was_not_found_ends_the_call() {
    let text = "<scenario><nop><action><lookup assign_to=\"l\" file=\"a.csv\" key=\"eve\"/>\
                <replace file=\"a.csv\" line=\"[$l]\" value=\"eve;9\"/></action></nop></scenario>";
    let mut file = Injection::read("a.csv", b"SEQUENTIAL\nbob;1\n".to_vec()).unwrap();
    file.index_by(0).unwrap();
    let mut bench = GeneratorBench::new(text, calls(1), vec![file]);
    bench.wait(10);
    assert_eq!(failed(&bench, CallFailure::Stopped), 1);
}

#[test]
fn last_line_of_a_body_ends_as_in_the_file() {
    let message = |end: &str| {
        let text = format!(
            "<scenario><send><![CDATA[\nMESSAGE sip:a@[remote_ip] SIP/2.0\nCall-ID: [call_id]\n\
             Content-Length: [len]\n\nHello\n\n  a b{end}]]></send></scenario>"
        );
        let bench = GeneratorBench::new(&text, calls(1), Vec::new());
        let (_, rest) = bench.sent[0].split_once("Content-Length: ").unwrap();
        rest.to_owned()
    };
    assert_eq!(message(""), "12\r\n\r\nHello\r\n\r\na b");
    assert_eq!(message("  "), "12\r\n\r\nHello\r\n\r\na b");
    assert_eq!(message("  \n\n "), "14\r\n\r\nHello\r\n\r\na b\r\n");
    // The head ends with an empty line in any case.
    let text =
        "<scenario><send><![CDATA[\nOPTIONS sip:a SIP/2.0\nCall-ID: [call_id]]]></send></scenario>";
    let bench = GeneratorBench::new(text, calls(1), Vec::new());
    assert!(bench.sent[0].ends_with("\r\n\r\n"), "{}", bench.sent[0]);
}

#[test]
fn expression_of_a_method_matches_anywhere() {
    for (expression, is_good) in [
        ("VITE", true),
        ("^INV|OPT", true),
        ("^VITE", false),
        ("INVITE$", true),
    ] {
        let text =
            format!("<scenario><recv request=\"{expression}\" regexp_match=\"true\"/></scenario>");
        let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
        bench.hear("INVITE sip:a SIP/2.0\nVia: x\nFrom: a\nTo: b\nCall-ID: c\nCSeq: 7 INVITE\n\n");
        let statistics = bench.generator.statistics();
        assert_eq!(
            (statistics.created, statistics.successful),
            (1, u64::from(is_good)),
            "{expression}"
        );
    }
}

#[test]
fn messages_go_to_the_next_hop_and_name_the_target() {
    let options = ScenarioOptions {
        targets: vec!["127.0.0.1:5061".to_owned()],
        send_to: Some("127.0.0.9:5070".to_owned()),
        ..ScenarioOptions::default()
    };
    let error = settings(&options, true, 7).unwrap_err().to_string();
    assert!(error.contains("--send-to has no effect"), "{error}");
    let settings = settings(&options, false, 7).unwrap().remove(0);
    let text = format!(
        "<scenario>{}<recv response=\"200\"/></scenario>",
        request("OPTIONS", "X: y")
    );
    let root = xml::read(text.as_bytes()).unwrap();
    let parts = GeneratorParts {
        program: compile(&root, &mut NameTable::default()).unwrap(),
        settings,
        files: Vec::new(),
        recordings: Vec::new(),
        sounds: std::collections::BTreeMap::new(),
    };
    let mut generator = ScenarioGenerator::new(parts, Entropy::from_number(1));
    let local = "127.0.0.1:5080".parse().unwrap();
    let socket = SocketId(0);
    let mut sent = Vec::new();
    for input in [
        Input::Timeout,
        Input::Opened { socket, local },
        Input::Timeout,
    ] {
        generator.handle(input, Time::ZERO);
        while let Some(output) = generator.next_output() {
            if let Output::Datagram {
                destination, bytes, ..
            } = output
            {
                sent.push((
                    destination.to_string(),
                    String::from_utf8_lossy(bytes).into_owned(),
                ));
            }
        }
    }
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, "127.0.0.9:5070");
    assert!(
        sent[0]
            .1
            .starts_with("OPTIONS sip:service@127.0.0.1:5061 SIP/2.0"),
        "{}",
        sent[0].1
    );
}

#[test]
fn run_that_reaches_its_time_limit_fails_if_it_should() {
    let own = root().join("scenarios/sipp");
    let run = |fails: bool| {
        let outcome = simulated(&own.join("uac.xml"), &own.join("uas.xml"), |options| {
            options.rate = Some(1.0);
            options.timeout = Some(5.5);
            options.timeout_fails = fails;
        });
        // No call begins after the limit.
        assert!(
            (5..=6).contains(&outcome.statistics.created),
            "{}",
            outcome.to_text()
        );
        assert_eq!(outcome.statistics.failures(), 0, "{}", outcome.to_text());
        outcome.verdict()
    };
    assert_eq!(run(false), RunVerdict::Passed);
    assert_eq!(run(true), RunVerdict::Failed);
}

/// The text of a header begins behind the given one, with its space.
#[test]
fn expression_of_a_header_sees_its_spaces() {
    let ereg = |expression: &str, header: &str, more: &str, to: &str| {
        format!(
            "<ereg regexp=\"{expression}\" search_in=\"hdr\" header=\"{header}\" {more} assign_to=\"{to}\"/>"
        )
    };
    let actions = [
        ereg(".*", "P-A:", "occurrence=\"2\"", "a"),
        ereg("^[^ ]", "P-A:", "", "b"),
        ereg(
            ".*",
            "p-low:",
            "case_indep=\"true\" start_line=\"true\"",
            "c",
        ),
        ereg(".*", "P-None:", "", "d"),
    ];
    let text = format!(
        "<scenario>{}<recv response=\"200\"><action>{}</action></recv>{}</scenario>",
        request("MESSAGE", "P-A: 1\nP-A:  2\nX-p-low: 3\nP-Low: 4"),
        actions.concat(),
        request("OPTIONS", "X: <[$a]><[$b]><[$c]><[$d]>")
    );
    let mut bench = GeneratorBench::new(&text, calls(1), Vec::new());
    bench.answer("SIP/2.0 200 OK");
    assert!(
        bench.sent[1].contains("X: <  2><>< 4><>\r\n"),
        "{}",
        bench.sent[1]
    );
}

/// OPTIONS as pings of a proxy, to a scenario that takes calls, and to one that takes OPTIONS themselves.
#[test]
fn automatically_answered_request_begins_no_call() {
    let options = "OPTIONS sip:a@127.0.0.1 SIP/2.0\nVia: SIP/2.0/UDP 10.0.0.2:5060;branch=z9hG4bK1\nFrom: <sip:b@10.0.0.2>;tag=2\n\
                   To: <sip:a@127.0.0.1>\nCall-ID: ping\nCSeq: 1 OPTIONS\nContent-Length: 0\n\n";
    let settings = ScenarioSettings {
        auto_answer: true,
        ..calls(1)
    };
    for (first, created) in [
        ("<recv request=\"INVITE\"/>", 0),
        ("<recv request=\"OPTIONS\"/>", 1),
        (
            "<recv request=\"OPTIONS\" optional=\"true\"/><recv request=\"INVITE\"/>",
            1,
        ),
    ] {
        let text = format!("<scenario><nop/>{first}</scenario>");
        let mut bench = GeneratorBench::new(&text, settings.clone(), Vec::new());
        bench.hear(options);
        assert_eq!(bench.generator.statistics().created, created, "{first}");
        assert_eq!(bench.sent.len(), usize::from(created == 0), "{first}");
        // The call is there for an INVITE.
        if created == 0 {
            assert!(
                bench.sent[0].starts_with("SIP/2.0 200 OK\r\n"),
                "{}",
                bench.sent[0]
            );
            bench.hear(&options.replace("OPTIONS", "INVITE"));
            assert_eq!(bench.generator.statistics().successful, 1);
        }
    }
}

/// Challenges that are absent, of another scheme, or not kept by the scenario.
#[test]
fn credentials_need_a_challenge() {
    let digest = "WWW-Authenticate: Digest realm=\"home\", nonce=\"n1\"";
    for (kept, header, text, good) in [
        (" auth=\"true\"", digest, "[authentication]", true),
        ("", digest, "[authentication]", false),
        ("", digest, "", true),
        (" auth=\"true\"", "X: 1", "[authentication]", false),
        (" auth=\"true\"", "X: 1", "[field0]", false),
        (
            " auth=\"true\"",
            "WWW-Authenticate: Basic realm=\"home\"",
            "[authentication username=joe password=secret]",
            false,
        ),
    ] {
        let field = "SEQUENTIAL\n[authentication username=joe password=secret]\n";
        let file = Injection::read("f.csv", field.into()).unwrap();
        let scenario = format!(
            "<scenario>{}<recv response=\"401\"{kept}/>{}<recv response=\"200\"/></scenario>",
            request("REGISTER", ""),
            request("REGISTER", text)
        );
        let mut bench = GeneratorBench::new(&scenario, calls(1), vec![file]);
        bench.answer(&format!("SIP/2.0 401 Unauthorized\n{header}"));
        assert_eq!(bench.sent.len(), 1 + usize::from(good), "{header} {text}");
        let failures = failed(&bench, CallFailure::NoChallenge);
        assert_eq!(failures, u64::from(!good), "{header} {text}");
    }
}

/// Only numbers count as numbers; `todouble` makes them, or keeps what there was.
#[test]
fn texts_are_zero_in_computations() {
    let text = "<scenario><nop><action><assignstr assign_to=\"s\" value=\"4\"/><assign assign_to=\"n\" value=\"1\"/>\
        <add assign_to=\"n\" variable=\"s\"/><test assign_to=\"t\" variable=\"s\" compare=\"equal\" value=\"4\"/><log message=\"[$n] [$t]\"/>\
        <todouble assign_to=\"n\" variable=\"s\"/><log message=\"[$n]\"/><assignstr assign_to=\"s\" value=\"9 s\"/>\
        <todouble assign_to=\"n\" variable=\"s\"/><add assign_to=\"s\" value=\"2\"/><log message=\"[$n] [$s]\"/></action></nop></scenario>";
    let bench = GeneratorBench::new(text, calls(1), Vec::new());
    let wanted = ["1.000000 false", "4.000000", "4.000000 2.000000"];
    assert_eq!(logged(&bench), wanted);
    // The other way round a number is an empty text.
    let text = "<scenario><nop><action><assign assign_to=\"n\" value=\"3\"/><strcmp assign_to=\"c\" variable=\"n\" value=\"3.000000\"/>\
        <ereg regexp=\"3\" search_in=\"var\" variable=\"n\" assign_to=\"e\"/><trim assign_to=\"n\"/><log message=\"[$c]|[$e]|[$n]\"/>\
        </action></nop></scenario>";
    let bench = GeneratorBench::new(text, calls(1), Vec::new());
    assert_eq!(logged(&bench), ["-51.000000||"]);
}

/// The actions behind a jump are performed, and the last jump counts.
#[test]
fn actions_go_on_after_a_jump() {
    let text = "<scenario><nop><action><jump value=\"1\"/><log message=\"0\"/><jump value=\"2\"/></action></nop>\
        <nop><action><log message=\"1\"/></action></nop><nop><action><log message=\"2\"/></action></nop></scenario>";
    let bench = GeneratorBench::new(text, calls(1), Vec::new());
    assert_eq!(logged(&bench), ["0", "2"]);
}
