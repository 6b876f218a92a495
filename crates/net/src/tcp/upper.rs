//! What lies above TCP: TLS and WebSocket on connections, and how they end.

use super::{Listener, Pending, State, Streams};
use crate::config::DriverConfig;
use crate::layer::{Broken, Layer};
use crate::plane::Plane;
use crate::socket;
use crate::tls::Session;
use engine::{CloseWhy, ConnectionId, DropReason, Note, Secure, Time, Transport};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Refusals told by events in a second; the others are counted.
const TOLD_PER_SECOND: u32 = 20;

/// TLS, WebSocket or both on a connection, and whose it is, for events.
pub(super) struct Upper {
    pub(super) layer: Layer,
    pub(super) remote: SocketAddr,
    /// Our listening address; `None` where we opened the connection.
    pub(super) listening: Option<SocketAddr>,
    /// Whom the certificate must name, where we opened it.
    pub(super) name: Box<str>,
}

/// How a layer wants its connection to end.
pub(super) enum End {
    Closed,
    Broken(Broken),
}

impl Streams {
    /// The layers of a connection towards a peer; `None` for plain TCP.
    pub(super) fn client(
        &mut self,
        remote: SocketAddr,
        secure: Option<Secure<'_>>,
        websocket: bool,
        config: &DriverConfig,
    ) -> Result<Option<Box<Upper>>, String> {
        let tls = match secure {
            Some(secure) => {
                let settings = self.security.client_of(secure.profile);
                let settings = settings.ok_or("there are no settings for TLS")?;
                Some(Session::connect(settings, secure.name)?)
            }
            None if websocket => None,
            None => return Ok(None),
        };
        let name = secure.map_or("", |secure| secure.name);
        let layer = match websocket {
            false => Layer::new(tls, None),
            true => {
                // Names go as they are, and addresses as URIs have them.
                let host = match name.parse::<IpAddr>() {
                    Err(_) if !name.is_empty() => format!("{name}:{}", remote.port()),
                    _ => remote.to_string(),
                };
                let path = self.security.websocket_path();
                let limit = config.websocket_message;
                Layer::asking(tls, (path, &host), limit, &mut self.shared)
            }
        };
        Ok(Some(Box::new(Upper {
            layer,
            remote,
            listening: None,
            name: name.into(),
        })))
    }

    /// The layers of a connection that came in; `None` for plain TCP.
    pub(super) fn server(
        &self,
        listener: &Listener,
        remote: SocketAddr,
        config: &DriverConfig,
    ) -> Result<Option<Box<Upper>>, String> {
        let websocket = matches!(listener.transport, Transport::Ws | Transport::Wss);
        let tls = match listener.transport {
            Transport::Tls | Transport::Wss => {
                let settings = self.security.server_of(listener.asked, websocket);
                Some(Session::accept(settings.ok_or("there is no certificate")?)?)
            }
            Transport::Ws => None,
            Transport::Tcp | Transport::Udp => return Ok(None),
        };
        let websocket = websocket.then(|| {
            let settings = self.security.websocket_of(listener.asked);
            (settings, config.websocket_message)
        });
        Ok(Some(Box::new(Upper {
            layer: Layer::new(tls, websocket),
            remote,
            listening: Some(listener.local),
            name: "".into(),
        })))
    }

    /// Counts a refusal of TLS and tells of it, unless too many were told in this second.
    pub(super) fn refused(
        &mut self,
        plane: &Plane,
        remote: SocketAddr,
        listening: Option<SocketAddr>,
        name: &str,
        why: String,
        now: Time,
    ) {
        plane.shared.drop_one(DropReason::TlsRefused);
        if self.may_tell(now) {
            self.notes.push(Note::TlsRefused {
                peer: remote.to_string(),
                side: match listening {
                    Some(_) => "accepted",
                    None => "opened",
                }
                .to_owned(),
                place: listening.map_or_else(|| name.to_owned(), |local| local.to_string()),
                why,
            });
        }
    }

