//! Transactions, dialogs, legs, registrations and server location, without IO or clock.
//!
//! [`Endpoint`] is a whole SIP element for many calls: transport layer (RFC 3261 section 18), transactions (section 17,
//! RFC 6026), INVITE dialogs as *legs*, with reliable provisional responses (RFC 3262), UPDATE (RFC 3311), session timers
//! (RFC 4028) and digest (RFC 3261 section 22). It speaks with its [`User`] by [`Indication`]s and takes commands.
#![forbid(unsafe_code)]

mod api;
mod compose;
mod config;
mod credentials;
mod dialog;
mod endpoint;
#[doc(hidden)]
pub mod fuzz;
mod glance;
mod keep;
mod leg;
pub mod locate;
mod moves;
mod names;
mod outbox;
mod precondition;
mod process;
mod reliable;
mod session_timer;
mod skeleton;
mod timer;
mod transaction;
mod transport;
mod usage;
mod workers;

pub use api::{
    Body, Census, Content, DialogId, Ending, Failure, Flow, Fork, Greeting, Indication, Invite,
    LegId, LegState, Local, LocalId, Login, NamedHop, Outside, Prack, Refused, ServerTransaction,
    Stateless, Target, TransactionId, User,
};
pub use config::{EndpointConfig, SessionConfig, TimerConfig};
pub use endpoint::Endpoint;
pub use moves::{Moves, Moving};
pub use names::hex_digits;
pub use precondition::{PRECONDITION, PRECONDITION_FAILURE, Preconditions, Unmet};
