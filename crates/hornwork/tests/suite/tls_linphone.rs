//! linphone over TLS, which verifies our certificate and its name: it registers, calls, is called over its own
//! connection.

use crate::common;
use crate::common::certificates;

use certificates::Authority;
use common::{Process, border, free_port, installed, media_ports, scratch};
use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

fn until(process: &Process, wanted: &str, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if process.log().contains(wanted) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// A console of `user` that uses TLS only and trusts this authority, for the name `localhost`.
fn linphone(folder: &Path, user: u16, tls: u16, ca: &str, more: &[&str]) -> (Process, ChildStdin) {
    let home = folder.join(format!("home-{user}-{ca}"));
    for path in [".local/share/linphone", ".config/linphone"] {
        std::fs::create_dir_all(home.join(path)).expect("home");
    }
    let settings = home.join("linphonerc");
    let text = format!(
        "[sip]\nsip_port=0\nsip_tcp_port=0\nsip_tls_port={}\nroot_ca={}\nverify_server_certs=1\nverify_server_cn=1\n\
         contact=\"{user}\" <sip:{user}@127.0.0.1>\nguess_hostname=0\nregister_only_when_network_is_up=0\nuse_ipv6=0\n\
         media_encryption=none\n[net]\nfirewall_policy=0\n[rtp]\naudio_rtp_port={}\n[proxy_0]\n\
         reg_proxy=<sip:localhost:{tls};transport=tls>\nreg_identity=sip:{user}@localhost\nreg_expires=60\n\
         reg_sendregister=1\npublish=0\n[auth_info_0]\nusername={user}\npasswd=secret-{user}\nrealm=*\n",
        free_port(),
        folder.join(ca).display(),
        free_port() / 2 * 2 + 2_000,
    );
    std::fs::write(&settings, text).expect("settings");
    let mut phone = Process::start(
        Command::new("linphonec")
            .env("HOME", &home)
            .args(more)
            .arg("-c")
            .arg(&settings)
            .stdin(Stdio::piped()),
        &home.join("log"),
    );
    let mut keyboard = phone.stdin();
    // A machine without a sound card cannot play ring tones.
    let _ = writeln!(keyboard, "soundcard use files").and_then(|()| keyboard.flush());
    (phone, keyboard)
}

/// A registered console; only its start is retried.
fn registered(
    folder: &Path,
    user: u16,
    tls: u16,
    more: &[&str],
    border: &Process,
) -> (Process, ChildStdin) {
    for _ in 0..3 {
        let phone = linphone(folder, user, tls, "ca.pem", more);
        let stored = format!("registration_stored aor={user} ");
        if until(border, &stored, Duration::from_secs(30)) {
            return phone;
        }
        println!("linphone did not come up: {}", phone.0.log());
    }
    panic!("linphone does not register: {}", border.log());
}

#[test]
fn linphone_registers_and_calls_linphone_over_tls() {
    if !installed(&["linphonec"]) {
        return;
    }
    let folder = scratch("tls-linphone");
    Authority::new(&folder, "ca").issue("first", "localhost");
    Authority::new(&folder, "other");
    let (port, tls) = (free_port(), free_port());
    let (first, last) = media_ports(100);
    let users: String = [1002, 1003]
        .map(|user| format!("[[user]]\nname = \"{user}\"\npassword = \"secret-{user}\"\n\n"))
        .concat();
    let [chain, key] = ["first.pem", "first.key"].map(|name| folder.join(name));
    let text = format!(
        "[[interface]]\nname = \"phones\"\nlisten = [\"udp:127.0.0.1:{port}\", \"tls:127.0.0.1:{tls}\"]\n\
         authenticate = \"digest\"\nmedia = {{ ports = \"{first}-{last}\" }}\n\
         tls = {{ certificate = {{ chain = \"{}\", key = \"{}\" }} }}\n\n{users}[sip]\nworkers = 2\n",
        chain.display(),
        key.display(),
    );
    let border = border(&folder, &text, port);
    let callee = registered(&folder, 1003, tls, &["-a"], &border);
    let (mut caller, mut keyboard) = registered(&folder, 1002, tls, &[], &border);
    let mut types = |line: &str| {
        writeln!(keyboard, "{line}")
            .and_then(|()| keyboard.flush())
            .unwrap_or_else(|error| panic!("linphone at {line:?}: {error}"));
    };
    types(&format!("call sip:1003@localhost:{tls};transport=tls"));
    for wanted in ["call_answered", "call_ended"] {
        assert!(
            until(&border, wanted, Duration::from_secs(30)),
            "no {wanted}: {}\n{}\n{}",
            caller.log(),
            callee.0.log(),
            border.log()
        );
        if wanted == "call_answered" {
            std::thread::sleep(Duration::from_secs(2));
            types("terminate");
        }
    }
    types("quit");
    caller.wait(Duration::from_secs(10));
    assert!(
        !border.log().contains("tls_handshake_failed"),
        "{}",
        border.log()
    );
    // With another authority linphone does not register, and the log names the side that closed.
    let stranger = linphone(&folder, 1002, tls, "other.pem", &[]);
    assert!(
        until(&border, "tls_handshake_failed", Duration::from_secs(30)),
        "{}\n{}",
        stranger.0.log(),
        border.log()
    );
    drop((stranger, callee));
}
