//! The software bill of materials of the program: its crates with versions, licences and checksums, as CycloneDX 1.5
//! JSON.
//!
//! With them: the packages with code in the built pages of the web console. Crates that are used by tests or at build
//! time only are not part of the program and not listed.

use crate::pages;
use crate::process::root;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Libraries of C: name, licence, purpose. Their code is linked from the system or built from a crate's copy.
const C_LIBRARIES: [(&str, &str, &str); 2] = [
    (
        "bcg729",
        "GPL-3.0-or-later",
        "G.729, linked from the system where it is installed at build time",
    ),
    (
        "opus",
        "BSD-3-Clause",
        "Opus, built from the copy in opusic-sys",
    ),
];

/// Writes the bill of materials to `file`, or to standard output for `-`.
pub fn write(file: &str) -> Result<(), String> {
    let text = format!("{:#}\n", bill()?);
    if file == "-" {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(file, text).map_err(|error| format!("{file}: {error}"))
}

fn bill() -> Result<Value, String> {
    let output = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("cargo metadata: {why}"));
    }
    let metadata = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let lock = root().join("Cargo.lock");
    let lock =
        std::fs::read_to_string(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let mut bill = from_metadata(&metadata, &checksums(&lock), "hornwork")?;
    if let Some(components) = bill["components"].as_array_mut() {
        components.extend(pages::packages()?.iter().map(page_component));
    }
    Ok(bill)
}

/// The SHA-256 of each package of Cargo.lock, by name and version; packages of the workspace have none.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |block: &str, name: &str| {
        block.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.trim_start().strip_prefix('=')?;
            Some(value.trim().trim_matches('"').to_owned())
        })
    };
    lock.split("[[package]]")
        .filter_map(|block| {
            let key = (field(block, "name")?, field(block, "version")?);
            Some((key, field(block, "checksum")?))
        })
        .collect()
}

/// The bill of the package `program` from the output of `cargo metadata`.
fn from_metadata(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    program: &str,
) -> Result<Value, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let top = packages
        .iter()
        .find(|(_, package)| text(&package["name"]) == program)
        .map(|(id, _)| id.clone())
        .ok_or(format!("cargo metadata: no package {program}"))?;
    let nodes: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), linked(node)))
        .collect();
    let mut open = vec![top.clone()];
    let mut used = BTreeSet::new();
    while let Some(id) = open.pop() {
        if used.insert(id.clone()) {
            open.extend(nodes.get(&id).into_iter().flatten().cloned());
        }
    }
    let reference = |id: &String| packages.get(id).map(purl).unwrap_or_default();
    let mut components: Vec<Value> = used
        .iter()
        .filter(|id| **id != top)
        .filter_map(|id| packages.get(id))
        .map(|package| component(package, checksums))
        .collect();
    components.extend(C_LIBRARIES.map(|(name, licence, purpose)| {
        json!({
            "type": "library",
            "bom-ref": format!("pkg:generic/{name}"),
            "name": name,
            "purl": format!("pkg:generic/{name}"),
            "licenses": [{ "license": { "id": licence } }],
            "description": purpose,
        })
    }));
    let dependencies: Vec<Value> = used
        .iter()
        .map(|id| {
            let on: BTreeSet<String> = nodes.get(id).into_iter().flatten().map(reference).collect();
            json!({ "ref": reference(id), "dependsOn": on })
        })
        .collect();
    let mut root = component(&packages[&top], checksums);
    root["type"] = json!("application");
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": root },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// The packages that a node links: normal dependencies, without those of tests and build scripts.
fn linked(node: &Value) -> Vec<String> {
    let normal = |dependency: &&Value| {
        dependency["dep_kinds"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
    };
    let dependencies = node["deps"].as_array();
    dependencies
        .into_iter()
        .flatten()
        .filter(normal)
        .map(|dependency| text(&dependency["pkg"]))
        .collect()
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": name,
        "version": version,
        "purl": purl(package),
    });
    // "MIT/Apache-2.0" is the form before SPDX expressions.
    let licence = text(&package["license"]).replace('/', " OR ");
    if !licence.is_empty() {
        component["licenses"] = json!([{ "expression": licence }]);
    }
    if let Some(checksum) = checksums.get(&(name, version)) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// A package with code in the pages of the web console (name, version, licence).
fn page_component((name, version, licence): &(String, String, String)) -> Value {
    let purl = format!("pkg:npm/{}@{version}", name.replace('@', "%40"));
    json!({
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": [{ "expression": licence }],
    })
}

/// The package URL (purl specification, type cargo).
fn purl(package: &Value) -> String {
    let (name, version) = (text(&package["name"]), text(&package["version"]));
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The default file, below the folder of build results.
pub fn default_file() -> String {
    let folder = root().join("target");
    let _ = std::fs::create_dir_all(&folder);
    Path::new(&folder)
        .join("hornwork.cdx.json")
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bill_lists_linked_crates_with_licence_and_checksum() {
        let bill = bill().expect("cargo metadata");
        let components = bill["components"].as_array().expect("a list");
        let find = |name: &str| components.iter().find(|one| one["name"] == name);
        let rustls = find("rustls").expect("TLS is linked");
        assert_eq!(
            rustls["licenses"][0]["expression"],
            "Apache-2.0 OR ISC OR MIT"
        );
        assert_eq!(text(&rustls["hashes"][0]["content"]).len(), 64);
        assert!(
            find("border").is_some(),
            "crates of the workspace are listed"
        );
        assert!(find("bcg729").is_some() && find("opus").is_some());
        assert_eq!(
            find("svelte").expect("in the pages")["licenses"][0]["expression"],
            "MIT"
        );
        for only_in_tests in ["proptest", "criterion", "xtask", "vite"] {
            assert!(find(only_in_tests).is_none(), "{only_in_tests}");
        }
        assert_eq!(bill["metadata"]["component"]["name"], "hornwork");
        // Each reference leads to a component.
        let known: BTreeSet<String> = components
            .iter()
            .chain([&bill["metadata"]["component"]])
            .map(|one| text(&one["bom-ref"]))
            .collect();
        for edge in bill["dependencies"].as_array().expect("a list") {
            assert!(known.contains(&text(&edge["ref"])), "{edge}");
            for on in edge["dependsOn"].as_array().expect("a list") {
                assert!(known.contains(&text(on)), "{on}");
            }
        }
    }
}
