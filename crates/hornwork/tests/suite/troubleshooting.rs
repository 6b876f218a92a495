//! Refusals of docs/how-to/troubleshooting.md, provoked: the log has the line that the page names.

use crate::common;
use crate::common::callers::{Caller, eventually};
use common::{free_port, media_ports, root, scratch};

/// A PBX that is not running, behind a trunk without pings: the first mistake of a new installation.
#[test]
fn call_to_a_pbx_that_is_down_has_the_reason_of_the_page() {
    let (sip, closed) = (free_port(), free_port());
    let (first, last) = media_ports(20);
    let text = format!(
        "[[interface]]\nname = \"loopback\"\nlisten = [\"udp:127.0.0.1:{sip}\"]\nallow = \"127.0.0.0/8\"\n\
         media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n\
         [[trunk]]\nname = \"pbx\"\ntarget = \"udp:127.0.0.1:{closed}\"\n\
         [[route]]\nto.prefix = \"5555\"\ntrunk = \"pbx\"\n"
    );
    let border = common::border(&scratch("troubleshooting-503"), &text, sip);
    let caller = Caller::dial(sip, "5555", 440.0);
    assert_eq!(caller.status(), 503, "{}", border.log());
    eventually("the end of the call", || {
        border.log().contains(" call_ended ")
    });
    let log = border.log();
    let ended = log.lines().find(|line| line.contains(" call_ended "));
    let ended = ended.unwrap_or_default();
    assert!(ended.contains("status=503"), "{log}");
    // Nothing else in the log says why.
    for event in [
        "admission_refused",
        "overload",
        "rate_limited",
        "trunk_down",
    ] {
        assert!(!log.contains(&format!(" {event} ")), "{log}");
    }
    let page = std::fs::read_to_string(root().join("docs/how-to/troubleshooting.md"));
    let page = page.expect("docs/how-to/troubleshooting.md");
    let row = page
        .lines()
        .find(|line| line.starts_with("| 503 | `call_ended`"))
        .expect("a row for 503");
    let reason = "target is unreachable";
    assert!(ended.contains(&format!("reason=\"{reason}\"")), "{log}");
    assert!(row.contains(&format!("`{reason}`")), "{row}");
}
