//! Which of several workers is to have a call to a conference: the one that all of its participants come to. It is told before anything is
//! done with the INVITE, by the number that will be called once header rules have seen it.

use crate::border::Core;
use crate::call::offered::{Origin, user_at};
use ::rules::Direction;
use sip::Flow;
use wire::sip::{Message, Method, request_uri};

impl Core {
    /// The worker that is to have an INVITE, or what cancels it; `None`: no conference is called.
    pub(crate) fn room_owner(&self, bytes: &[u8], flow: &Flow) -> Option<u8> {
        let crew = self.crew.as_ref()?;
        if self.config.rooms.is_empty() {
            return None;
        }
        let interface = self.interface_of(flow.local)?;
        let trunk = self.trunk_at(interface, flow);
        let origin = Origin {
            interface,
            trunk,
            authenticated: trunk.is_some(),
            located: false,
        };
        let rules = &self.config.rules;
        let invites = bytes.trim_ascii_start().starts_with(b"INVITE ");
        let called = match invites && rules.concerns(Direction::In, true, &Method::Invite) {
            true => self.called_by_rules(bytes, origin, flow)?,
            // Rules do not see a CANCEL.
            false => self.room_called(request_uri(bytes)?, origin)?,
        };
        Some(crew.room_owner(&called.number))
    }

    /// The room that is called when rules are done with an INVITE.
    fn called_by_rules(&self, bytes: &[u8], origin: Origin, flow: &Flow) -> Option<super::Called> {
        // What is dropped unread costs no rules.
        let socket = self.point(flow.local)?.socket;
        if flow.connection.is_none() && !self.is_welcome(socket, flow.remote) {
            return None;
        }
        let request = Message::parse(bytes).ok()?;
        let user = match self.requires_authentication(origin) {
            // Who proves to be somebody else than From says is refused, and who proves nothing comes again.
            true => request.from().ok().and_then(|from| user_at(&from)),
            false => self.registered_user(origin, &request, *flow),
        };
        let judged = self.judge_first(&request, origin, *flow, user.as_deref());
        let uri = judged.uri().unwrap_or(request.request_uri());
        let passes = judged.refusal.is_none() && judged.route.is_none();
        passes.then(|| self.room_called(uri, origin))?
    }
}
