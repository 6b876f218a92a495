use super::*;

fn request(subscribers: u64, protection: Protection) -> PlanRequest {
    PlanRequest {
        subscribers,
        busy_hour_calls: 2.0,
        hold_s: 120.0,
        protection,
        ..PlanRequest::default()
    }
}

fn planned(request: &PlanRequest) -> Plan {
    plan(request, &Costs::built_in().unwrap()).unwrap()
}

/// Costs whose CPU times have two points each: a wide interval at the low load, a narrow one at the high one.
fn with_points() -> Costs {
    let mut costs = Costs::built_in().unwrap();
    costs.cost.retain(|cost| cost.unit == "bytes");
    for (id, _) in KNOWN.iter().filter(|(_, unit)| *unit == "us") {
        let points = match id.starts_with("packet") {
            true => [(5_000.0, 16.0, 8.0), (80_000.0, 6.5, 0.5)],
            false => [(500.0, 148.0, 56.0), (11_700.0, 42.9, 2.0)],
        };
        for (load, value, half) in points {
            costs.cost.push(Cost {
                id: (*id).to_owned(),
                value,
                low: value - half,
                high: value + half,
                unit: "us".to_owned(),
                load: Some(load),
                samples: 5,
                origin: "a test".to_owned(),
            });
        }
    }
    costs
}

fn results(plan: &Plan) -> [Estimate; 4] {
    [plan.nodes, plan.cores, plan.memory_gib, plan.bandwidth_mbit]
}

#[test]
fn plan_has_the_figures_computed_by_hand() {
    // 36,000 subscribers, 2 calls of 120 s: 20 calls/s, 2,400 erlangs.
    let plan = planned(&request(36_000, Protection::None));
    let value = |symbol: &str| plan.step(symbol).unwrap().estimate.value;
    assert_eq!(
        (value("rate"), value("A"), value("R")),
        (20.0, 2_400.0, 20.0)
    );
    let lines = lines_for(2_400.0, 0.001) as f64;
    assert_eq!((value("N"), value("P")), (lines, lines * 100.0));
    let near = |found: f64, wanted: f64| {
        assert!((found - wanted).abs() < 1e-9 * wanted, "{found} {wanted}")
    };
    // The costs change with each data sheet.
    let costs = Costs::built_in().unwrap();
    let cost = |id: &str| costs.get(id).unwrap().value;
    near(
        value("u_sig"),
        20.0 * (value("c_call") + value("c_reg")) / 1e6,
    );
    near(value("u_media"), lines * 100.0 * value("c_packet") / 1e6);
    near(value("u"), value("u_sig") + value("u_media"));
    let cores = (value("u") / 0.7).ceil();
    assert_eq!(plan.cores.value, cores + 8.0);
    assert_eq!(plan.nodes.value, (value("C") / 8.0).ceil() + 1.0);
    // 160 bytes of payload, 40 of headers, 38 of framing; 7 messages of 750 bytes and two.
    near(value("b_packet"), 238.0);
    near(
        plan.bandwidth_mbit.value,
        lines * 100.0 * 238.0 * 8e-6 + 20.0 * (5_250.0 + 1_500.0) * 8e-6,
    );
    near(
        plan.memory_gib.value * GIB,
        lines * cost("memory.call.anchored")
            + 36_000.0 * cost("memory.registration")
            + plan.nodes.value * cost("memory.process"),
    );
}

