//! Which waiting request comes next: queues along the tree, and two orders over its live nodes.
//!
//! A node is *live* while a running row covers it (active or pending). A waiting request is queued at the node where it
//! ends; a node that is not live hands its first request up to its parent's queue, so the queue of a live node lists
//! all requests that leave the running batch's paths there, first one first. Live nodes stand in the global orders,
//! except those whose requests are all held back by the barrier: these cost a pass nothing. Nothing is ever stale, so
//! the next request is read off in O(log A), A the live nodes.

use crate::node::{Counts, Entry, NIL, NodeId, ROOT, Rank};
use crate::tree::Tree;
use std::collections::BTreeSet;

/// How waiting requests are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The oldest, unless running rows hold clearly more of another one: then the one they hold most of.
    Held,
    /// The one with the fewest tokens that no running row holds, plus an ageing term (the Feather paper's order).
    Missing,
}

#[derive(Debug)]
pub(crate) struct Frontier {
    pub order: Order,
    /// Tokens a chunk.
    pub chunk: u64,
    /// Tokens that waiting must save for the barrier to hold a request back.
    pub barrier_min: u64,
    /// Live nodes with requests that are not held back. Under `Held`: most tokens held, most rows, arrival. Under
    /// `Missing`: fewest unheld tokens (aged), arrival.
    pub by_order: BTreeSet<((u64, u64, crate::Arrival), NodeId)>,
    /// The same nodes by the arrival of their first request; only under `Held`.
    pub by_age: BTreeSet<(crate::Arrival, NodeId)>,
    /// See [`Counts::is_watched`].
    pub watched: BTreeSet<NodeId>,
    /// What lies above some watched node changed, so that its rank may be wrong.
    pub watched_are_stale: bool,
}

/// `Missing` counts in 1/65,536 tokens, so that ageing stays an integer, equal on all ranks.
pub(crate) const RANK_UNIT: u64 = 1 << 16;

impl Tree {
    pub fn is_published(&self, v: NodeId) -> bool {
        v == ROOT || self.node(v).counts.published()
    }

    /// Being computed by a running row that publishes it for others, and not published yet.
    pub fn is_pending(&self, v: NodeId) -> bool {
        self.node(v).counts.leading > 0 && !self.is_published(v)
    }

    pub fn is_live(&self, v: NodeId) -> bool {
        let counts = &self.node(v).counts;
        v == ROOT || counts.rows > 0 || counts.leading > 0
    }

    /// Tokens that a request below the pending node `v` saves by waiting for it.
    pub fn saved_by_waiting(&self, v: NodeId) -> u64 {
        let published = self.deepest(v, Counts::published);
        u64::from(self.node(v).depth - self.node(published).depth) * self.frontier.chunk
    }

    /// Whether the barrier holds back everything that waits below `v`, however long.
    pub fn is_blocked(&self, v: NodeId) -> bool {
        self.is_pending(v) && self.saved_by_waiting(v) >= self.frontier.barrier_min
    }

    /// Adds `delta` to all nodes from `v` to the root, and repairs queues and orders on the way.
    ///
    /// `queue_changed`: the caller changed the queue of `v`. O(nodes on the path), each O(log) where its state flips.
    pub fn add(&mut self, mut v: NodeId, delta: Counts, mut queue_changed: bool) {
        loop {
            self.work.nodes_visited += 1;
            let before = self.node(v).counts;
            self.node_mut(v).counts += delta;
            let flipped = self.note_flips(v, before);
            queue_changed = (queue_changed || flipped || delta.rows != 0) && self.refresh(v);
            if v == ROOT {
                break;
            }
            v = self.node(v).parent;
        }
        self.refresh_watched();
    }

    /// Records what became active, cached or pending at `v`; tells whether its liveness or publication changed.
    fn note_flips(&mut self, v: NodeId, before: Counts) -> bool {
        if v == ROOT {
            return false;
        }
        let after = self.node(v).counts;
        let chunks = self.node(v).label.len() as u64;
        match (before.rows > 0, after.rows > 0) {
            (false, true) => self.active_chunks += chunks,
            (true, false) => self.active_chunks -= chunks,
            _ => {}
        }
        match (before.cached > 0, after.cached > 0) {
            (false, true) => self.cached_chunks += chunks,
            (true, false) => self.cached_chunks -= chunks,
            _ => {}
        }
        let flips = |is: fn(&Counts) -> bool| is(&before) != is(&after);
        let flipped = flips(|c| c.rows > 0) || flips(|c| c.leading > 0) || flips(Counts::published);
        if flipped && (before.leading > 0 || after.leading > 0) {
            self.frontier.watched_are_stale = true;
        }
        self.watch(v);
        flipped
    }

