//! Key exchange by IKEv2: a thread that connects strongSwan's daemon with peers and with the user of the associations
//! ([`SaSink`]), which is the IPsec gateway or the softphone.
//!
//! An association opens before the message that tells the peer about it is sent: the log is read after each message of
//! the daemon, and messages follow associations through one queue to the user. It seals when the daemon says so, which
//! as the initiator is at once, as the responder when the peer has deleted the old one. So no packet is lost by new
//! keys.

mod children;
mod client;
mod daemon;
mod duplicates;
mod exchange;
mod files;
mod lists;
mod plan;
mod port;
mod problems;
mod rekeys;
mod request;
mod thread;

pub(crate) use daemon::{check, ike_daemon};
pub(crate) use exchange::IkeParts;
pub(crate) use files::IkeFiles;
pub(crate) use plan::{ExchangePlan, ExchangeTunnel, PacketPlan, SaEvent, SaSink};
pub(crate) use port::IKE_PORT;
pub(crate) use request::{IkeRequest, IkeRequests};
pub(crate) use thread::ExchangeThread;

/// An error with its remedy.
pub(crate) fn cannot(what: impl std::fmt::Display, remedy: &str) -> std::io::Error {
    std::io::Error::other(format!("{what}\n  remedy: {remedy}"))
}
