//! Which streams may pass the forwarder by, and when they must come back.
//!
//! A shortcut stands for one state of the forwarder: what it did with the last packet of a stream, it would do with the next. It is
//! proposed after a packet that continued the one before, and ends with whatever else comes to the socket, when the other side's address
//! changes, and before any command that concerns the session is carried out: commands wait until what has passed is counted.

use super::MediaCommand;
use super::statistics::Counters;
use crate::stats::Arrival;
use engine::{Passed, SocketId, Time};
use std::collections::VecDeque;
use wire::rtp::RtpView;

/// How things stand with the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Closed,
    /// The driver shall be told.
    Wanted,
    /// The driver was told, and may have done it.
    Open,
    /// Its end was asked for, and not told yet.
    Closing,
}

/// The last packet of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub(crate) ssrc: u32,
    pub(crate) payload_type: u8,
    pub(crate) sequence: u16,
    pub(crate) timestamp: u32,
    pub(crate) arrived: Time,
}

/// The media from one side, as far as shortcuts are concerned.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    state: State,
    last: Option<Last>,
    /// The last packet continued the one before it.
    steady: bool,
    passed: Counters,
    opened: u64,
}

impl Stream {
    /// A packet comes to the socket: whatever shortcut there was is closed.
    pub(crate) fn came(&mut self) {
        if self.state == State::Open {
            self.state = State::Closed;
        }
    }

    /// An RTP packet was counted. `plain`: its header has nothing but the fixed part.
    pub(crate) fn note(
        &mut self,
        view: &RtpView<'_>,
        plain: bool,
        arrival: Option<Arrival>,
        arrived: Time,
    ) {
        let now = Last {
            ssrc: view.ssrc(),
            payload_type: view.payload_type(),
            sequence: view.sequence(),
            timestamp: view.timestamp(),
            arrived,
        };
        self.steady = plain
            && arrival == Some(Arrival::Advance)
            && self.last.is_some_and(|last| {
                last.ssrc == now.ssrc
                    && last.payload_type == now.payload_type
                    && last.sequence.wrapping_add(1) == now.sequence
            });
        self.last = Some(now);
    }

    /// The packet after which a shortcut may be opened.
    pub(crate) fn steady(&self) -> Option<Last> {
        self.last.filter(|_| self.steady)
    }

    /// Shortcuts opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether a shortcut is to be proposed where none is.
    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn pass(&mut self, passed: &Passed) {
        self.passed.pass(passed);
        if let Some(last) = self.last.as_mut().filter(|_| passed.packets > 0) {
            last.sequence = last.sequence.wrapping_add(passed.packets as u16);
            last.timestamp = passed.timestamp;
            last.arrived = passed.arrived;
        }
    }

    /// Packets that took a shortcut, and how often there was one.
    pub(crate) fn figures(&self) -> (Counters, u64) {
        (self.passed, self.opened)
    }
}

/// What waits until shortcuts are closed.
#[derive(Debug)]
pub(crate) enum Deferred {
    Command(Box<MediaCommand>),
    /// Whether the session of this place and number is silent.
    Check(u32, u64),
}

/// What is asked of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Open,
    Close,
}

/// The shortcuts of a forwarder.
#[derive(Debug, Default)]
pub(crate) struct Shortcuts {
    pub(crate) allowed: bool,
    /// Sockets whose streams want something of the driver.
    wishes: VecDeque<SocketId>,
    /// Streams that are being closed.
    closing: usize,
    pub(crate) deferred: VecDeque<Deferred>,
}

impl Shortcuts {
    /// A shortcut is to be opened.
    pub(crate) fn want(&mut self, socket: SocketId, stream: &mut Stream) {
        stream.state = State::Wanted;
        self.wishes.push_back(socket);
    }

    /// It is to be closed, where there is one.
    pub(crate) fn close(&mut self, socket: SocketId, stream: &mut Stream) {
        match stream.state {
            State::Wanted => stream.state = State::Closed,
            State::Open => {
                stream.state = State::Closing;
                self.closing += 1;
                self.wishes.push_back(socket);
            }
            State::Closed | State::Closing => {}
        }
    }

    /// The driver has told that one is closed.
    pub(crate) fn closed(&mut self, stream: &mut Stream, passed: &Passed) {
        if stream.state == State::Closing {
            self.closing -= 1;
        }
        if stream.state != State::Wanted {
            stream.state = State::Closed;
        }
        stream.pass(passed);
    }

    /// Nothing has to be waited for.
    pub(crate) fn is_settled(&self) -> bool {
        self.closing == 0
    }

    /// The next socket with a wish; what it is says [`Shortcuts::wish`].
    pub(crate) fn next(&mut self) -> Option<SocketId> {
        self.wishes.pop_front()
    }

    /// What the stream of such a socket wants now; for one to be opened, `possible`.
    pub(crate) fn wish(stream: &mut Stream, possible: bool) -> Option<Wish> {
        match (stream.state, possible) {
            (State::Wanted, true) => {
                stream.state = State::Open;
                stream.opened += 1;
                Some(Wish::Open)
            }
            (State::Wanted, false) => {
                stream.state = State::Closed;
                None
            }
            (State::Closing, _) => Some(Wish::Close),
            (State::Open | State::Closed, _) => None,
        }
    }
}
