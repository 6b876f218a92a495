//! Tables of calls and plans; properties of the order by weights.

use super::*;
use config::parse;
use engine::ConnectionId;
use proptest::prelude::*;
use sip::ListenerId;
use std::collections::HashMap;

#[derive(Default)]
struct StaticRoutingState {
    down: Vec<(u16, usize)>,
    calls: HashMap<u16, u32>,
    contacts: HashMap<&'static str, Vec<Contact>>,
    throttled: Vec<TrunkTarget>,
}

impl RoutingState for StaticRoutingState {
    fn target_takes(&self, target: TrunkTarget, _random: u64) -> bool {
        !self.throttled.contains(&target)
    }
    fn trunk_in_service(&self, _trunk: TrunkId) -> bool {
        true
    }
    fn target_up(&self, trunk: TrunkId, target: usize) -> bool {
        !self.down.contains(&(trunk.0, target))
    }
    fn trunk_calls(&self, trunk: TrunkId) -> u32 {
        self.calls.get(&trunk.0).copied().unwrap_or(0)
    }
    fn service_route(&self, _trunk: TrunkId, _target: usize) -> Vec<Box<[u8]>> {
        Vec::new()
    }
    fn contacts(&self, user: &str, token: Option<&[u8]>) -> Vec<Contact> {
        match token {
            Some(token) => self
                .contacts
                .get(std::str::from_utf8(token).unwrap_or_default())
                .cloned()
                .unwrap_or_default(),
            None => self.contacts.get(user).cloned().unwrap_or_default(),
        }
    }
    fn contacts_below(&self, prefix: &str) -> Vec<Contact> {
        let mut users: Vec<_> = self.contacts.iter().collect();
        users.retain(|(user, _)| user.starts_with(prefix));
        users.sort_by_key(|(user, _)| **user);
        let contacts = users.into_iter().map(|(_, contacts)| contacts.clone());
        contacts.flatten().collect()
    }
}

fn contact(uri: &str, q: u16) -> Contact {
    Contact {
        interface: InterfaceId(0),
        uri: uri.as_bytes().into(),
        path: Vec::new(),
        flow: Flow {
            local: ListenerId(0),
            transport: Transport::Tcp,
            remote: "203.0.113.9:5099".parse().unwrap(),
            connection: Some(ConnectionId(7)),
        },
        q,
    }
}

const BASE: &str = "[[interface]]\nname=\"out\"\nlisten=[\"udp:192.0.2.1\",\"tcp:192.0.2.1\"]\n\
    [[interface]]\nname=\"in\"\nkind=\"core\"\nlisten=\"udp:10.0.0.1\"\n\
    [[trunk]]\nname=\"pbx\"\ninterface=\"in\"\ntarget=\"10.0.0.2\"\n\
    [[trunk]]\nname=\"gw\"\ninterface=\"out\"\ntarget=[\"tcp:198.51.100.1:5070\", {address=\"198.51.100.2\", priority=1}]\ndomain=\"gw.example\"\nmax_calls=2\n";

fn facts<'a>(from: &'a str, to: &'a str) -> Facts<'a> {
    Facts {
        interface: InterfaceId(0),
        trunk: None,
        authenticated: false,
        exempt: false,
        from: from.as_bytes(),
        to: to.as_bytes(),
        random: 1,
        calls: 0,
        draining: false,
    }
}

fn plan(config: &str, facts: &Facts<'_>, world: &StaticRoutingState) -> Plan {
    decide(&parse(config, "t").expect("configuration"), facts, world)
}

/// `route group:uri@place ...`, or `status reason`.
fn shown(plan: &Plan) -> String {
    match plan {
        Plan::Refuse(refusal) => format!("{} {}", refusal.status, refusal.why.text()),
        Plan::Call(call) => {
            let steps: Vec<String> = call
                .steps
                .iter()
                .map(|step| {
                    let place = match &step.place {
                        StepTarget::Address(address, transport) => format!("{transport}:{address}"),
                        StepTarget::Flow(flow) => format!("flow:{}", flow.remote),
                        StepTarget::Name(name, _) => format!("name:{name}"),
                    };
                    format!(
                        "{}:{} {place}",
                        step.group,
                        String::from_utf8_lossy(&step.uri)
                    )
                })
                .collect();
            format!("{} [{}]", call.route, steps.join(", "))
        }
    }
}

const CALLER: &str = "sip:alice@192.0.2.9";

