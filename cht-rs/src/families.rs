//! Which families of requests wait and run, and who waits for whom: for people, not for the rule.

use crate::index::Index;
use crate::node::{Counts, NodeId, ROOT};

/// Waiting requests that are looked at, oldest first, for the oldest of each family.
const OLDEST_LOOKED_AT: usize = 1024;

/// Requests that share more of their prefix with each other than most have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its waiting requests.
    pub waiting: u64,
    /// Its running rows.
    pub running: u64,
    /// Tokens that all of them have in common, in whole chunks.
    pub tokens: u64,
    /// The id of its oldest waiting request; none waits, or all are young.
    pub oldest: Option<u64>,
}

/// The families of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// The largest, in order of size.
    pub largest: Vec<Family>,
    /// Families with a waiting request.
    pub waiting: u64,
    /// Families with a running row.
    pub running: u64,
    /// Waiting requests without a family.
    pub alone: u64,
}

fn rows(counts: &Counts) -> i32 {
    counts.rows.max(counts.leading)
}

fn members(counts: &Counts) -> i32 {
    counts.waiting + rows(counts)
}

impl Index {
    /// The families of the waiting and running requests, the `most` largest of them one by one.
    ///
    /// What most requests begin with (a system prompt) makes no family: a node with more than half of all is divided
    /// where at least half of its members go on in company.
    ///
    /// O(children of the nodes divided + path nodes of the oldest requests).
    #[must_use]
    pub fn families(&self, most: usize) -> Families {
        let counts = |v: NodeId| &self.tree.node(v).counts;
        let all = members(counts(ROOT));
        let mut found: Vec<NodeId> = vec![];
        let mut divide = Some(ROOT);
        while let Some(v) = divide.take() {
            let shared: Vec<NodeId> = self.tree.children(v).filter(|&c| members(counts(c)) >= 2).collect();
            let together: i32 = shared.iter().map(|&c| members(counts(c))).sum();
            if v != ROOT && 2 * together < members(counts(v)) {
                found.push(v);
                continue;
            }
            for child in shared {
                if 2 * members(counts(child)) > all {
                    divide = Some(child); // at most one
                } else {
                    found.push(child);
                }
            }
        }
        found.sort_unstable_by_key(|&v| (-members(counts(v)), self.tree.node(v).depth, v));
        let alone = counts(ROOT).waiting - found.iter().map(|&v| counts(v).waiting).sum::<i32>();
        Families {
            largest: self.described(&found[..found.len().min(most)]),
            waiting: found.iter().filter(|&&v| counts(v).waiting > 0).count() as u64,
            running: found.iter().filter(|&&v| rows(counts(v)) > 0).count() as u64,
            alone: alone as u64,
        }
    }

    fn described(&self, nodes: &[NodeId]) -> Vec<Family> {
        let mut oldest: Vec<Option<u64>> = vec![None; nodes.len()];
        for (_, slot) in self.ages.in_order().take(OLDEST_LOOKED_AT) {
            let request = self.request(slot);
            let mut v = request.end;
            while v != ROOT {
                if let Some(i) = nodes.iter().position(|&node| node == v) {
                    oldest[i].get_or_insert(request.id);
                    break;
                }
                v = self.tree.node(v).parent;
            }
        }
        let describe = |(&v, oldest): (&NodeId, Option<u64>)| {
            let node = self.tree.node(v);
            let tokens = u64::from(node.depth) * u64::from(self.config.chunk);
            Family { waiting: node.counts.waiting as u64, running: rows(&node.counts) as u64, tokens, oldest }
        };
        nodes.iter().zip(oldest).map(describe).collect()
    }

    /// For each running row that others are held back for: its id, and how many they are.
    ///
    /// O(pending nodes · computing rows).
    #[must_use]
    pub fn held_for(&self) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = vec![];
        for v in self.blocked() {
            let node = self.tree.node(v);
            let computes = |id: &&u32| {
                let end = self.request(**id).end;
                self.tree.node(end).depth >= node.depth && self.tree.covering(end, node.depth) == v
            };
            if let Some(&slot) = self.computing.iter().filter(computes).min_by_key(|&&slot| self.request(slot).arrival)
            {
                found.push((self.request(slot).id, node.counts.waiting as u64));
            }
        }
        found.sort_unstable();
        found
    }
}
