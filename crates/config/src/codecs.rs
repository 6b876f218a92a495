//! Transcoding towards an interface or a trunk.

use super::one_or_many::OneOrMany;
use super::sink::Sink;
use codec::kind::Kind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Condition for offering codecs of the border.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TranscodeWhen {
    /// They are offered after those of the other side of the call, so that nothing is transcoded if the sides have a
    /// common codec.
    #[default]
    Needed,
    /// Only these codecs are offered, regardless of the other side of the call.
    Always,
}

/// Transcoding towards a side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transcoding {
    /// Codecs, best first; empty: no transcoding for this side.
    pub codecs: Vec<Kind>,
    /// Condition for offering them.
    pub when: TranscodeWhen,
}

/// The settings as written; defaults are those of `inherited`.
pub(super) fn transcoding(
    written: &OneOrMany<String>,
    when: Option<TranscodeWhen>,
    inherited: &Arc<Transcoding>,
    path: &str,
    sink: &mut Sink<'_>,
) -> Arc<Transcoding> {
    let mut transcoding = (**inherited).clone();
    let base = format!("{path}.transcode");
    if !written.as_slice().is_empty() {
        transcoding.codecs = codecs(written, &base, sink);
    }
    if let Some(when) = when {
        transcoding.when = when;
        if transcoding.codecs.is_empty() {
            sink.report(
                &format!("{path}.transcode_when"),
                "`transcode_when` has no effect without codecs in `transcode`",
                "add transcode = [\"PCMA\", \"PCMU\"], or remove `transcode_when`",
            );
        }
    }
    match transcoding == **inherited {
        true => inherited.clone(),
        false => Arc::new(transcoding),
    }
}

fn codecs(written: &OneOrMany<String>, base: &str, sink: &mut Sink<'_>) -> Vec<Kind> {
    let mut codecs = Vec::new();
    for (index, name) in written.as_slice().iter().enumerate() {
        let at = written.path(base, index);
        match Kind::of_name(name) {
            Some(kind) if codecs.contains(&kind) => {
                let twice = format!("{} is listed twice", kind.name());
                sink.report(&at, twice, "list each codec once");
            }
            Some(kind) if !kind.is_available() => sink.report(
                &at,
                format!("this build does not support {}", kind.name()),
                "build with libbcg729 (Debian: libbcg729-dev), or remove the codec",
            ),
            Some(kind) => codecs.push(kind),
            None => sink.report(
                &at,
                format!("codec \"{name}\" is not supported"),
                format!("use one of {}", Kind::ALL.map(Kind::name).join(", ")),
            ),
        }
    }
    codecs
}
