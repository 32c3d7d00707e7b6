//! The fairness bound: who is next because of it.

use crate::index::Index;
use crate::node::Arrival;
use crate::plan::{Budget, LOOKS, Left};
use crate::standing::Standing;

/// The bound over this: who arrived at most so much later than the oldest request has come together with it.
pub const TOGETHER: u64 = 8;

/// Who is served because of the fairness bound.
pub(crate) enum Overdue {
    /// The next in order, which came together with the oldest.
    Together(Standing),
    /// The oldest.
    First(Standing),
    /// The oldest needs room that running rows will free.
    Waits,
    Nobody,
}

impl Index {
    fn is_past_bound(&self, arrival: Arrival, now: u64) -> bool {
        now.saturating_sub(arrival.tokens) > self.config.max_wait - self.config.max_wait / TOGETHER
    }

    /// The lane of the oldest waiting request, once that is past the bound.
    #[must_use]
    pub fn overdue_lane(&self, now: u64) -> Option<u8> {
        let (_, oldest) = self.ages.first().filter(|&(arrival, _)| self.is_past_bound(arrival, now))?;
        Some(self.request(oldest).lane)
    }

    /// Who is next because of the bound: the oldest request past it, unless the next in order came together with it.
    ///
    /// Otherwise a burst that takes longer than the bound would end in arrival order, which computes the prefix of every
    /// family again and again; who came later than that goes before nobody. What came together is past the bound an
    /// eighth of it sooner.
    ///
    /// The oldest goes first whatever order and kept rows say. It still waits for its prefix, unless that has been
    /// computed for longer than the bound. An idle engine is given it though it does not fit as far as the index knows:
    /// nothing that runs will make room.
    pub(crate) fn overdue(&self, budget: &Budget, left: &Left, kept_kv: u64, first: bool) -> Overdue {
        let together = self.config.max_wait / TOGETHER;
        let is_overdue = |arrival: Arrival| self.is_past_bound(arrival, budget.now);
        let Some((oldest, _)) = self.ages.first().filter(|&(arrival, _)| is_overdue(arrival)) else {
            return Overdue::Nobody;
        };
        if let Some(next) = self.next_in_order(budget).map(|next| self.leader_for(self.standing(next))) {
            let came_together = self.request(next.slot).arrival.tokens - oldest.tokens <= together;
            let fits = Index::fits(&next, left.kv.saturating_sub(kept_kv));
            if came_together && fits && !self.is_held(&next) && !self.was_refused(next.slot) {
                return Overdue::Together(next);
            }
        }
        let served = self.ages.in_order().filter(|&(_, slot)| budget.serves(self.request(slot).lane));
        for (arrival, slot) in served.take(LOOKS as usize) {
            if !is_overdue(arrival) {
                break;
            }
            let standing = self.standing(slot);
            if self.was_refused(slot) || self.is_held(&standing) && !self.was_held_long(&standing, budget) {
                continue;
            }
            if Index::fits(&standing, left.kv) || budget.idle && first {
                return Overdue::First(standing);
            }
            let request = self.request(slot);
            if !budget.idle && request.length + request.reserve <= self.config.capacity {
                return Overdue::Waits;
            }
        }
        Overdue::Nobody
    }
}
