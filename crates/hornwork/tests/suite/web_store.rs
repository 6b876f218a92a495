//! Searches of a store that cannot be read as a whole, and conditions that no call can fulfil.

use crate::web::{Rig, entries, until};
use crate::web_privacy::short_call;

use serde_json::json;
use std::process::{Command, Output};

/// The output of `hornwork trace` with this condition.
fn trace(rig: &Rig, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hornwork"))
        .args(["trace", "--store"])
        .arg(rig.folder.join("store"))
        .args(arguments)
        .output()
        .expect("hornwork trace")
}

#[test]
fn a_damaged_partition_is_named_and_hides_no_call_of_the_others() {
    let rig = Rig::new("web-damage", "");
    let id = short_call(&rig);
    let by_number = || rig.get("/calls?number=6001");
    until("the call is in the store", || {
        (entries(&by_number(), "calls").len() == 1).then_some(())
    });
    assert_eq!(rig.get("/health")["checks"]["store"], "ok");
    let name = "20251001-000000000000";
    let partition = rig.folder.join("store").join(name);
    std::fs::create_dir(&partition).expect("folder");
    std::fs::write(partition.join("index.db"), "this is no database at all").expect("file");
    let found = by_number();
    assert_eq!(entries(&found, "calls").len(), 1, "{found}");
    let unread = found["unread"][0].as_str().expect("a part");
    assert!(
        unread.contains(name) && unread.contains("not a database"),
        "{unread}"
    );
    assert_eq!(rig.get(&format!("/calls/{id}"))["call"]["to"], "6001");
    // A call that is not found may be in that partition.
    let missing = rig.with("GET", "/api/v1/calls/no-such-call", "", "");
    assert_eq!(
        (missing.status, &missing.json()["code"]),
        (503, &json!("store"))
    );
    // A check is believed for two seconds.
    let health = until("the health is degraded", || {
        Some(rig.get("/health")).filter(|health| health["status"] == "degraded")
    });
    assert_eq!(health["checks"]["store"], "a partition cannot be read");
    for arguments in [["--number", "6001"], ["--call-id", &id]] {
        let output = trace(&rig, &arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(&id), "{text}");
        let warning = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            warning.contains(name) && warning.contains("remedy: "),
            "{warning}"
        );
    }
}

#[test]
fn words_with_control_characters_are_no_fault_of_the_store() {
    let rig = Rig::new("web-words", "");
    let id = short_call(&rig);
    let found = |words: &str| entries(&rig.get(&format!("/calls?words={words}")), "calls").len();
    // "wants" is in the Subject.
    until("the call is found by its words", || {
        (found("wants") == 1).then_some(())
    });
    assert_eq!(found("5034%00wants"), 1, "{id}");
    assert_eq!(
        (found("wants%00nothing"), found("%00"), found("%01%7f")),
        (0, 0, 0)
    );
}
