//! Lists the built pages of the web console, which `include_bytes!` takes into the program.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let dist = root.join("web/dist");
    println!("cargo:rerun-if-changed=build.rs");
    // The parent, so that a first build of the pages is noticed.
    println!(
        "cargo:rerun-if-changed={}",
        match dist.is_dir() {
            true => dist.display(),
            false => root.display(),
        }
    );
    let mut files = BTreeMap::new();
    collect(&dist, "", &mut files);
    // The record of the build is not served.
    files.retain(|name, _| !name.ends_with(".sha256"));
    let mut list = "&[\n".to_owned();
    for (name, path) in &files {
        println!("cargo:rerun-if-changed={}", path.display());
        let bytes = std::fs::read(path).expect("a readable file");
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let tag = format!("\"{:016x}\"", hasher.finish());
        // Writing into a String cannot fail.
        let _ = writeln!(
            list,
            "PageFile {{ path: {name:?}, tag: {tag:?}, bytes: include_bytes!({:?}) }},",
            path.display().to_string()
        );
    }
    list.push(']');
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    std::fs::write(out.join("pages.rs"), list).expect("a writable file");
}

/// Files below `folder`, by their paths with slashes.
fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if path.is_dir() {
            collect(&path, &format!("{prefix}{name}/"), files);
        } else {
            files.insert(format!("{prefix}{name}"), path);
        }
    }
}
