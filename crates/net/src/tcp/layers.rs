//! TLS and WebSocket layers of stream connections, and how they end.

use super::{Listener, Pending, StreamState, Streams};
use crate::config::DriverConfig;
use crate::layer::{Layer, LayerError};
use crate::plane::Plane;
use crate::socket;
use crate::tls::TlsSession;
use engine::{ClientTls, CloseReason, ConnectionId, DropReason, EventKind, Time, Transport};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Refusals reported as events per second; further ones are only counted.
const REPORTS_PER_SECOND: u32 = 20;

/// The message by which the engine notices a ping that was answered here: the keep-alive that needs no response
/// (RFC 5626 section 4.4.1).
const KEEP_ALIVE: &[u8] = b"\r\n";

/// TLS, WebSocket or both on a connection, with its addresses for events.
pub(super) struct StreamLayers {
    pub(super) layer: Layer,
    pub(super) remote: SocketAddr,
    /// Our listening address; `None` if we opened the connection.
    pub(super) listening: Option<SocketAddr>,
    /// The name that the peer's certificate must have, if we opened the connection.
    pub(super) name: Box<str>,
}

/// Reason for which the layers end a connection.
pub(super) enum LayerEnd {
    Closed,
    Broken(LayerError),
}

impl Streams {
    /// The layers of a connection to a peer; `None` for plain TCP.
    pub(super) fn client(
        &mut self,
        remote: SocketAddr,
        secure: Option<ClientTls<'_>>,
        websocket: bool,
        config: &DriverConfig,
    ) -> Result<Option<Box<StreamLayers>>, String> {
        let tls = match secure {
            Some(secure) => {
                let settings = self.security.client_of(secure.profile);
                let settings = settings.ok_or("no TLS settings are configured")?;
                Some(TlsSession::connect(settings, secure.server_name)?)
            }
            None if websocket => None,
            None => return Ok(None),
        };
        let name = secure.map_or("", |secure| secure.server_name);
        let layer = match websocket {
            false => Layer::new(tls, None),
            true => {
                // Names are used as they are, addresses in the form of URIs.
                let host = match name.parse::<IpAddr>() {
                    Err(_) if !name.is_empty() => format!("{name}:{}", remote.port()),
                    _ => remote.to_string(),
                };
                let path = self.security.websocket_path();
                let limit = config.websocket_message;
                Layer::asking(tls, (path, &host), limit, &mut self.shared)
            }
        };
        Ok(Some(Box::new(StreamLayers {
            layer,
            remote,
            listening: None,
            name: name.into(),
        })))
    }

    /// The layers of an accepted connection; `None` for plain TCP.
    pub(super) fn server(
        &self,
        listener: &Listener,
        remote: SocketAddr,
        config: &DriverConfig,
    ) -> Result<Option<Box<StreamLayers>>, String> {
        let websocket = matches!(listener.transport, Transport::Ws | Transport::Wss);
        let tls = match listener.transport {
            Transport::Tls | Transport::Wss => {
                let settings = self.security.server_of(listener.requested, websocket);
                Some(TlsSession::accept(
                    settings.ok_or("no certificate is configured")?,
                )?)
            }
            Transport::Ws => None,
            Transport::Tcp | Transport::Udp => return Ok(None),
        };
        let websocket = websocket.then(|| {
            let settings = self.security.websocket_of(listener.requested);
            (settings, config.websocket_message)
        });
        Ok(Some(Box::new(StreamLayers {
            layer: Layer::new(tls, websocket),
            remote,
            listening: Some(listener.local),
            name: "".into(),
        })))
    }

    /// Counts a refusal of TLS and reports it, unless the limit of this second is reached.
    pub(super) fn refused(
        &mut self,
        plane: &Plane,
        remote: SocketAddr,
        listening: Option<SocketAddr>,
        name: &str,
        why: String,
        now: Time,
    ) {
        plane.shared.drop_one(DropReason::TlsHandshakeFailed);
        if self.may_report(now) {
            self.log_events.push(EventKind::TlsHandshakeFailed {
                peer: remote.to_string(),
                side: match listening {
                    Some(_) => "accepted",
                    None => "opened",
                }
                .to_owned(),
                endpoint: listening.map_or_else(|| name.to_owned(), |local| local.to_string()),
                reason: why,
            });
        }
    }

