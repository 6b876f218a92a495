//! Transactions, dialogs, legs, registrations and server location, without IO or clock.
//!
//! [`Endpoint`] is a complete SIP element for many calls: transport layer (RFC 3261 section 18), transactions (section
//! 17, RFC 6026), INVITE dialogs as *legs*, with reliable provisional responses (RFC 3262), UPDATE (RFC 3311), session
//! timers (RFC 4028) and digest (RFC 3261 section 22). It calls its [`Handler`] with [`Indication`]s and takes
//! commands.
#![forbid(unsafe_code)]

mod api;
mod compose;
mod config;
mod contact;
mod credentials;
mod dialog;
mod dialog_request;
mod endpoint;
mod fast_path;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod handler;
mod keep_alive;
mod kept_flow;
mod leg;
pub mod locate;
mod method_name;
mod mismatch;
mod moved_dialogs;
mod moved_table;
mod outbox;
mod precondition;
mod process;
mod received;
mod reliable;
mod saved_leg;
mod session_state;
mod session_timer;
mod skeleton;
mod timer;
mod tokens;
mod transaction;
mod transport;
mod usage;
mod workers;

pub use api::{
    Body, Census, ChallengedInvite, DialogId, EarlierRequest, Ending, Failure, Flow, Fork, Handler,
    Indication, Invite, KnownPeer, LegId, LegState, ListenerConfig, ListenerId, Login,
    MessageContent, NamedHop, NewRequestAction, OutOfDialogRequest, Prack, Refused,
    ServerTransaction, StatelessResponse, Target, TransactionId,
};
pub use compose::reason as reason_phrase;
pub use config::{EndpointConfig, SessionConfig, TimerConfig};
pub use endpoint::Endpoint;
pub use mismatch::{RequestOwner, ResponseMismatch};
pub use moved_dialogs::DetachedDialog;
pub use moved_table::MovedDialogs;
pub use precondition::{PRECONDITION, PRECONDITION_FAILURE, Preconditions, Unmet};
pub use saved_leg::{LegToSave, SavedLeg};
pub use tokens::hex_digits;
