//! `hornwork phone` through the border from other networks: servers with certificates that are not trusted, behind a
//! NAT, over IPv6.

use crate::common::certificates::Authority;
use crate::common::network_case::NetworkCase;
use crate::common::phones::voice;
use crate::common::{Process, border, free_port, installed, media_ports, scratch};
use crate::gateway_ike::COMMON;
use crate::softphone::{answering, assert_heard, json, phone, text};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A certificate that is refused ends the call, with the reason; nothing is sent to the server.
#[test]
fn refused_certificates_are_named() {
    if !installed(&["openssl"]) {
        return;
    }
    let folder = scratch("softphone-certificates");
    let authority = Authority::new(&folder, "ca");
    authority.issue("good", "localhost");
    authority.issue("name", "example.com");
    authority.issue_until("expired", "localhost", 2020);
    authority.issue_self_signed("self", "localhost");
    for (name, reason) in [
        ("good", ""),
        ("name", "is not for localhost but for example.com"),
        ("expired", "expired on 2020-12-31"),
        ("self", "an authority that is not trusted"),
    ] {
        let port = free_port();
        let mut server = Command::new("openssl");
        server
            .args([
                "s_server",
                "-quiet",
                "-accept",
                &format!("127.0.0.1:{port}"),
            ])
            .args([
                "-cert",
                &format!("{name}.pem"),
                "-key",
                &format!("{name}.key"),
            ])
            .current_dir(&folder)
            .stdin(Stdio::piped());
        let server = Process::start(&mut server, &folder.join(format!("{name}.log")));
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "no server: {}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        let uri = format!("sip:600@localhost:{port};transport=tls");
        let words = [
            "call",
            &uri,
            "--local",
            "127.0.0.1",
            "--ca",
            "ca.pem",
            "--ring-seconds",
            "2",
        ];
        let output = phone(&folder, &words);
        let shown = text(&output);
        assert_eq!(output.status.code(), Some(1), "{name}: {shown}");
        match reason {
            // The server accepts the connection, and answers no INVITE.
            "" => {
                assert!(!shown.contains("TLS: "), "{name}: {shown}");
                assert!(
                    server.log().contains("INVITE sip:600@localhost"),
                    "{}",
                    server.log()
                );
            }
            reason => {
                assert!(
                    shown.contains("TLS: ") && shown.contains(reason),
                    "{name}: {shown}"
                );
                assert!(!server.log().contains("INVITE"), "{}", server.log());
            }
        }
    }
}

/// A border for two phones with digest, at an address.
fn two_users(listen: &str, media: &str) -> String {
    let users: String = [1000, 1001]
        .map(|user| format!("[[user]]\nname = \"{user}\"\npassword = \"secret-{user}\"\n"))
        .concat();
    format!(
        "[[interface]]\nname = \"phones\"\nlisten = {listen}\nauthenticate = \"digest\"\nmedia = {media}\n{users}"
    )
}

/// A network with a router that masquerades; the border, and the other phone, are outside.
const NAT: &str = r#"
site inside
ip link add ia type veth peer name ib
ip link set ia netns $inside; ip link set ib netns $far
$inside_in sh -c "ip addr add 10.9.0.2/24 dev ia; ip link set ia up; ip route add default via 10.9.0.1"
$far_in sh -c "ip addr add 10.9.0.1/24 dev ib; ip link set ib up; echo 1 > /proc/sys/net/ipv4/ip_forward"
$far_in nft -f - <<END
table ip nat {
  chain post {
    type nat hook postrouting priority 100
    oifname "vb" masquerade random
  }
}
END
"$HORNWORK" run -c border.toml > border.log 2>&1 & jobs_of_test="$jobs_of_test $!"
await border.log socket_opened
phone() { in=$1; log=$2; shift 2; $in timeout 60 "$HORNWORK" phone "$@" </dev/null >$log 2>&1; }
# The phone inside is called, then it calls.
phone "$inside_in" answer.log answer --register sip:1001@192.0.2.1 --password secret-1001 --local 10.9.0.2 --wait 30 --wav-in callee.wav --loop --wav-out callee-heard.wav --json callee.json & answer=$!
await answer.log "registered for"
phone "" call.log call sip:1001@192.0.2.1 --user sip:1000@192.0.2.1 --password secret-1000 --local 192.0.2.1:5070 --seconds 5 --wav-in caller.wav --loop --wav-out caller-heard.wav --json caller.json
wait $answer
# The next wait must not find the registration of the former phone.
mkdir -p out; mv callee-heard.wav caller-heard.wav callee.json caller.json answer.log out
phone "" answer.log answer --register sip:1000@192.0.2.1 --password secret-1000 --local 192.0.2.1:5070 --wait 30 --wav-in callee.wav --loop --wav-out callee-heard.wav --json callee.json & answer=$!
await answer.log "registered for"
phone "$inside_in" call.log call sip:1000@192.0.2.1 --user sip:1001@192.0.2.1 --password secret-1001 --local 10.9.0.2 --seconds 5 --wav-in caller.wav --loop --wav-out caller-heard.wav --json caller.json
wait $answer
"#;

