//! IKEv2 (RFC 7296) by strongSwan's daemon `charon`: its control protocol, its log and its settings, without IO.
//!
//! The daemon negotiates; packets are sealed and opened by [`crate::esp`]. Its control protocol VICI does not give the
//! keys of an association, so they are read from its log, which is a pipe to this program ([`DaemonLog`]).

mod daemon_log;
#[cfg(feature = "fuzz")]
mod fuzz;
mod settings;
mod vici;

pub use daemon_log::{DaemonFact, DaemonLine, DaemonLog, NegotiatedChild};
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub use fuzz::fuzz_ike;
pub use settings::{
    CHILD_NAME, IkeAuthentication, IkeConnection, IkeProposals, check_proposal, connection_name,
    connection_number, daemon_selectors, daemon_settings, proposed_suites,
};
pub use vici::{MAX_VICI_PACKET, ViciError, ViciPacket, ViciSection, ViciValue};
