//! What every index answers, so that two of them can be driven by the same operations and compared.

use crate::config::Error;
use crate::figures::Figures;
use crate::follow::Row;
use crate::plan::{Budget, Plan};
use crate::request::Arriving;

/// The operations of [`crate::Index`]; see there for what each does and costs.
///
/// [`crate::naive::Naive`] answers them from plain lists. Tests wrap an index to plant faults or to do more than asked.
#[allow(clippy::missing_errors_doc)] // see the methods of `Index`
pub trait Planner {
    /// See [`crate::Index::insert`].
    fn insert(&mut self, new: Arriving) -> Result<(), Error>;
    /// See [`crate::Index::begin`].
    fn begin(&mut self);
    /// See [`crate::Index::follow`].
    fn follow(&mut self, alive: &[u64], changed: &[Row<'_>], finished: &[u64]);
    /// See [`crate::Index::activate`].
    fn activate(&mut self, id: u64) -> Result<(), Error>;
    /// See [`crate::Index::publish`].
    fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error>;
    /// See [`crate::Index::grow`].
    fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error>;
    /// See [`crate::Index::leave`].
    fn leave(&mut self, id: u64, whole: bool) -> bool;
    /// See [`crate::Index::forget`].
    fn forget(&mut self);
    /// See [`crate::Index::set_max_wait`].
    fn set_max_wait(&mut self, tokens: u64);
    /// See [`crate::Index::set_lane`].
    fn set_lane(&mut self, id: u64, lane: u8) -> bool;
    /// See [`crate::Index::overdue_lane`].
    fn overdue_lane(&self, now: u64) -> Option<u8>;
    /// See [`crate::Index::plan`].
    fn plan(&mut self, budget: Budget) -> Plan;
    /// See [`crate::Index::undo`].
    fn undo(&mut self, keep: usize);
    /// See [`crate::Index::settle`].
    fn settle(&mut self, reused: &[(u64, u64)], refused: &[u64]) -> Result<(), Error>;
    /// See [`crate::Index::best`].
    fn best(&self) -> Option<(u64, u64)>;
    /// See [`crate::Index::figures`].
    fn figures(&self) -> Figures;
    /// See [`crate::Index::rows_by_family`].
    fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>);
}

impl Planner for crate::Index {
    fn insert(&mut self, new: Arriving) -> Result<(), Error> {
        self.insert(new)
    }

    fn begin(&mut self) {
        self.begin();
    }

    fn follow(&mut self, alive: &[u64], changed: &[Row<'_>], finished: &[u64]) {
        self.follow(alive, changed, finished);
    }

    fn activate(&mut self, id: u64) -> Result<(), Error> {
        self.activate(id)
    }

    fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error> {
        self.publish(id, tokens, computing)
    }

    fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error> {
        self.grow(id, tokens)
    }

    fn leave(&mut self, id: u64, whole: bool) -> bool {
        self.leave(id, whole)
    }

    fn forget(&mut self) {
        self.forget();
    }

    fn set_max_wait(&mut self, tokens: u64) {
        self.set_max_wait(tokens);
    }

    fn set_lane(&mut self, id: u64, lane: u8) -> bool {
        self.set_lane(id, lane)
    }

    fn overdue_lane(&self, now: u64) -> Option<u8> {
        self.overdue_lane(now)
    }

    fn plan(&mut self, budget: Budget) -> Plan {
        self.plan(budget)
    }

    fn undo(&mut self, keep: usize) {
        self.undo(keep);
    }

    fn settle(&mut self, reused: &[(u64, u64)], refused: &[u64]) -> Result<(), Error> {
        self.settle(reused, refused)
    }

    fn best(&self) -> Option<(u64, u64)> {
        self.best()
    }

    fn figures(&self) -> Figures {
        self.figures()
    }

    fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>) {
        self.rows_by_family()
    }
}
