//! The "ng" control protocol of rtpengine: a cookie, a space, and a dictionary in bencode.
//!
//! A reader lends what it reads: [`Message`], [`Dictionary`], [`List`] and [`Item`] point into the received bytes, which were checked
//! as a whole before ([`Scanner`]), with limits on depth and size. What we write is a [`Value`], in canonical form: the keys of a
//! dictionary are sorted. What others write need not be; of a key that stands twice, the first counts.

mod bencode;
mod framing;
mod value;

pub use bencode::{BencodeError, Dictionary, Item, List, MAX_DEPTH, Scanner};
pub use framing::{MAX_COOKIE, MAX_MESSAGE, Message, NgError, StreamFramer};
pub use value::Value;

/// The subprotocol under which it is spoken over WebSocket (RFC 6455 section 1.9).
pub const WEBSOCKET_PROTOCOL: &str = "ng.rtpengine.com";
