//! Whether the pages of the web console in `crates/console/web/dist` were built from the sources beside them. The build
//! writes a list with the SHA-256 of every source and of every result (`scripts/sources.mjs`); comparing it needs no
//! Node.

use crate::process::root;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Folder of the pages.
const FOLDER: &str = "crates/console/web";
/// The list, in the format of `sha256sum`.
const LIST: &str = "dist/sources.sha256";
/// Licences of the packages with code in the pages.
const LICENCES: &str = "dist/licenses.txt";
/// Files and folders that decide the build, and its results: as in `scripts/sources.mjs`.
const SOURCES: [&str; 11] = [
    ".npmrc",
    "dist",
    "index.html",
    "package-lock.json",
    "package.json",
    "public",
    "scripts",
    "src",
    "svelte.config.js",
    "tsconfig.json",
    "vite.config.js",
];

/// Differences between the list and the files.
pub fn stale() -> Vec<String> {
    let folder = root().join(FOLDER);
    let recorded = match std::fs::read_to_string(folder.join(LIST)) {
        Ok(text) => text,
        Err(error) => return vec![format!("{FOLDER}/{LIST}: {error}; run: npm run build")],
    };
    let mut files = BTreeMap::new();
    for name in SOURCES {
        if let Err(why) = collect(&folder, name, &mut files) {
            return vec![why];
        }
    }
    files.remove(LIST);
    differences(&recorded, &files)
}

/// A package with code in the pages: name, version, licence.
pub fn packages() -> Result<Vec<(String, String, String)>, String> {
    let path = root().join(FOLDER).join(LICENCES);
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let packages = listed(&text);
    match packages.is_empty() {
        true => Err(format!("{}: no packages", path.display())),
        false => Ok(packages),
    }
}

/// The first line of each part: `name version (licence)`.
fn listed(text: &str) -> Vec<(String, String, String)> {
    let part = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let (version, licence) = rest.split_once(" (")?;
        let licence = licence.strip_suffix(')')?;
        version
            .starts_with(|c: char| c.is_ascii_digit())
            .then(|| (name.to_owned(), version.to_owned(), licence.to_owned()))
    };
    // The first part follows the head of the file, the others a line of dashes.
    let heads = text.split("\n---\n\n").enumerate();
    heads
        .filter_map(|(at, one)| part(one.lines().nth(if at == 0 { 2 } else { 0 })?))
        .collect()
}

/// The hashes of a file, or of all files below a folder, by their paths from the folder of the pages.
fn collect(folder: &Path, name: &str, files: &mut BTreeMap<String, String>) -> Result<(), String> {
    let path = folder.join(name);
    let failed = |error: std::io::Error| format!("{FOLDER}/{name}: {error}");
    if path.is_dir() {
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let child = entry.map_err(failed)?.file_name();
            collect(
                folder,
                &format!("{name}/{}", child.to_string_lossy()),
                files,
            )?;
        }
    } else if path.exists() {
        let bytes = std::fs::read(&path).map_err(failed)?;
        files.insert(name.to_owned(), hex(&Sha256::digest(bytes)));
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn differences(recorded: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let recorded: BTreeMap<&str, &str> = recorded
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(hash, name)| (name, hash))
        .collect();
    let stale = |name: &str, why: &str| {
        format!(
            "{FOLDER}/{name} {why} the last build of the pages; run there: npm ci && npm run build"
        )
    };
    let changed = files
        .iter()
        .filter_map(|(name, hash)| match recorded.get(name.as_str()) {
            None => Some(stale(name, "is newer than")),
            Some(known) => (known != hash).then(|| stale(name, "was changed after")),
        });
    let removed = recorded
        .keys()
        .filter(|name| !files.contains_key(**name))
        .map(|name| stale(name, "was removed after"));
    changed.chain(removed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_new_and_removed_files_are_named() {
        let files = |list: &[(&str, &str)]| {
            let pairs = list
                .iter()
                .map(|(name, hash)| ((*name).to_owned(), (*hash).to_owned()));
            pairs.collect::<BTreeMap<_, _>>()
        };
        let recorded = "aa  src/a.ts\nbb  src/b.ts\n";
        assert!(
            differences(recorded, &files(&[("src/a.ts", "aa"), ("src/b.ts", "bb")])).is_empty()
        );
        let found = differences(recorded, &files(&[("src/a.ts", "ab"), ("src/c.ts", "cc")]));
        let named = |part: &str| found.iter().any(|one| one.contains(part));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            named("src/a.ts was changed")
                && named("src/c.ts is newer")
                && named("src/b.ts was removed")
        );
        assert_eq!(hex(&[0, 255]), "00ff");
    }

    #[test]
    fn packages_of_the_pages_are_listed() {
        let text =
            "Head.\n\nclsx 2.1.1 (MIT)\n\nText (of) licence\n\n---\n\n@a/b 1.0.0 (ISC)\n\nx\n";
        let package = |name: &str, version: &str, licence: &str| {
            (name.to_owned(), version.to_owned(), licence.to_owned())
        };
        assert_eq!(
            listed(text),
            [
                package("clsx", "2.1.1", "MIT"),
                package("@a/b", "1.0.0", "ISC")
            ]
        );
    }
}