/// RFC 5031: a service includes those below it, without regard to case.
#[test]
fn service_urns_are_routed_to_trunks() {
    let world = StaticRoutingState::default();
    let routes = "[[route]]\nname=\"fire\"\nto={urn=\"urn:service:sos.FIRE\"}\nreplace=\"122\"\ntrunk=\"gw\"\n\
        [[route]]\nname=\"sos\"\nto={urn=[\"urn:service:sos\",\"urn:service:counseling\"]}\ntrunk=[\"gw\",\"pbx\"]\n\
        [[route]]\nname=\"numbers\"\nto={regex='.*'}\ntrunk=\"pbx\"\n\
        [[route]]\nname=\"users\"\nregistered=true\n";
    let gw = |uri: &str| format!("0:{uri} TCP:198.51.100.1:5070, 1:{uri} UDP:198.51.100.2:5060");
    let gw = |uri: &str| gw(uri).replace("TCP", "tcp").replace("UDP", "udp");
    let config = format!("{BASE}{routes}");
    let cases = [
        (
            "urn:service:sos",
            format!(
                "sos [{}, 2:urn:service:sos udp:10.0.0.2:5060]",
                gw("urn:service:sos")
            ),
        ),
        (
            "URN:service:SOS.police",
            format!(
                "sos [{}, 2:URN:service:SOS.police udp:10.0.0.2:5060]",
                gw("URN:service:SOS.police")
            ),
        ),
        ("urn:service:sosx", "404 no route".to_owned()),
        ("urn:service:", "416 unsupported URI scheme".to_owned()),
        ("urn:isbn:3", "416 unsupported URI scheme".to_owned()),
    ];
    for (to, wanted) in cases {
        assert_eq!(
            shown(&plan(&config, &facts(CALLER, to), &world)),
            wanted,
            "{to}"
        );
    }
    let fire = shown(&plan(
        &config,
        &facts(CALLER, "urn:service:sos.fire.x"),
        &world,
    ));
    assert!(fire.starts_with("fire [0:sip:122@gw.example"), "{fire}");
    // Conditions on services match nothing else, and conditions on users match no service.
    let number = shown(&plan(&config, &facts(CALLER, "sip:sos@x"), &world));
    assert!(number.starts_with("numbers ["), "{number}");
    // A route without conditions matches services too, as does a file without routes.
    for routes in ["[[route]]\nname=\"default\"\ntrunk=\"pbx\"\n", ""] {
        let config = format!("{BASE}{routes}");
        let all = shown(&plan(&config, &facts(CALLER, "urn:service:sos"), &world));
        assert!(
            all.starts_with("default [0:urn:service:sos udp:10.0.0.2:5060"),
            "{all}"
        );
    }
}

#[test]
fn first_matching_route_is_used() {
    let routes = "[[route]]\nname=\"emergency\"\nto={user=[\"112\",\"911\"]}\ntrunk=\"gw\"\n\
        [[route]]\nname=\"premium\"\nto={prefix=\"0900\"}\nreject={status=603, reason=\"No\"}\n\
        [[route]]\nname=\"abroad\"\nto={regex='00([1-9]\\d+)'}\nreplace='+$1'\ntrunk=\"gw\"\n\
        [[route]]\nname=\"domestic\"\nto={prefix=\"0\"}\nstrip=1\nprefix=\"+43\"\ntrunk=[\"gw\",\"pbx\"]\n\
        [[route]]\nname=\"domain\"\nto={domain=\"PBX.example\"}\ntrunk=\"pbx\"\nmedia=\"bypass\"\n\
        [[route]]\nname=\"boss\"\nfrom={user=\"boss\"}\ntrunk=\"pbx\"\n\
        [[route]]\nname=\"inside\"\ninterface=\"in\"\ntrunk=\"gw\"\n\
        [[route]]\nname=\"back\"\nfrom_trunk=\"gw\"\ntrunk=\"pbx\"\n";
    let config = format!("{BASE}{routes}");
    let world = StaticRoutingState::default();
    let gw = |uri: &str| {
        format!(
            "[0:sip:{uri}@gw.example;transport=tcp tcp:198.51.100.1:5070, 1:sip:{uri}@gw.example udp:198.51.100.2:5060"
        )
    };
    let cases = [
        (CALLER, "sip:112@x", format!("emergency {}]", gw("112"))),
        (CALLER, "sip:0900123@x", "603 refused by a route".to_owned()),
        (CALLER, "sip:0049301@x", format!("abroad {}]", gw("+49301"))),
        (
            CALLER,
            "sip:00@x",
            format!(
                "domestic {}, 2:sip:+430@10.0.0.2 udp:10.0.0.2:5060]",
                gw("+430")
            ),
        ),
        (
            CALLER,
            "tel:01-234.5",
            format!(
                "domestic {}, 2:sip:+4312345@10.0.0.2;user=phone udp:10.0.0.2:5060]",
                gw("+4312345").replace("gw.example", "gw.example;user=phone")
            ),
        ),
        (
            CALLER,
            "sip:bob@pbx.EXAMPLE:5070;x=y",
            "domain [0:sip:bob@10.0.0.2 udp:10.0.0.2:5060]".to_owned(),
        ),
        (
            "sip:boss@x",
            "sip:bob@x",
            "boss [0:sip:bob@10.0.0.2 udp:10.0.0.2:5060]".to_owned(),
        ),
        (CALLER, "sip:bob@x", "404 no route".to_owned()),
        (
            CALLER,
            "mailto:bob@x",
            "416 unsupported URI scheme".to_owned(),
        ),
        (CALLER, "sip:", "400 unreadable Request-URI".to_owned()),
        ("<>", "sip:112@x", format!("emergency {}]", gw("112"))),
        ("<>", "sip:bob@x", "404 no route".to_owned()),
    ];
    for (from, to, wanted) in cases {
        assert_eq!(
            shown(&plan(&config, &facts(from, to), &world)),
            wanted,
            "{from} to {to}"
        );
    }
    let mut inside = facts(CALLER, "sip:bob@x");
    inside.interface = InterfaceId(1);
    assert_eq!(
        shown(&plan(&config, &inside, &world)),
        format!("inside {}]", gw("bob"))
    );
    let mut back = facts(CALLER, "sip:bob@x");
    back.trunk = Some(TrunkId(1));
    assert_eq!(
        shown(&plan(&config, &back, &world)),
        "back [0:sip:bob@10.0.0.2 udp:10.0.0.2:5060]"
    );
    let Plan::Call(bypassed) = plan(&config, &facts(CALLER, "sip:bob@pbx.example"), &world) else {
        panic!("refused");
    };
    assert_eq!(bypassed.media, MediaMode::Bypass);
}