#[test]
fn cost_of_a_call_is_that_of_the_load_of_a_thread() {
    let costs = with_points();
    let of = |subscribers, headroom_percent| {
        let request = PlanRequest {
            path: MediaPath::Bypass,
            headroom_percent,
            ..request(subscribers, Protection::None)
        };
        plan(&request, &costs).unwrap()
    };
    let value = |plan: &Plan, symbol: &str| plan.step(symbol).unwrap().estimate.value;
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-6 * wanted, "{found}");
    // 10 calls/s and 10 registrations/s: one thread, below the lowest load measured.
    let small = of(18_000, 30.0);
    near(value(&small, "c_call"), 148.0);
    near(value(&small, "u"), 20.0 * 148e-6);
    let formula = &small.step("c_call").unwrap().formula;
    assert!(
        formula.contains("lowest load measured") && formula.contains("not extrapolated"),
        "{formula}"
    );
    // Many threads, 20 % busy: between the points, of which a thread is 7.4 % and 50.2 % busy.
    let large = of(36_000_000, 80.0);
    near(value(&large, "busy"), 20.0);
    let middle = (148.0_f64 * 42.9).sqrt();
    near(value(&large, "c_call"), middle);
    near(value(&large, "u"), 40_000.0 * middle * 1e-6);
    let Estimate { low, high, .. } = large.step("c_call").unwrap().estimate;
    assert!(low < 42.9 && high > 148.0, "{low} {high}");
    // Above the highest load measured, the cost there.
    let busiest = of(36_000_000, 30.0);
    near(value(&busiest, "c_call"), 42.9);
    assert!(busiest.cores.value < large.cores.value);
    let formula = &busiest.step("c_call").unwrap().formula;
    assert!(formula.contains("highest load measured"), "{formula}");
    // One thread with 1,000 calls/s and 1,000 registrations/s, whose costs are those of a thread that is as busy.
    let one = of(1_800_000, 30.0);
    let busy = value(&one, "busy") / 100.0;
    near(value(&one, "c_call"), busy / 2_000.0 * 1e6);
    near(value(&one, "u"), busy);
}

#[test]
fn messages_wait_for_a_thread_as_busy_as_the_load_makes_it() {
    let of = |subscribers| planned(&request(subscribers, Protection::None));
    let value = |plan: &Plan, symbol: &str| plan.step(symbol).unwrap().estimate.value;
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-9 * wanted, "{found}");
    // A few calls leave their thread idle: M/M/1 at its busy share, not at that of a full one.
    for (subscribers, is_idle) in [(100, true), (36_000_000, false)] {
        let plan = of(subscribers);
        let busy = value(&plan, "busy") / 100.0;
        assert_eq!(busy < 0.1, is_idle, "{busy}");
        near(value(&plan, "p_wait"), busy);
        let message = value(&plan, "c_call") / 7.0;
        near(value(&plan, "t_wait"), busy * message / (1.0 - busy));
    }
    near(value(&of(36_000_000), "p_wait"), 0.7);
}

#[test]
fn esp_packet_has_the_length_computed_by_hand() {
    // G.729: 20 + 40 = 60 bytes; padded with 2 to 64, and 20 + 8 + 16 + 12.
    assert!((esp_bytes(60.0, 20.0) - 120.0).abs() < f64::EPSILON);
    let plan = planned(&PlanRequest {
        codec: Codec::G729,
        ..request(1_000, Protection::Esp)
    });
    let packet = plan.step("b_packet").unwrap().estimate.value;
    assert!((packet - (90.0 + 38.0)).abs() < 1e-9, "{packet}");
}

#[test]
fn plan_names_the_setting_for_more_media_ports_than_the_default() {
    let nodes = |request: &PlanRequest| planned(request).step("n").unwrap().formula.clone();
    let setting = "need more media ports than the default 20000-26999";
    let large = PlanRequest {
        node_cores: 64,
        ..request(180_000, Protection::None)
    };
    let text = nodes(&large);
    assert!(
        text.contains(setting) && text.contains("`media = { ports"),
        "{text}"
    );
    let more_addresses = PlanRequest {
        node_addresses: 4,
        ..large.clone()
    };
    let bypass = PlanRequest {
        path: MediaPath::Bypass,
        ..large.clone()
    };
    for enough in [more_addresses, bypass, request(36_000, Protection::None)] {
        let text = nodes(&enough);
        assert!(!text.contains(setting), "{text}");
    }
}

#[test]
fn connections_of_registered_phones_are_in_memory_and_limits() {
    let with = |protection| {
        let request = PlanRequest {
            path: MediaPath::Bypass,
            hold_s: 60.0,
            ..request(1_000_000, protection)
        };
        planned(&request)
    };
    let (udp, tls) = (with(Protection::None), with(Protection::Tls));
    let state = |plan: &Plan| plan.step("m_state").unwrap().estimate;
    let more = state(&tls).low - state(&udp).low;
    assert!(more >= 1e6 * 4_096.0, "{more}");
    let cost = Costs::built_in()
        .unwrap()
        .get("memory.tls_side")
        .unwrap()
        .value;
    let more = state(&tls).value - state(&udp).value;
    assert!(
        (more - 1e6 * cost).abs() < 1.0,
        "one connection each: {more}"
    );
    // The limits of a node, in the text and in JSON.
    let text = tls.text();
    assert!(text.contains("[limits] connections to "), "{text}");
    assert!(text.contains("LimitNOFILE"), "{text}");
    let active = tls.step("n").unwrap().estimate.value;
    let json = tls.json();
    let limits = json["limits"].as_array().unwrap();
    let of = |name: &str| limits.iter().find(|limit| limit["name"] == name);
    let connections = of("[limits] connections").unwrap();
    assert_eq!(connections["default"], 10_000);
    assert_eq!(connections["needed"], (1e6 / active).ceil() as u64);
    let per_source = of("[limits] connections_per_source").unwrap();
    assert!(per_source["needed"].is_null(), "{per_source}");
    // Without connections, and with few of them, the defaults suffice.
    assert!(udp.limits.is_empty() && !udp.text().contains("raise in each node"));
    assert!(planned(&request(1_000, Protection::Tls)).limits.is_empty());
}