    fn may_tell(&mut self, now: Time) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.told.0 != second {
            self.told = (second, 0);
        }
        self.told.1 += 1;
        self.told.1 <= TOLD_PER_SECOND
    }

    /// Tells that a connection ended before its layers stood.
    pub(super) fn unfinished(&mut self, plane: &Plane, index: u32, why: &str, now: Time) {
        let Some(upper) = self
            .connections
            .get_mut(index as usize)
            .and_then(|connection| connection.upper.as_deref_mut())
        else {
            return;
        };
        // Who connects and says nothing, as those do who look whether a port is open, has not been refused anything.
        let silent = upper.listening.is_some() && !upper.layer.has_heard();
        if upper.layer.is_ready() || silent {
            return;
        }
        let (remote, listening) = (upper.remote, upper.listening);
        let securing = upper.layer.is_securing();
        let name = std::mem::take(&mut upper.name);
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
        plane.shared.drop_one(DropReason::WebSocketRefused);
        self.tell_websocket(remote, place, why, now);
    }

    fn tell_websocket(
        &mut self,
        remote: SocketAddr,
        (listening, name): (Option<SocketAddr>, &str),
        why: String,
        now: Time,
    ) {
        if self.may_tell(now) {
            self.notes.push(Note::WebsocketRefused {
                peer: remote.to_string(),
                place: listening.map_or_else(|| name.to_owned(), |local| local.to_string()),
                why,
            });
        }
    }

    /// Gives received bytes to the layers of a connection. What comes out is in the inbox; an end is noted for
    /// [`Streams::settle`].
    pub(super) fn layers(&mut self, plane: &Plane, index: u32, bytes: &mut [u8]) {
        self.inbox.clear();
        self.ending = None;
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        let Some(upper) = connection.upper.as_deref_mut() else {
            return;
        };
        if connection.out.capacity() == 0 {
            connection.out = self.spare.pop().unwrap_or_default();
        }
        let heard = upper.layer.receive(
            bytes,
            &mut self.inbox,
            &mut connection.out,
            &mut self.shared,
        );
        match heard {
            Ok(heard) => {
                if heard.secured {
                    self.secured(plane, index);
                }
                if heard.ready {
                    self.is_ready(plane, index);
                }
                if heard.closed {
                    self.ending = Some(End::Closed);
                }
            }
            Err(broken) => self.ending = Some(End::Broken(broken)),
        }
        self.mark(index);
    }

    fn secured(&mut self, plane: &Plane, index: u32) {
        let connection = &self.connections[index as usize];
        let Some(session) = connection
            .upper
            .as_ref()
            .and_then(|upper| upper.layer.session())
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

    /// Every handshake is over.
    fn is_ready(&mut self, plane: &Plane, index: u32) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        if let Some(key) = connection.timer.take() {
            self.timers.cancel(key);
        }
        let opened = connection
            .upper
            .as_ref()
            .is_some_and(|upper| upper.listening.is_none());
        if !opened {
            return;
        }
        match socket::local_address(connection.fd.as_fd()) {
            Ok(local) => self.pending.push_back(Pending::Connected {
                connection: connection.id,
                local,
            }),
            Err(_) => self.lose(plane, index, CloseWhy::Refused),
        }
    }

    /// Whether the engine still has this connection.
    pub(crate) fn knows(&self, connection: ConnectionId) -> bool {
        self.by_id.contains_key(&connection)
    }

    /// Ends a connection whose layers have come to their end, after what they gave was told.
    pub(crate) fn settle(
        &mut self,
        plane: &Plane,
        index: u32,
        generation: u32,
        config: &DriverConfig,
        now: Time,
    ) {
        let Some(end) = self.ending.take() else {
            return;
        };
        if !self.is_current(index, generation) {
            return;
        }
        let Some(upper) = self.connections[index as usize].upper.as_deref_mut() else {
            return;
        };
        let (remote, listening) = (upper.remote, upper.listening);
        let why = match end {
            End::Closed => {
                self.unfinished(plane, index, "the peer closed the connection", now);
                self.peer_ended(plane, index, config, now);
                return;
            }
            End::Broken(Broken::Tls(failure)) if failure.stood => {
                plane.shared.drop_one(DropReason::TlsBroken);
                CloseWhy::Error
            }
            End::Broken(Broken::Tls(failure)) => {
                let name = std::mem::take(&mut upper.name);
                self.refused(plane, remote, listening, &name, failure.why, now);
                CloseWhy::Untrusted
            }
            End::Broken(Broken::Handshake(why)) => {
                let name = std::mem::take(&mut upper.name);
                self.websocket_refused(plane, remote, (listening, &name), why, now);
                CloseWhy::Refused
            }
            End::Broken(Broken::Frame(why)) => {
                let name = std::mem::take(&mut upper.name);
                plane.shared.drop_one(DropReason::WebSocketBroken);
                self.tell_websocket(remote, (listening, &name), why, now);
                CloseWhy::Error
            }
        };
        self.end(plane, index, why, config, now);
    }

    /// Takes a connection from the engine; what waits is still sent, an alert above all.
    pub(super) fn end(
        &mut self,
        plane: &Plane,
        index: u32,
        why: CloseWhy,
        config: &DriverConfig,
        now: Time,
    ) {
        let Some(connection) = self.connections.get_mut(index as usize) else {
            return;
        };
        let connection_id = connection.id;
        connection.state = State::Draining { peer_ended: false };
        if self.by_id.remove(&connection_id).is_some() {
            self.pending.push_back(Pending::Closed {
                connection: connection_id,
                why,
            });
        }
        self.set_timer(index, now + config.linger);
        self.write(plane, index);
    }

    /// A connection was not opened, did not finish its handshakes, or did not see its end in time.
    pub(super) fn too_late(&mut self, plane: &Plane, index: u32, config: &DriverConfig, now: Time) {
        let connection = &self.connections[index as usize];
        let late = connection.state == State::Open
            && connection
                .upper
                .as_ref()
                .is_some_and(|upper| !upper.layer.is_ready());
        if late {
            plane.shared.drop_one(DropReason::StreamTooSlow);
            let why = format!(
                "the handshake took longer than {} seconds",
                config.handshake_timeout.as_secs_f32()
            );
            self.unfinished(plane, index, &why, now);
        }
        self.lose(plane, index, CloseWhy::Refused);
    }
}
