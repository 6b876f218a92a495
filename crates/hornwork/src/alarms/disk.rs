//! Space of the file systems that the border writes to: store, call records, registrations, audit log, statistics.

use crate::full_disk::folder_of;
use config::{Config, StorePlace};
use net::{DiskSpace, disk_space};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Free space below which a disk is low: a tenth of it, at most 1 GiB.
const LOW_BYTES: u64 = 1 << 30;
/// The alarm ends at this multiple of it.
pub(super) const RECOVERED: f64 = 1.2;

/// The folders that the border writes to.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenFolders(Vec<PathBuf>);

/// A file system with the folder by which it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchedDisk {
    pub(crate) folder: String,
    pub(crate) space: DiskSpace,
}

impl WatchedDisk {
    /// Free space in multiples of the amount below which the disk is low.
    pub(super) fn room(&self) -> f64 {
        let low = (self.space.total / 10).min(LOW_BYTES);
        self.space.free as f64 / low.max(1) as f64
    }

    /// Text of the alarm.
    pub(super) fn detail(&self) -> String {
        let DiskSpace { free, total } = self.space;
        let percent = free as f64 * 100.0 / total.max(1) as f64;
        format!("{} MiB free, {percent:.1} %", free >> 20)
    }
}

impl WrittenFolders {
    /// Those of a configuration; their settings change at a start only. `registrations`: the file of registrations.
    pub(crate) fn of(config: &Config, registrations: Option<PathBuf>) -> WrittenFolders {
        let store = config.store.as_ref().and_then(|store| match &store.place {
            StorePlace::Folder(folder) => Some(folder.clone()),
            StorePlace::Database(_) => None,
        });
        let records = config
            .records
            .as_ref()
            .map(|records| records.folder.clone());
        let audit = config
            .console
            .as_ref()
            .and_then(|console| console.audit.clone());
        let csv = config
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.csv.clone());
        let files = [registrations, audit, csv].into_iter().flatten();
        let folders = files.map(|file| folder_of(&file).to_owned());
        WrittenFolders(
            [store, records]
                .into_iter()
                .flatten()
                .chain(folders)
                .collect(),
        )
    }

    /// Their file systems, each once. It may take long on a remote one: not for a thread with packets.
    pub(crate) fn disks(&self) -> Vec<WatchedDisk> {
        let mut devices = BTreeSet::new();
        let mut disks = Vec::new();
        for folder in &self.0 {
            // A folder that is missing, or cannot be read, is an alarm of its writer.
            let Ok(metadata) = std::fs::metadata(folder) else {
                continue;
            };
            // Some file systems tell no size.
            if let Ok(space) = disk_space(folder)
                && space.total > 0
                && devices.insert(metadata.dev())
            {
                disks.push(WatchedDisk {
                    folder: folder.display().to_string(),
                    space,
                });
            }
        }
        disks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_measured_once() {
        let folder = std::env::temp_dir();
        let text = format!(
            "[[interface]]\nname='x'\nlisten='udp:192.0.2.1'\n[store]\nfolder='{0}'\n[records]\nfolder='{0}'\n[metrics]\ncsv='{0}/statistics.csv'\n",
            folder.display()
        );
        let config = config::parse(&text, "test").unwrap();
        let folders = WrittenFolders::of(&config, Some(folder.join("registrations.db")));
        assert_eq!(folders.0.len(), 4);
        let here = WrittenFolders::of(&config, Some("registrations.db".into()));
        assert!(here.0.contains(&PathBuf::from(".")), "{here:?}");
        let disks = folders.disks();
        assert_eq!(disks.len(), 1);
        assert_eq!(disks[0].folder, folder.display().to_string());
        let space = disks[0].space;
        assert!(space.total > 0 && space.free <= space.total, "{space:?}");
    }
}
