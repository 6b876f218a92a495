//! Set-ups with which many tests begin: two phones, and their registrations.

use super::{PhoneBehaviour, SDP_A, SDP_B, VirtualNetwork};
use engine::Transport;
use sip::{Login, MessageContent, OutOfDialogRequest, Target};
use std::time::Duration;
use wire::sip::{Edit, HeaderId, Method};

/// The access interface of most configurations.
pub const OUT: &str = "192.0.2.1:5060";

pub fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// The offer of the caller.
pub fn offer() -> MessageContent<'static> {
    MessageContent::sdp(SDP_A.as_bytes())
}

/// A caller, and a phone at the address of the trunk that answers.
pub fn pair(config: &str) -> (VirtualNetwork, usize, usize) {
    let mut net = VirtualNetwork::new(config, 1);
    let alice = net.phone("10.1.0.1:5060", PhoneBehaviour::answering(SDP_A));
    let bob = net.phone("10.2.0.1:5060", PhoneBehaviour::answering(SDP_B));
    (net, alice, bob)
}

/// A REGISTER of a phone.
pub struct RegisterRequest<'r> {
    /// User of From and To.
    pub user: &'r str,
    pub contact: &'r str,
    /// Address of the border.
    pub to: &'r str,
    pub transport: Transport,
    pub login: Option<Login<'r>>,
    pub call_id: Option<&'r str>,
    pub cseq: Option<u32>,
}

impl<'r> RegisterRequest<'r> {
    /// The first REGISTER over UDP, without credentials.
    pub fn new(user: &'r str, contact: &'r str) -> RegisterRequest<'r> {
        RegisterRequest {
            user,
            contact,
            to: OUT,
            transport: Transport::Udp,
            login: None,
            call_id: None,
            cseq: None,
        }
    }
}

impl VirtualNetwork {
    /// Sends a REGISTER of a phone to the border.
    pub fn send_register(&mut self, phone: usize, register: &RegisterRequest<'_>) {
        let flow = self.flow(phone, register.to, register.transport);
        let address = format!("<sip:{}@192.0.2.1>", register.user);
        let contact = [Edit::Replace {
            id: HeaderId::Contact,
            value: register.contact.as_bytes(),
        }];
        self.command(phone, |endpoint, now| {
            let request = OutOfDialogRequest {
                from: Some(address.as_bytes()),
                to: Some(address.as_bytes()),
                call_id: register.call_id.map(str::as_bytes),
                cseq: register.cseq,
                content: MessageContent::default().with(&contact),
                login: register.login,
                ..OutOfDialogRequest::new(Method::Register, Target::new(b"sip:192.0.2.1", flow))
            };
            endpoint.send(&request, now).unwrap();
        });
    }
}
