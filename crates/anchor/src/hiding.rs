//! Topology hiding of session descriptions.

/// SDP lines with information about their author, and their replacement: session name, information, URI, contact, tool,
/// and source filters (which are ours).
pub const LINES: [(&[u8], Option<&[u8]>); 7] = [
    (b"s=", Some(b"s=-")),
    (b"i=", None),
    (b"u=", None),
    (b"e=", None),
    (b"p=", None),
    (b"a=tool:", None),
    (b"a=source-filter:", None),
];

/// Replaces or removes such lines in the SDP that begins at `from` in `out`.
pub fn description(out: &mut Vec<u8>, from: usize) {
    let lines = || {
        out.get(from..)
            .unwrap_or_default()
            .split_inclusive(|byte| *byte == b'\n')
    };
    let told = |line: &[u8]| LINES.iter().find(|(start, _)| line.starts_with(start));
    if !lines()
        .any(|line| told(line).is_some_and(|(_, instead)| *instead != Some(line.trim_ascii_end())))
    {
        return;
    }
    let mut hidden = Vec::with_capacity(out.len() - from);
    for line in lines() {
        match told(line) {
            None => hidden.extend_from_slice(line),
            Some((_, None)) => {}
            Some((_, Some(instead))) => {
                hidden.extend_from_slice(instead);
                let end = line.trim_ascii_end().len();
                hidden.extend_from_slice(line.get(end..).unwrap_or_default());
            }
        }
    }
    out.truncate(from);
    out.append(&mut hidden);
}
