//! `make install`: installed files and their properties.

use crate::common;

use common::root;
use std::path::Path;
use std::process::Command;

/// Names of the sections of an ELF file, as listed by readelf.
fn sections(file: &Path) -> String {
    let log = Command::new("readelf").arg("-SW").arg(file).output();
    let log = log.expect("readelf");
    assert!(log.status.success(), "{}", file.display());
    String::from_utf8_lossy(&log.stdout).into_owned()
}

#[test]
fn installed_program_is_stripped_with_separate_debug_information() {
    for program in ["objcopy", "readelf"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: not installed: {program}");
            return;
        }
    }
    let folder = std::env::temp_dir().join(format!("hornwork-install-{}", std::process::id()));
    let install = || {
        Command::new(root().join("packaging/install"))
            .arg(env!("CARGO_BIN_EXE_hornwork"))
            .arg(&folder)
            .output()
            .expect("packaging/install")
    };
    let done = install();
    assert!(done.status.success(), "{done:?}");
    let installed = folder.join("usr/bin/hornwork");
    let found = sections(&installed);
    assert!(!found.contains(".debug_line") && !found.contains(".symtab"));
    assert!(found.contains(".gnu_debuglink"), "{found}");
    let debug = folder.join("usr/lib/debug/usr/bin/hornwork.debug");
    let (built, kept) = (
        sections(Path::new(env!("CARGO_BIN_EXE_hornwork"))),
        sections(&debug),
    );
    // A profile may build without debug information.
    for section in [".symtab", ".debug_line"] {
        assert_eq!(built.contains(section), kept.contains(section), "{section}");
    }
    let runs = Command::new(&installed).arg("--version").output();
    assert!(runs.expect("the installed program").status.success());
    let checked = Command::new(&installed)
        .args(["check", "-c"])
        .arg(folder.join("etc/hornwork/hornwork.toml"))
        .output()
        .expect("hornwork check");
    assert!(checked.status.success(), "{checked:?}");
    for file in [
        "usr/lib/systemd/system/hornwork.service",
        "usr/lib/sysusers.d/hornwork.conf",
    ] {
        assert!(folder.join(file).is_file(), "{file}");
    }
    // A second installation replaces the program and keeps the configuration.
    let own = folder.join("etc/hornwork/hornwork.toml");
    std::fs::write(&own, "# mine\n").expect("configuration");
    assert!(install().status.success());
    assert_eq!(
        std::fs::read_to_string(&own).expect("configuration"),
        "# mine\n"
    );
    let _ = std::fs::remove_dir_all(&folder);
}
