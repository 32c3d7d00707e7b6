//! An index filled by hand: a prompt is a list of levels, one token a chunk.

use super::driver::since;
use super::sequence::Setup;
use cht::{Arrival, Arriving, Budget, Index, Order, Plan, Work};

pub struct Small {
    pub index: Index,
    pub sent: u64,
}

/// A budget that refuses nobody.
pub const PLENTY: Budget =
    Budget { now: 0, kv: 1 << 40, rows: 1 << 20, prefill: 1 << 40, chunked: true, idle: false, lane: None };

/// Levels `0..n` of a prompt called `name`.
pub fn levels(name: u64, n: u64) -> Vec<u64> {
    (0..n).map(|i| name << 32 | i).collect()
}

impl Small {
    pub fn new(order: Order, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::new(order);
        (setup.config.chunk, setup.config.aging, setup.config.barrier_min) = (1, 0.0, 4);
        (setup.config.capacity, setup.config.max_wait) = (0, 1 << 40);
        change(&mut setup);
        Small { index: setup.index(), sent: 0 }
    }

    /// A request arrives whose path is made of `parts`, and has `tail` tokens more.
    pub fn send(&mut self, parts: &[Vec<u64>], tail: u64) -> u64 {
        self.sent += 1;
        self.send_as(self.sent, self.sent, parts, tail);
        self.sent
    }

    pub fn send_as(&mut self, id: u64, sequence: u64, parts: &[Vec<u64>], tail: u64) {
        let path = parts.concat();
        let length = path.len() as u64 + tail;
        let arrival = Arrival { tokens: 0, sequence };
        let new = Arriving { id, length, reserve: 0, arrival, lane: 0, leads: true, path, stream: None };
        self.index.insert(new).expect("a new request");
    }

    /// Makes a waiting request a row that has published everything.
    pub fn run(&mut self, id: u64) {
        self.index.activate(id).expect("it waits");
        self.index.publish(id, 1 << 40, false).expect("it runs");
    }

    pub fn best(&self) -> Option<u64> {
        self.index.best().map(|best| best.0)
    }

    /// Ids planned with `budget`.
    pub fn ids(&mut self, budget: Budget) -> Vec<u64> {
        ids(&self.index.plan(budget))
    }

    /// What `f` costs, in counted work.
    pub fn cost(&mut self, f: impl FnOnce(&mut Self)) -> Work {
        let before = self.index.work();
        f(self);
        since(before, self.index.work())
    }

    pub fn check(&self) {
        self.index.check_integrity().expect("sound");
    }
}

pub fn ids(plan: &Plan) -> Vec<u64> {
    plan.order.iter().map(|candidate| candidate.id).collect()
}
