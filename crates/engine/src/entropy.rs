//! The random generator of engines. The driver seeds it from the operating system, the simulator from the seed of the
//! run.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

/// A generator of unpredictable values (ChaCha8) for tags, branches, nonces, SSRCs and hash keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entropy {
    generator: ChaCha8Rng,
}

impl Entropy {
    /// A generator from 32 bytes: from the operating system in service, from the seed in a simulation.
    pub fn from_seed(seed: [u8; 32]) -> Entropy {
        Entropy {
            generator: ChaCha8Rng::from_seed(seed),
        }
    }

    /// A generator from a number, for simulations and tests; predictable, never for service.
    pub fn from_number(seed: u64) -> Entropy {
        Entropy {
            generator: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// A separate generator for a component, so that components do not change each other's sequences.
    pub fn fork(&mut self) -> Entropy {
        let mut seed = [0; 32];
        self.fill(&mut seed);
        Entropy::from_seed(seed)
    }

    /// 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.generator.next_u64()
    }

    /// 32 random bits.
    pub fn u32(&mut self) -> u32 {
        self.generator.next_u32()
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.generator.fill_bytes(bytes);
    }

    /// Uniform below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in 0.0 (included) to 1.0 (excluded).
    pub fn unit(&mut self) -> f64 {
        (self.u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with the given mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}
