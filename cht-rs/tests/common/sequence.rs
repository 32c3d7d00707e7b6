//! Settings and sequences from one seed: a violation is replayed from the number that it was found with.

use super::driver::{Driver, Subject, Violation};
use super::operation::Op;
use cht::hash::HashKey;
use cht::{Config, Index, Order};

/// A generator that is the same everywhere (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// What an index is made for, and the bits of its hashes that are kept.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub config: Config,
    pub mask: u64,
    /// Lanes that requests are in.
    pub lanes: u8,
}

impl Setup {
    pub fn new(order: Order) -> Self {
        let config =
            Config { chunk: 4, page: 1, order, aging: 0.25, barrier_min: 8, max_wait: 600, capacity: 160, key: [1, 2] };
        Setup { config, mask: u64::MAX, lanes: 1 }
    }

    /// Every combination that an engine may ask for, and hashes of 3 to 6 bits in one case of four.
    pub fn from_seed(seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let mut pick = |choices: &[u64]| choices[(numbers.next() % choices.len() as u64) as usize];
        let page = pick(&[1, 1, 2, 4]);
        let config = Config {
            chunk: (page * pick(&[1, 2, 4])) as u32,
            page: page as u32,
            order: if pick(&[0, 1]) == 0 { Order::Held } else { Order::Missing },
            aging: [0.0, 0.02, 0.25, 3.0][pick(&[0, 1, 2, 3]) as usize],
            barrier_min: pick(&[0, 1, 8, 12, 1000]) as u32,
            max_wait: pick(&[0, 60, 600, 1 << 30]),
            capacity: pick(&[0, 40, 160, 1000]),
            key: [seed, 2],
        };
        let mask = pick(&[u64::MAX, u64::MAX, u64::MAX, 7, 15, 31, 63]);
        Setup { config, mask, lanes: pick(&[1, 1, 2, 5]) as u8 }
    }

    pub fn key(&self) -> HashKey {
        HashKey::new(self.config.key).with_mask(self.mask)
    }

    pub fn index(&self) -> Index {
        Index::with_key(self.config, self.key()).expect("a valid configuration")
    }
}

/// Runs operations on a new index and on the model, to the end and until nothing is left; returns how many.
pub fn run(setup: Setup, ops: impl IntoIterator<Item = Op>) -> Result<u64, Violation> {
    run_on(setup, setup.index(), ops)
}

/// The same on `subject`.
pub fn run_on(setup: Setup, subject: impl Subject, ops: impl IntoIterator<Item = Op>) -> Result<u64, Violation> {
    let mut driver = Driver::new(setup, subject);
    for op in ops {
        driver.apply(op)?;
        driver.compare()?;
    }
    driver.drain()?;
    Ok(driver.operations)
}

/// One sequence from a number.
pub fn run_seed(seed: u64) -> Result<u64, Violation> {
    let mut numbers = Numbers(Numbers(seed).next());
    let length = 1 + numbers.next() % 200;
    run(Setup::from_seed(seed), (0..length).map(|_| Op::from(numbers.next())))
}

/// One sequence from bytes, as a fuzzer makes them: eight for the settings, eight for every operation.
pub fn run_bytes(bytes: &[u8]) -> Result<u64, Violation> {
    let mut numbers = bytes.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    });
    let seed = numbers.next().unwrap_or(0);
    run(Setup::from_seed(seed), numbers.map(Op::from))
}
