//! `[records]`: call records.

use super::sink::Sink;
use core::time::Duration;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

/// Call records (CDRs): one for each call that ended, was refused or was cut by a crash; docs/records.md has the
/// fields. Off if the table is absent. Takes effect at the next start.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRecords {
    /// Folder of the files: `cdr.ndjson`, `cdr.csv`, rotated files, and the journal of running calls. It is created if
    /// its parent exists.
    pub folder: String,
    /// `ndjson`: one JSON object a line; `csv`: RFC 4180 with a header line; `both`.
    #[serde(default)]
    pub format: RecordFormat,
    /// Size in MiB from which a file is rotated: renamed to `cdr-DATE.ndjson` or `cdr-DATE.csv`.
    #[serde(default = "rotate_mib")]
    #[schemars(range(min = 1, max = 100_000))]
    pub rotate_mib: u32,
    /// Age in hours from which a file is rotated.
    #[serde(default = "rotate_hours")]
    #[schemars(range(min = 1, max = 8_760))]
    pub rotate_h: u32,
    /// Days for which rotated files are kept. 0: without limit.
    #[serde(default = "keep_days")]
    #[schemars(range(max = 36_500))]
    pub keep_days: u32,
    /// Total size in MiB of the rotated files; the oldest are removed first. 0: without limit.
    #[serde(default)]
    #[schemars(range(max = 100_000_000))]
    pub keep_mib: u32,
}

fn rotate_mib() -> u32 {
    100
}

fn rotate_hours() -> u32 {
    24
}

fn keep_days() -> u32 {
    90
}

/// Format of call records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    /// JSON lines.
    #[default]
    Ndjson,
    /// CSV.
    Csv,
    /// JSON lines and CSV.
    Both,
}

/// Where and how call records are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsSpec {
    /// The folder.
    pub folder: PathBuf,
    /// The format.
    pub format: RecordFormat,
    /// Size of a file in bytes from which it is rotated.
    pub rotate_bytes: u64,
    /// Age of a file from which it is rotated.
    pub rotate_after: Duration,
    /// Age of rotated files at which they are removed.
    pub keep: Option<Duration>,
    /// Total bytes of rotated files.
    pub keep_bytes: Option<u64>,
}

/// The call records of a file.
pub(super) fn records(raw: Option<&RawRecords>, sink: &mut Sink<'_>) -> Option<RecordsSpec> {
    let written = raw?;
    if written.folder.is_empty() {
        sink.report(
            "records.folder",
            "`folder` is empty",
            "write the path of a folder, for example \"/var/lib/hornwork/records\"",
        );
    }
    let keep = Duration::from_secs(u64::from(written.keep_days) * 86_400);
    Some(RecordsSpec {
        folder: sink.path(&written.folder),
        format: written.format,
        rotate_bytes: u64::from(written.rotate_mib) << 20,
        rotate_after: Duration::from_secs(u64::from(written.rotate_h) * 3_600),
        keep: (written.keep_days != 0).then_some(keep),
        keep_bytes: (written.keep_mib != 0).then_some(u64::from(written.keep_mib) << 20),
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::RecordFormat;

    fn with(more: &str) -> Result<Option<super::RecordsSpec>, String> {
        let text = format!("[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n{more}");
        parse(&text, "f")
            .map(|config| config.records)
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn records_are_on_by_one_key() {
        assert_eq!(with("").unwrap(), None);
        let spec = with("[records]\nfolder=\"/r\"\n").unwrap().unwrap();
        assert_eq!(spec.format, RecordFormat::Ndjson);
        assert_eq!(spec.rotate_bytes, 100 << 20);
        assert_eq!(spec.keep_bytes, None);
        let spec = with("[records]\nfolder=\"/r\"\nformat=\"both\"\nkeep_days=0\n");
        let spec = spec.unwrap().unwrap();
        assert_eq!((spec.format, spec.keep), (RecordFormat::Both, None));
    }

    #[test]
    fn mistakes_about_records_name_the_key() {
        for (more, expected) in [
            ("", "`folder` is missing"),
            ("folder=\"\"", "`folder` is empty"),
            ("folder=\"/r\"\nformat=\"xml\"", "format"),
            ("folder=\"/r\"\nrotate_mib=0", "rotate_mib"),
        ] {
            let said = with(&format!("[records]\n{more}\n")).unwrap_err();
            assert!(said.contains(expected), "{more}: {said}");
        }
    }
}
