//! Insertion, which is hashing above all.

use crate::queue::{families, number};
use cht::hash::HashKey;
use cht::{Arrival, Arriving};
use criterion::{BenchmarkId, Criterion, Throughput};
use std::hint::black_box;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

fn tokens(count: u64) -> Vec<i64> {
    (0..count).map(|i| number(3, i) as i64 >> 40).collect()
}

/// Hash and insert one prompt, its tokens in the processor's cache, and take it out again.
pub fn insert(c: &mut Criterion) {
    let mut group = c.benchmark_group("insert and leave, tokens hot");
    for length in [1_000, 4_000, 10_000, 32_000] {
        let (mut index, prompt) = (families(1_000, length), tokens(length));
        group.throughput(Throughput::Bytes(8 * length));
        group.bench_with_input(BenchmarkId::new("T", length), &prompt, |b, prompt| {
            b.iter(|| {
                let (path, stream) = index.path(&[], &[prompt], u64::MAX);
                let (id, arrival) = (1 << 31, Arrival { tokens: 0, sequence: 1 << 31 });
                let new =
                    Arriving { id, length, reserve: 128, arrival, lane: 0, leads: true, path, stream: Some(stream) };
                index.insert(new).expect("new");
                index.leave(id, false);
            });
        });
    }
    group.finish();
}

/// Pairs of a read and a hash of the same memory.
const PAIRS: usize = 15;

/// Hashing from memory, beside reading the same memory: the second is the limit of the first. Prints their ratio, too.
pub fn bandwidth(c: &mut Criterion) {
    let mut group = c.benchmark_group("256 MiB from memory");
    let (prompt, key) = (tokens(1 << 25), HashKey::new([1, 2]));
    let read = || black_box(black_box(&prompt).iter().fold(0i64, |sum, &t| sum.wrapping_add(t)));
    let hash = || black_box(key.path(&[], 64, &[black_box(&prompt)], u64::MAX));
    group.throughput(Throughput::Bytes(8 * prompt.len() as u64)).sample_size(10);
    group.bench_function("read", |b| b.iter(read));
    group.bench_function("hash", |b| b.iter(hash));
    group.bench_function("hash, interleaved with reads", |b| {
        b.iter_custom(|times| {
            let mut pairs = vec![];
            while pairs.len() < PAIRS.max(times as usize) {
                let began = Instant::now();
                read();
                let between = Instant::now();
                hash();
                pairs.push((between - began, between.elapsed()));
            }
            let mut ratios: Vec<f64> = pairs.iter().map(|(r, h)| r.as_secs_f64() / h.as_secs_f64()).collect();
            ratios.sort_by(f64::total_cmp);
            println!("hash / read bandwidth: {:.2}, median of {} pairs", ratios[ratios.len() / 2], ratios.len());
            pairs.iter().map(|pair| pair.1).sum::<Duration>() / pairs.len() as u32 * times as u32
        });
    });
    group.finish();
}

/// The levels of a prompt beside xxh3 of every chunk by itself. That is less work: nothing links a chunk to those before it.
pub fn xxh3(c: &mut Criterion) {
    let key = HashKey::new([1, 2]);
    let mut group = c.benchmark_group("hash");
    for (name, length) in [("10,000 tokens in the cache", 10_000), ("64 MiB from memory", 1 << 23)] {
        let prompt = tokens(length);
        let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
        group.throughput(Throughput::Bytes(8 * length)).sample_size(10);
        group.bench_function(BenchmarkId::new("levels", name), |b| {
            b.iter(|| key.path(&[], 64, &[black_box(&prompt)], u64::MAX));
        });
        group.bench_function(BenchmarkId::new("xxh3 of each chunk", name), |b| {
            b.iter(|| black_box(&bytes).chunks_exact(512).map(xxh3_64).collect::<Vec<u64>>());
        });
    }
    group.finish();
}
