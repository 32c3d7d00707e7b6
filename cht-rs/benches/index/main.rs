//! What the index costs: `cargo bench -p cht`, or a part of it by name (`cargo bench -p cht -- form`).
//!
//! `canary` is a fixed loop: times of two runs, or of two machines, compare as their canaries do.

#![allow(missing_docs)] // criterion's macros write functions without any

mod adversarial;
mod hashing;
mod passes;
mod queue;

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

fn canary(c: &mut Criterion) {
    c.bench_function("canary", |b| {
        b.iter(|| (0..100_000u64).fold(0, |sum: u64, i| sum.rotate_left(5) ^ black_box(i)));
    });
}

fn config() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
}

criterion_group! {
    name = benches;
    config = config();
    targets = canary, hashing::insert, hashing::bandwidth, hashing::xxh3, passes::best, passes::form, passes::held, passes::steady,
        adversarial::flips, adversarial::minimum, adversarial::growth
}
criterion_main!(benches);
