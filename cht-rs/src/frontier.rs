//! Which waiting request comes next: queues along the tree, and two orders over its live nodes.
//!
//! A node is *live* while a running row covers it (active or pending). A waiting request is queued at the node where it
//! ends; a node that is not live hands its first request up to its parent's queue, so the queue of a live node lists
//! all requests that leave the running batch's paths there, first one first. Live nodes stand in the global orders,
//! except those whose requests are all held back by the barrier: these cost a pass nothing. Nothing is ever stale, so
//! the next request is read off in O(log A), A the live nodes.

use crate::heap::{Heap, NOWHERE};
use crate::node::{Arrival, Counts, Entry, Lead, NodeId, OrderKey, REQUEST, ROOT, Rank, Slot};
use crate::tree::{FastMap, Tree};

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
    pub by_order: Heap<OrderKey>,
    /// The same nodes by the arrival of their first request; only under `Held`.
    pub by_age: Heap<Arrival>,
    /// See [`Counts::is_watched`]; in no particular order.
    pub watched: Vec<NodeId>,
    /// What lies above some watched node changed, so that its rank may be wrong.
    pub watched_are_stale: bool,
    /// Room for the path that is being walked, and whether a node's rank has to be settled.
    pub path: Vec<(NodeId, bool)>,
}

/// Chunks of the path to a node that are active, and published.
#[derive(Clone, Copy, Debug)]
struct Covered {
    active: u32,
    published: u32,
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

    /// Adds `delta` to all nodes from `v` to the root.
    pub fn add(&mut self, v: NodeId, delta: Counts) {
        self.add_along(&[(v, delta)], false);
    }

    /// Adds each step's counts to all nodes from its node to the root; repairs queues and orders on the way.
    ///
    /// The nodes of `steps` lie on one path, the deepest first. `queue_changed`: the caller changed the queue of the first.
    /// O(nodes up to where the steps cancel and no queue changes), each O(log) where its state flips.
    pub fn add_along(&mut self, steps: &[(NodeId, Counts)], mut queue_changed: bool) {
        let mut path = std::mem::take(&mut self.frontier.path);
        let (mut v, mut steps, mut delta) = (steps[0].0, steps, Counts::default());
        let mut ranks = 0;
        loop {
            self.work.nodes_visited += 1;
            while let Some((&(_, more), rest)) = steps.split_first().filter(|(step, _)| step.0 == v) {
                delta += more;
                steps = rest;
            }
            if steps.is_empty() && !queue_changed && delta == Counts::default() {
                break;
            }
            let before = self.node(v).counts;
            self.node_mut(v).counts += delta;
            let flipped = self.note_flips(v, before);
            let changed = queue_changed || flipped || delta.rows != 0;
            queue_changed = changed && self.list(v);
            // What lies above decides the rank, too: it is settled on the way back.
            let ranked = changed && self.is_live(v);
            ranks += u32::from(ranked);
            path.push((v, ranked));
            if v == ROOT {
                break;
            }
            v = self.node(v).parent;
        }
        if ranks > 0 {
            let mut above = self.above(v);
            for &(v, ranked) in path.iter().rev() {
                above = self.covered_at(v, above);
                if ranked {
                    self.put_rank(v, self.rank_below(v, above));
                }
            }
        }
        path.clear();
        self.frontier.path = path;
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
        // Watched nodes below have a leading row and a waiting request, and so has this one.
        if flips(|c| c.rows > 0) || flips(Counts::published) {
            self.frontier.watched_are_stale |= after.leading > 0 && after.waiting > 0;
        }
        if before.is_watched() != after.is_watched() {
            self.watch(v);
        }
        flipped
    }

    /// Keeps `watched` right for `v`. O(1).
    pub fn watch(&mut self, v: NodeId) {
        let at = self.node(v).watched_at;
        match (self.node(v).counts.is_watched(), at != NOWHERE) {
            (true, false) => {
                self.node_mut(v).watched_at = self.frontier.watched.len() as u32;
                self.frontier.watched.push(v);
            }
            (false, true) => {
                self.node_mut(v).watched_at = NOWHERE;
                self.frontier.watched.swap_remove(at as usize);
                if let Some(&moved) = self.frontier.watched.get(at as usize) {
                    self.node_mut(moved).watched_at = at;
                }
            }
            _ => {}
        }
    }

    /// What is held and published above a watched node decides its rank, and can change without touching it.
    fn refresh_watched(&mut self) {
        if !std::mem::take(&mut self.frontier.watched_are_stale) {
            return;
        }
        let mut known = FastMap::default();
        for i in 0..self.frontier.watched.len() {
            let v = self.frontier.watched[i];
            let covered = self.covered_knowing(v, &mut known);
            self.put_rank(v, self.rank_below(v, covered));
        }
    }

    /// What covers `v`, remembered for all nodes on the way to it: a chain of watched nodes is walked once.
    fn covered_knowing(&self, v: NodeId, known: &mut FastMap<NodeId, Covered>) -> Covered {
        let (mut open, mut at) = (vec![], v);
        let mut covered = loop {
            if let Some(&covered) = known.get(&at) {
                break covered;
            }
            if at == ROOT || self.node(at).counts.rows > 0 {
                let depth = self.node(at).depth;
                break Covered { active: depth, published: depth };
            }
            open.push(at);
            at = self.node(at).parent;
        };
        for &at in open.iter().rev() {
            covered = self.covered_at(at, covered);
            known.insert(at, covered);
        }
        covered
    }

