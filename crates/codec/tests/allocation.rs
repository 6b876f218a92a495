//! After a coder has been constructed, coding a frame allocates no memory. (libbcg729 and libopus use their own state
//! and the stack; allocations by malloc are not detected here.)

use codec::{Format, Kind, PacketiserSettings, Transcoder, Unpacker};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Allocations of this thread only; other tests run in parallel.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread may allocate at its end, after the cell is gone; such allocations are ignored.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as for the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as for the trait.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for the trait.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

#[test]
fn coding_allocates_nothing() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![0u8; 9]))), 1);
    for from in Kind::ALL {
        for to in Kind::ALL {
            if !(from.is_available() && to.is_available()) {
                println!("skipped: {} to {}", from.name(), to.name());
                continue;
            }
            let made = transcoding(from, to);
            assert_eq!(made, 0, "{} to {}", from.name(), to.name());
        }
    }
}

/// Number of allocations of a second of transcoding with silence, losses and comfort noise.
fn transcoding(from: Kind, to: Kind) -> u64 {
    let (from, to) = (Format::new(from), Format::new(to));
    let rate = from.kind().sample_rates()[0];
    let mut packetiser =
        codec::Packetiser::new(&from, rate, PacketiserSettings::default()).unwrap();
    let speech = codec::Resampler::whole(&codec::speech::speech()[..16_000], 8000, rate).unwrap();
    let mut payloads = Vec::new();
    packetiser
        .push(&speech, &mut |packet| {
            payloads.push(packet.payload.to_vec())
        })
        .unwrap();
    let packing = PacketiserSettings {
        packet_ms: 20,
        suppress_silence: true,
    };
    let mut transcoder = Transcoder::new(&from, &to, packing, 1).unwrap();
    let mut unpacker = Unpacker::new(&from, rate, 1).unwrap();
    let mut detector = codec::dtmf::Detector::new(rate);
    let mut samples = [0; codec::coder::MAX_SAMPLES];
    let units = from.kind().rtp_clock() / 50;
    let mut round = |payloads: &[Vec<u8>]| {
        for (index, payload) in payloads.iter().enumerate() {
            let mut send = |packet: codec::Packet<'_>| {
                std::hint::black_box(packet);
            };
            match index % 10 {
                7 => transcoder.gap(units, &mut send).unwrap(),
                8 => transcoder.noise(&[60, 100, 140], units, &mut send).unwrap(),
                _ => transcoder.audio(payload, &mut send).unwrap(),
            }
            let made = unpacker.audio(payload, &mut samples).unwrap();
            detector.push(&samples[..made], &mut |_| {});
            unpacker.gap(&mut samples[..made]);
        }
    };
    // The first packets may allocate buffers that are kept.
    round(&payloads[..5]);
    allocations(|| round(&payloads[5..]))
}
