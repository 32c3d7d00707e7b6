//! Waiting queues to measure on.

use cht::{Arrival, Arriving, Budget, Config, Index, Order};

/// A budget that refuses nobody, and names a hundred.
pub const HUNDRED: Budget =
    Budget { now: 0, kv: 1 << 40, rows: 100, prefill: 1 << 40, chunked: true, idle: false, lane: None };

pub fn index(order: Order) -> Index {
    Index::new(Config {
        chunk: 64,
        page: 1,
        order,
        aging: 0.0,
        barrier_min: 256,
        max_wait: 1 << 40,
        capacity: 1 << 40,
        key: [1, 2],
    })
    .expect("a valid configuration")
}

/// Numbers that differ wherever `seed` or `i` does (splitmix64).
pub fn number(seed: u64, i: u64) -> u64 {
    let mut z = (seed << 32 ^ i).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 27)
}

/// The levels of a path of `chunks` chunks called `seed`.
pub fn path(seed: u64, chunks: u64) -> Vec<u64> {
    (0..chunks).map(|i| number(seed, i)).collect()
}

/// A request with a ready-made path and 5 tokens more.
pub fn request(id: u64, path: Vec<u64>) -> Arriving {
    let arrival = Arrival { tokens: 0, sequence: id };
    Arriving { id, length: path.len() as u64 * 64 + 5, reserve: 128, arrival, lane: 0, leads: true, path, stream: None }
}

/// Makes a waiting request a row that has published all of its path.
pub fn run(index: &mut Index, id: u64) {
    index.activate(id).expect("it waits");
    index.publish(id, 1 << 40, false).expect("it runs");
}

/// A request of one of eight families, whose prefixes take from half to nine tenths of `chunks`.
pub fn of_family(id: u64, chunks: u64) -> Vec<u64> {
    let shared = chunks * (50 + number(7, id) % 8 * 40 / 7) / 100;
    let mut path = path(shared, shared);
    path.extend((shared..chunks).map(|i| number(1 << 20 | id, i)));
    path
}

/// `waiting` requests of eight families, whose prefixes are cached.
pub fn families(waiting: u64, tokens: u64) -> Index {
    let (mut index, chunks) = (index(Order::Held), tokens / 64);
    for family in 0..8 {
        let (id, shared) = (1 << 30 | family, chunks * (50 + family * 40 / 7) / 100);
        index.insert(request(id, path(shared, shared))).expect("new");
        run(&mut index, id);
        index.leave(id, true);
    }
    for id in 0..waiting {
        index.insert(request(id, of_family(id, chunks))).expect("new");
    }
    index
}
