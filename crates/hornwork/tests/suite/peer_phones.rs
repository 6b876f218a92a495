//! Phones of other projects through the border: they register with digest and call each other, and each must have
//! received the speech of the other.

use crate::browser;
use crate::common;
use crate::common::certificates;
use crate::common::phones;

use common::{Process, border, example, free_port, installed, media_ports, scratch};
use phones::{
    baresip, baresip_with_codec, baresip_with_encryption, correlation, correlation_of, recording,
    until, voice,
};
use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Lowest correlation of received with sent speech. G.711 with some lost edges gives more than 0.9; another sentence,
/// noise or silence less than 0.3.
const MIN_CORRELATION: f64 = 0.8;

/// Starts a registered linphone console for `user` with audio from and to files. Its start may fail, and is retried at
/// most three times (nothing else is); its log is kept.
fn linphone(
    folder: &Path,
    user: u16,
    sip: u16,
    border: &Process,
    encryption: &str,
) -> (Process, ChildStdin) {
    let home = folder.join("home");
    for path in [".local/share/linphone", ".config/linphone"] {
        std::fs::create_dir_all(home.join(path)).expect("home");
    }
    let settings = folder.join("linphonerc");
    let registered = format!("registration_stored aor={user} ");
    for attempt in 0..3 {
        let text = format!(
            "[sip]\nsip_port={}\nsip_tcp_port=0\nsip_tls_port=0\ncontact=\"{user}\" <sip:{user}@127.0.0.1>\nguess_hostname=0\n\
             register_only_when_network_is_up=0\nuse_ipv6=0\nmedia_encryption={encryption}\n[net]\nfirewall_policy=0\n\
             [rtp]\naudio_rtp_port={}\n[proxy_0]\nreg_proxy=<sip:127.0.0.1:{sip}>\nreg_identity=sip:{user}@127.0.0.1\n\
             reg_expires=60\nreg_sendregister=1\npublish=0\n[auth_info_0]\nusername={user}\npasswd=secret-{user}\nrealm=*\n",
            free_port(),
            free_port() + 1000,
        );
        std::fs::write(&settings, text).expect("settings");
        let known = border.log().matches(&registered).count();
        let mut phone = Process::start(
            Command::new("linphonec")
                .env("HOME", &home)
                .arg("-c")
                .arg(&settings)
                .stdin(Stdio::piped()),
            &folder.join(format!("linphone-{attempt}.log")),
        );
        let keyboard = phone.stdin();
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && phone.wait(Duration::from_millis(50)).is_none() {
            if border.log().matches(&registered).count() > known {
                return (phone, keyboard);
            }
        }
        println!("linphone did not come up: {}", phone.log());
    }
    panic!("linphone does not register: {}", border.log());
}

/// Types a line into linphone's console.
fn type_in(phone: &Process, keyboard: &mut ChildStdin, line: &str) {
    writeln!(keyboard, "{line}")
        .and_then(|()| keyboard.flush())
        .unwrap_or_else(|error| panic!("linphone at {line:?}: {error}: {}", phone.log()));
}

/// Phones depend on the machine's clock, so the calls run one at a time.
static ONE_CALL: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn one_call() -> std::sync::MutexGuard<'static, ()> {
    ONE_CALL
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A border for users 1000 to 1009 with these settings of its interface, and its port.
fn uc_server(folder: &Path, interface: &str, more: &str) -> (Process, u16) {
    let sip = free_port();
    let text = example("loopback-uc.toml", sip, sip + 1, media_ports(202), more).replace(
        "kind = \"access\"",
        &format!("kind = \"access\"\n{interface}"),
    );
    (border(folder, &text, sip), sip)
}

/// Both sides must have received the other; prints the correlations.
fn assert_audio(what: &str, correlations: [f64; 2], border: &Process) {
    println!(
        "{what}: caller correlations {:.3}, callee correlations {:.3}",
        correlations[0], correlations[1]
    );
    assert!(
        correlations.iter().all(|value| *value > MIN_CORRELATION),
        "{what}: correlation {correlations:?}\n{}",
        border.log()
    );
}

#[test]
fn baresip_calls_baresip() {
    baresip_calls("phones-baresip", "", ["", ""], "");
}

/// The phones belong to the workers that their Call-IDs determine, and receive each other in any case.
#[test]
fn baresip_calls_baresip_through_three_workers() {
    baresip_calls("phones-workers", "", ["", ""], "[sip]\nworkers = 3\n");
}

