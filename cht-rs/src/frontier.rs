//! Which waiting request comes next: queues along the tree, and two orders over its live nodes.
//!
//! A node is *live* while a running row covers it (active or pending). A waiting request is queued at the node where it
//! ends; a node that is not live hands its first request up to its parent's queue, so the queue of a live node lists
//! all requests that leave the running batch's paths there, first one first. Live nodes stand in the global orders,
//! except those whose requests are all held back by the barrier: these cost a pass nothing. Nothing is ever stale, so
//! the next request is read off in O(log A), A the live nodes.

use crate::heap::{Heap, NOWHERE};
use crate::node::{ACTIVE, CACHED, Counts, Key, LED, NodeId, OrderKey, ROOT, Rank, WAITED_FOR, is_watched};
use crate::queues::Place;
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
    pub by_age: Heap<Key>,
    /// See [`is_watched`]; in no particular order.
    pub watched: Vec<NodeId>,
    /// What lies above some watched node changed, so that its rank may be wrong.
    pub watched_are_stale: bool,
    /// Room for the nodes of a walk whose rank depends on what lies above them.
    pub unsettled: Vec<NodeId>,
}

impl Frontier {
    /// Chunks that waiting must save.
    pub fn least_chunks(&self) -> u32 {
        self.barrier_min.div_ceil(self.chunk).max(1) as u32
    }
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
        v == ROOT || self.node(v).counts.state() & (ACTIVE | LED) != 0
    }

    fn is_active(&self, v: NodeId) -> bool {
        v == ROOT || self.node(v).counts.rows > 0
    }

    /// Whether the barrier holds back everything that waits below `v`, however long: waiting for it saves enough.
    ///
    /// What is published begins at the root, so that one chunk tells: O(nodes in what must be saved).
    pub fn is_blocked(&self, v: NodeId) -> bool {
        let (depth, least) = (self.node(v).depth, self.frontier.least_chunks());
        self.is_pending(v) && depth >= least && !self.is_published(self.covering(v, depth - least + 1))
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
        let (mut v, mut steps, mut delta) = (steps[0].0, steps, Counts::default());
        loop {
            self.work.nodes_visited += 1;
            while let Some((&(_, more), rest)) = steps.split_first().filter(|(step, _)| step.0 == v) {
                delta += more;
                steps = rest;
            }
            if steps.is_empty() && !queue_changed && delta == Counts::default() {
                break;
            }
            let node = self.node_mut(v);
            let (parent, counts) = (node.parent, node.counts + delta);
            let (before, after) = (node.counts.state(), counts.state());
            node.counts = counts;
            if before != after && v != ROOT {
                self.note_flips(v, before, after);
            }
            if queue_changed || (before ^ after) & !WAITED_FOR != 0 || delta.rows != 0 {
                queue_changed = self.list(v);
                if self.is_active(v) {
                    self.put_rank(v, self.rank(v));
                } else if self.is_live(v) {
                    if self.node(v).queue.len() > 0 {
                        self.frontier.unsettled.push(v);
                    } else {
                        self.unrank(v);
                    }
                }
            }
            if v == ROOT {
                break;
            }
            v = parent;
        }
        self.settle_ranks();
        self.refresh_watched();
    }

    /// Ranks the nodes of a path that are live and not active. What lies above decides it, so they come last; and as what
    /// is active or published begins at the root, it covers all of them alike.
    fn settle_ranks(&mut self) {
        let mut unsettled = std::mem::take(&mut self.frontier.unsettled);
        if let Some(&deepest) = unsettled.first() {
            let above = self.above(deepest);
            for v in unsettled.drain(..) {
                self.put_rank(v, self.rank_below(v, self.covered_at(v, above)));
            }
        }
        self.frontier.unsettled = unsettled;
    }

    /// Records what became active, cached or watched at `v`, or no longer is.
    fn note_flips(&mut self, v: NodeId, before: u8, after: u8) {
        let chunks = self.node(v).label.len() as u64;
        let count = |total: &mut u64, bit: u8| match (before & bit != 0, after & bit != 0) {
            (false, true) => *total += chunks,
            (true, false) => *total -= chunks,
            _ => {}
        };
        count(&mut self.active_chunks, ACTIVE);
        count(&mut self.cached_chunks, CACHED);
        // Watched nodes below have a leading row and a waiting request, and so has this one.
        if (before ^ after) & (ACTIVE | CACHED) != 0 && after & (LED | WAITED_FOR) == LED | WAITED_FOR {
            self.frontier.watched_are_stale = true;
        }
        if is_watched(before) != is_watched(after) {
            self.watch(v);
        }
    }

    /// Keeps `watched` right for `v`. O(1).
    pub fn watch(&mut self, v: NodeId) {
        let at = self.place(v).watched;
        match (is_watched(self.node(v).counts.state()), at != NOWHERE) {
            (true, false) => {
                self.places.nodes[v as usize].watched = self.frontier.watched.len() as u32;
                self.frontier.watched.push(v);
            }
            (false, true) => {
                self.places.nodes[v as usize].watched = NOWHERE;
                self.frontier.watched.swap_remove(at as usize);
                if let Some(&moved) = self.frontier.watched.get(at as usize) {
                    self.places.nodes[moved as usize].watched = at;
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

    /// The same for a node that no row covers, one node further down than `above`.
    fn covered_at(&self, v: NodeId, above: Covered) -> Covered {
        let node = self.node(v);
        Covered { published: if node.counts.published() { node.depth } else { above.published }, ..above }
    }

    /// Takes `v` out of the global orders.
    pub fn unrank(&mut self, v: NodeId) {
        let Place { order: order_at, age: age_at, .. } = self.place(v);
        let Tree { places, frontier, work, .. } = self;
        if order_at != NOWHERE {
            work.queue_operations += 1;
            frontier.by_order.remove(order_at, |v, at| places.nodes[v as usize].order = at);
        }
        if age_at != NOWHERE {
            work.queue_operations += 1;
            frontier.by_age.remove(age_at, |v, at| places.nodes[v as usize].age = at);
        }
    }

    /// Places `v` in the global orders.
    pub fn put_rank(&mut self, v: NodeId, rank: Option<Rank>) {
        let Some(Rank { order, age }) = rank else { return self.unrank(v) };
        let Place { order: order_at, age: age_at, .. } = self.place(v);
        let Tree { places, frontier, work, .. } = self;
        if frontier.by_order.key(order_at) != Some(order) {
            work.queue_operations += 1;
            frontier.by_order.put(order_at, (order, v), |v, at| places.nodes[v as usize].order = at);
        }
        if frontier.order == Order::Held && frontier.by_age.key(age_at) != Some(age) {
            work.queue_operations += 1;
            frontier.by_age.put(age_at, (age, v), |v, at| places.nodes[v as usize].age = at);
        }
    }

    /// Where `v` belongs in the global orders; nowhere if nothing waits there or the barrier holds all of it back.
    pub fn rank(&self, v: NodeId) -> Option<Rank> {
        self.node(v).first()?;
        let depth = self.node(v).depth;
        let own = Covered { active: depth, published: depth };
        self.rank_below(v, if self.is_active(v) { own } else { self.above(v) })
    }

    fn rank_below(&self, v: NodeId, covered: Covered) -> Option<Rank> {
        let node = self.node(v);
        let age = node.first()?.key;
        let missing = u64::from(node.depth - covered.published) * self.frontier.chunk;
        if self.is_pending(v) && missing >= self.frontier.barrier_min {
            return None;
        }
        let order = match self.frontier.order {
            Order::Held => {
                // A request that is being computed already, but is not worth waiting for, comes after active ones.
                let rows = if covered.active == node.depth { node.counts.rows as u32 } else { 0 };
                OrderKey::by_most_held(covered.active, rows, age)
            }
            Order::Missing => {
                let held = u64::from(covered.active) * self.frontier.chunk;
                OrderKey::by_key(Key { rank: age.rank - held * RANK_UNIT, ..age })
            }
        };
        Some(Rank { order, age })
    }
}
