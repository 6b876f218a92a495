//! Limits of the calls of SIPp scenarios: open calls, and the time in which calls begin.

use super::scenarios::{GeneratorBench, calls, request, root, simulated};
use lab::sipp::schedule::CallLimits;
use lab::sipp::settings::ScenarioSettings;
use std::time::Duration;

/// Three calls within 0.2 s of which one is open at a time: calls that were delayed by the limit, and the longest wait
/// and the longest response time, in microseconds. The peer answers after so many milliseconds, and a pause follows.
fn limited(answer_ms: u64, pause_ms: u64) -> (u64, u64, u64) {
    let pause = match pause_ms {
        0 => String::new(),
        pause_ms => format!("<pause milliseconds=\"{pause_ms}\"/>"),
    };
    let text = format!(
        "<scenario>{}<recv response=\"200\" rtd=\"true\"/>{pause}</scenario>",
        request("INVITE", "")
    );
    let mut settings = calls(3);
    settings.limits.open = Some(1);
    settings.at_once = true;
    let mut bench = GeneratorBench::new(&text, settings, Vec::new());
    for count in 1..=3 {
        assert_eq!(bench.sent.len(), count, "{:?}", bench.sent);
        bench.wait(answer_ms);
        bench.answer("SIP/2.0 200 OK");
        bench.wait(pause_ms + 10);
    }
    let statistics = bench.generator.statistics();
    assert_eq!(statistics.successful, 3);
    let times = &statistics.responses[0].histogram;
    assert_eq!(times.len(), 3);
    let held_back = &statistics.held_back;
    (held_back.len(), held_back.max(), times.max())
}

#[test]
fn response_times_do_not_contain_the_wait_for_the_limit() {
    let (count, wait, response) = limited(0, 1_000);
    // The wait is reported by itself.
    assert!(count == 2 && wait > 1_500_000, "{count} {wait}");
    assert!(response < 100_000, "{response} us");
    // A message ends the call, and nothing else happens while the limit holds back the next one.
    let (count, wait, response) = limited(450, 0);
    assert!(count == 2 && wait > 500_000, "{count} {wait}");
    assert!(response < 500_000, "{response} us");
}

#[test]
fn duration_ends_calls_that_the_limit_has_delayed() {
    let text = format!(
        "<scenario>{}<recv response=\"200\"/><pause milliseconds=\"500\"/></scenario>",
        request("INVITE", "X: y")
    );
    // Twenty calls are due, of which one is open at a time.
    let settings = ScenarioSettings {
        limits: CallLimits {
            open: Some(1),
            span: Some(Duration::from_secs(2)),
            ..CallLimits::default()
        },
        ..ScenarioSettings::default()
    };
    let mut bench = GeneratorBench::new(&text, settings, Vec::new());
    for count in 1..=4 {
        assert_eq!(bench.sent.len(), count, "{:?}", bench.sent);
        bench.answer("SIP/2.0 200 OK");
        bench.wait(501);
    }
    assert_eq!(bench.generator.statistics().created, 4);
    assert!(bench.generator.is_done());
}

#[test]
fn duration_ends_the_calls_of_users() {
    let own = root().join("scenarios/sipp");
    let outcome = simulated(&own.join("uac.xml"), &own.join("uas.xml"), |options| {
        options.calls = None;
        options.rate = None;
        options.users = 2;
        options.duration = Some(1.0);
    });
    let text = outcome.to_text();
    // A call takes 0.2 s, and two are open at a time.
    let created = outcome.statistics.created;
    assert!((6..=12).contains(&created), "{text}");
    assert_eq!(outcome.statistics.successful, created, "{text}");
    assert!(outcome.seconds < 60.0, "{text}");
}

#[test]
fn duration_ends_a_scenario_that_takes_calls() {
    let text = "<scenario><recv request=\"OPTIONS\"/><send><![CDATA[\nSIP/2.0 200 OK\n[last_Via:]\n[last_From:]\n\
                [last_To:];tag=1\n[last_Call-ID:]\n[last_CSeq:]\nContent-Length: 0\n]]></send></scenario>";
    let settings = ScenarioSettings {
        limits: CallLimits {
            span: Some(Duration::from_secs(1)),
            ..CallLimits::default()
        },
        ..ScenarioSettings::default()
    };
    let mut bench = GeneratorBench::new(text, settings, Vec::new());
    let options = |call: u32| {
        format!(
            "OPTIONS sip:a@127.0.0.1 SIP/2.0\nVia: SIP/2.0/UDP 10.0.0.2:5060;branch=z9hG4bK{call}\nFrom: <sip:b@10.0.0.2>;tag={call}\n\
             To: <sip:a@127.0.0.1>\nCall-ID: {call}\nCSeq: 1 OPTIONS\nContent-Length: 0\n\n"
        )
    };
    bench.wait(500);
    bench.hear(&options(1));
    assert_eq!(bench.generator.statistics().created, 1);
    assert!(!bench.generator.is_done());
    bench.wait(501);
    bench.hear(&options(2));
    assert_eq!(bench.generator.statistics().created, 1, "after the end");
    bench.wait(40_000);
    assert!(bench.generator.is_done());
}
