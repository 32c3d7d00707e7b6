//! Running rows: what a request does to its path between admission and departure.

use crate::config::Error;
use crate::follow::spread;
use crate::heap::NOWHERE;
use crate::index::Index;
use crate::node::{Counts, NodeId, ROOT, Slot};
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
        self.admit(slot, self.standing(slot).published);
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
        let stops = !computing && self.request(slot).computing;
        if stops {
            self.request_mut(slot).computing = false;
            self.stop_computing(slot);
        }
        self.move_mark(slot, tokens, if stops { -1 } else { 0 });
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
    ///
    /// `published`: where that part ends.
    pub(crate) fn admit(&mut self, slot: Slot, published: NodeId) {
        self.set_queued(slot, false);
        self.unset_age(slot);
        let waited = -self.demand(slot);
        let (pass, now, row) = (self.pass, self.now, self.rows.len() as u32);
        self.rows.push(slot);
        self.row_sum = self.row_sum.wrapping_add(spread(self.request(slot).id));
        self.tree.pin(published);
        let request = self.request_mut(slot);
        request.at = row;
        request.state = State::Tentative;
        request.admitted = pass;
        request.since = now;
        request.published = published;
        request.computing = request.leads && published != request.end;
        let Request { computing, length, .. } = *request;
        if computing {
            self.computing.push(slot);
        }
        self.row_tokens += length;
        self.row_published_chunks += u64::from(self.tree.node(published).depth);
        self.count_row(slot, 1, [waited, Counts::default()], true);
    }

    /// Takes back [`Index::admit`].
    pub(crate) fn unadmit(&mut self, slot: Slot) {
        self.leave_rows(slot);
        self.request_mut(slot).state = State::Waiting;
        self.set_age(slot);
        self.set_queued(slot, true);
        self.drop_counts(slot, [self.demand(slot), Counts::default()], true);
    }

    /// Takes a row out that is gone; `kept`: what is remembered at its end, and at the end of what it published.
    pub(crate) fn drop_row(&mut self, slot: Slot, kept: [Counts; 2]) {
        self.leave_rows(slot);
        self.drop_counts(slot, kept, false);
    }

    fn drop_counts(&mut self, slot: Slot, more: [Counts; 2], waits: bool) {
        let Request { published, length, .. } = *self.request(slot);
        self.row_tokens -= length;
        self.row_published_chunks -= u64::from(self.tree.node(published).depth);
        self.count_row(slot, -1, more, waits);
        let request = self.request_mut(slot);
        request.computing = false;
        request.published = ROOT;
        self.stop_computing(slot);
        self.tree.unpin(published);
    }

    fn leave_rows(&mut self, slot: Slot) {
        let at = self.request(slot).at;
        self.rows.swap_remove(at as usize);
        self.row_sum = self.row_sum.wrapping_sub(spread(self.request(slot).id));
        if let Some(&moved) = self.rows.get(at as usize) {
            self.request_mut(moved).at = at;
        }
        self.request_mut(slot).at = NOWHERE;
    }

    /// Counts a row along its path, once or minus once, with `more` at its end and at the end of what it published.
    fn count_row(&mut self, slot: Slot, by: i32, more: [Counts; 2], queue_changed: bool) {
        let Request { end, published, computing, .. } = *self.request(slot);
        let leading = if computing { by } else { 0 };
        let [below, above] = more;
        let below = below + Counts { leading, ..Counts::default() };
        let above = above + Counts { rows: by, ..Counts::default() };
        self.tree.add_along(&[(end, below), (published, above)], queue_changed);
    }

    fn stop_computing(&mut self, slot: Slot) {
        if self.computing.last() == Some(&slot) {
            self.computing.pop(); // a plan is taken back in reverse
        } else {
            self.computing.retain(|&other| other != slot);
        }
    }

    pub(crate) fn set_published(&mut self, slot: Slot, tokens: u64) {
        self.move_mark(slot, tokens, 0);
    }

    /// Moves the end of what a row published, and adds to those that compute its path, in one walk.
    fn move_mark(&mut self, slot: Slot, tokens: u64, leading: i32) {
        let Request { end, published, .. } = *self.request(slot);
        let leads = (end, Counts { leading, ..Counts::default() });
        let chunks = tokens / u64::from(self.config.chunk);
        let (before, most) = (self.tree.node(published).depth, self.tree.node(end).depth);
        let depth = u32::try_from(chunks).unwrap_or(u32::MAX).min(most);
        if depth == before {
            if leading != 0 {
                self.tree.add_along(&[leads], false);
            }
            return;
        }
        let v = self.tree.cut(end, depth);
        self.tree.pin(v);
        self.request_mut(slot).published = v;
        self.row_published_chunks = self.row_published_chunks - u64::from(before) + u64::from(depth);
        let row = Counts { rows: 1, ..Counts::default() };
        let (more, less) = ((v, row), (published, -row));
        let steps = if depth > before { [leads, more, less] } else { [leads, less, more] };
        self.tree.add_along(if leading == 0 { &steps[1..] } else { &steps }, false);
        self.tree.unpin(published);
    }

    pub(crate) fn set_computing(&mut self, slot: Slot, computing: bool) {
        let Request { end, computing: before, .. } = *self.request(slot);
        if before == computing {
            return;
        }
        self.request_mut(slot).computing = computing;
        if computing {
            self.computing.push(slot);
        } else {
            self.stop_computing(slot);
        }
        let leading = if computing { 1 } else { -1 };
        self.tree.add(end, Counts { leading, ..Counts::default() });
    }

    fn running(&self, id: u64) -> Result<Slot, Error> {
        let slot = self.slot(id)?;
        if self.request(slot).state == State::Waiting {
            return Err(Error::WrongState(id, "running"));
        }
        Ok(slot)
    }
}
