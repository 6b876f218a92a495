//! Operator commands: one set of handlers for HTTP and for the Unix socket of `hornwork ctl`.

use super::api::{ApiState, PathParts, Problem, RequestLabel, SharedState, json, read};
use crate::alarms::{AlarmKind, RaisedAlarm};
use crate::cpu_time::cpu_seconds;
use crate::event_output::{OUTCOMES, outcomes};
use crate::http::ClientAddress;
use crate::log::timestamp;
use crate::operators::{CommandError, NamedRegistration, StoreState};
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use border::border::{CallInfo, LiveMedia};
use border::calls::CallStage;
use engine::{DropReason, Hundredths, ReportedJitter, Time};
use serde::Deserialize;
use serde_json::{Map, Value, json as value};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Entries of a list without `limit`.
const DEFAULT_LIMIT: usize = 1_000;
/// Most entries of a page.
const MAX_LIMIT: usize = 10_000;

type Answer = Result<Response, Problem>;
type Client = Extension<ClientAddress>;
type Label = Extension<RequestLabel>;

/// The routes of operator commands.
pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/version", get(version))
        .route("/v1/overview", get(overview))
        .route("/v1/calls", get(list_calls))
        .route("/v1/calls/{id}", get(show_call).delete(hang_up))
        .route("/v1/registrations", get(list_registrations))
        .route(
            "/v1/registrations/{user}",
            get(show_registration).delete(delete_registration),
        )
        .route("/v1/trunks", get(list_trunks))
        .route("/v1/trunks/{name}", get(show_trunk).patch(change_trunk))
        .route("/v1/nodes", get(list_nodes))
        .route("/v1/tunnels", get(list_tunnels))
        .route("/v1/limits", get(show_limits).patch(change_limits))
        .route("/v1/bans", get(list_bans))
        .route("/v1/bans/{source}", delete(remove_ban))
        .route("/v1/log", get(show_log).patch(change_log))
        .route("/v1/drops", get(drops))
        .route("/v1/alarms", get(list_alarms))
        .route("/v1/alarms/{id}/acknowledge", post(acknowledge))
        .route("/v1/reload", post(reload))
        .route("/v1/drain", post(drain))
}

fn busy(why: &'static str) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, why)
}

fn problem(error: CommandError) -> Problem {
    match error {
        CommandError::Busy(why) => busy(why),
        CommandError::BadValue(why) => Problem::new(StatusCode::BAD_REQUEST, why),
        CommandError::Failed(why) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, why),
    }
}

fn ok(value: &Value) -> Answer {
    Ok(json(StatusCode::OK, value))
}

/// Whole milliseconds of rtpengine have no decimals.
fn jitter_json(jitter: ReportedJitter) -> Value {
    match jitter {
        ReportedJitter::Measured(jitter) => (jitter.0 as f64 / 100.0).into(),
        ReportedJitter::Whole(ms) => ms.into(),
    }
}

fn missing(what: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("no such {what}"))
}

impl ApiState {
    fn time_json(&self, at: Time) -> Value {
        timestamp(self.operators().clock.unix_nanos(at)).into()
    }

    fn call_json(&self, call: &CallInfo) -> Value {
        let now = self.operators().clock.now();
        let leg = |index: usize| {
            let media = call.media.get(index);
            let figure = |of: fn(&LiveMedia) -> Option<Hundredths>| {
                media.and_then(of).map(|value| value.0 as f64 / 100.0)
            };
            value!({
                "call_id": call.call_ids.get(index).cloned().flatten(),
                "interface": call.interfaces.get(index),
                "trunk": call.trunks.get(index).cloned().flatten(),
                "address": call.addresses.get(index).cloned().flatten(),
                "codec": media.and_then(|media| media.codec.as_deref()),
                "media": {
                    "loss_percent": figure(|media| media.loss_percent),
                    "jitter_ms": media.and_then(|media| media.jitter_ms).map(jitter_json),
                    "mos": figure(|media| media.mos),
                },
            })
        };
        let tags: Map<String, Value> = call
            .tags
            .iter()
            .map(|(name, text)| (name.clone(), text.as_str().into()))
            .collect();
        value!({
            "id": call.number,
            "call_id": call.call_ids.first().cloned().flatten(),
            "from": call.from,
            "to": call.to,
            "state": match call.stage {
                CallStage::ExpectAnswer => "setup",
                CallStage::ExpectAck | CallStage::ExpectBye => "answered",
                CallStage::ExpectLegsClosed => "ending",
            },
            "started": self.time_json(call.offered_at),
            "answered": call.answered_at.map(|at| self.time_json(at)),
            "duration_s": call.answered_at.map(|at| now.since(at).as_secs()),
            "anchored": call.anchored,
            "legs": [leg(0), leg(1)],
            "tags": tags,
        })
    }

