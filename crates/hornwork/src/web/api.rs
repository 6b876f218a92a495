//! The state common to all requests, and the requests about sessions, health, reports and the audit log.

use super::access::{Access, Caller, ConsolePolicy, Credentials, MAX_CREDENTIAL};
use super::audit::{AuditEntry, AuditLog, NO_ROLE};
use super::guard::{Identified, source_of};
use super::hashing;
use super::history::StoreReaders;
use super::masking::NumberSearches;
use super::overview::OverviewHistory;
use super::problem::{Answer, Problem, ok};
use super::stream::StreamHub;
use super::types::{
    AuditBody, HealthBody, LoginBody, PageQuery, ReportBody, ReportsBody, SessionBody,
};
use crate::http::{ClientAddress, read_json};
use crate::log::timestamp;
use crate::operators::Operators;
use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Path, Query, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use config::ConsoleSpec;
use console::{LossCounts, Losses, rfc3339};
use engine::{Event, EventKind, Time, network_of};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Time for which a check of the store is believed.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Passwords that are checked at a time: each takes 19 MiB and tens of milliseconds of CPU time.
const MAX_HASHING: usize = 2;
/// Characters of the name of a refused login in the audit log: users have at most as many.
const MAX_AUDITED_NAME: usize = 64;
/// Longest wait for a password check.
const HASHING_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads of reports at a time, each of which may hold a file of [`MAX_REPORT`]: a slow folder must not take the threads
/// on which passwords are checked, nor many lists the memory of calls.
const MAX_REPORT_READS: usize = 2;
/// Longest wait for other reads of reports.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Reports in the list: the newest ones.
const MAX_REPORTS: usize = 1_000;
/// Folders that are looked at for reports.
const MAX_FOLDERS: usize = 100_000;
/// Largest report and record of a run, octets.
const MAX_REPORT: u64 = 64 << 20;
/// Entries of a page.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;
/// Reports may style themselves, run no scripts and load nothing.
const REPORT_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox";

/// State common to all requests.
pub(super) struct ConsoleState {
    operators: Operators,
    policy: watch::Receiver<Arc<ConsolePolicy>>,
    access: Mutex<Access>,
    hashing: Arc<Semaphore>,
    store: Option<StoreReaders>,
    overview: Mutex<OverviewHistory>,
    pub(super) hub: StreamHub,
    audit: AuditLog,
    reports: Option<PathBuf>,
    report_reads: Arc<Semaphore>,
    number_searches: Mutex<NumberSearches>,
    /// The last check of the store, and its time.
    store_check: tokio::sync::Mutex<Option<(Time, (bool, String))>>,
}

/// The state of a handler.
pub(super) type Shared = State<Arc<ConsoleState>>;

impl ConsoleState {
    pub(super) fn new(
        operators: &Operators,
        policy: watch::Receiver<Arc<ConsolePolicy>>,
        (store, audit): (Option<StoreReaders>, AuditLog),
        spec: &ConsoleSpec,
        listeners: Arc<AtomicUsize>,
    ) -> io::Result<ConsoleState> {
        let access = Access::new(spec.failures, net::entropy()?);
        Ok(ConsoleState {
            operators: operators.clone(),
            policy,
            access: Mutex::new(access),
            hashing: Arc::new(Semaphore::new(MAX_HASHING)),
            store,
            overview: Mutex::default(),
            hub: StreamHub::new(listeners),
            audit,
            reports: spec.reports.clone(),
            report_reads: Arc::new(Semaphore::new(MAX_REPORT_READS)),
            number_searches: Mutex::default(),
            store_check: tokio::sync::Mutex::default(),
        })
    }

    /// Counts the search of a number by a caller with masked numbers.
    ///
    /// # Errors
    /// There were too many.
    pub(super) fn admit_number_search(&self, caller: &Caller) -> Result<(), Problem> {
        let now = self.operators.clock.now();
        let searches = self.number_searches.lock();
        let mut searches = searches.unwrap_or_else(PoisonError::into_inner);
        searches.admit(&caller.user, now)
    }

    /// Access to the packet threads.
    pub(super) fn operators(&self) -> &Operators {
        &self.operators
    }

    /// Ends streams when the access rules change: users may have gone, or have another role.
    pub(super) async fn end_streams_at_changes(&self) {
        let mut policy = self.policy.clone();
        while policy.changed().await.is_ok() {
            self.hub.end_all();
        }
    }

    /// Ends the sessions whose time is over, and their streams: nothing else tells a page that listens only.
    pub(super) fn end_expired_sessions(&self) {
        let (times, now) = (self.policy().session_times, self.operators.clock.now());
        let ended = self.access().sessions.expire(times, now);
        for session in &ended {
            self.hub.end(session);
        }
    }

