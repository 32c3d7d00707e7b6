//! The bytes that an index says it has, beside what the allocator counts.
//!
//! A program without the test harness, whose own thread allocates at times of its own.

mod common;

use cht::Order;
use common::small::{Small, levels};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// One prompt of a queue.
type Prompt = fn(u64) -> Vec<Vec<u64>>;

fn main() {
    let shapes: [(&str, u64, Prompt); 5] = [
        ("short paths", 20_000, |i| vec![levels(1_000 + i, 2)]),
        ("long paths", 500, |i| vec![levels(1_000 + i, 400)]),
        ("one path", 20_000, |_| vec![levels(1, 10)]),
        ("branches of one path", 20_000, |i| vec![levels(1, 10), levels(1_000 + i, 1)]),
        ("families of one path", 20_000, |i| vec![levels(1, 4), levels(10 + i % 500, 4), levels(1_000 + i, 1)]),
    ];
    for (shape, requests, prompt) in shapes {
        let region = Region::new(ALLOCATOR);
        let mut small = Small::new(Order::Held, |setup| setup.config.capacity = 1 << 40);
        let compare = |small: &Small, state: &str| {
            small.check(); // bytes are counted right to the last one of a queue
            let change = region.change();
            let (said, real) = (small.index.bytes(), (change.bytes_allocated - change.bytes_deallocated) as u64);
            assert!(said.abs_diff(real) < real / 16 + 500, "{shape}, {state}: {said} bytes, and {real} are allocated");
        };
        compare(&small, "empty");
        for i in 0..requests {
            small.send(&prompt(i), 1);
        }
        compare(&small, "waiting");
        (1..=requests).for_each(|id| small.run(id));
        compare(&small, "running");
        (1..=requests).for_each(|id| assert!(small.index.leave(id, true)));
        compare(&small, "cached");
        small.index.forget();
        compare(&small, "empty again");
        assert_eq!(small.index.bytes() < 1_000, requests > 1_000, "{shape}: only a burst is worth freeing");
    }
}
