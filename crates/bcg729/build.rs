//! Searches for libbcg729 in the folders of Debian and of local installations, and prefers the static archive, so that
//! the program needs no shared library. `BCG729_LIB_DIR` names another folder. If it is not found, the crate builds
//! without it and its constructors return an error; after an installation, `cargo clean -p bcg729` repeats the search.

use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(bcg729_present)");
    println!("cargo:rerun-if-env-changed=BCG729_LIB_DIR");
    println!("cargo:rerun-if-changed=build.rs");
    for folder in folders() {
        for (file, kind) in [("libbcg729.a", "static"), ("libbcg729.so", "dylib")] {
            let path = folder.join(file);
            if path.is_file() {
                // Only existing files are watched: cargo treats an absent file as changed, and would rebuild all
                // dependents of this crate with every command.
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
