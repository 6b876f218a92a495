//! `make install`: installed files and their properties.

use crate::common;

use common::root;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
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

#[test]
fn old_rust_is_named_before_the_build() {
    let folder = common::scratch("cargo");
    let cargo = folder.join("cargo");
    let setup = |version: &str| {
        std::fs::write(
            &cargo,
            format!("#!/bin/sh\necho 'cargo {version} (x 2026-01-01)'\n"),
        )
        .expect("program");
        std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("mode");
        let output = Command::new(root().join("packaging/setup"))
            .args(["--cargo", "1.95"])
            .env("CARGO", &cargo)
            .output()
            .expect("packaging/setup");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = setup("1.63.0");
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("1.63.0 is too old") && text.contains("rustup"),
        "{text}"
    );
    for good in ["1.95.0", "1.100.1", "2.0.0-nightly"] {
        assert_eq!(setup(good), (Some(0), String::new()), "{good}");
    }
    std::fs::remove_file(&cargo).expect("program");
    let output = Command::new(root().join("packaging/setup"))
        .args(["--cargo", "1.95"])
        .env("CARGO", &cargo)
        .output()
        .expect("packaging/setup");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("missing: cargo") && text.contains("rustup"),
        "{text}"
    );
}

/// Root has no cargo where rustup has installed it for another user.
#[test]
fn built_program_is_installed_without_cargo() {
    let dry_run = |program: &str| {
        let output = Command::new("make")
            .current_dir(root())
            .args(["--no-print-directory", "--dry-run", "install"])
            .arg(format!("HORNWORK={program}"))
            .output()
            .expect("make");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let built = dry_run(env!("CARGO_BIN_EXE_hornwork"));
    assert!(built.contains("packaging/install"), "{built}");
    assert!(!built.contains("build --release"), "{built}");
    let absent = dry_run("/nowhere/hornwork");
    assert!(absent.contains("build --release --locked"), "{absent}");
}

/// Installs, upgrades, runs and purges the Debian package in an overlay over the root file system, which ends with the
/// process.
const INSTALL_IN_OVERLAY: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/tree
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/tree
mount -t proc proc /mnt/tree/proc
cp "$1" /mnt/tree/package.deb
cat > /mnt/tree/steps <<'EOF'
set -e
dpkg -i /package.deb
hornwork --version
hornwork check -c /etc/hornwork/hornwork.toml > /dev/null
test "$(stat -c '%U:%G %a' /etc/hornwork/hornwork.toml)" = 'root:hornwork 640'
for file in /usr/share/man/man1/hornwork.1.gz /usr/share/man/man1/hornwork-run.1.gz \
  /usr/share/bash-completion/completions/hornwork /usr/share/zsh/vendor-completions/_hornwork \
  /usr/share/fish/vendor_completions.d/hornwork.fish /usr/lib/systemd/system/hornwork.service \
  /usr/share/doc/hornwork/examples/pbx.toml /usr/share/doc/hornwork/examples/browser/index.html \
  /usr/share/doc/hornwork/examples/browser/phone.js /usr/share/doc/hornwork/examples/browser/package-lock.json \
  /usr/share/doc/hornwork/examples/monitoring/hornwork.rules.yml /usr/share/doc/hornwork/examples/monitoring/grafana.json \
  /usr/share/doc/hornwork/examples/snmp/HORNWORK-MIB.txt /usr/share/doc/hornwork/examples/hornwork-gateway.conf \
  /usr/share/doc/hornwork/docs/configuration.md /usr/share/doc/hornwork/docs/how-to/ipsec-gateway.md \
  /usr/share/doc/hornwork/packaging/README.md; do test -s "$file" || { echo "no $file"; exit 1; }; done
# A secret that root has made is given to the service, as on the page.
cp /etc/hornwork/hornwork.toml /etc/hornwork/token.toml
printf '[control]\nlisten = "http:127.0.0.1:8080"\ntoken_file = "control.token"\n' >> /etc/hornwork/token.toml
chown root:hornwork /etc/hornwork/token.toml; chmod 640 /etc/hornwork/token.toml
(umask 077; echo 0123456789abcdef0123456789abcdef > /etc/hornwork/control.token)
service() { setpriv --reuid=hornwork --regid=hornwork --clear-groups "$@"; }
! service hornwork check -c /etc/hornwork/token.toml > /dev/null 2> /denied || { echo 'no owner needed'; exit 1; }
grep -q 'chown hornwork:hornwork /etc/hornwork/control.token' /denied || { cat /denied; exit 1; }
chown hornwork:hornwork /etc/hornwork/control.token
chmod 600 /etc/hornwork/control.token
service hornwork check -c /etc/hornwork/token.toml > /dev/null
rm /etc/hornwork/token.toml /etc/hornwork/control.token
# An administrator enables the unit, as systemctl does it.
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s /usr/lib/systemd/system/hornwork.service /etc/systemd/system/multi-user.target.wants/hornwork.service
ip link set lo up
# An address that the packaged configuration and the example have, and this machine does not.
for address in $(grep -hoE '(udp|tcp):[0-9.]+' /etc/hornwork/hornwork.toml /usr/share/doc/hornwork/examples/pbx.toml | cut -d : -f 2 | sort -u); do
  ip address add "$address/32" dev lo 2>/dev/null || true
done
for file in /etc/hornwork/hornwork.toml /usr/share/doc/hornwork/examples/pbx.toml; do
  hornwork run -c "$file" > /run.log 2>&1 &
  border=$!
  for n in $(seq 300); do grep -q socket_opened /run.log && break; sleep 0.1; done
  kill -TERM $border
  wait $border || { echo "$file did not run"; cat /run.log; exit 1; }
  grep -q socket_opened /run.log || { echo "no socket of $file"; cat /run.log; exit 1; }
  echo "ran $file"
done
# An upgrade, beside a systemd that is not there: the package is installed over itself, and the calls of the script are logged.
mkdir -p /run/systemd/system /usr/local/bin
for name in systemctl deb-systemd-invoke; do
  printf '#!/bin/sh\necho "%s $*" >> /calls\n' $name > /usr/local/bin/$name
  chmod 755 /usr/local/bin/$name
done
# As on the page on upgrades, in the root folder.
cp /package.deb /hornwork_1.deb
dpkg-deb -x hornwork_*.deb new
new/usr/bin/hornwork check -c /etc/hornwork/hornwork.toml > /dev/null
dpkg -i /package.deb
grep -q '^deb-systemd-invoke try-restart hornwork.service$' /calls || { echo 'no restart'; cat /calls; exit 1; }
rm /calls
echo 'blurb = 1' >> /etc/hornwork/hornwork.toml
dpkg -i /package.deb 2> /refused || { cat /refused; exit 1; }
! grep restart /calls || { echo 'restarted with a mistake'; exit 1; }
grep -q 'unknown key `blurb`' /refused && grep -q 'the old one runs on' /refused || { cat /refused; exit 1; }
rm -r /run/systemd /usr/local/bin/systemctl /usr/local/bin/deb-systemd-invoke
echo upgraded
dpkg -P hornwork
for file in /usr/bin/hornwork /etc/hornwork/hornwork.toml /usr/share/man/man1/hornwork.1.gz; do
  test ! -e "$file" || { echo "$file stays"; exit 1; }
done
test ! -L /etc/systemd/system/multi-user.target.wants/hornwork.service || { echo 'the unit stays enabled'; exit 1; }
echo purged
EOF
PATH=/usr/local/bin:$PATH:/usr/sbin:/sbin chroot /mnt/tree sh /steps
"#;

/// Number of relative links of the pages in a folder, and those without a target.
fn follow_links(folder: &Path) -> (usize, Vec<String>) {
    let (mut followed, mut dead) = (0, Vec::new());
    let mut remaining = vec![folder.to_owned()];
    while let Some(path) = remaining.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("folder");
            remaining.extend(entries.map(|entry| entry.expect("entry").path()));
            continue;
        }
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a page");
        let beside = path.parent().expect("a folder");
        let mut is_code = false;
        for line in text.lines() {
            is_code ^= line.trim_start().starts_with("```");
            let links = line.split("](").skip(1).filter(|_| !is_code);
            for link in links {
                let target = link.split([')', '#']).next().unwrap_or_default();
                if target.is_empty() || target.contains(':') {
                    continue;
                }
                followed += 1;
                if !beside.join(target).exists() {
                    dead.push(format!("{}: {target}", path.display()));
                }
            }
        }
    }
    (followed, dead)
}

