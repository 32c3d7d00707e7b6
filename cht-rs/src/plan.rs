//! The rule: whom to admit next, and for whom to wait.
//!
//! One call forms a whole pass tentatively: each candidate is admitted before the next is chosen, so a family's second
//! member already meets the first one's chunks as pending. [`Index::undo`] and [`Index::settle`] take back what the
//! gate or the engine did not want.

use crate::bound::Overdue;
use crate::frontier::Order;
use crate::index::Index;
use crate::node::{Counts, NodeId, ROOT, Slot};
use crate::request::Request;
use crate::standing::Standing;

/// Requests that do not fit are looked at so often in one pass; the next pass goes on where this one ended.
pub const LOOKS: u32 = 64;
/// Passes for which a row and KV are kept for a request that is held back: what a prefill under overlap takes.
pub const KEPT_PASSES: u64 = 2;

/// What a pass may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Tokens scheduled so far: the clock of the fairness bound.
    pub now: u64,
    /// Free and evictable KV tokens.
    pub kv: u64,
    /// Requests that may be admitted.
    pub rows: u32,
    /// Tokens that may be prefilled.
    pub prefill: u64,
    /// Whether the last request named may exceed the prefill budget, and be chunked.
    pub chunked: bool,
    /// Nothing decodes and nothing is in flight: somebody must be named.
    pub idle: bool,
    /// Only requests of this lane are named, unless somebody must be; all if none.
    pub lane: Option<u8>,
}

impl Budget {
    /// Whether requests of a lane may be named.
    pub(crate) fn serves(&self, lane: u8) -> bool {
        self.lane.is_none_or(|only| only == lane)
    }
}

/// A request named for admission, with its effect on the batch as formed before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The request.
    pub id: u64,
    /// Tokens it must prefill, as far as the index knows.
    pub uncomputed: u64,
    /// KV tokens it adds, shared or not.
    pub add_total: u64,
    /// KV tokens it adds that no running row holds.
    pub add_distinct: u64,
    /// Tip depth before it.
    pub chunks_before: u32,
    /// Tip depth after it.
    pub chunks_after: u32,
    /// Waiting requests that share the tip after it.
    pub peers: u64,
}

/// Why a plan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nobody is left who may be admitted.
    Nobody,
    /// No row is free.
    Rows,
    /// The free rows are kept for requests that are held back.
    Kept,
    /// The prefill budget is spent.
    Prefill,
    /// Room is kept for the oldest request, which is past the fairness bound and does not fit yet.
    Room,
    /// Enough requests that do not fit were looked at.
    Looked,
}

impl End {
    /// A word for the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            End::Nobody => "nobody",
            End::Rows => "rows",
            End::Kept => "kept",
            End::Prefill => "prefill",
            End::Room => "room",
            End::Looked => "looked",
        }
    }
}

/// What [`Index::plan`] answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whom to admit, in this order; tentatively admitted in the index.
    pub order: Vec<Candidate>,
    /// Waiting requests held back by the barrier.
    pub held: u64,
    /// Rows kept free for them.
    pub kept: u32,
    /// Requests looked at that did not fit.
    pub skipped: u32,
    /// Of `order`, the first so many are past the fairness bound: no gate may leave them out.
    pub overdue: usize,
    /// Why it ended.
    pub end: End,
}

/// What is left of a [`Budget`] while a plan is formed.
pub(crate) struct Left {
    pub kv: u64,
    rows: u32,
    prefill: u64,
    skipped: u32,
    /// Kept for requests that are held back with all others below the same chunks.
    kept: Kept,
    /// Kept for short requests, which the barrier holds back one by one.
    alone: Kept,
    /// The deepest node that all rows hold.
    tip: Option<NodeId>,
}

#[derive(Default)]
struct Kept {
    rows: u64,
    kv: u64,
    /// Nodes whose waiting requests are counted.
    seen: Vec<NodeId>,
}

impl Left {
    /// Rows and KV tokens that are not for everybody.
    fn kept(&self) -> (u64, u64) {
        (self.kept.rows + self.alone.rows, self.kept.kv + self.alone.kv)
    }
}

