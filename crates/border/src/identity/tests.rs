use super::*;
use wire::sip::emit;

const POLICY: IdentityPolicy = IdentityPolicy {
    assert: true,
    privacy: true,
    diversion: History::Remove,
    history_info: History::Remove,
    remote_party_id: true,
};

fn message(headers: &str) -> Vec<u8> {
    format!(
        "INVITE sip:b@h SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:a@x>;tag=1\r\n\
         To: <sip:b@x>\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n{headers}\r\n"
    )
    .into_bytes()
}

/// The remaining headers, without those that every message has.
fn passed(boundary: &Boundary<'_>, headers: &str) -> String {
    let bytes = message(headers);
    let message = Message::parse(&bytes).unwrap();
    let mut texts = IdentityTexts::default();
    let mut edits: SmallVec<[Edit<'_>; 8]> = SmallVec::new();
    boundary.edits(
        &message,
        || b"border.example".to_vec(),
        &mut texts,
        &mut edits,
    );
    let mut out = Vec::new();
    emit(&message, &edits, &mut out);
    let text = String::from_utf8(out).unwrap();
    let rest = text.split_once("CSeq: 1 INVITE\r\n").unwrap().1;
    rest.trim_end().replace("\r\n", "\n")
}

fn between(policy: &IdentityPolicy, from: bool, to: bool) -> Boundary<'_> {
    Boundary {
        policy,
        from,
        to,
        wanted: true,
        proven: None,
        anchored: true,
        hiding: None,
    }
}

#[test]
fn asserted_identities_are_removed_from_untrusted_sides() {
    let pai = "P-Asserted-Identity: \"A\" <sip:100@10.0.0.1>\nRemote-Party-ID: \"A\" <sip:100@10.0.0.1;x=10.0.0.2>;party=calling;screen=yes;np=10.0.0.3";
    let pai = &format!("{}\r\n", pai.replace('\n', "\r\n"));
    let rewritten = "P-Asserted-Identity: \"A\" <sip:100@border.example>\nRemote-Party-ID: \"A\" <sip:100@border.example>;party=calling;screen=yes";
    assert_eq!(passed(&between(&POLICY, true, true), pai), rewritten);
    assert_eq!(passed(&between(&POLICY, true, false), pai), rewritten);
    assert_eq!(passed(&between(&POLICY, false, true), pai), "");
    assert_eq!(passed(&between(&POLICY, false, false), pai), "");
    // A preferred identity is for the next trusted proxy.
    let ppi = "P-Preferred-Identity: <sip:101@10.0.0.1>";
    assert_eq!(
        passed(&between(&POLICY, true, true), &format!("{ppi}\r\n")),
        ppi
    );
    assert_eq!(
        passed(&between(&POLICY, true, false), &format!("{ppi}\r\n")),
        ""
    );
    let unwanted = Boundary {
        wanted: false,
        ..between(&POLICY, true, true)
    };
    assert_eq!(passed(&unwanted, pai), "");
    let policy = IdentityPolicy {
        remote_party_id: false,
        ..POLICY
    };
    assert_eq!(
        passed(&between(&policy, true, true), pai),
        "P-Asserted-Identity: \"A\" <sip:100@border.example>"
    );
}

/// Older PBXs withhold a number in Remote-Party-ID alone.
#[test]
fn remote_party_with_privacy_stays_in_the_trust_domain() {
    let remote = |params: &str| {
        format!(
            "Remote-Party-ID: \"A\" <sip:+493012345@pbx>;party=calling{params}, <sip:+49301@pbx>;party=called\r\n"
        )
    };
    let both = |params: &str| {
        let value = remote(params).replace("pbx", "border.example");
        value.trim_end().to_owned()
    };
    let called = "Remote-Party-ID: <sip:+49301@border.example>;party=called";
    for hidden in [";privacy=full", ";privacy=uri;screen=yes", ";Privacy=NAME"] {
        let headers = remote(hidden);
        assert_eq!(passed(&between(&POLICY, true, false), &headers), called);
        assert_eq!(
            passed(&between(&POLICY, true, true), &headers),
            both(hidden)
        );
    }
    let open = ";privacy=off";
    let headers = remote(open);
    assert_eq!(passed(&between(&POLICY, true, false), &headers), both(open));
    let alone = "Remote-Party-ID: <sip:1@pbx>;privacy=full\r\n";
    assert_eq!(passed(&between(&POLICY, true, false), alone), "");
    let policy = IdentityPolicy {
        privacy: false,
        ..POLICY
    };
    assert_eq!(
        passed(&between(&policy, true, false), &remote(";privacy=full")),
        both(";privacy=full")
    );
}

#[test]
fn authenticated_user_is_asserted_towards_trusted_sides() {
    let proven = |to| Boundary {
        proven: Some("al ice"),
        ..between(&POLICY, false, to)
    };
    assert_eq!(
        passed(&proven(true), "P-Asserted-Identity: <sip:boss@x>\r\n"),
        "P-Asserted-Identity: <sip:al%20ice@border.example>"
    );
    assert_eq!(
        passed(
            &proven(true),
            "P-Preferred-Identity: \"Alice\" <sip:al%20ice@phone>\r\n"
        ),
        "P-Asserted-Identity: \"Alice\" <sip:al%20ice@border.example>"
    );
    // A preferred identity of another user is ignored.
    assert_eq!(
        passed(&proven(true), "P-Preferred-Identity: <sip:boss@phone>\r\n"),
        "P-Asserted-Identity: <sip:al%20ice@border.example>"
    );
    assert_eq!(
        passed(&proven(false), "P-Preferred-Identity: <sip:x@phone>\r\n"),
        ""
    );
    let policy = IdentityPolicy {
        assert: false,
        ..POLICY
    };
    let silent = Boundary {
        policy: &policy,
        ..proven(true)
    };
    assert_eq!(passed(&silent, ""), "");
}

