//! SIP messages (RFC 3261): a lazily indexed, zero-copy reader, edits applied on emission, a writer, stream framing.
//!
//! Reading: [`Message::parse`] indexes nearly any message, [`Message::validate`] checks it, typed accessors
//! ([`Message::via`], [`Message::cseq`], ...) parse one header on demand. Writing: [`Writer`] without a source,
//! [`emit`] from a message and a list of [`Edit`]s (everything else stays byte for byte the same), [`write_response`]
//! from a request. Streams: [`StreamFramer`].

mod features;
mod feedback;
mod framer;
mod header_cache;
mod host;
mod ids;
mod list;
mod message;
mod multipart;
mod params;
mod plain;
mod refusable;
mod routing_keys;
mod typed;
mod uri;
mod validate;
mod vector;
mod writer;

pub use features::is_feature_tag;
pub use feedback::{Feedback, OC_PARAMETERS, Throttle, is_feedback};
pub use framer::{FrameError, FrameLimits, StreamFrame, StreamFramer};
pub use host::{Host, HostPort};
pub use ids::{HEADER_IDS, HeaderId, Method};
pub use list::Values;
pub use message::{
    Framing, Header, MAX_HEADERS, MAX_MESSAGE, Message, Unparsable, call_number, request_uri,
};
pub use multipart::{Session, SessionPart};
pub use params::{AuthParams, Param, Params, unquote};
pub use plain::{plain_user, plain_user_of};
pub use refusable::RefusableRequest;
pub use routing_keys::RoutingKeys;
pub use typed::{
    CSeq, Credentials, MediaType, NameAddr, ParseError, RAck, Refresher, Replaces, SessionExpires,
    TokenValue, Via, ViaParts,
};
pub use uri::{Scheme, Uri, percent_decode};
pub use validate::Rejection;
pub use writer::{
    COLON, CRLF, Edit, FieldLines, HeaderSets, Response, Writer, append_decimal, append_text, emit,
    write_response,
};
