//! Depth and memory: a path of a million tokens, and a million paths that come and go.

mod common;

use cht::{Arrival, Arriving, Order};
use common::small::{PLENTY, Small, levels};

/// Chunks of a million tokens, 16 each.
const DEEP: u64 = 62_500;

/// A stack that any recursion along a path would overflow.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(64 << 10).spawn(test).unwrap().join().unwrap();
}

#[test]
fn a_path_of_a_million_tokens() {
    on_a_small_stack(|| {
        let mut small = Small::new(Order::Held, |setup| setup.config.capacity = 1 << 20);
        let (one, two) = (small.send(&[levels(1, DEEP)], 1), small.send(&[levels(1, DEEP), levels(2, 3)], 1));
        small.run(one);
        assert_eq!(small.index.best(), Some((two, 4)));
        assert_eq!(small.ids(PLENTY), [two]);
        small.index.settle(&[(two, DEEP)], &[]).unwrap();
        assert_eq!(small.index.rows_by_family().1, [0, DEEP]);
        small.check();
        let printed = format!("{:?}", small.index);
        assert!(printed.contains("nodes") && printed.len() < 1_000, "{printed}");
        small.index.leave(one, true);
        small.index.leave(two, true);
        small.check();
        small.index.forget();
        assert_eq!(small.index.nodes(), 1);
    });
}

/// Prompts that end at every depth of one path, so that it has a node for every chunk. The deeper, the later they came.
fn chain(nodes: u64) -> Small {
    let mut small = Small::new(Order::Held, |_| ());
    let path = levels(1, nodes);
    // From the deepest up, so that each insertion splits off one node below the root.
    for depth in (1..=nodes).rev() {
        let (path, arrival) = (path[..depth as usize].to_vec(), Arrival { tokens: 0, sequence: depth });
        let new =
            Arriving { id: depth, length: depth + 1, reserve: 0, arrival, lane: 0, leads: true, path, stream: None };
        small.index.insert(new).unwrap();
    }
    assert_eq!(small.index.nodes(), nodes + 1);
    small
}

#[test]
fn a_chain_of_nodes_for_a_million_tokens() {
    on_a_small_stack(|| {
        let mut small = chain(DEEP);
        small.run(DEEP);
        assert_eq!(small.index.figures().distinct_kv, DEEP + 1);
        assert_eq!(small.index.best(), Some((DEEP - 1, 1)));
        small.run(1);
        assert_eq!(small.index.rows_by_family(), (vec![1, DEEP], vec![0, 1]));
        small.check();
        assert!(format!("{:?}", small.index).len() < 1_000);
        small.index.leave(DEEP, true);
        assert_eq!(small.index.figures().distinct_kv, 2);
        drop(small); // full: that must not recurse either
    });
}

#[test]
fn a_chain_of_nodes_dissolves() {
    on_a_small_stack(|| {
        let mut small = chain(2_000);
        small.run(2_000);
        for depth in 1..=2_000 {
            assert!(small.index.leave(depth, false));
        }
        small.index.forget();
        assert_eq!(small.index.nodes(), 1);
        small.check();
    });
}

#[cfg(target_os = "linux")]
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[cfg(not(target_os = "linux"))]
fn resident_bytes() -> u64 {
    0
}

/// dynamo#11678: chains that no other shares, all at once and one after the other.
#[test]
fn a_million_chains_come_and_go() {
    let mut small = Small::new(Order::Held, |setup| setup.config.capacity = 1_000);
    let chain = |i: u64| [levels(10 + i, 4)];
    let before = resident_bytes();
    let (mut full, mut resident) = (0, vec![]);
    for round in 0..4 {
        // 200,000 at once, the next 50,000 one by one.
        let first = round * 250_000;
        let all: Vec<u64> = (first..first + 200_000).map(|i| small.send(&chain(i), 1)).collect();
        assert_eq!(small.index.nodes(), 200_001);
        full = resident_bytes().max(full);
        for id in all {
            assert!(small.index.leave(id, false));
        }
        for i in first + 200_000..first + 250_000 {
            let id = small.send(&chain(i), 1);
            small.run(id);
            small.index.leave(id, true);
        }
        assert_eq!(small.index.figures().cached_tokens, 1_000);
        small.index.forget();
        assert_eq!(small.index.nodes(), 1);
        assert!(small.index.bytes() < 64 << 10, "{} bytes", small.index.bytes());
        resident.push(resident_bytes());
    }
    // The allocator may keep some of it for the next round.
    assert!(resident.iter().all(|&now| now <= before + (full - before) / 2), "{before}, {full}, {resident:?}");
}

/// dynamo#10774: a chain that stays, while others branch off it at 31 points and go again.
#[test]
fn a_chain_that_is_split_again_and_again() {
    let mut small = Small::new(Order::Held, |_| ());
    let row = small.send(&[levels(1, 1_024)], 1);
    small.run(row);
    let (nodes, mut bytes) = (small.index.nodes(), vec![]);
    for round in 0..200 {
        let branches: Vec<u64> = (1..=31).map(|at| small.send(&[levels(1, 32 * at), levels(100 + at, 2)], 1)).collect();
        assert_eq!(small.index.nodes(), nodes + 62);
        small.check();
        for i in 0..31 {
            assert!(small.index.leave(branches[(i * 7 + round) % 31], false));
        }
        assert_eq!(small.index.nodes(), nodes);
        bytes.push(small.index.bytes());
    }
    // No round leaves room behind. Deletions leave marks in a hash map, which count against its capacity until it is
    // rehashed: more of them where the processor searches it by eight entries, not sixteen (17% on Arm).
    assert!(bytes.iter().all(|now| now.abs_diff(bytes[0]) < bytes[0] / 5), "{bytes:?}");
    assert_eq!(small.index.figures().distinct_kv, 1_025);
    small.check();
}