/// Phones without a common codec: the border transcodes.
#[test]
fn baresip_in_pcma_calls_baresip_in_opus() {
    let interface = "transcode = [\"PCMA\", \"opus\"]";
    let codecs = ["PCMA", "opus/48000/2"];
    if let Some(log) = baresip_calls_in(codecs, "phones-opus", interface, ["", ""], "") {
        let logged = "media_transcoded call=1 line=0 caller_codec=PCMA callee_codec=opus";
        assert!(log.contains(logged), "{log}");
    }
}

#[test]
fn baresip_in_g722_with_sdes_calls_baresip_in_pcma() {
    let interface = format!("{SDES}\ntranscode = [\"PCMA\", \"G722\"]");
    let codecs = ["G722/16000/1", "PCMA"];
    let encryption = ["srtp-mand", ""];
    if let Some(log) = baresip_calls_in(codecs, "phones-g722", &interface, encryption, "") {
        let logged = "media_transcoded call=1 line=0 caller_codec=G722 callee_codec=PCMA";
        assert!(log.contains(logged), "{log}");
        assert_keyed(&log, "caller", "sdes");
    }
}

/// SDES: each phone uses SRTP with the border, or RTP.
const SDES: &str = "srtp = \"prefer\"";

#[test]
fn baresip_with_sdes_calls_baresip_in_the_clear() {
    if let Some(log) = baresip_calls("phones-sdes-a", SDES, ["srtp-mand", ""], "") {
        assert_keyed(&log, "caller", "sdes");
    }
}

#[test]
fn baresip_in_the_clear_calls_baresip_with_sdes() {
    if let Some(log) = baresip_calls("phones-sdes-b", SDES, ["", "srtp"], "") {
        assert_keyed(&log, "callee", "sdes");
    }
}

/// baresip 1.0 has an RSA certificate, which our DTLS does not support: the call ends, and the log contains the reason.
#[test]
fn baresip_with_unsupported_certificate() {
    let _turn = one_call();
    if !installed(&["baresip"]) {
        return;
    }
    let folder = scratch("phones-rsa");
    let interface = "srtp = \"require\"\nsrtp_keying = [\"dtls\", \"sdes\"]";
    let (border, sip) = uc_server(&folder, interface, "");
    let spoken = voice(&folder, "caller.wav", codec::speech::speech());
    let (a, b) = (folder.join("a"), folder.join("b"));
    let callee = baresip_with_encryption(&b, 1001, sip, &spoken, "dtls_srtp", &["-t", "30"]);
    assert!(until(&border, "stored aor=1001 ", Duration::from_secs(30)));
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let caller = baresip_with_encryption(
        &a,
        1000,
        sip,
        &spoken,
        "srtp-mand",
        &["-e", &dial, "-t", "12"],
    );
    assert!(
        until(&border, "call_ended", Duration::from_secs(30)),
        "{}\n{}",
        caller.log(),
        border.log()
    );
    let log = border.log();
    assert_keyed(&log, "caller", "sdes");
    if !log.contains("keying=dtls") {
        let why =
            "media_security_failed call=1 side=callee line=0 reason=\"the DTLS handshake failed";
        assert!(log.contains(why), "{log}");
    }
    drop(callee);
}

/// If SRTP is required, a phone without it is refused, and the log contains the reason.
#[test]
fn baresip_without_srtp_is_refused_if_srtp_is_required() {
    let _turn = one_call();
    if !installed(&["baresip"]) {
        return;
    }
    let folder = scratch("phones-demanded");
    let (border, sip) = uc_server(&folder, "srtp = \"require\"", "");
    let spoken = voice(&folder, "caller.wav", codec::speech::speech());
    let b = folder.join("b");
    let callee = baresip(&b, 1001, sip, &spoken, &["-t", "30"]);
    assert!(until(&border, "stored aor=1001 ", Duration::from_secs(30)));
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let a = folder.join("a");
    let caller = baresip(&a, 1000, sip, &spoken, &["-e", &dial, "-t", "12"]);
    assert!(
        until(&border, "media_security_failed", Duration::from_secs(30)),
        "{}\n{}",
        caller.log(),
        border.log()
    );
    assert!(
        until(&caller, "488", Duration::from_secs(30)),
        "{}",
        caller.log()
    );
    assert!(
        border
            .log()
            .contains("SRTP is required, but RTP was offered")
    );
    drop(callee);
}

