//! The rule: whom to admit next, and for whom to wait.
//!
//! One call forms a whole pass tentatively: each candidate is admitted before the next is chosen, so a family's second
//! member already meets the first one's chunks as pending. [`Index::undo`] and [`Index::settle`] take back what the
//! gate or the engine did not want.

use crate::frontier::Order;
use crate::index::Index;
use crate::node::{Arrival, Counts, NodeId, ROOT, Slot};
use crate::request::Request;

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
    /// Why it ended.
    pub end: End,
}

/// What is left of a [`Budget`] while a plan is formed.
struct Left {
    kv: u64,
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

/// A waiting request, and how much of its path others have computed or compute: each the deepest such node of it.
///
/// What is computed, published or active begins at the root, so each of them ends once on a path.
#[derive(Clone, Copy)]
struct Standing {
    slot: Slot,
    end: NodeId,
    /// Led by a running row, or the root.
    computed: NodeId,
    published: NodeId,
    active: NodeId,
}

#[derive(Default)]
struct Kept {
    rows: u64,
    kv: u64,
    /// Nodes whose waiting requests are counted.
    seen: Vec<NodeId>,
}

/// The oldest request past the fairness bound.
enum Overdue {
    First(Slot),
    /// It needs room that running rows will free.
    Waits,
    Nobody,
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
        let mut order = vec![];
        let end = loop {
            if left.rows == 0 {
                break End::Rows;
            }
            if left.prefill == 0 {
                break End::Prefill;
            }
            self.tree.work.looked_at += 1;
            let slot = match self.overdue(&budget, &left, order.is_empty()) {
                Overdue::First(slot) => {
                    if self.exceeds(slot, &budget, &left) && !order.is_empty() {
                        break End::Prefill;
                    }
                    order.push(self.name(slot, &mut left));
                    left.kept = self.kept_for_all(); // it may be one that rows were kept for
                    continue;
                }
                Overdue::Waits => break End::Room,
                Overdue::Nobody => {
                    let (kept_rows, kept_kv) = if idle && order.is_empty() { (0, 0) } else { left.kept() };
                    if kept_rows >= u64::from(left.rows) {
                        break End::Kept;
                    }
                    let Some(first) = self.first_in_order() else {
                        break End::Nobody;
                    };
                    let slot = self.leader_for(first);
                    if self.is_held(slot) {
                        // By itself: longer ones below the same chunks go on.
                        let request = self.request(slot);
                        left.alone.rows += 1;
                        left.alone.kv += self.unheld(request) + request.reserve;
                        self.set_aside(slot);
                        continue;
                    }
                    if !self.fits(slot, left.kv.saturating_sub(kept_kv)) || self.was_refused(slot) {
                        self.set_aside(slot);
                        left.skipped += 1;
                        if left.skipped >= LOOKS && !idle {
                            self.looked_enough = true;
                            break End::Looked;
                        }
                        continue;
                    }
                    slot
                }
            };
            if self.exceeds(slot, &budget, &left) && !order.is_empty() {
                break End::Prefill;
            }
            order.push(self.name(slot, &mut left));
            self.keep_for(slot, &mut left.kept);
        };
        if idle && order.is_empty() && rows > 0 {
            // The oldest, which the engine then admits or reports: an idle engine never waits for the policy.
            if let Some((_, slot)) = self.ages.first() {
                order.push(self.name(slot, &mut left));
                left.kept = self.kept_for_all();
            }
        }
        let kept = left.kept().0.min(u64::from(left.rows)) as u32;
        Plan { order, held: self.held() + left.alone.rows, kept, skipped: left.skipped, end }
    }

    /// The next request in order that is not held back, without regard to what fits.
    pub(crate) fn first_in_order(&self) -> Option<Slot> {
        let (_, best) = self.tree.frontier.by_order.first()?;
        let first = |v: NodeId| self.tree.node(v).first().map(|first| first.slot);
        if self.config.order == Order::Missing {
            return first(best);
        }
        let (_, oldest) = self.tree.frontier.by_age.first()?;
        let held = |v: NodeId| {
            let active = self.tree.deepest(v, |counts| counts.rows > 0);
            u64::from(self.tree.node(active).depth) * u64::from(self.config.chunk)
        };
        let clearly_more = held(best) >= held(oldest) + u64::from(self.config.barrier_min);
        first(if clearly_more { best } else { oldest })
    }

    /// The oldest request past the bound, whatever order and kept rows say.
    ///
    /// It still waits for its prefix, unless that has been computed for longer than the bound. An idle engine is given it
    /// though it does not fit as far as the index knows: nothing that runs will make room.
    fn overdue(&self, budget: &Budget, left: &Left, first: bool) -> Overdue {
        let is_overdue = |arrival: Arrival| budget.now.saturating_sub(arrival.tokens) > self.config.max_wait;
        if !self.ages.first().is_some_and(|(arrival, _)| is_overdue(arrival)) {
            return Overdue::Nobody;
        }
        for (arrival, slot) in self.ages.in_order().take(LOOKS as usize) {
            if !is_overdue(arrival) {
                break;
            }
            if self.was_refused(slot) || self.is_held(slot) && !self.was_held_long(slot, budget) {
                continue;
            }
            if self.fits(slot, left.kv) || budget.idle && first {
                return Overdue::First(slot);
            }
            let request = self.request(slot);
            if !budget.idle && request.length + request.reserve <= self.config.capacity {
                return Overdue::Waits;
            }
        }
        Overdue::Nobody
    }

