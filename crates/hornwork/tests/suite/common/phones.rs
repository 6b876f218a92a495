//! Headless phones of other projects, the audio that they send, and the audio that they received.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use crate::common::{Process, free_port};
use codec::wav::{Encoding, Wav};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Writes speech as a WAV file that a phone can play.
pub fn voice(folder: &Path, name: &str, samples: &[i16]) -> PathBuf {
    let path = folder.join(name);
    let file = codec::wav::write(Encoding::Pcm16, 8_000, 1, samples).expect("speech fits a file");
    std::fs::write(&path, file).expect("voice file");
    path
}

/// A headless baresip with `voice` as audio source; sent and received audio is written to `folder`.
pub fn baresip(folder: &Path, user: u16, sip: u16, voice: &Path, more: &[&str]) -> Process {
    baresip_with_encryption(folder, user, sip, voice, "", more)
}

/// As [`baresip`], with media encryption: `encryption` is a module with a `mediaenc` of that name, or a variant of one.
pub fn baresip_with_encryption(
    folder: &Path,
    user: u16,
    sip: u16,
    voice: &Path,
    encryption: &str,
    more: &[&str],
) -> Process {
    baresip_with_codec("PCMA", folder, user, sip, voice, encryption, more)
}

/// As [`baresip`], with this codec only, as baresip names it: with rate and channels if they are not 8000 and 1.
pub fn baresip_with_codec(
    codec: &str,
    folder: &Path,
    user: u16,
    sip: u16,
    voice: &Path,
    encryption: &str,
    more: &[&str],
) -> Process {
    let (module, account) = match encryption {
        "" => (String::new(), String::new()),
        kind => {
            let module = kind.split('-').next().unwrap_or_default();
            (
                format!("module {module}.so\nrtcp_mux yes\n"),
                format!(";mediaenc={kind}"),
            )
        }
    };
    let own = free_port();
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
         audio_source aufile,{1}\naudio_alert aufile,/dev/null\nausrc_srate 8000\nauplay_srate 8000\nausrc_channels 1\nauplay_channels 1\n\
         audio_txmode thread\nrtp_ports {2}-{3}\nmodule_path {modules}\nmodule g711.so\nmodule g722.so\nmodule opus.so\n\
         module aufile.so\nmodule sndfile.so\n{module}module_app account.so\nmodule_app menu.so\nsnd_path {0}\n",
        folder.display(),
        voice.display(),
        own + 1000,
        own + 1100,
    );
    std::fs::write(folder.join("config"), config).expect("configuration");
    let account = format!(
        "<sip:{user}@127.0.0.1:{sip}>;auth_user={user};auth_pass=secret-{user};answermode=auto;regint=60;audio_codecs={codec}{account}\n"
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

/// Waits until the output of the process contains `word`.
pub fn until(process: &Process, word: &str, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if process.log().contains(word) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// The recording in `folder` whose name has this ending.
pub fn recording(folder: &Path, ending: &str) -> PathBuf {
    std::fs::read_dir(folder)
        .expect("folder")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(ending))
        .unwrap_or_else(|| panic!("no recording in {}", folder.display()))
}

/// Sets the length of the data chunk: a phone that is still recording has not written it yet.
pub fn close(file: &mut [u8]) {
    let length = file.len();
    let data = file.windows(4).position(|window| window == b"data");
    if let Some(at) = data
        && let Some(field) = file.get_mut(at + 4..at + 8)
    {
        field.copy_from_slice(&((length - at - 8) as u32).to_le_bytes());
    }
}

/// Correlation of the recording with the sent audio.
pub fn correlation(recording: &Path, said: &[i16]) -> f64 {
    let mut file = std::fs::read(recording).expect("recording");
    close(&mut file);
    let wav =
        Wav::parse(&file).unwrap_or_else(|error| panic!("{}: {error:?}", recording.display()));
    let heard = wav.mono();
    let heard = codec::resample::Resampler::whole(&heard, wav.rate, 8_000).expect("a usual rate");
    correlation_of(&heard, said)
}

/// Correlation of received with sent audio: the maximum over several sections of two seconds, since a phone's jitter
/// buffer may shift the playout during the call.
pub fn correlation_of(heard: &[i16], said: &[i16]) -> f64 {
    let start = heard
        .iter()
        .position(|sample| sample.unsigned_abs() > 500)
        .unwrap_or(0);
    (0..4)
        .filter_map(|stretch| heard.get(start + stretch * 8_000..start + stretch * 8_000 + 16_000))
        .filter_map(|part| media::audio::compare(said, part))
        .map(|comparison| comparison.correlation)
        .fold(0.0, f64::max)
}
