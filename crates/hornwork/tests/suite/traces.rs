//! OpenTelemetry traces of real calls, at a collector of this test.

use crate::common;
use crate::operators::{metric, metrics, until};
use crate::peer_sipp::sipp;

use common::{border, example, free_port, installed, media_ports, scratch};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A collector that answers with these statuses in order, and with 200 behind them.
fn collector(port: u16, statuses: &'static [u16]) -> Arc<Mutex<Vec<Value>>> {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("collector");
    let requests = Arc::<Mutex<Vec<Value>>>::default();
    let got = requests.clone();
    std::thread::spawn(move || {
        for (at, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            let mut text = Vec::new();
            let mut bytes = [0; 65_536];
            let body = loop {
                let length = stream.read(&mut bytes).expect("a request");
                text.extend_from_slice(&bytes[..length]);
                let head = text.windows(4).position(|four| four == b"\r\n\r\n");
                let Some(end) = head else { continue };
                let head = String::from_utf8_lossy(&text[..end]).to_ascii_lowercase();
                assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
                assert!(head.contains("content-type: application/json"), "{head}");
                let size = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                if text.len() - end - 4 >= size.unwrap_or(0_usize) {
                    break text[end + 4..].to_vec();
                }
            };
            let status = statuses.get(at).copied().unwrap_or(200);
            if status == 200 {
                let body = serde_json::from_slice(&body).expect("JSON");
                got.lock().unwrap().push(body);
            }
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\n{{}}");
            stream.write_all(answer.as_bytes()).expect("an answer");
        }
    });
    requests
}

fn spans(requests: &Mutex<Vec<Value>>) -> Vec<Value> {
    let requests = requests.lock().unwrap();
    let lists = requests.iter().map(|body| {
        let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        spans.as_array().expect("spans").clone()
    });
    lists.flatten().collect()
}

fn attribute(span: &Value, name: &str) -> Value {
    let attributes = span["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|attribute| attribute["key"] == name);
    found.map_or(Value::Null, |attribute| attribute["value"].clone())
}

#[test]
fn each_call_is_a_trace_with_its_legs_and_a_silent_collector_costs_only_traces() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("traces");
    let (sip, trunk, scrape, port) = (free_port(), free_port(), free_port(), free_port());
    // The first request is to be repeated.
    let requests = collector(port, &[503]);
    let more = format!(
        "[metrics]\nlisten=\"127.0.0.1:{scrape}\"\n[traces]\nurl=\"http://127.0.0.1:{port}/v1/traces\"\nservice=\"border\"\n"
    );
    let configuration = example("loopback.toml", sip, trunk, media_ports(400), &more);
    let running = border(&folder, &configuration, sip);
    let _uas = sipp(&folder, "uas", trunk, &["-sn", "uas"]).at_port(trunk);
    let target = format!("127.0.0.1:{sip}");
    let calls = ["-sn", "uac", &target, "-r", "50", "-m", "20", "-d", "100"];
    let mut uac = sipp(&folder, "uac", sip + 1, &calls);
    assert_eq!(
        uac.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        uac.log()
    );
    let sent = "hornwork_trace_spans_total{result=\"sent\"}";
    until("all spans are sent", || {
        metric(&metrics(scrape), sent) == 60
    });
    let all = spans(&requests);
    assert_eq!(all.len(), 60, "a call and two legs, each once");
    let roots: Vec<&Value> = all
        .iter()
        .filter(|span| span["parentSpanId"].is_null())
        .collect();
    assert_eq!(roots.len(), 20);
    for root in roots {
        let legs: Vec<&Value> = all
            .iter()
            .filter(|span| {
                span["traceId"] == root["traceId"] && span["parentSpanId"] == root["spanId"]
            })
            .collect();
        assert_eq!(legs.len(), 2, "{root}");
        let time = |name: &str| -> u64 {
            root[name]
                .as_str()
                .expect("text")
                .parse()
                .expect("nanoseconds")
        };
        let duration = time("endTimeUnixNano") - time("startTimeUnixNano");
        assert!(
            (100_000_000..10_000_000_000).contains(&duration),
            "{duration}"
        );
        assert_eq!(attribute(root, "sip.status_code")["intValue"], "200");
        assert_eq!(attribute(root, "hornwork.trunk")["stringValue"], "server");
        let names: Vec<&Value> = root["events"]
            .as_array()
            .expect("events")
            .iter()
            .map(|event| &event["name"])
            .collect();
        assert_eq!(names, ["routed", "answered"]);
        let ids: Vec<Value> = legs
            .iter()
            .map(|leg| attribute(leg, "sip.call_id"))
            .collect();
        assert_eq!(ids[0], attribute(root, "sip.call_id"));
        assert_ne!(ids[0], ids[1]);
    }
    drop(running);
    // A collector that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("listener");
    let port = silent.local_addr().expect("address").port();
    let more = format!(
        "[metrics]\nlisten=\"127.0.0.1:{scrape}\"\n[traces]\nurl=\"http://127.0.0.1:{port}/v1/traces\"\nqueue=1\ntimeout_s=1\n"
    );
    let configuration = example("loopback.toml", sip, trunk, media_ports(400), &more);
    let _border = border(&folder, &configuration, sip);
    let mut uac = sipp(
        &folder,
        "uac",
        sip + 1,
        &["-sn", "uac", &target, "-r", "10", "-m", "20"],
    );
    assert_eq!(
        uac.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        uac.log()
    );
    let lost = "hornwork_trace_spans_total{result=\"lost\"}";
    until("losses are counted", || metric(&metrics(scrape), lost) > 0);
    until("the failure is logged", || {
        let log = std::fs::read_to_string(folder.join("border.log")).unwrap_or_default();
        log.contains("receiver_failed receiver=\"collector http://127.0.0.1:")
            && log.contains("receiver_lost")
    });
}
