//! Every command of the tutorial, the how-to guides and the page on packaging, as a whole line, with the test that runs
//! it, or the reason why none does. A new or changed line is a failure until it is listed here.

use crate::common::root;
use crate::guides::{Guide, pages};
use std::path::PathBuf;

/// How a command is tested.
#[derive(Clone, Copy, Debug)]
enum By {
    /// A test runs the line as it is written.
    Runs(&'static str),
    /// A test runs the same command with other values; the difference.
    Like(&'static str, &'static str),
    /// No test can run it; the reason.
    NotRun(&'static str),
}

use By::{Like, NotRun, Runs};

/// Pages of which one test runs every line as it is written, except those in [`LINES`].
const WHOLE_PAGES: &[(&str, &str)] = &[
    (
        "tutorial",
        "guides::tutorial_ends_with_a_call_and_a_load_test_of_its_pbx",
    ),
    ("emulate-a-network", "link::how_to_page_is_true"),
    ("ipsec-gateway", "gateway::how_to_page_is_true"),
    ("ipsec-ikev2", "gateway_ike::how_to_page_is_true"),
];

const CHECK: By = Runs("guides::configurations_of_guides_pass_check");
const START: By = Runs("guides::configurations_of_guides_start");
const PHONE: By = Runs("guides::phone_guide_ends_with_a_recorded_call");
const KAMAILIO: By = Runs("guides::kamailio_guide_carries_calls_through_the_media_node");
const BROWSER: By = Runs("guides::browser_page_registers_and_calls_a_telephone");
const FIND: By = Runs("guides::find_a_call_guide_finds_its_call");
const PACKAGE: By = Runs("install::debian_package_is_installed_run_and_purged");
const BUILD: By = NotRun("the build that this test belongs to");
const SYSTEMD: By = NotRun("no test machine runs systemd");
const APT: By = NotRun("`make test` installs the packages of the tests");
const KEYS: By = Like(
    "softphone_ike::two_phones_change_keys_in_a_call_without_a_lost_packet",
    "other addresses and files",
);
const SOUND: By = Like(
    "softphone_sound::speech_passes_microphone_and_loudspeaker",
    "devices of a sound server of its own",
);

/// Page, line, test.
const LINES: &[(&str, &str, By)] = &[
    ("tutorial", "make build", BUILD),
    (
        "tutorial",
        "export PATH=\"$PWD/target/release:$PATH\"",
        NotRun("the program is in the PATH of the test"),
    ),
    (
        "ipsec-ikev2",
        "apt install strongswan-charon strongswan-swanctl libcharon-extra-plugins libstrongswan-standard-plugins",
        APT,
    ),
    ("behind-nat", "hornwork check -c border.toml", CHECK),
    ("behind-nat", "hornwork run -c border.toml", START),
    (
        "browser-calls",
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout sip.key -out sip.pem",
        BROWSER,
    ),
    ("browser-calls", "hornwork check -c border.toml", CHECK),
    ("browser-calls", "hornwork run -c border.toml", BROWSER),
    (
        "browser-calls",
        "npm install --prefix examples/browser",
        BROWSER,
    ),
    (
        "browser-calls",
        "python3 -m http.server --directory examples/browser --bind 127.0.0.1 8000",
        BROWSER,
    ),
    ("browser-calls", "echo secret-1001 > 1001.password", BROWSER),
    (
        "browser-calls",
        "hornwork phone answer --register sip:1001@127.0.0.1 --password-file 1001.password --wait 300",
        BROWSER,
    ),
    ("carrier-trunk", "hornwork check -c border.toml", CHECK),
    ("carrier-trunk", "hornwork run -c border.toml", START),
    (
        "find-a-call",
        "hornwork trace --store /var/lib/hornwork/store --number 600",
        FIND,
    ),
    (
        "find-a-call",
        "hornwork trace --store /var/lib/hornwork/store 1-20713@192.0.2.77",
        FIND,
    ),
    (
        "find-a-call",
        "hornwork trace --store /var/lib/hornwork/store --number 600 --live",
        FIND,
    ),
    (
        "find-a-call",
        "hornwork trace --store /var/lib/hornwork/store 1-20713@192.0.2.77 --pcapng call.pcapng",
        FIND,
    ),
    (
        "front-a-freeswitch",
        "hornwork check --strict -c border.toml",
        CHECK,
    ),
    ("front-a-freeswitch", "hornwork run -c border.toml", START),
    (
        "front-an-asterisk",
        "hornwork check --strict -c border.toml",
        CHECK,
    ),
    ("front-an-asterisk", "hornwork run -c border.toml", START),
    (
        "load-test-a-pbx",
        "hornwork lab run pbx-capacity --set sut.address=10.0.0.20:5060 --set callees.address=10.0.0.9:5080 --out results/pbx",
        Like("readme::documented_lab_commands_run", "one short level"),
    ),
    (
        "load-test-a-pbx",
        "hornwork lab run scenario.xml 10.0.0.20:5060 --service 600 --rate 10 --calls 100 --hold 1000",
        Runs("guides::scenario_of_the_load_test_guide_runs"),
    ),
    (
        "media-for-kamailio",
        "hornwork check -c media-node.toml",
        CHECK,
    ),
    (
        "media-for-kamailio",
        "hornwork run --role media -c media-node.toml",
        KAMAILIO,
    ),
    (
        "media-for-kamailio",
        "kamailio -f kamailio.cfg -DD -E",
        Like(
            "guides::kamailio_guide_carries_calls_through_the_media_node",
            "run files in the folder of the test",
        ),
    ),
    (
        "media-for-kamailio",
        "hornwork phone answer --local 127.0.0.1:5080 --wait 60",
        KAMAILIO,
    ),
    (
        "media-for-kamailio",
        "hornwork phone speech hello.wav",
        KAMAILIO,
    ),
    (
        "media-for-kamailio",
        "hornwork phone call sip:600@127.0.0.1:5060 --wav-in hello.wav --seconds 3",
        KAMAILIO,
    ),
    ("monitoring", "hornwork check -c observed.toml", CHECK),
    ("monitoring", "hornwork check -c border.toml", CHECK),
    ("monitoring", "hornwork run -c border.toml", START),
    ("phone", "hornwork run -c uc.toml", PHONE),
    ("phone", "echo secret-1000 > 1000.password", PHONE),
    ("phone", "echo secret-1001 > 1001.password", PHONE),
    (
        "phone",
        "hornwork phone answer --register sip:1001@127.0.0.1 --password-file 1001.password --wav-out heard.wav --wait 60",
        PHONE,
    ),
    (
        "phone",
        "hornwork phone speech hello.wav",
        Runs("guides::kamailio_guide_carries_calls_through_the_media_node"),
    ),
    (
        "phone",
        "hornwork phone call sip:1001@127.0.0.1 --user sip:1000@127.0.0.1 --password-file 1000.password --wav-in hello.wav --dtmf 123 --seconds 5 --min-mos 3.5 --json call.json",
        PHONE,
    ),
    (
        "phone",
        "hornwork phone call sip:1001@127.0.0.1 --sound-in --sound-out",
        SOUND,
    ),
    (
        "phone",
        "hornwork phone answer --register sip:1001@127.0.0.1 --password-file 1001.password --sound-in --sound-out",
        SOUND,
    ),
    ("phone", "chmod 600 esp.keys", PHONE),
    (
        "phone",
        "hornwork phone answer --local 127.0.0.2 --esp esp.keys --esp-over udp --wait 60",
        PHONE,
    ),
    (
        "phone",
        "hornwork phone call sip:600@127.0.0.2 --esp esp.keys --esp-over udp --wav-in hello.wav --seconds 5 --json esp.json",
        PHONE,
    ),
    (
        "phone",
        "apt install strongswan-charon strongswan-swanctl libcharon-extra-plugins libstrongswan-standard-plugins",
        APT,
    ),
    (
        "phone",
        "(umask 077; openssl rand -hex 32 > phone.secret)",
        Like("gateway_ike::how_to_page_is_true", "another file"),
    ),
    (
        "phone",
        "hornwork phone call sip:600@10.2.0.5 --local 10.1.0.1 --ike phone-ike.toml --wav-in hello.wav --seconds 5 --json call.json",
        KEYS,
    ),
    (
        "phone",
        "hornwork phone answer --ike answer-ike.toml --wait 60",
        KEYS,
    ),
    (
        "share-the-store",
        "hornwork trace --store \"postgresql://hornwork_search@db.example.net/calls?sslrootcert=/etc/hornwork/db-ca.pem\" --number 600",
        Like(
            "shared_history::a_call_through_two_borders_is_one_ladder",
            "a server of this machine",
        ),
    ),
    (
        "troubleshooting",
        "hornwork lab analyse call.pcap",
        Runs("guides::capture_of_the_troubleshooting_guide_is_analysed"),
    ),
    ("upgrade", "make build", BUILD),
    (
        "upgrade",
        "target/release/hornwork check -c /etc/hornwork/hornwork.toml",
        Like(
            "install::debian_package_is_installed_run_and_purged",
            "the program of the package",
        ),
    ),
    ("upgrade", "dpkg-deb -x hornwork_*.deb new", PACKAGE),
    (
        "upgrade",
        "new/usr/bin/hornwork check -c /etc/hornwork/hornwork.toml",
        PACKAGE,
    ),
    (
        "upgrade",
        "make install",
        Like(
            "install::installed_program_is_stripped_with_separate_debug_information",
            "another root folder",
        ),
    ),
    ("upgrade", "systemctl restart hornwork", SYSTEMD),
    (
        "upgrade",
        "apt install ./hornwork_*.deb",
        Like(
            "install::debian_package_is_installed_run_and_purged",
            "dpkg -i, without a network",
        ),
    ),
    ("upgrade", "hornwork check -c border.toml", CHECK),
    ("web-console", "hornwork check -c border.toml", CHECK),
    (
        "web-console",
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj /CN=sbc.example.com -addext subjectAltName=DNS:sbc.example.com -keyout console.key -out console.pem",
        CHECK,
    ),
    (
        "web-console",
        "hornwork console hash-password",
        Runs("web::sessions_need_passwords_and_tokens_against_forgery"),
    ),
    (
        "web-console",
        "hornwork console token",
        Runs("help::every_command_has_an_example_that_works"),
    ),
    ("web-console", "hornwork check -c users.toml", CHECK),
    ("web-console", "hornwork check -c signon.toml", CHECK),
    (
        "packaging",
        "make install",
        Like(
            "install::installed_program_is_stripped_with_separate_debug_information",
            "another root folder",
        ),
    ),
    (
        "packaging",
        "make deb",
        Like(
            "install::debian_package_is_installed_run_and_purged",
            "the program of the tests",
        ),
    ),
    (
        "packaging",
        "apt install ./target/debian/hornwork_*.deb",
        Like(
            "install::debian_package_is_installed_run_and_purged",
            "dpkg -i, without a network",
        ),
    ),
    (
        "packaging",
        "make image",
        Like(
            "install::image_is_built_and_runs_the_border",
            "the program of the tests",
        ),
    ),
    (
        "packaging",
        "podman build -t hornwork -f packaging/Containerfile target/image",
        Like("install::image_is_built_and_runs_the_border", "by buildah"),
    ),
    (
        "packaging",
        "chown -R root:65534 /etc/hornwork",
        Like(
            "install::image_is_built_and_runs_the_border",
            "another folder",
        ),
    ),
    (
        "packaging",
        "chmod 750 /etc/hornwork",
        Like(
            "install::image_is_built_and_runs_the_border",
            "another folder",
        ),
    ),
    (
        "packaging",
        "chmod 640 /etc/hornwork/hornwork.toml",
        Like(
            "install::image_is_built_and_runs_the_border",
            "another folder",
        ),
    ),
    (
        "packaging",
        "podman run --network host --stop-timeout 310 -v hornwork-state:/var/lib/hornwork -v /etc/hornwork:/etc/hornwork:ro hornwork",
        Like(
            "install::image_is_built_and_runs_the_border",
            "by buildah, without the volume",
        ),
    ),
    (
        "packaging",
        "make static",
        NotRun("a second build, for which rustup needs a network"),
    ),
    (
        "packaging",
        "hornwork check -c /etc/hornwork/hornwork.toml",
        PACKAGE,
    ),
    ("packaging", "systemctl enable --now hornwork", SYSTEMD),
    (
        "packaging",
        "chown hornwork:hornwork /etc/hornwork/control.token",
        PACKAGE,
    ),
    (
        "packaging",
        "chmod 600 /etc/hornwork/control.token",
        PACKAGE,
    ),
    (
        "packaging",
        "install -D -m 644 packaging/hornwork-fast.conf /etc/systemd/system/hornwork.service.d/fast.conf",
        SYSTEMD,
    ),
    ("packaging", "systemctl daemon-reload", SYSTEMD),
    (
        "packaging",
        "echo 'net.ipv4.ip_local_reserved_ports = 32768-39999' > /etc/sysctl.d/60-hornwork.conf",
        NotRun("changes the machine"),
    ),
    (
        "packaging",
        "sysctl --system",
        NotRun("changes the machine"),
    ),
];

/// Beginnings of commands, which belong in a block marked `sh`.
const BEGINNINGS: [&str; 15] = [
    "hornwork ",
    "apt ",
    "apt-get ",
    "sudo ",
    "make ",
    "ip ",
    "systemctl ",
    "echo ",
    "cat >",
    "(umask",
    "openssl ",
    "dpkg",
    "podman ",
    "chmod ",
    "export ",
];

/// The pages, by the names of the lists above.
fn named_pages() -> Vec<(String, PathBuf)> {
    let mut named: Vec<(String, PathBuf)> = pages()
        .into_iter()
        .map(|page| {
            let name = page.file_stem().expect("a name").to_string_lossy();
            (name.into_owned(), page)
        })
        .collect();
    named.push(("packaging".to_owned(), root().join("packaging/README.md")));
    named
}

#[test]
fn every_command_of_a_guide_has_a_test() {
    for (name, page) in named_pages() {
        let guide = Guide::named("commands", &page);
        let listed: Vec<&str> = LINES
            .iter()
            .filter(|(page, ..)| *page == name)
            .map(|(_, line, _)| *line)
            .collect();
        let mut written = guide.commands();
        if WHOLE_PAGES.iter().any(|(page, _)| *page == name) {
            written.retain(|line| listed.contains(&line.as_str()));
        }
        assert_eq!(written, listed, "{name}: lines of the page, lines listed");
    }
}

#[test]
fn tests_of_commands_exist() {
    let tests = WHOLE_PAGES.iter().map(|(page, test)| (*page, *test));
    let named = LINES.iter().filter_map(|(page, _, by)| match by {
        Runs(test) => Some((*page, *test)),
        Like(test, difference) => {
            assert!(!difference.is_empty(), "{page}: {test}");
            Some((*page, *test))
        }
        NotRun(reason) => {
            assert!(!reason.is_empty(), "{page}");
            None
        }
    });
    for (page, test) in tests.chain(named) {
        let (module, function) = test.split_once("::").expect("MODULE::FUNCTION");
        let file = root().join(format!("crates/hornwork/tests/suite/{module}.rs"));
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{page}: {}: {error}", file.display()));
        let head = format!("#[test]\nfn {function}()");
        assert!(text.contains(&head), "{page}: there is no test {test}");
    }
}

/// A command in a block of another kind would be in no list.
#[test]
fn commands_are_in_blocks_for_commands() {
    for (name, page) in named_pages() {
        let guide = Guide::named("blocks", &page);
        for block in guide.blocks() {
            if block.language == "sh" || block.file.is_some() {
                continue;
            }
            for line in block.text.lines() {
                let is_command = BEGINNINGS.iter().any(|start| line.starts_with(start));
                assert!(!is_command, "{name}: not in a block marked sh: {line}");
            }
        }
    }
}