#[test]
fn default_route_is_registered_contacts_then_the_other_side() {
    let mut world = StaticRoutingState::default();
    world
        .contacts
        .insert("1000", vec![contact("sip:1000@192.168.1.7", 1000)]);
    let passing = BASE.replace("name=\"out\"", "name=\"out\"\nregister=\"pass:pbx\"");
    let config = format!("{passing}[[user]]\nname=\"1001\"\npassword=\"x\"\n");
    let mut from_pbx = facts(CALLER, "sip:1000@192.0.2.1");
    from_pbx.trunk = Some(TrunkId(0));
    from_pbx.interface = InterfaceId(1);
    assert_eq!(
        shown(&plan(&config, &from_pbx, &world)),
        "default [0:sip:1000@192.168.1.7 flow:203.0.113.9:5099]"
    );
    from_pbx.to = b"sip:1001@192.0.2.1";
    assert_eq!(
        shown(&plan(&config, &from_pbx, &world)),
        "480 user is not registered"
    );
    from_pbx.to = b"sip:2000@192.0.2.1";
    let out = shown(&plan(&config, &from_pbx, &world));
    assert!(
        out.starts_with("default [0:sip:2000@gw.example") && !out.contains("10.0.0.2"),
        "{out}"
    );
    let phone = facts(CALLER, "sip:2000@192.0.2.1");
    let out = shown(&plan(&config, &phone, &world));
    assert!(out.starts_with("default [0:sip:2000@10.0.0.2"), "{out}");
}

/// Registrations forwarded to a trunk belong to that trunk: calls to their users from elsewhere go to the trunk.
#[test]
fn forwarded_registrations_belong_to_their_trunk() {
    let mut world = StaticRoutingState::default();
    let phone = "sip:1000@192.168.1.7";
    world.contacts.insert("1000", vec![contact(phone, 1000)]);
    world.contacts.insert("00ab", vec![contact(phone, 1000)]);
    let passing = BASE.replace("name=\"out\"", "name=\"out\"\nregister=\"pass:pbx\"");
    let [to_pbx, to_phone] = [
        "default [0:sip:1000@10.0.0.2 udp:10.0.0.2:5060]",
        "default [0:sip:1000@192.168.1.7 flow:203.0.113.9:5099]",
    ];
    let called = "sip:1000@192.0.2.1";
    let stranger = facts(CALLER, called);
    let known = Facts {
        authenticated: true,
        ..stranger
    };
    let from_pbx = Facts {
        interface: InterfaceId(1),
        trunk: Some(TrunkId(0)),
        ..known
    };
    let from_carrier = Facts {
        trunk: Some(TrunkId(1)),
        ..known
    };
    for (facts, wanted) in [(stranger, to_pbx), (known, to_pbx), (from_pbx, to_phone)] {
        assert_eq!(shown(&plan(&passing, &facts, &world)), wanted, "{facts:?}");
    }
    assert_eq!(shown(&plan(&passing, &from_carrier, &world)), to_pbx);
    // The Contact that was sent to the PBX is valid for the PBX alone.
    let token = "sip:1000@192.0.2.1;hw=00ab";
    let with = |facts: Facts<'_>| {
        let facts = Facts {
            to: token.as_bytes(),
            ..facts
        };
        shown(&plan(&passing, &facts, &world))
    };
    assert_eq!(with(stranger), to_pbx);
    assert!(with(from_pbx).starts_with("registration [0:sip:1000@192.168.1.7"));
    // Routes apply first, for any source.
    let routed = format!("{passing}[[route]]\nregistered=true\n");
    assert!(shown(&plan(&routed, &stranger, &world)).contains("flow:203.0.113.9"));
    // The interface of the trunk is not enough.
    let elsewhere = Facts {
        trunk: None,
        ..from_pbx
    };
    assert_ne!(shown(&plan(&passing, &elsewhere, &world)), to_phone);
    // Registrations kept here are reachable from authenticated sources.
    let local = BASE.replace(
        "name=\"out\"",
        "name=\"out\"\nregister=\"local\"\nauthenticate=\"digest\"",
    );
    let local = format!("{local}[[user]]\nname=\"1000\"\npassword=\"x\"\n");
    assert_eq!(shown(&plan(&local, &known, &world)), to_phone);
    assert_eq!(
        shown(&plan(&local, &stranger, &world)),
        "480 user is not registered"
    );
}

