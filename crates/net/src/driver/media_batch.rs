//! Batched reception of media from many sockets, for a driver whose forwarder runs on its own thread.

use super::{Driver, ForwarderHost};
use crate::batch::Receiver;
use crate::clock::Clock;
use crate::config::{DriverConfig, MediaSockets};
use crate::plane::{Plane, Token};
use crate::shared_port::MOST_ADDRESSES;
use crate::tunnel::TunnelPath;
use engine::{Control, EventKind, Forward, Time};
use std::io;

impl<F: Forward> Driver<F> {
    /// Whether the socket at `index` is a media socket that the forwarder of this thread reads.
    pub(super) fn takes_media(&self, index: u32) -> bool {
        matches!(self.media, ForwarderHost::SameThread(_))
            && self.plane.socket(index).is_some_and(|(_, media)| media)
    }

    /// Attaches the tunnels of a gateway, which this thread drives from now on; to be called before the first turn.
    ///
    /// # Errors
    /// There is no forwarder on this thread, a path is attached already, or the system refuses to watch it.
    pub fn attach_tunnel(&mut self, path: Box<dyn TunnelPath>) -> io::Result<()> {
        if !matches!(self.media, ForwarderHost::SameThread(_)) {
            return Err(no_forwarder("the path of media through tunnels"));
        }
        self.plane.start_tunnel(path, self.config.media_dscp)
    }

    /// Runs the forwarder's due timeouts before received packets are processed, so that its packets leave on time.
    pub(super) fn media_due<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let ForwarderHost::SameThread(forwarder) = &mut self.media else {
            return self.send_due_media(control, now).map(|_| ());
        };
        self.plane.tick_tunnel(now);
        let due = forwarder.next_deadline();
        if due.is_some_and(|deadline| deadline.at <= now) {
            self.plane.shared.timeouts.add(1);
            forwarder.timeout(now);
            self.plane.drain_forwarder(forwarder);
            self.plane.flush();
            self.drain(control, now)?;
        }
        Ok(())
    }

    /// Receives media from all ready sockets of the last wait, forwards it as one batch and sends it. It runs right
    /// after the wait, so that no socket is closed in between.
    pub(super) fn receive_media<C>(
        &mut self,
        control: &mut C,
        ready: usize,
        mut now: Time,
    ) -> io::Result<Time>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let Some(mut receiver) = self.media_buffers.take() else {
            return Ok(now);
        };
        let (woke, mut packets) = (now, 0);
        let mut done = Ok(());
        self.plane.begin_media_turn();
        for i in 0..ready {
            let (token, flags) = match self.plane.event(i) {
                Some((Token::Udp(index), _)) if !self.takes_media(index) => continue,
                Some((
                    token @ (Token::SharedPort(_)
                    | Token::AfXdp(_)
                    | Token::Tunnel(_)
                    | Token::Udp(_)),
                    flags,
                )) => (token, flags),
                _ => continue,
            };
            let mut budget = self.config.datagram_budget;
            let mut more = true;
            while more && budget > 0 && done.is_ok() {
                let before = receiver.filled();
                let mut passed = 0;
                more = match token {
                    Token::Udp(index) => self.plane.receive_batch(index, &mut receiver),
                    Token::SharedPort(number) => {
                        self.plane.receive_shared_port(number, &mut receiver)
                    }
                    Token::AfXdp(number) => self.plane.receive_af_xdp(number, &mut receiver),
                    Token::Tunnel(number) => {
                        let plane = &mut self.plane;
                        let (count, more) = plane.receive_tunnel(number, flags, &mut receiver, now);
                        passed = count;
                        more
                    }
                    _ => false,
                };
                let n = receiver.filled() - before;
                packets += n;
                // Packets of a tunnel that are no media take time, too.
                budget = budget.saturating_sub(n.max(passed));
                if receiver.room() == 0 {
                    done = self.forward_batch(control, &mut receiver, now);
                    now = self.clock.now();
                }
            }
        }
        if done.is_ok() && receiver.filled() > 0 {
            done = self.forward_batch(control, &mut receiver, now);
        }
        self.media_buffers = Some(receiver);
        self.media_batcher.end_turn(woke, packets);
        self.stream_events.media_forwarded(now);
        done.map(|()| now)
    }

    /// Forwards a batch and passes the packets for control to it.
    fn forward_batch<C>(
        &mut self,
        control: &mut C,
        receiver: &mut Receiver,
        now: Time,
    ) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let ForwarderHost::SameThread(forwarder) = &mut self.media else {
            return Ok(());
        };
        self.plane.forward_batch(receiver, forwarder, now);
        let punted = std::mem::take(&mut self.plane.punted);
        for &i in &punted {
            if let Some(id) = self.plane.origin(i) {
                self.datagram(control, receiver, i, id, true, now)?;
            }
        }
        self.plane.punted = punted;
        self.plane.clear_batch(receiver);
        self.drain(control, now)
    }
}

/// Sets up the media path of a forwarder on this thread; returns the event that reports it.
pub(super) fn start<F: Forward>(
    plane: &mut Plane,
    config: &DriverConfig,
    clock: Clock,
    forwarder: &mut F,
) -> io::Result<Option<EventKind>> {
    let path = media_path(plane, config)?;
    if let Some(table) = &config.af_xdp {
        if config.relay.is_some() {
            let why = "AF_XDP and the kernel relay cannot share an interface; disable one of them";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        plane.start_af_xdp(table.clone(), config)?;
    }
    if let Some(relay) = &config.relay {
        plane.start_offload(relay.clone(), clock);
        forwarder.allow_offload(true);
    }
    Ok(path)
}

/// Sets up the media path of an engine without a forwarder; returns the event that reports it.
pub(super) fn start_plain(
    plane: &mut Plane,
    config: &DriverConfig,
) -> io::Result<Option<EventKind>> {
    check_forwarder(config)?;
    media_path(plane, config)
}

/// Refuses settings that need a forwarder on this thread.
pub(super) fn check_other_thread(config: &DriverConfig) -> io::Result<()> {
    if config.media_sockets == MediaSockets::One {
        return Err(no_forwarder("the shared-port socket"));
    }
    check_forwarder(config)
}

/// Refuses the paths that bypass the engine.
fn check_forwarder(config: &DriverConfig) -> io::Result<()> {
    if config.relay.is_some() {
        return Err(no_forwarder("the kernel relay"));
    }
    if config.af_xdp.is_some() {
        return Err(no_forwarder("AF_XDP"));
    }
    Ok(())
}

fn no_forwarder(what: &str) -> io::Error {
    let why = format!("{what} needs a forwarder on the driver's own thread");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Chooses how media ports are served; returns the event that reports it.
fn media_path(plane: &mut Plane, config: &DriverConfig) -> io::Result<Option<EventKind>> {
    let tried = match config.media_sockets {
        MediaSockets::PerPort => return Ok(None),
        MediaSockets::One if u32::from(config.media_addresses) > MOST_ADDRESSES => {
            let why = format!("a shared socket serves at most {MOST_ADDRESSES} media addresses");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        MediaSockets::One => plane.start_shared_ports(config).map(Ok)?,
        MediaSockets::Auto => plane.start_shared_ports(config),
    };
    let (path, why) = match tried {
        Ok(()) => ("shared_port_socket", String::new()),
        Err(error) => ("socket_per_port", error.to_string()),
    };
    Ok(Some(EventKind::MediaPath {
        path: path.into(),
        reason: why,
    }))
}