#[test]
fn transactions_and_handshakes_limit_the_rates_of_a_node() {
    let with = |subscribers, protection| {
        planned(&PlanRequest {
            path: MediaPath::Bypass,
            hold_s: 5.0,
            redundancy: Redundancy::None,
            headroom_percent: 0.0,
            // The parts of the node are large, so that its settings bind.
            node_cores: 1_000,
            node_memory_gib: 10_000.0,
            node_mbit: 1e6,
            ..request(subscribers, protection)
        })
    };
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-6 * wanted, "{found}");
    // 36,000,000 subscribers, 2 calls each: 20,000 calls/s and 20,000 registrations/s in one node.
    let large = with(36_000_000, Protection::None);
    assert_eq!(large.step("n").unwrap().estimate.value, 1.0);
    // INVITE for 20 + 32 s on both sides, BYE for 32 and 5 s; REGISTER for 32 and 5 s.
    let needed = 20_000.0 * (2.0 * 52.0 + 37.0) + 20_000.0 * 37.0;
    near(large.step("x_node").unwrap().estimate.value, needed);
    let limit = |plan: &Plan, name: &str| plan.limits.iter().find(|l| l.name == name).cloned();
    let transactions = limit(&large, "[limits] transactions").unwrap();
    assert_eq!(
        (transactions.default, transactions.needed),
        (2_000_000, Some(needed as u64))
    );
    assert_eq!(limit(&large, "[limits] handshakes_per_s"), None);
    // The contacts bind before the transactions.
    let [calls] = &large.node_rates[..] else {
        panic!("{:?}", large.node_rates)
    };
    assert_eq!(calls.limited_by, "[limits] registrations");
    let busy = planned(&PlanRequest {
        subscribers: 900_000,
        busy_hour_calls: 60.0,
        ..large.request.clone()
    });
    let [calls] = &busy.node_rates[..] else {
        panic!("{:?}", busy.node_rates)
    };
    // 15,000 calls/s and 500 registrations/s have 2,133,500 transactions.
    near(calls.planned_per_s, 15_000.0);
    near(calls.most_per_s, 15_000.0 * 2_000_000.0 / 2_133_500.0);
    assert_eq!(calls.limited_by, "[limits] transactions");
    let line =
        "a node takes up to 14,061 calls/s (planned: 15,000), limited by [limits] transactions";
    assert!(busy.text().contains(line), "{}", busy.text());
    let json = busy.json();
    assert_eq!(json["node_rates"][0]["limited_by"], "[limits] transactions");
    // With TLS, 900 registrations/s are 900 connections/s after a restart.
    let tls = with(1_620_000, Protection::Tls);
    let handshakes = limit(&tls, "[limits] handshakes_per_s").unwrap();
    assert_eq!((handshakes.default, handshakes.needed), (500, Some(900)));
    near(tls.step("h_node").unwrap().estimate.value, 900.0);
    let connections = tls.node_rates.last().unwrap();
    assert_eq!(connections.what, "new TLS connections");
    near(connections.planned_per_s, 900.0);
    near(connections.most_per_s, 500.0);
    assert!(tls.text().contains("[limits] handshakes_per_s to 900"));
    // A small node is limited by its own size.
    let small = planned(&PlanRequest {
        node_cores: 1,
        ..request(200_000, Protection::Srtp)
    });
    let [calls] = &small.node_rates[..] else {
        panic!("{:?}", small.node_rates)
    };
    assert_eq!(calls.limited_by, "cores");
    assert!(calls.planned_per_s <= calls.most_per_s, "{calls:?}");
}