/// If the trunk of registrations authenticates, an unregistered source reaches that trunk alone, except by routes that
/// permit more.
#[test]
fn unauthenticated_sources_reach_only_the_authenticating_trunk() {
    let mut world = StaticRoutingState::default();
    let phone = "sip:1000@192.168.1.7";
    world.contacts.insert("1000", vec![contact(phone, 1000)]);
    let base = BASE.replace(
        "name=\"out\"",
        "name=\"out\"\nregister=\"pass:pbx\"\nauthenticate=\"trunk\"",
    );
    let routes = "[[route]]\nto={user=\"66\"}\nreject=603\n\
        [[route]]\nto={user=\"112\"}\ntrunk=\"gw\"\nunauthenticated=true\n\
        [[route]]\nto={prefix=\"0\"}\ntrunk=[\"pbx\",\"gw\"]\n\
        [[route]]\nto={prefix=\"9\"}\nstrip=1\ntrunk=\"pbx\"\n\
        [[route]]\nregistered=true\n";
    let config = format!("{base}{routes}");
    let shown = |to: &str, authenticated: bool| {
        let facts = Facts {
            authenticated,
            ..facts(CALLER, to)
        };
        shown(&plan(&config, &facts, &world))
    };
    for (to, stranger, known) in [
        ("sip:66@x", "603", "603"),
        (
            "sip:112@x",
            "route 2 [0:sip:112@gw",
            "route 2 [0:sip:112@gw",
        ),
        (
            "sip:01@x",
            "default [0:sip:01@10.0.0.2 udp:10.0.0.2:5060]",
            "route 3 [0:sip:01@10.0.0.2 udp:10.0.0.2:5060, 1:",
        ),
        (
            "sip:91@x",
            "route 4 [0:sip:1@10.0.0.2",
            "route 4 [0:sip:1@10.0.0.2",
        ),
        (
            "sip:1000@x",
            "default [0:sip:1000@10.0.0.2 udp",
            "route 5 [0:sip:1000@192.168.1.7 flow",
        ),
    ] {
        for (authenticated, wanted) in [(false, stranger), (true, known)] {
            let found = shown(to, authenticated);
            assert!(found.starts_with(wanted), "{to} {authenticated}: {found}");
        }
    }
}

/// A call that needs no digest takes the routes that permit it, and nothing else.
#[test]
fn exempt_call_takes_routes_for_unauthenticated_sources_alone() {
    let mut world = StaticRoutingState::default();
    let phone = "sip:1000@192.168.1.7";
    world.contacts.insert("1000", vec![contact(phone, 1000)]);
    let base = BASE.replace(
        "name=\"out\"",
        "name=\"out\"\nregister=\"pass:pbx\"\nauthenticate=\"digest\"",
    );
    let routes = "[[route]]\nto={user=\"66\"}\nreject=603\n\
        [[route]]\nto={prefix=\"0\"}\ntrunk=\"pbx\"\n\
        [[route]]\nto={user=\"113\"}\nreject=404\ninterface=\"out\"\nunauthenticated=true\n\
        [[route]]\nregistered=true\ninterface=\"out\"\nunauthenticated=true\n\
        [[route]]\nto={user=\"12\"}\ntrunk=\"pbx\"\n\
        [[route]]\nto={prefix=\"1\"}\ntrunk=\"gw\"\ninterface=\"out\"\nunauthenticated=true\n\
        [[route]]\nto={user=\"88\"}\ntrunk=\"gw\"\nunauthenticated=true\n\
        [[route]]\ntrunk=\"pbx\"\n";
    let config = format!("{base}{routes}[[user]]\nname=\"1000\"\npassword=\"x\"\n");
    let parsed = parse(&config, "f").unwrap();
    for (to, wanted) in [
        ("sip:112@x", "route 6 [0:sip:112@gw"),
        // A user would take a closed route that stands before it, with credentials.
        ("sip:12@x", ""),
        // An open route that names no interface was opened for those without digest.
        ("sip:88@x", ""),
        ("sip:1000@x", "route 4 [0:sip:1000@192.168.1.7 flow"),
        ("sip:113@x", "404"),
        ("sip:66@x", ""),
        ("sip:01@x", ""),
        ("sip:200@x", ""),
    ] {
        let facts = Facts {
            exempt: true,
            ..facts(CALLER, to)
        };
        assert_eq!(
            permits_unauthenticated(&parsed, &facts, &world),
            !wanted.is_empty(),
            "{to}"
        );
        let found = shown(&plan(&config, &facts, &world));
        match wanted {
            "" => assert_eq!(found, "404 no route", "{to}"),
            wanted => assert!(found.starts_with(wanted), "{to}: {found}"),
        }
    }
}

