//! Foreign programs as SUT: Debian's Kamailio as a proxy, and the built-in UAS scenario of SIPp.

use lab::RunVerdict;
use lab::run::{RunOptions, run};
use lab::search::search;
use serde_json::Value;
use std::fs::File;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Whether a program is installed; otherwise a message is printed.
fn installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let there = path
        .split(':')
        .chain(["/usr/sbin"])
        .any(|folder| Path::new(folder).join(program).is_file());
    if !there {
        eprintln!("skipped: not installed: {program}");
    }
    there
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("foreign-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A child process with its descendants, which end when this value is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command, log: &Path) -> Process {
        let file = File::create(log).unwrap();
        let copy = file.try_clone().unwrap();
        command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .process_group(0);
        Process(command.spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args([name, "--", &group]).status();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal("-TERM");
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            if let Ok(Some(_)) = self.0.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.signal("-KILL");
        let _ = self.0.wait();
    }
}

/// A port that is free for datagrams and streams: the program started there may listen for both. It is below the
/// ephemeral ports, so that no socket of another test gets it before the program, and no other test chooses it.
fn free_port() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 7_000;
    const COUNT: u16 = 3_000;
    let address = (0..COUNT)
        .map(|_| FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT)
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .find(|address| UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok());
    address.expect("a port is free for UDP and TCP")
}

fn wait_until_answering(sut: SocketAddr) {
    let socket = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let own = socket.local_addr().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        // Max-Forwards is 0, so that a proxy answers itself; a UAS may ignore the request, but receives the datagram.
        let request = format!(
            "OPTIONS sip:x@{sut} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bK{}\r\nMax-Forwards: 0\r\n\
             From: <sip:t@{own}>;tag=1\r\nTo: <sip:x@{sut}>\r\nCall-ID: {}\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n",
            end.elapsed().as_nanos(),
            own.port(),
        );
        let _ = socket.send_to(request.as_bytes(), sut);
        if socket.recv_from(&mut [0; 2048]).is_ok() {
            return;
        }
        assert!(Instant::now() < end, "{sut} does not answer");
    }
}

/// Kamailio in front of `target`, refusing calls above `limit` open ones.
fn kamailio(folder: &Path, target: SocketAddr, limit: u32) -> (Process, SocketAddr) {
    kamailio_with(folder, target, limit, |text| text)
}

/// As [`kamailio`], with a change to its configuration.
fn kamailio_with(
    folder: &Path,
    target: SocketAddr,
    limit: u32,
    change: impl FnOnce(String) -> String,
) -> (Process, SocketAddr) {
    let listen = free_port();
    let text = change(include_str!("../kamailio.cfg").to_owned())
        .replace("LISTEN", &listen.to_string())
        .replace("TARGET", &target.to_string())
        .replace("LIMIT", &limit.to_string());
    let file = folder.join("kamailio.cfg");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("kamailio");
    if !Path::new("/usr/bin/kamailio").is_file() && Path::new("/usr/sbin/kamailio").is_file() {
        command = Command::new("/usr/sbin/kamailio");
    }
    // Its default allocator is a slow debugging one.
    command
        .args(["-DD", "-E", "-x", "fm", "-X", "fm", "-m", "64", "-M", "8"])
        .arg("-f")
        .arg(&file)
        .arg("-Y")
        .arg(folder)
        .arg("-P")
        .arg(folder.join("pid"));
    let process = Process::start(&mut command, &folder.join("kamailio.log"));
    wait_until_answering(listen);
    (process, listen)
}

fn options(folder: &Path, sets: &[String]) -> RunOptions {
    RunOptions {
        set: sets.to_vec(),
        json: Some(folder.join("figures.json")),
        out: Some(folder.join("run")),
        repeat: Some(1),
        ..RunOptions::default()
    }
}