#[test]
fn every_interval_contains_its_value() {
    for protection in [
        Protection::None,
        Protection::Srtp,
        Protection::Esp,
        Protection::TlsSrtp,
    ] {
        for codec in Codec::ALL {
            for redundancy in Redundancy::ALL {
                let request = PlanRequest {
                    codec: *codec,
                    redundancy: *redundancy,
                    ..request(123_456, protection)
                };
                for plan in [planned(&request), plan(&request, &with_points()).unwrap()] {
                    for step in &plan.steps {
                        let Estimate { value, low, high } = step.estimate;
                        assert!(low <= value && value <= high, "{step:?}");
                        assert!(!step.formula.is_empty(), "{step:?}");
                    }
                    assert!(results(&plan).iter().all(|e| e.low > 0.0));
                }
            }
        }
    }
}

#[test]
fn more_load_never_needs_less() {
    let costs = [Costs::built_in().unwrap(), with_points()];
    let grows = |requests: Vec<PlanRequest>| {
        for costs in &costs {
            let of = |request: &PlanRequest| plan(request, costs).unwrap();
            let plans: Vec<Plan> = requests.iter().map(of).collect();
            for pair in plans.windows(2) {
                let [a, b] = pair else { continue };
                let busy = |plan: &Plan| plan.step("C").unwrap().estimate;
                let cores = std::iter::once((busy(a), busy(b)));
                for (less, more) in results(a).into_iter().zip(results(b)).chain(cores) {
                    assert!(
                        less.value <= more.value && less.low <= more.low && less.high <= more.high,
                        "{:?} {:?}",
                        a.request,
                        b.request
                    );
                }
            }
        }
    };
    // Signalling of less than one thread, and of several.
    let bypass = |subscribers| PlanRequest {
        path: MediaPath::Bypass,
        hold_s: 5.0,
        ..request(subscribers, Protection::None)
    };
    grows((0..300).map(|n| bypass(1 + n * 60_000)).collect());
    for redundancy in Redundancy::ALL {
        let with = |subscribers| PlanRequest {
            redundancy: *redundancy,
            ..request(subscribers, Protection::Srtp)
        };
        grows((0..300).map(|n| with(1 + n * 1_777)).collect());
    }
    let base = || request(200_000, Protection::None);
    grows(
        (1..50)
            .map(|n| PlanRequest {
                busy_hour_calls: f64::from(n) * 0.3,
                ..base()
            })
            .collect(),
    );
    grows(
        (1..50)
            .map(|n| PlanRequest {
                hold_s: f64::from(n) * 20.0,
                ..base()
            })
            .collect(),
    );
    grows(
        (0..19)
            .map(|n| PlanRequest {
                headroom_percent: f64::from(n) * 5.0,
                ..base()
            })
            .collect(),
    );
    // Measured packets of SRTP may cost no more than those of RTP, within their intervals.
    let mut costs = with_points();
    for cost in &mut costs.cost {
        if cost.id.contains("srtp") && cost.unit == "us" {
            (cost.value, cost.low, cost.high) = (cost.value + 2.0, cost.low + 2.0, cost.high + 2.0);
        }
    }
    let of = |protection| plan(&request(200_000, protection), &costs).unwrap();
    let [none, srtp, esp] = [Protection::None, Protection::Srtp, Protection::Esp].map(of);
    assert!(none.cores.value < srtp.cores.value && none.memory_gib.value < srtp.memory_gib.value);
    assert!(srtp.bandwidth_mbit.value < esp.bandwidth_mbit.value);
}

#[test]
fn bypass_has_no_media() {
    let plan = planned(&PlanRequest {
        path: MediaPath::Bypass,
        ..request(100_000, Protection::None)
    });
    assert!(plan.step("P").unwrap().estimate.value == 0.0 && plan.step("u_media").is_none());
    assert!(plan.bandwidth_mbit.value < 10.0);
}