    fn registration_json(&self, (view, names): &NamedRegistration) -> Value {
        let now = self.operators().clock.now();
        let contacts: Vec<Value> = view
            .contacts
            .iter()
            .zip(names)
            .map(|(contact, interface)| {
                value!({
                    "uri": contact.uri,
                    "address": contact.address,
                    "interface": interface,
                    "registered": self.time_json(contact.since),
                    "expires_s": contact.until.since(now).as_secs(),
                    "forwarded": contact.forwarded,
                })
            })
            .collect();
        value!({ "user": view.user, "contacts": contacts })
    }

    fn alarm_json(&self, alarm: &RaisedAlarm) -> Value {
        let text = AlarmKind::REFERENCE
            .iter()
            .find(|(name, _, _)| *name == alarm.kind.name());
        value!({
            "id": alarm.id,
            "alarm": alarm.kind.name(),
            "severity": alarm.kind.severity(),
            "object": alarm.object,
            "detail": alarm.detail,
            "state": if alarm.cleared.is_some() { "cleared" } else { "active" },
            "raised": self.time_json(alarm.raised),
            "cleared": alarm.cleared.map(|at| self.time_json(at)),
            "acknowledged": alarm.acknowledged.map(|at| self.time_json(at)),
            "acknowledged_by": alarm.acknowledged_by,
            "meaning": text.map(|(_, _, text)| text.trim()),
        })
    }
}

/// The page of a list: at most `limit` entries behind the entry `after`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery<T> {
    limit: Option<usize>,
    after: Option<T>,
}

type ListPage<T> = Result<Query<ListQuery<T>>, axum::extract::rejection::QueryRejection>;

/// The number of entries of a page, and the entry before it; a malformed query is refused.
fn page_of<T>(query: ListPage<T>) -> Result<(usize, Option<T>), Problem> {
    let bad = |why: String| Problem::new(StatusCode::BAD_REQUEST, why);
    let Query(query) = query.map_err(|error| bad(error.body_text()))?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    match (1..=MAX_LIMIT).contains(&limit) {
        true => Ok((limit, query.after)),
        false => Err(bad(format!("limit is between 1 and {MAX_LIMIT}"))),
    }
}

async fn health(State(shared): SharedState) -> Answer {
    let statistics = shared.operators().statistics().await.map_err(busy)?;
    let alarms =
        ["critical", "major", "minor"].map(|severity| shared.operators().alarms.active(severity));
    let status = match (statistics.draining, alarms[0]) {
        (true, _) => "draining",
        (false, 0) => "ok",
        (false, _) => "degraded",
    };
    ok(&value!({
        "status": status,
        "ready": !statistics.draining,
        "workers": shared.operators().workers(),
        "calls": statistics.calls,
        "registrations": statistics.registrations,
        "alarms": { "critical": alarms[0], "major": alarms[1], "minor": alarms[2] },
        "store": statistics.store.as_ref().map(store_json),
    }))
}

async fn version() -> Answer {
    ok(&value!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": env!("HORNWORK_COMMIT"),
    }))
}

