//! The fuzz target of `fuzz/` without a fuzzer: byte strings, mutated from one number.
//!
//! Also what mutation testing runs (`make mutants`): wide enough to notice most faults, and short.

mod common;

use common::sequence::{Numbers, run_bytes};

/// Runs, of about 70 operations each.
const RUNS: usize = 3_000;

struct Bytes {
    numbers: Numbers,
    corpus: Vec<Vec<u8>>,
}

impl Bytes {
    fn below(&mut self, limit: usize) -> usize {
        (self.numbers.next() % limit as u64) as usize
    }

    fn random(&mut self) -> Vec<u8> {
        let words = 1 + self.below(120);
        (0..words).flat_map(|_| self.numbers.next().to_le_bytes()).collect()
    }

    /// Half of the time something new, otherwise what an earlier run ran, changed a little.
    fn next(&mut self) -> Vec<u8> {
        if self.corpus.is_empty() || self.below(2) == 0 {
            return self.random();
        }
        let (one, other) = (self.below(self.corpus.len()), self.below(self.corpus.len()));
        let mut bytes = self.corpus[one].clone();
        match self.below(4) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 => bytes.extend_from_within(..),
            2 => bytes.extend_from_slice(&self.corpus[other]),
            _ => {
                for _ in 0..4 {
                    let at = self.below(bytes.len());
                    bytes[at] = self.numbers.next() as u8;
                }
            }
        }
        bytes.truncate(8 * 200);
        bytes
    }
}

#[test]
fn any_bytes_are_operations() {
    let mut bytes = Bytes { numbers: Numbers(1), corpus: vec![] };
    let mut operations = 0;
    for run in 0..RUNS {
        let next = bytes.next();
        match run_bytes(&next) {
            Ok(done) => operations += done,
            Err(violation) => panic!("run {run}, {next:?}: {violation}"),
        }
        if !next.is_empty() {
            bytes.corpus.push(next);
        }
    }
    assert!(operations > 120_000, "{operations} operations");
}