#[test]
fn own_contact_uri_overrides_routes() {
    let mut world = StaticRoutingState::default();
    world
        .contacts
        .insert("00ab", vec![contact("sip:1000@192.168.1.7;x=y", 1000)]);
    let passing = BASE.replace("name=\"out\"", "name=\"out\"\nregister=\"pass:pbx\"");
    let config = format!("{passing}[[route]]\ntrunk=\"pbx\"\n");
    let call = |to| {
        let from_pbx = Facts {
            interface: InterfaceId(1),
            trunk: Some(TrunkId(0)),
            ..facts(CALLER, to)
        };
        shown(&plan(&config, &from_pbx, &world))
    };
    assert_eq!(
        call("sip:1000@192.0.2.1;hw=00ab"),
        "registration [0:sip:1000@192.168.1.7;x=y flow:203.0.113.9:5099]"
    );
    assert_eq!(
        call("sip:1000@192.0.2.1;hw=00ac"),
        "480 registration has ended"
    );
    assert_eq!(
        call("sip:1000@192.0.2.1"),
        "route 1 [0:sip:1000@10.0.0.2 udp:10.0.0.2:5060]"
    );
}

#[test]
fn contacts_of_equal_q_are_forked() {
    let mut world = StaticRoutingState::default();
    let contacts = [("sip:a@h", 1000), ("sip:b@h", 1000), ("sip:c@h", 300)];
    let contacts = contacts.map(|(uri, q)| contact(uri, q)).to_vec();
    world.contacts.insert("1000", contacts);
    let config = format!("{BASE}[[route]]\nregistered=true\n[[route]]\ntrunk=\"pbx\"\n");
    let place = "flow:203.0.113.9:5099";
    assert_eq!(
        shown(&plan(&config, &facts(CALLER, "sip:1000@x"), &world)),
        format!("route 1 [0:sip:a@h {place}, 0:sip:b@h {place}, 1:sip:c@h {place}]")
    );
    assert_eq!(
        shown(&plan(&config, &facts(CALLER, "sip:7@x"), &world)),
        "route 2 [0:sip:7@10.0.0.2 udp:10.0.0.2:5060]"
    );
}

#[test]
fn unavailable_trunks_are_skipped_or_answered_503() {
    let config = format!("{BASE}[[route]]\ntrunk=[\"gw\",\"pbx\"]\n");
    let call = facts(CALLER, "sip:1@x");
    let mut world = StaticRoutingState::default();
    world.down.push((1, 0));
    assert_eq!(
        shown(&plan(&config, &call, &world)),
        "route 1 [0:sip:1@gw.example udp:198.51.100.2:5060, 1:sip:1@10.0.0.2 udp:10.0.0.2:5060]"
    );
    world.down.push((0, 0));
    world.calls.insert(1, 2);
    let Plan::Refuse(refusal) = plan(&config, &call, &world) else {
        panic!("not refused");
    };
    assert_eq!(
        (refusal.status, refusal.why.text()),
        (503, "all trunks are at their call limit")
    );
    assert!(refusal.retry_after.is_some());
    world.calls.insert(1, 1);
    world.down.push((1, 1));
    assert_eq!(
        shown(&plan(&config, &call, &world)),
        "503 all trunks are down"
    );
}

#[test]
fn throttled_trunk_is_skipped() {
    let asks = BASE
        .replace("max_calls=2", "overload_control=true")
        .replace(
            "target=\"10.0.0.2\"",
            "target=\"10.0.0.2\"\noverload_control=true",
        );
    let config = format!("{asks}[[route]]\ntrunk=[\"gw\",\"pbx\"]\n");
    let call = facts(CALLER, "sip:1@x");
    let mut world = StaticRoutingState::default();
    // The first target of a trunk asks for less: the second one gets the call.
    world.throttled.push((TrunkId(1), 0));
    let shown_plan = shown(&plan(&config, &call, &world));
    assert!(
        shown_plan.contains("sip:1@gw.example udp:198.51.100.2:5060")
            && !shown_plan.contains("tcp:198.51.100.1"),
        "{shown_plan}"
    );
    world.throttled.push((TrunkId(1), 1));
    assert_eq!(
        shown(&plan(&config, &call, &world)),
        "route 1 [0:sip:1@10.0.0.2 udp:10.0.0.2:5060]"
    );
    world.throttled.push((TrunkId(0), 0));
    let Plan::Refuse(refusal) = plan(&config, &call, &world) else {
        panic!("not refused");
    };
    assert_eq!(
        (refusal.status, refusal.why.text()),
        (503, "overload control of all trunks rejects the call")
    );
    assert_eq!(refusal.retry_after, None, "others may have room at once");
    // Trunks without overload control are not throttled.
    let config = format!("{BASE}[[route]]\ntrunk=[\"pbx\"]\n");
    assert!(matches!(plan(&config, &call, &world), Plan::Call(_)));
}