fn figures(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("figures.json")).unwrap()).unwrap()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn kamailio_as_sut() {
    if !installed("kamailio") {
        return;
    }
    let folder = scratch("kamailio");
    let callees = free_port();
    let (process, address) = kamailio(&folder, callees, 1_000);
    let sets = [
        format!("sut.address={address}"),
        format!("sut.process_id={}", process.0.id()),
        format!("callees.address={callees}"),
        "callees.media=speech".to_owned(),
        "callers.media=speech".to_owned(),
        "callers.listen_percent=20.0".to_owned(),
        "callers.duration_seconds=2.0".to_owned(),
        "callers.hold_seconds=2.0".to_owned(),
        "levels.from=20".to_owned(),
        "levels.to=40".to_owned(),
        "levels.step=20".to_owned(),
        // The speed of this machine is not under test.
        "thresholds.response_p99_ms=".to_owned(),
        "thresholds.mos=4.0".to_owned(),
        "thresholds.correlation=0.95".to_owned(),
    ];
    assert_eq!(
        run("call-rate", &options(&folder, &sets)).unwrap(),
        RunVerdict::Passed
    );
    let figures = figures(&folder);
    assert_eq!(figures["subject"], format!("foreign, at {address}"));
    let trials = figures["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 2);
    for (trial, calls) in trials.iter().zip([40, 80]) {
        assert_eq!(trial["verdict"], "passed", "{trial:#}");
        assert_eq!(trial["calls"]["attempted"], calls);
        assert_eq!(trial["calls"]["completed"], calls);
        assert_eq!(trial["calls"]["failed"], 0);
        let p50 = number(&trial["response_ms"]["p50"]);
        assert!(p50 > 0.05 && p50 < 1_000.0, "{trial:#}");
        assert!(number(&trial["mos"]) > 4.0 && number(&trial["lost_percent"]) < 1.0);
        assert!(
            trial["leaks"].is_null(),
            "leaks of a foreign SUT are unknown"
        );
    }
    // Kamailio works in a child of the configured process. The resolution of /proc is a hundredth of a second.
    let cpu: f64 = trials
        .iter()
        .map(|t| number(&t["surroundings"]["subject_cpu_seconds"]))
        .sum();
    assert!(cpu > 0.0 && cpu < 5.0, "{cpu}");
}

#[test]
fn kamailio_as_registrar() {
    if !installed("kamailio") {
        return;
    }
    let folder = scratch("registrar");
    let (_process, address) = kamailio(&folder, free_port(), 1);
    let sets = [
        format!("sut.address={address}"),
        "levels.values=[100]".to_owned(),
        "registrations.users=100".to_owned(),
        "registrations.password=\"\"".to_owned(),
        "registrations.refresh_seconds=0.5".to_owned(),
        "thresholds.response_p99_ms=".to_owned(),
    ];
    let verdict = run("registrations", &options(&folder, &sets)).unwrap();
    let figures = figures(&folder);
    assert_eq!(verdict, RunVerdict::Passed, "{figures:#}");
    let details = &figures["trials"][0]["details"];
    // Each user registered, was refreshed once, and deregistered.
    assert_eq!(details["registrations"]["established"], 300);
    assert_eq!(
        details["sip"]["registration_request_delay_ms"]["count"],
        300
    );
    assert_eq!(details["sip"]["ineffective_registrations_percent"], 0.0);
    // Then re-registrations at a rate, users in turn.
    let sets = [
        format!("sut.address={address}"),
        "registrations.registrar=border".to_owned(),
        "registrations.users=50".to_owned(),
        "levels.values=[200]".to_owned(),
        "thresholds.response_p99_ms=".to_owned(),
    ];
    let again = RunOptions {
        out: Some(folder.join("at-a-rate")),
        ..options(&folder, &sets)
    };
    let verdict = run("re-registration-rate", &again).unwrap();
    let result = self::figures(&folder);
    assert_eq!(verdict, RunVerdict::Passed, "{result:#}");
    let rate = number(&result["trials"][0]["details"]["established_per_second"]);
    assert!((rate - 200.0).abs() < 1.0, "{rate}");
}

/// A self-signed certificate for this name.
fn certificate(folder: &Path, file: &str, name: &str) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    std::fs::write(folder.join(format!("{file}.pem")), made.cert.pem()).unwrap();
    let key = made.signing_key.serialize_pem();
    std::fs::write(folder.join(format!("{file}.key")), key).unwrap();
}