    /// The access rules in force.
    pub(super) fn policy(&self) -> Arc<ConsolePolicy> {
        self.policy.borrow().clone()
    }

    pub(super) fn access(&self) -> MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn overview(&self) -> MutexGuard<'_, OverviewHistory> {
        self.overview.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn store(&self) -> Result<&StoreReaders, Problem> {
        self.store.as_ref().ok_or_else(|| {
            Problem::new(
                StatusCode::NOT_FOUND,
                "no_store",
                "the border has no [store], so that there is no history",
            )
        })
    }

    /// Whether the store is readable as a whole, and that for people. Requests without login ask for it, so it is read
    /// at most once in [`STORE_CHECK_INTERVAL`], and one of them at a time.
    async fn store_check(&self) -> (bool, String) {
        let Some(store) = &self.store else {
            return (true, "none".to_owned());
        };
        let mut last = self.store_check.lock().await;
        let now = self.operators.clock.now();
        if let Some((at, known)) = &*last
            && now.since(*at) < STORE_CHECK_INTERVAL
        {
            return known.clone();
        }
        let checked = store_text(store.check().await);
        *last = Some((self.operators.clock.now(), checked.clone()));
        checked
    }

    /// A time of the border as text.
    pub(super) fn time(&self, at: engine::Time) -> String {
        timestamp(self.operators.clock.unix_nanos(at))
    }

    /// Writes the audit log. `action`: method and path, and the values that the command accepted.
    pub(super) fn audit(
        &self,
        client: ClientAddress,
        caller: Option<&Caller>,
        action: (&str, &str),
        status: StatusCode,
    ) {
        let user = caller.map_or("-", |caller| &caller.user);
        let role = caller.map_or(NO_ROLE, |caller| caller.role.name());
        self.audit_user(client, (user, role), action, status);
    }

    /// Writes a login to the audit log.
    pub(super) fn audit_login(&self, client: ClientAddress, user: (&str, &str)) {
        self.audit_user(client, user, ("login", ""), StatusCode::OK);
    }

    /// Writes a refused login, or a request with a refused token, to the audit log, unless there were many of this
    /// source.
    pub(super) fn audit_refused(
        &self,
        client: ClientAddress,
        (name, action): (&str, &str),
        status: StatusCode,
    ) {
        let source = network_of(source_of(client));
        if let Some(value) = self.audit.admit_refused(source, self.operators.clock.now()) {
            self.audit_user(client, (name, NO_ROLE), (action, &value), status);
        }
    }

    fn audit_user(
        &self,
        client: ClientAddress,
        (user, role): (&str, &str),
        (action, value): (&str, &str),
        status: StatusCode,
    ) {
        let clock = &self.operators.clock;
        let failed = self.audit.add(AuditEntry {
            at: timestamp(clock.unix_nanos_now()),
            user: user.to_owned(),
            role: role.to_owned(),
            source: source_of(client).to_string(),
            action: action.to_owned(),
            value: value.to_owned(),
            outcome: status.as_u16().to_string(),
        });
        if let Some(error) = failed {
            tracing::error!(
                "the audit log cannot be written: {error}; check the space and the rights of `audit` in [console]"
            );
        }
        let note = EventKind::ControlCommand {
            source: format!("console {user} {}", source_of(client)),
            request: action.chars().take(200).collect(),
            value: value.to_owned(),
            status: status.as_u16(),
        };
        self.operators.log.event(&Event::new(clock.now(), note));
        self.operators.log.flush();
    }
}

/// Parameters of the path.
pub(super) struct PathPart<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathPart<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathPart<T>, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| PathPart(path))
            .map_err(|_| Problem::missing("resource"))
    }
}

/// Parameters of the query; an unknown, repeated or malformed one is refused.
pub(super) struct Parameters<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Parameters<T>, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query
            .map(|Query(query)| Parameters(query))
            .map_err(|error| Problem::bad(error.body_text()))
    }
}

/// Reads the body of a request.
///
/// # Errors
/// It is too large, too slow, no JSON, or has other fields than expected.
pub(super) async fn body_of<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Problem> {
    read_json(headers, body).await.map_err(|(status, why)| {
        let code = match status {
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "content_type",
            StatusCode::REQUEST_TIMEOUT => "timeout",
            _ => "bad_request",
        };
        Problem::new(status, code, why)
    })
}

