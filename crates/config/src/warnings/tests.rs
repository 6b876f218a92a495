use crate::{Register, parse};

const INTERFACE: &str = "[[interface]]\nname = \"a\"\nlisten = \"udp:192.0.2.1:5060\"\n";

/// Trunks and phones reachable by unauthenticated sources, unless the file permits it explicitly.
#[test]
fn ways_without_authentication_are_warned_of() {
    let warnings = |interface: &str, more: &str| {
        let trunks = "[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\n[[trunk]]\nname=\"u\"\ntarget=\"192.0.2.3\"\n";
        let text = format!("{INTERFACE}{interface}{trunks}{more}");
        parse(&text, "f").expect("configuration").warnings()
    };
    let rule = |keys: &str| {
        format!("[[route]]\nreject=403\n[[rules]]\ndirection=\"in\"\n{keys}do=[{{route=\"u\"}}]\n")
    };
    let conference = |keys: &str| {
        format!("[[route]]\nreject=403\n[[conference]]\nname=\"c\"\nnumber=\"800\"\n{keys}")
    };
    let cases: [(&str, &str, &[&str]); 39] = [
        ("", "", &["trunk t, u"]),
        ("allow=\"0.0.0.0/0\"\n", "", &["trunk t, u"]),
        ("allow=[\"10.0.0.0/8\",\"::/0\"]\n", "", &["trunk t, u"]),
        ("allow=\"10.0.0.0/8\"\n", "", &[]),
        (
            "allow=\"0.0.0.0/0\"\nregister=\"pass:t\"\n",
            "",
            &["trunk t without"],
        ),
        (
            "kind=\"core\"\nallow=\"128.0.0.0/1\"\n",
            "",
            &["trunk t, u"],
        ),
        ("", &rule(""), &["trunk u by rule 1"]),
        (
            "",
            &rule("name=\"r\"\nmethod=\"INVITE\"\n"),
            &["trunk u by rule \"r\""],
        ),
        ("", &rule("kind=\"trunk\"\n"), &[]),
        ("", &rule("trunk=\"t\"\n"), &[]),
        ("allow=\"10.0.0.0/8\"\n", &rule(""), &[]),
        (
            "register=\"pass:t\"\nauthenticate=\"trunk\"\n",
            &rule(""),
            &["trunk u by rule 1"],
        ),
        (
            "register=\"pass:u\"\nauthenticate=\"trunk\"\n",
            &rule(""),
            &[],
        ),
        ("", &conference(""), &["reaches conference c"]),
        ("", &conference("pin=\"2468\"\n"), &[]),
        ("", &conference("from_trunk=\"t\"\n"), &[]),
        (
            "register=\"pass:t\"\nauthenticate=\"trunk\"\n",
            &conference(""),
            &[],
        ),
        ("allow=\"198.51.100.0/24\"\n", "", &[]),
        ("kind=\"core\"\n", "", &[]),
        ("register=\"pass:t\"\n", "", &["trunk t without"]),
        ("register=\"pass:t\"\nauthenticate=\"trunk\"\n", "", &[]),
        (
            "register=\"pass:t\"\nauthenticate=\"trunk\"\n",
            "[[route]]\ntrunk=\"u\"\n",
            &[],
        ),
        (
            "register=\"local\"\n",
            "",
            &["as any user", "phones that are registered", "trunk t, u"],
        ),
        (
            "register=\"local\"\n",
            "[[route]]\nto={prefix=\"0\"}\nreject=403\n",
            &["as any user", "phones that are registered"],
        ),
        (
            "register=\"local\"\n",
            "[[route]]\nreject=403\n",
            &["as any user"],
        ),
        // Routes are for calls and messages: registrations take their own way.
        (
            "register=\"pass:t\"\n",
            "[[route]]\nreject=403\n",
            &["REGISTER of any source reaches trunk t"],
        ),
        (
            "register=\"pass:t\"\n",
            "[[route]]\ntrunk=\"t\"\nunauthenticated=true\n",
            &["REGISTER of any source reaches trunk t"],
        ),
        (
            "register=\"pass:t\"\nauthenticate=\"trunk\"\n",
            "[[route]]\nreject=403\n",
            &[],
        ),
        ("", "[[route]]\ntrunk=\"u\"\n", &["trunk u by route 1"]),
        ("", "[[route]]\ntrunk=\"u\"\nunauthenticated=true\n", &[]),
        (
            "",
            "[[route]]\nregistered=true\n",
            &["registered phones by route 1"],
        ),
        (
            "register=\"pass:t\"\n",
            "[[route]]\nname=\"x\"\nto={prefix=\"0\"}\ntrunk=\"u\"\n",
            &["trunk u by route \"x\"", "trunk t without"],
        ),
        (
            "register=\"pass:t\"\n",
            "[[route]]\nregistered=true\n[[route]]\ntrunk=\"t\"\n",
            &["registered phones by route 1", "trunk t by route 2"],
        ),
        ("", "[[route]]\nfrom_trunk=\"t\"\ntrunk=\"u\"\n", &[]),
        (
            "",
            "[[route]]\ninterface=\"a\"\nreject=403\n[[route]]\ntrunk=\"t\"\n",
            &[],
        ),
        ("", "[[route]]\nreject=403\n", &[]),
        (
            "kind=\"core\"\nregister=\"pass:t\"\n",
            "",
            &["trunk t without"],
        ),
        (
            "kind=\"core\"\nregister=\"pass:t\"\nauthenticate=\"trunk\"\n",
            "[[route]]\ntrunk=\"u\"\n",
            &[],
        ),
        (
            "kind=\"core\"\nregister=\"pass:t\"\nauthenticate=\"trunk\"\n",
            &rule(""),
            &["trunk u by rule 1"],
        ),
    ];
    for (interface, more, wanted) in cases {
        let found = warnings(interface, more);
        let met = found.len() == wanted.len()
            && found
                .iter()
                .zip(wanted)
                .all(|(text, want)| text.contains(want));
        assert!(met, "{interface}{more}: {found:?}");
    }
    let digest = "authenticate=\"digest\"\n";
    let user = "[[user]]\nname=\"1\"\npassword=\"x\"\n";
    assert!(warnings(digest, user).is_empty());
    // A trunk that every source counts as.
    let wide = |network: &str| {
        format!(
            "{user}[[trunk]]\nname=\"w\"\ntarget=\"192.0.2.9\"\nsources=[\"198.51.100.0/24\",\"{network}\"]\n"
        )
    };
    for network in ["0.0.0.0/0", "64.0.0.0/2", "::/0", "2000::/3"] {
        let found = warnings(digest, &wide(network));
        assert!(
            found.len() == 1 && found[0].contains(&format!("any source of {network} counts as")),
            "{found:?}"
        );
    }
    for network in ["10.0.0.0/8", "2001::/16", "fc00::/7"] {
        assert!(warnings(digest, &wide(network)).is_empty(), "{network}");
    }
    let allowed = format!("{digest}allow=\"10.0.0.0/8\"\n");
    assert!(warnings(&allowed, &wide("0.0.0.0/0")).is_empty());
}