#[test]
fn kamailio_over_tls_with_trusted_and_untrusted_certificate() {
    if !installed("kamailio") || !has_module("tls", "kamailio-tls-modules") {
        return;
    }
    let folder = scratch("kamailio-tls");
    certificate(&folder, "here", "proxy.example.com");
    certificate(&folder, "elsewhere", "proxy.example.com");
    let (callees, tls) = (free_port(), free_port());
    let file = |name: &str| folder.join(name).display().to_string();
    let (_process, _) = kamailio_with(&folder, callees, 10_000, |text| {
        let module = format!(
            "loadmodule \"tls.so\"\nmodparam(\"tls\", \"certificate\", \"{}\")\nmodparam(\"tls\", \"private_key\", \"{}\")\n\
             modparam(\"tls\", \"tls_method\", \"TLSv1.2+\")\n\
             loadmodule \"kex.so\"",
            file("here.pem"),
            file("here.key")
        );
        text.replace(
            "disable_tcp=yes\n",
            &format!("enable_tls=yes\ntcp_children=1\nlisten=tls:{tls}\n"),
        )
        .replace("loadmodule \"kex.so\"", &module)
    });
    let sets = |ca: &str| {
        vec![
            format!("sut.address={tls}"),
            format!("callees.address={callees}"),
            "callers.transport=tls".to_owned(),
            "callers.connections=2".to_owned(),
            "callers.duration_seconds=2.0".to_owned(),
            "callers.hold_seconds=1.0".to_owned(),
            "levels.values=[25]".to_owned(),
            format!("tls.ca={}", file(ca)),
            "tls.name=proxy.example.com".to_owned(),
            "thresholds.response_p99_ms=".to_owned(),
        ]
    };
    let verdict = run("call-rate", &options(&folder, &sets("here.pem"))).unwrap();
    let result = figures(&folder);
    assert_eq!(verdict, RunVerdict::Passed, "{result:#}");
    assert_eq!(result["trials"][0]["calls"]["completed"], 50);
    let unbelieved = RunOptions {
        out: Some(folder.join("unbelieved")),
        ..options(&folder, &sets("elsewhere.pem"))
    };
    let verdict = run("call-rate", &unbelieved).unwrap();
    let result = figures(&folder);
    assert_eq!(verdict, RunVerdict::Failed);
    assert_eq!(result["trials"][0]["calls"]["completed"], 0);
    let remarks = result["trials"][0]["remarks"].to_string();
    assert!(remarks.contains("certificate"), "{remarks}");
    // Registrations over TLS at Kamailio's registrar.
    let users = [
        format!("sut.address={tls}"),
        "levels.values=[100]".to_owned(),
        "registrations.users=50".to_owned(),
        "registrations.password=\"\"".to_owned(),
        "registrations.refresh_seconds=0.5".to_owned(),
        "registrations.transport=tls".to_owned(),
        "tls.verify=false".to_owned(),
        "thresholds.response_p99_ms=".to_owned(),
    ];
    let registering = RunOptions {
        out: Some(folder.join("registering")),
        ..options(&folder, &users)
    };
    let verdict = run("registrations", &registering).unwrap();
    let result = figures(&folder);
    assert_eq!(verdict, RunVerdict::Passed, "{result:#}");
    assert_eq!(
        result["trials"][0]["details"]["registrations"]["established"],
        150
    );
}

/// Whether a Kamailio module is installed, in the directories of Debian and others; otherwise a message is printed.
fn has_module(name: &str, package: &str) -> bool {
    let there = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/aarch64-linux-gnu",
    ]
    .iter()
    .any(|folder| {
        let modules = Path::new(folder).join("kamailio/modules");
        modules.join(format!("{name}.so")).is_file()
    });
    if !there {
        eprintln!("skipped: not installed: module {name} of kamailio ({package})");
    }
    there
}

/// Kamailio's settings for WebSocket: HTTP on its streams, and contacts replaced by the connection.
fn with_websockets(text: &str, listen: &str, tls: &str) -> String {
    let changed = text
        .replace("disable_tcp=yes\n", listen)
        .replace("loadmodule \"kex.so\"", &format!("{tls}loadmodule \"kex.so\""))
        .replace(
            "loadmodule \"registrar.so\"",
            "loadmodule \"registrar.so\"\nloadmodule \"nathelper.so\"\nloadmodule \"xhttp.so\"\nloadmodule \"websocket.so\"",
        )
        .replace(
            "\tif (has_totag()) {",
            "\tif (nat_uac_test(64) && !is_method(\"REGISTER\")) add_contact_alias();\n\tif (has_totag()) {\n\t\thandle_ruri_alias();",
        );
    format!(
        "{changed}\nevent_route[xhttp:request] {{\n\tif ($hdr(Upgrade) =~ \"websocket\" && $hu =~ \"^/phone$\") {{\n\t\tws_handle_handshake();\n\t\texit;\n\t}}\n\txhttp_reply(\"404\", \"Not Found\", \"\", \"\");\n}}\n"
    )
}

