//! Real telephones through the border: they register with digest, call each other, and each must have
//! heard what the other said.

mod common;

use codec::wav::{Encoding, Wav};
use common::{Process, border, example, installed, scratch};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Least likeness of what was heard to what was said. G.711 and a few lost edges leave more than 0.9; another sentence,
/// noise or silence stays below 0.3.
const ALIKE: f64 = 0.8;

/// Writes speech as a WAV file that a phone can play.
fn voice(folder: &Path, name: &str, samples: &[i16]) -> PathBuf {
    let path = folder.join(name);
    let file = codec::wav::write(Encoding::Pcm16, 8_000, 1, samples).expect("speech fits a file");
    std::fs::write(&path, file).expect("voice file");
    path
}

/// A headless baresip whose audio comes from `voice`; what it hears and says is written to `folder`.
fn baresip(folder: &Path, user: u16, sip: u16, own: u16, voice: &Path, more: &[&str]) -> Process {
    std::fs::create_dir_all(folder).expect("folder");
    let modules = [
        "/usr/lib/baresip/modules",
        "/usr/lib/x86_64-linux-gnu/baresip/modules",
    ]
    .into_iter()
    .find(|path| Path::new(path).is_dir())
    .unwrap_or("/usr/lib/baresip/modules");
    let config = format!(
        "net_interface 127.0.0.1\nsip_listen 127.0.0.1:{own}\naudio_player aufile,{0}/player.wav\n\
         audio_source aufile,{1}\naudio_alert aufile,/dev/null\nausrc_srate 8000\nauplay_srate 8000\n\
         audio_txmode thread\nrtp_ports {2}-{3}\nmodule_path {modules}\nmodule g711.so\nmodule aufile.so\n\
         module sndfile.so\nmodule_app account.so\nmodule_app menu.so\nsnd_path {0}\n",
        folder.display(),
        voice.display(),
        own + 1000,
        own + 1010,
    );
    std::fs::write(folder.join("config"), config).expect("configuration");
    let account = format!(
        "<sip:{user}@127.0.0.1:{sip}>;auth_user={user};auth_pass=secret-{user};answermode=auto;regint=60;audio_codecs=PCMA\n"
    );
    std::fs::write(folder.join("accounts"), account).expect("account");
    Process::start(
        Command::new("baresip")
            .args(["-f", &folder.display().to_string(), "-v"])
            .args(more)
            .stdin(Stdio::null()),
        &folder.join("log"),
    )
}

/// Waits until the process has said `word`.
fn until(process: &Process, word: &str, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if process.said().contains(word) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// The recording in `folder` whose name ends so.
fn recording(folder: &Path, ending: &str) -> PathBuf {
    std::fs::read_dir(folder)
        .expect("folder")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(ending))
        .unwrap_or_else(|| panic!("no recording in {}", folder.display()))
}

/// Gives the data chunk the length that is there: a phone that is still recording has not written it yet.
fn close(file: &mut [u8]) {
    let length = file.len();
    let data = file.windows(4).position(|window| window == b"data");
    if let Some(at) = data
        && let Some(field) = file.get_mut(at + 4..at + 8)
    {
        field.copy_from_slice(&((length - at - 8) as u32).to_le_bytes());
    }
}

/// How alike the recording is to what was said: the best of several stretches of two seconds, for a phone's jitter buffer may
/// shift what it plays in mid-call.
fn likeness(recording: &Path, said: &[i16]) -> f64 {
    let mut file = std::fs::read(recording).expect("recording");
    close(&mut file);
    let wav =
        Wav::parse(&file).unwrap_or_else(|error| panic!("{}: {error:?}", recording.display()));
    let heard = wav.mono();
    let heard = codec::resample::Resampler::whole(&heard, wav.rate, 8_000).expect("a usual rate");
    let start = heard
        .iter()
        .position(|sample| sample.unsigned_abs() > 500)
        .unwrap_or(0);
    (0..4)
        .filter_map(|stretch| heard.get(start + stretch * 8_000..start + stretch * 8_000 + 16_000))
        .filter_map(|part| media::audio::compare(said, part))
        .map(|comparison| f64::from(comparison.correlation))
        .fold(0.0, f64::max)
}

/// Telephones keep time by the machine's clock: one call at a time.
static ONE_CALL: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn baresip_calls_baresip() {
    let _turn = ONE_CALL.lock();
    if !installed(&["baresip"]) {
        return;
    }
    let folder = scratch("phones-baresip");
    let sip = 5260;
    let border = border(
        &folder,
        &example("loopback-uc.toml", sip, 5280, (26000, 26999), ""),
        sip,
    );
    let (a, b) = (folder.join("a"), folder.join("b"));
    let caller_voice = voice(&folder, "caller.wav", codec::speech::speech());
    let callee_voice = voice(&folder, "callee.wav", codec::speech::answer());
    let callee = baresip(&b, 1001, sip, 5264, &callee_voice, &["-t", "25"]);
    assert!(
        until(&callee, "200 OK", Duration::from_secs(8)),
        "callee did not register: {}\n{}",
        callee.said(),
        border.said()
    );
    let dial = format!("/dial sip:1001@127.0.0.1:{sip}");
    let mut caller = baresip(
        &a,
        1000,
        sip,
        5268,
        &caller_voice,
        &["-e", &dial, "-t", "12"],
    );
    assert!(
        until(&caller, "Call established", Duration::from_secs(8)),
        "no call: {}\n{}",
        caller.said(),
        border.said()
    );
    caller.wait(Duration::from_secs(20));
    drop(callee);
    let heard = [
        likeness(&recording(&a, "dec.wav"), codec::speech::answer()),
        likeness(&recording(&b, "dec.wav"), codec::speech::speech()),
    ];
    println!(
        "baresip to baresip: caller heard {:.3}, callee heard {:.3}",
        heard[0], heard[1]
    );
    assert!(
        heard.iter().all(|value| *value > ALIKE),
        "likeness {heard:?}"
    );
}