#[test]
fn debian_package_is_installed_run_and_purged() {
    for program in [
        "dpkg-deb",
        "dpkg-shlibdeps",
        "objcopy",
        "gzip",
        "systemd-sysusers",
        "deb-systemd-helper",
        "setpriv",
        "ip",
    ] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: not installed: {program}");
            return;
        }
    }
    let out = common::scratch("deb");
    let built = Command::new(root().join("packaging/deb"))
        .arg(env!("CARGO_BIN_EXE_hornwork"))
        .arg(&out)
        // The program of the tests is large, and the package lives for a moment.
        .env("DPKG_DEB_COMPRESSOR_TYPE", "gzip")
        .env("DPKG_DEB_COMPRESSOR_LEVEL", "1")
        .output()
        .expect("packaging/deb");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let names = String::from_utf8_lossy(&built.stdout).into_owned();
    let package = names.lines().next().expect("a package");
    let unpacked = out.join("unpacked");
    let unpacking = Command::new("dpkg-deb")
        .args(["-x", package])
        .arg(&unpacked)
        .status();
    assert!(unpacking.expect("dpkg-deb").success());
    let (followed, dead) = follow_links(&unpacked.join("usr/share/doc/hornwork"));
    assert!(followed > 100, "{followed} links");
    assert!(dead.is_empty(), "{dead:#?}");
    let overlay = Command::new("unshare")
        .args(["-m", "-n", "sh", "-c", INSTALL_IN_OVERLAY, "sh", package])
        .output()
        .expect("unshare");
    let log = format!(
        "{}{}",
        String::from_utf8_lossy(&overlay.stdout),
        String::from_utf8_lossy(&overlay.stderr)
    );
    let no_right = [
        "Operation not permitted",
        "permission denied",
        "unshare failed",
    ];
    if !overlay.status.success() && no_right.iter().any(|text| log.contains(text)) {
        println!("skipped: no right to mount an overlay: {log}");
        return;
    }
    assert!(overlay.status.success() && log.contains("purged"), "{log}");
    assert_eq!(log.matches("\nran /").count(), 2, "{log}");
    assert!(log.contains("\nupgraded\n"), "{log}");
    // Lintian judges the packages where it is installed.
    let mut lintian = Command::new("lintian");
    // The program of the tests may have been built without debug information.
    let without = "--suppress-tags=debug-file-with-no-debug-symbols";
    lintian.args(["--fail-on", "error,warning", without]);
    lintian.args(names.lines());
    match lintian.output() {
        Ok(report) => assert!(
            report.status.success(),
            "{}{}",
            String::from_utf8_lossy(&report.stdout),
            String::from_utf8_lossy(&report.stderr)
        ),
        Err(_) => println!("skipped: not installed: lintian"),
    }
}

