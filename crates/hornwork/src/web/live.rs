//! The border as it is now: calls, registrations, trunks, nodes, limits, bans, drops, alarms and figures; and the
//! commands that change it.

use super::access::Caller;
use super::api::{ConsoleState, Parameters, PathPart, Shared, body_of, cursor_of, limit_of};
use super::jitter::JitterMs;
use super::masking::is_searchable;
use super::problem::{Answer, Problem, accepted, ok};
use super::types::{
    AlarmBody, AlarmsBody, BanBody, BansBody, DoneBody, DrainBody, DropsBody, LimitChange,
    LimitsBody, LiveCallBody, LiveCallsBody, LiveMediaBody, LogLevelBody, NodeBody, NodesBody,
    OverviewQuery, PageQuery, RegistrationBody, RegistrationQuery, RegistrationsBody, TargetBody,
    TrunkBody, TrunkChange, TrunksBody, TunnelBody, TunnelsBody,
};
use crate::alarms::{AlarmKind, RaisedAlarm};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use border::border::{CallInfo, LiveMedia};
use border::calls::CallStage;
use border::registrar::LockedOut;
use border::views::TrunkView;
use console::{mask, mask_numbers};
use engine::{Hundredths, ReportedJitter};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Longest series, seconds.
const MAX_SERIES_S: u32 = 3_600;

impl ConsoleState {
    fn call_body(&self, call: CallInfo, redact: bool) -> LiveCallBody {
        let masked = |text: String| match redact {
            true => mask_numbers(&text),
            false => text,
        };
        let now = self.operators().clock.now();
        let [caller_trunk, callee_trunk] = call.trunks;
        let [interface, _] = call.interfaces;
        let [call_id, _] = call.call_ids;
        LiveCallBody {
            id: call.number.to_string(),
            call_id,
            from: masked(call.from),
            to: masked(call.to),
            started: self.time(call.offered_at),
            answered: call.answered_at.map(|at| self.time(at)),
            duration_s: call.answered_at.map(|at| now.since(at).as_secs()),
            state: match call.stage {
                CallStage::ExpectAnswer => "setup",
                CallStage::ExpectAck | CallStage::ExpectBye => "answered",
                CallStage::ExpectLegsClosed => "ending",
            },
            interface,
            trunk: callee_trunk.or(caller_trunk),
            addresses: call.addresses.to_vec(),
            anchored: call.anchored,
            media: call.media.into_iter().map(media_body).collect(),
        }
    }

    fn alarm_body(&self, alarm: &RaisedAlarm) -> AlarmBody {
        let mut kinds = AlarmKind::REFERENCE.iter();
        let kind = kinds.find(|(name, _, _)| *name == alarm.kind.name());
        AlarmBody {
            id: alarm.id,
            name: alarm.kind.name(),
            severity: alarm.kind.severity(),
            object: alarm.object.clone(),
            text: alarm.detail.clone(),
            help: kind.map_or("", |(_, _, text)| text.trim()),
            since: self.time(alarm.raised),
            cleared: alarm.cleared.map(|at| self.time(at)),
            acknowledged_by: alarm.acknowledged_by.clone(),
            acknowledged_at: alarm.acknowledged.map(|at| self.time(at)),
        }
    }

    /// All alarms.
    pub(super) fn alarms(&self) -> Vec<AlarmBody> {
        let alarms = self.operators().alarms.list();
        alarms.iter().map(|alarm| self.alarm_body(alarm)).collect()
    }
}

fn media_body(media: LiveMedia) -> LiveMediaBody {
    let figure = |value: Hundredths| value.0 as f64 / 100.0;
    LiveMediaBody {
        codec: media.codec,
        loss_percent: media.loss_percent.map(figure),
        jitter_ms: media.jitter_ms.map(JitterMs::from),
        jitter_whole_ms: matches!(media.jitter_ms, Some(ReportedJitter::Whole(_))),
        mos: media.mos.map(figure),
    }
}

fn done(done: usize, what: &str) -> Answer {
    match done {
        0 => Err(Problem::missing(what)),
        done => ok(&DoneBody { done }),
    }
}

/// `GET /live/calls`.
pub(super) async fn list_calls(
    State(state): Shared,
    Extension(caller): Extension<Caller>,
    Parameters(query): Parameters<PageQuery>,
) -> Answer {
    let limit = limit_of(query.limit)?;
    let after = cursor_of(query.cursor.as_deref())?;
    // One more tells whether there is a further page.
    let (total, mut calls) = state.operators().calls_after(after, limit + 1).await?;
    let more = calls.len() > limit;
    calls.truncate(limit);
    let next = calls.last().filter(|_| more);
    let next = next.map(|call| call.number.to_string());
    let calls = calls.into_iter();
    ok(&LiveCallsBody {
        calls: calls
            .map(|call| state.call_body(call, caller.redact))
            .collect(),
        total,
        next,
    })
}