#[test]
fn draining_and_call_limit_precede_routing() {
    let world = StaticRoutingState::default();
    let mut call = facts(CALLER, "nonsense");
    call.draining = true;
    assert_eq!(shown(&plan(BASE, &call, &world)), "503 draining");
    call.draining = false;
    call.calls = 200_000;
    assert_eq!(shown(&plan(BASE, &call, &world)), "503 call limit reached");
}

#[test]
fn user_parts_are_escaped() {
    let config = format!("{BASE}[[route]]\ntrunk=\"pbx\"\n");
    let out = shown(&plan(
        &config,
        &facts(CALLER, "sip:a%40b%20c;x=1@h"),
        &StaticRoutingState::default(),
    ));
    assert_eq!(out, "route 1 [0:sip:a%40b%20c@10.0.0.2 udp:10.0.0.2:5060]");
}

/// Neither a full trunk, the limit of calls nor a drain refuses an emergency call.
#[test]
fn emergency_calls_pass_all_limits() {
    let numbers = "[limits]\ncalls=100\n[sip]\nemergency_numbers=[\"112\"]\n";
    let config = BASE.replace(
        "domain=\"gw.example\"",
        "domain=\"gw.example\"\noverload_control=true",
    ) + "[[route]]\nname=\"all\"\ntrunk=\"gw\"\n"
        + numbers;
    let mut world = StaticRoutingState::default();
    for (to, emergency) in [
        ("urn:service:sos", true),
        ("sip:112@x", true),
        ("tel:1-1-2", true),
        ("sip:1120@x", false),
    ] {
        world.calls.clear();
        world.throttled.clear();
        let usual = facts(CALLER, to);
        assert!(
            matches!(plan(&config, &usual, &world), Plan::Call(_)),
            "{to}"
        );
        for (calls, draining) in [(100, false), (0, true)] {
            let limited = Facts {
                calls,
                draining,
                ..usual
            };
            let planned = plan(&config, &limited, &world);
            assert_eq!(
                matches!(planned, Plan::Call(_)),
                emergency,
                "{to} {planned:?}"
            );
        }
        world.calls.insert(1, 2);
        let planned = plan(&config, &usual, &world);
        assert_eq!(
            matches!(planned, Plan::Call(_)),
            emergency,
            "{to} {planned:?}"
        );
        world.calls.clear();
        world.throttled = vec![(TrunkId(1), 0), (TrunkId(1), 1)];
        let planned = plan(&config, &usual, &world);
        assert_eq!(
            matches!(planned, Plan::Call(_)),
            emergency,
            "{to} {planned:?}"
        );
        world.throttled.clear();
        world.down = vec![(1, 0), (1, 1)];
        let planned = plan(&config, &usual, &world);
        assert_eq!(
            matches!(planned, Plan::Call(_)),
            emergency,
            "{to} {planned:?}"
        );
        world.down.clear();
    }
}

/// Pings are no proof: a target may answer calls only.
#[test]
fn emergency_calls_try_targets_that_are_down_after_all_others() {
    let config = format!("{BASE}[[route]]\nname=\"all\"\ntrunk=[\"gw\",\"pbx\"]\n");
    let world = StaticRoutingState {
        down: vec![(1, 0)],
        ..StaticRoutingState::default()
    };
    let planned = plan(&config, &facts(CALLER, "urn:service:sos"), &world);
    assert_eq!(
        shown(&planned),
        "all [0:urn:service:sos udp:198.51.100.2:5060, 1:urn:service:sos udp:10.0.0.2:5060, \
         2:urn:service:sos tcp:198.51.100.1:5070]"
    );
    let planned = plan(&config, &facts(CALLER, "sip:1@x"), &world);
    assert_eq!(
        shown(&planned),
        "all [0:sip:1@gw.example udp:198.51.100.2:5060, 1:sip:1@10.0.0.2 udp:10.0.0.2:5060]"
    );
}

