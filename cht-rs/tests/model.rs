//! Random operation sequences on the index and on the naive model, compared after every step.

use cht::hash::HashKey;
use cht::naive::{Figures, Naive};
use cht::{Arrival, Arriving, Budget, Config, Index, Order};
use proptest::prelude::*;

const CHUNK: u32 = 4;

/// One step. Fields are seeds that the driver reduces to what exists at that moment.
#[derive(Clone, Debug)]
enum Op {
    /// A new prompt, often made of the beginning of one seen before.
    Insert {
        base: u16,
        keep: u16,
        chunks: u8,
        symbol: u8,
        tail: u8,
        reserve: u8,
        flags: u8,
    },
    /// A pass: plan, cut by the gate, settled by the engine.
    Pass {
        kv: u16,
        rows: u8,
        prefill: u8,
        cut: u8,
        match_all: bool,
        refuse: bool,
        idle: bool,
        undo_only: bool,
    },
    Publish {
        who: u16,
        share: u8,
        computing: bool,
    },
    Grow {
        who: u16,
        tokens: u8,
        symbol: u8,
    },
    Leave {
        who: u16,
        whole: bool,
    },
    /// Back to the queue, with its output, as old as before.
    Retract {
        who: u16,
        tokens: u8,
    },
    Activate {
        who: u16,
    },
    Forget,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => any::<(u16, u16, u8, u8, u8, u8, u8)>().prop_map(|(base, keep, chunks, symbol, tail, reserve, flags)| {
            Op::Insert { base, keep, chunks, symbol, tail, reserve, flags }
        }),
        5 => (any::<(u16, u8, u8, u8)>(), any::<(bool, bool, bool)>(), 0..8u8).prop_map(|(a, b, idle)| Op::Pass {
            kv: a.0, rows: a.1, prefill: a.2, cut: a.3, match_all: b.0, refuse: b.1, undo_only: b.2 && idle > 4,
            idle: idle == 0,
        }),
        4 => any::<(u16, u8, bool)>().prop_map(|(who, share, computing)| Op::Publish { who, share, computing }),
        2 => any::<(u16, u8, u8)>().prop_map(|(who, tokens, symbol)| Op::Grow { who, tokens, symbol }),
        3 => any::<(u16, bool)>().prop_map(|(who, whole)| Op::Leave { who, whole }),
        1 => any::<(u16, u8)>().prop_map(|(who, tokens)| Op::Retract { who, tokens }),
        1 => any::<u16>().prop_map(|who| Op::Activate { who }),
        1 => Just(Op::Forget),
    ]
}

struct Alive {
    id: u64,
    tokens: Vec<i64>,
    arrival: Arrival,
    space: u8,
}

struct Driver {
    index: Index,
    naive: Naive,
    alive: Vec<Alive>,
    next: u64,
    now: u64,
}

impl Driver {
    fn new(order: Order, mask: u64, barrier_min: u32, page: u32) -> Self {
        let config =
            Config { chunk: CHUNK, page, order, aging: 0.25, barrier_min, max_wait: 600, capacity: 160, key: [1, 2] };
        let key = HashKey::new(config.key).with_mask(mask);
        Driver {
            index: Index::with_key(config, key).unwrap(),
            naive: Naive::new(config, key),
            alive: vec![],
            next: 0,
            now: 0,
        }
    }

    fn arriving(&self, request: &Alive, reserve: u64, leads: bool, shareable: u64) -> Arriving {
        let spaces: [&[Option<&[u8]>]; 3] = [&[None], &[Some(b"")], &[Some(b"a")]];
        let namespace = spaces[usize::from(request.space) % 3];
        let (head, tail) = request.tokens.split_at(request.tokens.len() / 2);
        let (path, stream) = self.index.path(namespace, &[head, tail], shareable);
        Arriving {
            id: request.id,
            length: request.tokens.len() as u64,
            reserve,
            arrival: request.arrival,
            leads,
            path,
            stream: (shareable >= request.tokens.len() as u64).then_some(stream),
        }
    }

