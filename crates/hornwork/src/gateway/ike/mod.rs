//! Key exchange for the tunnels: a thread that connects strongSwan's daemon with peers and with the packet thread.
//!
//! An association opens before the message that tells the peer about it is sent: the log is read after each message of the
//! daemon, and messages follow associations through one queue to the packet thread. It seals when the daemon says so, which as
//! the initiator is at once, as the responder when the peer has deleted the old one. So no packet is lost by new keys.

mod children;
mod client;
mod daemon;
mod exchange;
mod files;

pub(super) use daemon::check;
pub(crate) use daemon::ike_daemon;
pub(super) use exchange::{IkeExchange, IkeParts, IkeRequest};
pub(super) use files::IkeFiles;