/// RFC 4694: another network needs them to reach the number, and RFC 3261 section 19.1.6 converts tel URIs.
#[test]
fn parameters_of_numbers_pass_between_trunks() {
    let config = format!(
        "{BASE}[[route]]\nto={{prefix=\"0\"}}\nstrip=1\ntrunk=\"gw\"\n[[route]]\ntrunk=\"gw\"\n"
    );
    let world = StaticRoutingState::default();
    let uri_of = |to: &str, trunk: Option<u16>| {
        let facts = Facts {
            trunk: trunk.map(TrunkId),
            ..facts(CALLER, to)
        };
        match plan(&config, &facts, &world) {
            Plan::Call(call) => String::from_utf8(call.steps[1].uri.clone()).unwrap(),
            refused @ Plan::Refuse(_) => panic!("{to}: {refused:?}"),
        }
    };
    for (to, from_trunk, from_phone) in [
        (
            "sip:+1404;npdi;rn=+1405@x;user=phone",
            "sip:+1404;npdi;rn=+1405@gw.example;user=phone",
            "sip:+1404@gw.example;user=phone",
        ),
        (
            "tel:+1-404;phone-context=[x];npdi",
            "sip:+1404;phone-context=%5Bx%5D;npdi@gw.example;user=phone",
            "sip:+1404@gw.example;user=phone",
        ),
        (
            "sip:+1404;tgrp=a;trunk-context=b.example;cic=%2b1@x",
            "sip:+1404;cic=%2b1@gw.example",
            "sip:+1404@gw.example",
        ),
        // The parameters belong to the number before its change.
        (
            "sip:01404;npdi@x;user=phone",
            "sip:1404@gw.example;user=phone",
            "sip:1404@gw.example;user=phone",
        ),
        (
            "sip:alice@x",
            "sip:alice@gw.example",
            "sip:alice@gw.example",
        ),
    ] {
        assert_eq!(uri_of(to, Some(0)), from_trunk, "{to}");
        assert_eq!(uri_of(to, None), from_phone, "{to}");
    }
}

#[test]
fn plan_is_deterministic() {
    let config = format!("{BASE}[[route]]\ntrunk=[{{name=\"gw\",weight=3}},{{name=\"pbx\"}}]\n");
    let world = StaticRoutingState::default();
    let mut call = facts(CALLER, "sip:1@x");
    let mut seen = Vec::new();
    for random in 0..64 {
        call.random = random;
        let first = plan(&config, &call, &world);
        assert_eq!(first, plan(&config, &call, &world));
        seen.push(shown(&first));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2, "{seen:?}");
}

proptest! {
    #[test]
    fn order_is_a_permutation_by_priority(
        entries in proptest::collection::vec((0u16..4, 0u16..6), 0..12), seed: u64,
    ) {
        let mut random = seed;
        let order = in_order(entries.iter().copied(), &mut random);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..entries.len()).collect::<Vec<_>>());
        for pair in order.windows(2) {
            let (a, b) = (entries[pair[0]], entries[pair[1]]);
            prop_assert!(a.0 <= b.0);
            // Weight 0 never comes before a weight above it in the same priority.
            prop_assert!(a.0 != b.0 || a.1 > 0 || b.1 == 0);
        }
    }

    #[test]
    fn selection_follows_weights(a in 1u16..50, b in 1u16..50, seed: u64) {
        const DRAWS: u64 = 4_000;
        let firsts = (0..DRAWS)
            .filter(|draw| {
                let mut random = seed.wrapping_add(*draw).wrapping_mul(0xd129_0d3b_3a1f_7e95);
                in_order([(0, a), (0, b)].into_iter(), &mut random).first() == Some(&0)
            })
            .count();
        let wanted = f64::from(a) / f64::from(a + b);
        let seen = firsts as f64 / DRAWS as f64;
        // Six standard deviations: never by chance.
        let bound = 6.0 * (wanted * (1.0 - wanted) / DRAWS as f64).sqrt() + 0.002;
        prop_assert!((seen - wanted).abs() < bound, "{} instead of {}", seen, wanted);
    }

    #[test]
    fn arbitrary_request_uris_get_valid_plans(to in proptest::collection::vec(any::<u8>(), 0..60), from in "\\PC{0,40}") {
        let config = parse(&format!("{BASE}[[route]]\nto={{regex='0(\\d+)'}}\nreplace='$1'\ntrunk=\"gw\"\n"), "t").unwrap();
        let call = Facts { to: &to, ..facts(&from, "") };
        if let Plan::Call(call) = decide(&config, &call, &StaticRoutingState::default()) {
            for step in call.steps {
                prop_assert!(Uri::parse(&step.uri).is_some(), "{}", step.uri.escape_ascii());
            }
        }
    }
}