fn assert_keyed(log: &str, side: &str, keying: &str) {
    let keyed = log.lines().any(|line| {
        line.contains("media_security_agreed")
            && line.contains(&format!("side={side}"))
            && line.contains(&format!("keying={keying}"))
    });
    assert!(keyed, "{log}");
    assert!(!log.contains("inline:"), "no key is logged");
}

fn baresip_calls(name: &str, interface: &str, encryption: [&str; 2], more: &str) -> Option<String> {
    baresip_calls_in(["PCMA", "PCMA"], name, interface, encryption, more)
}

/// As [`baresip_calls`], each with a codec of its own.
fn baresip_calls_in(
    codecs: [&str; 2],
    name: &str,
    interface: &str,
    encryption: [&str; 2],
    more: &str,
) -> Option<String> {
    let _turn = one_call();
    if !installed(&["baresip"]) {
        return None;
    }
    let folder = scratch(name);
    let (border, sip) = uc_server(&folder, interface, more);
    let (a, b) = (folder.join("a"), folder.join("b"));
    let caller_voice = voice(&folder, "caller.wav", codec::speech::speech());
    let callee_voice = voice(&folder, "callee.wav", codec::speech::answer());
    let callee = baresip_with_codec(
        codecs[1],
        &b,
        1001,
        sip,
        &callee_voice,
        encryption[1],
        &["-t", "40"],
    );
    assert!(
        until(&border, "stored aor=1001 ", Duration::from_secs(30)),
        "callee did not register: {}\n{}",
        callee.log(),
        border.log()
    );
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let mut caller = baresip_with_codec(
        codecs[0],
        &a,
        1000,
        sip,
        &caller_voice,
        encryption[0],
        &["-e", &dial, "-t", "12"],
    );
    assert!(
        until(&border, "call_answered", Duration::from_secs(30)),
        "no call: {}\n{}",
        caller.log(),
        border.log()
    );
    assert!(
        until(&border, "stored aor=1000 ", Duration::from_secs(30)),
        "the caller is registered too: {}",
        border.log()
    );
    caller.wait(Duration::from_secs(30));
    drop(callee);
    let correlations = [
        correlation(&recording(&a, "dec.wav"), codec::speech::answer()),
        correlation(&recording(&b, "dec.wav"), codec::speech::speech()),
    ];
    assert_audio("baresip to baresip", correlations, &border);
    Some(border.log())
}

#[test]
fn linphone_calls_baresip() {
    linphone_calls("phones-linphone", "", "none");
}

#[test]
fn linphone_with_sdes_calls_baresip_in_the_clear() {
    if let Some(log) = linphone_calls("phones-linphone-sdes", SDES, "srtp") {
        assert_keyed(&log, "caller", "sdes");
    }
}

