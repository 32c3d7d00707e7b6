//! The start of a pass over plain lists; see `follow.rs` of the index.

use super::Naive;
use crate::{Planner, Row};

impl Naive {
    /// Rows that the engine does not run are gone, and what it runs of those that wait becomes a row.
    pub(super) fn reconcile(&mut self, alive: &[u64]) {
        let mut gone: Vec<u64> = self.rows().map(|row| row.given.id).filter(|id| !alive.contains(id)).collect();
        gone.sort_unstable(); // they are remembered in this order
        for id in gone {
            self.leave(id, false);
        }
        let mut alive = alive.to_vec();
        alive.sort_unstable();
        for id in alive {
            let _ = self.activate(id); // not known, or a row already
        }
    }

    /// What is new of a row, if it is one.
    pub(super) fn told(&mut self, row: &Row<'_>) {
        if row.grown.is_empty() || self.grow(row.id, row.grown).is_ok() {
            let _ = self.publish(row.id, row.published, row.computing); // it does not run
        }
    }
}
