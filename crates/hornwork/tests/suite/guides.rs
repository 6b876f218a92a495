//! The tutorial and the how-to guides are true: their configurations are checked and run as they are written, and their
//! commands are run; `guide_commands.rs` names the test of each.
//!
//! A block of a page whose first line is "```LANGUAGE FILE" is the file FILE. Live tests run in a network namespace in
//! which the addresses of the page exist on the loopback interface; without the right to make one they are skipped.

use crate::common::{Process, installed, root, scratch};
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Addresses that pages use.
const ADDRESSES: [&str; 7] = [
    "192.0.2.10",
    "10.0.0.10",
    "10.0.0.20",
    "10.0.0.9",
    "192.168.1.10",
    "198.51.100.10",
    "198.51.100.20",
];

/// Names of other programs in pages, and of figures in JSON.
const OTHERS: [&str; 15] = [
    "dpd_delay",
    "nf_tables",
    "nft_fib_inet",
    "speech_mos",
    "digits_sent",
    "esp_sa",
    "chan_pjsip",
    "qualify_frequency",
    "rtpengine_manage",
    "rtpengine_sock",
    "jitter_ms",
    "delta_ms",
    "round_trip_ms",
    "sound_in",
    "sound_out",
];

/// A page and a folder with its files.
pub(crate) struct Guide {
    name: String,
    text: String,
    folder: PathBuf,
}

/// A fenced block.
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) file: Option<String>,
    pub(crate) text: String,
}

/// The tutorial and all how-to guides.
pub(crate) fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("docs/tutorial.md")];
    let guides = std::fs::read_dir(root().join("docs/how-to")).expect("docs/how-to");
    pages.extend(guides.flatten().map(|entry| entry.path()));
    pages.sort();
    pages
}

impl Guide {
    /// Reads a page and writes its files to a folder, with `hornwork` and a capture beside them.
    fn new(page: &Path) -> Guide {
        let name = page
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        Guide::named(&name, page)
    }

    pub(crate) fn named(folder: &str, page: &Path) -> Guide {
        let text = std::fs::read_to_string(page).expect("page");
        let name = page
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let folder = scratch(&format!("guide-{folder}"));
        let bin = folder.join("bin");
        std::fs::create_dir_all(&bin).expect("folder");
        symlink(env!("CARGO_BIN_EXE_hornwork"), bin.join("hornwork")).expect("link");
        let capture = root().join("fuzz/seeds/capture/call.pcap");
        std::fs::copy(capture, folder.join("call.pcap")).expect("capture");
        let guide = Guide { name, text, folder };
        for block in guide.blocks() {
            if let Some(file) = block.file {
                std::fs::write(guide.folder.join(file), block.text).expect("file");
            }
        }
        guide
    }

    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for line in self.text.lines() {
            // Blocks in lists are indented.
            let line = line.strip_prefix("   ").unwrap_or(line);
            match (open.take(), line.strip_prefix("```")) {
                (None, Some(head)) => {
                    let (language, file) = head
                        .split_once(' ')
                        .map_or((head, None), |(language, file)| {
                            (language, Some(file.trim().to_owned()))
                        });
                    open = Some(Block {
                        language: language.to_owned(),
                        file,
                        text: String::new(),
                    });
                }
                (Some(block), Some(_)) => blocks.push(block),
                (Some(mut block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                    open = Some(block);
                }
                (None, None) => {}
            }
        }
        blocks
    }

    pub(crate) fn commands(&self) -> Vec<String> {
        self.blocks()
            .iter()
            .filter(|block| block.language == "sh")
            .flat_map(|block| block.text.lines().map(str::to_owned).collect::<Vec<_>>())
            .filter(|line| !line.trim().is_empty())
            .collect()
    }