/// Users make a registrar of interfaces with digest authentication only: another one would be open.
#[test]
fn registrar_without_authentication_is_configured_explicitly() {
    let user = "[[user]]\nname=\"1\"\npassword=\"x\"\n";
    for (keys, register, warned) in [
        ("authenticate=\"digest\"\n", Register::Local, false),
        ("", Register::Refuse, false),
        ("kind=\"core\"\n", Register::Refuse, false),
        ("kind=\"core\"\nregister=\"local\"\n", Register::Local, true),
    ] {
        let config = parse(&format!("{INTERFACE}{keys}{user}"), "f").expect("configuration");
        assert_eq!(config.interfaces[0].register, register, "{keys}");
        let found = config.warnings();
        let open = found.iter().any(|text| text.contains("as any user"));
        assert_eq!(open, warned, "{keys}: {found:?}");
    }
}

/// With credentials of its own at the trunk the border authenticates calls of any source there.
#[test]
fn answered_challenges_of_the_authenticating_trunk_are_warned_of() {
    for (interface, credentials, warned) in [
        ("authenticate=\"trunk\"\n", true, true),
        ("authenticate=\"trunk\"\n", false, false),
        (
            "authenticate=\"trunk\"\nallow=\"10.0.0.0/8\"\n",
            true,
            false,
        ),
    ] {
        let credentials = match credentials {
            true => "username=\"border\"\npassword=\"p\"\n",
            false => "",
        };
        let text = format!(
            "{INTERFACE}register=\"pass:t\"\n{interface}[[trunk]]\nname=\"t\"\ntarget=\"192.0.2.2\"\n{credentials}"
        );
        let found = parse(&text, "f").expect("configuration").warnings();
        let answers = "without authentication, because the border answers its challenges";
        let is_warned = found.iter().any(|text| text.contains(answers));
        assert_eq!(is_warned, warned, "{interface}{credentials}: {found:?}");
    }
}
