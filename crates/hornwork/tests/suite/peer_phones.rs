//! Real telephones through the border: they register with digest, call each other, and each must have
//! heard what the other said.

use crate::browser;
use crate::common;
use crate::common::certificates;
use crate::common::telephones;

use common::{Process, border, example, free_port, installed, media_ports, scratch};
use std::io::Write as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use telephones::{
    baresip, baresip_in, baresip_that, likeness, likeness_of, recording, until, voice,
};

/// Least likeness of what was heard to what was said. G.711 and a few lost edges leave more than 0.9; another sentence,
/// noise or silence stays below 0.3.
const ALIKE: f64 = 0.8;

/// A linphone console for `user`, registered, its audio from and to files. It may fail to come up (its start is what is
/// tried again, three times at most; nothing else is), for which its log is kept.
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
        let known = border.said().matches(&registered).count();
        let mut phone = Process::start(
            Command::new("linphonec")
                .env("HOME", &home)
                .arg("-c")
                .arg(&settings)
                .stdin(Stdio::piped()),
            &folder.join(format!("linphone-{attempt}.log")),
        );
        let keyboard = phone.stdin();
        let end = Instant::now() + Duration::from_secs(8);
        while Instant::now() < end && phone.wait(Duration::from_millis(50)).is_none() {
            if border.said().matches(&registered).count() > known {
                return (phone, keyboard);
            }
        }
        println!("linphone did not come up: {}", phone.said());
    }
    panic!("linphone does not register: {}", border.said());
}

/// Types a line into linphone's console.
fn type_in(phone: &Process, keyboard: &mut ChildStdin, line: &str) {
    writeln!(keyboard, "{line}")
        .and_then(|()| keyboard.flush())
        .unwrap_or_else(|error| panic!("linphone at {line:?}: {error}: {}", phone.said()));
}

/// Telephones keep time by the machine's clock: one call at a time.
static ONE_CALL: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn one_call() -> std::sync::MutexGuard<'static, ()> {
    ONE_CALL
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A border for users 1000 to 1009 with these keys of its interface, and where it listens.
fn uc_server(folder: &Path, interface: &str, more: &str) -> (Process, u16) {
    let sip = free_port();
    let text = example("loopback-uc.toml", sip, sip + 1, media_ports(202), more).replace(
        "kind = \"access\"",
        &format!("kind = \"access\"\n{interface}"),
    );
    (border(folder, &text, sip), sip)
}

/// Both must have heard the other; says how well.
fn judge(what: &str, heard: [f64; 2], border: &Process) {
    println!(
        "{what}: caller heard {:.3}, callee heard {:.3}",
        heard[0], heard[1]
    );
    assert!(
        heard.iter().all(|value| *value > ALIKE),
        "{what}: likeness {heard:?}\n{}",
        border.said()
    );
}

#[test]
fn baresip_calls_baresip() {
    baresip_calls("phones-baresip", "", ["", ""], "");
}

/// The phones belong to whichever worker their Call-IDs say, and hear each other all the same.
#[test]
fn baresip_calls_baresip_through_three_workers() {
    baresip_calls("phones-workers", "", ["", ""], "[sip]\nworkers = 3\n");
}