    /// A command with `hornwork` on the PATH.
    fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(&self.folder)
            .env(
                "PATH",
                format!("{}:{path}", self.folder.join("bin").display()),
            )
            .env("HOME", &self.folder)
            .stdin(Stdio::null());
        command
    }

    fn shell(&self, line: &str) -> Output {
        self.command("sh")
            .args(["-c", line])
            .output()
            .expect("a shell")
    }

    /// Runs a script in a network namespace that has the addresses of the pages; `None`, with a printed reason, where
    /// there can be none. The script's output is in `script.log`.
    fn in_network(&self, script: &str, limit: Duration) -> Option<String> {
        // Mounts are private, too: a page may use folders of a service.
        let options: &[&str] = match is_root() {
            true => &["-m", "-n"],
            false => &["-r", "-m", "-n"],
        };
        let up = self
            .command("unshare")
            .args(options)
            .args(["ip", "link", "set", "lo", "up"])
            .output();
        if !up.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no network namespace (unshare, ip)");
            return None;
        }
        let mut text = String::from("ip link set lo up\n");
        for address in ADDRESSES {
            text.push_str(&format!("ip address add {address}/32 dev lo\n"));
        }
        // Every background process of the script ends with it.
        text.push_str("trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null' EXIT\n");
        text.push_str(
            "await() { for n in $(seq 400); do grep -q \"$2\" \"$1\" 2>/dev/null && return 0; sleep 0.1; done; echo \"no $2 in $1\"; return 1; }\n",
        );
        // A port of this network, in the kernel's notation.
        text.push_str(
            "listens() { for n in $(seq 400); do cat /proc/net/udp /proc/net/tcp | grep -q \"$(printf ':%04X ' $1)\" && return 0; sleep 0.1; done; echo \"nothing at port $1\"; return 1; }\n",
        );
        text.push_str(script);
        std::fs::write(self.folder.join("script"), text).expect("script");
        let mut process = Process::start(
            self.command("unshare")
                .args(options)
                .args(["bash", "script"]),
            &self.folder.join("script.log"),
        );
        let ended = process.wait(limit);
        let output = std::fs::read_to_string(self.folder.join("script.log")).unwrap_or_default();
        assert_eq!(
            ended,
            Some(true),
            "{}: {output}\n{}",
            self.name,
            self.logs()
        );
        Some(output)
    }

    /// All logs of the folder, for messages of failed tests.
    fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(&self.folder).expect("folder").flatten() {
            if entry.path().extension().is_some_and(|end| end == "log") {
                let log = std::fs::read(entry.path()).unwrap_or_default();
                text.push_str(&format!("== {}\n", entry.path().display()));
                text.push_str(&String::from_utf8_lossy(&log));
            }
        }
        text
    }

    fn log(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.join(name)).unwrap_or_default())
            .into_owned()
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn page(name: &str) -> PathBuf {
    root().join("docs").join(name)
}