#[test]
fn options_of_media_are_refused_with_bypass() {
    type Change = fn(&mut PlanRequest);
    let changes: [(&str, &str, Change); 7] = [
        ("--protection srtp", "use --protection none", |r| {
            r.protection = Protection::Srtp;
        }),
        ("--protection tls-srtp", "use --protection tls", |r| {
            r.protection = Protection::TlsSrtp;
        }),
        ("--codec G729", "leave it out", |r| r.codec = Codec::G729),
        ("--packet-ms 30", "leave it out", |r| r.packet_ms = 30.0),
        ("--activity 40", "leave it out", |r| {
            r.activity_percent = 40.0
        }),
        ("--ipv6", "leave it out", |r| r.ipv6 = true),
        ("--node-addresses 2", "leave it out", |r| {
            r.node_addresses = 2
        }),
    ];
    for (option, remedy, change) in changes {
        let mut request = request(1_000, Protection::None);
        change(&mut request);
        request.check().unwrap();
        request.path = MediaPath::Bypass;
        let error = request.check().unwrap_err().to_string();
        assert!(
            error.contains(&format!("{option} has no effect with --path bypass"))
                && error.contains(remedy),
            "{error}"
        );
    }
    for protection in [Protection::None, Protection::Tls] {
        let bypass = PlanRequest {
            path: MediaPath::Bypass,
            ..request(1_000, protection)
        };
        bypass.check().unwrap();
    }
}

#[test]
fn packets_have_whole_frames() {
    let with = |codec, packet_ms| {
        let request = PlanRequest {
            codec,
            packet_ms,
            ..request(1_000, Protection::None)
        };
        request.check().map_err(|error| error.to_string())
    };
    for packet_ms in [5.0, 10.0, 15.0, 20.0, 180.0] {
        with(Codec::Pcma, packet_ms).unwrap();
    }
    with(Codec::G729, 200.0).unwrap();
    with(Codec::Opus, 120.0).unwrap();
    for (codec, packet_ms, words) in [
        (Codec::Pcma, 7.0, "--packet-ms 7: expected a multiple of 5"),
        (Codec::Opus, 20.5, "--packet-ms 20.5"),
        (Codec::G729, 15.0, "expected a multiple of 10"),
        (Codec::Opus, 140.0, "expected at most 120"),
        (
            Codec::Pcma,
            185.0,
            "a packet of 1520 bytes, expected at most 1500",
        ),
    ] {
        let error = with(codec, packet_ms).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn processes_are_in_the_memory_of_the_nodes() {
    let with = |subscribers, headroom_percent| PlanRequest {
        path: MediaPath::Bypass,
        redundancy: Redundancy::None,
        headroom_percent,
        node_cores: 1_000,
        node_memory_gib: 0.25,
        node_mbit: 1e6,
        ..request(subscribers, Protection::None)
    };
    let mut by_memory = 0;
    for subscribers in (1..40).map(|part| part * 50_000) {
        let plan = planned(&with(subscribers, 0.0));
        let value = |symbol: &str| plan.step(symbol).unwrap().estimate.value;
        let used = value("m_state") / value("n") + value("m_process");
        assert!(used <= 0.25 * GIB, "{subscribers}: {used}");
        by_memory += u32::from(value("n") > 1.0);
    }
    assert!(by_memory > 0);
    let costs = Costs::built_in().unwrap();
    let error = plan(&with(1_000, 90.0), &costs).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().starts_with("--node-memory-gib 0.25 "),
        "{error}"
    );
}

#[test]
fn simulation_below_ten_hold_times_shows_no_blocking() {
    let with = |seconds| {
        planned(&PlanRequest {
            hold_s: 60.0,
            simulate_seconds: Some(seconds),
            ..request(20_000, Protection::None)
        })
    };
    let (short, long) = (with(120.0), with(600.0));
    let shows = |plan: &Plan| plan.check.as_ref().unwrap().shows_blocking;
    assert!(!shows(&short) && shows(&long));
    let remark = "120 s show no blocking: they are less than ten hold times";
    assert!(short.text().contains(remark), "{}", short.text());
    assert!(short.text().contains("use --simulate 600 or more"));
    assert!(!long.text().contains("show no blocking"));
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    type Change = fn(&mut PlanRequest);
    let changes: [(&str, Change); 9] = [
        ("--subscribers", |r| r.subscribers = 0),
        ("--busy-hour-calls", |r| r.busy_hour_calls = f64::NAN),
        ("--busy-hour-calls", |r| r.busy_hour_calls = 100.0),
        ("--hold", |r| r.hold_s = -1.0),
        ("--hold", |r| r.hold_s = f64::INFINITY),
        ("--blocking", |r| r.blocking = 0.0),
        ("--headroom", |r| r.headroom_percent = 100.0),
        ("--node-cores", |r| r.node_cores = 0),
        ("--subscribers", |r| r.subscribers = 9_000_000_000),
    ];
    let costs = Costs::built_in().unwrap();
    for (option, change) in changes {
        let mut request = request(1_000, Protection::None);
        change(&mut request);
        let error = plan(&request, &costs).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().starts_with(option), "{error}");
    }
    assert!(
        Protection::from_name("rot13")
            .unwrap_err()
            .to_string()
            .contains("srtp")
    );
    assert!(plan(&request(1_000, Protection::Tls), &costs).is_ok());
    let mut costs = costs;
    costs.cost.retain(|cost| !cost.id.ends_with(".tls"));
    let error = plan(&request(1_000, Protection::Tls), &costs).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("datasheet"), "{error}");
}