/// The number of entries of a page.
///
/// # Errors
/// It is not between 1 and 1,000.
pub(super) fn limit_of(limit: Option<u32>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    match (1..=MAX_LIMIT).contains(&limit) {
        true => Ok(limit as usize),
        false => Err(Problem::bad(format!("limit is between 1 and {MAX_LIMIT}"))),
    }
}

/// A cursor that is a number.
///
/// # Errors
/// It is none.
pub(super) fn cursor_of<T: std::str::FromStr>(cursor: Option<&str>) -> Result<Option<T>, Problem> {
    let parsed = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.ok_or_else(|| Problem::bad("cursor is not that of a page (`next`)"))
    };
    cursor.map(parsed).transpose()
}

fn session_body(state: &ConsoleState, caller: Option<&Caller>) -> SessionBody {
    SessionBody {
        user: caller.map(|caller| caller.user.clone()),
        role: caller.map(|caller| caller.role),
        csrf: caller.and_then(|caller| caller.csrf.clone()),
        redact: caller.is_some_and(|caller| caller.redact),
        version: env!("CARGO_PKG_VERSION"),
        login: state.policy().has_login(),
        oidc: state.policy().oidc.is_some(),
        store: state.store.is_some(),
    }
}

/// `GET /session`: who the caller is; without login all but the name of the program is null.
pub(super) async fn show_session(
    State(state): Shared,
    Extension(Identified(identified)): Extension<Identified>,
) -> Answer {
    match identified {
        Ok(caller) => ok(&session_body(&state, Some(&caller))),
        Err(problem) if problem.status() == StatusCode::UNAUTHORIZED && !problem.is_token() => {
            ok(&session_body(&state, None))
        }
        Err(problem) => Err(problem),
    }
}

/// `POST /session`: login.
pub(super) async fn begin_session(
    State(state): Shared,
    Extension(client): Extension<ClientAddress>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let login: LoginBody = body_of(&headers, body).await?;
    let policy = state.policy();
    if !policy.has_login() {
        return Err(Problem::bad("there are no users: no login is needed"));
    }
    let is_long = |text: &str| text.chars().count() > MAX_CREDENTIAL;
    if is_long(&login.user) || is_long(&login.password) {
        return Err(Problem::bad("user or password is too long"));
    }
    let (source, now) = (source_of(client), state.operators.clock.now());
    let account = Credentials::Password(&login.user);
    let name = login.user.chars().filter(|c| !c.is_control());
    let name: String = name.take(MAX_AUDITED_NAME).collect();
    let refuse = |problem: Problem| {
        state.audit_refused(client, (&name, "login"), problem.status());
        Err(problem)
    };
    if let Some(seconds) = state.access().locked_out(&policy, source, account, now) {
        return refuse(Problem::later("too many failed logins", seconds));
    }
    let Ok(Ok(permit)) = timeout(HASHING_TIMEOUT, state.hashing.clone().acquire_owned()).await
    else {
        return Err(Problem::busy("too many logins at a time"));
    };
    let user = policy.users.iter().find(|user| user.name == login.user);
    let hash = user.and_then(|user| user.password_hash.clone());
    let password = login.password.clone();
    let compared = hash.clone();
    let checked = tokio::task::spawn_blocking(move || {
        let good = hashing::is_password(&password, compared.as_deref());
        drop(permit);
        good
    });
    let good = checked.await.unwrap_or(false);
    state.access().judged(good, source, account, now);
    let (Some(user), Some(hash), true) = (user, hash, good) else {
        return refuse(Problem::new(
            StatusCode::UNAUTHORIZED,
            "password",
            "wrong user or password",
        ));
    };
    let (cookie, csrf) = state.access().sessions.begin(&user.name, &hash, now);
    let caller = Caller {
        user: user.name.clone(),
        role: user.role,
        redact: policy.redact_numbers && user.role == config::ConsoleRole::Viewer,
        csrf: Some(csrf),
        session: None,
    };
    state.audit(client, Some(&caller), ("login", ""), StatusCode::OK);
    let mut response = ok(&session_body(&state, Some(&caller)))?;
    if let Ok(value) = HeaderValue::from_str(&policy.set_cookie(&cookie, &headers)) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
    Ok(response)
}

