//! Replaces in relayed messages (RFC 3891, RFC 5589 section 7). Each side of a call has a dialog of its own: the
//! identifiers of the transferor's dialog mean nothing to the other side.

use crate::calls::CallStage;
use crate::calls::table::OngoingCalls;
use config::TrunkId;
use sip::{Endpoint, LegId};
use wire::sip::{NameAddr, Replaces, percent_decode};

/// The name of the header in a URI.
const REPLACES: &[u8] = b"Replaces";

impl OngoingCalls {
    /// The URI of Refer-To for a trunk that gets the REFER: Replaces names the dialog that the trunk has, if the call
    /// of the named dialog leads to it. A system that has both dialogs connects them itself, and finds none by the
    /// identifiers of the other side. `None`: the URI stays as it is.
    pub(crate) fn refer_to_at_trunk(
        &self,
        endpoint: &Endpoint,
        refer_to: &NameAddr<'_>,
        trunk: TrunkId,
    ) -> Option<Vec<u8>> {
        let uri = refer_to.parse_uri()?;
        let is_replaces = |name: &[u8]| name.eq_ignore_ascii_case(REPLACES);
        let (_, value) = uri.header_pairs().find(|(name, _)| is_replaces(name))?;
        let value = percent_decode(value);
        let named = Replaces::parse(&value)?;
        let leg = self.leg_at_trunk(endpoint, &named, trunk)?;
        let (own, theirs) = endpoint.tags_of(leg)?;
        let mut out = refer_to.uri.strip_suffix(uri.headers)?.to_vec();
        for (at, (name, value)) in uri.header_pairs().enumerate() {
            if at > 0 {
                out.push(b'&');
            }
            out.extend_from_slice(name);
            out.push(b'=');
            if !is_replaces(name) {
                out.extend_from_slice(value);
                continue;
            }
            escape(endpoint.call_id_of(leg)?, &mut out);
            escape(b";to-tag=", &mut out);
            escape(theirs, &mut out);
            escape(b";from-tag=", &mut out);
            escape(&own, &mut out);
            if named.early_only {
                escape(b";early-only", &mut out);
            }
        }
        Some(out)
    }

    /// The leg at a trunk, in the answered call of a dialog. Some phones write the tags in the other order.
    fn leg_at_trunk(
        &self,
        endpoint: &Endpoint,
        named: &Replaces<'_>,
        trunk: TrunkId,
    ) -> Option<LegId> {
        let find = |local, remote| endpoint.find_leg(named.call_id, local, remote);
        let leg = find(named.to_tag, named.from_tag).or_else(|| find(named.from_tag, named.to_tag));
        let leg = leg?;
        let call = self.get(self.slot_of_leg(endpoint, leg)?)?;
        let side = call.side_of(leg)?.other();
        let leads_there =
            call.stage == CallStage::ExpectBye && *call.trunks.get(side) == Some(trunk);
        call.leg(side).filter(|_| leads_there)
    }

    /// The leg that an INVITE with Replaces takes over. After a relayed REFER it may name the dialog of the far side,
    /// in which our tag is `from-tag`: then the leg of the transferor is replaced. Only the `trunk` that has this
    /// dialog names it so; others have it from a phone that writes the tags in the other order.
    pub(crate) fn replaced_leg(
        &self,
        endpoint: &Endpoint,
        wanted: &Replaces<'_>,
        trunk: Option<TrunkId>,
    ) -> Option<LegId> {
        let named = endpoint.find_leg(wanted.call_id, wanted.to_tag, wanted.from_tag);
        named.or_else(|| {
            let far = endpoint.find_leg(wanted.call_id, wanted.from_tag, wanted.to_tag)?;
            let call = self.get(self.slot_of_leg(endpoint, far)?)?;
            let side = call.side_of(far)?;
            match trunk.is_some() && *call.trunks.get(side) == trunk {
                true => call.leg(side.other()),
                false => Some(far),
            }
        })
    }
}

/// Appends text of a header in a URI, with escapes (RFC 3261 section 19.1.1).
fn escape(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte) {
            true => out.push(byte),
            false => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}