#[test]
fn sips_calls_use_only_tls_hops() {
    let secure = "tls={ca=\"ca.pem\"}";
    let config = format!(
        "[[interface]]\nname=\"out\"\nlisten=[\"udp:192.0.2.1\",\"tls:192.0.2.1\"]\ntls={{certificate={{chain=\"c\",key=\"k\"}}}}\n\
        [[trunk]]\nname=\"plain\"\ntarget=\"udp:10.0.0.2\"\n\
        [[trunk]]\nname=\"both\"\ntarget=[\"udp:10.0.0.3\",{{address=\"tls:10.0.0.4\",priority=1}},{{address=\"tls:sip.example.com:5071\",priority=2}}]\n{secure}\n\
        [[trunk]]\nname=\"named\"\ntarget=\"sip.example.net\"\n{secure}\n\
        [[route]]\nto={{user=\"1\"}}\ntrunk=\"plain\"\n\
        [[route]]\nto={{user=\"2\"}}\ntrunk=\"both\"\n\
        [[route]]\nto={{user=\"3\"}}\ntrunk=\"named\"\n\
        [[route]]\nregistered=true\n"
    );
    let mut world = StaticRoutingState::default();
    let at = |uri: &str, transport| {
        let mut contact = contact(uri, 1000);
        contact.flow.transport = transport;
        contact
    };
    world.contacts.insert(
        "4",
        vec![
            at("sips:a@h", Transport::Tls),
            at("sip:b@h;transport=tls", Transport::Tls),
            at("sips:c@h", Transport::Tcp),
            at("sips:d@h.invalid;transport=ws", Transport::Wss),
        ],
    );
    let asked = |to: &str| shown(&plan(&config, &facts(CALLER, to), &world));
    let refused = "480 sips requires TLS, which no destination has";
    assert_eq!(asked("sips:1@x"), refused);
    assert_eq!(
        asked("sips:2@x"),
        "route 2 [1:sips:2@10.0.0.4 tls:10.0.0.4:5061, 2:sips:2@sip.example.com:5071 name:sip.example.com:5071]"
    );
    assert_eq!(
        asked("sip:2@x"),
        "route 2 [0:sip:2@10.0.0.3 udp:10.0.0.3:5060, 1:sip:2@10.0.0.4;transport=tls tls:10.0.0.4:5061, 2:sip:2@sip.example.com:5071;transport=tls name:sip.example.com:5071]"
    );
    // A name is resolved for TLS alone.
    let Plan::Call(call) = plan(&config, &facts(CALLER, "SIPS:3@x"), &world) else {
        panic!("refused");
    };
    assert!(matches!(
        &call.steps[0].place,
        StepTarget::Name(_, Some(Transport::Tls))
    ));
    let flow = "flow:203.0.113.9:5099";
    assert_eq!(
        asked("sips:4@x"),
        format!("route 4 [0:sips:a@h {flow}, 0:sips:d@h.invalid;transport=ws {flow}]")
    );
}

/// A system that registers several of its numbers on one flow gets one INVITE at a number that it did not register.
#[test]
fn contacts_of_other_numbers_are_called_once_for_each_flow() {
    let config = format!(
        "{BASE}[[user]]\nname='u'\npassword='x'\nnumbers=['77','431*']\n[[route]]\nregistered=true\n"
    );
    let config = parse(&config, "f").expect("configuration");
    let mut state = StaticRoutingState::default();
    let mut other = contact("sip:c@203.0.113.8", 900);
    other.flow.connection = Some(ConnectionId(8));
    let contacts = [
        ("4310", vec![contact("sip:a@203.0.113.9", 500)]),
        ("4311", vec![contact("sip:b@203.0.113.9", 1_000)]),
        ("77", vec![other]),
    ];
    state.contacts.extend(contacts);
    let called = |number: &str| {
        let to = format!("sip:{number}@192.0.2.1");
        match decide(&config, &facts("sip:x@y", &to), &state) {
            Plan::Call(plan) => {
                let uris = plan.steps.iter().map(|step| text_of(&step.uri));
                uris.collect::<Vec<String>>()
            }
            Plan::Refuse(_) => Vec::new(),
        }
    };
    assert_eq!(called("4319"), ["sip:c@203.0.113.8", "sip:a@203.0.113.9"]);
    assert_eq!(called("4311"), ["sip:b@203.0.113.9"]);
    assert_eq!(called("u"), ["sip:c@203.0.113.8", "sip:a@203.0.113.9"]);
    assert!(called("432").is_empty());
}

fn text_of(uri: &[u8]) -> String {
    String::from_utf8_lossy(uri).into_owned()
}

#[test]
fn user_part_of_a_contact_is_replaced() {
    for (uri, wanted) in [
        ("sip:a@192.0.2.1:5062;x=y", "sip:%2B43@192.0.2.1:5062;x=y"),
        ("sips:a:pw@h", "sips:%2B43@h"),
        ("sip:192.0.2.1", "sip:%2B43@192.0.2.1"),
        ("sip:h;x=a%40b", "sip:%2B43@h;x=a%40b"),
        ("tel:+1", "tel:+1"),
    ] {
        let wanted = wanted.replace("%2B", "+");
        assert_eq!(text_of(&uri_of_user(uri.as_bytes(), "+43")), wanted);
    }
}