#[test]
fn kamailio_over_websockets_plain_and_secure() {
    if !installed("kamailio")
        || !has_module("websocket", "kamailio-websocket-modules")
        || !has_module("tls", "kamailio-tls-modules")
    {
        return;
    }
    let folder = scratch("kamailio-websocket");
    certificate(&folder, "here", "proxy.example.com");
    let file = |name: &str| folder.join(name).display().to_string();
    let (callees, ws, wss) = (free_port(), free_port(), free_port());
    let (_process, _) = kamailio_with(&folder, callees, 10_000, |text| {
        let listen = format!(
            "tcp_accept_no_cl=yes\nenable_tls=yes\ntcp_children=1\nlisten=tcp:{ws}\nlisten=tls:{wss}\n"
        );
        let tls = format!(
            "loadmodule \"tls.so\"\nmodparam(\"tls\", \"certificate\", \"{}\")\nmodparam(\"tls\", \"private_key\", \"{}\")\n\
             modparam(\"tls\", \"tls_method\", \"TLSv1.2+\")\n",
            file("here.pem"),
            file("here.key")
        );
        with_websockets(&text, &listen, &tls)
    });
    for (transport, address) in [("ws", ws), ("wss", wss)] {
        let trust = match transport {
            "wss" => vec![
                format!("tls.ca={}", file("here.pem")),
                "tls.name=proxy.example.com".to_owned(),
            ],
            _ => Vec::new(),
        };
        let options = |name: &str, sets: &[String]| RunOptions {
            out: Some(folder.join(format!("{transport}-{name}"))),
            ..options(&folder, &[sets, &trust[..]].concat())
        };
        // Each user registers, refreshes, and deregisters.
        let users = [
            format!("sut.address={address}"),
            "sut.websocket_path=/phone".to_owned(),
            "levels.values=[100]".to_owned(),
            "registrations.users=50".to_owned(),
            "registrations.password=\"\"".to_owned(),
            "registrations.refresh_seconds=0.5".to_owned(),
            format!("registrations.transport={transport}"),
            "registrations.connections=5".to_owned(),
            "thresholds.response_p99_ms=".to_owned(),
        ];
        let verdict = run("registrations", &options("users", &users)).unwrap();
        let result = figures(&folder);
        assert_eq!(verdict, RunVerdict::Passed, "{transport}: {result:#}");
        let users = &result["trials"][0]["details"]["registrations"];
        assert_eq!(users["established"], 150, "{transport}");
        // Calls to callees behind it over UDP; either side hangs up.
        for side in ["caller", "callee"] {
            let calls = [
                format!("sut.address={address}"),
                "sut.websocket_path=/phone".to_owned(),
                format!("callees.address={callees}"),
                format!("callers.transport={transport}"),
                format!("callers.hang_up={side}"),
                "callers.connections=2".to_owned(),
                "callers.duration_seconds=2.0".to_owned(),
                "callers.hold_seconds=1.0".to_owned(),
                "levels.values=[20]".to_owned(),
                "thresholds.response_p99_ms=".to_owned(),
            ];
            let verdict = run("call-rate", &options(side, &calls)).unwrap();
            let result = figures(&folder);
            assert_eq!(
                verdict,
                RunVerdict::Passed,
                "{transport} {side}: {result:#}"
            );
            assert_eq!(result["trials"][0]["calls"]["completed"], 40);
        }
    }
    // A server without WebSocket is reported.
    let astray = [
        format!("sut.address={ws}"),
        "sut.websocket_path=/elsewhere".to_owned(),
        "levels.values=[20]".to_owned(),
        "registrations.users=5".to_owned(),
        "registrations.password=\"\"".to_owned(),
        "registrations.transport=ws".to_owned(),
    ];
    let astray = RunOptions {
        out: Some(folder.join("astray")),
        ..options(&folder, &astray)
    };
    assert_eq!(run("registrations", &astray).unwrap(), RunVerdict::Failed);
    let remarks = figures(&folder)["trials"][0]["remarks"].to_string();
    assert!(remarks.contains("the peer responded 404"), "{remarks}");
}