/// `DELETE /live/calls/{id}`.
pub(super) async fn hang_up(State(state): Shared, PathPart(id): PathPart<String>) -> Answer {
    done(
        usize::from(state.operators().hang_up(&id).await?),
        "call in progress",
    )
}

/// `GET /registrations`.
pub(super) async fn list_registrations(
    State(state): Shared,
    Extension(caller): Extension<Caller>,
    Parameters(query): Parameters<RegistrationQuery>,
) -> Answer {
    let limit = limit_of(query.limit)?;
    if caller.redact && query.cursor.is_some() {
        // Which user follows a name tells hidden digits.
        return Err(Problem::forbidden(
            "cursor: numbers are masked for this user, so that only the first page is shown; use aor",
        ));
    }
    let masked_search = query.aor.clone().filter(|_| caller.redact);
    if let Some(user) = &masked_search {
        is_searchable("aor", user)?;
        state.admit_number_search(&caller)?;
    }
    let page = state
        .operators()
        .registrations(query.aor, query.cursor, limit + 1);
    let (total, mut views) = page.await?;
    let more = views.len() > limit;
    views.truncate(limit);
    let next = views.last().filter(|_| more);
    let next = next.map(|(view, _)| view.user.clone());
    let now = state.operators().clock.now();
    let mut registrations = Vec::new();
    for (view, interfaces) in views {
        for (contact, interface) in view.contacts.into_iter().zip(interfaces) {
            let address = contact.address;
            let (transport, source) = address.split_once(':').unwrap_or(("", &address));
            registrations.push(RegistrationBody {
                aor: match caller.redact {
                    true => mask(&view.user),
                    false => view.user.clone(),
                },
                contact: match caller.redact {
                    true => mask_numbers(&contact.uri),
                    false => contact.uri,
                },
                source: source.to_owned(),
                transport: transport.to_owned(),
                expires_s: contact.until.since(now).as_secs(),
                interface,
                registered: state.time(contact.since),
            });
        }
    }
    let body = RegistrationsBody {
        registrations,
        total,
        // The cursor is the name of a user.
        next: next.filter(|_| !caller.redact),
    };
    match masked_search {
        Some(user) => accepted(format!("aor={user}"), &body),
        None => ok(&body),
    }
}

/// `DELETE /registrations/{aor}`.
pub(super) async fn remove_registration(
    State(state): Shared,
    PathPart(user): PathPart<String>,
) -> Answer {
    done(
        state.operators().remove_registration(user).await?,
        "registration",
    )
}

fn trunk_body(trunk: TrunkView, alarms: &[AlarmBody]) -> TrunkBody {
    let alarm = alarms.iter().find(|alarm| {
        alarm.name == "trunk_down" && alarm.object == trunk.name && alarm.cleared.is_none()
    });
    let (state, reason) = match (trunk.enabled, trunk.up) {
        (false, _) => (
            "out",
            Some("taken out of service by an operator".to_owned()),
        ),
        (true, false) => ("down", alarm.map(|alarm| alarm.text.clone())),
        (true, true) => ("in", None),
    };
    let targets: Vec<TargetBody> = trunk
        .targets
        .into_iter()
        .map(|(address, up)| TargetBody { address, up })
        .collect();
    TrunkBody {
        name: trunk.name,
        state,
        reason,
        calls: trunk.calls,
        calls_max: trunk.calls_max,
        address: targets.first().map(|target| target.address.clone()),
        targets,
    }
}

/// `GET /trunks`.
pub(super) async fn list_trunks(State(state): Shared) -> Answer {
    let alarms = state.alarms();
    let trunks = state.operators().trunks().await?.into_iter();
    ok(&TrunksBody {
        trunks: trunks.map(|trunk| trunk_body(trunk, &alarms)).collect(),
    })
}

/// `PUT /trunks/{name}`.
pub(super) async fn change_trunk(
    State(state): Shared,
    PathPart(name): PathPart<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let TrunkChange { enabled } = body_of(&headers, body).await?;
    let trunk = state.operators().enable_trunk(name, enabled).await?;
    let trunk = trunk.ok_or_else(|| Problem::missing("trunk"))?;
    accepted(
        format!("enabled={enabled}"),
        &trunk_body(trunk, &state.alarms()),
    )
}

/// `GET /nodes`.
pub(super) async fn list_nodes(State(state): Shared) -> Answer {
    let statistics = state.operators().statistics().await?;
    let nodes = statistics.nodes.into_iter().map(|node| NodeBody {
        name: node.name,
        control: node.control,
        up: node.up,
        drain: node.drain,
        calls: node.calls,
        sessions: node.sessions,
    });
    ok(&NodesBody {
        nodes: nodes.collect(),
    })
}