/// Telephones without a common codec: the border transcodes.
#[test]
fn baresip_in_pcma_calls_baresip_in_opus() {
    let interface = "transcode = [\"PCMA\", \"opus\"]";
    let codecs = ["PCMA", "opus/48000/2"];
    if let Some(said) = baresip_calls_in(codecs, "phones-opus", interface, ["", ""], "") {
        let told = "media_transcoded call=1 line=0 caller=PCMA callee=opus";
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn baresip_in_g722_with_sdes_calls_baresip_in_pcma() {
    let interface = format!("{SDES}\ntranscode = [\"PCMA\", \"G722\"]");
    let codecs = ["G722/16000/1", "PCMA"];
    let encryption = ["srtp-mand", ""];
    if let Some(said) = baresip_calls_in(codecs, "phones-g722", &interface, encryption, "") {
        let told = "media_transcoded call=1 line=0 caller=G722 callee=PCMA";
        assert!(said.contains(told), "{said}");
        assert_keyed(&said, "caller", "sdes");
    }
}

/// Keys in session descriptions: each phone has its own with the border, or none.
const SDES: &str = "srtp = \"prefer\"";

#[test]
fn baresip_with_sdes_calls_baresip_in_the_clear() {
    if let Some(said) = baresip_calls("phones-sdes-a", SDES, ["srtp-mand", ""], "") {
        assert_keyed(&said, "caller", "sdes");
    }
}

#[test]
fn baresip_in_the_clear_calls_baresip_with_sdes() {
    if let Some(said) = baresip_calls("phones-sdes-b", SDES, ["", "srtp"], "") {
        assert_keyed(&said, "callee", "sdes");
    }
}

/// baresip 1.0 has an RSA certificate, which our DTLS does not take: the call ends, and the log says why.
#[test]
fn baresip_with_a_certificate_that_is_not_taken() {
    let _turn = one_call();
    if !installed(&["baresip"]) {
        return;
    }
    let folder = scratch("phones-rsa");
    let interface = "srtp = \"require\"\nsrtp_keying = [\"dtls\", \"sdes\"]";
    let (border, sip) = uc_server(&folder, interface, "");
    let spoken = voice(&folder, "caller.wav", codec::speech::speech());
    let (a, b) = (folder.join("a"), folder.join("b"));
    let callee = baresip_that(&b, 1001, sip, &spoken, "dtls_srtp", &["-t", "30"]);
    assert!(until(&border, "stored aor=1001 ", Duration::from_secs(15)));
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let caller = baresip_that(
        &a,
        1000,
        sip,
        &spoken,
        "srtp-mand",
        &["-e", &dial, "-t", "12"],
    );
    assert!(
        until(&border, "call_ended", Duration::from_secs(15)),
        "{}\n{}",
        caller.said(),
        border.said()
    );
    let said = border.said();
    assert_keyed(&said, "caller", "sdes");
    if !said.contains("keying=dtls") {
        let why = "media_not_keyed call=1 side=callee line=0 why=\"the DTLS handshake failed";
        assert!(said.contains(why), "{said}");
    }
    drop(callee);
}

/// Where SRTP is demanded, a phone without it is told so, and the log says why.
#[test]
fn baresip_in_the_clear_is_refused_where_srtp_is_demanded() {
    let _turn = one_call();
    if !installed(&["baresip"]) {
        return;
    }
    let folder = scratch("phones-demanded");
    let (border, sip) = uc_server(&folder, "srtp = \"require\"", "");
    let spoken = voice(&folder, "caller.wav", codec::speech::speech());
    let b = folder.join("b");
    let callee = baresip(&b, 1001, sip, &spoken, &["-t", "30"]);
    assert!(until(&border, "stored aor=1001 ", Duration::from_secs(15)));
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let a = folder.join("a");
    let caller = baresip(&a, 1000, sip, &spoken, &["-e", &dial, "-t", "12"]);
    assert!(
        until(&border, "media_not_keyed", Duration::from_secs(10)),
        "{}\n{}",
        caller.said(),
        border.said()
    );
    assert!(
        until(&caller, "488", Duration::from_secs(5)),
        "{}",
        caller.said()
    );
    assert!(
        border
            .said()
            .contains("media in the clear was offered where SRTP is demanded")
    );
    drop(callee);
}

fn assert_keyed(said: &str, side: &str, keying: &str) {
    let keyed = said.lines().any(|line| {
        line.contains("media_keyed")
            && line.contains(&format!("side={side}"))
            && line.contains(&format!("keying={keying}"))
    });
    assert!(keyed, "{said}");
    assert!(!said.contains("inline:"), "no key is logged");
}

fn baresip_calls(name: &str, interface: &str, encryption: [&str; 2], more: &str) -> Option<String> {
    baresip_calls_in(["PCMA", "PCMA"], name, interface, encryption, more)
}

/// The same, each in a codec of its own.
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
    let callee = baresip_in(
        codecs[1],
        &b,
        1001,
        sip,
        &callee_voice,
        encryption[1],
        &["-t", "40"],
    );
    assert!(
        until(&border, "stored aor=1001 ", Duration::from_secs(15)),
        "callee did not register: {}\n{}",
        callee.said(),
        border.said()
    );
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let mut caller = baresip_in(
        codecs[0],
        &a,
        1000,
        sip,
        &caller_voice,
        encryption[0],
        &["-e", &dial, "-t", "12"],
    );
    assert!(
        until(&border, "call_answered", Duration::from_secs(10)),
        "no call: {}\n{}",
        caller.said(),
        border.said()
    );
    assert!(
        border.said().contains("stored aor=1000 "),
        "the caller is registered too: {}",
        border.said()
    );
    caller.wait(Duration::from_secs(20));
    drop(callee);
    let heard = [
        likeness(&recording(&a, "dec.wav"), codec::speech::answer()),
        likeness(&recording(&b, "dec.wav"), codec::speech::speech()),
    ];
    judge("baresip to baresip", heard, &border);
    Some(border.said())
}

#[test]
fn linphone_calls_baresip() {
    linphone_calls("phones-linphone", "", "none");
}

#[test]
fn linphone_with_sdes_calls_baresip_in_the_clear() {
    if let Some(said) = linphone_calls("phones-linphone-sdes", SDES, "srtp") {
        assert_keyed(&said, "caller", "sdes");
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
        until(&border, "stored aor=1003 ", Duration::from_secs(15)),
        "callee did not register: {}\n{}",
        callee.said(),
        border.said()
    );
    let (mut caller, mut keyboard) = linphone(&folder, 1002, sip, &border, encryption);
    let record = folder.join("heard.wav");
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
        until(&border, "call_answered", Duration::from_secs(10)),
        "no call: {}\n{}",
        caller.said(),
        border.said()
    );
    std::thread::sleep(Duration::from_secs(6));
    type_in(&caller, &mut keyboard, "terminate");
    assert!(
        until(&border, "call_ended", Duration::from_secs(5)),
        "no end: {}\n{}",
        caller.said(),
        border.said()
    );
    type_in(&caller, &mut keyboard, "quit");
    caller.wait(Duration::from_secs(10));
    drop(callee);
    let heard = [
        likeness(&record, codec::speech::answer()),
        likeness(&recording(&b, "dec.wav"), codec::speech::speech()),
    ];
    judge("linphone to baresip", heard, &border);
    Some(border.said())
}