    /// Among those that need the same first uncomputed chunk as `slot`: the one whose path is shared deepest.
    fn leader_for(&self, slot: Slot) -> Slot {
        let request = self.request(slot);
        let published = self.tree.deepest(request.end, Counts::published);
        if published == request.end || !request.leads {
            return slot;
        }
        let first = self.tree.covering(request.end, self.tree.node(published).depth + 1);
        if self.tree.is_pending(first) {
            return slot;
        }
        self.tree.node(first).lead().map_or(slot, |(_, leader)| leader)
    }

    /// Whether the barrier holds this request back: waiting saves `barrier_min`, or a quarter of what it must compute.
    fn is_held(&self, slot: Slot) -> bool {
        let request = self.request(slot);
        let computed = self.tree.deepest(request.end, |counts| counts.leading > 0);
        if !self.tree.is_pending(computed) {
            return false;
        }
        let saved = self.tree.saved_by_waiting(computed);
        saved >= u64::from(self.config.barrier_min) || 4 * saved >= self.uncomputed(request)
    }

    fn fits(&self, slot: Slot, kv: u64) -> bool {
        let request = self.request(slot);
        self.unheld(request) + request.reserve <= kv
    }

    /// Whether what a held request waits for has been computed for longer than the bound.
    fn was_held_long(&self, slot: Slot, budget: &Budget) -> bool {
        let request = self.request(slot);
        let published = self.tree.deepest(request.end, Counts::published);
        let depth = self.tree.node(published).depth + 1;
        let wanted = self.tree.covering(request.end, depth);
        let computes =
            |row: &&Request| self.tree.node(row.end).depth >= depth && self.tree.covering(row.end, depth) == wanted;
        let rows = self.computing.iter().map(|&slot| self.request(slot));
        rows.filter(computes).any(|row| budget.now.saturating_sub(row.since) > self.config.max_wait)
    }

    /// Whether a request is longer than what is left to prefill, and cannot be chunked.
    fn exceeds(&self, slot: Slot, budget: &Budget, left: &Left) -> bool {
        let page = u64::from(self.config.page);
        !budget.chunked && self.uncomputed(self.request(slot)).div_ceil(page) * page >= left.prefill
    }

    /// The engine refused it in the last pass: others go first in this one, and nobody waits for it.
    fn was_refused(&self, slot: Slot) -> bool {
        let refused = self.request(slot).refused;
        refused != 0 && refused + 1 == self.pass
    }

    fn set_aside(&mut self, slot: Slot) {
        self.set_queued(slot, false);
        self.tree.refresh_upward(self.request(slot).end);
        self.aside.insert(slot);
    }

    fn offer_all(&mut self) {
        for slot in std::mem::take(&mut self.aside) {
            self.set_queued(slot, true);
            self.tree.refresh_upward(self.request(slot).end);
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
            self.keep_for(slot, &mut kept);
        }
        kept
    }

    /// Adds what is kept for those who wait for the leader `slot`.
    fn keep_for(&self, slot: Slot, kept: &mut Kept) {
        let Request { end, computing, admitted, .. } = *self.request(slot);
        if !computing || self.pass - admitted >= KEPT_PASSES {
            return;
        }
        let chunk = u64::from(self.config.chunk);
        let worth_it = u64::from(self.config.barrier_min).div_ceil(chunk).max(1) as u32;
        let published = self.tree.deepest(end, Counts::published);
        let depth = self.tree.node(published).depth + worth_it;
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

    /// Admits `slot` tentatively and spends what it needs.
    fn name(&mut self, slot: Slot, left: &mut Left) -> Candidate {
        let request: &Request = self.request(slot);
        let (id, length, reserve) = (request.id, request.length, request.reserve);
        let published = self.tree.deepest(request.end, Counts::published);
        let active = self.tree.deepest(published, |counts| counts.rows > 0);
        let (uncomputed, unheld) = (self.beyond(request, published), self.beyond(request, active));
        let rows = self.tree.node(ROOT).counts.rows;
        let before = left.tip.map_or(0, |v| self.tree.node(v).depth);
        let shared = if rows == 0 { published } else { self.tree.deepest(published, |counts| counts.rows == rows) };
        self.admit(slot);
        self.tentative.push(slot);
        left.tip = Some(shared);
        let page = u64::from(self.config.page);
        left.rows -= 1;
        left.kv = left.kv.saturating_sub(unheld + reserve);
        left.prefill = left.prefill.saturating_sub(uncomputed.div_ceil(page) * page);
        Candidate {
            id,
            uncomputed,
            add_total: length,
            add_distinct: unheld,
            chunks_before: before,
            chunks_after: self.tree.node(shared).depth,
            peers: self.tree.node(shared).counts.waiting as u64,
        }
    }
}
