//! Calls that are written out and read back between two inputs of the border, at random moments.

use super::VirtualNetwork;
use engine::Entropy;
use std::collections::BTreeMap;

/// Calls that are saved between two inputs.
#[derive(Clone, Copy)]
enum Chosen {
    /// In one of eight moments, one call: the default of every test of this suite.
    Sample,
    /// Each call with this probability.
    Each(f64),
}

/// Random moments, and the calls that were saved.
pub struct SavedCalls {
    /// Its own generator: the other random values of a run do not depend on it.
    entropy: Entropy,
    chosen: Chosen,
    /// How often each call was written out and read back, by number.
    pub saved: BTreeMap<u64, u64>,
}

impl SavedCalls {
    fn choose(chosen: Chosen, seed: u64) -> SavedCalls {
        SavedCalls {
            entropy: Entropy::from_number(seed),
            chosen,
            saved: BTreeMap::new(),
        }
    }

    /// Each call is saved between two inputs with this probability.
    pub fn new(probability: f64, seed: u64) -> SavedCalls {
        SavedCalls::choose(Chosen::Each(probability), seed)
    }

    /// A sample; with SAVE_CALLS=PROBABILITY each call of every test.
    pub(super) fn of_environment() -> SavedCalls {
        match std::env::var("SAVE_CALLS") {
            Ok(probability) => SavedCalls::new(probability.parse().expect("SAVE_CALLS"), 1),
            Err(_) => SavedCalls::choose(Chosen::Sample, 1),
        }
    }

    fn numbers(&mut self, net: &border::border::Border) -> Vec<u64> {
        match self.chosen {
            Chosen::Sample if self.entropy.below(8) > 0 => Vec::new(),
            Chosen::Sample => {
                let numbers = net.call_numbers();
                let at = self.entropy.below(numbers.len().max(1) as u64) as usize;
                numbers.get(at).copied().into_iter().collect()
            }
            Chosen::Each(probability) => {
                let mut numbers = net.call_numbers();
                numbers.retain(|_| self.entropy.unit() < probability);
                numbers
            }
        }
    }
}

impl VirtualNetwork {
    /// Writes out and reads back the chosen calls of the border. Their state afterwards is that of the bytes alone.
    pub(super) fn save_calls(&mut self) {
        let saved_calls = &mut self.saved_calls;
        for number in saved_calls.numbers(&self.border) {
            // The simulated phones negotiate no DTLS, whose handshake alone is a reason to refuse.
            let bytes = self.border.save_call(number).expect("a call");
            self.border.restore_call(&bytes).expect("a saved call");
            // The bytes say all: a second copy has the same.
            assert_eq!(self.border.save_call(number).as_ref(), Ok(&bytes));
            *saved_calls.saved.entry(number).or_default() += 1;
        }
    }
}