/// User and group of the image.
const IMAGE_USER: u32 = 65_534;

/// Builds the image of packaging/Containerfile with buildah, and runs the border in a container of it.
#[test]
fn image_is_built_and_runs_the_border() {
    if !common::installed(&["buildah", "objcopy", "ldd"]) {
        return;
    }
    let folder = common::scratch("image");
    let files = folder.join("files");
    let collected = Command::new(root().join("packaging/image"))
        .arg(env!("CARGO_BIN_EXE_hornwork"))
        .arg(&files)
        .output()
        .expect("packaging/image");
    assert!(collected.status.success(), "{collected:?}");
    // Storage of its own without layers, which needs no file system driver of the kernel.
    let buildah = || {
        let mut command = Command::new("buildah");
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(folder.join("storage"))
            .arg("--runroot")
            .arg(folder.join("state"));
        command
    };
    let built = buildah()
        .args(["bud", "--isolation", "chroot", "-t", "hornwork", "-f"])
        .arg(root().join("packaging/Containerfile"))
        .arg(&files)
        .output()
        .expect("buildah bud");
    let log = String::from_utf8_lossy(&built.stderr).into_owned();
    let no_right = [
        "peration not permitted",
        "ermission denied",
        "user namespace",
    ];
    if !built.status.success() && no_right.iter().any(|text| log.contains(text)) {
        println!("skipped: no right to build an image: {log}");
        return;
    }
    assert!(built.status.success(), "{log}");
    let said = |arguments: &[&str]| {
        let output = buildah().args(arguments).output().expect("buildah");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let container = said(&["from", "hornwork"]);
    // Folders that the program writes to.
    let tree = PathBuf::from(said(&["mount", &container]));
    for (name, user, mode) in [
        ("tmp", 0, 0o1777),
        ("var/lib/hornwork", IMAGE_USER, 0o755),
        ("run/hornwork", IMAGE_USER, 0o755),
        ("etc/hornwork", 0, 0o755),
    ] {
        let about = std::fs::metadata(tree.join(name)).expect("folder");
        assert_eq!((about.uid(), about.mode() & 0o7777), (user, mode), "{name}");
    }
    let sip = common::free_port();
    let configuration = folder.join("configuration");
    std::fs::create_dir(&configuration).expect("folder");
    let text = common::example(
        "loopback-uc.toml",
        sip,
        common::free_port(),
        common::media_ports(200),
        "[control]\nsocket = \"/run/hornwork/control.sock\"\n",
    );
    let file = configuration.join("hornwork.toml");
    std::fs::write(&file, text).expect("configuration");
    // As the page describes it.
    for (path, mode) in [(&file, 0o640), (&configuration, 0o750)] {
        std::os::unix::fs::chown(path, Some(0), Some(IMAGE_USER)).expect("owner");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
    }
    let mut border = common::Process::start(
        buildah()
            .args(["run", "--isolation", "chroot", "-v"])
            .arg(format!("{}:/etc/hornwork:ro", configuration.display()))
            .args([&*container, "/usr/bin/hornwork", "run", "-c"])
            .arg("/etc/hornwork/hornwork.toml"),
        &folder.join("border.log"),
    );
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !common::answers_options(sip) {
        let over = std::time::Instant::now() > end;
        assert!(!over, "the border does not answer: {}", border.log());
    }
    // The volume of the image is a folder of buildah.
    let stored = Command::new("find")
        .arg(folder.join("storage"))
        .args(["-name", "registrations.db"])
        .output()
        .expect("find");
    assert!(!stored.stdout.is_empty(), "{}", border.log());
    let health = said(&[
        "run",
        "--isolation",
        "chroot",
        &container,
        "/usr/bin/hornwork",
        "ctl",
        "health",
    ]);
    assert!(health.contains("ok"), "{health}");
    border.signal("TERM");
    assert!(border.wait(std::time::Duration::from_secs(30)).is_some());
    // The process in the container has ended as well.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while common::answers_options(sip) {
        assert!(std::time::Instant::now() < end, "the border runs on");
    }
    let _ = std::fs::remove_dir_all(&folder);
}
