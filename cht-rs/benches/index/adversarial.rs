//! Queues that are as bad as they can be.

use crate::queue::{index, number, path, request, run};
use cht::{Arriving, Index, Order};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use std::time::{Duration, Instant};

const LAST: u64 = 1 << 40;

/// A request that runs along everything, publishes it and is gone again.
///
/// `admit`: it computes for nobody, so its path turns from absent to active at once, as all do in a tree without pending
/// chunks. `admit, pending first`: it leads, so its path is pending in between.
fn flip(index: &mut Index, group: &mut BenchmarkGroup<'_, WallTime>, name: &str, along: &[u64]) {
    for (part, leads) in [("admit", false), ("admit, pending first", true), ("leave", false)] {
        group.bench_function(BenchmarkId::new(name, part), |b| {
            b.iter_custom(|times| {
                let mut total = Duration::ZERO;
                for _ in 0..times {
                    index.insert(Arriving { leads, ..request(LAST, along.to_vec()) }).expect("new");
                    let began = Instant::now();
                    run(index, LAST);
                    let admitted = Instant::now();
                    index.leave(LAST, false);
                    total += if part == "leave" { admitted.elapsed() } else { admitted - began };
                    index.forget();
                }
                total
            });
        });
    }
}

/// The cases that a list of candidates kept without an index collapses on.
pub fn flips(c: &mut Criterion) {
    let mut group = c.benchmark_group("flip");
    group.sample_size(15);
    let chain = path(1, 15_625);
    let mut next = 0;
    let mut add = |index: &mut Index, path: Vec<u64>| {
        next += 1;
        index.insert(request(next, path)).expect("new");
    };
    let mut comb = index(Order::Missing);
    for depth in 0..512 {
        for sibling in 0..200 {
            add(&mut comb, [&chain[..depth], &[number(1_000 + sibling, depth as u64)]].concat());
        }
    }
    flip(&mut comb, &mut group, "comb of 512, 200 siblings at each depth", &chain[..512]);
    let mut broom = index(Order::Missing);
    (0..100_000).for_each(|child| add(&mut broom, vec![chain[0], number(child, 1)]));
    flip(&mut broom, &mut group, "broom of 100,000", &chain[..1]);
    let mut deep = index(Order::Missing);
    for _ in 0..200 {
        (1..=512).for_each(|depth| add(&mut deep, chain[..depth].to_vec()));
    }
    flip(&mut deep, &mut group, "chain of 512, 200 at each depth", &chain[..512]);
    for (order, name) in [(Order::Missing, "chain of 15,625"), (Order::Held, "chain of 15,625, held order")] {
        let mut deepest = index(order);
        // The shallow ones are the older ones, but quicker to insert last.
        (1..=15_625).rev().for_each(|depth| {
            deepest.insert(request(depth, chain[..depth as usize].to_vec())).expect("new");
        });
        flip(&mut deepest, &mut group, name, &chain);
    }
    group.finish();
}

/// The best request is aborted, again and again.
pub fn minimum(c: &mut Criterion) {
    let mut index = index(Order::Missing);
    let mut next = 0;
    let mut add = |index: &mut Index| {
        next += 1;
        index.insert(request(next, vec![1, number(next, 1)])).expect("new");
    };
    (0..100_000).for_each(|_| add(&mut index));
    c.bench_function("abort the minimum, 100,000 children of one chunk", |b| {
        b.iter_custom(|times| {
            let mut total = Duration::ZERO;
            for _ in 0..times {
                let began = Instant::now();
                let (id, _) = index.best().expect("somebody waits");
                index.leave(id, false);
                total += began.elapsed();
                add(&mut index);
            }
            total
        });
    });
}

/// Sixty-four output tokens of a running row, the 32nd to the 96th time.
pub fn growth(c: &mut Criterion) {
    let mut index = index(Order::Held);
    let prompt: Vec<i64> = (0..4_096).collect();
    c.bench_function("64 output tokens", |b| {
        b.iter_custom(|times| {
            let mut total = Duration::ZERO;
            for i in 0..times {
                if i % 64 == 0 {
                    index.leave(1, false);
                    index.forget();
                    let (path, stream) = index.path(&[], &[&prompt], u64::MAX);
                    let new = Arriving { stream: Some(stream), length: 4_096, ..request(1, path) };
                    index.insert(new).expect("new");
                    run(&mut index, 1);
                    (0..32).for_each(|_| index.grow(1, &[9; 64]).expect("it runs"));
                }
                let began = Instant::now();
                index.grow(1, &[7; 64]).expect("it runs");
                total += began.elapsed();
            }
            total
        });
    });
}
