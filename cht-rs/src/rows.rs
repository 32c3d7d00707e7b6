//! Running rows: what a request does to its path between admission and departure.

use crate::config::Error;
use crate::index::Index;
use crate::node::{Counts, NodeId, ROOT, Slot};
use crate::plan::KEPT_PASSES;
use crate::request::{Request, State};

impl Index {
    /// The engine runs a waiting request that was not planned, or a row that never waited.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`] if it does not wait.
    pub fn activate(&mut self, id: u64) -> Result<(), Error> {
        let slot = self.slot(id)?;
        if self.request(slot).state != State::Waiting {
            return Err(Error::WrongState(id, "waiting"));
        }
        self.admit(slot);
        self.request_mut(slot).state = State::Running;
        Ok(())
    }

    /// Tells how much of a running row others can reuse now, and whether it still computes its prompt.
    ///
    /// Published chunks become active; what it computes beyond them stays pending while `computing`, and is nobody's
    /// otherwise. O(nodes on its path).
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`] if it does not run.
    pub fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error> {
        let slot = self.running(id)?;
        self.set_published(slot, tokens);
        if !computing {
            self.set_computing(slot, false);
        }
        Ok(())
    }

    /// Output tokens of a running row: its path grows, unpublished until told.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::WrongState`] if it does not run.
    pub fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error> {
        let slot = self.running(id)?;
        let chunk = self.config.chunk as usize;
        let Request { end, computing, mut stream, .. } = *self.request(slot);
        self.row_tokens += tokens.len() as u64;
        self.request_mut(slot).length += tokens.len() as u64;
        let Some(state) = stream.as_mut() else { return Ok(()) };
        let mut path = vec![];
        self.key.absorb(state, chunk, tokens, &mut path);
        self.request_mut(slot).stream = stream;
        if path.is_empty() {
            return Ok(());
        }
        self.set_computing(slot, false);
        let grown = self.tree.descend(end, &path);
        self.tree.pin(grown);
        self.request_mut(slot).end = grown;
        self.tree.unpin(end);
        self.set_computing(slot, computing);
        Ok(())
    }

    /// Makes a waiting request a row: what is published of its path becomes active, the rest pending if it leads.
    pub(crate) fn admit(&mut self, slot: Slot) {
        if self.request(slot).queued {
            self.leave_queue(slot, true);
        } else {
            self.aside.remove(&slot);
            self.count_waiting(slot, -1, false);
        }
        let Request { arrival, end, length, leads, .. } = *self.request(slot);
        self.ages.remove(&(arrival, slot));
        self.rows.insert(slot);
        let published = self.tree.deepest(end, Counts::published);
        self.row_tokens += length;
        self.hold(slot, published);
        self.request_mut(slot).state = State::Tentative;
        self.request_mut(slot).admitted = self.pass;
        self.set_computing(slot, leads && published != end);
    }

    /// Takes back [`Index::admit`].
    pub(crate) fn unadmit(&mut self, slot: Slot) {
        self.set_computing(slot, false);
        self.drop_row(slot);
        let arrival = self.request(slot).arrival;
        self.request_mut(slot).state = State::Waiting;
        self.ages.insert((arrival, slot));
        self.enter_queue(slot, true);
    }

    fn hold(&mut self, slot: Slot, v: NodeId) {
        self.tree.pin(v);
        self.row_published_chunks += u64::from(self.tree.node(v).depth);
        self.request_mut(slot).published = v;
        self.tree.add(v, Counts { rows: 1, ..Counts::default() }, false);
    }

    fn release(&mut self, v: NodeId) {
        self.row_published_chunks -= u64::from(self.tree.node(v).depth);
        self.tree.add(v, Counts { rows: -1, ..Counts::default() }, false);
        self.tree.unpin(v);
    }

    pub(crate) fn drop_row(&mut self, slot: Slot) {
        let Request { published, length, .. } = *self.request(slot);
        self.row_tokens -= length;
        self.request_mut(slot).published = ROOT;
        self.rows.remove(&slot);
        self.release(published);
    }

    pub(crate) fn set_published(&mut self, slot: Slot, tokens: u64) {
        let Request { end, published, .. } = *self.request(slot);
        let chunks = tokens / u64::from(self.config.chunk);
        let depth = u32::try_from(chunks).unwrap_or(u32::MAX).min(self.tree.node(end).depth);
        if depth == self.tree.node(published).depth {
            return;
        }
        let v = self.tree.cut(end, depth);
        self.hold(slot, v); // before the old one is released, so that nothing flips twice
        self.release(published);
    }

    pub(crate) fn set_computing(&mut self, slot: Slot, computing: bool) {
        let Request { end, computing: before, .. } = *self.request(slot);
        if before == computing {
            return;
        }
        self.request_mut(slot).computing = computing;
        if computing && self.pass - self.request(slot).admitted < KEPT_PASSES {
            self.leaders.push(slot);
        } else {
            self.leaders.retain(|&other| other != slot);
        }
        let by = if computing { 1 } else { -1 };
        self.tree.add(end, Counts { leading: by, ..Counts::default() }, false);
    }

    fn running(&self, id: u64) -> Result<Slot, Error> {
        let slot = self.slot(id)?;
        if self.request(slot).state == State::Waiting {
            return Err(Error::WrongState(id, "running"));
        }
        Ok(slot)
    }
}