/// A page calls a telephone: WebSocket, DTLS-SRTP and ICE on its side, UDP and RTP in the clear on the other.
#[test]
fn a_browser_calls_baresip() {
    browser_and_baresip("phones-browser", "lite", true);
}

/// The same with a full agent, which the page leads.
#[test]
fn a_browser_calls_baresip_by_a_full_agent() {
    browser_and_baresip("phones-browser-full", "full", true);
}

/// The telephone calls the page: the full agent offers, and leads.
#[test]
fn baresip_calls_a_browser_by_a_full_agent() {
    browser_and_baresip("phones-called-full", "full", false);
}

/// `ice`: what we are towards the page; `calls`: the page calls, else it is called.
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
        // The page has no user of its own: it is let in without proof.
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
    // Whoever calls says the one thing, whoever is called the other.
    let caller_voice = voice(&folder, "caller.wav", codec::speech::speech());
    let callee_voice = voice(&folder, "callee.wav", codec::speech::answer());
    let server = format!("wss://127.0.0.1:{web}");
    let (page, phone) = if calls {
        let phone = baresip(&b, 1001, sip, &callee_voice, &["-t", "90"]);
        assert!(
            until(&border, "stored aor=1001 ", Duration::from_secs(15)),
            "callee did not register: {}\n{}",
            phone.said(),
            border.said()
        );
        let callee = "sip:1001@localhost";
        let page = browser::Browser::call("chromium", &folder, &caller_voice, &server, callee, 8);
        (page, phone)
    } else {
        let page = browser::Browser::call("chromium", &folder, &callee_voice, &server, "", 8);
        assert!(
            page.until("registered", Duration::from_secs(60)),
            "the page: {}\n{}\n{}",
            page.said().words,
            page.process.said(),
            border.said()
        );
        let dial = format!("/dial sip:1000@127.0.0.1:{sip}");
        let more = ["-e", &dial, "-t", "90"];
        (page, baresip(&b, 1001, sip, &caller_voice, &more))
    };
    let done = page.until("done", Duration::from_secs(60));
    let said = page.said();
    assert!(
        done && said.words.contains("connection connected"),
        "the page: {}\n{}\n{}\n{}",
        said.words,
        page.process.said(),
        phone.said(),
        border.said()
    );
    drop(phone);
    let side = if calls { "caller" } else { "callee" };
    assert_keyed(&border.said(), side, "dtls");
    let nominated = format!("media_pair_nominated call=1 side={side} line=0");
    assert!(border.said().contains(&nominated), "{}", border.said());
    let by_page = likeness_of(
        &said.heard,
        match calls {
            true => codec::speech::answer(),
            false => codec::speech::speech(),
        },
    );
    let by_phone = likeness(
        &recording(&b, "dec.wav"),
        match calls {
            true => codec::speech::speech(),
            false => codec::speech::answer(),
        },
    );
    let (what, heard) = match calls {
        true => ("browser to baresip", [by_page, by_phone]),
        false => ("baresip to browser", [by_phone, by_page]),
    };
    judge(what, heard, &border);
}
