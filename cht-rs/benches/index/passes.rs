//! What a scheduling pass asks.

use crate::queue::{HUNDRED, families, index, of_family, path, request};
use cht::{Budget, Order};
use criterion::{BatchSize, BenchmarkId, Criterion};
use std::hint::black_box;
use std::time::{Duration, Instant};

pub fn best(c: &mut Criterion) {
    let index = families(1_000, 1_000);
    c.bench_function("best", |b| b.iter(|| black_box(&index).best()));
}

/// Forming a batch of 100 in one call, and taking it back.
pub fn form(c: &mut Criterion) {
    for (undone, name) in [(false, "form a batch of 100"), (true, "undo a batch of 100")] {
        let mut group = c.benchmark_group(name);
        for (waiting, tokens) in [(128, 1_000), (1_000, 1_000), (100_000, 1_000), (1_000, 32_000)] {
            let mut index = families(waiting, tokens);
            group.bench_function(BenchmarkId::new(format!("W={waiting}"), format!("T={tokens}")), |b| {
                b.iter_custom(|times| {
                    let mut total = Duration::ZERO;
                    for _ in 0..times {
                        let began = Instant::now();
                        assert_eq!(index.plan(HUNDRED).order.len(), 100);
                        let formed = Instant::now();
                        index.undo(0);
                        total += if undone { formed.elapsed() } else { formed - began };
                    }
                    total
                });
            });
        }
        group.finish();
    }
}

/// The same with 10,000 requests ahead in line that the barrier holds back.
pub fn held(c: &mut Criterion) {
    let mut group = c.benchmark_group("form a batch of 100, requests held back ahead of it");
    for held in [0, 10_000] {
        let mut index = index(Order::Held);
        index.insert(request(0, path(1, 8))).expect("new");
        index.activate(0).expect("it waits");
        for id in 1..=held {
            index.insert(request(id, [path(1, 8), path(id + 10, 1)].concat())).expect("new");
        }
        for id in 20_000..21_000 {
            index.insert(request(id, path(id, 8))).expect("new");
        }
        let budget = Budget { rows: 20_100, ..HUNDRED };
        group.bench_function(BenchmarkId::from_parameter(held), |b| {
            b.iter_custom(|times| {
                let mut total = Duration::ZERO;
                for _ in 0..times {
                    let began = Instant::now();
                    // All rows but a hundred are taken: they are kept for those who are held back.
                    let plan = index.plan(Budget { rows: held as u32 + 100, ..budget });
                    total += began.elapsed();
                    assert_eq!((plan.order.len(), plan.held), (100, held));
                    index.undo(0);
                }
                total
            });
        });
    }
    group.finish();
}

/// One request finishes, one arrives, the best is admitted.
pub fn steady(c: &mut Criterion) {
    let mut group = c.benchmark_group("steady step");
    for (waiting, tokens) in [(1_000, 1_000), (10_000, 1_000), (1_000, 32_000)] {
        let mut index = families(waiting, tokens);
        let mut next = waiting;
        let mut rows = std::collections::VecDeque::new();
        let one = Budget { rows: 1, ..HUNDRED };
        let admit = |index: &mut cht::Index| {
            index.begin();
            let plan = index.plan(one);
            let id = plan.order[0].id;
            index.settle(&[(id, plan.order[0].add_total - plan.order[0].uncomputed)], &[]).expect("known");
            index.publish(id, 1 << 40, false).expect("it runs");
            id
        };
        rows.extend((0..100).map(|_| admit(&mut index)));
        group.bench_function(BenchmarkId::new(format!("W={waiting}"), format!("T={tokens}")), |b| {
            b.iter_batched(
                || {
                    next += 1;
                    request(next, of_family(next, tokens / 64))
                },
                |new| {
                    index.leave(rows.pop_front().expect("a hundred"), false);
                    index.insert(new).expect("new");
                    rows.push_back(admit(&mut index));
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}
