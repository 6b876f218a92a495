//! The session border controller: configuration, policy, plans, calls, registrar, forwarder.
#![forbid(unsafe_code)]
