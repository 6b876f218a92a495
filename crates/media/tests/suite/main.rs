//! The integration tests of `media`, one program: shared start-up, one link.

mod conference;
mod ends;
mod forward;
mod ports;
mod quality;
mod recode;
mod room;
mod secure;
mod statistics;
