//! Compiles the BPF programs of `ebpf/` with clang. BPF is a virtual machine of the kernel, so the result runs on
//! every architecture. If clang is missing or fails, the crate is built without the programs and their use returns an
//! error. `CLANG` sets another compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the sources, from that of the package.
const SOURCES: &str = "../../ebpf";

/// Programs with their additional compiler flags. The relay needs the kernel's atomic operations (5.12).
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("steer", &[]),
    ("relay", &["-mcpu=v3"]),
    ("xsk", &["-mcpu=v3"]),
    ("measure", &["-mcpu=v3"]),
];

fn main() {
    println!("cargo:rustc-check-cfg=cfg(bpf_present)");
    println!("cargo:rerun-if-env-changed=CLANG");
    println!("cargo:rerun-if-env-changed=PATH");
    println!("cargo:rerun-if-changed=build.rs");
    // No path of this checkout is compiled in or left to cargo: checkouts that share a target folder run the script
    // that one of them has compiled.
    println!("cargo:rerun-if-changed={SOURCES}");
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let folder = Path::new(&package).join(SOURCES);
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    match PROGRAMS
        .iter()
        .try_for_each(|(name, flags)| compile(&clang, &folder, name, flags, &out))
    {
        Ok(()) => println!("cargo:rustc-cfg=bpf_present"),
        Err(why) => println!("cargo:warning=built without BPF programs: {why}"),
    }
}

fn compile(
    clang: &str,
    folder: &Path,
    name: &str,
    flags: &[&str],
    out: &Path,
) -> Result<(), String> {
    let architecture = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // Architectures with a total store order.
    let ordered = matches!(architecture.as_str(), "x86_64" | "s390x");
    let source = folder.join(format!("{name}.c"));
    let done = Command::new(clang)
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Werror"])
        .args(flags)
        .args(ordered.then_some("-DSTORES_IN_ORDER"))
        // Debian's directory of architecture-specific kernel headers.
        .arg(format!("-I/usr/include/{architecture}-linux-gnu"))
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(out.join(format!("{name}.o")))
        .output()
        .map_err(|error| format!("{clang}: {error}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let first = said.lines().find(|line| line.contains("error"));
    Err(format!(
        "{}: {}",
        source.display(),
        first.unwrap_or("clang failed without an error message")
    ))
}
