//! Contact of composed messages: our URI, and the feature tags of the user agent whose message is forwarded.

use crate::api::MessageContent;
use smallvec::SmallVec;
use wire::sip::{HeaderId, is_feature_tag};

/// Names one device (RFC 5626), and belongs to its registration.
const INSTANCE: &[u8] = b"+sip.instance";
/// Longest feature tags that are forwarded, in bytes.
const MAX_FEATURES: usize = 1_024;

/// A Contact value in the making.
pub(crate) type ContactBuffer = SmallVec<[u8; 320]>;

/// Our URI in angle brackets, with the feature tags in Contact of a forwarded message: they describe its sender, for
/// example a recorder (`+sip.srs`, RFC 7866), a conference (`isfocus`) or a service of 3GPP.
pub(crate) fn contact<'b>(
    uri: &[u8],
    content: &MessageContent<'_>,
    buffer: &'b mut ContactBuffer,
) -> &'b [u8] {
    buffer.push(b'<');
    buffer.extend_from_slice(uri);
    buffer.push(b'>');
    let template = content.template.filter(|one| one.has(HeaderId::Contact));
    let Some(Ok(sender)) = template.map(|template| template.contact()) else {
        return buffer;
    };
    let start = buffer.len();
    for param in sender
        .params
        .iter()
        .filter(|param| is_forwarded(param.name))
    {
        let value = param.value.unwrap_or_default();
        if buffer.len() - start + param.name.len() + value.len() + 2 > MAX_FEATURES {
            break;
        }
        buffer.push(b';');
        buffer.extend_from_slice(param.name);
        if !value.is_empty() {
            buffer.push(b'=');
            buffer.extend_from_slice(value);
        }
    }
    buffer
}

fn is_forwarded(name: &[u8]) -> bool {
    is_feature_tag(name) && !name.eq_ignore_ascii_case(INSTANCE)
}
