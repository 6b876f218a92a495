use super::*;
use crate::ethernet::LinkType;

type TestFrames = Vec<(u64, LinkType, Vec<u8>, usize)>;

fn read(mut input: &[u8]) -> (TestFrames, Vec<CaptureError>) {
    let mut reader = Reader::new();
    let (mut frames, mut errors) = (Vec::new(), Vec::new());
    loop {
        match reader.step(input, true) {
            Step::Frame { used, frame } => {
                frames.push((
                    frame.time,
                    frame.link,
                    frame.data.to_vec(),
                    frame.original_length,
                ));
                input = &input[used..];
            }
            Step::Skip { used } => input = &input[used..],
            Step::Damaged { error, used } => {
                errors.push(error);
                match used {
                    Some(used) => input = &input[used..],
                    None => break,
                }
            }
            Step::End => break,
            Step::More { .. } => unreachable!("the input is the last"),
        }
    }
    (frames, errors)
}

#[test]
fn pcap_resolutions_and_byte_orders() {
    for nanoseconds in [true, false] {
        let mut writer = PcapWriter::with_resolution(LinkType::LinuxSll2, nanoseconds);
        writer.frame(1_600_000_000_123_456_000, &[1, 2, 3]);
        writer.truncated_frame(1_600_000_001_000_000_000, &[4], 90);
        let file = writer.finish();
        let expected: TestFrames = vec![
            (
                1_600_000_000_123_456_000,
                LinkType::LinuxSll2,
                vec![1, 2, 3],
                3,
            ),
            (1_600_000_001_000_000_000, LinkType::LinuxSll2, vec![4], 90),
        ];
        assert_eq!(read(&file), (expected.clone(), vec![]));
        assert_eq!(read(&swap_words(&file)), (expected, vec![]));
    }
}

/// The same file in big-endian order: every 32-bit field reversed, the two 16-bit version fields too.
fn swap_words(file: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for at in (0..24).step_by(4) {
        out.extend(file[at..at + 4].iter().rev());
    }
    out[4..8].copy_from_slice(&[0, 2, 0, 4]);
    let mut at = 24;
    while at < file.len() {
        for field in (at..at + 16).step_by(4) {
            out.extend(file[field..field + 4].iter().rev());
        }
        let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        out.extend(&file[at + 16..at + 16 + length]);
        at += 16 + length;
    }
    out
}

#[test]
fn pcapng_interfaces_and_resolutions() {
    for big_endian in [false, true] {
        let mut writer = PcapngWriter::new(big_endian);
        let micro = writer.interface(LinkType::Ethernet, 6);
        let nano = writer.interface(LinkType::Raw, 9);
        let pico = writer.interface(LinkType::Raw, 10);
        writer.frame(nano, 1_600_000_000_123_456_789, &[1, 2, 3, 4, 5]);
        writer.block(5, &[0; 12]);
        writer.frame(micro, 1_600_000_000_123_456_789, &[6]);
        writer.frame(pico, 1_000_000_000, &[7]);
        writer.frame(9, 0, &[8]);
        let (frames, errors) = read(&writer.finish());
        assert_eq!(
            frames,
            vec![
                (
                    1_600_000_000_123_456_789,
                    LinkType::Raw,
                    vec![1, 2, 3, 4, 5],
                    5
                ),
                (1_600_000_000_123_456_000, LinkType::Ethernet, vec![6], 1),
                (1_000_000_000, LinkType::Raw, vec![7], 1),
            ]
        );
        assert_eq!(errors, [CaptureError::UnknownInterface(9)]);
    }
}

#[test]
fn several_sections_in_different_orders() {
    let mut file = Vec::new();
    for (big_endian, link) in [(true, LinkType::Raw), (false, LinkType::Ethernet)] {
        let mut writer = PcapngWriter::new(big_endian);
        writer.interface(link, 9);
        writer.frame(0, 5, &[1]);
        file.extend(writer.finish());
    }
    let (frames, errors) = read(&file);
    assert_eq!(
        frames.iter().map(|frame| frame.1).collect::<Vec<_>>(),
        [LinkType::Raw, LinkType::Ethernet]
    );
    assert!(errors.is_empty());
}

#[test]
fn resolutions_of_base_two_offsets_and_simple_packets() {
    let mut writer = PcapngWriter::new(false);
    // if_tsresol 2^-10, if_tsoffset 3 s, snap length 2.
    let mut body = vec![
        101, 0, 0, 0, 2, 0, 0, 0, 9, 0, 1, 0, 0x8a, 0, 0, 0, 14, 0, 8, 0,
    ];
    body.extend(3i64.to_le_bytes());
    writer.block(1, &body);
    writer.frame(0, 0, &[1, 2]);
    writer.block(3, &[9, 0, 0, 0, 1, 2, 0, 0]);
    let (frames, errors) = read(&writer.finish());
    assert_eq!(frames[0].0, 3_000_000_000);
    assert_eq!((frames[1].2.clone(), frames[1].3), (vec![1, 2], 9));
    assert!(errors.is_empty());
}

#[test]
fn files_of_other_formats_are_refused() {
    assert_eq!(read(b"").1, [CaptureError::Empty]);
    assert_eq!(read(b"\xd4\xc3\xb2\xa1 short").1, [CaptureError::Empty]);
    assert_eq!(
        read(b"hello world, this is no capture").1,
        [CaptureError::NotACapture]
    );
    assert_eq!(read(&[0x1f, 0x8b, 8, 0, 0]).1, [CaptureError::Compressed]);
}

#[test]
fn truncation_keeps_the_complete_records() {
    let mut writer = PcapngWriter::new(false);
    writer.interface(LinkType::Raw, 9);
    for time in 0..5 {
        writer.frame(0, time, &[1; 20]);
    }
    let file = writer.finish();
    let whole = file.len();
    for cut in 32..whole {
        let (frames, errors) = read(&file[..cut]);
        assert!(frames.len() < 5);
        assert!(errors.len() <= 1);
        assert!(frames.len() == 4 || cut < whole - 52);
    }
}

#[test]
fn fed_byte_by_byte() {
    let mut writer = PcapWriter::new(LinkType::Raw);
    for time in 0..3 {
        writer.frame(time, &[1; 7]);
    }
    let file = writer.finish();
    let mut reader = Reader::new();
    let (mut start, mut end, mut frames) = (0, 0, 0);
    loop {
        match reader.step(&file[start..end], end == file.len()) {
            Step::More { total } => {
                assert!(start + total > end);
                end += 1;
            }
            Step::Frame { used, .. } => {
                frames += 1;
                start += used;
            }
            Step::Skip { used } => start += used,
            Step::End => break,
            Step::Damaged { error, .. } => panic!("{error}"),
        }
    }
    assert_eq!(frames, 3);
}