#[test]
fn configurations_of_guides_pass_check() {
    for page in pages() {
        let guide = Guide::named(
            &format!(
                "check-{}",
                page.file_stem().expect("name").to_string_lossy()
            ),
            &page,
        );
        if installed(&["openssl"]) {
            let makes_keys = |line: &&String| {
                line.starts_with("openssl") || line.starts_with("(umask 077; printf")
            };
            for line in guide.commands().iter().filter(makes_keys) {
                assert!(guide.shell(line).status.success(), "{}: {line}", guide.name);
            }
        } else if guide.text.contains("openssl") {
            continue;
        }
        for block in guide
            .blocks()
            .iter()
            .filter(|block| block.language == "toml")
        {
            let file = block
                .file
                .as_deref()
                .unwrap_or_else(|| panic!("{}: a configuration without a file name", guide.name));
            let output = guide.shell(&format!("hornwork check --strict -c {file}"));
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            if guide.name == "upgrade" {
                for old in ["rates", "calls", "ping"] {
                    assert!(text.contains(old), "upgrade: no warning for {old}: {text}");
                }
                let plain = guide.shell(&format!("hornwork check -c {file}"));
                assert!(plain.status.success(), "upgrade: {text}");
                continue;
            }
            if guide.name.starts_with("ipsec-") && output.status.code() == Some(3) {
                eprintln!("skipped: {text}");
                continue;
            }
            assert!(output.status.success(), "{}: {text}", guide.name);
        }
        for line in guide.commands() {
            if !line.starts_with("hornwork check") {
                continue;
            }
            let output = guide.shell(&line);
            let no_right = guide.name.starts_with("ipsec-") && output.status.code() == Some(3);
            assert!(
                output.status.success() || no_right,
                "{}: {line}: {}",
                guide.name,
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

/// Events and drop reasons that guides tell readers to look for exist.
#[test]
fn events_named_in_guides_exist() {
    let reference = std::fs::read_to_string(root().join("docs/events.md")).expect("events");
    let configuration =
        std::fs::read_to_string(root().join("docs/configuration.md")).expect("configuration");
    let metrics = std::fs::read_to_string(root().join("docs/metrics.md")).expect("metrics");
    for page in pages() {
        let guide = Guide::named("events", &page);
        let mut fenced = false;
        for line in guide.text.lines() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            for word in line.split('`').skip(1).step_by(2) {
                let is_name =
                    word.contains('_') && word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                let known = |text: &str| text.contains(&format!("`{word}`"));
                if is_name && !OTHERS.contains(&word) {
                    assert!(
                        [&reference, &configuration, &metrics]
                            .into_iter()
                            .any(|text| known(text)),
                        "{}: {word} is no event, no setting and no metric",
                        guide.name
                    );
                }
            }
        }
    }
}

#[test]
fn configurations_of_guides_start() {
    for page in pages() {
        let guide = Guide::named(
            &format!("run-{}", page.file_stem().expect("name").to_string_lossy()),
            &page,
        );
        let commands = guide.commands();
        let runs: Vec<&String> = commands
            .iter()
            .filter(|line| line.starts_with("hornwork run"))
            .collect();
        if runs.is_empty() || (guide.text.contains("openssl") && !installed(&["openssl"])) {
            continue;
        }
        let mut script = String::new();
        for line in &commands {
            if line.starts_with("openssl") {
                script.push_str(&format!("{line} 2>/dev/null || exit 1\n"));
            }
            if line.starts_with("hornwork run") {
                script.push_str(&format!(
                    "{line} > border.log 2>&1 &\nborder=$!\nawait border.log socket_opened || exit 1\nkill -TERM $border\nwait $border || exit 1\n"
                ));
            }
        }
        if guide.in_network(&script, Duration::from_secs(40)).is_none() {
            return;
        }
        let log = guide.log("border.log");
        assert!(log.contains("socket_opened"), "{}: {log}", guide.name);
    }
}

/// The configuration of a baresip without sound card.
fn headless(folder: &Path, port: u16) {
    let modules = [
        "/usr/lib/baresip/modules",
        "/usr/lib/x86_64-linux-gnu/baresip/modules",
    ]
    .into_iter()
    .find(|path| Path::new(path).is_dir())
    .unwrap_or("/usr/lib/baresip/modules");
    let voice = codec::wav::write(
        codec::wav::Encoding::Pcm16,
        8_000,
        1,
        codec::speech::speech(),
    );
    std::fs::create_dir_all(folder).expect("folder");
    let voice_file = folder.join("voice.wav");
    std::fs::write(&voice_file, voice.expect("speech fits a file")).expect("voice");
    let config = format!(
        "sip_listen 127.0.0.1:{port}\naudio_source aufile,{}\naudio_player aufile,{}\naudio_alert aufile,/dev/null\n\
         ausrc_srate 8000\nauplay_srate 8000\nmodule_path {modules}\nmodule g711.so\nmodule aufile.so\nmodule_app account.so\n\
         module_app menu.so\n",
        voice_file.display(),
        folder.join("player.wav").display()
    );
    std::fs::write(folder.join("config"), config).expect("configuration");
}

/// Every command of the tutorial in its order, with the files of the page alone: commands of other terminals in the
/// background.
#[test]
fn tutorial_ends_with_a_call_and_a_load_test_of_its_pbx() {
    let guide = Guide::new(&page("tutorial.md"));
    let prepared = ["make build", "export PATH="];
    let background = [
        ("hornwork run", "border", "socket_opened"),
        ("hornwork phone answer", "answer", "registered for"),
    ];
    let mut script = String::new();
    for line in guide.commands() {
        if prepared.iter().any(|start| line.starts_with(start)) {
            continue;
        }
        let job = background
            .iter()
            .find(|(start, ..)| line.starts_with(start));
        script.push_str(&match job {
            Some((_, name, until)) => format!(
                "{line} > {name}.log 2>&1 &\n{name}=$!\nawait {name}.log '{until}' || exit 1\n"
            ),
            // On a busy machine a response time is above its threshold (1), or the load is not that of the plan (4).
            None if line.starts_with("hornwork lab") => {
                format!("{line} > lab.log 2>&1; case $? in 0|1|4) ;; *) exit 1;; esac\n")
            }
            None if line.starts_with("hornwork phone call") => {
                format!("{line} > call.log 2>&1 || exit 1\nwait $answer || exit 1\n")
            }
            None => format!("{{ {line}; }} >> page.log 2>&1 || exit 1\n"),
        });
    }
    script.push_str("kill -TERM $border\nwait $border\n");
    if guide
        .in_network(&script, Duration::from_secs(150))
        .is_none()
    {
        return;
    }
    let log = guide.log("border.log");
    for event in ["call_offered", "call_routed", "call_answered", "call_ended"] {
        assert!(log.contains(event), "no {event}: {log}");
    }
    for phone in ["call.log", "answer.log"] {
        let said = guide.log(phone);
        assert!(said.contains("received") && said.contains("MOS"), "{said}");
    }
    let heard = std::fs::read(guide.folder.join("heard.wav")).expect("recording");
    let seconds = codec::wav::Wav::parse(&heard).map(|wav| wav.frames() / wav.rate as usize);
    assert!((4..=6).contains(&seconds.expect("WAV")));
    let run = std::fs::read(guide.folder.join("results/uc/run.json")).expect("results");
    let run: serde_json::Value = serde_json::from_slice(&run).expect("JSON");
    let said = guide.log("lab.log");
    for (trial, calls) in [(0, 50), (1, 100)] {
        let counts = &run["trials"][trial]["figures"]["calls"];
        assert_eq!(counts["attempted"].as_u64(), Some(calls), "{said}");
        assert_eq!(counts["completed"].as_u64(), Some(calls), "{said}");
    }
    let slow = ["response_p99_ms", "lost_percent", "mos"];
    let busy = slow.iter().any(|name| said.contains(name)) || said.contains("could not keep up");
    assert!(said.contains("verdict: passed") || busy, "{said}");
    assert!(!said.contains("here a border"), "{said}");
}

/// A border takes the place of the PBX; its number 600 leads to a scenario that answers.
#[test]
fn scenario_of_the_load_test_guide_runs() {
    let guide = Guide::new(&page("how-to/load-test-a-pbx.md"));
    let pbx = "[[interface]]\nname = \"pbx\"\nlisten = \"udp:10.0.0.20:5060\"\n\
               [[trunk]]\nname = \"echo\"\ntarget = \"udp:10.0.0.20:5070\"\n\
               [[route]]\nto.prefix = \"600\"\ntrunk = \"echo\"\n";
    std::fs::write(guide.folder.join("pbx.toml"), pbx).expect("configuration");
    let commands = guide.commands();
    let line = commands
        .iter()
        .find(|line| line.starts_with("hornwork lab run scenario.xml"))
        .expect("the scenario");
    let script = format!(
        "hornwork run -c pbx.toml > border.log 2>&1 &\nborder=$!\nawait border.log socket_opened || exit 1\n\
         hornwork lab run {} --local 10.0.0.20:5070 > answers.log 2>&1 &\nlistens 5070 || exit 1\n\
         {line} > scenario.log 2>&1 || exit 1\nkill -TERM $border\nwait $border\n",
        root().join("scenarios/sipp/uas.xml").display(),
    );
    if guide.in_network(&script, Duration::from_secs(90)).is_none() {
        return;
    }
    let log = guide.log("border.log");
    assert_eq!(
        log.matches("call_answered").count(),
        100,
        "{}",
        guide.logs()
    );
}

#[test]
fn phone_guide_ends_with_a_recorded_call() {
    let guide = Guide::new(&page("how-to/phone.md"));
    let hello = codec::wav::write(
        codec::wav::Encoding::Pcm16,
        8_000,
        1,
        codec::speech::speech(),
    );
    let file = guide.folder.join("hello.wav");
    std::fs::write(file, hello.expect("speech fits a file")).expect("voice");
    let commands = guide.commands();
    let find = |start: &str| {
        let found = commands.iter().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no {start}")).clone()
    };
    let passwords: Vec<&str> = commands
        .iter()
        .filter(|line| line.starts_with("echo secret-"))
        .map(String::as_str)
        .collect();
    let esp = |start: &str| {
        let mut found = commands.iter();
        let found = found.find(|line| line.starts_with(start) && line.contains("--esp esp.keys"));
        found
            .unwrap_or_else(|| panic!("no {start} with --esp"))
            .clone()
    };
    let script = format!(
        "{}\n{} > border.log 2>&1 &\nborder=$!\nawait border.log socket_opened || exit 1\n{} > answer.log 2>&1 &\nanswer=$!\n\
         await answer.log 'registered for' || exit 1\n{} > call.log 2>&1 || exit 1\nwait $answer || exit 1\nkill -TERM $border\n\
         wait $border\n{}\n{} > esp-answer.log 2>&1 &\nanswer=$!\nawait esp-answer.log 'waiting for a call' || exit 1\n\
         {} > esp-call.log 2>&1 || exit 1\nwait $answer || exit 1\n",
        passwords.join("\n"),
        find("hornwork run"),
        find("hornwork phone answer"),
        find("hornwork phone call"),
        find("chmod 600"),
        esp("hornwork phone answer"),
        esp("hornwork phone call"),
    );
    if guide.in_network(&script, Duration::from_secs(60)).is_none() {
        return;
    }
    let log = guide.log("answer.log");
    assert!(log.contains("digits received  123"), "{log}");
    let esp = std::fs::read_to_string(guide.folder.join("esp.json")).expect("esp.json");
    let esp: serde_json::Value = serde_json::from_str(&esp).expect("JSON");
    assert_eq!(esp["protection"], "esp-transport", "{esp:#}");
    assert_eq!(esp["esp"]["dropped"], 0, "{esp:#}");
    let heard = std::fs::read(guide.folder.join("heard.wav")).expect("recording");
    let seconds = codec::wav::Wav::parse(&heard).map(|wav| wav.frames() / wav.rate as usize);
    assert!((4..=6).contains(&seconds.expect("WAV")), "{log}");
}

/// A called side that refuses every call.
const BUSY: &str = "<?xml version=\"1.0\"?>
<scenario name=\"busy\"><recv request=\"INVITE\"/><send><![CDATA[
SIP/2.0 486 Busy Here
[last_Via:]
[last_From:]
[last_To:];tag=[pid]c[call_number]
[last_Call-ID:]
[last_CSeq:]
Content-Length: 0

]]></send><recv request=\"ACK\"/></scenario>";

/// A request with a To tag, and without the route of a call.
const STRANGER: &str = "BYE sip:127.0.0.1:5099 SIP/2.0\r\nVia: SIP/2.0/UDP 127.0.0.1:9;rport;branch=z9hG4bK1\r\nMax-Forwards: 70\r\n\
     From: <sip:a@127.0.0.1>;tag=1\r\nTo: <sip:b@127.0.0.1>;tag=2\r\nCall-ID: stranger\r\nCSeq: 1 BYE\r\nContent-Length: 0\r\n\r\n";

#[test]
fn kamailio_guide_carries_calls_through_the_media_node() {
    if !installed(&["kamailio", "sipp"]) {
        return;
    }
    let guide = Guide::new(&page("how-to/media-for-kamailio.md"));
    std::fs::write(guide.folder.join("busy.xml"), BUSY).expect("scenario");
    std::fs::write(guide.folder.join("stranger.sip"), STRANGER).expect("request");
    let commands = guide.commands();
    let line = |start: &str| {
        commands
            .iter()
            .find(|line| line.starts_with(start))
            .expect(start)
            .clone()
    };
    // Kamailio as root writes its files below /run, which other tests use as well. The calls of the page, then those of
    // SIPp, whose built-in scenarios ignore Record-Route, and a refused one.
    let script = format!(
        "{} > node.log 2>&1 &\nnode=$!\nawait node.log socket_opened || exit 1\n\
         {} -Y \"$PWD\" -w \"$PWD\" -x fm -X fm > kamailio.log 2>&1 &\nlistens 5060 || exit 1\n\
         {} > answer.log 2>&1 &\nanswer=$!\nawait answer.log 'waiting for a call' || exit 1\n\
         {} || exit 1\n{} > call.log 2>&1 || exit 1\nwait $answer || exit 1\n\
         sipp -sf {} -i 127.0.0.1 -p 5080 -nostdin > uas.log 2>&1 &\nuas=$!\nlistens 5080 || exit 1\n\
         sipp -sf {} -i 127.0.0.1 -p 5090 -m 5 -r 5 -d 300 -s 600 -nostdin 127.0.0.1:5060 > uac.log 2>&1 || exit 1\n\
         kill -KILL $uas\nwait $uas 2>/dev/null\nsipp -sf busy.xml -i 127.0.0.1 -p 5080 -nostdin > busy.log 2>&1 &\nlistens 5080 || exit 1\n\
         hornwork phone call sip:600@127.0.0.1:5060 > refused.log 2>&1 && exit 1\n\
         hornwork phone register sip:1000@127.0.0.1:5060 --password x --seconds 1 > register.log 2>&1 && exit 1\n\
         exec 3<>/dev/udp/127.0.0.1/5060\ncat stranger.sip >&3\ndd bs=2048 count=1 <&3 > stranger.log 2>/dev/null\n\
         for n in $(seq 100); do [ $(grep -c reason=deleted node.log) -ge 7 ] && break; sleep 0.1; done\ncp node.log ended.log\nkill -TERM $node\nwait $node\n",
        line("hornwork run"),
        line("kamailio -f"),
        line("hornwork phone answer"),
        line("hornwork phone speech"),
        line("hornwork phone call"),
        root().join("scenarios/sipp/uas.xml").display(),
        root().join("scenarios/sipp/uac.xml").display(),
    );
    if guide.in_network(&script, Duration::from_secs(90)).is_none() {
        return;
    }
    for phone in ["call.log", "answer.log"] {
        let printed = guide.log(phone);
        assert!(
            printed.contains("received") && printed.contains("MOS"),
            "{printed}"
        );
    }
    // One of the page, five of SIPp, and the refused one, whose ports are free before the end of the node.
    let log = guide.log("ended.log");
    assert_eq!(log.matches("ng_call_started").count(), 7, "{log}");
    assert_eq!(log.matches("reason=deleted").count(), 7, "{log}");
    assert_eq!(log.matches(" call_answered").count(), 6, "{log}");
    for (file, answer) in [
        ("refused.log", "486 Busy Here"),
        ("register.log", "405 Method Not Allowed"),
        ("stranger.log", "SIP/2.0 404 Not Found"),
    ] {
        assert!(guide.log(file).contains(answer), "{file}: {}", guide.logs());
    }
}

/// Debian has no Asterisk: Kamailio takes its place and accepts no request without credentials, with the same users and
/// passwords as the guide's `pjsip.conf`.
#[test]
fn asterisk_guide_registers_challenges_and_calls() {
    if !installed(&["kamailio", "baresip"]) {
        return;
    }
    let guide = Guide::new(&page("how-to/front-an-asterisk.md"));
    let pbx = root().join("crates/hornwork/tests/kamailio_pbx.cfg");
    for (user, port) in [(1000, 5071), (1001, 5081)] {
        let folder = guide.folder.join(user.to_string());
        headless(&folder, port);
        let account = format!(
            "<sip:{user}@192.0.2.10>;auth_pass=change-me-{user};answermode=auto;regint=60\n"
        );
        std::fs::write(folder.join("accounts"), account).expect("account");
    }
    let script = format!(
        "kamailio -f {} -DD -E -Y \"$PWD\" -w \"$PWD\" -x fm -X fm > kamailio.log 2>&1 &\nlistens 5060 || exit 1\n\
         hornwork run -c border.toml > border.log 2>&1 &\nborder=$!\nawait border.log socket_opened || exit 1\n\
         baresip -f 1001 -n 127.0.0.1 -t 25 > 1001.log 2>&1 &\nawait border.log registration_stored || exit 1\n\
         baresip -f 1000 -n 127.0.0.1 -e '/dial sip:1001@192.0.2.10' -t 8 > 1000.log 2>&1\n\
         await border.log call_ended || exit 1\nkill -TERM $border\nwait $border\n",
        pbx.display()
    );
    if guide.in_network(&script, Duration::from_secs(90)).is_none() {
        return;
    }
    let log = guide.log("border.log");
    for event in [
        "registration_stored",
        "call_routed",
        "call_answered",
        "call_ended",
    ] {
        assert!(log.contains(event), "no {event}: {log}\n{}", guide.logs());
    }
}

/// The values of `key` in an INI file of Asterisk.
fn values<'a>(text: &'a str, key: &str) -> BTreeSet<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
        .collect()
}