    /// What covers the path to `v`, `v` included.
    fn above(&self, v: NodeId) -> Covered {
        let active = self.deepest(v, |counts| counts.rows > 0);
        let published = self.deepest(v, Counts::published);
        Covered { active: self.node(active).depth, published: self.node(published).depth }
    }

    /// The same, one node further down than `above`.
    fn covered_at(&self, v: NodeId, above: Covered) -> Covered {
        let node = self.node(v);
        Covered {
            active: if node.counts.rows > 0 { node.depth } else { above.active },
            published: if node.counts.published() { node.depth } else { above.published },
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
            self.put_rank(v, self.rank(v));
        }
        self.list(v)
    }

    /// The same, but for the rank of a live node.
    fn list(&mut self, v: NodeId) -> bool {
        if self.is_live(v) {
            self.leave_parent(v)
        } else {
            self.unrank(v);
            let node = self.node(v);
            let (entry, lead) = (node.queue.first().map(|first| first.0), node.lead());
            self.list_in_parent(v, entry, lead)
        }
    }

    /// Takes `v` out of its parent's queue; tells whether it was there.
    pub fn leave_parent(&mut self, v: NodeId) -> bool {
        self.list_in_parent(v, None, None)
    }

    fn list_in_parent(&mut self, v: NodeId, entry: Option<Entry>, lead: Option<Lead>) -> bool {
        let (parent, queue_at, leads_at) = (self.node(v).parent, self.node(v).queue_at, self.node(v).leads_at);
        if v == ROOT {
            return false;
        }
        let above = self.node(parent);
        let (old_entry, old_lead) = (above.queue.key(queue_at), above.leads.key(leads_at));
        if old_entry != entry {
            self.set_in_queue(parent, queue_at, v, entry);
        }
        if old_lead != lead {
            self.work.queue_operations += 1;
            let mut leads = std::mem::take(&mut self.node_mut(parent).leads);
            self.queue_bytes -= leads.bytes();
            leads.set(leads_at, v, lead, |child, at| self.nodes[child as usize].leads_at = at);
            self.queue_bytes += leads.bytes();
            self.node_mut(parent).leads = leads;
        }
        old_entry != entry || old_lead != lead
    }

    /// Puts a waiting request into the queue of the node where it ends, or takes it out. The caller repairs upwards.
    pub fn set_queued(&mut self, v: NodeId, slot: Slot, entry: Option<Entry>) {
        if self.queue_at.len() <= slot as usize {
            self.queue_at.resize(slot as usize + 1, NOWHERE);
        }
        self.set_in_queue(v, self.queue_at[slot as usize], REQUEST | slot, entry);
    }

    fn set_in_queue(&mut self, v: NodeId, at: u32, item: u32, entry: Option<Entry>) {
        self.work.queue_operations += 1;
        let mut queue = std::mem::take(&mut self.node_mut(v).queue);
        self.queue_bytes -= queue.bytes();
        queue.set(at, item, entry, |item, at| {
            if item & REQUEST == 0 {
                self.nodes[item as usize].queue_at = at;
            } else {
                self.queue_at[(item & !REQUEST) as usize] = at;
            }
        });
        self.queue_bytes += queue.bytes();
        self.node_mut(v).queue = queue;
    }

    pub fn unrank(&mut self, v: NodeId) {
        self.put_rank(v, None);
    }

    /// Places `v` in the global orders.
    fn put_rank(&mut self, v: NodeId, rank: Option<Rank>) {
        let (order_at, age_at) = (self.node(v).order_at, self.node(v).age_at);
        let order = rank.map(|rank| rank.order);
        if self.frontier.by_order.key(order_at) != order {
            self.work.queue_operations += 1;
            let nodes = &mut self.nodes;
            self.frontier.by_order.set(order_at, v, order, |v, at| nodes[v as usize].order_at = at);
        }
        if self.frontier.order != Order::Held {
            return;
        }
        let age = rank.map(|rank| rank.age);
        if self.frontier.by_age.key(age_at) != age {
            self.work.queue_operations += 1;
            let nodes = &mut self.nodes;
            self.frontier.by_age.set(age_at, v, age, |v, at| nodes[v as usize].age_at = at);
        }
    }

    /// Where `v` belongs in the global orders; nowhere if nothing waits there or the barrier holds all of it back.
    pub fn rank(&self, v: NodeId) -> Option<Rank> {
        self.node(v).queue.first()?;
        self.rank_below(v, self.above(v))
    }

    fn rank_below(&self, v: NodeId, covered: Covered) -> Option<Rank> {
        let node = self.node(v);
        let (first, _) = node.queue.first()?;
        let missing = u64::from(node.depth - covered.published) * self.frontier.chunk;
        if self.is_pending(v) && missing >= self.frontier.barrier_min {
            return None;
        }
        let (held, age) = (u64::from(covered.active), first.key.arrival);
        let order = match self.frontier.order {
            Order::Held => {
                // A request that is being computed already, but is not worth waiting for, comes after active ones.
                let rows = if covered.active == node.depth { node.counts.rows as u64 } else { 0 };
                (u64::MAX - held, u64::MAX - rows, age)
            }
            Order::Missing => (first.key.rank - held * self.frontier.chunk * RANK_UNIT, 0, age),
        };
        Some(Rank { order, age })
    }
}
