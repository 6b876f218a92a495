//! Contact of composed messages: our URI, and the feature tags of the user agent whose message is forwarded.

use crate::api::MessageContent;
use smallvec::SmallVec;
use wire::sip::HeaderId;

/// Base feature tags (RFC 3840 section 9) without `description`, which is free text, and `isfocus` (RFC 4579).
const TAGS: [&[u8]; 19] = [
    b"actor",
    b"application",
    b"audio",
    b"automata",
    b"class",
    b"control",
    b"data",
    b"duplex",
    b"events",
    b"extensions",
    b"isfocus",
    b"language",
    b"methods",
    b"mobility",
    b"priority",
    b"schemas",
    b"text",
    b"type",
    b"video",
];
/// Trees of feature tags: of standards (RFC 3840 section 12.1), of 3GPP and GSMA.
const TREES: [&[u8]; 3] = [b"+sip.", b"+g.3gpp.", b"+g.gsma."];
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
    for param in sender.params.iter().filter(|param| is_feature(param.name)) {
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

fn is_feature(name: &[u8]) -> bool {
    let starts = |tree: &&[u8]| {
        let start = name.get(..tree.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(tree))
    };
    let is_tag = |tag: &&[u8]| tag.eq_ignore_ascii_case(name);
    !name.eq_ignore_ascii_case(INSTANCE) && (TREES.iter().any(starts) || TAGS.iter().any(is_tag))
}
