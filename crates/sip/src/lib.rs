//! Transactions, dialogs, legs, registrations and server location, without IO or clock.
#![forbid(unsafe_code)]
