//! Counts what the forwarder asks of the allocator per packet: nothing.

use engine::{Forward, HashKey, Packet, SocketId, Time, Verdict};
use media::{Carriage, Forwarder, ForwarderLimits, MediaCommand, SessionPlan, SidePlan};
use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::rtcp::CompoundBuilder;
use wire::rtp::RtpHeader;

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator unchanged; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test only in this file: the counter is the process's.
#[test]
fn steady_state_asks_for_no_memory() {
    const SESSIONS: u32 = 50;
    let mut forwarder = Forwarder::new(ForwarderLimits::default(), HashKey::default());
    let address = |session: u32, side: u32| {
        SocketAddr::from(([192, 0, 2, side as u8 + 1], 4000 + session as u16))
    };
    for session in 0..SESSIONS {
        let mut sides = [0, 1].map(|side| SidePlan::new(SocketId(70_000 + session * 2 + side)));
        for (number, side) in sides.iter_mut().enumerate() {
            side.signalled_rtp = Some(address(session, number as u32));
            side.mux = true;
        }
        let plan = SessionPlan::single(session.into(), Carriage::Rtp, sides);
        forwarder.command(MediaCommand::Add(plan), Time::ZERO);
    }
    let mut packet = RtpHeader {
        payload_type: 8,
        ..RtpHeader::default()
    }
    .packet(&[0xd5; 160]);
    let mut report = CompoundBuilder::new()
        .receiver_report(1, &[])
        .cname(1, "a@b")
        .finish();
    let mut run = |rounds: core::ops::Range<u32>| {
        let mut forwarded = 0;
        for round in rounds {
            let now = Time::from_millis(20 * u64::from(round));
            forwarder.timeout(now);
            for place in 0..2 * SESSIONS {
                packet[2..4].copy_from_slice(&(round as u16).to_be_bytes());
                packet[4..8].copy_from_slice(&(round * 160).to_be_bytes());
                let bytes = if round % 100 == 0 {
                    &mut report[..]
                } else {
                    &mut packet[..]
                };
                let (socket, source) = (SocketId(70_000 + place), address(place / 2, place % 2));
                let verdict = forwarder.forward(
                    &mut Packet {
                        socket,
                        source,
                        arrived: now,
                        bytes,
                    },
                    now,
                );
                forwarded += u32::from(matches!(verdict, Verdict::Forward { .. }));
                let stranger = SocketAddr::from(([203, 0, 113, 1], 1));
                let verdict = forwarder.forward(
                    &mut Packet {
                        socket,
                        source: stranger,
                        arrived: now,
                        bytes: &mut [0x80; 20],
                    },
                    now,
                );
                assert!(matches!(verdict, Verdict::Drop(_)));
            }
            while let Some(event) = forwarder.next_report() {
                assert!(matches!(event, media::MediaEvent::Latched { .. }));
            }
        }
        forwarded
    };
    // Beyond the first look at inactivity (60 s), for which the wheel of timers makes its list of due ones.
    run(1..3_200);
    let before = CALLS.load(Ordering::Relaxed);
    let forwarded = run(3_200..10_000);
    let calls = CALLS.load(Ordering::Relaxed) - before;
    assert_eq!(forwarded, (10_000 - 3_200) * 2 * SESSIONS);
    assert_eq!(calls, 0, "calls of the allocator for {forwarded} packets");
}
