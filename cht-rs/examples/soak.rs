//! Random operation sequences on the index and the naive model, for as long as is asked: `make soak-index OPS=N SEED=S`.
//!
//! Sequence *i* is made from the number S + i, so a violation is replayed by starting there.

#[path = "../tests/common/mod.rs"]
mod common;

use common::sequence::run_seed;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const USAGE: &str = "usage: soak [OPERATIONS [SEED]]: two whole numbers; expected at least 1 operation";

/// Violations after which it is not worth going on.
const ENOUGH: u64 = 10;

fn main() -> ExitCode {
    let given: Option<Vec<u64>> = std::env::args().skip(1).map(|argument| argument.parse().ok()).collect();
    let (wanted, seed) = match given.as_deref() {
        Some([]) => (100_000_000, 1),
        Some(&[wanted]) if wanted > 0 => (wanted, 1),
        Some(&[wanted, seed]) if wanted > 0 => (wanted, seed),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (next, done, violations) = (AtomicU64::new(seed), AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while done.load(Relaxed) < wanted && violations.load(Relaxed) < ENOUGH {
            let seed = next.fetch_add(1, Relaxed);
            match catch_unwind(AssertUnwindSafe(|| run_seed(seed))) {
                Ok(Ok(operations)) => {
                    done.fetch_add(operations, Relaxed);
                }
                Ok(Err(violation)) => report(seed, &violation, &violations),
                Err(_) => report(seed, "a panic, see above", &violations),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let found = violations.load(Relaxed);
    println!("{} operations, {found} violations, seed {seed}", done.load(Relaxed));
    ExitCode::from(u8::from(found > 0))
}

fn report(seed: u64, what: &str, violations: &AtomicU64) {
    violations.fetch_add(1, Relaxed);
    eprintln!("violation: {what}\nreplay: make soak-index OPS=1 SEED={seed}");
}
