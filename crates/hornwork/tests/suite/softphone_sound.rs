//! `hornwork phone` with sound cards: PulseAudio is the card, its own programs speak into the microphone and record the
//! loudspeaker.

use crate::common::phones::{correlation_of, until, voice};
use crate::common::{Process, free_port, installed, scratch};
use crate::softphone::{MIN_CORRELATION, json, phone, recorded, text};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn without_a_card_the_reason_is_named() {
    let folder = scratch("sound-none");
    let arguments = ["call", "sip:600@127.0.0.1:9", "--sound-in", "no-such-card"];
    let output = phone(&folder, &arguments);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    let reason = match cfg!(feature = "sound") {
        true => "--sound-in no-such-card: there is no such sound card",
        false => "this build has no sound cards",
    };
    assert!(text(&output).contains(reason), "{}", text(&output));
    let output = phone(&folder, &["sound"]);
    let expected = if cfg!(feature = "sound") { 0 } else { 3 };
    assert_eq!(output.status.code(), Some(expected), "{}", text(&output));
}

/// A PulseAudio server with a microphone and a loudspeaker, and an ALSA configuration that leads to it.
struct SoundServer {
    folder: std::path::PathBuf,
    _server: Process,
}

impl SoundServer {
    fn start(folder: &Path) -> SoundServer {
        let socket = folder.join("pulse.socket");
        let native = format!(
            "module-native-protocol-unix auth-anonymous=1 socket={}",
            socket.display()
        );
        let server = Process::start(
            private(Command::new("pulseaudio"), folder)
                .args(["--daemonize=no", "-n", "--exit-idle-time=-1"])
                .args(["--disallow-exit", "--realtime=no", "--high-priority=no"])
                .args(["-L", "module-null-sink sink_name=microphone rate=48000"])
                .args(["-L", "module-null-sink sink_name=loudspeaker rate=48000"])
                .args(["-L", &native]),
            &folder.join("pulse.log"),
        );
        let asound = "pcm.!default { type pulse }\nctl.!default { type pulse }\n";
        let include = "</usr/share/alsa/alsa.conf>\n";
        std::fs::write(folder.join("asound.conf"), format!("{include}{asound}"))
            .expect("ALSA configuration");
        let end = Instant::now() + Duration::from_secs(10);
        while !socket.exists() {
            assert!(Instant::now() < end, "{}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        SoundServer {
            folder: folder.to_owned(),
            _server: server,
        }
    }

    /// A program whose default sound card is that of this server.
    fn command(&self, program: &str) -> Command {
        let mut command = private(Command::new(program), &self.folder);
        let socket = self.folder.join("pulse.socket");
        command
            .env("PULSE_SERVER", format!("unix:{}", socket.display()))
            .env("PULSE_SOURCE", "microphone.monitor")
            .env("PULSE_SINK", "loudspeaker")
            .env("ALSA_CONFIG_PATH", self.folder.join("asound.conf"))
            .current_dir(&self.folder)
            .stdin(Stdio::null());
        command
    }
}

/// Without access to the files of a user's own server.
fn private(mut command: Command, folder: &Path) -> Command {
    command
        .env("HOME", folder)
        .env("XDG_RUNTIME_DIR", folder)
        .env("XDG_CONFIG_HOME", folder)
        .env_remove("DISPLAY")
        .env_remove("DBUS_SESSION_BUS_ADDRESS");
    command
}

fn raw(folder: &Path, name: &str, samples: &[i16]) {
    let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    std::fs::write(folder.join(name), bytes).expect("samples");
}

#[test]
fn speech_passes_microphone_and_loudspeaker() {
    if !cfg!(feature = "sound") {
        eprintln!("skipped: built without the feature sound (no headers of ALSA)");
        return;
    }
    if !installed(&["pulseaudio", "pacat", "parec"]) {
        return;
    }
    let folder = scratch("sound");
    let sound = SoundServer::start(&folder);
    let listed = sound
        .command(env!("CARGO_BIN_EXE_hornwork"))
        .args(["phone", "sound"])
        .output()
        .expect("hornwork");
    assert!(text(&listed).contains("default"), "{}", text(&listed));
    let (spoken, answer) = (codec::speech::speech(), codec::speech::answer());
    raw(&folder, "spoken.raw", &spoken.repeat(3));
    voice(&folder, "answer.wav", answer);
    let local = format!("127.0.0.1:{}", free_port());
    let mut callee = Process::start(
        sound
            .command("timeout")
            .args(["60", env!("CARGO_BIN_EXE_hornwork"), "phone", "answer"])
            .args(["--local", &local, "--codec", "g722", "--wait", "30"])
            .args(["--sound-in", "--sound-out", "--json", "sound.json"]),
        &folder.join("answer.log"),
    );
    let waits = until(&callee, "waiting for a call", Duration::from_secs(20));
    assert!(waits, "{}", callee.log());
    // A virtual device passes its audio in blocks of the smallest latency that its users ask for, by default two
    // seconds.
    let format = [
        "--format=s16le",
        "--rate=8000",
        "--channels=1",
        "--latency-msec=20",
    ];
    let mut recorder = Process::start(
        sound
            .command("parec")
            .args(format)
            .args(["--device=loudspeaker.monitor", "loudspeaker.raw"]),
        &folder.join("parec.log"),
    );
    let mut speaker = Process::start(
        sound
            .command("pacat")
            .args(format)
            .args(["--device=microphone", "spoken.raw"]),
        &folder.join("pacat.log"),
    );
    // A virtual device that is opened passes nothing for up to two seconds.
    std::thread::sleep(Duration::from_secs(3));
    let uri = format!("sip:600@{local}");
    let arguments = [
        "call",
        &uri,
        "--wav-in",
        "answer.wav",
        "--loop",
        "--wav-out",
        "heard.wav",
        "--seconds",
        "6",
    ];
    let output = phone(&folder, &arguments);
    let shown = text(&output);
    callee.wait(Duration::from_secs(10));
    let shown = format!("{shown}{}", callee.log());
    for other in [&mut speaker, &mut recorder] {
        other.signal("TERM");
        other.wait(Duration::from_secs(5));
    }
    assert_eq!(output.status.code(), Some(0), "{shown}");
    let (heard, _) = recorded(&folder, "heard.wav");
    let played = std::fs::read(folder.join("loudspeaker.raw")).expect("recording");
    let played: Vec<i16> = played
        .chunks_exact(2)
        .map(|pair| i16::from_le_bytes([pair[0], pair[1]]))
        .collect();
    let [microphone, loudspeaker] =
        [(&heard, spoken), (&played, answer)].map(|(heard, said)| correlation_of(heard, said));
    println!("microphone {microphone:.3}, loudspeaker {loudspeaker:.3}\n{shown}");
    assert!(microphone > MIN_CORRELATION, "{microphone}: {shown}");
    assert!(loudspeaker > MIN_CORRELATION, "{loudspeaker}: {shown}");
    let figures = json(&folder, "sound.json");
    for side in ["sound_in", "sound_out"] {
        let figure = |name: &str| figures[side][name].as_u64().expect(name);
        // The card and the stream have one clock here: at most the gap of the beginning.
        let half_second = figure("rate") / 2;
        assert!(figure("samples") > 4 * figure("rate"), "{shown}");
        assert!(figure("missing") < half_second, "{side}: {shown}");
        assert!(figure("dropped") < half_second, "{side}: {shown}");
    }
}
