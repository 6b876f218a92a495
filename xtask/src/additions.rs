//! One of each: adds a configuration key, an event, a refusal reason, a codec and a rule action to a copy of the tree,
//! counts the places that each takes, builds the copy, and uses all of them in a configuration. CONTRIBUTING.md
//! describes the same steps.

use crate::process::{check, root};
use crate::texts::Text;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One place: `text` is inserted before `anchor`, which occurs in the file.
struct Place {
    file: &'static str,
    anchor: &'static str,
    text: &'static str,
}

/// An addition, and limits of its places.
struct Addition {
    what: &'static str,
    places: &'static [Place],
    max_places: usize,
    max_files: usize,
}

const fn place(file: &'static str, anchor: &'static str, text: &'static str) -> Place {
    Place { file, anchor, text }
}

const ADDITIONS: [Addition; 5] = [
    Addition {
        what: "a configuration key",
        max_places: 2,
        max_files: 1,
        places: &[
            place(
                "crates/config/src/sip.rs",
                "    /// Whether neighbours that ask for overload control",
                "    /// Seconds of a sample.\n    #[serde(rename = \"sample_s\", with = \"units::seconds\")]\n    #[schemars(with = \"u32\", range(max = 60))]\n    pub sample: Duration,\n",
            ),
            place(
                "crates/config/src/sip.rs",
                "            overload_feedback: true,",
                "            sample: Duration::from_secs(5),\n",
            ),
        ],
    },
    Addition {
        what: "an event",
        max_places: 2,
        max_files: 2,
        places: &[
            place(
                "crates/engine/src/event.rs",
                "    /// Draining was started:",
                "    /// A sample.\n    SampleTaken \"sample_taken\" Info {\n        /// Number of calls.\n        calls: u64,\n    }\n",
            ),
            place(
                "crates/border/src/operate.rs",
                "                .tell(now, || EventKind::DrainStarted { calls });",
                "                .tell(now, || EventKind::SampleTaken { calls });\n            parts\n                .ctx\n                .events\n",
            ),
        ],
    },
    Addition {
        what: "a refusal reason",
        max_places: 2,
        max_files: 2,
        places: &[
            place(
                "crates/engine/src/reason.rs",
                "    ReferNotForwarded 403",
                "    SampleRefused 403 \"sample refused\" \"A sample.\";\n",
            ),
            place(
                "crates/border/src/request.rs",
                "            Method::Subscribe if !interface.subscribe => {",
                "            Method::Message if interface.allow.len() > 1_000 => {\n                Err(RequestRefusal::new(Reason::SampleRefused))\n            }\n",
            ),
        ],
    },
    Addition {
        what: "a codec (L16 at 8 kHz, RFC 3551 section 4.5.11)",
        max_places: 8,
        max_files: 3,
        places: &[
            place(
                "crates/codec/src/kind.rs",
                "    /// G.711 A-law.\n    Pcma CodecSpec",
                "    /// Linear PCM.\n    L16 CodecSpec {\n        name: \"L16\",\n        max_payload: 2 * MAX_PAYLOAD_64K,\n        ..G711\n    },\n",
            ),
            place(
                "crates/codec/src/format.rs",
                "    /// G.722.\n    G722,",
                "    /// Linear PCM.\n    L16,\n",
            ),
            place(
                "crates/codec/src/format.rs",
                "            Kind::G722 => Format::G722,",
                "            Kind::L16 => Format::L16,\n",
            ),
            place(
                "crates/codec/src/format.rs",
                "            Format::G722 => Kind::G722,",
                "            Format::L16 => Kind::L16,\n",
            ),
            place(
                "crates/codec/src/format.rs",
                "                Format::Pcmu | Format::Pcma | Format::G722 => {}",
                "                Format::L16 => {}\n",
            ),
            place(
                "crates/codec/src/format.rs",
                "            Format::G722 => Box::new(G722Encoder::new()),",
                "            Format::L16 => Box::new(crate::narrow::L16Coder),\n",
            ),
            place(
                "crates/codec/src/format.rs",
                "            Format::G722 => Box::new(G722Decoder::new()),",
                "            Format::L16 => Box::new(crate::narrow::L16Coder),\n",
            ),
            place(
                "crates/codec/src/narrow.rs",
                "/// A G.711 encoder.",
                L16_CODER,
            ),
        ],
    },
    Addition {
        what: "a rule action",
        max_places: 7,
        max_files: 3,
        places: &[
            place(
                "crates/rules/src/spec.rs",
                "    /// Write a log line.\n    Log \"log\",",
                "    /// Count a message.\n    Count \"count\",\n",
            ),
            place(
                "crates/rules/src/action.rs",
                "    Log(Template),",
                "    Count,\n",
            ),
            place(
                "crates/rules/src/action.rs",
                "        Verb::Route | Verb::Log => &[],",
                "        Verb::Count => &[],\n",
            ),
            place(
                "crates/rules/src/action.rs",
                "        Verb::Log => {\n            let text =",
                "        Verb::Count => Action::Count,\n",
            ),
            place(
                "crates/rules/src/action.rs",
                "            Action::Log(text) => {\n                let text = log_text",
                "            Action::Count => effects.refused_edits += 0,\n",
            ),
            place(
                "crates/config/src/rules.rs",
                "    /// Writes this line to the log.",
                "    /// Counts messages under this name.\n    pub count: Option<String>,\n",
            ),
            place(
                "crates/config/src/rules.rs",
                "        (Verb::Log, &action.log),",
                "        (Verb::Count, &action.count),\n",
            ),
        ],
    },
];

