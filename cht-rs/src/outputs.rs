//! How long the outputs of prefix families were: a bounded table beside the index, which outlives requests and paths.

use crate::hash::Level;
use crate::index::Index;
use crate::node::{Node, ROOT};
use crate::tree::FastMap;

/// Outputs that a family is judged by.
const LAST: usize = 16;
/// Outputs from which on a family is known.
const KNOWN: u32 = 3;
/// Families of a generation.
const FAMILIES: usize = 1 << 14;

/// The last outputs of requests with a common prefix, in tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Family {
    last: [u32; LAST],
    /// Outputs in all.
    count: u32,
}

impl Family {
    fn push(&mut self, tokens: u32) {
        self.last[self.count as usize % LAST] = tokens;
        self.count = self.count.saturating_add(1);
    }

    fn median(&self) -> u32 {
        let mut last = self.last;
        let known = &mut last[..LAST.min(self.count as usize)];
        known.sort_unstable();
        known[known.len() / 2]
    }
}

/// Output lengths by prefix: of each place where paths of requests part, and of each such place that is known from before.
///
/// Two generations: what was not learned of again when the younger one is full is forgotten with the older one. Depends on
/// the order of calls alone, so it is equal on all ranks.
#[derive(Debug, Default)]
pub struct Outputs {
    young: FastMap<Level, Family>,
    old: FastMap<Level, Family>,
}

impl Outputs {
    /// A request of the index finished, and generated so many tokens; to be told before it leaves. O(chunks of its path).
    pub fn learn(&mut self, index: &Index, id: u64, tokens: u32) {
        for (level, shared) in path_of(index, id) {
            if let Some(mut family) = self.family(level).copied() {
                family.push(tokens);
                self.keep(level, family);
            } else if shared {
                let mut family = Family::default();
                family.push(tokens);
                self.keep(level, family);
            }
        }
    }

    /// The median output of the deepest known family of a request that waits or runs. O(chunks of its path).
    #[must_use]
    pub fn predict(&self, index: &Index, id: u64) -> Option<u32> {
        let known = |level| self.family(level).filter(|family| family.count >= KNOWN);
        path_of(index, id).find_map(|(level, _)| known(level)).map(Family::median)
    }

    fn family(&self, level: Level) -> Option<&Family> {
        self.young.get(&level).or_else(|| self.old.get(&level))
    }

    fn keep(&mut self, level: Level, family: Family) {
        if self.young.len() >= FAMILIES && !self.young.contains_key(&level) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(level, family);
    }
}

/// The levels of a request, the deepest first, and whether its path parts from those of others there.
fn path_of(index: &Index, id: u64) -> impl Iterator<Item = (Level, bool)> + '_ {
    let end = index.slot(id).map_or(ROOT, |slot| index.request(slot).end);
    let up = std::iter::successors(Some(end), |&v| Some(index.tree.node(v).parent)).take_while(|&v| v != ROOT);
    up.flat_map(|v| {
        let node = index.tree.node(v);
        let others = is_shared(node);
        node.label.iter().rev().enumerate().map(move |(i, &level)| (level, i == 0 && others))
    })
}

/// Whether more than one request, waiting, running or remembered, goes through a node.
fn is_shared(node: &Node) -> bool {
    let counts = node.counts;
    counts.waiting + counts.rows.max(counts.leading) + counts.cached > 1
}

#[cfg(test)]
mod tests {
    use super::{FAMILIES, LAST, Outputs};
    use crate::{Arrival, Arriving, Config, Index, Order};

    fn index() -> Index {
        let (chunk, page, order, aging, barrier_min) = (1, 1, Order::Held, 0.0, 4);
        let config =
            Config { chunk, page, order, aging, barrier_min, max_wait: 1 << 40, capacity: 1 << 20, key: [1, 2] };
        Index::new(config).unwrap()
    }