fn linphone_calls(name: &str, interface: &str, encryption: &str) -> Option<String> {
    let _turn = one_call();
    if !installed(&["baresip", "linphonec"]) {
        return None;
    }
    let folder = scratch(name);
    let (border, sip) = uc_server(&folder, interface, "");
    let b = folder.join("b");
    let caller_voice = voice(&folder, "caller.wav", codec::speech::speech());
    let callee_voice = voice(&folder, "callee.wav", codec::speech::answer());
    let callee = baresip(&b, 1003, sip, &callee_voice, &["-t", "60"]);
    assert!(
        until(&border, "stored aor=1003 ", Duration::from_secs(30)),
        "callee did not register: {}\n{}",
        callee.log(),
        border.log()
    );
    let (mut caller, mut keyboard) = linphone(&folder, 1002, sip, &border, encryption);
    let record = folder.join("correlations.wav");
    for line in [
        "soundcard use files".to_owned(),
        format!("record {}", record.display()),
        format!("play {}", caller_voice.display()),
        format!("call sip:1003@127.0.0.1:{sip}"),
    ] {
        type_in(&caller, &mut keyboard, &line);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(
        until(&border, "call_answered", Duration::from_secs(30)),
        "no call: {}\n{}",
        caller.log(),
        border.log()
    );
    std::thread::sleep(Duration::from_secs(6));
    type_in(&caller, &mut keyboard, "terminate");
    assert!(
        until(&border, "call_ended", Duration::from_secs(30)),
        "no end: {}\n{}",
        caller.log(),
        border.log()
    );
    type_in(&caller, &mut keyboard, "quit");
    caller.wait(Duration::from_secs(10));
    drop(callee);
    let correlations = [
        correlation(&record, codec::speech::answer()),
        correlation(&recording(&b, "dec.wav"), codec::speech::speech()),
    ];
    assert_audio("linphone to baresip", correlations, &border);
    Some(border.log())
}

/// A page calls a phone: WebSocket, DTLS-SRTP and ICE on its side, UDP and RTP on the other.
#[test]
fn browser_calls_baresip() {
    browser_and_baresip("phones-browser", "lite", true);
}

/// As above with a full ICE agent; the page is controlling.
#[test]
fn browser_calls_baresip_through_full_ice_agent() {
    browser_and_baresip("phones-browser-full", "full", true);
}

/// The phone calls the page: the full ICE agent offers, and is controlling.
#[test]
fn baresip_calls_browser_through_full_ice_agent() {
    browser_and_baresip("phones-called-full", "full", false);
}

/// `ice`: our ICE mode towards the page; `calls`: the page calls, otherwise it is called.
fn browser_and_baresip(name: &str, ice: &str, calls: bool) {
    let _turn = one_call();
    if !installed(&["baresip", "chromium"]) {
        return;
    }
    let folder = scratch(name);
    certificates::Authority::new(&folder, "ca").issue("sip", "localhost");
    let (sip, web) = (free_port(), free_port());
    let (media, _) = media_ports(200);
    let text = std::fs::read_to_string(common::root().join("examples/webrtc.toml"))
        .expect("example")
        // The page has no user, so its calls need no authentication.
        .replacen("authenticate = \"digest\"", "authenticate = \"none\"", 1)
        .replace("ice = \"lite\"", &format!("ice = \"{ice}\""))
        .replace(":8443", &format!(":{web}"))
        .replace(":5060", &format!(":{sip}"))
        .replace("20000-23499", &format!("{media}-{}", media + 99))
        .replace("23500-26999", &format!("{}-{}", media + 100, media + 199))
        .replace("sip.pem", &folder.join("sip.pem").display().to_string())
        .replace("sip.key", &folder.join("sip.key").display().to_string());
    let border = border(&folder, &text, sip);
    let b = folder.join("b");
    // Caller and callee send different speech.
    let caller_voice = voice(&folder, "caller.wav", codec::speech::speech());
    let callee_voice = voice(&folder, "callee.wav", codec::speech::answer());
    let server = format!("wss://127.0.0.1:{web}");
    let (page, phone) = if calls {
        let phone = baresip(&b, 1001, sip, &callee_voice, &["-t", "90"]);
        assert!(
            until(&border, "stored aor=1001 ", Duration::from_secs(30)),
            "callee did not register: {}\n{}",
            phone.log(),
            border.log()
        );
        let callee = "sip:1001@localhost";
        let page = browser::Browser::call("chromium", &folder, &caller_voice, &server, callee, 8);
        (page, phone)
    } else {
        let page = browser::Browser::call("chromium", &folder, &callee_voice, &server, "", 8);
        assert!(
            page.until("registered", Duration::from_secs(60)),
            "the page: {}\n{}\n{}",
            page.log().words,
            page.process.log(),
            border.log()
        );
        let dial = format!("/dial sip:1000@127.0.0.1:{sip}");
        let more = ["-e", &dial, "-t", "90"];
        (page, baresip(&b, 1001, sip, &caller_voice, &more))
    };
    let done = page.until("done", Duration::from_secs(60));
    let log = page.log();
    assert!(
        done && log.words.contains("connection connected"),
        "the page: {}\n{}\n{}\n{}",
        log.words,
        page.process.log(),
        phone.log(),
        border.log()
    );
    drop(phone);
    let side = if calls { "caller" } else { "callee" };
    assert_keyed(&border.log(), side, "dtls");
    let nominated = format!("media_pair_nominated call=1 side={side} line=0");
    assert!(border.log().contains(&nominated), "{}", border.log());
    let by_page = correlation_of(
        &log.heard,
        match calls {
            true => codec::speech::answer(),
            false => codec::speech::speech(),
        },
    );
    let by_phone = correlation(
        &recording(&b, "dec.wav"),
        match calls {
            true => codec::speech::speech(),
            false => codec::speech::answer(),
        },
    );
    let (what, correlations) = match calls {
        true => ("browser to baresip", [by_page, by_phone]),
        false => ("baresip to browser", [by_phone, by_page]),
    };
    assert_audio(what, correlations, &border);
}