#[test]
fn files_for_asterisk_agree_with_the_border() {
    for name in ["front-an-asterisk.md", "load-test-a-pbx.md"] {
        let guide = Guide::named(&format!("ini-{name}"), &page(&format!("how-to/{name}")));
        let pjsip = std::fs::read_to_string(guide.folder.join("pjsip.conf")).expect("pjsip.conf");
        let plan =
            std::fs::read_to_string(guide.folder.join("extensions.conf")).expect("extensions.conf");
        assert_eq!(
            values(&pjsip, "bind"),
            BTreeSet::from(["10.0.0.20:5060"]),
            "{name}"
        );
        // Every context of an endpoint is in the dial plan.
        for context in values(&pjsip, "context") {
            assert!(
                plan.contains(&format!("[{context}]")),
                "{name}: no context {context}"
            );
        }
        // Every object that an endpoint names exists.
        let sections: BTreeSet<&str> = pjsip
            .lines()
            .filter_map(|line| line.strip_prefix('[')?.split(']').next())
            .collect();
        for key in ["aors", "auth", "transport", "endpoint"] {
            for object in values(&pjsip, key) {
                assert!(
                    sections.contains(object),
                    "{name}: {key}={object} does not exist"
                );
            }
        }
        // Each section has a type: its own, or that of its template.
        for section in pjsip.split("\n[").skip(1) {
            let head = section.lines().next().unwrap_or_default();
            let derived = head.contains("](") && !head.contains("](!)");
            assert!(
                derived || section.contains("type="),
                "{name}: no type in [{head}"
            );
        }
    }
}