    /// Keeps `watched` right for `v`.
    pub fn watch(&mut self, v: NodeId) {
        if self.node(v).counts.is_watched() {
            self.frontier.watched.insert(v);
        } else {
            self.frontier.watched.remove(&v);
        }
    }

    /// What is held and published above a watched node decides its rank, and can change without touching it.
    fn refresh_watched(&mut self) {
        if !std::mem::take(&mut self.frontier.watched_are_stale) {
            return;
        }
        let watched: Vec<NodeId> = self.frontier.watched.iter().copied().collect();
        for v in watched {
            self.set_rank(v);
        }
    }

    pub fn refresh_upward(&mut self, mut v: NodeId) {
        while self.refresh(v) && v != ROOT {
            v = self.node(v).parent;
        }
    }

    /// Makes the places where `v` is listed agree with its queue and state; tells whether its parent's queue changed.
    pub fn refresh(&mut self, v: NodeId) -> bool {
        if self.is_live(v) {
            self.set_rank(v);
            self.leave_parent(v)
        } else {
            self.unrank(v);
            let node = self.node(v);
            let entry = node.queue.first().map(|first| Entry { child: v, ..*first });
            let lead = node.lead();
            self.list_in_parent(v, entry, lead)
        }
    }

    /// Takes `v` out of its parent's queue; tells whether it was there.
    pub fn leave_parent(&mut self, v: NodeId) -> bool {
        self.list_in_parent(v, None, None)
    }

    fn list_in_parent(&mut self, v: NodeId, entry: Option<Entry>, lead: Option<crate::node::Lead>) -> bool {
        let node = self.node(v);
        let (parent, old_entry, old_lead) = (node.parent, node.queued, node.leading);
        if (old_entry, old_lead) == (entry, lead) {
            return false;
        }
        self.node_mut(v).queued = entry;
        self.node_mut(v).leading = lead;
        let mut operations = 0;
        let node = self.node_mut(parent);
        if old_entry != entry {
            if let Some(old) = old_entry {
                node.queue.remove(&old);
                operations += 1;
            }
            if let Some(new) = entry {
                node.queue.insert(new);
                operations += 1;
            }
        }
        if old_lead != lead {
            if let Some(old) = old_lead {
                node.leads.remove(&(old, v));
                operations += 1;
            }
            if let Some(new) = lead {
                node.leads.insert((new, v));
                operations += 1;
            }
        }
        self.work.queue_operations += operations;
        true
    }

    /// Puts a waiting request into the queue of the node where it ends, or takes it out. The caller repairs upwards.
    pub fn set_queued(&mut self, v: NodeId, entry: Entry, queued: bool) {
        debug_assert_eq!(entry.child, NIL);
        self.work.queue_operations += 1;
        let queue = &mut self.node_mut(v).queue;
        let changed = if queued { queue.insert(entry) } else { queue.remove(&entry) };
        debug_assert!(changed);
    }

    pub fn unrank(&mut self, v: NodeId) {
        self.put_rank(v, None);
    }

    /// Places the live node `v` in the global orders.
    fn set_rank(&mut self, v: NodeId) {
        let rank = self.rank(v);
        self.put_rank(v, rank);
    }

    fn put_rank(&mut self, v: NodeId, rank: Option<Rank>) {
        let old = self.node(v).rank;
        if old == rank {
            return;
        }
        self.node_mut(v).rank = rank;
        let held = self.frontier.order == Order::Held;
        if let Some(old) = old {
            self.work.queue_operations += 1;
            self.frontier.by_order.remove(&(old.order, v));
            if held {
                self.frontier.by_age.remove(&(old.age, v));
            }
        }
        if let Some(new) = rank {
            self.work.queue_operations += 1;
            self.frontier.by_order.insert((new.order, v));
            if held {
                self.frontier.by_age.insert((new.age, v));
            }
        }
    }

    /// Where `v` belongs in the global orders; nowhere if nothing waits there or the barrier holds all of it back.
    pub fn rank(&self, v: NodeId) -> Option<Rank> {
        let first = self.node(v).queue.first()?;
        if self.is_blocked(v) {
            return None;
        }
        let active = self.deepest(v, |counts| counts.rows > 0);
        let held = u64::from(self.node(active).depth);
        let age = first.key.arrival;
        let order = match self.frontier.order {
            Order::Held => {
                // A request that is being computed already, but is not worth waiting for, comes after active ones.
                let rows = if active == v { self.node(v).counts.rows as u64 } else { 0 };
                (u64::MAX - held, u64::MAX - rows, age)
            }
            Order::Missing => (first.key.rank - held * self.frontier.chunk * RANK_UNIT, 0, age),
        };
        Some(Rank { order, age })
    }
}
