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

/// Makes sums of different sets of ids differ (the finaliser of SplitMix64), so that most passes compare their rows with
/// the engine's without looking at one.
pub(crate) fn spread(id: u64) -> u64 {
    let mut x = id.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