/// `GET /tunnels`.
pub(super) async fn list_tunnels(State(state): Shared) -> Answer {
    let gateway = state.operators().gateway.as_deref();
    let tunnels = gateway.map_or(&[][..], |gateway| &gateway.tunnels);
    let tunnels = tunnels.iter().map(|tunnel| {
        let now = tunnel.state();
        TunnelBody {
            name: tunnel.name.clone(),
            up: now.up,
            since: state.time(now.since),
            peer: now.peer.map(|peer| peer.to_string()),
            identity: now.identity,
            algorithms: now.algorithms,
            sealed: tunnel.sealed.load(Relaxed),
            opened: tunnel.opened.load(Relaxed),
        }
    });
    ok(&TunnelsBody {
        tunnels: tunnels.collect(),
    })
}

/// `GET /limits`.
pub(super) async fn show_limits(State(state): Shared) -> Answer {
    ok(&limits(&state).await?)
}

async fn limits(state: &ConsoleState) -> Result<LimitsBody, Problem> {
    let limits = state.operators().limits().await?;
    Ok(LimitsBody {
        calls: limits.calls,
        registrations: limits.registrations,
        transactions: limits.transactions,
        connections: limits.connections,
    })
}

/// `PUT /limits`.
pub(super) async fn change_limits(State(state): Shared, headers: HeaderMap, body: Body) -> Answer {
    let LimitChange { calls } = body_of(&headers, body).await?;
    state.operators().set_call_limit(calls as usize).await?;
    accepted(format!("calls={calls}"), &limits(&state).await?)
}

/// `GET /bans`.
pub(super) async fn list_bans(
    State(state): Shared,
    Extension(caller): Extension<Caller>,
) -> Answer {
    let bans = state.operators().bans().await?;
    let bans = bans.into_iter().map(|(source, left)| BanBody {
        source: match source {
            LockedOut::Account(name) if caller.redact => {
                LockedOut::Account(mask(&name)).to_string()
            }
            source => source.to_string(),
        },
        reason: "authentication failures",
        remaining_s: left.as_secs(),
    });
    ok(&BansBody {
        bans: bans.collect(),
    })
}

/// `DELETE /bans/{source}`.
pub(super) async fn remove_ban(State(state): Shared, PathPart(source): PathPart<String>) -> Answer {
    let removed = state.operators().remove_ban(&source).await?;
    done(usize::from(removed), "ban")
}

/// `GET /log-level`.
pub(super) async fn show_log_level(State(state): Shared) -> Answer {
    ok(&LogLevelBody {
        level: state.operators().log.level(),
    })
}

/// `PUT /log-level`.
pub(super) async fn change_log_level(
    State(state): Shared,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let LogLevelBody { level } = body_of(&headers, body).await?;
    state.operators().set_log_level(&level)?;
    let body = LogLevelBody {
        level: state.operators().log.level(),
    };
    accepted(format!("level={level}"), &body)
}

/// `POST /reload`.
pub(super) async fn reload(State(state): Shared) -> Answer {
    state.operators().reload().await?;
    ok(&DoneBody { done: 1 })
}

/// `POST /drain`.
pub(super) async fn drain(State(state): Shared, headers: HeaderMap, body: Body) -> Answer {
    // Without body the configured time applies.
    let DrainBody { timeout_s } = match headers.contains_key(CONTENT_TYPE) {
        true => body_of(&headers, body).await?,
        false => DrainBody::default(),
    };
    let limit = timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
    state.operators().drain(limit);
    let values = timeout_s.map_or_else(String::new, |seconds| format!("timeout_s={seconds}"));
    accepted(values, &DoneBody { done: 1 })
}

/// `GET /overview`.
pub(super) async fn overview(
    State(state): Shared,
    Parameters(query): Parameters<OverviewQuery>,
) -> Answer {
    let seconds = query.seconds.unwrap_or(MAX_SERIES_S);
    if !(5..=MAX_SERIES_S).contains(&seconds) {
        return Err(Problem::bad("seconds is between 5 and 3600"));
    }
    let overview = state.overview().overview(seconds);
    ok(&overview)
}

/// `GET /drops`.
pub(super) async fn drops(State(state): Shared) -> Answer {
    let drops = state.overview().drops();
    ok(&DropsBody { drops })
}

/// `GET /alarms`.
pub(super) async fn list_alarms(State(state): Shared) -> Answer {
    ok(&AlarmsBody {
        alarms: state.alarms(),
    })
}

/// `POST /alarms/{id}/acknowledge`.
pub(super) async fn acknowledge(
    State(state): Shared,
    PathPart(id): PathPart<u64>,
    Extension(caller): Extension<Caller>,
) -> Answer {
    let found = state.operators().acknowledge_alarm(id, &caller.user);
    done(usize::from(found), "active alarm")
}

/// `GET /live/stream`.
pub(super) async fn stream(State(state): Shared, Extension(caller): Extension<Caller>) -> Answer {
    let now = state.overview().now();
    let now = serde_json::to_string(&now).unwrap_or_default();
    let client = (caller.session, caller.redact);
    let added = state.hub.add(client, &[("overview", now)]);
    added.ok_or_else(|| Problem::busy("too many pages listen"))
}
