//! Feature tags (RFC 3840).

/// Base feature tags (RFC 3840 section 9) without `description`, which is free text, and `isfocus` (RFC 4579).
const BASE: [&[u8]; 19] = [
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
/// Trees of other feature tags: of standards (RFC 3840 section 12.1), and of 3GPP and GSMA in the global tree.
const TREES: [&[u8]; 3] = [b"+sip.", b"+g.3gpp.", b"+g.gsma."];

/// Whether a parameter is a feature tag of a standard, of 3GPP or of GSMA, in any case; not `description`.
pub fn is_feature_tag(name: &[u8]) -> bool {
    let starts = |tree: &&[u8]| {
        let start = name.get(..tree.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(tree))
    };
    let is_base = |tag: &&[u8]| tag.eq_ignore_ascii_case(name);
    BASE.iter().any(is_base) || TREES.iter().any(starts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_standards_are_known_in_any_case() {
        for name in [
            "audio",
            "isFocus",
            "+SIP.instance",
            "+g.3gpp.icsi-ref",
            "+g.gsma.rcs",
        ] {
            assert!(is_feature_tag(name.as_bytes()), "{name}");
        }
        for name in [
            "description",
            "q",
            "expires",
            "+u.example.x",
            "+sip",
            "",
            "require",
        ] {
            assert!(!is_feature_tag(name.as_bytes()), "{name}");
        }
    }
}