    /// A prompt that shares `shared` chunks with its family, and has two of its own.
    fn send(index: &mut Index, id: u64, family: u64, shared: u64) {
        let own = (0..2).map(|i| (1 << 40) + 2 * id + i);
        let path: Vec<u64> = (0..shared).map(|i| family << 20 | i).chain(own).collect();
        let (length, arrival) = (path.len() as u64 + 1, Arrival { tokens: 0, sequence: id });
        let new = Arriving { id, length, reserve: 0, arrival, lane: 0, leads: true, path, stream: None };
        index.insert(new).unwrap();
    }

    fn finish(index: &mut Index, outputs: &mut Outputs, id: u64, tokens: u32) {
        index.activate(id).unwrap();
        outputs.learn(index, id, tokens);
        index.leave(id, true);
    }

    #[test]
    fn the_median_of_the_deepest_known_family() {
        let (mut index, mut outputs) = (index(), Outputs::default());
        for (id, tokens) in (0..).zip([1_000, 90, 20, 30]) {
            send(&mut index, id, 1, 8);
            assert_eq!(outputs.predict(&index, id), None, "{id}");
            finish(&mut index, &mut outputs, id, tokens);
            // The first one was alone, and made no family; the others did, where they part and nowhere else.
            assert_eq!(outputs.young.len(), usize::from(id > 0));
        }
        send(&mut index, 10, 1, 8);
        send(&mut index, 11, 2, 8);
        assert_eq!(outputs.predict(&index, 10), Some(30));
        assert_eq!(outputs.predict(&index, 11), None, "another family");
        assert_eq!(outputs.predict(&index, 99), None, "nobody");
        // It outlives the requests, and what the index remembers of them.
        index.leave(10, false);
        index.forget();
        send(&mut index, 12, 1, 8);
        assert_eq!(outputs.predict(&index, 12), Some(30));
        for tokens in 100..100 + LAST as u64 {
            finish(&mut index, &mut outputs, 12, tokens as u32);
            send(&mut index, 12, 1, 8);
        }
        assert_eq!(outputs.predict(&index, 12), Some(100 + LAST as u32 / 2), "the last ones count");
    }

    #[test]
    fn families_within_a_family() {
        let (mut index, mut outputs) = (index(), Outputs::default());
        for id in 0..40 {
            // Two kinds below a common beginning.
            let path: Vec<u64> = [1, 2, 3, 10 + id % 2, 20 + id % 2, 1000 + id].into();
            let arrival = Arrival { tokens: 0, sequence: id };
            let new = Arriving { id, length: 7, reserve: 0, arrival, lane: 0, leads: true, path, stream: None };
            index.insert(new).unwrap();
        }
        for id in 0..20 {
            finish(&mut index, &mut outputs, id, if id % 2 == 0 { 5 } else { 500 });
        }
        assert_eq!(outputs.predict(&index, 30), Some(5));
        assert_eq!(outputs.predict(&index, 31), Some(500));
    }

    #[test]
    fn what_is_not_learned_of_again_is_forgotten() {
        let (mut index, mut outputs) = (index(), Outputs::default());
        let mut family = |outputs: &mut Outputs, name: u64, tokens: u32| {
            for id in 0..4 {
                send(&mut index, id, name, 4);
            }
            for id in 0..3 {
                outputs.learn(&index, id, tokens);
                assert!(outputs.young.len().max(outputs.old.len()) <= FAMILIES);
            }
            let predicted = outputs.predict(&index, 3);
            for id in 0..4 {
                index.leave(id, false);
            }
            predicted
        };
        assert_eq!(family(&mut outputs, 1, 7), Some(7));
        let mut most = 0;
        for name in 2..2 + 3 * FAMILIES as u64 {
            family(&mut outputs, name, 9);
            most = most.max(outputs.young.len());
            if name % 4096 == 0 {
                assert_eq!(family(&mut outputs, 1, 7), Some(7), "it is still asked for");
            }
        }
        assert_eq!(most, FAMILIES, "what is known already takes nobody's place");
        let before = outputs.young.len() + outputs.old.len();
        assert!(before > FAMILIES, "{before}");
        assert!(outputs.family(2 << 20 | 3).is_none());
    }
}
