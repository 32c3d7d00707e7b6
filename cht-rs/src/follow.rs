//! The start of a pass: the index follows what the engine runs.

use crate::index::Index;
use std::collections::BTreeSet;

/// What is new of a row.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// A row that the index does not know, or not as a row, is passed over.
    pub id: u64,
    /// See [`Index::publish`].
    pub published: u64,
    /// See [`Index::publish`].
    pub computing: bool,
    /// See [`Index::grow`].
    pub grown: &'a [i64],
}

impl Index {
    /// Starts a pass.
    ///
    /// A plan that was not settled is taken back. Then the rows are those that the engine runs (`alive`): others are gone
    /// with what they did not publish, and those that wait here are activated. Then `changed` is told, and `finished`
    /// rows leave, with their KV in the cache. Ids that are not known change nothing.
    ///
    /// O(alive), without a look at any row where nothing was lost, and what each of the changes costs by itself.
    pub fn follow(&mut self, alive: &[u64], changed: &[Row<'_>], finished: &[u64]) {
        self.begin();
        self.undo(0);
        let sum = alive.iter().fold(0, |sum: u64, &id| sum.wrapping_add(spread(id)));
        if alive.len() != self.rows.len() || sum != self.row_sum {
            self.reconcile(alive);
        }
        for row in changed {
            if !row.grown.is_empty() && self.grow(row.id, row.grown).is_err() {
                continue;
            }
            let _ = self.publish(row.id, row.published, row.computing); // it does not run
        }
        for &id in finished {
            self.leave(id, true);
        }
    }

    /// Makes the rows those that the engine runs.
    fn reconcile(&mut self, alive: &[u64]) {
        let alive: BTreeSet<u64> = alive.iter().copied().collect();
        let mut gone: Vec<u64> = self.running_ids().filter(|id| !alive.contains(id)).collect();
        gone.sort_unstable();
        for id in gone {
            self.leave(id, false);
        }
        for id in alive {
            let _ = self.activate(id); // not known, or a row already
        }
    }
}

/// Makes sums of different sets of ids differ (the finaliser of `SplitMix64`), so that most passes compare rows with
/// the engine's without looking at one.
pub(crate) fn spread(id: u64) -> u64 {
    let mut x = id.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::Row;
    use crate::{Arrival, Arriving, Budget, Config, Index, Order};

    fn index(requests: u64) -> Index {
        let (chunk, page, order, aging, barrier_min) = (4, 1, Order::Held, 0.0, 4);
        let config =
            Config { chunk, page, order, aging, barrier_min, max_wait: 1 << 40, capacity: 1 << 20, key: [1, 2] };
        let mut index = Index::new(config).unwrap();
        for id in 0..requests {
            let tokens: Vec<i64> = (0..8).map(|i| if i < 4 { i } else { id as i64 }).collect();
            let (path, stream) = index.path(&[], &[&tokens], 8);
            let arrival = Arrival { tokens: 0, sequence: id };
            index
                .insert(Arriving {
                    id,
                    length: 8,
                    reserve: 0,
                    arrival,
                    lane: 0,
                    leads: true,
                    path,
                    stream: Some(stream),
                })
                .unwrap();
        }
        index
    }

    fn running(index: &Index) -> Vec<u64> {
        let mut ids: Vec<u64> = index.running_ids().collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_rows_are_those_that_the_engine_runs() {
        let mut index = index(6);
        for alive in [vec![0, 1, 2], vec![2, 1, 0], vec![1, 3], vec![3, 1, 77], vec![5, 5, 3], vec![]] {
            index.follow(&alive, &[], &[]);
            let mut expected: Vec<u64> = alive.into_iter().filter(|&id| id < 6).collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(running(&index), expected);
            index.check_integrity().unwrap();
        }
    }

    #[test]
    fn a_plan_that_was_not_settled_is_taken_back() {
        let mut index = index(3);
        let budget = Budget { now: 0, kv: 1 << 20, rows: 9, prefill: 1 << 20, chunked: true, idle: true, lane: None };
        assert!(!index.plan(budget).order.is_empty());
        index.follow(&[], &[], &[]);
        assert_eq!((running(&index), index.figures().waiting), (vec![], 3));
    }

    #[test]
    fn what_is_new_is_told_before_the_finished_leave() {
        let mut index = index(2);
        index.follow(&[0], &[], &[]);
        let grown = [7, 7, 7, 7];
        let changed = [
            Row { id: 0, published: 8, computing: false, grown: &grown },
            Row { id: 1, published: 8, computing: false, grown: &[] },
        ];
        index.follow(&[0], &changed, &[0, 9]);
        assert_eq!(running(&index), [] as [u64; 0]);
        assert_eq!(index.figures().cached_tokens, 12, "with what it produced");
        assert_eq!(index.figures().waiting, 1, "a row that does not run is passed over");
        index.check_integrity().unwrap();
    }
}
