//! The console at a border with header rules, and with client certificates.

use crate::common::certificates::Authority;
use crate::common::{installed, scratch};
use crate::web::{Rig, TOKENS, entries, until, users};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;

#[test]
fn edits_name_the_header_rule_that_was_applied() {
    if !installed(&["sipp"]) {
        return;
    }
    let rules = "\n[[rules]]\nname=\"site\"\ndirection=\"in\"\non=\"request\"\nmethod=\"INVITE\"\ndo=[{set=\"Subject\", value=\"from the border\"}]\n[[rules]]\nname=\"mark\"\ndirection=\"out\"\non=\"request\"\nmethod=\"INVITE\"\ndo=[{add=\"X-Mark\", value=\"1\"},{add=\"X-Other\", value=\"2\"}]\n[[rules]]\nname=\"ringing\"\ndirection=\"out\"\non=\"response\"\nwhen=\"status == 180\"\ndo=[{add=\"X-Ringing\", value=\"yes\"}]\n[[rules]]\nname=\"unused\"\ndirection=\"out\"\non=\"request\"\nwhen=\"method == 'NONE'\"\ndo=[{add=\"X-Unused\", value=\"1\"}]\n";
    let rig = Rig::new("web-rules", rules);
    let _uas = rig.callee();
    let mut uac = rig.calls(2, 100);
    assert_eq!(
        uac.wait(Duration::from_secs(30)),
        Some(true),
        "{}",
        uac.log()
    );
    let found = until("the calls are in the store", || {
        let page = rig.get("/calls?number=4930600&outcome=answered");
        let calls = entries(&page, "calls");
        let ended = |call: &&Value| call["state"] == "ended";
        (calls.iter().filter(ended).count() == 2).then_some(calls)
    });
    for call in found {
        let id = call["id"].as_str().expect("id");
        let page = rig.get(&format!("/calls/{id}"));
        let messages = entries(&page, "messages");
        // The rule of an edit, by the beginning of its line as sent, of the message shown.
        let rule_of = |leg: u64, direction: &str, start: &str, line: &str| {
            let message = messages.iter().find(|message| {
                let summary = message["summary"].as_str().unwrap_or_default();
                message["leg"] == leg
                    && message["direction"] == direction
                    && summary.starts_with(start)
            });
            let message = message.unwrap_or_else(|| panic!("no {start} in {page}"));
            let shown = rig.get(&format!("/calls/{id}/messages/{}", message["index"]));
            let edits = entries(&shown, "edits");
            let edit = edits.iter().find(|edit| {
                edit["after"]
                    .as_str()
                    .is_some_and(|after| after.starts_with(line))
            });
            let edit = edit.unwrap_or_else(|| panic!("no {line} in {edits:?}"));
            (edit["rule"].clone(), edit["recorded"].clone())
        };
        let named = |rule: &str| (json!(format!("header rule \"{rule}\"")), json!(true));
        assert_eq!(rule_of(1, "out", "INVITE", "Subject"), named("site"));
        assert_eq!(rule_of(1, "out", "INVITE", "X-Mark"), named("mark"));
        assert_eq!(rule_of(1, "out", "INVITE", "X-Other"), named("mark"));
        // The same, shown at the message received.
        assert_eq!(rule_of(0, "in", "INVITE", "X-Mark"), named("mark"));
        assert_eq!(rule_of(0, "out", "180", "X-Ringing"), named("ringing"));
        let via = rule_of(1, "out", "INVITE", "Via");
        assert_eq!(via.1, json!(false), "{via:?}");
    }
}

#[test]
fn client_certificate_is_a_login_without_password() {
    if !installed(&["curl"]) {
        return;
    }
    let folder = scratch("web-mtls-files");
    let authority = Authority::new(&folder, "authority");
    authority.issue("console", "localhost");
    let clients = Authority::new(&folder, "clients");
    clients.issue("ann", "ann.example");
    clients.issue("nobody", "nobody.example");
    clients.issue_until("expired", "ann.example", 2001);
    let others = Authority::new(&folder, "others");
    others.issue("forged", "ann.example");
    let path = |name: &str| folder.join(name).display().to_string();
    let console = |more: &str| {
        format!(
            "certificate = {{ chain = \"{}\", key = \"{}\" }}\nclient_ca = \"{}\"\n{more}{}[[console.user]]\nname = \"ann\"\nrole = \"operator\"\ncertificate = \"dns:ann.example\"\n",
            path("console.pem"),
            path("console.key"),
            path("clients.pem"),
            users()
        )
    };
    let rig = Rig::new("web-mtls", &console(""));
    let curl = |rig: &Rig, own: &str, arguments: &[&str], at: &str| {
        let mut command = Command::new("curl");
        command.args([
            "-sS",
            "--max-time",
            "20",
            "-w",
            "\n%{http_code}",
            "--cacert",
            &path("authority.pem"),
        ]);
        if !own.is_empty() {
            command.args([
                "--cert",
                &path(&format!("{own}.pem")),
                "--key",
                &path(&format!("{own}.key")),
            ]);
        }
        let url = format!("https://localhost:{}/api/v1{at}", rig.http);
        let output = command.args(arguments).arg(url).output().expect("curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').expect("a status");
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        (status.parse::<u16>().expect("a number"), body)
    };
    let (status, session) = curl(&rig, "ann", &[], "/session");
    assert_eq!(
        (status, &session["user"], &session["role"]),
        (200, &json!("ann"), &json!("operator"))
    );
    assert_eq!(curl(&rig, "ann", &[], "/limits").0, 200);
    // A browser presents the certificate with forged requests too: without the CSRF token they are refused.
    let change = [
        "-X",
        "PUT",
        "-H",
        "Content-Type: application/json",
        "-d",
        "{\"calls\":77}",
    ];
    let refused = curl(&rig, "ann", &change, "/limits");
    assert_eq!((refused.0, &refused.1["code"]), (403, &json!("csrf")));
    let csrf = format!(
        "X-CSRF-Token: {}",
        session["csrf"].as_str().expect("a token")
    );
    let changed = curl(
        &rig,
        "ann",
        &[&change[..], &["-H", &csrf]].concat(),
        "/limits",
    );
    assert_eq!(changed.0, 200, "{changed:?}");
    // Roles are those of the user.
    assert_eq!(curl(&rig, "ann", &[], "/audit").0, 403);
    // Without certificate, and with one that names no user: the other logins.
    for own in ["", "nobody"] {
        assert_eq!(curl(&rig, own, &[], "/limits").0, 401, "{own}");
        let token = format!("Authorization: Bearer {}", TOKENS[2].1);
        assert_eq!(curl(&rig, own, &["-H", &token], "/audit").0, 200, "{own}");
    }
    // One of another authority, or expired, ends the handshake.
    for own in ["forged", "expired"] {
        assert_eq!(curl(&rig, own, &[], "/limits").0, 0, "{own}");
    }
    let audit = std::fs::read_to_string(rig.folder.join("audit.ndjson")).expect("audit log");
    assert!(audit.contains("\"user\":\"ann\""), "{audit}");
    let required = Rig::new(
        "web-mtls-required",
        &console("require_client_certificate = true\n"),
    );
    assert_eq!(curl(&required, "", &[], "/session").0, 0);
    assert_eq!(curl(&required, "ann", &[], "/session").1["user"], "ann");
}
