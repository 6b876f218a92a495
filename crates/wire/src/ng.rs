//! The "ng" control protocol of rtpengine: a cookie, a space, and a dictionary in bencode.
//!
//! The reader is zero-copy: [`NgMessage`], [`Dictionary`], [`List`] and [`BencodeItem`] refer to the received bytes,
//! which are validated as a whole before ([`Scanner`]), with limits on depth and size. The writer emits a [`Value`] in
//! canonical form, with the keys of a dictionary sorted. Received dictionaries need not be sorted; of a repeated key,
//! the first value counts.

mod bencode;
mod framing;
mod value;

pub use bencode::{BencodeError, BencodeItem, Dictionary, List, MAX_DEPTH, Scanner};
pub use framing::{MAX_COOKIE, MAX_MESSAGE, NgError, NgMessage, NgStreamFramer};
pub use value::Value;

/// The WebSocket subprotocol of ng (RFC 6455 section 1.9).
pub const WEBSOCKET_PROTOCOL: &str = "ng.rtpengine.com";
