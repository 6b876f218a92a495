//! The "ng" protocol of rtpengine in both roles: [`server`] is a media node under the commands of a SIP server,
//! [`client`] commands such nodes, with the options of [`terms`]. Its messages are parsed and written by [`wire::ng`].
#![forbid(unsafe_code)]

pub mod client;
pub mod origin;
pub mod server;
pub mod terms;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use server::fuzz::fuzz_ng_server;
