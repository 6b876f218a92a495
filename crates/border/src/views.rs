//! Plain values about trunks, registrations, media nodes and overload, for operators.

use config::InterfaceId;
use core::time::Duration;
use engine::Time;
use sip::ListenerId;

/// State of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrunkView {
    /// Name.
    pub name: String,
    /// Whether it gets calls; false after [`crate::border::Border::set_trunk_enabled`].
    pub enabled: bool,
    /// Whether any target is up.
    pub up: bool,
    /// Calls from and to the trunk, of all workers.
    pub calls: u32,
    /// Maximum number of calls.
    pub calls_max: Option<u32>,
    /// Targets in the order of the configuration: address as written, and whether it is up.
    pub targets: Vec<(String, bool)>,
}

/// A registered user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationView {
    /// User part of the address of record.
    pub user: String,
    /// Contacts in the order of registration.
    pub contacts: Vec<ContactView>,
}

/// A registered contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContactView {
    /// Contact URI.
    pub uri: String,
    /// Transport and address of the phone.
    pub address: String,
    /// Interface.
    pub interface: InterfaceId,
    /// The listener of its flow, which determines the interface after a reload.
    pub(crate) local: ListenerId,
    /// Time of the last REGISTER.
    pub since: Time,
    /// Expiry.
    pub until: Time,
    /// Whether it was forwarded to the core.
    pub forwarded: bool,
}

/// State of a media node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: String,
    /// Address of its ng server.
    pub control: String,
    /// Whether it answers.
    pub up: bool,
    /// Whether it gets no new calls.
    pub drain: bool,
    /// Calls of this worker there.
    pub calls: u32,
    /// Sessions that it reported last.
    pub sessions: Option<u64>,
}

/// State of overload control of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverloadView {
    /// Whether requests were refused recently.
    pub active: bool,
    /// Queueing delay of the last message.
    pub queue_delay: Duration,
}
