//! The web console and its HTTP API (docs/console.md), in threads of their own: one serves all connections, two read
//! the store. Operator commands are those of `hornwork ctl`; live figures come from the same queues as metrics, so that
//! no client delays a packet.

mod access;
mod api;
mod audit;
mod calls;
mod guard;
mod hashing;
mod history;
mod jitter;
mod live;
mod masking;
mod oidc;
mod oidc_login;
mod openapi;
mod overview;
mod pages;
mod problem;
mod routes;
mod server;
mod sessions;
mod stream;
mod types;

pub(crate) use hashing::{ConsoleCommand, run};

use crate::call_tap::CallTapEnd;
use crate::history::location::location;
use crate::operators::Operators;
use crate::security::LoadedFiles;
use access::ConsolePolicy;
use api::ConsoleState;
use config::{Config, ConsoleSpec};
use engine::{Event, EventKind};
use std::io;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// Accepts connections with TLS; `None`: the console is served without it.
pub(in crate::web) type Acceptor = Option<TlsAcceptor>;

/// One line about the console; empty without one.
pub(crate) fn summary(config: &Config) -> String {
    config.console.as_ref().map_or_else(String::new, |console| {
        let scheme = match console.certificate {
            Some(_) => "https",
            None => "http",
        };
        let access = match (console.users.len(), &console.oidc) {
            (0, None) => "no login, for this machine".to_owned(),
            (count, None) => format!("users: {count}"),
            (count, Some(oidc)) => format!("users: {count}, and those of {}", oidc.issuer),
        };
        format!("console: {scheme}://{}/, {access}\n", console.listen)
    })
}

/// The console of a running border.
pub(crate) struct WebConsole {
    policy: watch::Sender<Arc<ConsolePolicy>>,
    acceptor: watch::Sender<Acceptor>,
}

fn acceptor(loaded: &LoadedFiles) -> Acceptor {
    loaded.console.clone().map(TlsAcceptor::from)
}

impl WebConsole {
    /// Listens, and starts the threads, if a console is configured.
    ///
    /// # Errors
    /// If the address cannot be bound, a file not opened, or a thread not started.
    pub(crate) fn start(
        config: &Config,
        loaded: &LoadedFiles,
        operators: &Operators,
        taps: Option<CallTapEnd>,
    ) -> io::Result<Option<WebConsole>> {
        let (Some(spec), Some(taps)) = (&config.console, taps) else {
            return Ok(None);
        };
        let listener = server::bind(spec.listen)?;
        let (policy, current) = watch::channel(Arc::new(ConsolePolicy::new(spec, &loaded.oidc)));
        let (acceptor, accepts) = watch::channel(acceptor(loaded));
        let store = config.store.as_ref();
        let store = store
            .map(|store| history::StoreReaders::start(&location(&store.place)))
            .transpose()?;
        let (audit, unread) = audit::AuditLog::open(spec.audit.as_deref())?;
        if let Some(error) = unread {
            tracing::error!(
                "the audit log cannot be read back: {error}; the console shows only entries from now on; check `audit` in [console]"
            );
        }
        let state = ConsoleState::new(operators, current, (store, audit), spec, taps.active())?;
        server::start(listener, spec, accepts, Arc::new(state), taps)?;
        let scheme = match loaded.console {
            Some(_) => "https",
            None => "http",
        };
        let note = EventKind::SocketOpened {
            purpose: "console".to_owned(),
            address: format!("{scheme}://{}", spec.listen),
        };
        let now = operators.clock.now();
        operators.log.event(&Event::new(now, note));
        Ok(Some(WebConsole { policy, acceptor }))
    }

    /// Applies users, names, limits of logins and the certificate of a new configuration.
    pub(crate) fn reload(&self, spec: &ConsoleSpec, loaded: &LoadedFiles) {
        // Whether there is TLS at all changes at the next start, for cookies as well. The borrowed value must be gone
        // before it is replaced.
        let has_tls = self.acceptor.borrow().is_some();
        let policy = ConsolePolicy {
            is_secure: has_tls,
            ..ConsolePolicy::new(spec, &loaded.oidc)
        };
        self.policy.send_replace(Arc::new(policy));
        if let (true, acceptor @ Some(_)) = (has_tls, acceptor(loaded)) {
            self.acceptor.send_replace(acceptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderMap;

    #[test]
    fn cookies_follow_the_listener_and_not_a_reload() {
        let spec = |more: &str| {
            let text = format!(
                "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1\"\n[console]\nlisten = \"127.0.0.1:8080\"\n{more}"
            );
            config::parse(&text, "f").unwrap().console.unwrap()
        };
        let plain = spec("");
        let with_tls = spec("certificate = { chain = \"c.pem\", key = \"c.key\" }\n");
        let files = LoadedFiles::default();
        let policy = |spec: &ConsoleSpec| Arc::new(ConsolePolicy::new(spec, &files.oidc));
        let (sender, current) = watch::channel(policy(&plain));
        let console = WebConsole {
            policy: sender,
            acceptor: watch::channel(None).0,
        };
        // Browsers drop cookies with `Secure` that come without TLS.
        console.reload(&with_tls, &files);
        let cookie = current.borrow().set_cookie("x", &HeaderMap::new());
        assert!(
            !cookie.contains("Secure") && !cookie.contains("__Host-"),
            "{cookie}"
        );
    }
}