#[test]
fn privacy_is_applied_at_the_trust_boundary() {
    let all = "P-Asserted-Identity: <sip:100@x>\r\nSubject: s\r\nUser-Agent: u\r\nOrganization: o\r\nX-Other: y\r\n";
    for (privacy, left) in [
        (
            "id",
            "Subject: s\nUser-Agent: u\nOrganization: o\nX-Other: y",
        ),
        ("user", "X-Other: y"),
        (
            "header",
            "Subject: s\nUser-Agent: u\nOrganization: o\nX-Other: y",
        ),
        ("id;user; header ; critical", "X-Other: y"),
        (
            "session",
            "P-Asserted-Identity: <sip:100@border.example>\nSubject: s\nUser-Agent: u\nOrganization: o\nX-Other: y",
        ),
        (
            "none",
            "P-Asserted-Identity: <sip:100@border.example>\nSubject: s\nUser-Agent: u\nOrganization: o\nX-Other: y\nPrivacy: none",
        ),
        (
            "none;id",
            "P-Asserted-Identity: <sip:100@border.example>\nSubject: s\nUser-Agent: u\nOrganization: o\nX-Other: y\nPrivacy: none;id",
        ),
        (
            "id;token;critical",
            "Subject: s\nUser-Agent: u\nOrganization: o\nX-Other: y\nPrivacy: token;critical",
        ),
    ] {
        let headers = format!("{all}Privacy: {privacy}\r\n");
        assert_eq!(
            passed(&between(&POLICY, true, false), &headers),
            left,
            "{privacy}"
        );
        let inside = passed(&between(&POLICY, true, true), &headers);
        assert!(inside.ends_with(&format!("Privacy: {privacy}")), "{inside}");
        assert!(
            inside.contains("Subject: s") && inside.contains("P-Asserted"),
            "{inside}"
        );
    }
    let bypass = Boundary {
        anchored: false,
        ..between(&POLICY, true, false)
    };
    assert!(passed(&bypass, "Privacy: session\r\n").ends_with("Privacy: session"));
    let requested = |privacy: &str| {
        RequestedPrivacy::of(&Message::parse(&message(&format!("Privacy: {privacy}\r\n"))).unwrap())
    };
    assert!(bypass.must_refuse(requested("session;critical")));
    assert!(!bypass.must_refuse(requested("session")));
    assert!(!between(&POLICY, true, false).must_refuse(requested("session;critical")));
    assert!(!between(&POLICY, true, true).must_refuse(requested("session;critical")));
    assert!(between(&POLICY, true, false).hides_caller(requested("USER")));
    assert!(!between(&POLICY, true, false).hides_caller(requested("id")));
    assert!(!between(&POLICY, true, true).hides_caller(requested("user")));
    let off = IdentityPolicy {
        privacy: false,
        ..POLICY
    };
    assert!(!between(&off, true, false).hides_caller(requested("user")));
}

#[test]
fn diversion_and_history_follow_trust_and_privacy() {
    let headers = "Diversion: \"B\" <sip:b@10.0.0.1>;reason=no-answer;counter=2, <tel:+1>;privacy=full\r\n\
                   History-Info: <sip:b@10.0.0.1>;index=1, <sip:c@10.0.0.1?Privacy=history>;index=1.1;rc=1\r\n";
    let as_it_is = headers.trim_end().replace("\r\n", "\n");
    assert_eq!(passed(&between(&POLICY, true, true), headers), as_it_is);
    assert_eq!(passed(&between(&POLICY, true, false), headers), "");
    assert_eq!(passed(&between(&POLICY, false, true), headers), "");
    let anonymise = IdentityPolicy {
        diversion: History::Anonymise,
        history_info: History::Anonymise,
        ..POLICY
    };
    let nobody = "<sip:anonymous@anonymous.invalid>";
    assert_eq!(
        passed(&between(&anonymise, true, false), headers),
        format!(
            "Diversion: {nobody};reason=no-answer;counter=2, {nobody};privacy=full\n\
             History-Info: {nobody};index=1, {nobody};index=1.1;rc=1"
        )
    );
    assert_eq!(passed(&between(&anonymise, false, true), headers), "");
    let pass = IdentityPolicy {
        diversion: History::Pass,
        history_info: History::Pass,
        ..POLICY
    };
    assert_eq!(passed(&between(&pass, false, true), headers), as_it_is);
    // An entry that requests privacy stays anonymous there too.
    assert_eq!(
        passed(&between(&pass, true, false), headers),
        format!(
            "Diversion: \"B\" <sip:b@10.0.0.1>;reason=no-answer;counter=2, {nobody};privacy=full\n\
             History-Info: <sip:b@10.0.0.1>;index=1, {nobody};index=1.1;rc=1"
        )
    );
    let private = format!("{headers}Privacy: history\r\n");
    let out = passed(&between(&pass, true, false), &private);
    assert!(!out.contains("10.0.0.1"), "{out}");
}