    fn may_report(&mut self, now: Time) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.refusal_reports.0 != second {
            self.refusal_reports = (second, 0);
        }
        self.refusal_reports.1 += 1;
        self.refusal_reports.1 <= REPORTS_PER_SECOND
    }

    /// Reports a connection that ended before its handshakes were complete.
    pub(super) fn unfinished(&mut self, plane: &Plane, index: u32, why: &str, now: Time) {
        let Some(layers) = self
            .connections
            .get_mut(index as usize)
            .and_then(|connection| connection.layers.as_deref_mut())
        else {
            return;
        };
        // A connection without any data, as by a port scanner, is not a refusal.
        let silent = layers.listening.is_some() && !layers.layer.has_received();
        if layers.layer.is_ready() || silent {
            return;
        }
        let (remote, listening) = (layers.remote, layers.listening);
        let securing = layers.layer.is_tls_handshaking();
        let name = std::mem::take(&mut layers.name);
        if securing {
            self.refused(plane, remote, listening, &name, why.to_owned(), now);
        } else {
            self.websocket_refused(plane, remote, (listening, &name), why.to_owned(), now);
        }
    }

    fn websocket_refused(
        &mut self,
        plane: &Plane,
        remote: SocketAddr,
        place: (Option<SocketAddr>, &str),
        why: String,
        now: Time,
    ) {
        plane.shared.drop_one(DropReason::WebSocketHandshakeFailed);
        self.report_websocket(remote, place, why, now);
    }

    fn report_websocket(
        &mut self,
        remote: SocketAddr,
        (listening, name): (Option<SocketAddr>, &str),
        why: String,
        now: Time,
    ) {
        if self.may_report(now) {
            self.log_events.push(EventKind::WebsocketFailed {
                peer: remote.to_string(),
                endpoint: listening.map_or_else(|| name.to_owned(), |local| local.to_string()),
                reason: why,
            });
        }
    }

    /// Passes received bytes to the layers of a connection. Messages are put into the inbox; an end is stored for
    /// [`Streams::finish_layers`].
    pub(super) fn process_layers(&mut self, plane: &Plane, index: u32, bytes: &mut [u8]) {
        self.inbox.clear();
        self.ending = None;
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        let Some(layers) = connection.layers.as_deref_mut() else {
            return;
        };
        if connection.out.capacity() == 0 {
            connection.out = self.spare.pop().unwrap_or_default();
        }
        let progress = layers.layer.receive(
            bytes,
            &mut self.inbox,
            &mut connection.out,
            &mut self.shared,
        );
        match progress {
            Ok(progress) => {
                if progress.established {
                    self.report_tls_established(plane, index);
                }
                // A message keeps the connection open as well.
                if progress.pinged && self.inbox.ends.is_empty() {
                    self.inbox.bytes.extend_from_slice(KEEP_ALIVE);
                    self.inbox.end_message();
                }
                if progress.ready {
                    self.finish_handshakes(plane, index);
                }
                if progress.closed {
                    self.ending = Some(LayerEnd::Closed);
                }
            }
            Err(broken) => self.ending = Some(LayerEnd::Broken(broken)),
        }
        self.mark(index);
    }

    fn report_tls_established(&mut self, plane: &Plane, index: u32) {
        let connection = &self.connections[index as usize];
        let Some(session) = connection
            .layers
            .as_ref()
            .and_then(|layers| layers.layer.session())
        else {
            return;
        };
        plane.shared.tls_established.add(1);
        if session.is_resumed() {
            plane.shared.tls_resumed.add(1);
        }
        self.pending.push_back(Pending::Secured {
            connection: connection.id,
            names: session.peer_names(),
        });
    }

    /// All handshakes are complete.
    fn finish_handshakes(&mut self, plane: &Plane, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        if let Some(key) = connection.timer.take() {
            self.timers.cancel(key);
        }
        let opened = connection
            .layers
            .as_ref()
            .is_some_and(|layers| layers.listening.is_none());
        if !opened {
            return;
        }
        match socket::local_address(connection.fd.as_fd()) {
            Ok(local) => self.pending.push_back(Pending::Connected {
                connection: connection.id,
                local,
            }),
            Err(_) => self.abort(plane, index, CloseReason::ConnectFailed),
        }
    }

    /// Whether the engine still owns this connection.
    pub(crate) fn has_connection(&self, connection: ConnectionId) -> bool {
        self.by_id.contains_key(&connection)
    }

    /// Ends a connection whose layers have ended, after their last messages were passed on, or whose peer does not read
    /// the layers' replies.
    pub(crate) fn finish_layers(
        &mut self,
        plane: &Plane,
        index: u32,
        generation: u32,
        config: &DriverConfig,
        now: Time,
    ) {
        let ending = self.ending.take();
        if !self.is_current(index, generation) || self.close_if_slow(plane, index, 0, config) {
            return;
        }
        let Some(end) = ending else {
            return;
        };
        if !self.is_current(index, generation) {
            return;
        }
        let Some(layers) = self.connections[index as usize].layers.as_deref_mut() else {
            return;
        };
        let (remote, listening) = (layers.remote, layers.listening);
        let why = match end {
            LayerEnd::Closed => {
                self.unfinished(plane, index, "the peer closed the connection", now);
                self.peer_ended(plane, index, config, now);
                return;
            }
            LayerEnd::Broken(LayerError::Tls(failure)) if failure.was_established => {
                plane.shared.drop_one(DropReason::TlsBroken);
                CloseReason::Error
            }
            LayerEnd::Broken(LayerError::Tls(failure)) => {
                let name = std::mem::take(&mut layers.name);
                self.refused(plane, remote, listening, &name, failure.why, now);
                CloseReason::TlsFailed
            }
            LayerEnd::Broken(LayerError::Handshake(why)) => {
                let name = std::mem::take(&mut layers.name);
                self.websocket_refused(plane, remote, (listening, &name), why, now);
                CloseReason::ConnectFailed
            }
            LayerEnd::Broken(LayerError::Frame(why)) => {
                let name = std::mem::take(&mut layers.name);
                plane.shared.drop_one(DropReason::WebSocketBroken);
                self.report_websocket(remote, (listening, &name), why, now);
                CloseReason::Error
            }
        };
        self.end(plane, index, why, config, now);
    }

    /// Ends a connection for the engine; queued data is still sent, an alert above all.
    pub(super) fn end(
        &mut self,
        plane: &Plane,
        index: u32,
        why: CloseReason,
        config: &DriverConfig,
        now: Time,
    ) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        let connection_id = connection.id;
        connection.state = StreamState::Draining { peer_ended: false };
        if self.by_id.remove(&connection_id).is_some() {
            self.pending.push_back(Pending::Closed {
                connection: connection_id,
                why,
            });
        }
        self.set_timer(index, now + config.linger);
        self.write(plane, index);
    }

    /// Handles the timeout of a connection: opening, handshakes or closing took too long.
    pub(super) fn handle_timeout(
        &mut self,
        plane: &Plane,
        index: u32,
        config: &DriverConfig,
        now: Time,
    ) {
        if self.report_delayed(plane, index, now) {
            self.abort(plane, index, CloseReason::TlsFailed);
            return;
        }
        let connection = &self.connections[index as usize];
        let late = connection.state == StreamState::Open
            && connection
                .layers
                .as_ref()
                .is_some_and(|layers| !layers.layer.is_ready());
        if late {
            plane.shared.drop_one(DropReason::StreamTimeout);
            let why = format!(
                "the handshake took longer than {} seconds",
                config.handshake_timeout.as_secs_f32()
            );
            self.unfinished(plane, index, &why, now);
        }
        self.abort(plane, index, CloseReason::ConnectFailed);
    }
}
