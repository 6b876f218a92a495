//! The timing wheel compared with a plain list of timers.

use engine::timers::{TimerHeap, TimerWheel};
use engine::{Entropy, Time};

const TICK: u64 = 1 << 20;

/// Applies random schedules, cancellations and steps of time to a wheel and to a list, and compares them.
fn compare_with_list(seed: u64, far: u64) {
    let mut entropy = Entropy::from_number(seed);
    let mut wheel = TimerWheel::new();
    let mut model: Vec<(u64, u32)> = Vec::new();
    let mut keys = Vec::new();
    let mut now = 0u64;
    for number in 0..4_000u32 {
        match entropy.below(4) {
            0 | 1 => {
                let at = now + entropy.below(far);
                keys.push((number, wheel.schedule(Time(at), number)));
                model.push((at, number));
            }
            2 if !keys.is_empty() => {
                let (number, key) = keys.swap_remove(entropy.below(keys.len() as u64) as usize);
                let pending = model.iter().any(|entry| entry.1 == number);
                assert_eq!(wheel.cancel(key).is_some(), pending);
                model.retain(|entry| entry.1 != number);
            }
            _ => {
                now += entropy.below(far / 3 + 1);
                let mut fired = Vec::new();
                while let Some(number) = wheel.pop_due(Time(now)) {
                    fired.push(number);
                }
                for &number in &fired {
                    let entry = model.iter().find(|entry| entry.1 == number).copied();
                    assert!(
                        entry.is_some_and(|(at, _)| at <= now),
                        "never early, never twice"
                    );
                    model.retain(|entry| entry.1 != number);
                }
                assert!(
                    model.iter().all(|entry| entry.0 + TICK > now),
                    "never more than a tick late"
                );
            }
        }
        if let Some(&(first, _)) = model.iter().min() {
            let next = wheel.next_at().expect("a timer is pending");
            assert!(next.0 <= first + TICK, "the deadline is not late");
        }
        assert_eq!(wheel.len(), model.len());
    }
}

#[test]
fn wheel_agrees_with_a_list() {
    for seed in 0..20 {
        compare_with_list(seed, 1 << 24);
        compare_with_list(seed, 1 << 32);
        compare_with_list(seed, 1 << 42);
        compare_with_list(seed, 1 << 51);
    }
}

#[test]
fn every_timer_fires_by_following_deadlines() {
    let mut wheel = TimerWheel::new();
    let spans: Vec<u64> = (0..50).map(|i| 1u64 << i).collect();
    for &span in &spans {
        wheel.schedule(Time(span), span);
    }
    let mut fired = Vec::new();
    let mut turns = 0;
    while let Some(at) = wheel.next_at() {
        turns += 1;
        assert!(turns < 2_000, "deadlines make progress");
        while let Some(span) = wheel.pop_due(at) {
            assert!(at.0 >= span && at.0 <= span + TICK);
            fired.push(span);
        }
    }
    fired.sort_unstable();
    assert_eq!(fired, spans);
}

#[test]
fn timer_heap_keeps_insertion_order() {
    let mut heap = TimerHeap::new();
    heap.push(Time(5), 'c');
    heap.push(Time(1), 'a');
    heap.push(Time(5), 'd');
    heap.push(Time(2), 'b');
    let mut order = String::new();
    while let Some((_, value)) = heap.pop_due(Time(5)) {
        order.push(value);
    }
    assert_eq!(order, "abcd");
}
