//! Sources of epoll events.

use rustix::event::epoll::EventData;

/// The source of an epoll event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Wake,
    /// The shared-port socket of an address family.
    SharedPort(u32),
    /// An AF_XDP socket.
    AfXdp(u32),
    /// A descriptor of the tunnel path.
    Tunnel(u32),
    /// The inner epoll set of undelayed sockets is ready.
    Prompt,
    Udp(u32),
    Listener(u32),
    Stream {
        index: u32,
        generation: u32,
    },
}

/// Mask of the generation in a token.
pub(crate) const GENERATION_MASK: u32 = 0x00ff_ffff;

impl Token {
    pub(crate) fn data(self) -> EventData {
        let pack = |kind: u64, generation: u32, index: u32| {
            EventData::new_u64(kind << 56 | u64::from(generation) << 32 | u64::from(index))
        };
        match self {
            Token::Wake => pack(0, 0, 0),
            Token::Prompt => pack(4, 0, 0),
            Token::SharedPort(number) => pack(5, 0, number),
            Token::AfXdp(number) => pack(6, 0, number),
            Token::Tunnel(number) => pack(7, 0, number),
            Token::Udp(index) => pack(1, 0, index),
            Token::Listener(index) => pack(2, 0, index),
            Token::Stream { index, generation } => pack(3, generation & GENERATION_MASK, index),
        }
    }

    pub(super) fn of(data: EventData) -> Token {
        let value = data.u64();
        let index = value as u32;
        match value >> 56 {
            1 => Token::Udp(index),
            2 => Token::Listener(index),
            3 => Token::Stream {
                index,
                generation: (value >> 32) as u32 & GENERATION_MASK,
            },
            4 => Token::Prompt,
            5 => Token::SharedPort(index),
            6 => Token::AfXdp(index),
            7 => Token::Tunnel(index),
            _ => Token::Wake,
        }
    }
}
