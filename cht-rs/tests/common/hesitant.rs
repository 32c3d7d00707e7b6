//! An index that forms a plan of everybody, and takes it back, before whatever it is asked to do.

use super::driver::{Subject, since};
use super::small::PLENTY;
use cht::{Arriving, Budget, Error, Figures, Index, Plan, Planner, Row, Work};

pub struct Hesitant {
    pub index: Index,
    pub hesitates: bool,
    /// A plan of the caller's is not settled.
    open: bool,
    wasted: Work,
}

impl Hesitant {
    pub fn new(index: Index, hesitates: bool) -> Self {
        Hesitant { index, hesitates, open: false, wasted: Work::default() }
    }

    fn hesitate(&mut self) -> &mut Index {
        if self.hesitates && !self.open {
            let before = self.index.work();
            self.index.plan(Budget { idle: true, ..PLENTY });
            self.index.undo(0);
            let more = since(before, self.index.work());
            self.wasted.queue_operations += more.queue_operations;
            self.wasted.nodes_visited += more.nodes_visited;
            self.wasted.looked_at += more.looked_at;
        }
        &mut self.index
    }
}

impl Planner for Hesitant {
    fn insert(&mut self, new: Arriving) -> Result<(), Error> {
        self.hesitate().insert(new)
    }

    fn begin(&mut self) {
        self.hesitate().begin();
    }

    fn follow(&mut self, alive: &[u64], changed: &[Row<'_>], finished: &[u64]) {
        self.hesitate().follow(alive, changed, finished);
        self.open = false;
    }

    fn activate(&mut self, id: u64) -> Result<(), Error> {
        self.hesitate().activate(id)
    }

    fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error> {
        self.hesitate().publish(id, tokens, computing)
    }

    fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error> {
        self.hesitate().grow(id, tokens)
    }

    fn leave(&mut self, id: u64, whole: bool) -> bool {
        self.hesitate().leave(id, whole)
    }

    fn forget(&mut self) {
        self.hesitate().forget();
    }

    fn set_max_wait(&mut self, tokens: u64) {
        self.hesitate().set_max_wait(tokens);
    }

    fn set_lane(&mut self, id: u64, lane: u8) -> bool {
        self.hesitate().set_lane(id, lane)
    }

    fn overdue_lane(&self, now: u64) -> Option<u8> {
        self.index.overdue_lane(now)
    }

    fn plan(&mut self, budget: Budget) -> Plan {
        let plan = self.hesitate().plan(budget);
        self.open = true;
        plan
    }

    fn undo(&mut self, keep: usize) {
        self.index.undo(keep);
    }

    fn settle(&mut self, reused: &[(u64, u64)], refused: &[u64]) -> Result<(), Error> {
        self.open = false;
        self.index.settle(reused, refused)
    }

    fn best(&self) -> Option<(u64, u64)> {
        self.index.best()
    }

    fn figures(&self) -> Figures {
        self.index.figures()
    }

    fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>) {
        self.index.rows_by_family()
    }
}

impl Subject for Hesitant {
    fn check(&self) -> Result<(), String> {
        self.index.check_integrity()
    }

    fn nodes(&self) -> u64 {
        self.index.nodes()
    }

    fn work(&self) -> Work {
        since(self.wasted, self.index.work())
    }
}