/// Figures for `hornwork top`.
async fn overview(State(shared): SharedState) -> Answer {
    let operators = shared.operators();
    let statistics = operators.statistics().await.map_err(busy)?;
    let counters = &statistics.counters;
    let results = OUTCOMES.iter().zip(outcomes(counters));
    let results: Map<String, Value> = results
        .map(|(name, count)| ((*name).to_owned(), count.into()))
        .collect();
    let drops: Map<String, Value> = statistics
        .drops
        .iter()
        .map(|(reason, count)| (reason.name().to_owned(), count.into()))
        .collect();
    let trunks = trunks(&shared).await?;
    let alarms: Vec<Value> = operators
        .alarms
        .list()
        .iter()
        .filter(|alarm| alarm.cleared.is_none())
        .map(|alarm| shared.alarm_json(alarm))
        .collect();
    ok(&value!({
        "time": timestamp(operators.clock.unix_nanos_now()),
        "uptime_s": operators.clock.now().since(Time::ZERO).as_secs_f64(),
        "workers": operators.workers(),
        "draining": statistics.draining,
        "calls": { "active": statistics.calls, "offered": counters.offered, "answered": counters.answered, "results": results },
        "registrations": statistics.registrations,
        "media": {
            "packets": statistics.packets,
            "ended_packets": statistics.counts.media_packets,
            "ended_lost": statistics.counts.media_lost,
        },
        "queue_delay_ms": statistics.overload.queue_delay.as_secs_f64() * 1e3,
        "overload": statistics.overload.active,
        "cpu_s": cpu_seconds(),
        "drops": drops,
        "store": statistics.store.as_ref().map(store_json),
        "trunks": trunks,
        "alarms": alarms,
    }))
}

/// State of the store of calls and messages.
fn store_json(store: &StoreState) -> Value {
    let lost = store.lost.kinds();
    let lost = lost.map(|(kind, count)| (kind.to_owned(), Value::from(count)));
    let lost: Map<String, Value> = lost.into_iter().collect();
    value!({ "failing": store.failing, "lost": lost, "unindexed": store.unindexed })
}

async fn list_calls(State(shared): SharedState, query: ListPage<u64>) -> Answer {
    let (limit, after) = page_of(query)?;
    // One more tells whether there is a further page.
    let calls = shared.operators().calls_after(after, limit + 1).await;
    let (total, mut calls) = calls.map_err(busy)?;
    let more = calls.len() > limit;
    calls.truncate(limit);
    let next = calls.last().filter(|_| more).map(|call| call.number);
    let shown: Vec<Value> = calls.iter().map(|call| shared.call_json(call)).collect();
    ok(&value!({ "total": total, "calls": shown, "next": next }))
}

async fn show_call(State(shared): SharedState, PathParts(id): PathParts<String>) -> Answer {
    let call = shared.operators().call(&id).await.map_err(busy)?;
    ok(&shared.call_json(&call.ok_or_else(|| missing("call"))?))
}