const L16_CODER: &str = r#"/// Encoder and decoder of linear PCM, big-endian.
#[derive(Clone, Debug)]
pub struct L16Coder;

impl AudioEncoder for L16Coder {
    fn kind(&self) -> Kind {
        Kind::L16
    }

    fn sample_rate(&self) -> u32 {
        8000
    }

    fn frame_samples(&self) -> usize {
        G711_FRAME_SAMPLES
    }

    fn max_frame_bytes(&self) -> usize {
        2 * G711_FRAME_SAMPLES
    }

    fn encode(&mut self, samples: &[i16], octets: &mut [u8]) -> Result<EncodedFrame, CodecError> {
        check_frame(samples, G711_FRAME_SAMPLES)?;
        let out = output_slice(octets, 2 * G711_FRAME_SAMPLES)?;
        for (pair, sample) in out.chunks_exact_mut(2).zip(samples) {
            pair.copy_from_slice(&sample.to_be_bytes());
        }
        Ok(EncodedFrame::Speech(2 * G711_FRAME_SAMPLES))
    }
}

impl AudioDecoder for L16Coder {
    fn kind(&self) -> Kind {
        Kind::L16
    }

    fn sample_rate(&self) -> u32 {
        8000
    }

    fn samples_of(&self, payload: &[u8]) -> Result<usize, CodecError> {
        match payload.len() % 2 {
            0 => Ok(payload.len() / 2),
            _ => Err(CodecError::Payload(Kind::L16)),
        }
    }

    fn decode(&mut self, payload: &[u8], samples: &mut [i16]) -> Result<usize, CodecError> {
        let count = self.samples_of(payload)?;
        let samples = output_slice(samples, count)?;
        for (sample, pair) in samples.iter_mut().zip(payload.chunks_exact(2)) {
            *sample = i16::from_be_bytes([pair[0], pair[1]]);
        }
        Ok(count)
    }

    fn conceal(&mut self, samples: &mut [i16]) {
        samples.fill(0);
    }
}

"#;

/// A configuration with all additions, which the copy accepts and this tree refuses.
const CONFIGURATION: &str = r#"[sip]
sample_s = 7

[[interface]]
name = "phones"
listen = "udp:127.0.0.1:5060"
allow = "127.0.0.0/8"
transcode = ["L16"]

[[trunk]]
name = "pbx"
target = "udp:127.0.0.1:5070"

[[rules]]
direction = "in"
do = [{ count = "calls" }]
"#;

/// Adds one of each to a copy of the tree, builds it and checks a configuration that uses them.
///
/// # Errors
/// An addition that takes more places or files than its limit, an anchor that does not exist, a copy that does not
/// build, or a configuration that it refuses.
pub fn run() -> Result<(), String> {
    let copy = root().join("target/additions/tree");
    copy_tree(&copy)?;
    for addition in &ADDITIONS {
        add(addition, &copy)?;
    }
    let file = copy.join("additions.toml");
    fs::write(&file, CONFIGURATION).map_err(|error| format!("{}: {error}", file.display()))?;
    let target = root().join("target/additions/build");
    let mut build = Command::new("cargo");
    build
        .current_dir(&copy)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_BUILD_BUILD_DIR", &target)
        .args(["build", "--locked", "--quiet", "-p", "hornwork"]);
    check(&mut build)?;
    check(
        Command::new(target.join("debug/hornwork"))
            .arg("check")
            .arg(&file),
    )?;
    println!("a program with all additions was built, and accepts a configuration that uses them");
    Ok(())
}

/// Additions beyond their limits, and anchors that the tree does not have: `tidy` checks them without building the
/// copy.
pub fn breaches(files: &[Text]) -> Vec<String> {
    ADDITIONS
        .iter()
        .flat_map(|addition| {
            let missing = addition
                .places
                .iter()
                .filter_map(move |place| missing_anchor(addition, place, files));
            beyond_limits(addition).into_iter().chain(missing)
        })
        .collect()
}