    fn insert(&mut self, new: Arriving) {
        self.index.insert(new.clone()).unwrap();
        assert!(self.index.insert(new.clone()).is_err());
        self.naive.insert(new).unwrap();
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert { base, keep, chunks, symbol, tail, reserve, flags } => {
                let mut tokens = vec![];
                if !self.alive.is_empty() && flags & 3 != 0 {
                    let base = &self.alive[usize::from(base) % self.alive.len()].tokens;
                    let keep = if flags & 3 == 1 { base.len() } else { usize::from(keep) % (base.len() + 1) };
                    tokens.extend_from_slice(&base[..keep / CHUNK as usize * CHUNK as usize]);
                }
                for i in 0..chunks % 5 {
                    tokens.extend([i64::from(symbol.wrapping_add(i) % 3); CHUNK as usize]);
                }
                tokens.extend((0..tail % (CHUNK as u8 + 1)).map(i64::from));
                tokens.push(7);
                self.next += 1;
                // Unique, but not monotone in the order of insertion.
                let late = u64::from(flags >> 5) * 40;
                let arrival = Arrival { tokens: self.now.saturating_sub(late), sequence: self.next };
                let request = Alive { id: self.next, tokens, arrival, space: flags >> 2 & 3 };
                let shareable = if flags & 0x10 == 0 { u64::MAX } else { u64::from(keep) % 20 };
                let new = self.arriving(&request, u64::from(reserve % 16), flags & 0x60 != 0, shareable);
                self.insert(new);
                self.alive.push(request);
            }
            Op::Pass { kv, rows, prefill, cut, match_all, refuse, idle, undo_only } => {
                self.index.begin();
                self.naive.begin();
                let budget = Budget {
                    now: self.now,
                    kv: u64::from(kv % 300),
                    rows: u32::from(rows % 9),
                    prefill: u64::from(prefill),
                    idle,
                };
                let plan = self.index.plan(budget);
                assert_eq!(plan, self.naive.plan(budget));
                self.compare();
                let keep = usize::from(cut) % (plan.order.len() + 1);
                self.index.undo(keep);
                self.naive.undo(keep);
                self.compare();
                if undo_only {
                    return;
                }
                let mut reused = vec![];
                for (i, candidate) in plan.order[..keep].iter().enumerate() {
                    let request = self.alive.iter().find(|r| r.id == candidate.id).unwrap();
                    let length = request.tokens.len() as u64;
                    self.now += candidate.uncomputed;
                    let found =
                        if match_all { length - candidate.uncomputed } else { (length * i as u64 / 3).min(length - 1) };
                    reused.push((candidate.id, found));
                }
                let refused: Vec<u64> =
                    if refuse { reused.pop().map(|(id, _)| id).into_iter().collect() } else { vec![] };
                self.index.settle(&reused, &refused).unwrap();
                self.naive.settle(&reused, &refused);
            }
            Op::Publish { who, share, computing } => {
                let Some((id, length)) = self.pick(who) else { return };
                let tokens = length * u64::from(share % 5) / 4;
                let same = (self.index.publish(id, tokens, computing), self.naive.publish(id, tokens, computing));
                assert_eq!(same.0, same.1);
            }
            Op::Grow { who, tokens, symbol } => {
                let Some((id, _)) = self.pick(who) else { return };
                let grown = vec![i64::from(symbol % 3); usize::from(tokens % 11)];
                let same = (self.index.grow(id, &grown), self.naive.grow(id, &grown));
                assert_eq!(same.0, same.1);
                if same.0.is_ok() {
                    self.now += grown.len() as u64;
                    self.alive.iter_mut().find(|r| r.id == id).unwrap().tokens.extend(grown);
                }
            }
            Op::Leave { who, whole } => {
                let Some((id, _)) = self.pick(who) else { return };
                assert!(self.index.leave(id, whole) && self.naive.leave(id, whole));
                assert!(!self.index.leave(id, whole));
                self.alive.retain(|r| r.id != id);
            }
            Op::Retract { who, tokens } => {
                let Some((id, _)) = self.pick(who) else { return };
                self.index.leave(id, false);
                self.naive.leave(id, false);
                let at = self.alive.iter().position(|r| r.id == id).unwrap();
                self.alive[at].tokens.extend(vec![2; usize::from(tokens % 9)]);
                let new = self.arriving(&self.alive[at], 3, true, u64::MAX);
                self.insert(new);
            }
            Op::Activate { who } => {
                let Some((id, _)) = self.pick(who) else { return };
                assert_eq!(self.index.activate(id), self.naive.activate(id));
            }
            Op::Forget => {
                self.index.forget();
                self.naive.forget();
            }
        }
    }

    fn pick(&self, who: u16) -> Option<(u64, u64)> {
        let request = self.alive.get(usize::from(who) % self.alive.len().max(1))?;
        Some((request.id, request.tokens.len() as u64))
    }

    fn compare(&self) {
        self.index.check_integrity().unwrap();
        let stats = self.index.stats();
        let figures = Figures {
            waiting: stats.waiting,
            held: stats.held,
            running: stats.running,
            tip_chunks: stats.tip_chunks,
            total_kv: stats.total_kv,
            distinct_kv: stats.distinct_kv,
            cached_tokens: stats.cached_tokens,
        };
        assert_eq!(figures, self.naive.figures());
        assert_eq!(self.index.best(), self.naive.best());
        assert!(stats.nodes <= 2 * (2 * self.alive.len() as u64 + stats.cached_tokens / u64::from(CHUNK)) + 1);
    }

    /// After everybody left and the cache was forgotten, nothing remains.
    fn drain(&mut self) {
        for request in std::mem::take(&mut self.alive) {
            assert!(self.index.leave(request.id, false) && self.naive.leave(request.id, false));
        }
        self.compare();
        self.index.forget();
        self.index.check_integrity().unwrap();
        let stats = self.index.stats();
        assert_eq!((stats.nodes, stats.distinct_kv, stats.cached_tokens), (1, 0, 0));
    }
}

fn run(order: Order, mask: u64, barrier_min: u32, page: u32, ops: &[Op]) {
    let mut driver = Driver::new(order, mask, barrier_min, page);
    for op in ops {
        driver.apply(op);
        driver.compare();
    }
    driver.drain();
}

proptest! {

    #[test]
    fn held_order(ops in prop::collection::vec(op(), 1..120)) {
        run(Order::Held, u64::MAX, 8, 1, &ops);
    }

    #[test]
    fn missing_order(ops in prop::collection::vec(op(), 1..120)) {
        run(Order::Missing, u64::MAX, 8, 4, &ops);
    }

    #[test]
    fn colliding_hashes(ops in prop::collection::vec(op(), 1..120), bits in 3u32..7) {
        run(Order::Held, (1 << bits) - 1, 12, 2, &ops);
    }

    #[test]
    fn barrier_that_never_waits(ops in prop::collection::vec(op(), 1..120)) {
        run(Order::Held, u64::MAX, 1000, 1, &ops);
    }
}
