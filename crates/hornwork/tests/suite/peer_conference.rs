//! Three telephones of others in a conference of ours: each must hear the other two, and not itself.

use crate::common;
use crate::common::telephones;

use codec::wav::Wav;
use codec::{Resampler, Tone, ToneGenerator};
use common::{Process, border, free_port, installed, media_ports, scratch};
use std::path::Path;
use std::time::{Duration, Instant};
use telephones::{baresip_that, recording, until, voice};

/// What each of them says: steady tones, which are told apart however they are mixed.
const TONES: [f64; 3] = [440.0, 1000.0, 1800.0];

/// How loud `hz` is in what was heard, in dB against the tone that a telephone plays: the best of stretches of half a second,
/// for a machine that stands still leaves holes in any of them.
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

/// Of a tone at -16 dBm0 (a full-scale sine has 3.14 dBm0).
const AMPLITUDE: f64 = 3_617.0;

/// What the telephone in `folder` has heard so far, at 8 kHz.
fn heard(folder: &Path) -> Vec<i16> {
    let mut file = std::fs::read(recording(folder, "-dec.wav")).expect("recording");
    telephones::close(&mut file);
    let wav = Wav::parse(&file).expect("a recording");
    Resampler::whole(&wav.mono(), wav.rate, 8_000).expect("a usual rate")
}

/// Three telephones dial the conference; `encryption` is how the first protects its media.
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
         [[room]]\nname = \"meeting\"\nnumber = \"800\"\ntones = \"none\"\ncodecs = [\"PCMA\"]\n"
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
        let phone = baresip_that(&own, user, sip, &spoken, encryption, &more);
        let joined = format!("seats={}", number + 1);
        assert!(
            until(&border, &joined, Duration::from_secs(30)),
            "{}\n{}",
            phone.said(),
            border.said()
        );
        phones.push((phone, own));
    }
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let levels: Vec<[f64; 3]> = phones
            .iter()
            .map(|(_, own)| {
                let heard = heard(own);
                TONES.map(|hz| level(&heard, hz, 8_000))
            })
            .collect();
        let all = levels.iter().enumerate().all(|(by, levels)| {
            let mut others = levels.iter().enumerate().filter(|(of, _)| *of != by);
            others.all(|(_, level)| *level > -6.0)
        });
        println!("{name}: heard {levels:.1?} dB");
        if all {
            // What nobody may hear is looked for in all that came up to now.
            for (by, levels) in levels.iter().enumerate() {
                assert!(levels[by] < -20.0, "{by} hears itself: {levels:?}");
            }
            break;
        }
        assert!(Instant::now() < end, "{levels:?}\n{}", border.said());
    }
    drop(phones);
    assert!(until_left(&border), "somebody is left: {}", border.said());
    Some(border.said())
}

/// Whether the last of the three has left.
fn until_left(border: &Process) -> bool {
    until(border, "seats=0", Duration::from_secs(20))
}

/// Telephones keep time by the machine's clock: one conference at a time.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn three_telephones_hear_each_other() {
    let _turn = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    conference("conference-plain", "", "");
}

/// One of them protects its media, which the conference opens and seals.
#[test]
fn a_telephone_with_srtp_is_heard_like_all_others() {
    let _turn = ONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(said) = conference("conference-srtp", "srtp = \"prefer\"", "srtp-mand") {
        assert!(said.contains("media_keyed"), "{said}");
        assert!(said.contains("keying=sdes"), "{said}");
    }
}