fn missing_anchor(addition: &Addition, place: &Place, files: &[Text]) -> Option<String> {
    let (what, name, anchor) = (addition.what, place.file, place.anchor);
    match files.iter().find(|file| file.name == name) {
        Some(file) if file.text.contains(anchor) => None,
        Some(_) => Some(format!(
            "xtask/src/additions.rs: {what}: {name} has no {anchor:?}: name the text before which the place is now"
        )),
        None => Some(format!(
            "xtask/src/additions.rs: {what}: no file {name}: name the file that has the place now"
        )),
    }
}

fn files_of(addition: &Addition) -> usize {
    let files: BTreeSet<&str> = addition.places.iter().map(|place| place.file).collect();
    files.len()
}

fn beyond_limits(addition: &Addition) -> Option<String> {
    let (places, files) = (addition.places.len(), files_of(addition));
    (places > addition.max_places || files > addition.max_files).then(|| {
        format!(
            "{} takes {places} places in {files} files: at most {} places in {} files are allowed",
            addition.what, addition.max_places, addition.max_files
        )
    })
}

/// Inserts the places of an addition, and compares their number with its limits.
fn add(addition: &Addition, copy: &Path) -> Result<(), String> {
    let what = addition.what;
    println!(
        "{what}: {} places in {} files",
        addition.places.len(),
        files_of(addition)
    );
    if let Some(breach) = beyond_limits(addition) {
        return Err(breach);
    }
    for place in addition.places {
        let path = copy.join(place.file);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let at = text
            .find(place.anchor)
            .ok_or_else(|| format!("{what}: {} has no {:?}", place.file, place.anchor))?;
        let (before, after) = text.split_at(at);
        // Insertions are whole lines, an anchor may begin within one.
        let line = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (before, after) = match before[line..].trim().is_empty() {
            true => (&before[..line], format!("{}{after}", &before[line..])),
            false => (before, after.to_owned()),
        };
        fs::write(&path, format!("{before}{}{after}", place.text))
            .map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// Copies the files that git knows.
fn copy_tree(copy: &Path) -> Result<(), String> {
    let listed = Command::new("git")
        .current_dir(root())
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .map_err(|error| format!("git: {error}"))?;
    if copy.exists() {
        fs::remove_dir_all(copy).map_err(|error| format!("{}: {error}", copy.display()))?;
    }
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let from: PathBuf = root().join(name);
        let to = copy.join(name);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        // A file that was deleted but not committed yet is listed.
        if from.exists() {
            fs::copy(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of all places, as the tree has them.
    fn tree() -> Vec<Text> {
        let places = ADDITIONS.iter().flat_map(|addition| addition.places);
        let names: BTreeSet<&str> = places.map(|place| place.file).collect();
        let read = |name: &str| Text {
            name: name.to_owned(),
            text: fs::read_to_string(root().join(name)).unwrap(),
        };
        names.into_iter().map(read).collect()
    }

    #[test]
    fn anchors_and_limits_hold_in_the_tree() {
        assert_eq!(breaches(&tree()), Vec::<String>::new());
    }

    #[test]
    fn missing_files_and_anchors_are_breaches() {
        let mut files = tree();
        files.retain(|file| file.name != "crates/config/src/sip.rs");
        for file in &mut files {
            if file.name == "crates/engine/src/event.rs" {
                file.text = file
                    .text
                    .replace("Draining was started:", "Draining began:");
            }
        }
        let found = breaches(&files);
        let expected = [
            "xtask/src/additions.rs: a configuration key: no file crates/config/src/sip.rs: ",
            "xtask/src/additions.rs: a configuration key: no file crates/config/src/sip.rs: ",
            "xtask/src/additions.rs: an event: crates/engine/src/event.rs has no ",
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (breach, start) in found.iter().zip(expected) {
            assert!(breach.starts_with(start), "{breach}");
        }
    }

    #[test]
    fn places_and_files_beyond_the_limits_are_breaches() {
        const PLACES: [Place; 2] = [place("a.rs", "x", ""), place("b.rs", "x", "")];
        let addition = |max_places, max_files| Addition {
            what: "a sample",
            places: &PLACES,
            max_places,
            max_files,
        };
        assert_eq!(beyond_limits(&addition(2, 2)), None);
        let expected =
            "a sample takes 2 places in 2 files: at most 2 places in 1 files are allowed"
                .to_owned();
        assert_eq!(beyond_limits(&addition(2, 1)), Some(expected));
        assert!(beyond_limits(&addition(1, 2)).is_some());
    }
}