#[test]
fn search_finds_limit_of_kamailio() {
    if !installed("kamailio") {
        return;
    }
    let folder = scratch("search");
    let callees = free_port();
    let (_process, address) = kamailio(&folder, callees, 20);
    let sets = [
        format!("sut.address={address}"),
        format!("callees.address={callees}"),
        "callees.media=none".to_owned(),
        "callers.media=none".to_owned(),
        "callers.listen_percent=0.0".to_owned(),
        "callers.rate=100.0".to_owned(),
        "callers.hold_seconds=1.5".to_owned(),
        "levels.from=5".to_owned(),
        "levels.to=60".to_owned(),
        "levels.step=5".to_owned(),
        // Delays cannot be judged without media, and the speed of this machine is not searched for.
        "thresholds.response_p99_ms=".to_owned(),
        "thresholds.one_way_ms=".to_owned(),
        "thresholds.round_trip_ms=".to_owned(),
        // The figure of the study's system does not apply to this one.
        "thresholds.figure=".to_owned(),
    ];
    let verdict = search("call-capacity", &options(&folder, &sets)).unwrap();
    assert_eq!(verdict, RunVerdict::Passed);
    let figures = figures(&folder);
    assert_eq!(figures["capacity"], 20.0, "{figures:#}");
    let trials = figures["trials"].as_array().unwrap();
    let missed = trials.iter().find(|t| t["level"] == 25.0).unwrap();
    assert_eq!(missed["verdict"], "failed");
    assert_eq!(missed["calls"]["failed"], 5);
    assert_eq!(missed["details"]["statuses"][0][0], 503);
}

#[test]
fn sipp_uas_as_sut() {
    if !installed("sipp") {
        return;
    }
    let folder = scratch("sipp");
    let address = free_port();
    let mut command = Command::new("sipp");
    command
        .current_dir(&folder)
        .args(["-sn", "uas", "-i", "127.0.0.1", "-nostdin"])
        .args(["-p", &address.port().to_string()]);
    let process = Process::start(&mut command, &folder.join("sipp.log"));
    wait_until_bound(address);
    let plan = folder.join("plan.toml");
    std::fs::write(
        &plan,
        "name = \"sipp\"\ntitle = \"Calls to SIPp\"\n[callers]\nrate = 50.0\nduration_seconds = 2.0\nhold_seconds = 1.0\n\
         [thresholds]\nfailed_percent = 0.0\nnot_started_percent = 0.0\n",
    )
    .unwrap();
    let sets = [
        format!("sut.address={address}"),
        format!("sut.process_id={}", process.0.id()),
    ];
    // SIPp's UAS scenario counts an OPTIONS as a failed call.
    let unasked = RunOptions {
        no_probe: true,
        ..options(&folder, &sets)
    };
    let verdict = run(plan.to_str().unwrap(), &unasked).unwrap();
    let figures = figures(&folder);
    assert_eq!(verdict, RunVerdict::Passed, "{figures:#}");
    let trial = &figures["trials"][0];
    assert_eq!(trial["calls"]["completed"], 100);
    let p99 = number(&trial["response_ms"]["p99"]);
    assert!(p99 > 0.02 && p99 < 5_000.0, "{p99}");
    assert!(trial["mos"].is_null() && trial["lost_percent"].is_null());
}

/// SIPp does not answer OPTIONS, so this waits until its port is in use.
fn wait_until_bound(address: SocketAddr) {
    let end = Instant::now() + Duration::from_secs(30);
    // Not by an attempt to bind it, which could come before that of SIPp.
    let port = format!(":{:04X} ", address.port());
    let is_bound = || {
        let sockets = std::fs::read_to_string("/proc/net/udp").unwrap_or_default();
        sockets.contains(&port)
    };
    while !is_bound() {
        assert!(Instant::now() < end, "{address} stays free");
        std::thread::sleep(Duration::from_millis(20));
    }
}