/// `DELETE /session`: logout.
pub(super) async fn end_session(
    State(state): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Answer {
    if let Some(session) = &caller.session {
        state.access().sessions.end(session);
        state.hub.end(session);
    }
    let mut response = ok(&session_body(&state, None))?;
    if let Ok(value) = HeaderValue::from_str(&state.policy().set_cookie("", &headers)) {
        response.headers_mut().insert(SET_COOKIE, value);
    }
    Ok(response)
}

/// `GET /health`.
pub(super) async fn health(State(state): Shared) -> Response {
    health_of(&state, false).await
}

/// `GET /ready`: as health, and 503 during a drain.
pub(super) async fn ready(State(state): Shared) -> Response {
    health_of(&state, true).await
}

async fn health_of(state: &ConsoleState, readiness: bool) -> Response {
    let asked = state
        .operators
        .ask_all(|context| context.border.is_draining());
    let draining = asked.await;
    let critical = state.operators.alarms.active("critical");
    let losses = state.operators.store.as_deref();
    let is_failing = losses.is_some_and(Losses::is_failing);
    let (is_readable, store) = match &state.store {
        None => (true, "none".to_owned()),
        Some(_) if is_failing => (true, "cannot be written".to_owned()),
        Some(_) => state.store_check().await,
    };
    let mut checks = Map::new();
    let mut check = |name: &str, text: String| checks.insert(name.to_owned(), Value::from(text));
    check(
        "border",
        draining.as_ref().err().unwrap_or(&"ok").to_string(),
    );
    check("store", store);
    if let Some(losses) = losses {
        check("store_losses", losses_text(&losses.counts()));
    }
    check(
        "alarms",
        match critical {
            0 => "ok".to_owned(),
            count => format!("{count} critical"),
        },
    );
    let status = match &draining {
        Err(_) => "failed",
        Ok(all) if all.contains(&true) => "draining",
        Ok(_) if critical > 0 || !is_readable => "degraded",
        Ok(_) => "ok",
    };
    let code = match (status, readiness) {
        ("failed", _) | ("draining", true) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    super::problem::respond(code, &HealthBody { status, checks })
}

/// Whether the store is readable as a whole, and that for people. `read`: the number of parts that cannot be read.
fn store_text(read: Result<usize, Problem>) -> (bool, String) {
    match read {
        Ok(0) => (true, "ok".to_owned()),
        Ok(1) => (false, "a partition cannot be read".to_owned()),
        Ok(parts) => (false, format!("{parts} partitions cannot be read")),
        // Many searches are no fault of the store.
        Err(problem) if problem.is_busy() => (true, "busy".to_owned()),
        Err(_) => (false, "cannot be read".to_owned()),
    }
}

/// Losses of the store for people.
fn losses_text(lost: &LossCounts) -> String {
    let kinds = lost.kinds().into_iter().filter(|(_, count)| *count > 0);
    let kinds: Vec<String> = kinds
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    match kinds.is_empty() {
        true => "ok".to_owned(),
        false => format!("{} lost since the start", kinds.join(", ")),
    }
}

/// `GET /audit`.
pub(super) async fn audit_log(
    State(state): Shared,
    Parameters(query): Parameters<PageQuery>,
) -> Answer {
    let before = cursor_of(query.cursor.as_deref())?;
    let (entries, next) = state.audit.page(before, limit_of(query.limit)?);
    ok(&AuditBody {
        entries,
        next: next.map(|next| next.to_string()),
    })
}

/// Whether a name is that of a folder below another one.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}

/// Reads a file of at most 64 MiB.
fn read_bounded(path: &std::path::Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_REPORT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads reports on another thread, after other such reads. The read goes on if its client leaves, and counts until
/// its end.
///
/// # Errors
/// Other reads take too long.
async fn read_reports<T: Send + 'static>(
    reads: &Arc<Semaphore>,
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let Ok(Ok(permit)) = timeout(REPORT_TIMEOUT, reads.clone().acquire_owned()).await else {
        return Err(Problem::busy("too many reports are being read"));
    };
    let read = tokio::task::spawn_blocking(move || {
        let read = read();
        drop(permit);
        read
    });
    let failed = |_| Problem::busy("reading reports has ended with an internal error, see the log");
    read.await.map_err(failed)
}

/// The values of `run.json` that the list shows; others, which may be many, are skipped.
#[derive(Debug, Default, Deserialize)]
struct RunSummary {
    #[serde(default)]
    title: Value,
    #[serde(default)]
    verdict: Value,
    #[serde(default)]
    started: Value,
}

/// The newest reports in a folder, at most `limit`.
fn reports_in(folder: &std::path::Path, limit: usize) -> io::Result<Vec<ReportBody>> {
    let mut pages = Vec::new();
    for entry in std::fs::read_dir(folder)?.flatten().take(MAX_FOLDERS) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let page = entry.path().join("report.html").metadata().ok();
        if let Some(page) = page.filter(|_| is_plain(&name)) {
            pages.push((page.modified().ok(), name));
        }
    }
    // A folder lists its entries in any order.
    pages.sort_unstable();
    pages.reverse();
    pages.truncate(limit);
    let mut reports = Vec::new();
    for (written, name) in pages {
        let run = read_bounded(&folder.join(&name).join("run.json")).unwrap_or_default();
        let run: RunSummary = serde_json::from_slice(&run).unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let begun = run.started.as_u64().filter(|seconds| *seconds > 0);
        let seconds = begun.or(written.map(|time| time.as_secs())).unwrap_or(0);
        reports.push(ReportBody {
            title: text(&run.title).unwrap_or_else(|| name.clone()),
            started: rfc3339(
                i64::try_from(seconds)
                    .unwrap_or(0)
                    .saturating_mul(1_000_000),
            ),
            verdict: text(&run.verdict),
            name,
        });
    }
    reports.sort_by(|one, other| other.started.cmp(&one.started));
    Ok(reports)
}

/// `GET /reports`.
pub(super) async fn list_reports(State(state): Shared) -> Answer {
    let Some(folder) = state.reports.clone() else {
        return ok(&ReportsBody {
            reports: Vec::new(),
        });
    };
    let read = read_reports(&state.report_reads, move || {
        reports_in(&folder, MAX_REPORTS)
    })
    .await?;
    let reports = read
        .map_err(|error| Problem::busy(format!("the folder of reports cannot be read: {error}")))?;
    ok(&ReportsBody { reports })
}

/// `GET /reports/{name}/`: the page.
pub(super) async fn show_report(State(state): Shared, PathPart(name): PathPart<String>) -> Answer {
    let folder = state.reports.clone().filter(|_| is_plain(&name));
    let folder = folder.ok_or_else(|| Problem::missing("report"))?;
    let path = folder.join(&name).join("report.html");
    let read = read_reports(&state.report_reads, move || read_bounded(&path)).await?;
    let bytes = read.map_err(|_| Problem::missing("report"))?;
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, REPORT_POLICY),
    ];
    Ok((headers, bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn reads_of_reports_are_bounded_and_outlast_their_clients() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let reads = Arc::new(Semaphore::new(MAX_REPORT_READS));
            let barrier = Arc::new(Barrier::new(MAX_REPORT_READS + 1));
            for _ in 0..MAX_REPORT_READS {
                let barrier = barrier.clone();
                let read = read_reports(&reads, move || barrier.wait());
                // Its client leaves.
                assert!(timeout(Duration::from_millis(10), read).await.is_err());
            }
            let further = read_reports(&reads, || ());
            assert!(timeout(Duration::from_millis(50), further).await.is_err());
            barrier.wait();
            assert!(read_reports(&reads, || ()).await.is_ok());
            // A panic frees its place.
            for _ in 0..=MAX_REPORT_READS {
                let failed = read_reports::<()>(&reads, || panic!("of the test")).await;
                assert!(failed.is_err_and(|problem| problem.is_busy()));
            }
            assert!(read_reports(&reads, || ()).await.is_ok());
        });
    }

    #[test]
    fn only_names_of_folders_are_reports() {
        for good in ["a", "run 1", "ä.b"] {
            assert!(is_plain(good), "{good}");
        }
        for bad in ["", ".", "..", ".git", "a/b", "..\\x", "/etc"] {
            assert!(!is_plain(bad), "{bad}");
        }
        assert!(limit_of(Some(0)).is_err() && limit_of(Some(1_001)).is_err());
        assert_eq!(limit_of(None).unwrap(), 100);
        assert!(cursor_of::<i64>(Some("x")).is_err() && cursor_of::<i64>(Some("+7")).is_err());
        assert_eq!(cursor_of::<i64>(Some("7")).unwrap(), Some(7));
    }
    #[test]
    fn the_newest_reports_are_listed() {
        let name = format!("hornwork-reports-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        for (name, hour) in [("b", 2), ("a", 3), ("d", 1), ("c", 4)] {
            let report = folder.join(name);
            std::fs::create_dir_all(&report).unwrap();
            let page = std::fs::File::create(report.join("report.html")).unwrap();
            page.set_modified(UNIX_EPOCH + Duration::from_secs(hour * 3_600))
                .unwrap();
        }
        // No report.
        std::fs::create_dir_all(folder.join("e")).unwrap();
        let names = |limit| -> Vec<String> {
            let reports = reports_in(&folder, limit).unwrap().into_iter();
            reports.map(|report| report.name).collect()
        };
        assert_eq!(names(2), ["c", "a"]);
        assert_eq!(names(10), ["c", "a", "b", "d"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
