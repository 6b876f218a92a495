//! Emergency calls and other services (RFC 5031) from SIPp through the example configuration to SIPp.

use crate::common;

use common::{Process, border, free_port, installed, root, scratch};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn sipp(folder: &Path, name: &str, port: u16, arguments: &[&str]) -> Process {
    Process::start(
        Command::new("sipp")
            .current_dir(folder)
            .args(["-i", "127.0.0.1", "-p", &port.to_string(), "-nostdin"])
            .args(["-trace_msg", "-message_file", &format!("{name}.msg")])
            .args(arguments)
            .stdin(Stdio::null()),
        &folder.join(format!("{name}.log")),
    )
}

/// Messages received by a called side.
fn seen(folder: &Path, name: &str) -> String {
    let file = folder.join(format!("{name}.msg"));
    String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
}

/// Waits until SIPp's port is in use.
fn wait_until_bound(port: u16) {
    let end = Instant::now() + Duration::from_secs(20);
    while std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok() {
        assert!(Instant::now() < end, "{port} stays free");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn emergency_calls_reach_the_trunk_of_the_example() {
    if !installed(&["sipp"]) {
        return;
    }
    let folder = scratch("services");
    let (outside, inside) = (free_port(), free_port());
    let mut text = std::fs::read_to_string(root().join("examples/services.toml")).expect("example");
    let mut called = Vec::new();
    for (name, address) in [
        ("core", "10.0.0.20:5060"),
        ("psap", "10.0.0.112:5060"),
        ("psap-2", "10.0.1.112:5060"),
        ("fire", "10.0.0.113:5060"),
    ] {
        let port = free_port();
        text = text.replace(address, &format!("127.0.0.1:{port}"));
        called.push((name, port));
    }
    let text = text
        .replace("192.0.2.10:5060", &format!("127.0.0.1:{outside}"))
        .replace("10.0.0.10:5060", &format!("127.0.0.1:{inside}"));
    let (first, last) = common::media_ports(40);
    let media = format!("media = {{ ports = \"{first}-{last}\" }}\n");
    let text = text.replace("[[interface]]\n", &format!("[[interface]]\n{media}"));
    let _border = border(&folder, &text, outside);
    let _called: Vec<Process> = called
        .iter()
        .map(|(name, port)| sipp(&folder, name, *port, &["-sn", "uas"]).at_port(*port))
        .collect();
    for (_, port) in &called {
        wait_until_bound(*port);
    }
    let target = format!("127.0.0.1:{outside}");
    let scenario = |file: &str, uri: &str, name: &str| {
        let text = std::fs::read_to_string(root().join(file)).expect("scenario");
        let text = text
            .replace("sip:[service]@[remote_ip]:[remote_port]", uri)
            .replace("STATUS", "404");
        std::fs::write(folder.join(format!("{name}.xml")), text).expect("scenario");
    };
    let plain = "scenarios/sipp/uac.xml";
    let refused = "crates/hornwork/tests/sipp/uac-expect.xml";
    for (name, file, uri) in [
        ("to-fire", plain, "urn:service:sos.fire"),
        ("to-police", plain, "urn:service:sos.police"),
        ("to-counselor", refused, "urn:service:counseling"),
    ] {
        scenario(file, uri, name);
        let xml = format!("{name}.xml");
        let arguments = ["-sf", &xml, &target, "-m", "1", "-d", "200"];
        let mut caller = sipp(&folder, name, free_port(), &arguments);
        let ended = caller.wait(Duration::from_secs(60));
        assert_eq!(ended, Some(true), "{name}: {}", seen(&folder, name));
    }
    let invites = |name: &str| {
        let seen = seen(&folder, name);
        let lines = seen.lines().filter(|line| line.starts_with("INVITE "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (fire, police) = (invites("fire"), invites("psap"));
    assert!(!fire.is_empty() && !police.is_empty());
    for line in &fire {
        assert!(line.starts_with("INVITE urn:service:sos.fire "), "{line}");
    }
    for line in &police {
        assert!(line.starts_with("INVITE sip:112@"), "{line}");
    }
    assert!(invites("core").is_empty() && invites("psap-2").is_empty());
}
