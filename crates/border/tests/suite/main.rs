//! The integration tests of `border`, linked as one program.

mod ack;
mod amplification;
mod authentication;
mod call_end;
mod calls;
mod certificates;
mod conference;
mod conference_control;
mod conference_phones;
mod conference_workers;
mod connection_lines;
mod early_dialogs;
mod failed_transfers;
mod fuzz_dtls;
mod in_dialog;
mod lossy_network;
mod media;
mod media_addresses;
mod ng_client;
mod ng_client_failure;
/// A media node in virtual time, as the tests of `ng` have it.
#[path = "../../../ng/tests/suite/rig/mod.rs"]
mod ng_server_rig;
mod out_of_dialog;
mod overload_control;
mod parallel_contacts;
mod quality_intervals;
mod recorded_messages;
mod registration_load;
mod reload;
mod restart;
mod routing;
mod rtcp_names;
mod rules;
mod subscriptions;
mod topology_hiding;
mod transcode;
mod transfer_targets;
mod transfers;
mod trunk_credentials;
mod unauthenticated;
mod untrusted_certificate;
mod virtual_network;
mod volte;
mod worker_overload;
mod worker_transfers;
