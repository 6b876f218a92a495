//! SIPp scenarios whose outcome was verified with SIPp 3.6.1: empty values, numbers as conditions, labels of timeouts,
//! and the end of a run.

use super::scenarios::{GeneratorBench, calls, request};
use engine::{Engine, Output, Time};
use lab::sipp::inject::Injection;
use lab::sipp::settings::{Behaviours, ScenarioSettings};
use lab::sipp::stats::CallFailure;

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
