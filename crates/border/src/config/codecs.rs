//! Which codecs the border speaks towards an interface or a trunk on its own account.

use super::check::Sink;
use super::raw::OneOrMany;
use codec::kind::Kind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// When we speak them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TranscodeWhen {
    /// Offered behind those of the other side of the call, so that nothing is transcoded where both sides have a codec in common.
    #[default]
    Needed,
    /// Only these are offered, whatever the other side of the call has.
    Always,
}

/// Codecs of our own towards a side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcoding {
    /// The codecs, the best first; none: nothing is transcoded for this side.
    pub codecs: Vec<Kind>,
    /// When we speak them.
    pub when: TranscodeWhen,
}

/// What is written, where it is not what `inherited` says already.
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
                "`transcode_when` has no effect, because no codec is named",
                "add transcode = [\"PCMA\", \"PCMU\"], or take it out",
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
        let known = Kind::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(name));
        match known {
            Some(kind) if codecs.contains(&kind) => {
                let twice = format!("{} stands twice", kind.name());
                sink.report(&at, twice, "name each codec once");
            }
            Some(kind) if !kind.is_available() => sink.report(
                &at,
                format!("this build has no {}", kind.name()),
                "build it where libbcg729 is installed (Debian: libbcg729-dev), or take it out",
            ),
            Some(kind) => codecs.push(kind),
            None => sink.report(
                &at,
                format!("\"{name}\" is no codec that we have"),
                format!("write one of {}", Kind::ALL.map(Kind::name).join(", ")),
            ),
        }
    }
    codecs
}
