//! Three phones of other projects in a conference of the border: each must receive the other two, and not itself.

use crate::common;
use crate::common::phones;

use codec::wav::Wav;
use codec::{Resampler, Tone, ToneGenerator};
use common::{Process, border, free_port, installed, media_ports, scratch};
use phones::{baresip_with_encryption, recording, until, voice};
use std::path::Path;
use std::time::{Duration, Instant};

/// The tones that they send; they can be separated in the mix.
const TONES: [f64; 3] = [440.0, 1000.0, 1800.0];

/// Level of `hz` in received audio, dB relative to the phones' tones: the maximum over sections of half a second, since
/// a stalled machine leaves gaps in some of them.
fn level(heard: &[i16], hz: f64, rate: u32) -> f64 {
    let half = rate as usize / 2;
    let stretches = heard.chunks_exact(half).map(|samples| {
        let step = core::f64::consts::TAU * hz / f64::from(rate);
        let (mut re, mut im) = (0.0, 0.0);
        for (index, &sample) in samples.iter().enumerate() {
            let place = core::f64::consts::TAU * index as f64 / half as f64;
            let window = 0.5 - 0.5 * place.cos();
            re += window * f64::from(sample) * (step * index as f64).cos();
            im += window * f64::from(sample) * (step * index as f64).sin();
        }
        let amplitude = 4.0 * f64::hypot(re, im) / half as f64;
        20.0 * (amplitude.max(1e-3) / AMPLITUDE).log10()
    });
    stretches.fold(-100.0, f64::max)
}

/// Amplitude of a tone at -16 dBm0 (a full-scale sine has 3.14 dBm0).
const AMPLITUDE: f64 = 3_617.0;

/// Audio received by the phone in `folder` so far, at 8 kHz.
fn received_audio(folder: &Path) -> Vec<i16> {
    let mut file = std::fs::read(recording(folder, "-dec.wav")).expect("recording");
    phones::close(&mut file);
    let wav = Wav::parse(&file).expect("a recording");
    Resampler::whole(&wav.mono(), wav.rate, 8_000).expect("a usual rate")
}

/// Three phones call the conference; `encryption` is the media encryption of the first.
fn conference(name: &str, interface: &str, encryption: &str) -> Option<String> {
    if !installed(&["baresip"]) {
        return None;
    }
    let folder = scratch(name);
    let sip = free_port();
    let (first, last) = media_ports(202);
    let text = format!(
        "[[interface]]\nname = \"loopback\"\nkind = \"access\"\nlisten = [\"udp:127.0.0.1:{sip}\"]\n{interface}\n\
         media = {{ address = \"127.0.0.1\", ports = \"{first}-{last}\" }}\n\
         [[conference]]\nname = \"meeting\"\nnumber = \"800\"\ntones = \"none\"\ncodecs = [\"PCMA\"]\n"
    );
    let border = border(&folder, &text, sip);
    let dial = format!("/dial sip:800@127.0.0.1:{sip}");
    let mut phones = Vec::new();
    for (number, hz) in TONES.into_iter().enumerate() {
        let mut samples = vec![0; 8_000 * 40];
        ToneGenerator::new(Tone::sine(hz, -16.0), 8_000).fill(&mut samples);
        let spoken = voice(&folder, &format!("voice-{number}.wav"), &samples);
        let own = folder.join(format!("phone-{number}"));
        let encryption = if number == 0 { encryption } else { "" };
        let user = 1_000 + number as u16;
        let more = ["-e", dial.as_str(), "-t", "90"];
        let phone = baresip_with_encryption(&own, user, sip, &spoken, encryption, &more);
        let joined = format!("participants={}", number + 1);
        assert!(
            until(&border, &joined, Duration::from_secs(30)),
            "{}\n{}",
            phone.log(),
            border.log()
        );
        phones.push((phone, own));
    }
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let levels: Vec<[f64; 3]> = phones
            .iter()
            .map(|(_, own)| {
                let heard = received_audio(own);
                TONES.map(|hz| level(&heard, hz, 8_000))
            })
            .collect();
        let all = levels.iter().enumerate().all(|(by, levels)| {
            let mut others = levels.iter().enumerate().filter(|(of, _)| *of != by);
            others.all(|(_, level)| *level > -6.0)
        });
        println!("{name}: heard {levels:.1?} dB");
        if all {
            // Absence is checked over all audio received up to now.
            for (by, levels) in levels.iter().enumerate() {
                assert!(levels[by] < -20.0, "{by} receives itself: {levels:?}");
            }
            break;
        }
        assert!(Instant::now() < end, "{levels:?}\n{}", border.log());
    }
    drop(phones);
    assert!(
        wait_until_left(&border),
        "a phone is left: {}",
        border.log()
    );
    Some(border.log())
}

/// Waits until the last of the three has left.
fn wait_until_left(border: &Process) -> bool {
    until(border, "participants=0", Duration::from_secs(20))
}

/// Phones depend on the machine's clock, so the conferences run one at a time.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn three_phones_receive_each_other() {
    let _turn = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    conference("conference-plain", "", "");
}

/// One of them uses SRTP, which the conference decrypts and encrypts.
#[test]
fn phone_with_srtp_takes_part_like_all_others() {
    let _turn = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(log) = conference("conference-srtp", "srtp = \"prefer\"", "srtp-mand") {
        assert!(log.contains("media_security_agreed"), "{log}");
        assert!(log.contains("keying=sdes"), "{log}");
    }
}
