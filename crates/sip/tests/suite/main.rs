//! The integration tests of `sip`, one program: shared start-up, one link.

mod calls;
mod common;
mod dialogs;
mod exchange;
mod forks;
mod loops;
mod lossy;
mod secure;
mod timers;
mod transport;
mod unreachable;