#[test]
fn simulation_of_a_million_subscribers_agrees_with_the_formulas() {
    // 1,500,000 subscribers, 2 calls of 60 s: 833 calls/s and 50,000 standing calls.
    let (rate, hold) = (1_500_000.0 * 2.0 / 3_600.0, 60.0);
    let erlangs = rate * hold;
    let lines = lines_for(erlangs, 0.02);
    let check = simulate_loss(lines, rate, hold, (900.0, 7));
    assert_eq!(check, simulate_loss(lines, rate, hold, (900.0, 7)));
    assert!(check.arrived > 700_000 && !check.cut_short);
    // Blocking varies with the slow movement of 50,000 calls; its standard deviation over 15 hold times is near 0.15 %.
    assert!(
        (check.blocking - check.formula_blocking).abs() < 0.006,
        "{check:?}"
    );
    let carried = erlangs * (1.0 - check.formula_blocking);
    assert!(
        (check.mean_calls - carried).abs() < 0.01 * carried,
        "{check:?}"
    );
    assert!(check.most_calls <= lines);
}

#[test]
fn nodes_of_a_plan_carry_its_calls_also_after_a_failure() {
    // 1,500,000 subscribers, 2 calls of 60 s: 50,000 standing calls.
    let request = PlanRequest {
        hold_s: 60.0,
        simulate_seconds: Some(300.0),
        ..request(1_500_000, Protection::Srtp)
    };
    let plan = planned(&request);
    let check = plan.node_check.clone().unwrap();
    assert_eq!(planned(&request).node_check.unwrap(), check);
    assert!(check.holds && !check.cut_short, "{check:?}");
    let (before, after) = (check.before, check.after.unwrap());
    assert_eq!(before.nodes as f64, plan.nodes.value);
    assert_eq!(after.nodes + 1, before.nodes);
    assert!(check.cut_calls > 0 && before.arrived > 200_000, "{check:?}");
    // The load of the plan is that of its nodes together: the peak of one is near its share.
    let busy = plan.step("u").unwrap().estimate.value;
    let mean = 100.0 * busy / (after.nodes as f64 * f64::from(request.node_cores));
    let peak = after.peak_percent.cores.value;
    assert!(peak > 0.9 * mean && peak < 1.3 * mean, "{peak} {mean}");
    assert!(before.peak_percent.cores.value < peak);
    // Without the headroom of 30 % and some more: the failure is not carried.
    let costs = Costs::built_in().unwrap();
    let mut steps = Steps::default();
    let traffic = traffic(&request, &mut steps);
    cpu(&request, &costs, &traffic, &mut steps).unwrap();
    memory(&request, &costs, &traffic, &mut steps).unwrap();
    bandwidth(&request, &costs, &traffic, &mut steps).unwrap();
    let few = simulate_nodes(&request, &steps.loads, before.nodes * 6 / 10, 300.0);
    assert!(!few.holds && few.after.unwrap().refused > 0, "{few:?}");
}

#[test]
fn redundancy_decides_how_a_failure_is_simulated() {
    let with = |redundancy| {
        let request = PlanRequest {
            redundancy,
            simulate_seconds: Some(60.0),
            ..request(200_000, Protection::None)
        };
        planned(&request).node_check.unwrap()
    };
    let none = with(Redundancy::None);
    assert!(none.holds && none.after.is_none() && none.cut_calls == 0);
    let pair = with(Redundancy::Pair);
    assert!(pair.holds && pair.cut_calls == 0);
    assert_eq!(pair.after.unwrap().nodes, pair.before.nodes);
}
