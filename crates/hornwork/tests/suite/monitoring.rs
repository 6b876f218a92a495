//! The alert rules and the dashboard in a real Prometheus that scrapes a running border.

use crate::common::{Process, border, example, free_port, installed, media_ports, root, scratch};

use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The JSON of a resource of Prometheus; `None`: it does not answer yet.
fn get(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    // Without chunks, as HTTP/1.0 has none.
    let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

/// The response to an expression.
fn query(port: u16, expression: &str) -> Value {
    let encoded: String = expression
        .bytes()
        .map(|byte| format!("%{byte:02x}"))
        .collect();
    get(port, &format!("/api/v1/query?query={encoded}")).expect("JSON")
}

fn until<T>(what: &str, prometheus: &Process, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "{what}: {}", prometheus.log());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn prometheus_evaluates_all_rules_and_panels() {
    if !installed(&["prometheus"]) {
        return;
    }
    let folder = scratch("monitoring");
    let (sip, trunk, scrape, port) = (free_port(), free_port(), free_port(), free_port());
    let more = format!(
        "[metrics]\nlisten=\"127.0.0.1:{scrape}\"\n[store]\nfolder=\"{}\"\nhep={{send=\"udp:127.0.0.1:9\"}}\n[records]\nfolder=\"{}\"\n",
        folder.join("store").display(),
        folder.join("records").display(),
    );
    let text = example("loopback.toml", sip, trunk, media_ports(20), &more);
    let _border = border(&folder, &text, sip);
    let monitoring = root().join("packaging/monitoring");
    let rules = monitoring.join("hornwork.rules.yml");
    let file = folder.join("prometheus.yml");
    let configuration = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\nscrape_configs:\n  - job_name: hornwork\n    static_configs: [{{ targets: [\"127.0.0.1:{scrape}\"] }}]\n",
        rules.display(),
    );
    std::fs::write(&file, configuration).expect("configuration");
    let prometheus = Process::start(
        Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null()),
        &folder.join("prometheus.log"),
    );
    // A rule has a state when it has been evaluated.
    let all = until("the rules are evaluated", &prometheus, || {
        let rules = get(port, "/api/v1/rules")?;
        let groups = rules["data"]["groups"].as_array()?.clone();
        let rules: Vec<Value> = groups
            .iter()
            .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default())
            .collect();
        let is_evaluated = |rule: &Value| rule["health"] != "unknown";
        (!rules.is_empty() && rules.iter().all(is_evaluated)).then_some(rules)
    });
    let text = std::fs::read_to_string(&rules).expect("rules");
    assert_eq!(all.len(), text.matches("- alert: ").count());
    for rule in &all {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    // Rates need two scrapes.
    until("the border is scraped", &prometheus, || {
        let answer = query(port, "rate(hornwork_cpu_seconds_total[1m])");
        (answer["data"]["result"].as_array()?.len() > 1).then_some(())
    });
    let dashboard = std::fs::read_to_string(monitoring.join("grafana.json")).expect("dashboard");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let (mut queries, mut with_data) = (0, 0);
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            // "All" borders.
            let answer = query(port, &expression.replace("$instance", ".*"));
            assert_eq!(answer["status"], "success", "{expression}: {answer}");
            queries += 1;
            let result = answer["data"]["result"].as_array().expect("a result");
            with_data += usize::from(!result.is_empty());
        }
    }
    // This border has no receivers, traces, media nodes and losses.
    assert!(queries > 20 && with_data > 12, "{with_data} of {queries}");
    let down = query(port, "ALERTS{alertname=\"HornworkDown\"}");
    assert_eq!(down["data"]["result"], Value::Array(Vec::new()));
}
