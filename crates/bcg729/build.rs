//! Looks for libbcg729 where Debian and a local installation put it, and prefers the static archive, so that the program
//! needs nothing at run time. `BCG729_LIB_DIR` names another folder. Where it is not found, the crate builds without it
//! and says so when a coder is asked for; once it is installed, `cargo clean -p bcg729` lets it be looked for again.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(bcg729_present)");
    println!("cargo:rerun-if-env-changed=BCG729_LIB_DIR");
    println!("cargo:rerun-if-changed=build.rs");
    for folder in folders() {
        for (file, kind) in [("libbcg729.a", "static"), ("libbcg729.so", "dylib")] {
            let path = folder.join(file);
            if path.is_file() {
                // Only what is there is watched: a file that is not there counts as changed each time, and everything that
                // depends on this crate would be built anew by every command.
                println!("cargo:rerun-if-changed={}", path.display());
                println!("cargo:rustc-link-search=native={}", folder.display());
                println!("cargo:rustc-link-lib={kind}=bcg729");
                println!("cargo:rustc-cfg=bcg729_present");
                return;
            }
        }
    }
}

fn folders() -> Vec<PathBuf> {
    if let Some(folder) = std::env::var_os("BCG729_LIB_DIR") {
        return vec![folder.into()];
    }
    let variable = |name| std::env::var(name).unwrap_or_default();
    // Debian's triplet has no vendor: x86_64-linux-gnu.
    let triplet = format!(
        "{}-{}-{}",
        variable("CARGO_CFG_TARGET_ARCH"),
        variable("CARGO_CFG_TARGET_OS"),
        variable("CARGO_CFG_TARGET_ENV")
    );
    vec![
        PathBuf::from("/usr/local/lib"),
        PathBuf::from("/usr/lib").join(triplet),
        PathBuf::from("/usr/lib64"),
        PathBuf::from("/usr/lib"),
    ]
}