async fn hang_up(
    State(shared): SharedState,
    PathParts(id): PathParts<String>,
    Extension(client): Client,
    Extension(label): Label,
) -> Answer {
    let found = shared.operators().hang_up(&id).await.map_err(busy)?;
    let status = if found {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    shared.log_command(client, &label, "", status);
    match found {
        true => ok(&value!({ "ended": 1 })),
        false => Err(missing("call")),
    }
}

async fn list_registrations(State(shared): SharedState, query: ListPage<String>) -> Answer {
    let (limit, after) = page_of(query)?;
    let page = shared.operators().registrations(None, after, limit + 1);
    let (total, mut views) = page.await.map_err(busy)?;
    let more = views.len() > limit;
    views.truncate(limit);
    let next = views.last().filter(|_| more);
    let next = next.map(|(view, _)| view.user.clone());
    let registrations = views.iter().map(|view| shared.registration_json(view));
    let registrations: Vec<Value> = registrations.collect();
    ok(&value!({ "contacts": total, "registrations": registrations, "next": next }))
}

async fn show_registration(
    State(shared): SharedState,
    PathParts(user): PathParts<String>,
) -> Answer {
    let page = shared.operators().registrations(Some(user), None, 1).await;
    let (_, views) = page.map_err(busy)?;
    let view = views.first().ok_or_else(|| missing("registration"))?;
    ok(&shared.registration_json(view))
}

async fn delete_registration(
    State(shared): SharedState,
    PathParts(user): PathParts<String>,
    Extension(client): Client,
    Extension(label): Label,
) -> Answer {
    let removed = shared.operators().remove_registration(user).await;
    let removed = removed.map_err(busy)?;
    let status = if removed > 0 {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    shared.log_command(client, &label, "", status);
    match removed {
        0 => Err(missing("registration")),
        removed => ok(&value!({ "removed": removed })),
    }
}

fn trunk_json(trunk: &border::views::TrunkView) -> Value {
    let targets: Vec<Value> = trunk
        .targets
        .iter()
        .map(|(address, up)| value!({ "address": address, "up": up }))
        .collect();
    value!({
        "name": trunk.name,
        "enabled": trunk.enabled,
        "up": trunk.up,
        "calls": trunk.calls,
        "calls_max": trunk.calls_max,
        "targets": targets,
    })
}

async fn trunks(shared: &ApiState) -> Result<Vec<Value>, Problem> {
    let views = shared.operators().trunks().await.map_err(busy)?;
    Ok(views.iter().map(trunk_json).collect())
}

async fn list_trunks(State(shared): SharedState) -> Answer {
    ok(&value!({ "trunks": trunks(&shared).await? }))
}

async fn show_trunk(State(shared): SharedState, PathParts(name): PathParts<String>) -> Answer {
    let trunks = trunks(&shared).await?;
    let trunk = trunks
        .iter()
        .find(|trunk| trunk.get("name").and_then(Value::as_str) == Some(&name));
    ok(trunk.ok_or_else(|| missing("trunk"))?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrunkChange {
    enabled: bool,
}

async fn change_trunk(
    State(shared): SharedState,
    PathParts(name): PathParts<String>,
    Extension(client): Client,
    Extension(label): Label,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let TrunkChange { enabled } = read(&headers, body).await?;
    let trunk = shared.operators().enable_trunk(name, enabled).await;
    let trunk = trunk.map_err(busy)?;
    let status = if trunk.is_some() {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    shared.log_command(client, &label, &format!("enabled={enabled}"), status);
    ok(&trunk_json(&trunk.ok_or_else(|| missing("trunk"))?))
}

/// The tunnels of the IPsec gateway; none without one.
async fn list_tunnels(State(shared): SharedState) -> Answer {
    let gateway = shared.operators().gateway.as_deref();
    let tunnels = gateway.map_or(&[][..], |gateway| &gateway.tunnels);
    let tunnels: Vec<Value> = tunnels
        .iter()
        .map(|tunnel| {
            let state = tunnel.state();
            value!({
                "name": tunnel.name,
                "up": state.up,
                "since": shared.time_json(state.since),
                "peer": state.peer.map(|peer| peer.to_string()),
                "identity": state.identity,
                "algorithms": state.algorithms,
                "sealed": tunnel.sealed.load(Relaxed),
                "opened": tunnel.opened.load(Relaxed),
            })
        })
        .collect();
    ok(&value!({ "tunnels": tunnels }))
}

async fn list_nodes(State(shared): SharedState) -> Answer {
    let statistics = shared.operators().statistics().await.map_err(busy)?;
    let nodes: Vec<Value> = statistics
        .nodes
        .iter()
        .map(|node| {
            value!({
                "name": node.name,
                "control": node.control,
                "up": node.up,
                "drain": node.drain,
                "calls": node.calls,
                "sessions": node.sessions,
            })
        })
        .collect();
    ok(&value!({ "nodes": nodes }))
}

async fn show_limits(State(shared): SharedState) -> Answer {
    let limits = shared.operators().limits().await.map_err(busy)?;
    ok(&value!({
        "calls": limits.calls,
        "registrations": limits.registrations,
        "transactions": limits.transactions,
        "connections": limits.connections,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitChange {
    calls: usize,
}

async fn change_limits(
    State(shared): SharedState,
    Extension(client): Client,
    Extension(label): Label,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let LimitChange { calls } = read(&headers, body).await?;
    let changed = shared.operators().set_call_limit(calls).await;
    changed.map_err(busy)?;
    shared.log_command(client, &label, &format!("calls={calls}"), StatusCode::OK);
    show_limits(State(shared)).await
}

async fn list_bans(State(shared): SharedState) -> Answer {
    let bans = shared.operators().bans().await.map_err(busy)?;
    let bans: Vec<Value> = bans.iter().map(|(source, left)| {
        value!({ "source": source.to_string(), "reason": "authentication failures", "remaining_s": left.as_secs() })
    }).collect();
    ok(&value!({ "bans": bans }))
}

async fn remove_ban(
    State(shared): SharedState,
    PathParts(source): PathParts<String>,
    Extension(client): Client,
    Extension(label): Label,
) -> Answer {
    let removed = shared.operators().remove_ban(&source).await;
    let removed = removed.map_err(problem)?;
    let status = if removed {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    shared.log_command(client, &label, "", status);
    match removed {
        true => ok(&value!({ "removed": 1 })),
        false => Err(missing("ban")),
    }
}

async fn show_log(State(shared): SharedState) -> Answer {
    ok(&value!({ "level": shared.operators().log.level() }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LogChange {
    level: String,
}

async fn change_log(
    State(shared): SharedState,
    Extension(client): Client,
    Extension(label): Label,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let LogChange { level } = read(&headers, body).await?;
    let changed = shared.operators().set_log_level(&level);
    changed.map_err(problem)?;
    shared.log_command(client, &label, &format!("level={level}"), StatusCode::OK);
    show_log(State(shared)).await
}

async fn drops(State(shared): SharedState) -> Answer {
    let statistics = shared.operators().statistics().await.map_err(busy)?;
    let drops: Vec<Value> = DropReason::ALL.iter().filter(|reason| statistics.drops.get(**reason) > 0).map(|reason| {
        value!({ "reason": reason.name(), "count": statistics.drops.get(*reason), "meaning": reason.text() })
    }).collect();
    ok(&value!({ "drops": drops }))
}

async fn list_alarms(State(shared): SharedState) -> Answer {
    let alarms = shared.operators().alarms.list();
    let alarms: Vec<Value> = alarms
        .iter()
        .map(|alarm| shared.alarm_json(alarm))
        .collect();
    ok(&value!({ "alarms": alarms }))
}

async fn acknowledge(
    State(shared): SharedState,
    PathParts(id): PathParts<u64>,
    Extension(client): Client,
    Extension(label): Label,
) -> Answer {
    let by = client.to_string();
    let found = shared.operators().acknowledge_alarm(id, &by);
    let status = if found {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    shared.log_command(client, &label, "", status);
    match found {
        true => ok(&value!({ "acknowledged": id })),
        false => Err(missing("active alarm")),
    }
}

async fn reload(
    State(shared): SharedState,
    Extension(client): Client,
    Extension(label): Label,
) -> Response {
    let outcome = shared.operators().reload().await.map_err(problem);
    let status = outcome
        .as_ref()
        .map_or_else(Problem::status, |()| StatusCode::OK);
    shared.log_command(client, &label, "", status);
    match outcome {
        Ok(()) => json(StatusCode::OK, &value!({ "reloaded": true })),
        Err(problem) => problem.into_response(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainQuery {
    timeout_s: Option<u32>,
}

async fn drain(
    State(shared): SharedState,
    query: Result<Query<DrainQuery>, axum::extract::rejection::QueryRejection>,
    Extension(client): Client,
    Extension(label): Label,
) -> Answer {
    let query = query.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    let timeout_s = query.0.timeout_s;
    let limit = timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
    shared.operators().drain(limit);
    // Without it the configured time applies.
    let value = timeout_s.map_or_else(String::new, |seconds| format!("timeout_s={seconds}"));
    shared.log_command(client, &label, &value, StatusCode::OK);
    ok(&value!({ "draining": true }))
}