impl Index {
    /// Forms the batch of a pass; a plan that was not settled is taken back first.
    ///
    /// O((named + looked at) · (path nodes + pending nodes + log W)), whatever the number of requests held back.
    pub fn plan(&mut self, budget: Budget) -> Plan {
        self.undo(0);
        if !self.looked_enough || budget.idle {
            self.offer_all();
        }
        self.looked_enough = false;
        self.now = self.now.max(budget.now);
        let Budget { kv, rows, prefill, idle, .. } = budget;
        let (kept, alone, tip) = (self.kept_for_all(), Kept::default(), self.tip());
        let mut left = Left { kv, rows, prefill, skipped: 0, kept, alone, tip };
        let waiting = self.tree.node(ROOT).counts.waiting as usize;
        let mut order = Vec::with_capacity(waiting.min(rows as usize));
        let (mut overdue, mut passed) = (0, vec![]);
        let end = loop {
            if left.rows == 0 {
                break End::Rows;
            }
            if left.prefill == 0 {
                break End::Prefill;
            }
            self.tree.work.looked_at += 1;
            self.pass_over_lanes(&budget, &mut passed);
            let (kept_rows, kept_kv) = if idle && order.is_empty() { (0, 0) } else { left.kept() };
            let mut is_overdue = false;
            let standing = match self.overdue(&budget, &left, kept_kv, order.is_empty()) {
                Overdue::First(standing) => {
                    if self.exceeds(&standing, &budget, &left) && !order.is_empty() {
                        break End::Prefill;
                    }
                    order.push(self.name(&standing, &mut left));
                    overdue = order.len();
                    left.kept = self.kept_for_all(); // it may be one that rows were kept for
                    continue;
                }
                Overdue::Waits => break End::Room,
                Overdue::Together(_) | Overdue::Nobody if kept_rows >= u64::from(left.rows) => break End::Kept,
                Overdue::Together(standing) => {
                    is_overdue = true;
                    standing
                }
                Overdue::Nobody => {
                    let Some(first) = self.next_in_order(&budget) else {
                        break End::Nobody;
                    };
                    let standing = self.leader_for(self.standing(first));
                    if self.is_held(&standing) {
                        // By itself: longer ones below the same chunks go on.
                        left.alone.rows += 1;
                        left.alone.kv += standing.unheld + standing.reserve;
                        self.set_aside(standing.slot);
                        continue;
                    }
                    if !Index::fits(&standing, left.kv.saturating_sub(kept_kv)) || self.was_refused(standing.slot) {
                        self.set_aside(standing.slot);
                        left.skipped += 1;
                        if left.skipped >= LOOKS && !idle {
                            self.looked_enough = true;
                            break End::Looked;
                        }
                        continue;
                    }
                    standing
                }
            };
            if self.exceeds(&standing, &budget, &left) && !order.is_empty() {
                break End::Prefill;
            }
            order.push(self.name(&standing, &mut left));
            if is_overdue {
                overdue = order.len();
            }
            self.keep_for(standing.slot, standing.published, &mut left.kept);
        };
        if idle && order.is_empty() && rows > 0 {
            // The oldest, which the engine then admits or reports: an idle engine never waits for the policy.
            if let Some((_, slot)) = self.ages.first() {
                order.push(self.name(&self.standing(slot), &mut left));
                left.kept = self.kept_for_all();
            }
        }
        for slot in passed {
            if self.aside.remove(&slot) {
                self.offer(slot);
            }
        }
        let kept = left.kept().0.min(u64::from(left.rows)) as u32;
        Plan { order, held: self.held() + left.alone.rows, kept, skipped: left.skipped, overdue, end }
    }

    /// Sets aside whoever is next in order and in a lower lane than the only one that is to be served.
    fn pass_over_lanes(&mut self, budget: &Budget, passed: &mut Vec<Slot>) {
        let Some(lane) = budget.lane else { return };
        while let Some(first) = self.first_in_order().filter(|&first| self.request(first).lane < lane) {
            self.set_aside(first);
            passed.push(first);
        }
    }

