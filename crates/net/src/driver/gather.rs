//! Media of many streams, taken and dealt with together by a driver whose forwarder is on its own thread.

use super::{Driver, Media};
use crate::batch::Receiver;
use crate::clock::Clock;
use crate::config::{DriverConfig, MediaSockets};
use crate::plane::{Plane, Token};
use engine::{Control, Forward, Note, Time};
use std::io;

impl<F: Forward> Driver<F> {
    /// Whether the socket at `index` is one of media that the forwarder here reads.
    pub(super) fn takes_media(&self, index: u32) -> bool {
        matches!(self.media, Media::Here(_))
            && self.plane.socket(index).is_some_and(|(_, media)| media)
    }

    /// Lets the forwarder here do what is due before anything that came is looked at: what it sends must not be late.
    pub(super) fn media_due<C>(&mut self, control: &mut C, now: Time) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let Media::Here(forwarder) = &mut self.media else {
            return Ok(());
        };
        let due = forwarder.next_deadline();
        if due.is_some_and(|deadline| deadline.at <= now) {
            self.plane.shared.timeouts.add(1);
            forwarder.timeout(now);
            self.plane.packets_of(forwarder);
            self.plane.flush();
            self.drain(control, now)?;
        }
        Ok(())
    }

    /// Takes media from all sockets that have some, deals with it together and sends it together: before all else, so that
    /// no socket is closed in between.
    pub(super) fn gathered<C>(
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
        self.plane.begin_gathering();
        for i in 0..ready {
            let token = match self.plane.event(i) {
                Some((token @ (Token::Range(_) | Token::Express(_)), _)) => token,
                Some((token @ Token::Udp(index), _)) if self.takes_media(index) => token,
                _ => continue,
            };
            let mut budget = self.config.datagram_budget;
            let mut more = true;
            while more && budget > 0 && done.is_ok() {
                let before = receiver.filled();
                more = match token {
                    Token::Udp(index) => self.plane.gather(index, &mut receiver),
                    Token::Range(number) => self.plane.gather_range(number, &mut receiver),
                    Token::Express(number) => self.plane.gather_express(number, &mut receiver),
                    _ => false,
                };
                let n = receiver.filled() - before;
                packets += n;
                budget = budget.saturating_sub(n);
                if receiver.room() == 0 {
                    done = self.forwarded(control, &mut receiver, now);
                    now = self.clock.now();
                }
            }
        }
        if done.is_ok() && receiver.filled() > 0 {
            done = self.forwarded(control, &mut receiver, now);
        }
        self.media_buffers = Some(receiver);
        self.gather.turn(woke, packets);
        done.map(|()| now)
    }

    /// Forwards what was gathered, and gives control its share.
    fn forwarded<C>(
        &mut self,
        control: &mut C,
        receiver: &mut Receiver,
        now: Time,
    ) -> io::Result<()>
    where
        C: Control<Command = F::Command, Report = F::Report>,
    {
        let Media::Here(forwarder) = &mut self.media else {
            return Ok(());
        };
        self.plane.forward_gathered(receiver, forwarder, now);
        let punted = std::mem::take(&mut self.plane.punted);
        for &i in &punted {
            if let Some(id) = self.plane.origin(i) {
                self.datagram(control, receiver, i, id, true, now)?;
            }
        }
        self.plane.punted = punted;
        self.plane.end_gathering(receiver);
        self.drain(control, now)
    }
}

/// Sets up what serves the media of a forwarder on this thread, and what is to be told of it.
pub(super) fn begin<F: Forward>(
    plane: &mut Plane,
    config: &DriverConfig,
    clock: Clock,
    forwarder: &mut F,
) -> io::Result<Option<Note>> {
    let path = media_path(plane, config)?;
    if let Some(table) = &config.af_xdp {
        if config.relay.is_some() {
            let why = "AF_XDP and the relay in the kernel have one place at an interface";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        plane.express_by(table.clone(), config)?;
    }
    if let Some(relay) = &config.relay {
        plane.relay_by(relay.clone(), clock);
        forwarder.allow_shortcuts(true);
    }
    Ok(path)
}

/// Refuses what only a forwarder on this thread can have.
pub(super) fn elsewhere(config: &DriverConfig) -> io::Result<()> {
    let refused = |what: &str| {
        let why = format!("{what} needs a forwarder on the driver's own thread");
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    };
    if config.media_sockets == MediaSockets::One {
        return refused("one socket for all media");
    }
    if config.relay.is_some() {
        return refused("the relay in the kernel");
    }
    if config.af_xdp.is_some() {
        return refused("AF_XDP");
    }
    Ok(())
}

/// Chooses how media ports are served, and what is to be told of it.
fn media_path(plane: &mut Plane, config: &DriverConfig) -> io::Result<Option<Note>> {
    let tried = match config.media_sockets {
        MediaSockets::PerPort => return Ok(None),
        MediaSockets::One => plane.share_ports(config).map(Ok)?,
        MediaSockets::Auto => plane.share_ports(config),
    };
    let (path, why) = match tried {
        Ok(()) => ("one_socket", String::new()),
        Err(error) => ("socket_per_port", error.to_string()),
    };
    Ok(Some(Note::MediaPath {
        path: path.into(),
        why,
    }))
}
