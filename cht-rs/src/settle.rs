//! After a plan: what the gate and the engine did with it.

use crate::config::Error;
use crate::index::Index;
use crate::node::Slot;
use crate::request::{Request, State};
use std::collections::HashSet;

impl Index {
    /// Takes back all but the first `keep` candidates of the plan.
    pub fn undo(&mut self, keep: usize) {
        while self.tentative.len() > keep {
            let slot = self.tentative.pop().expect("not empty");
            self.unadmit(slot);
        }
    }

    /// Tells what the engine did with the plan: `reused`, the tokens each admitted request's match found; `refused`,
    /// those it tried and did not admit. All others wait on as if they had not been named.
    ///
    /// Where a match found less than was remembered, the rest is forgotten; where it found more, that is active.
    ///
    /// # Errors
    /// [`Error::Unknown`] for an id that does not wait or run; the others are settled all the same.
    pub fn settle(&mut self, reused: &[(u64, u64)], refused: &[u64]) -> Result<(), Error> {
        let mut admitted = vec![];
        let mut unknown = Ok(());
        for &(id, tokens) in reused {
            match self.slot(id) {
                Ok(slot) => admitted.push((slot, tokens)),
                Err(error) => unknown = Err(error),
            }
        }
        let chosen: HashSet<Slot> = admitted.iter().map(|&(slot, _)| slot).collect();
        for slot in std::mem::take(&mut self.tentative).into_iter().rev() {
            if !chosen.contains(&slot) {
                self.unadmit(slot);
            }
        }
        for (slot, tokens) in admitted {
            if self.request(slot).state == State::Waiting {
                self.admit(slot, self.standing(slot).published);
            }
            self.request_mut(slot).state = State::Running;
            self.correct(slot, tokens);
        }
        for &id in refused {
            if let Ok(slot) = self.slot(id) {
                self.request_mut(slot).refused = self.pass;
            }
        }
        unknown
    }

    /// Makes a new row agree with the engine's own match.
    fn correct(&mut self, slot: Slot, tokens: u64) {
        let Request { end, published, length, leads, .. } = *self.request(slot);
        let (chunk, page) = (u64::from(self.config.chunk), u64::from(self.config.page));
        // An engine recomputes at least the last token, and matches whole pages.
        let matchable = (length - 1) / page * page / chunk;
        let expected = u64::from(self.tree.node(published).depth);
        let found = tokens / chunk;
        self.set_published(slot, tokens);
        if found < expected.min(matchable) {
            let lost = self.tree.covering(end, found as u32 + 1);
            if self.tree.node(lost).counts.rows == 0 {
                self.tree.forget_below(lost);
            }
            self.set_computing(slot, leads);
        }
    }
}
