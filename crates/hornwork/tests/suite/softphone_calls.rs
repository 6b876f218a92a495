//! `hornwork phone answer` with more than one caller: one call is answered, the others change nothing.

use crate::common::phones::until;
use crate::common::{free_port, scratch};
use crate::softphone::{answering, json, phone, ringing, text};
use std::time::Duration;

#[test]
fn second_call_is_refused_and_the_first_one_goes_on() {
    let folder = scratch("softphone-second");
    let local = format!("127.0.0.1:{}", free_port());
    let limits = ["--wait", "20", "--seconds", "6", "--json", "callee.json"];
    let mut callee = answering(&folder, &[&["--local", &local], &limits[..]].concat());
    let uri = format!("sip:600@{local}");
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| phone(&folder, &["call", &uri, "--json", "first.json"]));
        assert!(
            until(&callee, "established", Duration::from_secs(30)),
            "{}",
            callee.log()
        );
        // While the first call is up, for six seconds.
        std::thread::sleep(Duration::from_millis(200));
        let second = phone(&folder, &["call", &uri]);
        (first.join().expect("first"), second)
    });
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second).contains("486 Busy Here"), "{}", text(&second));
    let said = format!("{}\n{}", text(&first), callee.log());
    assert_eq!(first.status.code(), Some(0), "{said}");
    assert_eq!(callee.wait(Duration::from_secs(30)), Some(true), "{said}");
    let [caller, called] = ["first.json", "callee.json"].map(|file| json(&folder, file));
    assert_eq!(caller["reason"], "ended by the peer", "{said}");
    assert_eq!(called["reason"], "ended by this phone", "{said}");
    for figures in [&caller, &called] {
        assert!(figures["seconds"].as_f64() > Some(5.5), "{figures:#}");
        assert_eq!(figures["lost"], 0, "{figures:#}");
    }
    let refused = "another call was refused with 486";
    assert!(callee.log().contains(refused), "{said}");
}

#[test]
fn call_that_was_not_answered_leaves_no_reason() {
    let folder = scratch("softphone-earlier");
    let local = format!("127.0.0.1:{}", free_port());
    let more = [
        "--wait",
        "30",
        "--answer-after",
        "2",
        "--json",
        "callee.json",
    ];
    let mut callee = answering(&folder, &[&["--local", &local], &more[..]].concat());
    let socket = ringing(&local);
    assert!(until(&callee, "call from", Duration::from_secs(30)));
    let own = socket.local_addr().expect("address");
    let cancel = format!(
        "CANCEL sip:600@{local} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9hG4bKring\r\nMax-Forwards: 70\r\n\
         From: <sip:a@{own}>;tag=1\r\nTo: <sip:600@{local}>\r\nCall-ID: ring-{own}\r\nCSeq: 1 CANCEL\r\n\
         Content-Length: 0\r\n\r\n"
    );
    socket.send_to(cancel.as_bytes(), &local).expect("sent");
    assert!(
        until(&callee, "ended: ", Duration::from_secs(30)),
        "{}",
        callee.log()
    );
    let output = phone(
        &folder,
        &["call", &format!("sip:600@{local}"), "--seconds", "2"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(callee.wait(Duration::from_secs(30)), Some(true));
    let figures = json(&folder, "callee.json");
    assert_eq!(figures["reason"], "ended by the peer", "{figures:#}");
    assert_eq!(figures["status"], 0, "{figures:#}");
}
