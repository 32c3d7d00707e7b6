//! Would the comparison notice? Faults planted in an index, one at a time: each is found within a few thousand sequences.
//!
//! Faults inside the index are planted by `cargo mutants`.

mod common;

use cht::{Arriving, Budget, Error, Figures, Index, Plan, Planner, Row, Work};
use common::driver::Subject;
use common::operation::Op;
use common::sequence::{Numbers, Setup, run_on};

/// What the wrapped index does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    AgesAnew,
    LeadsAlthoughTold,
    ForgetsTheReserve,
    PublishesOneTokenLess,
    StopsComputingNever,
    GrowsOtherTokens,
    KeepsTheWholePath,
    KeepsNothing,
    IgnoresForget,
    IgnoresAnotherBound,
    SeesOneTokenMoreRoom,
    SeesOneRowMore,
    UndoesOneTooFew,
    UndoesOneTooMany,
    TrustsTheMemory,
    ForgetsRefusals,
    DoesNotBegin,
    KeepsLostRows,
    IgnoresUnplannedRows,
    FinishesBeforeTheyAreTold,
    OrdersRowsBackwards,
    KeepsTheFirstLane,
    PlansInEveryLane,
}

use Fault::*;

const FAULTS: [Fault; 23] = [
    AgesAnew,
    LeadsAlthoughTold,
    ForgetsTheReserve,
    PublishesOneTokenLess,
    StopsComputingNever,
    GrowsOtherTokens,
    KeepsTheWholePath,
    KeepsNothing,
    IgnoresForget,
    IgnoresAnotherBound,
    SeesOneTokenMoreRoom,
    SeesOneRowMore,
    UndoesOneTooFew,
    UndoesOneTooMany,
    TrustsTheMemory,
    ForgetsRefusals,
    DoesNotBegin,
    KeepsLostRows,
    IgnoresUnplannedRows,
    FinishesBeforeTheyAreTold,
    OrdersRowsBackwards,
    KeepsTheFirstLane,
    PlansInEveryLane,
];

struct Faulty {
    index: Index,
    fault: Option<Fault>,
    newest: u64,
    planned: Vec<(u64, u64)>,
}

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

impl Planner for Faulty {
    fn insert(&mut self, mut new: Arriving) -> Result<(), Error> {
        self.newest = self.newest.max(new.arrival.sequence);
        if self.has(AgesAnew) && new.arrival.sequence < self.newest {
            (new.arrival.tokens, new.arrival.sequence) = (1 << 30, self.newest + 1_000_000 + new.id);
        }
        new.leads |= self.has(LeadsAlthoughTold);
        if self.has(ForgetsTheReserve) {
            new.reserve = 0;
        }
        self.index.insert(new)
    }

    fn begin(&mut self) {
        if !self.has(DoesNotBegin) {
            self.index.begin();
        }
    }

    fn follow(&mut self, alive: &[u64], changed: &[Row<'_>], finished: &[u64]) {
        let (mut alive, rows) = (alive.to_vec(), self.index.running_ids().collect::<Vec<_>>());
        if self.has(KeepsLostRows) {
            alive.extend(&rows);
        }
        if self.has(IgnoresUnplannedRows) {
            alive.retain(|id| rows.contains(id));
        }
        if self.has(FinishesBeforeTheyAreTold) {
            self.index.follow(&alive, &[], finished);
            self.index.follow(&alive, changed, &[]);
        } else {
            self.index.follow(&alive, changed, finished);
        }
    }

    fn activate(&mut self, id: u64) -> Result<(), Error> {
        self.index.activate(id)
    }

    fn publish(&mut self, id: u64, tokens: u64, computing: bool) -> Result<(), Error> {
        let tokens = tokens - u64::from(self.has(PublishesOneTokenLess) && tokens > 0);
        self.index.publish(id, tokens, computing || self.has(StopsComputingNever))
    }

    fn grow(&mut self, id: u64, tokens: &[i64]) -> Result<(), Error> {
        if self.has(GrowsOtherTokens) {
            self.index.grow(id, &vec![9; tokens.len()])
        } else {
            self.index.grow(id, tokens)
        }
    }

    fn leave(&mut self, id: u64, whole: bool) -> bool {
        self.index.leave(id, (whole || self.has(KeepsTheWholePath)) && !self.has(KeepsNothing))
    }

    fn forget(&mut self) {
        if !self.has(IgnoresForget) {
            self.index.forget();
        }
    }

    fn set_max_wait(&mut self, tokens: u64) {
        if !self.has(IgnoresAnotherBound) {
            self.index.set_max_wait(tokens);
        }
    }

    fn set_lane(&mut self, id: u64, lane: u8) -> bool {
        self.has(KeepsTheFirstLane) && self.index.contains(id) || self.index.set_lane(id, lane)
    }

    fn overdue_lane(&self, now: u64) -> Option<u8> {
        self.index.overdue_lane(now)
    }

    fn plan(&mut self, mut budget: Budget) -> Plan {
        budget.lane = budget.lane.filter(|_| !self.has(PlansInEveryLane));
        budget.kv += u64::from(self.has(SeesOneTokenMoreRoom));
        budget.rows += u32::from(self.has(SeesOneRowMore));
        let plan = self.index.plan(budget);
        self.planned = plan.order.iter().map(|c| (c.id, c.add_total - c.uncomputed)).collect();
        plan
    }

    fn undo(&mut self, keep: usize) {
        let keep = keep + usize::from(self.has(UndoesOneTooFew));
        self.index.undo(keep.saturating_sub(usize::from(self.has(UndoesOneTooMany))));
    }

    fn settle(&mut self, reused: &[(u64, u64)], refused: &[u64]) -> Result<(), Error> {
        let mut reused = reused.to_vec();
        if self.has(TrustsTheMemory) {
            for (id, tokens) in &mut reused {
                *tokens = self.planned.iter().find(|planned| planned.0 == *id).map_or(*tokens, |planned| planned.1);
            }
        }
        self.index.settle(&reused, if self.has(ForgetsRefusals) { &[] } else { refused })
    }

    fn best(&self) -> Option<(u64, u64)> {
        self.index.best()
    }

    fn figures(&self) -> Figures {
        self.index.figures()
    }

    fn rows_by_family(&self) -> (Vec<u64>, Vec<u64>) {
        let (mut order, shared) = self.index.rows_by_family();
        if self.has(OrdersRowsBackwards) {
            order.reverse();
        }
        (order, shared)
    }
}

impl Subject for Faulty {
    fn check(&self) -> Result<(), String> {
        self.index.check_integrity()
    }

    fn nodes(&self) -> u64 {
        self.index.nodes()
    }

    fn work(&self) -> Work {
        self.index.work()
    }
}

/// The number of the first sequence in which `fault` is noticed.
fn noticed(fault: Option<Fault>, sequences: u64) -> Option<u64> {
    (0..sequences).find(|&seed| {
        let setup = Setup::from_seed(seed);
        let mut numbers = Numbers(seed);
        let ops = (0..100).map(|_| Op::from(numbers.next()));
        run_on(setup, Faulty { index: setup.index(), fault, newest: 0, planned: vec![] }, ops).is_err()
    })
}

#[test]
fn every_planted_fault_is_noticed() {
    for fault in FAULTS {
        assert!(noticed(Some(fault), 3_000).is_some(), "{fault:?} went unnoticed");
    }
}

#[test]
fn without_a_fault_nothing_is_noticed() {
    assert_eq!(noticed(None, 300), None);
}
