//! Experiment files: TOML with a closed set of keys; errors name the line.
//!
//! An *experiment* is a file. With a level of its sweep and a repetition it becomes a *trial*, which is one run.
//! `--set` overrides and the sweep address keys in the same way: dotted paths into the file.

mod bound;
mod built_in;
mod checks;
mod codec_name;
mod esp_load;
mod model;
mod network;
mod parse;
mod phone_load;
mod protection;
mod remedy;
mod renamed_keys;
mod search_plan;
mod study;
mod template;

pub use bound::{FigureBound, PEAK, PeakPlan, ReferenceValue};
pub use built_in::{BUILT_IN, built_in};
pub use codec_name::CodecName;
pub use esp_load::{EspLoad, EspMeasurement, EspModeName};
pub(crate) use model::SPARE_DESCRIPTORS;
pub use model::{
    CallFlow, Callees, Callers, ConferenceLoad, Experiment, GeneratorSettings, HangUp, HoldKind,
    IpVersions, Levels, LinkSettings, MediaKind, PaceKind, RegistrarLocation, Registrations,
    StreamLoad, Sut, SutMedia, Thresholds, TransportName,
};
pub use network::{DownSettings, NetworkSettings};
pub use parse::{File, Level};
pub use phone_load::PhoneLoad;
pub use protection::Protection;
pub use search_plan::{SearchMethod, SearchPlan};
pub use study::{CAPACITY, Study, StudyLevel};
pub use template::{escape, fill};

/// A text as a TOML value, for an override: Rust's own escapes are others for marks of the direction of writing.
pub fn toml_text(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

/// Most repetitions of one run; a typing error must not cause a run of years.
pub(crate) const MOST_REPETITIONS: u32 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_users_are_valid_overrides() {
        for text in ["./my lab/x.toml", "\u{200f}\u{5d0}.toml", "a\"b\\c\n", ""] {
            let parsed: toml_edit::Value = toml_text(text).parse().unwrap();
            assert_eq!(parsed.as_str(), Some(text));
        }
    }
}