    /// The next request in order, if it is in a lane that is to be served.
    pub(crate) fn next_in_order(&self, budget: &Budget) -> Option<Slot> {
        self.first_in_order().filter(|&first| budget.serves(self.request(first).lane))
    }

    /// The next request in order that is not held back, without regard to what fits.
    pub(crate) fn first_in_order(&self) -> Option<Slot> {
        let frontier = &self.tree.frontier;
        let (most, best) = frontier.by_order.first()?;
        let first = |v: NodeId| self.tree.node(v).first().map(|first| first.slot);
        if self.config.order == Order::Missing {
            return first(best);
        }
        let (_, oldest) = frontier.by_age.first()?;
        let of_oldest = frontier.by_order.key(self.tree.place(oldest).order)?;
        let more = u64::from(most.held() - of_oldest.held()) * u64::from(self.config.chunk);
        first(if more >= u64::from(self.config.barrier_min) { best } else { oldest })
    }

    /// Whether a request is longer than what is left to prefill, and cannot be chunked.
    fn exceeds(&self, standing: &Standing, budget: &Budget, left: &Left) -> bool {
        let page = u64::from(self.config.page);
        !budget.chunked && standing.uncomputed.div_ceil(page) * page >= left.prefill
    }

    fn set_aside(&mut self, slot: Slot) {
        self.set_queued(slot, false);
        self.tree.refresh_upward(self.request(slot).end);
        self.aside.insert(slot);
    }

    fn offer(&mut self, slot: Slot) {
        self.set_queued(slot, true);
        self.tree.refresh_upward(self.request(slot).end);
    }

    fn offer_all(&mut self) {
        for slot in std::mem::take(&mut self.aside) {
            self.offer(slot);
        }
    }

    /// Waiting requests that are held back with all others below the same pending chunks.
    pub(crate) fn held(&self) -> u64 {
        self.blocked().map(|v| self.tree.node(v).counts.waiting as u64).sum()
    }

    /// Rows and KV tokens kept for those who wait for a leader of the last [`KEPT_PASSES`] passes.
    fn kept_for_all(&self) -> Kept {
        let mut kept = Kept::default();
        for &slot in &self.computing {
            let published = self.tree.deepest(self.request(slot).end, Counts::published);
            self.keep_for(slot, published, &mut kept);
        }
        kept
    }

    /// Adds what is kept for those who wait for the leader `slot`, of whose path the part to `published` is.
    fn keep_for(&self, slot: Slot, published: NodeId, kept: &mut Kept) {
        let Request { end, computing, admitted, .. } = *self.request(slot);
        if !computing || self.pass - admitted >= KEPT_PASSES {
            return;
        }
        let chunk = u64::from(self.config.chunk);
        let depth = self.tree.node(published).depth.saturating_add(self.tree.frontier.least_chunks());
        if depth > self.tree.node(end).depth {
            return;
        }
        let v = self.tree.covering(end, depth);
        let node = self.tree.node(v);
        let (waiting, demand) = (node.counts.waiting as u64, node.counts.demand as u64);
        if waiting > 0 && !kept.seen.contains(&v) {
            kept.seen.push(v);
            kept.rows += waiting;
            kept.kv += demand - waiting * u64::from(node.depth) * chunk;
        }
    }

    /// Admits a request tentatively and spends what it needs.
    fn name(&mut self, standing: &Standing, left: &mut Left) -> Candidate {
        let &Standing { slot, published, uncomputed, unheld, reserve, .. } = standing;
        let before = left.tip.map_or(0, |v| self.tree.node(v).depth);
        let shared = self.tip_with(published);
        self.admit(slot, published);
        self.tentative.push(slot);
        left.tip = Some(shared);
        let page = u64::from(self.config.page);
        left.rows -= 1;
        left.kv = left.kv.saturating_sub(unheld + reserve);
        left.prefill = left.prefill.saturating_sub(uncomputed.div_ceil(page) * page);
        let (request, tip) = (self.request(slot), self.tree.node(shared));
        Candidate {
            id: request.id,
            uncomputed,
            add_total: request.length,
            add_distinct: unheld,
            chunks_before: before,
            chunks_after: tip.depth,
            peers: tip.counts.waiting as u64,
        }
    }
}
