//! Loss, delay and repetition of datagrams, and the seeds of random conditions.

use std::time::Duration;

/// Conditions of the links.
#[derive(Clone, Copy, Debug)]
pub struct LinkConditions {
    pub loss: f64,
    pub repeat: f64,
    pub delay: Duration,
    pub jitter: Duration,
}

impl LinkConditions {
    pub fn ideal() -> LinkConditions {
        LinkConditions {
            loss: 0.0,
            repeat: 0.0,
            delay: Duration::from_millis(1),
            jitter: Duration::ZERO,
        }
    }
}

/// Number of seeds of a test: the value of the environment variable SEEDS, for a long run, or this default.
pub fn seeds(default: u64) -> u64 {
    match std::env::var("SEEDS") {
        Ok(seeds) => seeds.parse().expect("SEEDS"),
        Err(_) => default,
    }
}
