//! SIP messages (RFC 3261): a lazily indexed, zero-copy reader, edits applied on emission, a writer, stream framing.
//!
//! Reading: [`Message::parse`] indexes nearly anything, [`Message::validate`] judges it, typed accessors
//! ([`Message::via`], [`Message::cseq`], ...) parse one header when asked. Writing: [`Writer`] from nothing, [`emit`]
//! from a message and a list of [`Edit`]s (what no edit names leaves byte for byte as it came),
//! [`write_response`] from a request. Streams: [`StreamFramer`].

mod feedback;
mod framer;
mod glance;
mod host;
mod ids;
mod known;
mod list;
mod message;
mod multipart;
mod params;
mod plain;
mod refusable;
mod typed;
mod uri;
mod validate;
mod words;
mod writer;

pub use feedback::{ASKED, Feedback, Throttle, is_feedback};
pub use framer::{Frame, FrameError, FrameLimits, StreamFramer};
pub use glance::Glance;
pub use host::{Host, HostPort};
pub use ids::{HEADER_IDS, HeaderId, Method};
pub use list::Values;
pub use message::{
    Framing, Header, MAX_HEADERS, MAX_MESSAGE, Message, Unparsable, call_number, request_uri,
};
pub use multipart::{Session, SessionPart};
pub use params::{AuthParams, Param, Params, unquote};
pub use plain::{plain_user, plain_user_of};
pub use refusable::Refusable;
pub use typed::{
    CSeq, Credentials, MediaType, NameAddr, ParseError, RAck, Refresher, Replaces, SessionExpires,
    TokenValue, Via, ViaParts,
};
pub use uri::{Scheme, Uri, percent_decode};
pub use validate::Rejection;
pub use writer::{
    COLON, CRLF, Edit, FieldLines, Heads, Response, Writer, append_decimal, append_text, emit,
    write_response,
};
