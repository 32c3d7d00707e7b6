//! Random operation sequences on the index and on the naive model, compared after every step.
//!
//! About a million operations in all; `make soak-index` goes on for as long as is asked.

mod common;

use cht::{End, Order};
use common::driver::{Driver, Violation};
use common::operation::Op;
use common::sequence::{self, Numbers, Setup};
use proptest::prelude::*;

/// Sequences of 60 operations on average: long enough for families to open, publish, finish and be forgotten.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<u64>().prop_map(Op::from), 1..120)
}

/// Arrivals of more requests than a pass looks at, and then passes in which few of them fit.
fn crowd() -> impl Strategy<Value = Vec<Op>> {
    let arrivals = prop::collection::vec(any::<u64>().prop_map(|code| Op::from(code & !0xFF)), 80..100);
    let short_of_room = |op| match op {
        Op::Pass { kv, rows, prefill, cut, flags } => Op::Pass { kv: kv % 30, rows, prefill, cut, flags: flags | 1 },
        other => other,
    };
    (arrivals, ops())
        .prop_map(move |(first, then)| first.into_iter().chain(then.into_iter().map(short_of_room)).collect())
}

fn holds(result: Result<u64, Violation>) -> Result<(), TestCaseError> {
    result.map(drop).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_400))]

    #[test]
    fn held_order(ops in ops()) {
        holds(sequence::run(Setup::new(Order::Held), ops))?;
    }

    #[test]
    fn missing_order(ops in ops()) {
        let mut setup = Setup::new(Order::Missing);
        setup.config.page = 4;
        holds(sequence::run(setup, ops))?;
    }

    /// Collisions misorder, and never corrupt: the model sees the same narrow hashes.
    #[test]
    fn colliding_hashes(ops in ops(), bits in 3u32..7) {
        let mut setup = Setup::new(Order::Held);
        (setup.config.barrier_min, setup.config.page, setup.mask) = (12, 2, (1 << bits) - 1);
        holds(sequence::run(setup, ops))?;
    }

    #[test]
    fn barrier_that_never_waits(ops in ops()) {
        let mut setup = Setup::new(Order::Held);
        setup.config.barrier_min = 1000;
        holds(sequence::run(setup, ops))?;
    }

    #[test]
    fn lanes(ops in ops(), missing: bool) {
        let mut setup = Setup::new(if missing { Order::Missing } else { Order::Held });
        setup.lanes = 3;
        holds(sequence::run(setup, ops))?;
    }

    #[test]
    fn any_configuration(ops in ops(), seed: u64) {
        holds(sequence::run(Setup::from_seed(seed), ops))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))] // the model needs O(requests²) for every step

    #[test]
    fn a_crowd(ops in crowd(), seed: u64) {
        holds(sequence::run(Setup::from_seed(seed), ops))?;
    }
}

/// What is never reached is not tested: plans end for every reason, and the barrier holds requests back.
#[test]
fn sequences_reach_every_state() {
    let (mut ends, mut held, mut kept, mut tentative, mut nodes) = (vec![], 0, 0, 0, 0);
    for seed in 0..300 {
        let mut driver = Driver::new(Setup::from_seed(seed), Setup::from_seed(seed).index());
        let mut numbers = Numbers(seed);
        for _ in 0..100 {
            driver.apply(Op::from(numbers.next())).unwrap();
            nodes = driver.subject.nodes().max(nodes);
            let Some(plan) = driver.last.take() else { continue };
            ends.push(plan.end);
            held += u64::from(plan.held > 0);
            kept += u64::from(plan.kept > 0);
            tentative += plan.order.len();
        }
    }
    for end in [End::Nobody, End::Rows, End::Kept, End::Prefill, End::Room] {
        assert!(ends.iter().filter(|&&e| e == end).count() > 20, "{end:?} is too rare");
    }
    assert!(held > 100 && kept > 100 && tentative > 1_000, "{held}, {kept}, {tentative}");
    assert!(nodes > 30, "prompts hardly branch: {nodes} nodes at most");
}