#[test]
fn files_for_freeswitch_are_well_formed_and_agree_with_the_border() {
    if !installed(&["python3"]) {
        return;
    }
    let guide = Guide::named("xml", &page("how-to/front-a-freeswitch.md"));
    let files: Vec<String> = guide
        .blocks()
        .into_iter()
        .filter(|block| block.language == "xml")
        .filter_map(|block| block.file)
        .collect();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        let output = guide.shell(&format!(
            "python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' {file}"
        ));
        assert!(
            output.status.success(),
            "{file}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let border = std::fs::read_to_string(guide.folder.join("border.toml")).expect("border.toml");
    let profile = std::fs::read_to_string(guide.folder.join("internal.xml")).expect("internal.xml");
    assert!(
        border.contains("target = \"udp:10.0.0.20:5060\"")
            && border.contains("domain = \"10.0.0.20\"")
    );
    for line in [
        "name=\"sip-ip\" value=\"10.0.0.20\"",
        "name=\"force-register-domain\" value=\"10.0.0.20\"",
    ] {
        assert!(profile.contains(line), "{line}");
    }
}

#[test]
fn capture_of_the_troubleshooting_guide_is_analysed() {
    let guide = Guide::named("analyse", &page("how-to/troubleshooting.md"));
    let line = guide
        .commands()
        .into_iter()
        .find(|line| line.starts_with("hornwork lab analyse"))
        .expect("command");
    let output = guide.shell(&line);
    assert!(
        output.status.success() && !output.stdout.is_empty(),
        "{line}"
    );
}

/// A call of SIPp with the number and the Call-ID of the page; the folder of the store is that of the page, on a file
/// system of this test.
#[test]
fn find_a_call_guide_finds_its_call() {
    if !installed(&["sipp"]) {
        return;
    }
    let guide = Guide::new(&page("how-to/find-a-call.md"));
    let commands = guide.commands();
    let line = |parts: &[&str]| {
        let mut found = commands
            .iter()
            .filter(|line| parts.iter().all(|part| line.contains(part)));
        found.next().unwrap_or_else(|| panic!("{parts:?}")).clone()
    };
    let list = line(&["--number 600"]);
    let script = format!(
        "mount -t tmpfs tmpfs /var/lib && mkdir /var/lib/hornwork || exit 1\n\
         hornwork run -c border.toml > border.log 2>&1 &\nborder=$!\nawait border.log socket_opened || exit 1\n\
         sipp -sn uas -i 10.0.0.20 -p 5060 -nostdin > uas.log 2>&1 &\n{} > live.log 2>&1 &\nlive=$!\nsleep 1\n\
         sipp -sf {} -i 192.168.1.10 -p 5090 -m 1 -d 300 -s 600 -cid_str 1-20713@192.0.2.77 -nostdin 192.0.2.10:5060 \
         > uac.log 2>&1 || exit 1\n\
         for n in $(seq 100); do {list} > list.log 2>&1 && break; sleep 0.1; done\n\
         {} > ladder.log 2>&1 || exit 1\n{} > pcapng.log 2>&1 || exit 1\nawait live.log 600 || exit 1\n\
         kill -TERM $live $border\nwait $border\n",
        line(&["--live"]),
        root().join("scenarios/sipp/uac.xml").display(),
        line(&["1-20713@192.0.2.77"]),
        line(&["--pcapng"]),
    );
    if guide.in_network(&script, Duration::from_secs(60)).is_none() {
        return;
    }
    let list = guide.log("list.log");
    assert!(list.contains("600"), "{}", guide.logs());
    let ladder = guide.log("ladder.log");
    for message in ["INVITE", "200", "BYE"] {
        assert!(ladder.contains(message), "{message}: {ladder}");
    }
    let capture = std::fs::metadata(guide.folder.join("call.pcapng")).expect("capture");
    assert!(capture.len() > 1_000, "{} bytes", capture.len());
}

/// The page of `examples/browser` registers by WebSocket in Chromium and calls a telephone; both sides receive audio.
#[test]
fn browser_page_registers_and_calls_a_telephone() {
    if !installed(&["chromium", "npm", "node", "openssl", "python3"]) {
        return;
    }
    let guide = Guide::new(&page("how-to/browser-calls.md"));
    let copy = guide.folder.join("examples/browser");
    std::fs::create_dir_all(&copy).expect("folder");
    for entry in std::fs::read_dir(root().join("examples/browser"))
        .expect("example")
        .flatten()
    {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("example");
        }
    }
    let commands = guide.commands();
    let line = |start: &str| {
        commands
            .iter()
            .find(|line| line.starts_with(start))
            .expect(start)
            .clone()
    };
    let install = guide.shell(&line("npm install"));
    if !install.status.success() {
        let why = String::from_utf8_lossy(&install.stderr).into_owned();
        assert!(
            [
                "ENOTFOUND",
                "EAI_AGAIN",
                "ECONNREFUSED",
                "ETIMEDOUT",
                "network"
            ]
            .iter()
            .any(|word| why.contains(word)),
            "npm install: {why}"
        );
        eprintln!("skipped: no package registry can be reached: {why}");
        return;
    }
    let script = format!(
        "{} 2>/dev/null || exit 1\n{} > border.log 2>&1 &\nborder=$!\nawait border.log socket_opened || exit 1\n\
         {} > http.log 2>&1 &\n{} || exit 1\n{} > callee.log 2>&1 &\ncallee=$!\n\
         await border.log registration_stored || exit 1\n\
         chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
         --disable-background-networking --ignore-certificate-errors --allow-loopback-in-peer-connection \
         --autoplay-policy=no-user-gesture-required --use-fake-ui-for-media-stream --use-fake-device-for-media-stream \
         --user-data-dir=\"$PWD/profile\" \
         'http://127.0.0.1:8000/index.html?user=1000&password=secret-1000&number=1001&seconds=4' > chromium.log 2>&1 &\n\
         await border.log call_answered && await border.log call_ended || exit 1\nwait $callee || exit 1\nkill -TERM $border\nwait $border\n",
        line("openssl"),
        line("hornwork run"),
        line("python3 -m http.server"),
        line("echo secret-1001"),
        line("hornwork phone answer"),
    );
    if guide.in_network(&script, Duration::from_secs(90)).is_none() {
        return;
    }
    let log = guide.log("border.log");
    assert!(log.contains("media_security_agreed"), "{log}");
    let ended = log
        .lines()
        .find(|line| line.contains("call_ended"))
        .expect("call_ended");
    // A side from which nothing came has no figures.
    for side in ["caller", "callee"] {
        let field = format!("{side}_mos=");
        let mos = ended
            .split(&field)
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
        assert!(mos.is_some_and(|mos| mos > 3.5), "{side}: {ended}");
    }
}
