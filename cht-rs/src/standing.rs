//! How a waiting request stands to the running batch.

use crate::index::Index;
use crate::node::{Counts, NodeId, ROOT, Slot};
use crate::plan::Budget;

/// A waiting request, and how far its path is computed, published and held.
///
/// What is computed, published or active begins at the root: each of them ends once on a path.
#[derive(Clone, Copy)]
pub(crate) struct Standing {
    pub slot: Slot,
    pub end: NodeId,
    /// Where the published part of its path ends.
    pub published: NodeId,
    /// Tokens that are not published, at least the last one: the engine always recomputes it.
    pub uncomputed: u64,
    /// Tokens that no running row holds, at least the last one.
    pub unheld: u64,
    /// KV tokens the engine sets aside for its output.
    pub reserve: u64,
    /// Tokens it saves by waiting for what is being computed.
    pub saved: u64,
}

impl Index {
    /// O(nodes on its path).
    pub(crate) fn standing(&self, slot: Slot) -> Standing {
        let (request, chunk) = (self.request(slot), u64::from(self.config.chunk));
        let (mut v, mut computed, mut walked) = (request.end, 0, 0);
        while !self.tree.is_published(v) {
            let node = self.tree.node(v);
            if computed == 0 && node.counts.leading > 0 {
                computed = node.depth;
            }
            v = node.parent;
            walked += 1;
        }
        self.tree.walked(walked);
        let active = self.tree.deepest(v, |counts| counts.rows > 0);
        Standing {
            slot,
            end: request.end,
            published: v,
            uncomputed: self.beyond(request, v),
            unheld: self.beyond(request, active),
            reserve: request.reserve,
            saved: u64::from(computed.saturating_sub(self.tree.node(v).depth)) * chunk,
        }
    }

    /// Among those that need the same first uncomputed chunk: the one whose path is shared deepest, if it is in the same
    /// lane.
    pub(crate) fn leader_for(&self, follower: Standing) -> Standing {
        let Standing { slot, end, published, .. } = follower;
        if published == end || !self.request(slot).leads {
            return follower;
        }
        let first = self.tree.covering(end, self.tree.node(published).depth + 1);
        if self.tree.is_pending(first) {
            return follower;
        }
        match self.tree.node(first).lead() {
            Some((_, leader)) if leader != slot && self.request(leader).lane == self.request(slot).lane => {
                self.standing(leader)
            }
            _ => follower,
        }
    }

    /// Whether the barrier holds it back: waiting saves `barrier_min`, or a quarter of what it must compute.
    pub(crate) fn is_held(&self, standing: &Standing) -> bool {
        let &Standing { saved, uncomputed, .. } = standing;
        saved > 0 && (saved >= u64::from(self.config.barrier_min) || 4 * saved >= uncomputed)
    }

    /// Whether it can be admitted into `kv` free tokens.
    pub(crate) fn fits(standing: &Standing, kv: u64) -> bool {
        standing.unheld + standing.reserve <= kv
    }

    /// Whether what it waits for has been computed for longer than the fairness bound.
    pub(crate) fn was_held_long(&self, standing: &Standing, budget: &Budget) -> bool {
        let &Standing { end, published, .. } = standing;
        let depth = self.tree.node(published).depth + 1;
        let wanted = self.tree.covering(end, depth);
        let mut rows = self
            .computing
            .iter()
            .map(|&slot| self.request(slot))
            .filter(|row| self.tree.node(row.end).depth >= depth && self.tree.covering(row.end, depth) == wanted);
        rows.any(|row| budget.now.saturating_sub(row.since) > self.config.max_wait)
    }

    /// The engine refused it in the last pass: others go first in this one, and nobody waits for it.
    pub(crate) fn was_refused(&self, slot: Slot) -> bool {
        let refused = self.request(slot).refused;
        refused != 0 && refused + 1 == self.pass
    }

    /// The deepest node that all running rows hold of the published path to `published`; all of it if nobody runs.
    pub(crate) fn tip_with(&self, published: NodeId) -> NodeId {
        match self.tree.node(ROOT).counts.rows {
            0 => published,
            rows => self.tree.deepest(published, |counts: &Counts| counts.rows == rows),
        }
    }
}