/// The test runs in namespaces, which need a right.
fn may_masquerade() -> bool {
    if !installed(&["unshare", "nsenter", "ip", "nft", "timeout"]) {
        return false;
    }
    let able = "nft add table ip t && nft add chain ip t c '{ type nat hook postrouting priority 100; }' && nft add rule ip t c masquerade";
    let output = Command::new("unshare")
        .args(["-n", "sh", "-c", able])
        .output();
    let able = output.is_ok_and(|output| output.status.success());
    if !able {
        eprintln!("skipped: no right to a network namespace, or a kernel without NAT");
    }
    able
}

#[test]
fn phone_behind_a_nat_calls_and_is_called() {
    if !may_masquerade() {
        return;
    }
    let case = NetworkCase::new(
        "softphone-nat",
        COMMON.to_owned(),
        &["border.log", "call.log", "answer.log"],
    );
    let [caller, callee] = [codec::speech::speech(), codec::speech::answer()];
    voice(&case.folder, "caller.wav", caller);
    voice(&case.folder, "callee.wav", callee);
    let media = "{ address = \"192.0.2.1\", ports = \"20000-20099\" }";
    case.write("border.toml", &two_users("\"udp:192.0.2.1:5060\"", media));
    let said = case.run(NAT);
    for folder in [case.folder.join("out"), case.folder.clone()] {
        for name in ["caller.json", "callee.json"] {
            let figures = json(&folder, name);
            assert_eq!(figures["established"], true, "{said}");
            assert!(
                figures["received"].as_u64() > Some(150),
                "{figures:#}\n{said}"
            );
        }
        assert_heard(&folder, "caller-heard.wav", callee, 5.0);
        assert_heard(&folder, "callee-heard.wav", caller, 5.0);
    }
    // The border saw the router's address only.
    let log = case.read("border.log");
    assert!(log.contains("192.0.2.2:"), "{log}");
}

/// Calls between phones of both address families.
fn call_between(folder: &Path, border: &str, [caller, callee]: [&str; 2]) {
    let address = |user: u16, host: &str| format!("sip:{user}@{host}");
    let register = address(1001, callee);
    let local = |host: &str| match host.starts_with('[') {
        true => "[::1]:0".to_owned(),
        false => "127.0.0.1:0".to_owned(),
    };
    let mut answer = answering(
        folder,
        &[
            "--register",
            &register,
            "--password",
            "secret-1001",
            "--local",
            &local(callee),
            "--wait",
            "20",
            "--wav-in",
            "callee.wav",
            "--loop",
            "--wav-out",
            "callee-heard.wav",
            "--json",
            "callee.json",
        ],
    );
    let (called, user) = (address(1001, caller), address(1000, caller));
    let output = phone(
        folder,
        &[
            "call",
            &called,
            "--user",
            &user,
            "--password",
            "secret-1000",
            "--local",
            &local(caller),
            "--seconds",
            "4",
            "--wav-in",
            "caller.wav",
            "--loop",
            "--wav-out",
            "caller-heard.wav",
            "--json",
            "caller.json",
        ],
    );
    let shown = text(&output);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{shown}\n{}\n{border}",
        answer.log()
    );
    assert_eq!(
        answer.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        answer.log()
    );
    assert_heard(folder, "caller-heard.wav", codec::speech::answer(), 4.0);
    assert_heard(folder, "callee-heard.wav", codec::speech::speech(), 4.0);
    for name in ["caller.json", "callee.json"] {
        let figures = json(folder, name);
        assert!(figures["received"].as_u64() > Some(120), "{figures:#}");
    }
}

#[test]
fn calls_over_ipv6_pass_the_border() {
    if UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let folder = scratch("softphone-ipv6");
    voice(&folder, "caller.wav", codec::speech::speech());
    voice(&folder, "callee.wav", codec::speech::answer());
    let port = free_port();
    let (first, last) = media_ports(100);
    let listen = format!("[\"udp:127.0.0.1:{port}\", \"udp:[::1]:{port}\"]");
    let media = format!(
        "[{{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}, {{ address = \"::1\", ports = \"{first}-{last}\" }}]"
    );
    let border = border(&folder, &two_users(&listen, &media), port);
    let (v4, v6) = (format!("127.0.0.1:{port}"), format!("[::1]:{port}"));
    for pair in [[&v6, &v6], [&v4, &v6], [&v6, &v4]] {
        call_between(&folder, &border.log(), pair.map(String::as_str));
    }
}
